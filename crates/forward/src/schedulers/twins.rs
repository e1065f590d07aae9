//! TWINS: in each window of time, an I/O node sends requests to one of the backend's servers only.
//!
//! So each server hears of few I/O nodes at once. Which window is whose follows from the time alone, counted from a common
//! start: I/O nodes that begin at different servers stay out of each other's way without talking to each other. While
//! nothing is ready for the window's server, the I/O node waits, even if requests for others are.
//!
//! Bez, Boito, Schnorr, Navaux, Méhaut, "TWINS: server access coordination in the I/O forwarding layer", PDP 2017.

use super::{Choice, Scheduler, Settings};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// See the module.
pub(super) struct Twins {
    /// The ready requests for each server.
    by_server: BTreeMap<u32, BTreeSet<Number>>,
    servers: u32,
    stripe: u64,
    window: Duration,
    limits: Limits,
}

impl Twins {
    pub(super) fn new(settings: &Settings) -> Twins {
        Twins {
            by_server: BTreeMap::new(),
            servers: settings.servers.max(1),
            stripe: settings.stripe.max(1),
            window: settings.window.max(Duration::from_micros(1)),
            limits: settings.limits,
        }
    }

    /// The server that has the first byte of a request, if files are striped over all servers and begin at each of them in turn.
    fn server_of(&self, asked: &Asked) -> u32 {
        (asked.file.wrapping_add(asked.offset / self.stripe) % u64::from(self.servers)) as u32
    }

    /// The number of the window, counted from the start of time.
    fn window_at(&self, now: Duration) -> u128 {
        now.as_nanos() / self.window.as_nanos()
    }

    fn begin_of(&self, window: u128) -> Duration {
        Duration::from_nanos_u128(window.saturating_mul(self.window.as_nanos()))
    }
}

impl Scheduler for Twins {
    fn ready(&mut self, number: Number, asked: &Asked, _: Duration) {
        self.by_server.entry(self.server_of(asked)).or_default().insert(number);
    }

    fn choose(&mut self, _: &Queue, now: Duration) -> Choice {
        let window = self.window_at(now);
        let server_in = |window: u128| (window % u128::from(self.servers)) as u32;
        if let Some(seed) = self.by_server.get(&server_in(window)).and_then(BTreeSet::first) {
            return Choice::Issue { seed: *seed, limits: self.limits };
        }
        let later = (1..u128::from(self.servers)).map(|ahead| window + ahead);
        match later.into_iter().find(|window| self.by_server.contains_key(&server_in(*window))) {
            Some(window) => Choice::Until(self.begin_of(window)),
            None => Choice::Nothing,
        }
    }

    fn issued(&mut self, batch: &Batch, _: Duration) {
        for (number, asked) in &batch.parts {
            let server = self.server_of(asked);
            if let Some(ready) = self.by_server.get_mut(&server) {
                ready.remove(number);
                if ready.is_empty() {
                    self.by_server.remove(&server);
                }
            }
        }
    }
}
