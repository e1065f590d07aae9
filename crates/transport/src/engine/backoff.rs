//! The pauses between attempts at a request, and the end of its patience.

use super::Budget;
use crate::socket::{now, timespec};
use std::time::Duration;

/// Waits between attempts: short at first, then longer.
pub(super) struct Backoff {
    patience: Duration,
    /// When the first wait began: nothing is timed while all goes well.
    begun: Option<Duration>,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(budget: &Budget) -> Backoff {
        Backoff { patience: budget.patience, begun: None, next: budget.first_pause }
    }

    /// Whether it has waited before.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Waits, for no longer than `longest`; false when patience is over.
    pub(super) fn wait(&mut self, longest: Duration) -> bool {
        let now = now();
        let begun = *self.begun.get_or_insert(now);
        if now.saturating_sub(begun) > self.patience {
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
        backoff.begun = now().checked_sub(Budget::CLIENT.patience + Duration::from_secs(1));
        assert!(backoff.begun.is_none() || !backoff.wait(LONGEST));
    }

    #[test]
    fn a_pause_is_no_longer_than_the_caller_says() {
        let mut backoff = Backoff::new(&Budget { first_pause: LONGEST * 100, ..Budget::SERVER });
        let begun = now();
        assert!(backoff.wait(Duration::from_millis(1)));
        assert!(now() - begun < LONGEST * 50);
    }
}
