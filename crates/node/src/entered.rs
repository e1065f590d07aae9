//! Which threads are changing a file's data without the kernel mount that has the file open (`both`).
//!
//! A mount's open file description counts the changes that processes have under way past the mount. So the
//! mount can make all processes go through itself, and wait until no change is under way any more. A process
//! may be killed in the middle of a change. So a thread that begins a change also writes its number into one
//! of a few cells, and the mount, while it waits, no longer counts threads that are dead. If all cells are in
//! use, or a thread dies between counting itself and writing its number, the death is not noticed, and the
//! mount waits until its time limit.

use crate::owner::{Fate, NOBODY};
use crate::process;
use crate::slot::{PLACES, Slot};
use crate::table::OpenTable;
use std::sync::atomic::{AtomicU32, Ordering};

/// Flag: all data has to go through the mount. Unit: one change that is under way past it.
const DETOUR: u64 = 1;
const ENTERED: u64 = 2;

/// A change of data past a mount, for as long as it lives.
pub struct Entered<'a> {
    slot: &'a Slot,
    /// The cell that the owner's number was written into, and that number.
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
    /// Begins a change of data past the mount whose description this is. Any process may do this. `None`: all
    /// data has to go through the mount ([`Slot::detour`]), and no change has begun.
    pub fn enter<'s>(&self, slot: &'s Slot) -> Option<Entered<'s>> {
        self.enter_as(slot, self.owner(process::tid()))
    }

    fn enter_as<'s>(&self, slot: &'s Slot, owner: u32) -> Option<Entered<'s>> {
        let before = slot.entered().fetch_add(ENTERED, Ordering::SeqCst);
        let mut entered = Entered { slot, place: None };
        if before & DETOUR != 0 {
            return None;
        }
        // Threads begin their search at different cells.
        let free = |place: &&AtomicU32| {
            place.compare_exchange(NOBODY, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let (before, after) = slot.places().split_at(owner as usize % PLACES);
        entered.place = after.iter().chain(before).find(free).map(|place| (place, owner));
        Some(entered)
    }

    /// Whether no change is under way past the mount. Changes of dead threads do not count.
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
    /// From now on all data has to go through the mount. Changes that are under way have ended once
    /// [`OpenTable::has_left`] says so.
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
