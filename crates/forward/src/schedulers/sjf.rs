//! Shortest job first: of all files, the one for which the fewest bytes are ready is served first, in the order of
//! offsets. Requests that have waited for too long go before that, or a large file would wait for ever while small
//! ones keep coming.
//!
//! In AGIOS (see [`super::fifo`]), after the classical policy.

use super::files::Files;
use super::{Choice, Scheduler, Settings, overdue};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::time::Duration;

/// See the module.
pub(super) struct Sjf {
    files: Files,
    limits: Limits,
    patience: Duration,
}

impl Sjf {
    pub(super) fn new(settings: &Settings) -> Sjf {
        Sjf { files: Files::default(), limits: settings.limits, patience: settings.patience }
    }
}

impl Scheduler for Sjf {
    fn ready(&mut self, number: Number, asked: &Asked, _: Duration) {
        self.files.add(number, asked);
    }

    fn choose(&mut self, queue: &Queue, now: Duration) -> Choice {
        let shortest =
            || self.files.all().min_by_key(|(_, lane)| lane.bytes()).and_then(|(_, lane)| lane.next());
        let seed = overdue(queue, now, self.patience).or_else(shortest);
        seed.map_or(Choice::Nothing, |seed| Choice::Issue { seed, limits: self.limits })
    }

    fn issued(&mut self, batch: &Batch, _: Duration) {
        self.files.remove(batch);
    }
}
