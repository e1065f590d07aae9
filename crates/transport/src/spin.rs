//! Busy-waiting for a moment before sleeping.
//!
//! If a peer answers within some microseconds, it is better to busy-wait: waking a sleeper on an idle core
//! takes ten times as long as the answer itself (58 to 70 µs against 4 on virtual machines, whose idle cores
//! the host uses for others). But while a thread busy-waits, no other thread can use its core. So a waiter
//! - yields its core between two looks, and goes to sleep if another thread ran there: then the core is not
//!   idle;
//! - busy-waits only where that has paid lately; elsewhere it tries it again now and then;
//! - sleeps if much data is transferred ([`BULK`]): then the cores have work, and there are few wake-ups for
//!   each byte.
//!
//! A [`Spin`] is what a connection (or a thread of a mount) remembers of its waits; a [`Vigil`] is one wait.

use crate::socket::now;
use std::time::Duration;

/// Longest busy wait: about as long as waking a sleeper takes. A longer wait gains nothing over sleeping; a
/// shorter one would miss answers for which the peer has to ask a third process.
const LIMIT: Duration = Duration::from_micros(80);
/// If yielding the core took longer than this, another thread has used it.
const TAKEN: Duration = Duration::from_micros(4);
/// Payloads from this on are bulk transfers.
pub(crate) const BULK: usize = 16 << 10;
/// The credit of a waiter never exceeds this.
const MOST: i8 = 8;
/// By so much a busy wait that paid raises the credit; one that did not lowers it by 1.
const WORTH: i8 = 2;
/// After so many sleeps, busy-waiting is tried again.
const PAUSE: u8 = 32;

/// What is remembered of waits.
#[derive(Debug)]
pub struct Spin {
    credit: i8,
    asleep: u8,
}

impl Default for Spin {
    /// Nothing is known yet: the first waits are busy waits.
    fn default() -> Spin {
        Spin { credit: MOST / 2, asleep: 0 }
    }
}

impl Spin {
    /// Begins to wait. `None`: sleep at once.
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

    /// How a busy wait ended: with what was waited for, or with going to sleep.
    pub fn ended(&mut self, paid: bool) {
        let change = if paid { WORTH } else { -1 };
        self.credit = (self.credit + change).clamp(0, MOST);
    }
}

/// One busy wait.
pub struct Vigil {
    until: Duration,
    seen: Duration,
}

impl Vigil {
    /// To be called when a look found nothing: yields the core. `false`: it is time to sleep.
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
