//! Requests that wait for others to come, so that they are issued together.
//!
//! A request that arrives while others of its file are being carried out is *held*: it becomes ready when these are done (not those
//! that are issued later). By then,
//! neighbours of it may have arrived, and the queue merges them. So the processes that write a file in turns, each a small piece, are
//! led into rounds, and each round is a few large requests. (MPI-IO's collective buffering does the same for programs that say so:
//! Thakur, Gropp, Lusk, "Data Sieving and Collective I/O in ROMIO", 1999.)
//!
//! To wait pays where a request takes the backend long whatever its size, and where neighbours do come. Both are learnt: nothing is
//! held while the backend is about as fast as memory, nor for a file whose held requests found no neighbours. Nothing
//! is ever held while nothing of its file is being carried out, and never for longer than what was under way then takes. (But for the
//! requests of processes that take turns, where the backend does one after the other: [`Turns`].)

use crate::queue::Batch;
use crate::request::{Asked, Kind, Number};
use crate::turns::Turns;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// What is longer gains little by being merged.
const LARGE: u64 = 1 << 20;

/// What a batch takes at most at a backend that is as fast as memory: so much, and for each byte a nanosecond.
const QUICK: Duration = Duration::from_micros(150);

/// Each batch changes what was learnt by this part of the difference.
const WEIGHT: f32 = 1.0 / 8.0;

/// The backend is slow where so large a part of the batches is; where it is known that turns pay, it is enough that some are.
const SLOW: f32 = 0.5;
const STILL_SLOW: f32 = 0.05;

/// At most so small a part of a file's batches is merged where holding does not pay.
const LEAST: f32 = 0.25;

/// After so many batches of a file for which nothing was held, it is tried again.
const AGAIN: u32 = 64;

/// With so many batches at once it shows whether the backend does them at once.
const MANY: usize = 6;

/// What a batch takes that is alone is as short as the shortest one, and becomes longer by this part of what others take more.
const RISE: f32 = 1.0 / 32.0;
/// No batch is shorter; seconds.
const MOMENT: f32 = 1e-6;

/// Files of which something was learnt and nothing is under way, at most.
const KNOWN: usize = 1024;

type Key = (u64, Kind);

/// A file's reads or its writes.
struct Gathering {
    /// Batches that are being carried out, by the order in which they were issued.
    flights: BTreeSet<u64>,
    held: BTreeSet<Number>,
    /// The first batch that what is held does not wait for.
    until: u64,
    /// Which part of the latest batches was merged.
    merged: f32,
    /// Batches since nothing is held.
    unheld: u32,
    turns: Turns,
}

/// See the module.
pub(crate) struct Gather {
    files: HashMap<Key, Gathering>,
    /// Which part of the latest batches was slow.
    slow: f32,
    /// What a batch takes that is alone, and what it takes for each of those that are under way when there are many; seconds.
    alone: f32,
    among: f32,
    /// How many batches were issued.
    count: u64,
    /// When each batch was issued, as which, and how many were under way then, by its first request.
    issued: HashMap<Number, (Duration, u64, usize)>,
    /// Whether what is scheduled is merged at all.
    merges: bool,
}

impl Default for Gather {
    fn default() -> Gather {
        let (files, issued) = (HashMap::new(), HashMap::new());
        Gather { files, slow: 0.0, alone: 0.0, among: 0.0, count: 0, issued, merges: true }
    }
}

impl Gather {
    /// Whether requests are merged.
    pub(crate) fn set_merges(&mut self, merges: bool) {
        self.merges = merges;
    }

    /// A request could be issued. Whether it is held, to be released by [`Gather::done`].
    pub(crate) fn holds(&mut self, number: Number, asked: &Asked) -> bool {
        if !self.merges || !gains(asked) {
            return false;
        }
        let is_serial = self.is_serial();
        let Some(file) = self.files.get_mut(&(asked.file, asked.kind)) else { return false };
        let takes_turns = file.turns.sees(asked);
        let enough = if file.turns.pay() { STILL_SLOW } else { SLOW };
        if takes_turns && is_serial && self.slow >= enough && !file.flights.is_empty() {
            file.turns.hold(number, asked, self.count);
            return true;
        }
        if self.slow < SLOW || file.flights.is_empty() || file.merged <= LEAST {
            return false;
        }
        if file.held.is_empty() {
            file.until = self.count;
        }
        file.held.insert(number)
    }

    /// Whether batches take the backend as long together as one after the other, or nearly so.
    fn is_serial(&self) -> bool {
        self.alone > 0.0 && self.among >= self.alone / 2.0
    }

    /// A batch is being issued. It may have requests that were held.
    pub(crate) fn issued(&mut self, batch: &Batch, now: Duration) {
        if !self.merges {
            return;
        }
        if self.files.len() > KNOWN {
            let is_used = |file: &Gathering| {
                !(file.flights.is_empty() && file.held.is_empty() && file.turns.is_empty())
            };
            self.files.retain(|_, file| is_used(file));
        }
        let new = || Gathering {
            flights: BTreeSet::new(),
            held: BTreeSet::new(),
            until: 0,
            merged: 1.0,
            unheld: 0,
            turns: Turns::default(),
        };
        let file = self.files.entry((batch.file, batch.kind)).or_insert_with(new);
        file.flights.insert(self.count);
        for (number, _) in &batch.parts {
            file.held.remove(number);
        }
        let took_turns = file.turns.issued(&batch.parts);
        let was_merged = f32::from(u8::from(batch.parts.len() > 1));
        if took_turns || !batch.parts.iter().any(|(_, asked)| gains(asked)) {
            // It says nothing of those that might be held.
        } else if file.merged > LEAST {
            file.merged += (was_merged - file.merged) * WEIGHT;
            file.unheld = 0;
        } else if was_merged > 0.0 || file.unheld >= AGAIN {
            file.merged = 2.0 * LEAST;
        } else {
            file.unheld += 1;
        }
        if let Some((first, _)) = batch.parts.first() {
            self.issued.insert(*first, (now, self.count, self.issued.len() + 1));
        }
        self.count += 1;
    }

    /// A batch has been carried out. What is held no longer, in the order in which it arrived.
    pub(crate) fn done(&mut self, batch: &Batch, now: Duration) -> BTreeSet<Number> {
        let known = batch.parts.first().and_then(|(first, _)| self.issued.remove(first));
        let Some((issued, count, flights)) = known else { return BTreeSet::new() };
        let took = now.saturating_sub(issued);
        let was_slow = f32::from(u8::from(took > QUICK + Duration::from_nanos(batch.len)));
        self.slow += (was_slow - self.slow) * WEIGHT;
        if batch.len <= LARGE {
            self.learn(took, flights);
        }
        let Some(file) = self.files.get_mut(&(batch.file, batch.kind)) else { return BTreeSet::new() };
        file.flights.remove(&count);
        let mut released = match file.flights.first() {
            Some(oldest) if *oldest < file.until => BTreeSet::new(),
            _ => std::mem::take(&mut file.held),
        };
        released.extend(file.turns.release(file.flights.is_empty(), self.count));
        released
    }

    /// A batch has taken so long with so many under way when it was issued, itself among them.
    fn learn(&mut self, took: Duration, flights: usize) {
        let took = took.as_secs_f32();
        match flights {
            // Disks that are limited do much at once and then nothing for a while, so single long ones say little.
            1 if self.alone == 0.0 || took < self.alone => self.alone = took.max(MOMENT),
            1 => self.alone += (took.min(2.0 * self.alone) - self.alone) * RISE,
            MANY.. => self.among += (took / flights as f32 - self.among) * WEIGHT,
            _ => {}
        }
    }
}

/// Whether a request gains by being merged.
fn gains(asked: &Asked) -> bool {
    asked.merges && asked.len <= LARGE
}
