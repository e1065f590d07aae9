//! Multi-level feedback: files that need little are served before files that need much.
//!
//! A file begins at the first level, with a short quantum. If its requests fill that, it goes to the next level, whose
//! quantum is twice as long; a level is served while all before it are empty. A file that has rested for long begins anew.
//! Requests that have waited for too long are served first, whatever their level.
//!
//! In AGIOS (see [`super::fifo`]), after the classical policy.

use super::files::{Files, Key};
use super::{Choice, Scheduler, Settings, overdue};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How many levels there are.
const LEVELS: usize = 9;
/// When levels of so many files are remembered, those of files that rest are forgotten.
const REMEMBERED: usize = 4096;

/// See the module.
pub(super) struct Mlf {
    files: Files,
    levels: [VecDeque<Key>; LEVELS],
    /// The level of each file, and when it was served last.
    level_of: HashMap<Key, (usize, Duration)>,
    first: u64,
    limits: Limits,
    patience: Duration,
}

impl Mlf {
    pub(super) fn new(settings: &Settings) -> Mlf {
        Mlf {
            files: Files::default(),
            levels: Default::default(),
            level_of: HashMap::new(),
            first: settings.quantum.max(1),
            limits: settings.limits,
            patience: settings.patience,
        }
    }

    fn quantum(&self, level: usize) -> u64 {
        self.first.saturating_mul(1 << level).min(self.limits.bytes)
    }
}

impl Scheduler for Mlf {
    fn ready(&mut self, number: Number, asked: &Asked, now: Duration) {
        if self.files.add(number, asked) {
            let key = (asked.file, asked.kind);
            let known =
                self.level_of.get(&key).filter(|(_, served)| now.saturating_sub(*served) < self.patience);
            let level = known.map_or(0, |(level, _)| *level);
            self.level_of.insert(key, (level, now));
            self.levels[level].push_back(key);
        }
    }

    fn choose(&mut self, queue: &Queue, now: Duration) -> Choice {
        if let Some(seed) = overdue(queue, now, self.patience) {
            return Choice::Issue { seed, limits: self.limits };
        }
        let first = self.levels.iter().enumerate().find_map(|(level, keys)| Some((level, keys.front()?)));
        let Some((level, key)) = first else { return Choice::Nothing };
        let limits = Limits { bytes: self.quantum(level), ..self.limits };
        let seed = self.files.get(key).and_then(|lane| lane.next());
        seed.map_or(Choice::Nothing, |seed| Choice::Issue { seed, limits })
    }

    fn issued(&mut self, batch: &Batch, now: Duration) {
        let key = (batch.file, batch.kind);
        let level = self.level_of.get(&key).map_or(0, |(level, _)| *level);
        self.levels[level].retain(|other| *other != key);
        let next = if batch.len >= self.quantum(level) { (level + 1).min(LEVELS - 1) } else { level };
        self.level_of.insert(key, (next, now));
        if self.files.remove(batch) {
            self.levels[next].push_back(key);
        }
        if self.level_of.len() > REMEMBERED {
            let (files, patience) = (&self.files, self.patience);
            self.level_of.retain(|key, (_, served)| {
                files.get(key).is_some() || now.saturating_sub(*served) < patience
            });
        }
    }
}
