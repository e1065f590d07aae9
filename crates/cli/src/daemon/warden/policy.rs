//! How often, and when, a server is started again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Starts are counted for so long.
pub const WINDOW: Duration = Duration::from_secs(600);
/// The pause before the second start within [`WINDOW`]; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The starts of one server.
#[derive(Debug)]
pub struct Policy {
    /// Most starts within [`WINDOW`].
    limit: u32,
    starts: VecDeque<Instant>,
}

impl Policy {
    /// At most `limit` starts within [`WINDOW`].
    pub fn new(limit: u32) -> Policy {
        Policy { limit, starts: VecDeque::new() }
    }

    /// How long to wait before the next start: not at all if there was none for long. `None`: there were too many.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        while self.starts.front().is_some_and(|start| now.duration_since(*start) >= WINDOW) {
            self.starts.pop_front();
        }
        let before = u32::try_from(self.starts.len()).unwrap_or(u32::MAX);
        if before >= self.limit {
            return None;
        }
        let Some(doublings) = before.checked_sub(1) else { return Some(Duration::ZERO) };
        Some(FIRST_PAUSE.saturating_mul(2u32.saturating_pow(doublings)).min(LONGEST_PAUSE))
    }

    /// It is being started now, whatever comes of it.
    pub fn started(&mut self, now: Instant) {
        self.starts.push_back(now);
    }

    /// Somebody else has started it: what was before does not count any more.
    pub fn forget(&mut self) {
        self.starts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses before each start of a server that dies at once each time, in milliseconds, until it is given up.
    fn pauses(policy: &mut Policy, mut now: Instant) -> Vec<u128> {
        let mut pauses = Vec::new();
        while let Some(pause) = policy.pause(now) {
            now += pause;
            policy.started(now);
            pauses.push(pause.as_millis());
        }
        pauses
    }

    #[test]
    fn the_first_start_is_at_once_and_pauses_double_up_to_a_longest() {
        let now = Instant::now();
        assert_eq!(pauses(&mut Policy::new(3), now), [0, 200, 400]);
        let many = pauses(&mut Policy::new(12), now);
        assert_eq!(many[..8], [0, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert!(many.len() == 12 && many[8..].iter().all(|pause| *pause == 10_000));
        assert_eq!(pauses(&mut Policy::new(0), now), [] as [u128; 0], "never");
        let mut endless = Policy::new(u32::MAX);
        (0..100).for_each(|_| endless.started(now));
        assert_eq!(endless.pause(now), Some(LONGEST_PAUSE), "no overflow");
    }

    #[test]
    fn starts_of_long_ago_do_not_count() {
        let begin = Instant::now();
        let mut policy = Policy::new(2);
        policy.started(begin);
        policy.started(begin + WINDOW / 2);
        assert_eq!(policy.pause(begin + WINDOW - Duration::from_secs(1)), None);
        assert_eq!(policy.pause(begin + WINDOW), Some(FIRST_PAUSE), "the first one is over");
        assert_eq!(policy.pause(begin + WINDOW * 2), Some(Duration::ZERO));
    }

    #[test]
    fn a_server_that_somebody_else_has_started_begins_anew() {
        let now = Instant::now();
        let mut policy = Policy::new(1);
        policy.started(now);
        assert_eq!(policy.pause(now), None);
        policy.forget();
        assert_eq!(policy.pause(now), Some(Duration::ZERO));
    }
}
