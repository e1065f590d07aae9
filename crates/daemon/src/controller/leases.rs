//! The leases of servers, as the controller grants them ([`crate::lease`] is the servers' side).
//!
//! A server gets a lease with a ping, from the moment in which it answered an earlier one. The controller grants it only
//! if most voters have confirmed after that answer that it leads. So a controller that was replaced without knowing it
//! has granted no lease that began after its successor was elected; and the successor takes every server for one that has
//! got a lease in that moment. Nobody replaces a server that may have a lease.
//!
//! A server that was replaced gets the next lease when it has the map that says so: by an older map it would answer for
//! what others have now.

use bivouac_proto::control::Grant;
use std::time::{Duration, Instant};

/// The leases of one server.
pub(super) struct Leasing {
    length: Duration,
    /// What the server's clock showed in its last answer, and when that arrived.
    answer: Option<(u64, Instant)>,
    /// The server may have a lease until then.
    until: Instant,
    /// This controller has granted it one that lasts until then.
    granted: Option<Instant>,
}

impl Leasing {
    /// Of a controller that begins now.
    pub(super) fn new(length: Duration, now: Instant) -> Leasing {
        Leasing { length, answer: None, until: now + length, granted: None }
    }

    /// The server has answered, and its clock has shown this.
    pub(super) fn heard(&mut self, clock: u64, now: Instant) {
        self.answer = Some((clock, now));
    }

    /// What answers next may be another process, with another clock.
    pub(super) fn forget(&mut self) {
        (self.answer, self.granted) = (None, None);
    }

    /// The lease that the next ping brings. `confirmed`: the beginning of the latest exchange in which most voters have
    /// confirmed that this controller leads.
    pub(super) fn next(&mut self, confirmed: Option<Instant>) -> Option<Grant> {
        let (from, arrived) = self.answer?;
        if confirmed.is_none_or(|confirmed| confirmed < arrived) {
            return None;
        }
        // Before it is sent: it may arrive although nobody hears of that.
        self.until = self.until.max(arrived + self.length);
        self.granted = Some(arrived + self.length);
        Some(Grant { from, millis: self.length.as_millis() as u32 })
    }

    /// Whether this controller has granted one that has not run out.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.granted.is_some_and(|until| now < until)
    }

    /// Whether the server certainly has no lease any more. (Clocks do not go at quite the same speed.)
    pub(super) fn has_run_out(&self, now: Instant) -> bool {
        now >= self.until + self.length / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(2);

    #[test]
    fn a_lease_begins_with_an_answer_that_came_before_the_voters_have_confirmed() {
        let begun = Instant::now();
        let at = |millis: u64| begun + Duration::from_millis(millis);
        let mut leasing = Leasing::new(LENGTH, begun);
        assert_eq!(leasing.next(Some(at(10))), None, "nothing was heard");
        leasing.heard(7, at(100));
        assert_eq!(leasing.next(None), None);
        assert_eq!(leasing.next(Some(at(99))), None, "it may have been replaced since");
        assert!(!leasing.has_run_out(at(2000)) && leasing.has_run_out(at(2020)));
        assert!(!leasing.holds(at(100)));
        assert_eq!(leasing.next(Some(at(100))), Some(Grant { from: 7, millis: 2000 }));
        assert!(leasing.holds(at(2000)) && !leasing.holds(at(2100)));
        assert!(!leasing.has_run_out(at(2100)) && leasing.has_run_out(at(2120)));
        leasing.forget();
        assert_eq!(leasing.next(Some(at(500))), None, "another clock");
        assert!(!leasing.has_run_out(at(2100)), "what was granted counts");
    }
}
