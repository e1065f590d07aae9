//! Chooses one of the others by what the queue shows, and again when that changes.
//!
//! What counts is how many jobs and how many files wait together, and whether requests have found neighbours to be merged with.
//! Unless that says otherwise, the oldest request is next: of all policies that was measured fastest or nearly so with every pattern
//! of one job (row 21 of `bench/run`), because the queue merges for all of them alike. Each round of [`ROUND`] batches is judged when
//! it is over; a change needs two rounds in a row that ask for the same, so that a moment's mixture changes nothing.

use super::aioli::Aioli;
use super::fifo::Fifo;
use super::wfq::Wfq;
use super::{Choice, Scheduler, Settings};
use crate::queue::{Batch, Queue};
use crate::request::{Asked, Number};
use std::collections::BTreeSet;
use std::time::Duration;

/// Batches after which what the queue showed is judged.
const ROUND: u32 = 32;
/// At most so many waiting requests are looked at for that.
const LOOK: usize = 64;
/// So many files that wait together are many: more than are served at once.
const MANY: u64 = 32;

/// The schedulers that it chooses from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pick {
    /// The order in which they came, merged.
    Oldest,
    /// More files than are served at once, which are accessed contiguously: turns that grow.
    Turns,
    /// Several jobs: the same share for each.
    Shares,
}

/// What a round has shown.
#[derive(Default)]
struct Seen {
    batches: u32,
    requests: u64,
    /// Jobs and files that waited together, summed over the batches.
    jobs: u64,
    files: u64,
}

impl Seen {
    fn pick(&self) -> Pick {
        let batches = u64::from(self.batches.max(1));
        if self.jobs >= 3 * batches / 2 {
            Pick::Shares
        } else if self.files >= MANY * batches && self.requests >= 2 * batches {
            Pick::Turns
        } else {
            Pick::Oldest
        }
    }
}

/// See the module.
pub(super) struct Auto {
    settings: Settings,
    pick: Pick,
    /// What the latest round asked for.
    asked: Pick,
    chosen: Box<dyn Scheduler>,
    seen: Seen,
}

impl Auto {
    pub(super) fn new(settings: &Settings) -> Auto {
        let pick = Pick::Oldest;
        Auto {
            settings: settings.clone(),
            pick,
            asked: pick,
            chosen: start(pick, settings),
            seen: Seen::default(),
        }
    }

    /// A round is over.
    fn judge(&mut self, queue: &Queue, now: Duration) {
        let before = std::mem::replace(&mut self.asked, std::mem::take(&mut self.seen).pick());
        if self.asked == self.pick || self.asked != before {
            return;
        }
        self.pick = self.asked;
        self.chosen = start(self.pick, &self.settings);
        for (number, waiting) in queue.ready() {
            self.chosen.ready(number, &waiting.asked, now);
        }
    }
}

fn start(pick: Pick, settings: &Settings) -> Box<dyn Scheduler> {
    match pick {
        Pick::Oldest => Box::new(Fifo::new(settings.limits)),
        Pick::Turns => Box::new(Aioli::new(settings)),
        Pick::Shares => Box::new(Wfq::new(settings)),
    }
}

impl Scheduler for Auto {
    fn ready(&mut self, number: Number, asked: &Asked, now: Duration) {
        self.chosen.ready(number, asked, now);
    }

    fn choose(&mut self, queue: &Queue, now: Duration) -> Choice {
        if self.seen.batches >= ROUND {
            self.judge(queue, now);
        }
        let choice = self.chosen.choose(queue, now);
        if !matches!(choice, Choice::Issue { .. }) {
            return choice;
        }
        let (mut jobs, mut files) = (BTreeSet::new(), BTreeSet::new());
        for (_, waiting) in queue.ready().take(LOOK) {
            jobs.insert(waiting.asked.job);
            files.insert(waiting.asked.file);
        }
        self.seen.jobs += jobs.len() as u64;
        self.seen.files += files.len() as u64;
        choice
    }

    fn issued(&mut self, batch: &Batch, now: Duration) {
        self.seen.batches += 1;
        self.seen.requests += batch.parts.len() as u64;
        self.chosen.issued(batch, now);
    }

    fn done(&mut self, batch: &Batch, now: Duration) {
        self.chosen.done(batch, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Kind;

    /// What it picks when so many times requests of so many jobs, for so many files and so long each, have waited.
    fn after(auto: &mut Auto, times: u32, (jobs, files, len): (u64, u64, u64)) -> Pick {
        let mut queue = Queue::default();
        for _ in 0..times {
            for file in 0..files {
                let kind = Kind::Write;
                let (job, process) = (file % jobs, file);
                for part in 0..2 {
                    let asked = Asked { job, process, file, kind, offset: part * len, len, merges: true };
                    let number = queue.arrive(asked, Duration::ZERO);
                    if queue.is_ready(number) {
                        auto.ready(number, &asked, Duration::ZERO);
                    }
                }
            }
            while let Choice::Issue { seed, limits } = auto.choose(&queue, Duration::ZERO) {
                let batch = queue.issue(seed, limits, Duration::ZERO).expect("it is ready");
                auto.issued(&batch, Duration::ZERO);
                auto.done(&batch, Duration::ZERO);
                for number in queue.done(&batch, Duration::ZERO) {
                    let asked = queue.get(number).expect("it waits").asked;
                    auto.ready(number, &asked, Duration::ZERO);
                }
            }
            assert!(queue.is_empty());
        }
        auto.pick
    }

    #[test]
    fn what_waits_decides_and_one_round_does_not() {
        let mut auto = Auto::new(&Settings::default());
        assert_eq!(after(&mut auto, 3 * ROUND, (1, 4, 32 << 10)), Pick::Oldest);
        assert_eq!(after(&mut auto, 3 * ROUND, (2, 8, 32 << 10)), Pick::Shares);
        assert_eq!(after(&mut auto, 3 * ROUND, (1, 256, 16 << 10)), Pick::Turns);
        let mut auto = Auto::new(&Settings::default());
        // Two batches each time.
        assert_eq!(after(&mut auto, ROUND / 2, (2, 2, 16 << 10)), Pick::Oldest, "one round only");
        assert_eq!(after(&mut auto, ROUND / 2, (2, 2, 16 << 10)), Pick::Shares, "two rounds");
    }
}
