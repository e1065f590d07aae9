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
//! is ever held while nothing of its file is being carried out, and never for longer than what was under way then takes.

use crate::queue::Batch;
use crate::request::{Asked, Kind, Number};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// What is longer gains little by being merged.
const LARGE: u64 = 1 << 20;

/// What a batch takes at most at a backend that is as fast as memory: so much, and for each byte a nanosecond.
const QUICK: Duration = Duration::from_micros(150);

/// Each batch changes what was learnt by this part of the difference.
const WEIGHT: f32 = 1.0 / 8.0;

/// At most so small a part of a file's batches is merged where holding does not pay.
const LEAST: f32 = 0.25;

/// After so many batches of a file for which nothing was held, it is tried again.
const AGAIN: u32 = 64;

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
}

/// See the module.
pub(crate) struct Gather {
    files: HashMap<Key, Gathering>,
    /// Which part of the latest batches was slow.
    slow: f32,
    /// How many batches were issued.
    count: u64,
    /// When each batch was issued, and as which, by its first request.
    issued: HashMap<Number, (Duration, u64)>,
    /// Whether what is scheduled is merged at all.
    merges: bool,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather { files: HashMap::new(), slow: 0.0, count: 0, issued: HashMap::new(), merges: true }
    }
}

impl Gather {
    /// Whether requests are merged.
    pub(crate) fn set_merges(&mut self, merges: bool) {
        self.merges = merges;
    }

    /// A request could be issued. Whether it is held, to be released by [`Gather::done`].
    pub(crate) fn holds(&mut self, number: Number, asked: &Asked) -> bool {
        if !self.merges || self.slow < 0.5 || !gains(asked) {
            return false;
        }
        let Some(file) = self.files.get_mut(&(asked.file, asked.kind)) else { return false };
        if file.flights.is_empty() || file.merged <= LEAST {
            return false;
        }
        if file.held.is_empty() {
            file.until = self.count;
        }
        file.held.insert(number)
    }

    /// A batch is being issued. It may have requests that were held.
    pub(crate) fn issued(&mut self, batch: &Batch, now: Duration) {
        if !self.merges {
            return;
        }
        if self.files.len() > KNOWN {
            self.files.retain(|_, file| !file.flights.is_empty() || !file.held.is_empty());
        }
        let new = || Gathering {
            flights: BTreeSet::new(),
            held: BTreeSet::new(),
            until: 0,
            merged: 1.0,
            unheld: 0,
        };
        let file = self.files.entry((batch.file, batch.kind)).or_insert_with(new);
        file.flights.insert(self.count);
        for (number, _) in &batch.parts {
            file.held.remove(number);
        }
        let was_merged = f32::from(u8::from(batch.parts.len() > 1));
        if !batch.parts.iter().any(|(_, asked)| gains(asked)) {
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
            self.issued.insert(*first, (now, self.count));
        }
        self.count += 1;
    }

    /// A batch has been carried out. What is held no longer, in the order in which it arrived.
    pub(crate) fn done(&mut self, batch: &Batch, now: Duration) -> BTreeSet<Number> {
        let known = batch.parts.first().and_then(|(first, _)| self.issued.remove(first));
        let Some((issued, count)) = known else { return BTreeSet::new() };
        let took = now.saturating_sub(issued);
        let was_slow = f32::from(u8::from(took > QUICK + Duration::from_nanos(batch.len)));
        self.slow += (was_slow - self.slow) * WEIGHT;
        let Some(file) = self.files.get_mut(&(batch.file, batch.kind)) else { return BTreeSet::new() };
        file.flights.remove(&count);
        match file.flights.first() {
            Some(oldest) if *oldest < file.until => BTreeSet::new(),
            _ => std::mem::take(&mut file.held),
        }
    }
}

/// Whether a request gains by being merged.
fn gains(asked: &Asked) -> bool {
    asked.merges && asked.len <= LARGE
}
