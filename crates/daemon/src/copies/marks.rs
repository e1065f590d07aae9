//! Changes that may not have been made by all holders of their blocks.
//!
//! A primary numbers the changes that it has under way by *slots*: one change has a slot until all have made it. A
//! holder remembers the latest change of each slot of each primary: that of which it has not heard yet that all have
//! made it. So it takes no message to say so, and there are no more marks than changes under way.

use bivouac_layout::{Group, ServerId};
use bivouac_proto::copies::Mark;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The slots of this server's own changes.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Free>);

#[derive(Default)]
struct Free {
    given_back: BTreeSet<u32>,
    next: u32,
}

/// A slot in use.
pub(crate) struct Slot<'s> {
    slots: &'s Slots,
    number: u32,
}

impl Slots {
    /// The lowest that is free.
    pub(crate) fn take(&self) -> Slot<'_> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = free.given_back.pop_first().unwrap_or_else(|| {
            free.next += 1;
            free.next
        });
        Slot { slots: self, number }
    }
}

impl Slot<'_> {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.slots.0.lock().unwrap_or_else(PoisonError::into_inner).given_back.insert(self.number);
    }
}

/// A change, as a holder has made it.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) mark: Mark,
    /// How long the sub-file was before, bytes.
    pub(crate) before: u64,
}

/// The latest changes of others' slots.
#[derive(Default)]
pub(crate) struct Marks(Mutex<HashMap<(ServerId, u32), Made>>);

impl Marks {
    fn lock(&self) -> MutexGuard<'_, HashMap<(ServerId, u32), Made>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A primary has a change made. If that undoes the one before in its slot, the length from before that counts.
    pub(crate) fn note(&self, primary: ServerId, slot: u32, undoes: bool, made: Made) -> Made {
        let mut marks = self.lock();
        let earlier =
            marks.get(&(primary, slot)).filter(|earlier| undoes && earlier.mark.ino == made.mark.ino);
        let made = Made { before: earlier.map_or(made.before, |earlier| earlier.before), ..made };
        marks.insert((primary, slot), made);
        made
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Mark> {
        self.lock().values().map(|made| made.mark).collect()
    }

    /// All holders of these groups are the same again.
    pub(crate) fn forget(&self, groups: &[Group]) {
        self.lock().retain(|_, made| !groups.contains(&made.mark.group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::{GenerationId, Ino};

    fn group(first: u16) -> Group {
        Group::Blocks { generation: GenerationId(0), position: first, copies: 2, spread: 0 }
    }

    fn made(first: u16, offset: u64, before: u64) -> Made {
        Made { mark: Mark { group: group(first), ino: Ino(7), offset, len: 10 }, before }
    }

    #[test]
    fn a_slot_is_taken_by_one_change_at_a_time_and_used_again() {
        let slots = Slots::default();
        let (first, second) = (slots.take(), slots.take());
        assert_ne!(first.number(), second.number());
        let number = first.number();
        drop(first);
        assert_eq!(slots.take().number(), number);
    }

    #[test]
    fn the_next_change_of_a_slot_says_that_the_one_before_is_everywhere() {
        let marks = Marks::default();
        marks.note(ServerId(1), 1, false, made(0, 0, 0));
        marks.note(ServerId(1), 2, false, made(0, 100, 0));
        marks.note(ServerId(2), 1, false, made(1, 200, 0));
        marks.note(ServerId(1), 1, false, made(0, 300, 0));
        let offsets = |marks: &Marks| {
            let mut offsets: Vec<u64> = marks.all().iter().map(|mark| mark.offset).collect();
            offsets.sort_unstable();
            offsets
        };
        assert_eq!(offsets(&marks), [100, 200, 300]);
        marks.forget(&[group(0)]);
        assert_eq!(offsets(&marks), [200]);
    }

    #[test]
    fn a_change_is_undone_to_the_length_from_before_it() {
        let marks = Marks::default();
        marks.note(ServerId(1), 1, false, made(0, 0, 5));
        assert_eq!(marks.note(ServerId(1), 1, true, made(0, 0, 10)).before, 5);
        // Once more: the undoing was asked for again.
        assert_eq!(marks.note(ServerId(1), 1, true, made(0, 0, 5)).before, 5);
        assert_eq!(marks.note(ServerId(1), 2, true, made(0, 0, 10)).before, 10, "the change never came");
    }
}
