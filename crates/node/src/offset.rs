//! The lock on a slot's offset.
//!
//! It lies in memory that processes share, into which any of them may write by mistake, and its owner may be
//! killed, or leave by `siglongjmp`, at any instruction. So the lock's word contains its owner (the thread's
//! number), waiting is bounded, and a waiter looks whether the owner is still alive. If not, the waiter takes
//! the lock over (from an owner of another PID namespace only after a long time). A thread that finds itself
//! as the owner (because it left by `siglongjmp`, or because a signal handler reads what the interrupted code
//! reads) goes on. The lock protects one number, which is valid at any moment, so nothing has to be repaired.
//!
//! For an owner that is alive, others wait, as the kernel makes them wait at a shared offset: a stopped
//! process may hold the lock for long. But a word that was written by mistake may name a living thread that
//! never held the lock. So after [`LONGEST`] the waiter gets an error.

use crate::error::NodeError;
use crate::owner::{Fate, OWNER_BITS, Since};
use crate::release::monotonic;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Somebody waits (the bits below are the owner's thread number).
const WAITERS: u32 = 1 << 31;

/// How long to wait before looking whether the owner is alive.
const PATIENCE_STEP: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Longest wait in all. No process that runs holds this lock for so long.
const LONGEST: Duration = Duration::from_secs(600);

/// A futex word. 0: free.
#[repr(transparent)]
pub(crate) struct OffsetLock(AtomicU32);

/// The lock is held; dropping this releases it.
pub struct OffsetGuard<'a> {
    lock: &'a OffsetLock,
    owner: u32,
}

impl OffsetLock {
    /// Takes the lock for a thread; `fate` tells what is known of the lock's present owner.
    pub fn lock(&self, owner: u32, fate: impl Fn(u32) -> Fate) -> Result<OffsetGuard<'_>, NodeError> {
        if self.0.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended(owner, &fate, LONGEST)?;
        }
        Ok(OffsetGuard { lock: self, owner })
    }

    #[cold]
    fn lock_contended(
        &self,
        me: u32,
        fate: &dyn Fn(u32) -> Fate,
        longest: Duration,
    ) -> Result<(), NodeError> {
        let mut since = Since::default();
        let begun = monotonic();
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            let holder = seen & !WAITERS;
            if holder == me {
                return Ok(());
            }
            if u128::from(monotonic().saturating_sub(begun)) > longest.as_nanos() {
                return Err(NodeError::Stuck);
            }
            // No thread has such a number: a program has overwritten the word.
            if holder == 0 || holder >> OWNER_BITS != 0 {
                // Keeps the mark: others may wait too.
                let next = me | WAITERS;
                if self.0.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Ok(());
                }
                continue;
            }
            let marked = seen | WAITERS;
            if seen != marked
                && self.0.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            let waited = futex::wait(&self.0, Flags::empty(), marked, Some(&PATIENCE_STEP));
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
                // Of all waiters that notice this, one gets the lock.
                let next = me | WAITERS;
                if self.0.compare_exchange(marked, next, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Ok(());
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
        // If a nested user in the same thread has released it already, it is not ours any more.
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
                        let _guard = lock.lock(process::tid(), alive).unwrap();
                        // Read and write separately, so that counts are lost if the lock does not work.
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
        let outer = lock.lock(process::tid(), alive).unwrap();
        drop(lock.lock(process::tid(), alive).unwrap());
        drop(outer);
        assert_eq!(lock.0.into_inner(), 0);
    }

    #[test]
    fn a_word_that_names_nobody_is_taken_over_and_one_that_names_a_bystander_is_not_waited_for_for_ever() {
        for noise in [1 << 30, u32::MAX, 1 << OWNER_BITS | 1] {
            let lock = OffsetLock(AtomicU32::new(noise));
            drop(lock.lock(process::tid(), alive).unwrap());
        }
        let lock = OffsetLock(AtomicU32::new(1));
        let begun = std::time::Instant::now();
        let stuck = lock.lock_contended(process::tid(), &alive, Duration::from_millis(100));
        assert_eq!(stuck, Err(NodeError::Stuck));
        assert!(begun.elapsed() < bivouac_testing::HANG, "{:?}", begun.elapsed());
    }
}
