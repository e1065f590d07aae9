//! First in, first out; and time order with merging by offset (*TO*), which takes the oldest request, too, and merges
//! its neighbours into it.
//!
//! Both are in AGIOS: Boito, Kassick, Navaux, Denneulin, "AGIOS: Application-guided I/O scheduling for parallel file systems",
//! ICPADS 2013.

use super::{Choice, Scheduler};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::time::Duration;

/// See the module.
pub(super) struct Fifo {
    limits: Limits,
}

impl Fifo {
    pub(super) fn new(limits: Limits) -> Fifo {
        Fifo { limits }
    }
}

impl Scheduler for Fifo {
    fn ready(&mut self, _: Number, _: &Asked, _: Duration) {}

    fn choose(&mut self, queue: &Queue, _: Duration) -> Choice {
        let first = queue.ready().next();
        first.map_or(Choice::Nothing, |(seed, _)| Choice::Issue { seed, limits: self.limits })
    }

    fn issued(&mut self, _: &Batch, _: Duration) {}

    fn merges(&self) -> bool {
        self.limits != Limits::ALONE
    }
}
