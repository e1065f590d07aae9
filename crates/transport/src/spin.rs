//! Waiting awake, for a moment, before waiting asleep.
//!
//! A peer that answers within some microseconds is worth waiting for awake: waking a sleeper on an idle core
//! takes ten times as long as the answer itself (58 to 70 µs against 4 on virtual machines, where an idle
//! core belongs to somebody else). But a core that waits awake is missed by whoever could use it. So a waiter
//! - gives its core away between two looks, and goes to sleep when somebody took it: then the core is not
//!   idle;
//! - waits awake only where that has paid lately, and tries again now and then elsewhere;
//! - sleeps where much is transferred ([`BULK`]): there the cores have work, and wake-ups are few for the
//!   bytes.
//!
//! [`Spin`] is what a connection (or a thread of a mount) remembers of that; a [`Vigil`] is one wait.

use crate::socket::now;
use std::time::Duration;

/// Longest wait awake: about what waking a sleeper costs. Who waits longer could as well have slept; who
/// gives up sooner sleeps through what takes another hop.
const LIMIT: Duration = Duration::from_micros(80);
/// A core that comes back later than this was used by somebody else.
const TAKEN: Duration = Duration::from_micros(4);
/// Payloads from this on are bulk transfers.
pub(crate) const BULK: usize = 16 << 10;
/// Most that a waiter may have to its credit.
const MOST: i8 = 8;
/// A wait awake that paid counts for so many that did not.
const WORTH: i8 = 2;
/// How many waits asleep until waiting awake is tried again.
const PAUSE: u8 = 32;

/// What is remembered of waits.
#[derive(Debug)]
pub struct Spin {
    credit: i8,
    asleep: u8,
}

impl Default for Spin {
    /// Nothing is known yet: the first waits are awake.
    fn default() -> Spin {
        Spin { credit: MOST / 2, asleep: 0 }
    }
}

impl Spin {
    /// Begins to wait; `None`: asleep at once.
    pub fn begin(&mut self) -> Option<Vigil> {
        if self.credit <= 0 {
            self.asleep += 1;
            if self.asleep < PAUSE {
                return None;
            }
            self.asleep = 0;
        }
        let now = now();
        Some(Vigil { until: now.saturating_add(LIMIT), seen: now })
    }

    /// How a wait awake ended: with what was waited for, or in sleep.
    pub fn ended(&mut self, paid: bool) {
        let change = if paid { WORTH } else { -1 };
        self.credit = (self.credit + change).clamp(0, MOST);
    }
}

/// One wait.
pub struct Vigil {
    until: Duration,
    seen: Duration,
}

impl Vigil {
    /// After a look in vain: lets others have the core. `false`: it is time to sleep.
    pub fn goes_on(&mut self) -> bool {
        rustix::thread::sched_yield();
        let now = now();
        let taken = now.saturating_sub(std::mem::replace(&mut self.seen, now)) > TAKEN;
        !taken && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_never_pay_end_in_sleep_with_a_try_now_and_then() {
        let mut spin = Spin::default();
        let mut awake = 0;
        for _ in 0..1000 {
            if spin.begin().is_some() {
                awake += 1;
                spin.ended(false);
            }
        }
        let tries = 1000 / i32::from(PAUSE);
        assert!((tries..=tries + i32::from(MOST)).contains(&awake), "{awake} of 1000");
    }

    #[test]
    fn one_of_three_that_pays_keeps_it_awake() {
        let mut spin = Spin::default();
        for i in 0..1000 {
            assert!(spin.begin().is_some(), "wait {i}");
            spin.ended(i % 3 == 0);
        }
    }

    #[test]
    fn a_wait_awake_is_short() {
        let start = now();
        let mut spin = Spin::default();
        let mut vigil = spin.begin().expect("awake at first");
        while vigil.goes_on() {}
        // Less than a socket's silence, also on a busy machine.
        assert!(now().saturating_sub(start) < bivouac_testing::HANG);
    }
}
