//! The owners of byte-range locks in a mount, and the numbers under which servers know them.
//!
//! The kernel identifies a process, or an open file description that has its own locks, by an address in
//! kernel memory. When an owner is gone, its address may be another owner's at once, before the mount has
//! heard of the first one's end. So the mount notes for each lock the description through which it was taken,
//! and gives a number to another owner only when nothing is locked under it.

use crate::face::lock;
use bivouac_layout::Ino;
use bivouac_proto::meta::KERNEL;
use std::collections::HashMap;
use std::sync::Mutex;

/// No process has a number from here on (Linux allows 2^22 of them). Those from [`KERNEL`] on mean something else.
const MADE_UP: u32 = 1 << 30;

/// Owners that have locks, or may have.
#[derive(Default)]
pub(crate) struct Lockers(Mutex<Table>);

#[derive(Default)]
struct Table {
    owners: HashMap<u64, Locker>,
    /// Numbers that are in use, and the processes that they stand for.
    numbers: HashMap<u32, u32>,
}

struct Locker {
    number: u32,
    /// For each file, the open descriptions through which it was locked, and the locked ranges.
    files: HashMap<Ino, HashMap<u64, Vec<Range>>>,
}

/// First byte, and the byte after the last.
type Range = (u64, u64);

/// Locks that have to be released.
#[derive(Debug, PartialEq)]
pub(crate) struct Leaving {
    /// The owner.
    pub(crate) number: u32,
    /// The ranges.
    pub(crate) ranges: Vec<Range>,
    /// The owner has no other locks. When these are released, its number has to be [freed](Lockers::free);
    /// not before, or they would count as locks of the number's next owner.
    pub(crate) for_good: bool,
}

impl Lockers {
    /// The number of an owner, if it has one already.
    pub(crate) fn known(&self, owner: u64) -> Option<u32> {
        lock(&self.0).owners.get(&owner).map(|locker| locker.number)
    }

    /// A number for an owner that only asks about a lock.
    pub(crate) fn number(&self, owner: u64, pid: u32) -> u32 {
        let table = lock(&self.0);
        match table.owners.get(&owner) {
            Some(locker) => locker.number,
            None => table.free_number(pid),
        }
    }

    /// The process behind a number.
    pub(crate) fn process(&self, number: u32) -> u32 {
        lock(&self.0).numbers.get(&number).copied().unwrap_or(number)
    }

    /// Notes that an owner is about to lock a file. Returns its number.
    pub(crate) fn note(&self, owner: u64, pid: u32, ino: Ino, fh: u64) -> u32 {
        let mut table = lock(&self.0);
        let table = &mut *table;
        let number = match table.owners.get(&owner) {
            Some(locker) => locker.number,
            None => {
                let number = table.free_number(pid);
                table.numbers.insert(number, pid);
                number
            }
        };
        let locker = table.owners.entry(owner).or_insert_with(|| Locker { number, files: HashMap::new() });
        locker.files.entry(ino).or_default().entry(fh).or_default();
        number
    }

    /// An owner has locked a range through a description.
    pub(crate) fn took(&self, owner: u64, ino: Ino, fh: u64, range: Range) {
        let mut table = lock(&self.0);
        let Some(locker) = table.owners.get_mut(&owner) else { return };
        let descriptions = locker.files.entry(ino).or_default();
        descriptions.values_mut().for_each(|ranges| subtract(ranges, range));
        descriptions.entry(fh).or_default().push(range);
    }

    /// An owner has unlocked a range.
    pub(crate) fn gave_up(&self, owner: u64, ino: Ino, range: Range) {
        let mut table = lock(&self.0);
        let descriptions = table.owners.get_mut(&owner).and_then(|locker| locker.files.get_mut(&ino));
        descriptions.into_iter().flat_map(HashMap::values_mut).for_each(|ranges| subtract(ranges, range));
    }

    /// An owner releases all its locks on a file.
    pub(crate) fn forget(&self, owner: u64, ino: Ino) -> Option<Leaving> {
        let mut table = lock(&self.0);
        let locker = table.owners.get_mut(&owner)?;
        let number = locker.number;
        locker.files.remove(&ino)?;
        Some(Leaving { number, ranges: vec![ALL], for_good: table.drop_idle(owner) })
    }

    /// A description is gone, and so are the locks that were taken through it. (Processes have released
    /// theirs by [`Self::forget`]. The description's address may already belong to another one, which has
    /// locks of its own.)
    pub(crate) fn closed(&self, fh: u64, ino: Ino) -> Vec<Leaving> {
        let mut table = lock(&self.0);
        let mut gone = Vec::new();
        for (owner, locker) in &mut table.owners {
            let Some(descriptions) = locker.files.get_mut(&ino) else { continue };
            let Some(ranges) = descriptions.remove(&fh) else { continue };
            let alone = descriptions.is_empty();
            if alone {
                locker.files.remove(&ino);
            }
            let ranges = if alone { vec![ALL] } else { ranges };
            gone.push((*owner, Leaving { number: locker.number, ranges, for_good: false }));
        }
        for (owner, leaving) in &mut gone {
            leaving.for_good = table.drop_idle(*owner);
        }
        gone.into_iter().map(|(_, leaving)| leaving).collect()
    }

    /// Nothing is locked under a number any more.
    pub(crate) fn free(&self, number: u32) {
        lock(&self.0).numbers.remove(&number);
    }
}

/// Every byte of a file.
const ALL: Range = (0, u64::MAX);

/// Removes a range from others.
fn subtract(ranges: &mut Vec<Range>, (start, end): Range) {
    let mut kept = Vec::with_capacity(ranges.len() + 1);
    for &(from, to) in &*ranges {
        let pieces = [(from, to.min(start)), (from.max(end), to)];
        kept.extend(pieces.into_iter().filter(|(from, to)| from < to));
    }
    *ranges = kept;
}

impl Table {
    fn free_number(&self, pid: u32) -> u32 {
        if pid != 0 && !self.numbers.contains_key(&pid) {
            return pid;
        }
        (MADE_UP..KERNEL).find(|number| !self.numbers.contains_key(number)).unwrap_or(KERNEL - 1)
    }

    /// Removes an owner without locks. Returns whether it was one. Its number stays in use.
    fn drop_idle(&mut self, owner: u64) -> bool {
        let idle = self.owners.get(&owner).is_some_and(|locker| locker.files.is_empty());
        if idle {
            self.owners.remove(&owner);
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(7);

    #[test]
    fn two_owners_in_one_process_are_two_to_the_servers() {
        let lockers = Lockers::default();
        let process = lockers.note(100, 4711, FILE, 0);
        let description = lockers.note(200, 4711, FILE, 1);
        assert_eq!(process, 4711);
        assert_ne!(process, description);
        assert!(description < KERNEL, "that would be no lock at all");
        assert_eq!(lockers.process(description), 4711);
        assert_eq!(lockers.note(100, 4711, Ino(8), 2), process);
    }

    #[test]
    fn a_process_s_locks_go_with_any_descriptor_and_a_description_s_with_the_last() {
        let lockers = Lockers::default();
        let process = lockers.note(100, 1, FILE, 0);
        let description = lockers.note(200, 2, FILE, 5);
        let all = |number| Leaving { number, ranges: vec![ALL], for_good: true };
        // The process closes another descriptor of the file.
        assert_eq!(lockers.forget(100, FILE), Some(all(process)));
        assert_eq!(lockers.forget(100, FILE), None);
        assert_eq!(lockers.forget(999, FILE), None);
        assert_eq!(lockers.closed(0, FILE), []);
        assert_eq!(lockers.closed(5, FILE), [all(description)]);
        assert_eq!(lockers.closed(5, FILE), []);
    }

    #[test]
    fn a_number_is_nobody_elses_until_its_locks_are_gone() {
        let lockers = Lockers::default();
        let number = lockers.note(100, 1, FILE, 0);
        assert!(lockers.closed(0, FILE).iter().all(|leaving| leaving.for_good));
        let next = lockers.note(200, 1, FILE, 1);
        assert_ne!(next, number);
        lockers.free(number);
        assert_eq!(lockers.note(300, 1, FILE, 2), number);
    }

    #[test]
    fn a_description_with_the_name_of_one_that_is_not_quite_gone_keeps_its_own_locks() {
        let lockers = Lockers::default();
        let number = lockers.note(100, 1, FILE, 0);
        lockers.took(100, FILE, 0, (0, 100));
        lockers.gave_up(100, FILE, (40, 50));
        assert_eq!(lockers.note(100, 1, FILE, 1), number);
        lockers.took(100, FILE, 1, (90, 200));
        let expected = Leaving { number, ranges: vec![(0, 40), (50, 90)], for_good: false };
        assert_eq!(lockers.closed(0, FILE), [expected]);
        assert_eq!(lockers.closed(1, FILE), [Leaving { number, ranges: vec![ALL], for_good: true }]);
    }
}
