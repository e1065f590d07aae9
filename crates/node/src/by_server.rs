//! A table with an entry for each server of a deployment, also for servers that are added while it is used.
//!
//! The entries lie in chunks, each of which is made when one of its entries is first wanted. No entry ever moves. (A
//! chunk is not behind a `OnceLock`: a child that is forked while another thread fills that in would wait for ever.)

use bivouac_layout::{SERVERS_MAX, ServerId};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Entries of a chunk.
const CHUNK: usize = 64;

type Chunk<T> = [T; CHUNK];

/// See the module.
#[derive(Debug)]
pub struct ByServer<T> {
    chunks: [AtomicPtr<Chunk<T>>; SERVERS_MAX as usize / CHUNK],
}

impl<T> Default for ByServer<T> {
    fn default() -> ByServer<T> {
        ByServer { chunks: std::array::from_fn(|_| AtomicPtr::default()) }
    }
}

impl<T: Default> ByServer<T> {
    /// The entry of a server. `None` for a number that no server has, as a peer may claim.
    #[inline]
    pub fn get(&self, server: ServerId) -> Option<&T> {
        let at = usize::from(server.0);
        let place = self.chunks.get(at / CHUNK)?;
        let chunk = place.load(Ordering::Acquire);
        let chunk = if chunk.is_null() { make(place) } else { chunk };
        // SAFETY: from Box::into_raw, and freed only when `self` is dropped.
        let chunk = unsafe { &*chunk };
        chunk.get(at % CHUNK)
    }

    /// The entries that were wanted so far, and their neighbours.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let chunks = self.chunks.iter().map(|place| place.load(Ordering::Acquire));
        // SAFETY: null, or from Box::into_raw and freed only when `self` is dropped.
        chunks.filter_map(|chunk| unsafe { chunk.as_ref() }).flatten()
    }
}

/// Makes a chunk, unless another thread is faster.
#[cold]
fn make<T: Default>(place: &AtomicPtr<Chunk<T>>) -> *mut Chunk<T> {
    let new = Box::into_raw(Box::new(std::array::from_fn(|_| T::default())));
    match place.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(first) => {
            // SAFETY: not installed, so nobody else has it.
            drop(unsafe { Box::from_raw(new) });
            first
        }
    }
}

impl<T> Drop for ByServer<T> {
    fn drop(&mut self) {
        for place in &mut self.chunks {
            let chunk = *place.get_mut();
            if !chunk.is_null() {
                // SAFETY: from Box::into_raw; `&mut self` excludes users.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

// SAFETY: it owns its entries, and gives shared references to them only.
unsafe impl<T: Send + Sync> Sync for ByServer<T> {}
// SAFETY: it owns its entries.
unsafe impl<T: Send> Send for ByServer<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn each_server_has_an_entry_that_stays_and_no_other_number_has() {
        let table = ByServer::<AtomicU32>::default();
        assert_eq!(table.iter().count(), 0, "nothing is made before it is wanted");
        for number in 0..SERVERS_MAX {
            table.get(ServerId(number)).expect("an entry").store(number.into(), Ordering::Relaxed);
        }
        let found: Vec<u32> = table.iter().map(|entry| entry.load(Ordering::Relaxed)).collect();
        assert_eq!(found, (0..u32::from(SERVERS_MAX)).collect::<Vec<_>>());
        assert!([SERVERS_MAX, u16::MAX].iter().all(|number| table.get(ServerId(*number)).is_none()));
    }

    #[test]
    fn threads_that_want_an_entry_at_once_get_the_same_and_all_are_dropped() {
        static LIVING: AtomicU32 = AtomicU32::new(0);
        struct Counted(AtomicU32);
        impl Default for Counted {
            fn default() -> Counted {
                LIVING.fetch_add(1, Ordering::SeqCst);
                Counted(AtomicU32::new(0))
            }
        }
        impl Drop for Counted {
            fn drop(&mut self) {
                LIVING.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let table = Arc::new(ByServer::<Counted>::default());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for number in (0..SERVERS_MAX).step_by(7) {
                        table.get(ServerId(number)).expect("an entry").0.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let all = (0..SERVERS_MAX).step_by(7).map(|number| table.get(ServerId(number)).expect("an entry"));
        assert!(all.map(|entry| entry.0.load(Ordering::Relaxed)).all(|count| count == 8));
        drop(table);
        assert_eq!(LIVING.load(Ordering::SeqCst), 0);
    }
}
