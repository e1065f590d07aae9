//! What a fence word and a mark say, and in which order they are used.
//!
//! They lie in shared memory, which a schedule explorer cannot watch. So the protocol is written over
//! [`Number`], which is an atomic of std's in the page and one of loom's in the tests of every interleaving.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Direct reads are fenced.
pub(super) const READS: u64 = 1;
/// Direct writes are fenced.
pub(super) const WRITES: u64 = 2;
/// The count of fences begins above the flags.
const ONE: u64 = 4;

/// An atomic number. What changes or loads it is in one order with all other such (`SeqCst`), except where it
/// says otherwise.
pub(super) trait Number {
    fn get(&self) -> u64;
    /// Changes it if it is `from`.
    fn replace(&self, from: u64, to: u64) -> bool;
    fn add(&self, by: u64);
    fn set_bits(&self, bits: u64);
    fn clear_bits(&self, bits: u64);
    /// Makes it 0, behind everything that this thread has done before; what it does later may come earlier.
    fn release(&self);
    /// Everything that this thread has loaded before comes before what it loads later.
    fn loaded();
}

impl Number for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    #[inline]
    fn replace(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    #[inline]
    fn add(&self, by: u64) {
        self.fetch_add(by, Ordering::SeqCst);
    }

    #[inline]
    fn set_bits(&self, bits: u64) {
        self.fetch_or(bits, Ordering::SeqCst);
    }

    #[inline]
    fn clear_bits(&self, bits: u64) {
        self.fetch_and(!bits, Ordering::SeqCst);
    }

    #[inline]
    fn release(&self) {
        self.store(0, Ordering::Release);
    }

    #[inline]
    fn loaded() {
        fence(Ordering::Acquire);
    }
}

/// The fence word of some files.
#[repr(C)]
pub(super) struct Word<N> {
    /// Flags, and how often any was raised.
    state: N,
    /// How often a sub-file became another local file.
    moved: N,
}

impl<N: Number> Word<N> {
    /// For an access that the flag `fenced` stops, by a descriptor that was passed at `moved`: what the word
    /// says. `None`: the server has to be asked.
    pub fn enter(&self, fenced: u64, moved: u64) -> Option<u64> {
        let state = self.state.get();
        (state & fenced == 0 && self.moved.get() == moved).then_some(state)
    }

    /// Whether nothing was fenced between [`Word::enter`] and all that this thread has loaded since.
    pub fn is_still(&self, state: u64) -> bool {
        N::loaded();
        self.state.get() == state
    }

    pub fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// Fences what the flags say. Whoever enters from here on sees it.
    pub fn raise(&self, flags: u64) {
        self.state.set_bits(flags);
        self.state.add(ONE);
    }

    pub fn lower(&self, flags: u64) {
        self.state.clear_bits(flags);
    }

    /// Descriptors that were passed up to now are stale.
    pub fn move_on(&self) {
        self.moved.add(1);
    }
}

/// Marks a file as being written, before its word is [entered](Word::enter). False: the mark is in use.
#[inline]
pub(super) fn mark(mark: &impl Number, file: u64) -> bool {
    mark.get() == 0 && mark.replace(0, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64 as Explored, fence as explored_fence};
    use loom::thread;

    /// loom has no order of `SeqCst` operations, only of fences: each operation that needs it has one on the
    /// side on which the other thread's order counts.
    impl Number for Explored {
        fn get(&self) -> u64 {
            explored_fence(Ordering::SeqCst);
            self.load(Ordering::Acquire)
        }

        fn replace(&self, from: u64, to: u64) -> bool {
            let done = self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
            explored_fence(Ordering::SeqCst);
            done
        }

        fn add(&self, by: u64) {
            self.fetch_add(by, Ordering::AcqRel);
            explored_fence(Ordering::SeqCst);
        }

        fn set_bits(&self, bits: u64) {
            self.fetch_or(bits, Ordering::AcqRel);
            explored_fence(Ordering::SeqCst);
        }

        fn clear_bits(&self, bits: u64) {
            self.fetch_and(!bits, Ordering::AcqRel);
        }

        fn release(&self) {
            self.store(0, Ordering::Release);
        }

        fn loaded() {
            explored_fence(Ordering::Acquire);
        }
    }

    const FILE: u64 = 7;

    /// A word, a thread's mark, and two local files that a sub-file can be: the second one after it was
    /// moved.
    struct Page {
        word: Word<Explored>,
        mark: Explored,
        data: [Explored; 2],
    }

    impl Page {
        fn new() -> Arc<Page> {
            let zero = || Explored::new(0);
            let word = Word { state: zero(), moved: zero() };
            Arc::new(Page { word, mark: zero(), data: [zero(), zero()] })
        }

        /// A direct write of 1 to the file as it was at the beginning; whether it counts.
        fn write(&self) -> bool {
            if !mark(&self.mark, FILE) {
                return false;
            }
            let entered = self.word.enter(WRITES, 0).is_some();
            if entered {
                self.data[0].store(1, Ordering::Relaxed);
                // The kernel's lock on the file, as far as it is one.
                explored_fence(Ordering::SeqCst);
            }
            let counts = entered && self.word.moved() == 0;
            self.mark.release();
            counts
        }
    }

    #[test]
    fn a_write_is_complete_behind_the_fence_or_does_not_happen_in_every_interleaving() {
        loom::model(|| {
            let page = Page::new();
            let writer = {
                let page = page.clone();
                thread::spawn(move || page.write())
            };
            page.word.raise(WRITES);
            while page.mark.get() == FILE {
                thread::yield_now();
            }
            let behind = page.data[0].load(Ordering::Relaxed);
            let counts = writer.join().unwrap();
            assert_eq!(behind, u64::from(counts), "what is written does not change behind the fence");
            assert_eq!(page.data[0].load(Ordering::Relaxed), behind);
        });
    }

    /// The server does not wait for the writer at all.
    #[test]
    fn a_late_write_is_in_the_copy_or_is_repeated_in_every_interleaving() {
        loom::model(|| {
            let page = Page::new();
            let writer = {
                let page = page.clone();
                thread::spawn(move || page.write())
            };
            page.word.raise(WRITES);
            page.word.move_on();
            let copied = page.data[0].load(Ordering::Relaxed);
            page.data[1].store(copied, Ordering::Relaxed);
            page.word.lower(WRITES);
            if writer.join().unwrap() {
                assert_eq!(page.data[1].load(Ordering::Relaxed), 1, "a write that counts is lost");
            }
        });
    }

    #[test]
    fn a_read_that_counts_has_seen_nothing_of_what_is_done_behind_a_fence_in_every_interleaving() {
        loom::model(|| {
            let page = Page::new();
            let reader = {
                let page = page.clone();
                thread::spawn(move || {
                    let state = page.word.enter(READS, 0)?;
                    let halves = [0, 1].map(|i| page.data[i].load(Ordering::Relaxed));
                    page.word.is_still(state).then_some(halves)
                })
            };
            page.word.raise(READS);
            page.data.iter().for_each(|half| half.store(1, Ordering::Relaxed));
            page.word.lower(READS);
            let read = reader.join().unwrap();
            assert!(read.is_none_or(|[first, second]| first == second), "{read:?}");
        });
    }
}
