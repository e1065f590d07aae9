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
