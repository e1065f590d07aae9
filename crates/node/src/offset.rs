//! The lock on a slot's offset.
//!
//! It lies in memory that processes share, and its owner may be killed, or leave by `siglongjmp`, at any
//! instruction. So the word says who owns it (the thread's number), waiting is bounded, and who has waited looks whether the
//! owner is still alive: if not, the lock is taken over (from an owner of another PID namespace, after a long time). A thread that finds itself as the owner (it left by
//! `siglongjmp`, or a signal handler reads what the interrupted code reads) goes on. What the lock protects is one
//! number, which is valid at any moment, so nothing has to be repaired.

use crate::owner::{Fate, Since};
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::{AtomicU32, Ordering};

/// Somebody waits (the bits below are the owner's thread number).
const WAITERS: u32 = 1 << 31;

/// How long to wait before looking whether the owner is alive.
const PATIENCE: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A futex word. 0: free.
#[repr(transparent)]
pub(crate) struct OffsetLock(AtomicU32);

/// The lock is held; dropping this releases it.
pub struct OffsetGuard<'a> {
    lock: &'a OffsetLock,
    owner: u32,
}

impl OffsetLock {
    /// Takes it for a thread; `fate` says what is known of its present owner.
    pub fn lock(&self, owner: u32, fate: impl Fn(u32) -> Fate) -> OffsetGuard<'_> {
        if self.0.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended(owner, &fate);
        }
        OffsetGuard { lock: self, owner }
    }

    #[cold]
    fn lock_contended(&self, me: u32, fate: &dyn Fn(u32) -> Fate) {
        let mut since = Since::default();
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            let holder = seen & !WAITERS;
            if holder == me {
                return;
            }
            if holder == 0 {
                // Keeps the mark: others may wait too.
                let next = me | WAITERS;
                if self.0.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            let marked = seen | WAITERS;
            if seen != marked
                && self.0.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            let waited = futex::wait(&self.0, Flags::empty(), marked, Some(&PATIENCE));
            let timed_out = waited == Err(rustix::io::Errno::TIMEDOUT);
            if !timed_out {
                continue;
            }
            let gone = match fate(holder) {
                Fate::Alive => false,
                Fate::Dead => true,
                Fate::Unknown => since.too_long(holder.into()),
            };
            if gone {
                // Of all who notice, one wins.
                let next = me | WAITERS;
                if self.0.compare_exchange(marked, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
            }
        }
    }

    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for OffsetGuard<'_> {
    fn drop(&mut self) {
        let word = &self.lock.0;
        if word.compare_exchange(self.owner, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        // Not ours any more when a nested user of the same thread has released it: then it is left alone.
        let marked = self.owner | WAITERS;
        if word.compare_exchange(marked, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            let _ = futex::wake(word, Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    fn alive(_: u32) -> Fate {
        Fate::Alive
    }

    #[test]
    fn threads_exclude_each_other() {
        let lock = OffsetLock(AtomicU32::new(0));
        let counter = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let _guard = lock.lock(process::tid(), alive);
                        // Two steps, so that a broken lock loses counts.
                        let seen = counter.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        counter.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 20_000);
        assert_eq!(lock.0.into_inner() & !WAITERS, 0);
    }

    #[test]
    fn a_thread_that_owns_it_already_goes_on() {
        let lock = OffsetLock(AtomicU32::new(0));
        let outer = lock.lock(process::tid(), alive);
        drop(lock.lock(process::tid(), alive));
        drop(outer);
        assert_eq!(lock.0.into_inner(), 0);
    }
}
