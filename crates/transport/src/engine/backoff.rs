//! The pauses between attempts at a request, and the end of its patience.

use super::Budget;
use crate::socket::{now, timespec};
use std::time::Duration;

/// Longest time that an attempt counts for. One that took longer was not made all the time: its process was stopped, and
/// has to find out first what has happened meanwhile.
const ATTEMPT: Duration = Duration::from_secs(4);

/// Waits between attempts: short at first, then longer.
pub(super) struct Backoff {
    patience: Duration,
    /// How much of it is spent.
    spent: Duration,
    /// When the latest wait began: nothing is timed while all goes well.
    latest: Option<Duration>,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(budget: &Budget) -> Backoff {
        Backoff { patience: budget.patience, spent: Duration::ZERO, latest: None, next: budget.first_pause }
    }

    /// Whether it has waited before.
    pub(super) fn has_begun(&self) -> bool {
        self.latest.is_some()
    }

    /// Waits, for no longer than `longest`; false when patience is over.
    pub(super) fn wait(&mut self, longest: Duration) -> bool {
        let now = now();
        let since = self.latest.replace(now).map_or(Duration::ZERO, |latest| now.saturating_sub(latest));
        self.spent += since.min(ATTEMPT);
        if self.spent > self.patience {
            return false;
        }
        // A raw system call: inside a program, libc's function may be one of ours.
        let _ = rustix::thread::nanosleep(&timespec(self.next.min(longest)));
        self.next = (self.next * 2).min(Budget::LONGEST_PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Budget::LONGEST_PAUSE;

    #[test]
    fn patience_ends_and_pauses_stay_short() {
        let mut backoff = Backoff::new(&Budget::CLIENT);
        assert!(!backoff.has_begun() && backoff.wait(LONGEST) && backoff.has_begun());
        assert_eq!(backoff.next, Duration::from_micros(100));
        backoff.next = Duration::from_millis(90);
        assert!(backoff.wait(LONGEST));
        assert_eq!(backoff.next, Duration::from_millis(100));
        backoff.spent = Budget::CLIENT.patience + Duration::from_millis(1);
        assert!(!backoff.wait(LONGEST));
    }

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let mut backoff = Backoff::new(&Budget::SERVER);
        assert!(backoff.wait(LONGEST));
        backoff.latest = backoff.latest.and_then(|latest| latest.checked_sub(Budget::SERVER.patience * 3));
        assert!(backoff.wait(LONGEST) && backoff.spent < Budget::SERVER.patience);
    }

    #[test]
    fn a_pause_is_no_longer_than_the_caller_says() {
        let mut backoff = Backoff::new(&Budget { first_pause: LONGEST * 100, ..Budget::SERVER });
        let begun = now();
        assert!(backoff.wait(Duration::from_millis(1)));
        assert!(now() - begun < LONGEST * 50);
    }
}
