//! Weighted fair queueing: jobs that ask all the time get bytes in the proportion of their weights.
//!
//! Each request gets a start tag in virtual time: the current one, or the time at which its job's earlier requests end if
//! that is later. The request with the lowest tag goes next, and virtual time advances to that tag. A request of
//! `len` bytes takes `len / weight` of its job's virtual time. A job that has rested gains nothing by it.
//!
//! Start-time fair queueing: Goyal, Vin, Cheng, IEEE/ACM Transactions on Networking 5(5), 1997; in AGIOS (see
//! [`super::fifo`]) as WFQ.

use super::{Choice, Scheduler, Settings};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Virtual time that a byte takes with weight 1. Larger than 1, so that weights divide it finely.
const BYTE: u64 = 1 << 10;

/// See the module.
pub(super) struct Wfq {
    /// The ready requests by start tag.
    by_tag: BTreeSet<(u64, Number)>,
    tags: HashMap<Number, u64>,
    /// When each job's requests end, in virtual time.
    ends: HashMap<u64, u64>,
    now: u64,
    weights: BTreeMap<u64, u32>,
    limits: Limits,
}

impl Wfq {
    pub(super) fn new(settings: &Settings) -> Wfq {
        Wfq {
            by_tag: BTreeSet::new(),
            tags: HashMap::new(),
            ends: HashMap::new(),
            now: 0,
            weights: settings.weights.clone(),
            limits: settings.limits,
        }
    }

    /// The start tag of a job's next request, which this is.
    fn tag(&mut self, asked: &Asked) -> u64 {
        let weight = u64::from(self.weights.get(&asked.job).copied().unwrap_or(1).max(1));
        let end = self.ends.entry(asked.job).or_insert(0);
        let tag = self.now.max(*end);
        *end = tag.saturating_add(asked.len.saturating_mul(BYTE) / weight);
        tag
    }
}

impl Scheduler for Wfq {
    fn ready(&mut self, number: Number, asked: &Asked, _: Duration) {
        let tag = self.tag(asked);
        self.by_tag.insert((tag, number));
        self.tags.insert(number, tag);
    }

    fn choose(&mut self, _: &Queue, _: Duration) -> Choice {
        match self.by_tag.first() {
            Some((tag, seed)) => {
                self.now = self.now.max(*tag);
                Choice::Issue { seed: *seed, limits: self.limits }
            }
            None => {
                // A job that asks again later starts from the current time, like all others.
                self.ends.clear();
                Choice::Nothing
            }
        }
    }

    fn issued(&mut self, batch: &Batch, _: Duration) {
        for (number, asked) in &batch.parts {
            if let Some(tag) = self.tags.remove(number) {
                self.by_tag.remove(&(tag, *number));
            } else {
                // It was merged before it was ready, and counts all the same.
                self.tag(asked);
            }
        }
    }
}
