//! When a server may fetch what it lacks: several stretches at once while programs leave its blocks alone, one after the
//! other with rests while they do not, and never above the rate that was asked for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many stretches are on their way to a server at once, while no program uses its blocks: so that its link is never
/// idle, whichever of the others is slow.
pub(super) const AT_ONCE: usize = 4;
/// Programs that have read or written blocks within this time are taken to go on.
const USED: Duration = Duration::from_millis(200);
/// Longest rest: a stretch may have taken long because its primary was waited for.
const REST: Duration = Duration::from_secs(1);

/// When the next bytes may be fetched.
#[derive(Debug)]
pub(super) struct Pace {
    begun: Instant,
    /// When programs used the blocks last: milliseconds after the beginning, plus one.
    used: AtomicU64,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many stretches are being fetched.
    under_way: usize,
    /// When the next one may be, by the rate.
    next: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            begun: Instant::now(),
            used: AtomicU64::new(0),
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }
}

/// The turn of one stretch.
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    begun: Instant,
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program uses the blocks.
    pub(super) fn is_used(&self) {
        let now = self.begun.elapsed().as_millis() as u64 + 1;
        // Most often it was in the same millisecond, and others read this line.
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    fn has_programs(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        used != 0 && self.begun.elapsed() < Duration::from_millis(used) + USED
    }

    /// Waits until one more stretch may be fetched.
    pub(super) fn turn(&self) -> Turn<'_> {
        let mut state = self.state();
        loop {
            let most = if self.has_programs() { 1 } else { AT_ONCE };
            if state.under_way < most {
                state.under_way += 1;
                return Turn { pace: self, begun: Instant::now() };
            }
            state = self.freed.wait_timeout(state, USED).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How long to wait after bytes were fetched. Time that passed before without fetching is not made up for.
    fn pause(&self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let mut state = self.state();
        if rate == 0 {
            state.next = None;
            return Duration::ZERO;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        // The fetching took its time, too, and what it lasted beyond a pause is forgotten.
        let due = state.next.unwrap_or(now).max(now.checked_sub(takes).unwrap_or(now)) + takes;
        state.next = Some(due);
        due.saturating_duration_since(now)
    }
}

impl Turn<'_> {
    /// So many bytes were fetched: waits until others may be. `rate`: bytes per second; 0: as fast as programs leave room
    /// for, who get the links for as long as the bytes took.
    pub(super) fn end(self, bytes: u64, rate: u64) {
        let pause = self.pace.pause(Instant::now(), bytes, rate);
        let rests = self.pace.has_programs() && rate == 0;
        std::thread::sleep(if rests { self.begun.elapsed().min(REST) } else { pause });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pace.state().under_way -= 1;
        self.pace.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(begin: Instant, seconds: f64) -> Instant {
        begin + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn what_is_fetched_keeps_to_the_rate_however_long_each_fetch_takes() {
        let (pace, begin) = (Pace::default(), Instant::now());
        let mut now = at(begin, 0.0);
        for _ in 0..100 {
            // Each takes a quarter of what it may.
            now = at(now, 0.025) + pace.pause(at(now, 0.025), MIB, 10 * MIB);
        }
        let took = now.duration_since(begin).as_secs_f64();
        assert!((9.5..10.5).contains(&took), "100 MiB at 10 MiB/s took {took} s");
    }

    #[test]
    fn slow_fetches_are_not_slowed_down_and_a_rest_is_not_made_up_for() {
        let (pace, begin) = (Pace::default(), Instant::now());
        let mut now = begin;
        for _ in 0..10 {
            now = at(now, 1.0);
            assert!(pace.pause(now, MIB, 2 * MIB) < Duration::from_millis(501));
        }
        // After a rest, no burst.
        now = at(now, 60.0);
        pace.pause(now, MIB, MIB);
        assert!(pace.pause(now, MIB, MIB) > Duration::from_millis(900));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let pace = Pace::default();
        assert_eq!(pace.pause(Instant::now(), u64::MAX, 0), Duration::ZERO);
    }

    #[test]
    fn programs_get_their_share_of_turns_and_time() {
        let pace = Pace::default();
        let alone: Vec<Turn> = (0..AT_ONCE).map(|_| pace.turn()).collect();
        drop(alone);
        pace.is_used();
        let first = pace.turn();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                // However late this thread begins: programs are there.
                pace.is_used();
                let _second = pace.turn();
                Instant::now()
            });
            std::thread::sleep(Duration::from_millis(30));
            pace.is_used();
            let ended = Instant::now();
            first.end(MIB, 0);
            assert!(ended.elapsed() >= Duration::from_millis(30), "as much rest as the fetching took");
            let second = second.join().expect("no panic");
            assert!(second >= ended + Duration::from_millis(30), "one at a time, and not in the rest");
        });
        let (mut turns, begun) = (Vec::new(), Instant::now());
        while turns.len() < AT_ONCE {
            turns.push(pace.turn());
        }
        assert!(begun.elapsed() < 10 * USED, "when programs have ended, all at once again");
    }

    #[test]
    fn a_turn_that_was_given_up_is_free_again() {
        let pace = Pace::default();
        for _ in 0..2 * AT_ONCE {
            drop(pace.turn());
        }
        assert_eq!(pace.state().under_way, 0);
    }
}
