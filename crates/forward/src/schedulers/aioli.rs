//! aIOLi: files take turns, each with a quantum of bytes that doubles as long as the file's requests fill it.
//!
//! A program that reads or writes a file from its beginning to its end gets longer and longer turns, up to the longest
//! batch; one whose requests are scattered keeps the first, short quantum. Within a turn, requests go in the order of
//! offsets.
//!
//! Lebre, Huard, Denneulin, Sowa, "I/O scheduling service for multi-application clusters", Cluster 2006. Theirs also
//! waits a moment for the request that would continue a run; here, other files use that moment.

use super::files::{Files, Key};
use super::{Choice, Scheduler, Settings};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// When quanta of so many files have grown, those of files that rest are forgotten.
const REMEMBERED: usize = 4096;

/// See the module.
pub(super) struct Aioli {
    files: Files,
    /// Whose turn comes when.
    turns: VecDeque<Key>,
    /// The quanta that have grown.
    quanta: HashMap<Key, u64>,
    first: u64,
    limits: Limits,
}

impl Aioli {
    pub(super) fn new(settings: &Settings) -> Aioli {
        Aioli {
            files: Files::default(),
            turns: VecDeque::new(),
            quanta: HashMap::new(),
            first: settings.quantum.max(1),
            limits: settings.limits,
        }
    }
}

impl Scheduler for Aioli {
    fn ready(&mut self, number: Number, asked: &Asked, _: Duration) {
        if self.files.add(number, asked) {
            self.turns.push_back((asked.file, asked.kind));
        }
    }

    fn choose(&mut self, _: &Queue, _: Duration) -> Choice {
        let Some(key) = self.turns.front() else { return Choice::Nothing };
        let quantum = self.quanta.get(key).copied().unwrap_or(self.first);
        let limits = Limits { bytes: quantum.min(self.limits.bytes), ..self.limits };
        let seed = self.files.get(key).and_then(|lane| lane.next());
        seed.map_or(Choice::Nothing, |seed| Choice::Issue { seed, limits })
    }

    fn issued(&mut self, batch: &Batch, _: Duration) {
        let key = (batch.file, batch.kind);
        let quantum = self.quanta.get(&key).copied().unwrap_or(self.first);
        if 2 * batch.len > quantum {
            self.quanta.insert(key, (2 * quantum).min(self.limits.bytes.max(self.first)));
        } else {
            self.quanta.remove(&key);
        }
        self.turns.retain(|turn| *turn != key);
        if self.files.remove(batch) {
            self.turns.push_back(key);
        }
        if self.quanta.len() > REMEMBERED {
            let files = &self.files;
            self.quanta.retain(|key, _| files.get(key).is_some());
        }
    }
}
