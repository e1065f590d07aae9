//! Which process or thread owns something in shared memory, and whether it is alive.
//!
//! A process's number means something only in its PID namespace, and the processes of a node may be in
//! several (containers). So the table lists all namespaces that were ever seen, and an owner is a number
//! together with the index of its namespace in that list. Whether an owner in one's own namespace is alive,
//! the kernel tells. For an owner in another namespace it cannot be known ([`Fate::Unknown`]): others assume
//! that it is alive for as long as any operation can take ([`PATIENCE`]), and no longer, because what a
//! killed process owned must not be lost for good.

use crate::process;
use crate::release::monotonic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long an owner of unknown fate is assumed to be alive while nothing of what it owns changes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How many namespaces the list has room for. The fate of processes of further namespaces is always unknown.
pub(crate) const NAMESPACES: usize = 63;

/// Stands in the list for the namespace of a process that cannot find out its own (because there is no
/// `/proc`).
const UNTOLD: u64 = u64::MAX;

/// Bits of a process's or thread's number (the kernel's are at most 2^22).
const NUMBER_BITS: u32 = 22;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;
/// Bits of an owner: a number, and above it the index of its namespace, from 1; 0 is a namespace that is not
/// listed.
pub(crate) const OWNER_BITS: u32 = NUMBER_BITS + 6;

/// The number of an owner in its PID namespace.
pub(crate) fn number_of(owner: u32) -> u32 {
    owner & NUMBER
}

/// An owner who is dead.
pub(crate) const NOBODY: u32 = 0;

/// What is known of an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Alive,
    Dead,
    Unknown,
}

/// One process's index in the list of namespaces.
#[derive(Default)]
pub(crate) struct Here {
    /// The number of the process that looked, and above it the index that it found. A forked child may be in
    /// another namespace.
    known: AtomicU64,
}

impl Here {
    fn place(&self, list: &[AtomicU64; NAMESPACES]) -> u32 {
        let pid = process::pid();
        let known = self.known.load(Ordering::Relaxed);
        if known as u32 == pid {
            return (known >> 32) as u32;
        }
        let namespace = rustix::fs::stat("/proc/self/ns/pid").map_or(UNTOLD, |stat| stat.st_ino);
        let place = place_of(list, namespace);
        self.known.store(u64::from(place) << 32 | u64::from(pid), Ordering::Relaxed);
        place
    }

    /// A process, or a thread of it, as an owner. It must be in this process's namespace.
    pub fn owner(&self, list: &[AtomicU64; NAMESPACES], number: u32) -> u32 {
        self.place(list) << NUMBER_BITS | number & NUMBER
    }

    /// What is known of an owner.
    pub fn fate(&self, list: &[AtomicU64; NAMESPACES], owner: u32) -> Fate {
        let place = owner >> NUMBER_BITS;
        // If the list was full, this process has no index; otherwise every owner's namespace is listed.
        let listed = match place.checked_sub(1) {
            Some(index) => list.get(index as usize),
            None => list.last(),
        };
        let namespace = listed.map_or(0, |entry| entry.load(Ordering::Acquire));
        if owner == NOBODY || namespace == 0 {
            Fate::Dead
        } else if place == 0 || place != self.place(list) || namespace == UNTOLD {
            Fate::Unknown
        } else if process::is_alive(owner & NUMBER) {
            Fate::Alive
        } else {
            Fate::Dead
        }
    }
}

/// The index of a namespace in the list, from 1. A new one is added. 0 if the list is full.
fn place_of(list: &[AtomicU64; NAMESPACES], namespace: u64) -> u32 {
    for (at, entry) in list.iter().enumerate() {
        let seen = entry.compare_exchange(0, namespace, Ordering::AcqRel, Ordering::Acquire);
        if seen.is_ok() || seen == Err(namespace) {
            return at as u32 + 1;
        }
    }
    0
}

/// Since when something has not changed, so as to stop waiting for it after [`PATIENCE`].
#[derive(Default)]
pub(crate) struct Since(Option<(u64, u64)>);

impl Since {
    /// Whether it has had the value `now` for longer than [`PATIENCE`].
    pub fn too_long(&mut self, now: u64) -> bool {
        let time = monotonic();
        match self.0 {
            Some((seen, begun)) if seen == now => time.saturating_sub(begun) > PATIENCE.as_nanos() as u64,
            _ => {
                self.0 = Some((now, time));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_another_namespace_nothing_is_known() {
        let list = [const { AtomicU64::new(0) }; NAMESPACES];
        list[0].store(1, Ordering::Relaxed);
        let here = Here::default();
        let me = here.owner(&list, process::pid());
        assert_eq!(me >> NUMBER_BITS, 2);
        assert_eq!(here.fate(&list, me), Fate::Alive);
        assert_eq!(here.fate(&list, NOBODY), Fate::Dead);
        // The same number elsewhere, and one that nobody has here.
        for number in [process::pid(), NUMBER] {
            assert_eq!(here.fate(&list, 1 << NUMBER_BITS | number), Fate::Unknown);
            // No owner ever was in a namespace that is not in the list, as long as there is room in it.
            assert_eq!(here.fate(&list, number), Fate::Dead);
            assert_eq!(here.fate(&list, 3 << NUMBER_BITS | number), Fate::Dead);
        }
        list[NAMESPACES - 1].store(9, Ordering::Relaxed);
        assert_eq!(here.fate(&list, process::pid()), Fate::Unknown);
        list[1].store(UNTOLD, Ordering::Relaxed);
        assert_eq!(here.fate(&list, me), Fate::Unknown);
        list[1].store(rustix::fs::stat("/proc/self/ns/pid").unwrap().st_ino, Ordering::Relaxed);
        assert_eq!(here.fate(&list, me & !NUMBER | NUMBER), Fate::Dead);
    }

    #[test]
    fn a_full_list_takes_no_more_and_knows_its_own() {
        let list: [AtomicU64; NAMESPACES] = std::array::from_fn(|i| AtomicU64::new(100 + i as u64));
        assert_eq!(place_of(&list, 100 + NAMESPACES as u64 - 1), NAMESPACES as u32);
        assert_eq!(place_of(&list, 1), 0);
    }

    #[test]
    fn patience_begins_again_when_something_changes() {
        let mut since = Since::default();
        assert!(!since.too_long(1) && !since.too_long(1));
        since.0 = Some((1, monotonic().saturating_sub(2 * PATIENCE.as_nanos() as u64)));
        assert!(!since.too_long(2));
        since.0 = since.0.map(|(seen, _)| (seen, 0));
        assert_eq!(since.too_long(2), monotonic() > PATIENCE.as_nanos() as u64);
    }
}
