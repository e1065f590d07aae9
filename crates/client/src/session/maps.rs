//! The newest map that a client knows, which every operation looks at, and those before it as long as some operation still
//! goes by them.
//!
//! A map lies in a *slot*. Who uses the newest one counts itself in its slot, and looks again whether that is still the newest
//! one; only then it has the map. Who installs a newer map looks which older slots nobody uses any more, and frees the maps in
//! them: somebody who counts himself there afterwards will see that there is a newer map, and go on with that. So nobody waits
//! for anybody, and nothing here is locked, which also means that a fork may happen at any moment: a child inherits the
//! counts of threads that it does not have, and keeps the maps that these used; no more than that.
//!
//! Threads count themselves in different cache lines, as far as possible, so that they do not take them from each other.

use bivouac_layout::Map;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// Cache lines in which users of one map count themselves.
const STRIPES: usize = 8;

/// Nobody's; anybody may take it.
const FREE: u8 = 0;
/// Somebody is filling or emptying it.
const TAKEN: u8 = 1;
/// There is a map in it that is about to be the newest one.
const NEW: u8 = 2;
/// There is a map in it that is or was the newest one.
const FILLED: u8 = 3;

#[repr(align(64))]
#[derive(Default)]
struct Count(AtomicUsize);

struct Slot {
    state: AtomicU8,
    map: AtomicPtr<Map>,
    users: [Count; STRIPES],
    /// The slot that was made before it.
    next: *const Slot,
}

/// See the module.
pub(crate) struct Maps {
    current: AtomicPtr<Slot>,
    /// The slot that was made last. Slots are only freed with the client.
    newest_slot: AtomicPtr<Slot>,
}

// SAFETY: the pointers lead to slots that live as long as this, and are changed by atomic operations only.
unsafe impl Send for Maps {}
// SAFETY: as above.
unsafe impl Sync for Maps {}

/// A map that is in use until this is dropped.
pub struct MapRef<'m> {
    map: &'m Map,
    count: &'m Count,
}

impl Deref for MapRef<'_> {
    type Target = Map;

    #[inline]
    fn deref(&self) -> &Map {
        self.map
    }
}

impl Drop for MapRef<'_> {
    #[inline]
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Ordering::Release);
    }
}

/// Another number for each thread, most often: their stacks lie far from each other.
#[inline]
fn stripe() -> usize {
    let here = 0u8;
    (&raw const here as usize >> 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 3)
}

impl Maps {
    pub(crate) fn new(map: Box<Map>) -> Maps {
        let slot = Slot::made(map, FILLED);
        Maps { current: AtomicPtr::new(slot), newest_slot: AtomicPtr::new(slot) }
    }

    /// The newest map.
    #[inline]
    pub(crate) fn newest(&self) -> MapRef<'_> {
        let stripe = stripe();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: slots live as long as `self`.
            let slot = unsafe { &*current };
            let count = &slot.users[stripe];
            count.0.fetch_add(1, Ordering::SeqCst);
            if self.current.load(Ordering::SeqCst) == current {
                // SAFETY: the slot is the current one after this user was counted, so whoever takes it out of its place, and then
                // looks whether there are users, sees this one, and leaves the map.
                return MapRef { map: unsafe { &*slot.map.load(Ordering::Acquire) }, count };
            }
            count.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Makes a map the newest one, unless somebody else has installed one since `before` was. Says whether it is.
    pub(crate) fn install(&self, before: &MapRef<'_>, map: Box<Map>) -> bool {
        let old = self.current.load(Ordering::SeqCst);
        // SAFETY: slots live as long as `self`.
        if !std::ptr::eq(unsafe { &*old }.map.load(Ordering::Acquire), before.map) {
            return false;
        }
        let new = self.filled_slot(map);
        // SAFETY: as above.
        let slot = unsafe { &*new };
        // While `before` is in use, its map stays in its slot: this is still the one that was looked at.
        let is_newest = self.current.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if is_newest {
            slot.state.store(FILLED, Ordering::SeqCst);
        } else {
            slot.empty();
        }
        is_newest
    }

    /// Fills a slot: one that was used before if possible.
    fn filled_slot(&self, map: Box<Map>) -> *mut Slot {
        let mut at = self.newest_slot.load(Ordering::Acquire).cast_const();
        let mut free = None;
        // SAFETY: slots live as long as `self`.
        while let Some(slot) = unsafe { at.as_ref() } {
            slot.give_up_if_unused(&self.current);
            if free.is_none() && slot.passes(FREE, TAKEN) {
                free = Some(slot);
            }
            at = slot.next;
        }
        if let Some(slot) = free {
            slot.map.store(Box::into_raw(map), Ordering::Release);
            slot.state.store(NEW, Ordering::SeqCst);
            return std::ptr::from_ref(slot).cast_mut();
        }
        let mut next = self.newest_slot.load(Ordering::Acquire);
        let slot = Slot::made(map, NEW);
        loop {
            // SAFETY: nobody else knows it yet.
            unsafe { (*slot).next = next };
            match self.newest_slot.compare_exchange(next, slot, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return slot,
                Err(newer) => next = newer,
            }
        }
    }
}

impl Slot {
    fn made(map: Box<Map>, state: u8) -> *mut Slot {
        let map = AtomicPtr::new(Box::into_raw(map));
        let slot = Slot { state: AtomicU8::new(state), map, users: Default::default(), next: null_mut() };
        Box::into_raw(Box::new(slot))
    }

    fn passes(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Frees the map in it, if it is not the newest one any more, and nobody uses it.
    fn give_up_if_unused(&self, current: &AtomicPtr<Slot>) {
        if !self.passes(FILLED, TAKEN) {
            return;
        }
        let is_newest = std::ptr::eq(current.load(Ordering::SeqCst), self);
        if is_newest || self.users.iter().any(|count| count.0.load(Ordering::SeqCst) > 0) {
            self.state.store(FILLED, Ordering::SeqCst);
        } else {
            self.empty();
        }
    }

    /// Frees the map in a slot that this thread has taken.
    fn empty(&self) {
        let map = self.map.swap(null_mut(), Ordering::SeqCst);
        if !map.is_null() {
            // SAFETY: from Box::into_raw. Nobody has it: it was never the newest one, or nobody was counted after it was that for
            // the last time, and who counts himself later sees that and does not look at it.
            drop(unsafe { Box::from_raw(map) });
        }
        self.state.store(FREE, Ordering::SeqCst);
    }
}

impl Drop for Maps {
    fn drop(&mut self) {
        let mut at = *self.newest_slot.get_mut();
        while !at.is_null() {
            // SAFETY: each slot is from Box::into_raw, and in the list once; nobody else has this any more.
            let slot = unsafe { Box::from_raw(at) };
            slot.empty();
            at = slot.next.cast_mut();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::Epoch;
    use std::sync::atomic::AtomicBool;

    fn map(epoch: u64) -> Box<Map> {
        let mount = format!("/{epoch}");
        Box::new(Map { epoch: Epoch(epoch), mount, ..Map::before_the_first(7) })
    }

    /// How many maps there are, and how many slots.
    fn counted(maps: &Maps) -> (usize, usize) {
        let (mut at, mut found) = (maps.newest_slot.load(Ordering::SeqCst).cast_const(), (0, 0));
        // SAFETY: slots live as long as `maps`.
        while let Some(slot) = unsafe { at.as_ref() } {
            found.0 += usize::from(!slot.map.load(Ordering::SeqCst).is_null());
            found.1 += 1;
            at = slot.next;
        }
        found
    }

    #[test]
    fn maps_are_kept_as_long_as_somebody_goes_by_them() {
        let maps = Maps::new(map(1));
        let first = maps.newest();
        for epoch in 2..100 {
            let before = maps.newest();
            assert!(maps.install(&before, map(epoch)));
        }
        assert_eq!((first.epoch, first.mount.as_str(), maps.newest().epoch), (Epoch(1), "/1", Epoch(99)));
        assert!(counted(&maps).0 <= 3 && counted(&maps).1 <= 4, "{:?}", counted(&maps));
        drop(first);
        let before = maps.newest();
        assert!(maps.install(&before, map(100)));
        assert!(!maps.install(&before, map(101)), "it is not the newest one any more");
        assert!(counted(&maps).0 <= 2);
    }

    #[test]
    fn many_threads_see_whole_maps_while_others_install_newer_ones() {
        let (maps, ends) = (Maps::new(map(1)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reads = || {
                let mut last = 0;
                while !ends.load(Ordering::Relaxed) {
                    let map = maps.newest();
                    assert!(map.epoch.0 >= last && map.mount == format!("/{}", map.epoch.0));
                    last = map.epoch.0;
                }
            };
            let readers: Vec<_> = (0..4).map(|_| scope.spawn(reads)).collect();
            let writes = || {
                for _ in 0..5_000 {
                    let before = maps.newest();
                    maps.install(&before, map(before.epoch.0 + 1));
                }
            };
            let writers: Vec<_> = (0..3).map(|_| scope.spawn(writes)).collect();
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            ends.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        });
        assert!(maps.newest().epoch.0 > 1_000);
        assert!(counted(&maps).1 < 30, "{:?}", counted(&maps));
    }
}
