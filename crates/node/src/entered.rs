//! Who changes a file's data past the kernel mount that has it open.
//!
//! A description of a mount's counts the changes that processes have under way past it, so that the mount can
//! send everybody through itself and wait until nothing is under way any more. A process may be killed in the
//! middle of a change. So whoever enters also leaves his thread's number in one of some places, and the
//! mount, when it waits, takes off those who are dead. Where all places are taken, or between counting and
//! leaving the number, a death is not noticed: the mount waits as long as it has patience, then.

use crate::owner::{Fate, NOBODY};
use crate::process;
use crate::slot::{PLACES, Slot};
use crate::table::OpenTable;
use std::sync::atomic::{AtomicU32, Ordering};

/// All data has to go through the mount; one change under way past it.
const DETOUR: u64 = 1;
const ENTERED: u64 = 2;

/// A change of data past a mount, for as long as it lives.
pub struct Entered<'a> {
    slot: &'a Slot,
    /// Where the owner's number stands, and that number.
    place: Option<(&'a AtomicU32, u32)>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some((place, owner)) = self.place
            && place.compare_exchange(owner, NOBODY, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            // The description is gone, and the count with it.
            return;
        }
        self.slot.entered().fetch_sub(ENTERED, Ordering::SeqCst);
    }
}

impl OpenTable {
    /// Begins a change of data past the mount that the description is of, by any process. `None`, and nothing
    /// has begun, when all data has to go through the mount ([`Slot::detour`]).
    pub fn enter<'s>(&self, slot: &'s Slot) -> Option<Entered<'s>> {
        self.enter_as(slot, self.owner(process::tid()))
    }

    fn enter_as<'s>(&self, slot: &'s Slot, owner: u32) -> Option<Entered<'s>> {
        let before = slot.entered().fetch_add(ENTERED, Ordering::SeqCst);
        let mut entered = Entered { slot, place: None };
        if before & DETOUR != 0 {
            return None;
        }
        // Each thread begins at a place of its own.
        let free = |place: &&AtomicU32| {
            place.compare_exchange(NOBODY, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let (before, after) = slot.places().split_at(owner as usize % PLACES);
        entered.place = after.iter().chain(before).find(free).map(|place| (place, owner));
        Some(entered)
    }

    /// Whether no change is under way past the mount. Those of the dead are not.
    pub fn has_left(&self, slot: &Slot) -> bool {
        if slot.entered().load(Ordering::SeqCst) < ENTERED {
            return true;
        }
        for place in slot.places() {
            let owner = place.load(Ordering::SeqCst);
            if owner != NOBODY
                && self.fate(owner) == Fate::Dead
                && place.compare_exchange(owner, NOBODY, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                slot.entered().fetch_sub(ENTERED, Ordering::SeqCst);
            }
        }
        slot.entered().load(Ordering::SeqCst) < ENTERED
    }
}

impl Slot {
    /// From here on all data has to go through the mount; changes under way are done once
    /// [`OpenTable::has_left`].
    pub fn detour(&self) {
        self.entered().fetch_or(DETOUR, Ordering::SeqCst);
    }

    /// Whether all data has to go through the mount.
    pub fn is_detoured(&self) -> bool {
        self.entered().load(Ordering::SeqCst) & DETOUR != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{in_child, node};

    #[test]
    fn those_who_are_inside_are_waited_for_and_the_dead_are_not() {
        let node = node();
        let (id, _fd) = node.opened();
        let slot = node.table.slot(id).unwrap();
        let inside: Vec<_> = (0..PLACES + 2).map(|_| node.table.enter(slot).unwrap()).collect();
        slot.detour();
        assert!(slot.is_detoured() && node.table.enter(slot).is_none());
        for one in inside {
            assert!(!node.table.has_left(slot));
            drop(one);
        }
        assert!(node.table.has_left(slot) && slot.is_detoured());
        slot.clear();
        let mine = node.table.enter(slot).unwrap();
        let died = in_child(|| {
            std::mem::forget(node.table.enter(slot));
            std::mem::forget(node.table.enter(slot));
            7
        });
        assert_eq!((died, slot.entered().load(Ordering::Relaxed)), (7, 3 * ENTERED));
        assert!(!node.table.has_left(slot));
        assert_eq!(slot.entered().load(Ordering::Relaxed), ENTERED);
        drop(mine);
        assert!(node.table.has_left(slot));
    }

    #[test]
    fn who_is_inside_when_the_description_goes_does_not_count_on_the_next() {
        let node = node();
        let (id, _fd) = node.opened();
        let slot = node.table.slot(id).unwrap();
        let inside = node.table.enter(slot).unwrap();
        slot.clear();
        drop(inside);
        assert_eq!(slot.entered().load(Ordering::Relaxed), 0);
    }
}
