//! A limit to the bytes a second that a worker moves between itself and the backend.
//!
//! Each piece books the time that it takes at the allowed rate, behind those that were booked before it, and
//! waits until its turn. A worker that was idle has no claim to the time that it did not use, but for a
//! moment's worth.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So much unused time may be made up for.
const BURST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Throttle(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Bytes a second; 0: no limit.
    rate: u64,
    /// When what was booked so far is over.
    booked: Instant,
}

impl Throttle {
    pub(crate) fn new(rate: u64) -> Throttle {
        Throttle(Mutex::new(State { rate, booked: Instant::now() }))
    }

    pub(crate) fn set(&self, rate: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rate = rate;
    }

    /// Waits until so many bytes may be moved.
    pub(crate) fn take(&self, bytes: u64) {
        let wait = self.book(bytes, Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    fn book(&self, bytes: u64, now: Instant) -> Duration {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.rate == 0 {
            return Duration::ZERO;
        }
        let begin = state.booked.max(now.checked_sub(BURST).unwrap_or(now));
        state.booked = begin + Duration::from_secs_f64(bytes as f64 / state.rate as f64);
        begin.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_wait_for_those_before_them_and_idle_time_is_not_saved_up() {
        let throttle = Throttle::new(1000);
        let start = Instant::now();
        assert_eq!(throttle.book(500, start), Duration::ZERO);
        let second = throttle.book(500, start);
        assert!(second > Duration::from_millis(350) && second <= Duration::from_millis(500), "{second:?}");
        let later = start + Duration::from_secs(100);
        assert_eq!(throttle.book(1000, later), Duration::ZERO);
        assert!(throttle.book(1, later) >= Duration::from_millis(899));
        throttle.set(0);
        assert_eq!(throttle.book(u64::MAX, later), Duration::ZERO);
    }
}
