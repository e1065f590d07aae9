//! How fast a server takes in what comes to it: not faster than was asked for, whatever the number of files at once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When the next bytes may be asked for.
#[derive(Debug, Default)]
pub(super) struct Rate(Mutex<Option<Instant>>);

impl Rate {
    /// Waits until so many bytes may come. `rate`: bytes per second; 0: any time.
    pub(super) fn wait(&self, bytes: u64, rate: u64) {
        std::thread::sleep(self.pause(Instant::now(), bytes, rate));
    }

    /// How long to wait. Time in which nothing came is not made up for.
    fn pause(&self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rate == 0 {
            *next = None;
            return Duration::ZERO;
        }
        let begin = next.unwrap_or(now).max(now);
        *next = Some(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
        begin.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_at_the_rate_and_a_rest_is_not_made_up_for() {
        let (rate, begin) = (Rate::default(), Instant::now());
        let mut now = begin;
        for _ in 0..11 {
            now += rate.pause(now, 1 << 20, 10 << 20);
        }
        let took = now.duration_since(begin).as_secs_f64();
        assert!((0.99..1.01).contains(&took), "10 MiB at 10 MiB/s took {took} s");
        now += Duration::from_secs(60);
        assert_eq!(rate.pause(now, 1 << 20, 1 << 20), Duration::ZERO);
        assert!(rate.pause(now, 1, 1 << 20) > Duration::from_millis(990), "no burst");
        assert_eq!(rate.pause(now, u64::MAX, 0), Duration::ZERO);
    }
}
