//! The steps of a slot: free → allocated → live → retiring → free.
//!
//! Every process of the node may take a step at any time, and may be stopped between any two instructions for
//! longer than others wait for it. So a step is one compare-and-swap of the slot's [`Word`], which fails if
//! anybody else has taken a step since the word was read. Only the process that has allocated a slot clears
//! its fields: one that freed it late would clear those of the next user.
//!
//! The words lie in shared memory, which a schedule explorer cannot watch. So the steps are written over
//! [`Cell`], which is an atomic of std's in the table and one of loom's in the tests of every interleaving.

use super::{State, Word};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a word is.
pub(crate) trait Cell {
    /// The word's bits.
    fn read(&self) -> u64;
    /// Changes the bits if they still are `from`; whether they were.
    fn swap(&self, from: u64, to: u64) -> bool;
}

impl Cell for AtomicU64 {
    fn read(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Changes the word if it still is `from`; whether it was.
pub(crate) fn change(cell: &impl Cell, from: Word, to: Word) -> bool {
    cell.swap(from.bits(), to.bits())
}

/// The word, if this use of the slot is not over.
fn current(cell: &impl Cell, incarnation: u32) -> Option<Word> {
    let word = Word::from_bits(cell.read());
    (word.incarnation == incarnation && word.state != State::Free).then_some(word)
}

/// Takes a free slot for `owner`, and clears its fields. Returns which use of the slot this is.
pub(crate) fn take(cell: &impl Cell, owner: u32, clear: impl FnOnce()) -> Option<u32> {
    let word = Word::from_bits(cell.read());
    if word.state != State::Free || !change(cell, word, Word { state: State::Allocated, owner, ..word }) {
        return None;
    }
    clear();
    Some(word.incarnation)
}

/// Marks an allocated slot live. False if it is neither allocated nor live.
pub(crate) fn make_live(cell: &impl Cell, incarnation: u32) -> bool {
    match current(cell, incarnation) {
        Some(word) if word.state == State::Allocated => {
            change(cell, word, Word { state: State::Live, ..word })
        }
        Some(word) => word.state == State::Live,
        None => false,
    }
}

/// Begins to free a slot. True for one caller only, unless that one `is_lost` before it has freed the slot.
pub(crate) fn retire(
    cell: &impl Cell,
    incarnation: u32,
    owner: u32,
    is_lost: impl FnOnce(Word) -> bool,
) -> bool {
    let Some(word) = current(cell, incarnation) else {
        return false;
    };
    if word.state == State::Retiring && !is_lost(word) {
        return false;
    }
    change(cell, word, Word { state: State::Retiring, owner, ..word })
}

/// Makes a retiring slot free. Its fields stay as they are until it is taken again.
pub(crate) fn free(cell: &impl Cell, incarnation: u32) -> bool {
    let Some(word) = current(cell, incarnation) else {
        return false;
    };
    let next = Word { state: State::Free, owner: 0, incarnation: incarnation.wrapping_add(1) };
    word.state == State::Retiring && change(cell, word, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    impl Cell for loom::sync::atomic::AtomicU64 {
        fn read(&self) -> u64 {
            self.load(Ordering::Acquire)
        }

        fn swap(&self, from: u64, to: u64) -> bool {
            self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }
    }

    /// A slot with one field, all users of which write the same to it as long as it is theirs.
    struct Slot {
        word: loom::sync::atomic::AtomicU64,
        field: loom::sync::atomic::AtomicU64,
    }

    impl Slot {
        fn new(state: State, owner: u32) -> Arc<Slot> {
            let word = Word { state, owner, incarnation: 0 };
            Arc::new(Slot {
                word: loom::sync::atomic::AtomicU64::new(word.bits()),
                field: loom::sync::atomic::AtomicU64::new(1),
            })
        }

        fn take(&self, owner: u32) -> Option<u32> {
            take(&self.word, owner, || self.field.store(0, Ordering::Relaxed))
        }

        fn word(&self) -> Word {
            Word::from_bits(self.word.read())
        }
    }

    #[test]
    fn one_of_all_who_retire_a_slot_releases_it_in_every_interleaving() {
        loom::model(|| {
            let slot = Slot::new(State::Live, 1);
            let retire = |owner| {
                let slot = slot.clone();
                thread::spawn(move || retire(&slot.word, 0, owner, |_| false))
            };
            let threads = [retire(2), retire(3)];
            let winners = threads.map(|thread| thread.join().unwrap()).into_iter().filter(|won| *won).count();
            assert_eq!(winners, 1);
            assert!(slot.word().state == State::Retiring && [2, 3].contains(&slot.word().owner));
        });
    }

    /// A process that was stopped while it freed a slot; another one that does it in its place, because that
    /// took so long; and a third that takes the slot.
    #[test]
    fn a_slot_that_is_freed_late_is_its_next_users_in_every_interleaving() {
        loom::model(|| {
            let slot = Slot::new(State::Retiring, 1);
            let late = {
                let slot = slot.clone();
                thread::spawn(move || free(&slot.word, 0))
            };
            let other = {
                let slot = slot.clone();
                thread::spawn(move || retire(&slot.word, 0, 2, |_| true) && free(&slot.word, 0))
            };
            let incarnation = loop {
                match slot.take(3) {
                    Some(incarnation) => break incarnation,
                    None => thread::yield_now(),
                }
            };
            slot.field.store(7, Ordering::Relaxed);
            assert!(make_live(&slot.word, incarnation));
            let freed = [late, other].map(|thread| thread.join().unwrap());
            assert_eq!(freed.into_iter().filter(|freed| *freed).count(), 1, "one of them frees it");
            assert_eq!(slot.field.load(Ordering::Relaxed), 7);
            assert!(slot.word() == Word { state: State::Live, owner: 3, incarnation: 1 });
        });
    }

    #[test]
    fn a_slot_has_one_user_at_a_time_and_each_its_own_incarnation_in_every_interleaving() {
        loom::model(|| {
            let slot = Slot::new(State::Free, 0);
            let life = |owner: u32| {
                let slot = slot.clone();
                move || {
                    let incarnation = slot.take(owner)?;
                    slot.field.store(owner.into(), Ordering::Relaxed);
                    assert!(make_live(&slot.word, incarnation));
                    assert_eq!(slot.field.load(Ordering::Relaxed), u64::from(owner));
                    assert!(retire(&slot.word, incarnation, owner, |_| false));
                    assert!(!make_live(&slot.word, incarnation));
                    assert!(free(&slot.word, incarnation) && !free(&slot.word, incarnation));
                    Some(incarnation)
                }
            };
            let other = thread::spawn(life(1));
            let mine = life(2)();
            let theirs = other.join().unwrap();
            assert!(mine.is_some() || theirs.is_some());
            assert_ne!(mine, theirs);
            assert_eq!(slot.word().incarnation, mine.iter().chain(&theirs).count() as u32);
        });
    }
}
