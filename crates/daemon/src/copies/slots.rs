//! Numbers for the changes that a primary has under way: a *slot* for each until all holders have made it, and a *turn*,
//! which is never used again. What holders make of them: [`super::marks`].

use bivouac_layout::Group;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The slots of this server's own changes.
pub(crate) struct Slots {
    taken: Mutex<Taken>,
    /// The turn of the first change, and of the next one.
    first: u64,
    turn: AtomicU64,
}

#[derive(Default)]
struct Taken {
    given_back: BTreeSet<u32>,
    next: u32,
    /// Turns by slot.
    under_way: BTreeMap<u32, u64>,
    /// Slots that were left, and of which group.
    left: Vec<(u32, Group)>,
}

/// A slot in use.
pub(crate) struct Slot<'s> {
    slots: &'s Slots,
    number: u32,
    turn: u64,
}

impl Slots {
    /// Turns from `first` on: later than those before a restart.
    pub(crate) fn new(first: u64) -> Slots {
        Slots { taken: Mutex::default(), first, turn: AtomicU64::new(first) }
    }

    /// The turn of the first change; and the changes that may not have been made by all, with slot and turn.
    pub(crate) fn under_way(&self) -> (u64, Vec<(u32, u64)>) {
        (self.first, self.lock().under_way.iter().map(|(slot, turn)| (*slot, *turn)).collect())
    }

    /// All holders of these groups are the same again: changes of theirs that were left are over.
    pub(crate) fn end(&self, groups: &[Group]) {
        let mut taken = self.lock();
        let Taken { given_back, under_way, left, .. } = &mut *taken;
        left.retain(|(number, group)| {
            let is_over = groups.contains(group);
            if is_over {
                under_way.remove(number);
                given_back.insert(*number);
            }
            !is_over
        });
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest that is free.
    pub(crate) fn take(&self) -> Slot<'_> {
        let mut taken = self.lock();
        let number = taken.given_back.pop_first().unwrap_or_else(|| {
            taken.next += 1;
            taken.next
        });
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        taken.under_way.insert(number, turn);
        Slot { slots: self, number, turn }
    }
}

impl Slot<'_> {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Which change it is.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// The change of this group may not have been made by all, and nobody mends that but who takes the group over: the
    /// slot is not used before that, so that the marks stay.
    pub(crate) fn leave(self, group: Group) {
        self.slots.lock().left.push((self.number, group));
        std::mem::forget(self);
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.under_way.remove(&self.number);
        taken.given_back.insert(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::GenerationId;

    fn group(first: u16) -> Group {
        Group::Blocks { generation: GenerationId(0), position: first, copies: 2, spread: 0 }
    }

    #[test]
    fn a_slot_is_taken_by_one_change_at_a_time_and_used_again() {
        let slots = Slots::new(100);
        let (first, second) = (slots.take(), slots.take());
        assert_ne!(first.number(), second.number());
        let number = first.number();
        drop(first);
        let again = slots.take();
        assert_eq!((again.number(), again.turn()), (number, 102));
        again.leave(group(0));
        assert_ne!(slots.take().number(), number, "its marks are to stay");
        slots.end(&[group(1)]);
        let other = (second.number(), 101);
        assert_eq!(slots.under_way().1, [(number, 102), other], "another group");
        slots.end(&[group(0)]);
        assert_eq!(slots.under_way().1, [other]);
        assert_eq!(slots.take().number(), number, "all holders are the same again");
    }

    #[test]
    fn slots_tell_which_changes_are_under_way() {
        let slots = Slots::new(100);
        let (first, second, third) = (slots.take(), slots.take(), slots.take());
        let numbers = (second.number(), third.number());
        assert_eq!(slots.under_way(), (100, vec![(first.number(), 100), (numbers.0, 101), (numbers.1, 102)]));
        drop(first);
        second.leave(group(0));
        assert_eq!(slots.under_way().1, [(numbers.0, 101), (numbers.1, 102)], "what was left is not over");
        drop(third);
        let again = slots.take();
        assert_eq!(slots.under_way().1, [(again.number(), 103), (numbers.0, 101)]);
    }
}
