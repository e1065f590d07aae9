//! Which requests for blocks are under way, so that somebody can wait until those have ended that began before now.
//!
//! Who waits changes something first, by which later requests are refused, and then waits for the earlier ones. Requests
//! count themselves in one of two counters, and whoever waits has later ones use the other. A request may have chosen its
//! counter a moment before, and count itself a moment after; so this is done twice: what was missed the first time is in the
//! counter that is waited for the second time. (This is how sleepable RCU waits for its readers.)
//!
//! Requests wait for nobody. Files share counters, by their numbers; so who waits may wait for requests for other files, too.

use bivouac_layout::Ino;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PARTS: usize = 256;
/// Time between two looks.
const LOOK: Duration = Duration::from_micros(50);

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It reads, perhaps as slowly as a program takes the bytes.
    Read,
    /// It changes something.
    Change,
}

#[derive(Default)]
struct Part {
    /// Which counters new requests use.
    phase: AtomicUsize,
    /// By phase and kind.
    counts: [[AtomicUsize; 2]; 2],
    /// One waits at a time.
    waiting: Mutex<()>,
}

/// See the module.
pub(crate) struct Flights {
    parts: Box<[Part]>,
}

/// A request that is under way until this is dropped.
pub(crate) struct Flight<'f> {
    count: &'f AtomicUsize,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for Flights {
    fn default() -> Flights {
        Flights { parts: (0..PARTS).map(|_| Part::default()).collect() }
    }
}

impl Flights {
    fn part(&self, ino: Ino) -> &Part {
        &self.parts[ino.0 as usize % PARTS]
    }

    /// A request begins. It looks whether it is refused after this.
    pub(crate) fn begin(&self, ino: Ino, kind: Kind) -> Flight<'_> {
        let part = self.part(ino);
        let count = &part.counts[part.phase.load(Ordering::SeqCst) % 2][kind as usize];
        count.fetch_add(1, Ordering::SeqCst);
        Flight { count }
    }

    /// Waits until all requests for a file have ended that had begun before this, but not for longer than `limit`: says
    /// whether they have. With `Kind::Change`, only for those that change something.
    pub(crate) fn have_ended(&self, ino: Ino, kind: Kind, limit: Duration) -> bool {
        let part = self.part(ino);
        let until = Instant::now() + limit;
        let _alone = part.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        (0..2).all(|_| {
            let phase = part.phase.fetch_add(1, Ordering::SeqCst) % 2;
            let [reads, changes] = &part.counts[phase];
            let is_over = || {
                let reads = kind == Kind::Change || reads.load(Ordering::SeqCst) == 0;
                reads && changes.load(Ordering::SeqCst) == 0
            };
            while !is_over() {
                if Instant::now() >= until {
                    return false;
                }
                std::thread::sleep(LOOK);
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    const NOT_LONG: Duration = Duration::from_millis(20);

    #[test]
    fn only_requests_for_the_file_that_had_begun_are_waited_for() {
        let flights = Flights::default();
        let (ino, other) = (Ino(5), Ino(6));
        let reading = flights.begin(ino, Kind::Read);
        let _elsewhere = flights.begin(other, Kind::Change);
        assert!(flights.have_ended(ino, Kind::Change, NOT_LONG), "nobody changes it");
        assert!(!flights.have_ended(ino, Kind::Read, NOT_LONG));
        drop(reading);
        assert!(flights.have_ended(ino, Kind::Read, NOT_LONG));
        let changing = flights.begin(ino, Kind::Change);
        assert!(!flights.have_ended(ino, Kind::Change, NOT_LONG));
        assert!(!flights.have_ended(ino, Kind::Read, NOT_LONG), "a change counts for both");
        std::thread::scope(|scope| {
            let waited = scope.spawn(|| flights.have_ended(ino, Kind::Read, Duration::from_secs(60)));
            drop(changing);
            assert!(waited.join().expect("no panic"));
        });
    }

    #[test]
    fn after_the_wait_nobody_goes_by_what_was_so_before() {
        // Requests look at a flag, and then use what it allows. Whoever lowers the flag waits, and takes it away.
        let (flights, ino) = (Flights::default(), Ino(1));
        let (allowed, there, stop, broken) =
            (AtomicBool::new(true), AtomicU64::new(1), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let _flight = flights.begin(ino, Kind::Change);
                        if allowed.load(Ordering::SeqCst) {
                            std::hint::spin_loop();
                            broken.fetch_add(u64::from(there.load(Ordering::SeqCst) == 0), Ordering::SeqCst);
                        }
                    }
                });
            }
            for _ in 0..300 {
                allowed.store(false, Ordering::SeqCst);
                assert!(flights.have_ended(ino, Kind::Change, Duration::from_secs(60)));
                there.store(0, Ordering::SeqCst);
                std::thread::yield_now();
                there.store(1, Ordering::SeqCst);
                allowed.store(true, Ordering::SeqCst);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert_eq!(broken.load(Ordering::SeqCst), 0);
    }
}
