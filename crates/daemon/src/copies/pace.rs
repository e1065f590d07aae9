//! Keeping what a server fetches from others to a rate, so that programs keep the rest of the links.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When the next bytes may be fetched.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// So many bytes were fetched: waits until others may be. `rate`: bytes per second; 0: as fast as possible.
    pub(super) fn wait(&self, bytes: u64, rate: u64) {
        std::thread::sleep(self.pause(Instant::now(), bytes, rate));
    }

    /// How long to wait after bytes were fetched. Time that passed before without fetching is not made up for.
    fn pause(&self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rate == 0 {
            *next = None;
            return Duration::ZERO;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        // The fetching took its time, too, and what it lasted beyond a pause is forgotten.
        let due = next.unwrap_or(now).max(now.checked_sub(takes).unwrap_or(now)) + takes;
        *next = Some(due);
        due.saturating_duration_since(now)
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
}
