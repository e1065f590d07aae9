//! Windows for each job: for some time, only one job's requests are issued, so that jobs do not disturb each other's
//! access patterns.
//!
//! A window ends when its time is over, and earlier when its job has asked for nothing during a quarter of it: a program
//! that asks again as soon as it is answered keeps its window. Jobs take turns.
//!
//! In AGIOS (see [`super::fifo`]), where it is called SW.

use super::{Choice, Scheduler, Settings};
use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The job whose window it is.
struct Window {
    job: u64,
    end: Duration,
    /// When the job asked last, or was answered.
    active: Duration,
    /// Its requests that are being carried out.
    issued: u64,
}

/// See the module.
pub(super) struct Sw {
    /// The ready requests of each job.
    by_job: BTreeMap<u64, BTreeSet<Number>>,
    window: Option<Window>,
    length: Duration,
    limits: Limits,
}

impl Sw {
    pub(super) fn new(settings: &Settings) -> Sw {
        Sw { by_job: BTreeMap::new(), window: None, length: settings.window, limits: settings.limits }
    }

    /// When the window ends, if nothing happens until then.
    fn end_of(&self, window: &Window) -> Duration {
        match window.issued {
            0 => window.end.min(window.active + self.length / 4),
            _ => window.end,
        }
    }
}

impl Scheduler for Sw {
    fn ready(&mut self, number: Number, asked: &Asked, now: Duration) {
        self.by_job.entry(asked.job).or_default().insert(number);
        if let Some(window) = self.window.as_mut().filter(|window| window.job == asked.job) {
            window.active = now;
        }
    }

    fn choose(&mut self, _: &Queue, now: Duration) -> Choice {
        if let Some(window) = &self.window {
            let has_some = now < window.end && self.by_job.contains_key(&window.job);
            let end = self.end_of(window);
            if !has_some && now < end && !self.by_job.is_empty() {
                return Choice::Until(end);
            }
            if !has_some && now < end {
                return Choice::Nothing;
            }
            if !has_some {
                let after = self
                    .by_job
                    .range(window.job.saturating_add(1)..)
                    .next()
                    .or(self.by_job.first_key_value());
                self.window = after.map(|(job, _)| Window {
                    job: *job,
                    end: now + self.length,
                    active: now,
                    issued: 0,
                });
            }
        } else if let Some((job, _)) = self.by_job.first_key_value() {
            self.window = Some(Window { job: *job, end: now + self.length, active: now, issued: 0 });
        }
        let ready = self.window.as_ref().and_then(|window| self.by_job.get(&window.job));
        match ready.and_then(BTreeSet::first) {
            Some(seed) => Choice::Issue { seed: *seed, limits: self.limits },
            None => Choice::Nothing,
        }
    }

    fn issued(&mut self, batch: &Batch, _: Duration) {
        for (number, asked) in &batch.parts {
            if let Some(window) = self.window.as_mut().filter(|window| window.job == asked.job) {
                window.issued += 1;
            }
            if let Some(ready) = self.by_job.get_mut(&asked.job) {
                ready.remove(number);
                if ready.is_empty() {
                    self.by_job.remove(&asked.job);
                }
            }
        }
    }

    fn done(&mut self, batch: &Batch, now: Duration) {
        let Some(window) = &mut self.window else { return };
        let theirs = batch.parts.iter().filter(|(_, asked)| asked.job == window.job).count() as u64;
        if theirs > 0 {
            // Some may have been issued in an earlier window of the same job.
            window.issued = window.issued.saturating_sub(theirs);
            window.active = now;
        }
    }
}
