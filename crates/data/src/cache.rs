//! The open descriptors of sub-files: a bounded map, in shards so that threads seldom meet.
//!
//! (The shards of this map have nothing to do with the shards of the metadata.) A hit is one short lock and
//! no allocation. When a shard is full, it drops roughly the least recently used entry (the clock algorithm);
//! a thread that still uses the descriptor keeps it through its `Arc`.
//!
//! The cache and the directories must not disagree for longer than a removal takes: a descriptor of a removed
//! sub-file that stayed here would swallow writes. So each shard counts removals. After a miss, the caller
//! notes the count before it opens the file. [`Cache::insert`] refuses if the count has changed since, and
//! the caller checks whether it was its own file that was removed.

use crate::file::SubFile;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shards of the map.
const SHARDS: usize = 64;

/// Result of a look-up.
pub(crate) enum Lookup {
    /// It is open.
    Hit(Arc<SubFile>),
    /// It is not open; so many removals have been counted.
    Miss(u64),
}

/// The map.
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
}

/// A part of it. `index` leads from an inode's hash (which is as good as its number: the hash is a bijection)
/// to its place in `slots`.
struct Shard {
    index: HashMap<u64, usize, BuildHasherDefault<Hashed>>,
    slots: Vec<Slot>,
    hand: usize,
    capacity: usize,
    removals: u64,
}

struct Slot {
    mixed: u64,
    used: bool,
    file: Arc<SubFile>,
}

impl Cache {
    /// For about `capacity` descriptors in all, at least one in each shard.
    pub(crate) fn new(capacity: usize) -> Cache {
        let shard = || Shard {
            index: HashMap::default(),
            slots: Vec::new(),
            hand: 0,
            capacity: capacity.div_ceil(SHARDS).max(1),
            removals: 0,
        };
        Cache { shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect() }
    }

    /// The open sub-file whose inode hashes to `mixed`.
    pub(crate) fn get(&self, mixed: u64) -> Lookup {
        let mut shard = self.shard(mixed);
        match shard.find(mixed) {
            Some(file) => Lookup::Hit(file),
            None => Lookup::Miss(shard.removals),
        }
    }

    /// Keeps an opened sub-file, unless there have been removals since `seen`: then returns the number of
    /// removals, for the caller's next attempt. If another thread has inserted the sub-file first, returns
    /// that one.
    pub(crate) fn insert(&self, mixed: u64, file: &Arc<SubFile>, seen: u64) -> Result<Arc<SubFile>, u64> {
        let mut shard = self.shard(mixed);
        if let Some(theirs) = shard.find(mixed) {
            return Ok(theirs);
        }
        if shard.removals != seen {
            return Err(shard.removals);
        }
        let evicted = shard.put(mixed, file.clone());
        drop(shard);
        // Closing may take long: not under the lock.
        drop(evicted);
        Ok(file.clone())
    }

    /// Forgets a sub-file that has just been removed from its directory.
    pub(crate) fn removed(&self, mixed: u64) {
        let mut shard = self.shard(mixed);
        shard.removals += 1;
        let evicted = shard.take(mixed);
        drop(shard);
        drop(evicted);
    }

    /// Forgets all, so that descriptors that nobody uses at the moment are closed.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.index.clear();
            shard.hand = 0;
            let evicted = std::mem::take(&mut shard.slots);
            drop(shard);
            drop(evicted);
        }
    }

    fn shard(&self, mixed: u64) -> MutexGuard<'_, Shard> {
        // Not the lowest or highest bits, which place an entry in the shard's own table.
        let shard = &self.shards[(mixed >> 24) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn find(&mut self, mixed: u64) -> Option<Arc<SubFile>> {
        let slot = self.slots.get_mut(*self.index.get(&mixed)?)?;
        slot.used = true;
        Some(slot.file.clone())
    }

    /// Adds a sub-file that is not in the shard; returns the one that was dropped for it.
    fn put(&mut self, mixed: u64, file: Arc<SubFile>) -> Option<Arc<SubFile>> {
        // Marked as used only at its second use, so that files that are used once do not displace others.
        let new = Slot { mixed, used: false, file };
        if self.slots.len() < self.capacity {
            self.index.insert(mixed, self.slots.len());
            self.slots.push(new);
            return None;
        }
        // Ends within two rounds: the first clears all marks.
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if !std::mem::replace(&mut slot.used, false) {
                let old = std::mem::replace(slot, new);
                self.index.remove(&old.mixed);
                self.index.insert(mixed, self.hand);
                return Some(old.file);
            }
        }
    }

    fn take(&mut self, mixed: u64) -> Option<Arc<SubFile>> {
        let at = self.index.remove(&mixed)?;
        let old = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.mixed, at);
        }
        Some(old.file)
    }
}

/// The keys are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn file() -> Arc<SubFile> {
        Arc::new(SubFile::new(File::open("/dev/null").unwrap().into()))
    }

    fn hit(cache: &Cache, mixed: u64) -> Option<Arc<SubFile>> {
        match cache.get(mixed) {
            Lookup::Hit(file) => Some(file),
            Lookup::Miss(_) => None,
        }
    }

    #[test]
    fn of_two_openers_both_get_the_first_ones_file() {
        let cache = Cache::new(64);
        let (a, b) = (file(), file());
        assert!(Arc::ptr_eq(&cache.insert(5, &a, 0).unwrap(), &a));
        assert!(Arc::ptr_eq(&cache.insert(5, &b, 0).unwrap(), &a));
        assert!(Arc::ptr_eq(&hit(&cache, 5).unwrap(), &a));
    }

    #[test]
    fn a_file_opened_before_a_removal_is_not_kept_unseen() {
        let cache = Cache::new(64);
        let Lookup::Miss(seen) = cache.get(5) else { panic!("empty") };
        cache.removed(5);
        let now = cache.insert(5, &file(), seen).unwrap_err();
        assert!(hit(&cache, 5).is_none());
        assert!(cache.insert(5, &file(), now).is_ok());
    }

    #[test]
    fn the_bound_holds_and_used_files_stay() {
        let cache = Cache::new(64 * 4);
        let used = file();
        cache.insert(0, &used, 0).unwrap();
        for n in 1..1000 {
            // All of them are in the shard of inode 0.
            cache.insert(n, &file(), 0).unwrap();
            assert!(Arc::ptr_eq(&hit(&cache, 0).expect("in use all the time"), &used));
        }
        assert_eq!((0..1000).filter(|n| hit(&cache, *n).is_some()).count(), 4);
    }

    #[test]
    fn removals_in_any_order_leave_the_others() {
        let cache = Cache::new(64 * 8);
        for gone in 0..8 {
            let files: Vec<_> = (0..8).map(|n| cache.insert(n, &file(), gone).unwrap()).collect();
            cache.removed(gone);
            for n in 0..8 {
                let there = hit(&cache, n);
                assert_eq!(there.is_some(), n != gone);
                assert!(there.is_none_or(|f| Arc::ptr_eq(&f, &files[n as usize])));
            }
        }
        cache.clear();
        assert!((0..8).all(|n| hit(&cache, n).is_none()));
    }
}
