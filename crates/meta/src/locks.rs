//! Locks on the bytes of one file: `fcntl` locks of processes and descriptions, and `flock`.
//!
//! The table is pure: it says what conflicts, and how an owner's locks split and merge. Waiting, and finding
//! out that waiting would never end, is the caller's ([`crate::locking`]).

use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{LockOwner, LockRange};

/// The locks on one file. Of one owner they neither overlap nor touch with the same mode.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    held: Vec<(LockOwner, LockRange)>,
}

impl LockTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(LockOwner, LockRange)> {
        self.held.iter()
    }

    /// The locks that conflict with one.
    pub(crate) fn conflicts(
        &self,
        owner: LockOwner,
        wanted: LockRange,
    ) -> impl Iterator<Item = (LockOwner, LockRange)> {
        self.iter().copied().filter(move |(other, range)| {
            *other != owner
                && kind(other) == kind(&owner)
                && (range.exclusive || wanted.exclusive)
                && range.start < wanted.end
                && wanted.start < range.end
        })
    }

    /// Whether an owner has locks in a range.
    pub(crate) fn has(&self, owner: LockOwner, start: u64, end: u64) -> bool {
        self.iter().any(|(other, range)| *other == owner && range.start < end && start < range.end)
    }

    /// Whether an owner has all of a lock, or a stronger one.
    pub(crate) fn covers(&self, owner: LockOwner, wanted: LockRange) -> bool {
        // Locks of one owner do not overlap.
        let covered = self.iter().filter(|(other, range)| {
            *other == owner
                && range.start < wanted.end
                && wanted.start < range.end
                && range.exclusive >= wanted.exclusive
        });
        let lengths = covered.map(|(_, range)| range.end.min(wanted.end) - range.start.max(wanted.start));
        lengths.sum::<u64>() == wanted.end - wanted.start
    }

    /// What an owner does not have of a range, which is not empty.
    pub(crate) fn outside(&self, owner: LockOwner, range: LockRange) -> Vec<LockRange> {
        let mut own: Vec<LockRange> =
            self.iter().filter(|(other, _)| *other == owner).map(|(_, r)| *r).collect();
        own.sort_unstable_by_key(|own| own.start);
        let mut left = Vec::new();
        let mut at = range.start;
        for own in own.iter().filter(|own| own.start < range.end && range.start < own.end) {
            if at < own.start {
                left.push(LockRange { start: at, end: own.start, ..range });
            }
            at = at.max(own.end);
        }
        if at < range.end {
            left.push(LockRange { start: at, ..range });
        }
        left
    }

    /// Sets a lock with which nothing conflicts. It replaces the owner's locks on the same bytes.
    pub(crate) fn set(&mut self, owner: LockOwner, mut new: LockRange) {
        self.clear(owner, new.start, new.end);
        // It is merged with the owner's locks of the same mode that it touches.
        self.held.retain(|(other, range)| {
            let joins = *other == owner
                && range.exclusive == new.exclusive
                && (range.end == new.start || range.start == new.end);
            if joins {
                new.start = new.start.min(range.start);
                new.end = new.end.max(range.end);
            }
            !joins
        });
        self.held.push((owner, new));
    }

    /// Takes an owner's locks off a range.
    pub(crate) fn clear(&mut self, owner: LockOwner, start: u64, end: u64) {
        let mut rests = Vec::new();
        self.held.retain(|(other, range)| {
            if *other != owner || range.end <= start || end <= range.start {
                return true;
            }
            if range.start < start {
                rests.push((owner, LockRange { end: start, ..*range }));
            }
            if end < range.end {
                rests.push((owner, LockRange { start: end, ..*range }));
            }
            false
        });
        self.held.extend(rests);
    }

    /// Takes off all locks of a description.
    pub(crate) fn drop_description(&mut self, open: OpenId) {
        self.drop_owners(
            |owner| matches!(owner, LockOwner::Description(o) | LockOwner::Flock(o) if *o == open),
        );
    }

    /// Takes off all locks of a process.
    pub(crate) fn drop_session(&mut self, gone: u64) {
        self.drop_owners(|owner| matches!(owner, LockOwner::Process { session, .. } if *session == gone));
    }

    fn drop_owners(&mut self, which: impl Fn(&LockOwner) -> bool) {
        self.held.retain(|(owner, _)| !which(owner));
    }
}

/// Owners of different kinds do not meet.
fn kind(owner: &LockOwner) -> u8 {
    match owner {
        LockOwner::Flock(_) => 1,
        owner if owner.is_kernel() => 2,
        LockOwner::Process { .. } | LockOwner::Description(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(session: u64) -> LockOwner {
        LockOwner::Process { session, pid: session as u32 }
    }

    fn range(start: u64, end: u64, exclusive: bool) -> LockRange {
        LockRange { start, end, exclusive }
    }

    #[test]
    fn unlocking_the_middle_splits_and_locking_it_again_merges() {
        let mut table = LockTable::default();
        table.set(process(1), range(0, 100, true));
        assert!(table.has(process(1), 40, 60));
        table.clear(process(1), 40, 60);
        assert!(!table.has(process(1), 40, 60) && table.has(process(1), 39, 41));
        assert_eq!(table.iter().count(), 2);
        assert_eq!(table.conflicts(process(2), range(40, 60, true)).count(), 0);
        table.set(process(1), range(40, 60, true));
        assert_eq!(table.iter().map(|(_, r)| *r).collect::<Vec<_>>(), [range(0, 100, true)]);
    }

    #[test]
    fn flock_never_meets_byte_ranges() {
        let open = OpenId { agent: 1, slot: 2, incarnation: 3 };
        let mut table = LockTable::default();
        table.set(LockOwner::Flock(open), range(0, u64::MAX, true));
        assert_eq!(table.conflicts(process(1), range(0, 10, true)).count(), 0);
        table.drop_description(open);
        assert!(table.is_empty());
    }

    proptest! {
        /// Byte by byte, the table says what an array of owners says.
        #[test]
        fn agrees_with_one_lock_for_each_byte(
            ops in proptest::collection::vec((0u64..3, 0u64..20, 1u64..20, 0u8..3), 1..60),
        ) {
            let mut table = LockTable::default();
            let mut bytes = [[None::<bool>; 3]; 40];
            for (who, start, length, what) in ops {
                let end = start + length;
                if what == 2 {
                    table.clear(process(who), start, end);
                    bytes[start as usize..end as usize].iter_mut().for_each(|b| b[who as usize] = None);
                    continue;
                }
                let wanted = range(start, end, what == 1);
                let free = table.conflicts(process(who), wanted).next().is_none();
                let expected = !bytes[start as usize..end as usize].iter().any(|b| {
                    (0..3).any(|o| o != who as usize && b[o].is_some_and(|exclusive| exclusive || wanted.exclusive))
                });
                prop_assert_eq!(free, expected);
                if free {
                    table.set(process(who), wanted);
                    bytes[start as usize..end as usize]
                        .iter_mut()
                        .for_each(|b| b[who as usize] = Some(wanted.exclusive));
                }
            }
            for (at, byte) in bytes.iter().enumerate() {
                for (who, mode) in byte.iter().enumerate() {
                    let found: Vec<bool> = table
                        .iter()
                        .filter(|(o, r)| *o == process(who as u64) && r.start <= at as u64 && (at as u64) < r.end)
                        .map(|(_, r)| r.exclusive)
                        .collect();
                    prop_assert_eq!(found, mode.iter().copied().collect::<Vec<_>>());
                }
            }
        }
    }
}
