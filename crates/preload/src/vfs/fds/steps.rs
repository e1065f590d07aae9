//! The steps of the table of descriptors: what threads do to the word of a number, and to the count of users
//! of an entry.
//!
//! Any number of threads take these steps at once, without a lock. A number that stands for an open file is
//! one of the users of that file's entry; each call under way is another. The last user empties the entry,
//! which may then be filled with another file at once. So a call that has read an entry from a word becomes
//! a user of it, and then looks at the word again ([`hold`]).
//!
//! The steps are written over [`Cell`], which is an atomic of std's in the table and one of loom's in the
//! tests of every interleaving.

use std::sync::atomic::{AtomicU32, Ordering};

/// The part of a word that says what the number is; the rest is the turn.
pub const STATE: u32 = TURN - 1;
const TURN: u32 = 1 << 18;
/// Part of the state: a `vfork` child has given the number another meaning for itself. The rest is its
/// parent's.
pub const DOUBTED: u32 = 1 << 17;
pub const UNKNOWN: u32 = 0;
pub const FOREIGN: u32 = 1;
pub const CHANGING: u32 = 2;
/// Beside a mount: a file of the mount's, of which little use was made so far. See [`super::beside`].
pub const NEW: u32 = 3;
pub const USED: u32 = 4;
/// States from here on are entries.
pub const FIRST_ENTRY: u32 = 5;

/// The entry is being filled or emptied.
const BUSY: u32 = 1 << 31;

/// An atomic number. The steps say in which order it is read and written.
pub trait Cell {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// Whether the number was `from`, and is `to` now.
    fn swap(&self, from: u32, to: u32, order: Ordering) -> bool;
    /// Changes the number unless `to` gives nothing for it. What it was; an error if it was left alone.
    fn update(&self, order: Ordering, to: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32>;
}

/// The same for the atomics of std and of loom, which are called in the same way.
macro_rules! cell {
    ($atomic:ty) => {
        impl Cell for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u32 {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: u32, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
                self.fetch_add(value, order)
            }

            #[inline(always)]
            fn swap(&self, from: u32, to: u32, order: Ordering) -> bool {
                self.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
            }

            #[inline(always)]
            fn update(&self, order: Ordering, to: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
                self.fetch_update(order, Ordering::Relaxed, to)
            }
        }
    };
}

cell!(AtomicU32);

/// The state, apart from doubts.
#[inline(always)]
pub fn meaning(word: u32) -> u32 {
    word & STATE & !DOUBTED
}

/// The word that follows another one: the same number's next turn, in this state.
fn next(word: u32, state: u32) -> u32 {
    (word & !STATE).wrapping_add(TURN) | state
}

/// Replaces a number's word whatever it is; what it was.
#[inline(always)]
pub fn replace(word: &impl Cell, state: u32) -> u32 {
    match word.update(Ordering::AcqRel, |seen| Some(next(seen, state))) {
        Ok(old) | Err(old) => old,
    }
}

/// Replaces a number's word if it still is `seen`; whether it was. What a thread has found out about a number
/// is written in this way, so that it is not written where the number has become something else meanwhile.
#[inline(always)]
pub fn learn(word: &impl Cell, seen: u32, state: u32) -> bool {
    word.swap(seen, next(seen, state), Ordering::AcqRel)
}

/// Says that a number is about to be closed or replaced. Returns what the word was, and what it is now.
#[inline(always)]
pub fn begin(word: &impl Cell) -> (u32, u32) {
    let old = replace(word, CHANGING);
    (old, next(old, CHANGING))
}

/// Says what the number is after the kernel has closed or replaced it. If another change came in between, it
/// is not known in which order the kernel made the two: then the number becomes unknown. In that case this
/// returns what the word was, and neither that nor `state` has a use of its entry any more.
#[inline(always)]
pub fn end(word: &impl Cell, mark: u32, state: u32) -> Option<u32> {
    if learn(word, mark, state) { None } else { Some(replace(word, UNKNOWN)) }
}

/// Makes the caller a user of the entry that the word names, by `enter`. `None`: look at the word again,
/// because the number has been closed, and the entry may hold another file. (Then the user is dropped.)
#[inline(always)]
pub fn hold<T>(word: &impl Cell, seen: u32, enter: impl FnOnce() -> Option<T>) -> Option<T> {
    let user = enter()?;
    if word.load(Ordering::Acquire) == seen { Some(user) } else { None }
}

/// What a duplicate of a number stands for. `before` was the number's word after the entry `held` was looked
/// up and before the kernel made the duplicate; `after` is its word now. Unknown, unless the number was that
/// entry, or foreign, all the time: the kernel may have duplicated what came before or after.
pub fn duplicated(before: u32, after: u32, held: Option<u32>) -> u32 {
    match meaning(before) {
        _ if before != after => UNKNOWN,
        FOREIGN => FOREIGN,
        entry if held.is_some_and(|index| FIRST_ENTRY + index == entry) => entry,
        _ => UNKNOWN,
    }
}

/// A `vfork` child gives a number another meaning for itself. Whether there was anything to doubt.
pub fn doubt(word: &impl Cell) -> bool {
    word.update(Ordering::AcqRel, |seen| (seen & STATE != UNKNOWN).then_some(seen | DOUBTED)).is_ok()
}

/// Ends the doubt, if the word still is `seen`.
pub fn trust(word: &impl Cell, seen: u32) {
    word.swap(seen, seen & !DOUBTED, Ordering::AcqRel);
}

/// Takes a free entry, puts a file into it by `fill`, and makes the caller its only user. False: it is not
/// free.
#[inline(always)]
pub fn claim(users: &impl Cell, fill: impl FnOnce()) -> bool {
    if !users.swap(0, BUSY, Ordering::Acquire) {
        return false;
    }
    fill();
    users.store(1, Ordering::Release);
    true
}

/// Makes the caller a user of an entry that has users.
#[inline(always)]
pub fn enter(users: &impl Cell) -> bool {
    let enter = |users: u32| (users > 0 && users < BUSY - 1).then_some(users + 1);
    users.update(Ordering::Acquire, enter).is_ok()
}

/// One more user, counted by one that there is.
#[inline(always)]
pub fn share(users: &impl Cell) {
    users.fetch_add(1, Ordering::Relaxed);
}

/// A user leaves. The last one takes the file out of the entry by `empty`, and the entry is free.
#[inline(always)]
pub fn leave<T>(users: &impl Cell, empty: impl FnOnce() -> T) -> Option<T> {
    let leave = |users: u32| Some(if users == 1 { BUSY } else { users - 1 });
    if users.update(Ordering::AcqRel, leave) != Ok(1) {
        return None;
    }
    let file = empty();
    users.store(0, Ordering::Release);
    Some(file)
}

#[cfg(test)]
mod tests;
