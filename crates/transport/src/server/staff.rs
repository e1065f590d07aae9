//! How many workers a server has, and how many of them wait for requests.
//!
//! The promise: somebody waits, unless as many workers are busy as there may be, or a thread could not be
//! started. A busy worker may wait for a request that only another worker can serve.
//!
//! Both numbers lie in one word and change together. If a worker that leaves took itself out of one before
//! the other, then the last one that takes a connection in between would find all places taken, start nobody,
//! and the place that becomes free would stay empty.
//!
//! The word is written over [`Word`], which is an atomic of std's in a server and one of loom's in the tests
//! of every interleaving. It guards no other memory, so no order is asked for.

use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic number.
pub(super) trait Word {
    fn get(&self) -> u64;
    /// Changes the number, unless `to` gives nothing for it. What it was; an error if it was left alone.
    fn update(&self, to: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64>;
}

/// The same for the atomics of std and of loom, which are called in the same way.
macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            fn get(&self) -> u64 {
                self.load(Ordering::Relaxed)
            }

            fn update(&self, to: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
                self.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to)
            }
        }
    };
}

word!(AtomicU64);

/// What a worker has to do that has taken a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Behind {
    /// Others wait.
    Others,
    /// Start a worker, which counts as one that waits already.
    Start,
    /// Nobody waits, and no more may be started.
    Nobody,
}

#[derive(Clone, Copy)]
struct Counts {
    waiting: u32,
    workers: u32,
}

impl Counts {
    fn of(word: u64) -> Counts {
        Counts { waiting: word as u32, workers: (word >> 32) as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.workers) << 32 | u64::from(self.waiting)
    }

    /// After one has taken a connection.
    fn taken(self, most: u32) -> (Counts, Behind) {
        match self.waiting.saturating_sub(1) {
            0 if self.workers < most => {
                (Counts { waiting: 1, workers: self.workers.saturating_add(1) }, Behind::Start)
            }
            0 => (Counts { waiting: 0, ..self }, Behind::Nobody),
            waiting => (Counts { waiting, ..self }, Behind::Others),
        }
    }

    /// After one that waited is gone.
    fn gone(self) -> Counts {
        Counts { waiting: self.waiting.saturating_sub(1), workers: self.workers.saturating_sub(1) }
    }
}

pub(super) struct Staff<W> {
    counts: W,
    most: u32,
}

impl Staff<AtomicU64> {
    /// One worker, who is about to wait, of at most so many.
    pub(super) fn new(most: usize) -> Staff<AtomicU64> {
        let counts = Counts { waiting: 1, workers: 1 };
        Staff { counts: AtomicU64::new(counts.word()), most: u32::try_from(most).unwrap_or(u32::MAX) }
    }
}

impl<W: Word> Staff<W> {
    /// Returns what the numbers were.
    fn change(&self, mut to: impl FnMut(Counts) -> Counts) -> Counts {
        let (Ok(before) | Err(before)) = self.counts.update(|word| Some(to(Counts::of(word)).word()));
        Counts::of(before)
    }

    /// A worker that waited has taken a connection.
    pub(super) fn take(&self) -> Behind {
        self.change(|counts| counts.taken(self.most).0).taken(self.most).1
    }

    /// A busy worker waits again.
    pub(super) fn wait(&self) {
        self.change(|counts| Counts { waiting: counts.waiting.saturating_add(1), ..counts });
    }

    /// A worker that waits wants to leave. Whether it may: others wait.
    pub(super) fn leave(&self) -> bool {
        let to = |word| Some(Counts::of(word)).filter(|counts| counts.waiting > 1);
        self.counts.update(|word| to(word).map(|counts| counts.gone().word())).is_ok()
    }

    /// The worker that was to be started could not be.
    pub(super) fn not_started(&self) {
        self.change(Counts::gone);
    }

    /// Whether nobody waits, so that requests on other connections have to wait for those that are served.
    pub(super) fn is_short(&self) -> bool {
        Counts::of(self.counts.get()).waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    word!(loom::sync::atomic::AtomicU64);

    type Shared = Arc<Staff<loom::sync::atomic::AtomicU64>>;

    /// Two workers that wait, of at most `most`; each does one of these in every interleaving, and then
    /// `check` sees what came of it.
    fn explore<A: Send + 'static, B: 'static>(
        most: u32,
        one: fn(&Shared) -> A,
        other: fn(&Shared) -> B,
        check: fn(Counts, A, B),
    ) {
        loom::model(move || {
            let counts = Counts { waiting: 2, workers: 2 };
            let staff = Staff { counts: loom::sync::atomic::AtomicU64::new(counts.word()), most };
            let staff: Shared = Arc::new(staff);
            let thread = {
                let staff = staff.clone();
                thread::spawn(move || one(&staff))
            };
            let other = other(&staff);
            let one = thread.join().unwrap();
            assert_eq!(staff.is_short(), Counts::of(staff.counts.get()).waiting == 0);
            check(Counts::of(staff.counts.get()), one, other);
        });
    }

    /// If the one that leaves is no worker any more, then the other one starts another although two are all
    /// that there may be.
    #[test]
    fn a_worker_that_leaves_makes_room_for_the_one_that_is_started_in_every_interleaving() {
        explore(
            2,
            |staff| staff.leave(),
            |staff| staff.take(),
            |counts, left, behind| {
                assert_eq!(behind, if left { Behind::Start } else { Behind::Others });
                assert_eq!((counts.waiting, counts.workers), (1, 2));
            },
        );
    }

    #[test]
    fn one_of_two_idle_workers_stays_in_every_interleaving() {
        explore(
            2,
            |staff| staff.leave(),
            |staff| staff.leave(),
            |counts, one, other| {
                assert!(one != other);
                assert_eq!((counts.waiting, counts.workers), (1, 1));
            },
        );
    }

    #[test]
    fn the_last_one_that_takes_a_connection_starts_another_in_every_interleaving() {
        explore(
            3,
            |staff| staff.take(),
            |staff| staff.take(),
            |counts, one, other| {
                assert!(one == Behind::Start && other == Behind::Others || one == Behind::Others);
                assert!([one, other].contains(&Behind::Start) && one != other);
                assert_eq!((counts.waiting, counts.workers), (1, 3));
            },
        );
    }

    /// Two are all that there may be.
    #[test]
    fn a_worker_that_waits_again_is_counted_in_every_interleaving() {
        let take_and_wait = |staff: &Shared| {
            let behind = staff.take();
            staff.wait();
            behind
        };
        explore(
            2,
            take_and_wait,
            |staff| staff.take(),
            |counts, one, other| {
                assert!(![one, other].contains(&Behind::Start));
                assert_eq!((counts.waiting, counts.workers), (1, 2));
            },
        );
    }

    #[test]
    fn a_worker_that_could_not_be_started_does_not_count_in_every_interleaving() {
        let fail_to_start = |staff: &Shared| {
            if staff.take() == Behind::Start {
                staff.not_started();
            }
        };
        let take_and_wait = |staff: &Shared| {
            let behind = staff.take();
            staff.wait();
            behind
        };
        explore(3, fail_to_start, take_and_wait, |counts, (), behind| {
            let started = u32::from(behind == Behind::Start);
            assert_eq!((counts.waiting, counts.workers), (1 + started, 2 + started));
        });
    }
}
