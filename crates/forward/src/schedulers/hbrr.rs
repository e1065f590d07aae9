//! Handle-based round robin: open files take turns, each with a number of requests, which are merged in the order of
//! offsets.
//!
//! Ohta, Kimpe, Cope, Iskra, Ross, Ishikawa, "Optimization techniques at the I/O forwarding layer", Cluster 2010.

use super::files::{Files, Key};
use super::{Choice, Scheduler, Settings};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::VecDeque;
use std::time::Duration;

/// See the module.
pub(super) struct Hbrr {
    files: Files,
    turns: VecDeque<Key>,
    /// How many requests the first file may still have issued in its turn.
    left: u32,
    each: u32,
    limits: Limits,
}

impl Hbrr {
    pub(super) fn new(settings: &Settings) -> Hbrr {
        let each = settings.turns.max(1);
        Hbrr { files: Files::default(), turns: VecDeque::new(), left: each, each, limits: settings.limits }
    }
}

impl Scheduler for Hbrr {
    fn ready(&mut self, number: Number, asked: &Asked, _: Duration) {
        if self.files.add(number, asked) {
            self.turns.push_back((asked.file, asked.kind));
        }
    }

    fn choose(&mut self, _: &Queue, _: Duration) -> Choice {
        let seed = self.turns.front().and_then(|key| self.files.get(key)).and_then(|lane| lane.next());
        seed.map_or(Choice::Nothing, |seed| Choice::Issue { seed, limits: self.limits })
    }

    fn issued(&mut self, batch: &Batch, _: Duration) {
        let key = (batch.file, batch.kind);
        let has_more = self.files.remove(batch);
        let is_first = self.turns.front() == Some(&key);
        if is_first {
            self.left = self.left.saturating_sub(batch.parts.len().try_into().unwrap_or(u32::MAX));
        }
        if has_more && !(is_first && self.left == 0) {
            return;
        }
        self.turns.retain(|turn| *turn != key);
        if has_more {
            self.turns.push_back(key);
        }
        if is_first {
            self.left = self.each;
        }
    }
}
