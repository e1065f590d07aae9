//! How fast the files move that a server drives.
//!
//! One server may drive all of a rebuild: the inodes of a directory's files are together as long as it is small, and the
//! blocks are everywhere. So what its steps may have on their way is more than what its own links carry.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time over which it is measured, at least.
const SPAN: Duration = Duration::from_millis(500);
/// How much of the most is remembered from one span to the next.
const REMEMBERED: f64 = 0.9;

/// See the module.
#[derive(Debug)]
pub(super) struct Driven(Mutex<State>);

#[derive(Debug)]
struct State {
    since: Instant,
    bytes: u64,
    most: f64,
}

impl Driven {
    pub(super) fn new(now: Instant) -> Driven {
        Driven(Mutex::new(State { since: now, bytes: 0, most: 0.0 }))
    }

    /// Steps that it drives have moved so many bytes more.
    pub(super) fn note(&self, bytes: u64, now: Instant) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes += bytes;
        let span = now.saturating_duration_since(state.since);
        if span >= SPAN {
            let rate = state.bytes as f64 / span.as_secs_f64();
            *state = State { since: now, bytes: 0, most: (state.most * REMEMBERED).max(rate) };
        }
    }

    /// Bytes per second that they have moved at most, lately.
    pub(super) fn most(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).most as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_moves_quickly_up_and_slowly_down() {
        let begun = Instant::now();
        let driven = Driven::new(begun);
        let at = |tenths: u64| begun + Duration::from_millis(100 * tenths);
        for tenth in 1..=10 {
            driven.note(1000, at(tenth));
        }
        assert_eq!(driven.most(), 10_000);
        // Nothing for a long time, and then little.
        driven.note(1000, at(110));
        assert_eq!(driven.most(), 9000);
        for tenth in 111..=300 {
            driven.note(100, at(tenth));
        }
        assert_eq!(driven.most(), 1000);
    }
}
