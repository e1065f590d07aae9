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
//! requests of processes that take turns, where the backend does one after the other: [`Turns`].) If that hangs, nothing waits for it for
//! longer than a second.

use crate::pace::Pace;
use crate::queue::Batch;
use crate::request::{Asked, Kind, Number};
use crate::turns::Turns;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// What is longer gains little by being merged.
const LARGE: u64 = 1 << 20;

/// Each batch changes what was learnt by this part of the difference.
const WEIGHT: f32 = 1.0 / 8.0;

/// The backend is slow where so large a part of the batches is; where it is known that turns pay, it is enough that some are.
const SLOW: f32 = 0.5;
const STILL_SLOW: f32 = 0.05;

/// At most so small a part of a file's batches is merged where holding does not pay.
const LEAST: f32 = 0.25;

/// After so many batches of a file for which nothing was held, it is tried again.
const AGAIN: u32 = 64;

/// Nothing is held for longer.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);

/// Files of which something was learnt and nothing is under way, at most.
const KNOWN: usize = 1024;

type Key = (u64, Kind);

/// A file's reads or its writes.
struct Gathering {
    /// Batches that are being carried out, by the order in which they were issued, and whether they gain by being merged.
    flights: BTreeMap<u64, bool>,
    held: BTreeSet<Number>,
    /// The first batch that what is held does not wait for, and when the first one was held.
    until: u64,
    since: Duration,
    /// Which part of the latest batches was merged.
    merged: f32,
    /// Batches since nothing is held.
    unheld: u32,
    turns: Turns,
}

/// See the module.
pub(crate) struct Gather {
    files: HashMap<Key, Gathering>,
    pace: Pace,
    /// The time of the latest change.
    now: Duration,
    /// When to look whether something was held for too long, if something may be held.
    look: Option<Duration>,
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
        Gather {
            files,
            pace: Pace::default(),
            now: Duration::ZERO,
            look: None,
            count: 0,
            issued,
            merges: true,
        }
    }
}

impl Gather {
    /// Whether requests are merged. What is held no longer, because they are not.
    pub(crate) fn set_merges(&mut self, merges: bool) -> BTreeSet<Number> {
        self.merges = merges;
        let mut released = BTreeSet::new();
        if !merges {
            for file in self.files.values_mut() {
                released.append(&mut file.held);
                released.extend(file.turns.release_all());
            }
        }
        released
    }

    /// A request could be issued. Whether it is held, to be released by [`Gather::done`].
    pub(crate) fn holds(&mut self, number: Number, asked: &Asked) -> bool {
        if !self.merges || !gains(asked) {
            return false;
        }
        let is_serial = self.pace.is_serial(asked.kind);
        let Some(file) = self.files.get_mut(&(asked.file, asked.kind)) else { return false };
        let takes_turns = file.turns.sees(asked);
        let enough = if file.turns.pay() { STILL_SLOW } else { SLOW };
        if takes_turns && is_serial && self.pace.is_slow(enough) && file.has_small_flights() {
            file.turns.hold(number, asked, self.now);
            self.look.get_or_insert(self.now + LONGEST);
            return true;
        }
        if !self.pace.is_slow(SLOW) || file.flights.is_empty() || file.merged <= LEAST {
            return false;
        }
        if file.held.is_empty() {
            (file.until, file.since) = (self.count, self.now);
        }
        self.look.get_or_insert(self.now + LONGEST);
        file.held.insert(number)
    }

    /// When [`Gather::expire`] is to be called, if it has to be.
    pub(crate) fn expires(&self) -> Option<Duration> {
        self.look
    }

    /// What was held for too long and is held no longer.
    pub(crate) fn expire(&mut self, now: Duration) -> BTreeSet<Number> {
        let (mut released, mut first) = (BTreeSet::new(), None::<Duration>);
        for file in self.files.values_mut() {
            if now >= file.since + LONGEST {
                released.append(&mut file.held);
            }
            released.extend(file.turns.expire(now));
            let held = (!file.held.is_empty()).then_some(file.since);
            first = first.into_iter().chain(held).chain(file.turns.since()).min();
        }
        self.look = first.map(|since| since + LONGEST);
        released
    }

    /// A batch is being issued. It may have requests that were held.
    pub(crate) fn issued(&mut self, batch: &Batch, now: Duration) {
        if !self.merges {
            return;
        }
        self.now = now;
        if self.files.len() > KNOWN {
            let is_used = |file: &Gathering| {
                !(file.flights.is_empty() && file.held.is_empty() && file.turns.is_empty())
            };
            self.files.retain(|_, file| is_used(file));
        }
        let new = || Gathering {
            flights: BTreeMap::new(),
            held: BTreeSet::new(),
            until: 0,
            since: Duration::ZERO,
            merged: 1.0,
            unheld: 0,
            turns: Turns::default(),
        };
        let file = self.files.entry((batch.file, batch.kind)).or_insert_with(new);
        let gains = batch.parts.iter().any(|(_, asked)| gains(asked));
        file.flights.insert(self.count, gains);
        for (number, _) in &batch.parts {
            file.held.remove(number);
        }
        let took_turns = file.turns.issued(&batch.parts);
        let was_merged = f32::from(u8::from(batch.parts.len() > 1));
        if took_turns || !gains {
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
        self.now = now;
        let of = (batch.parts.len(), batch.len);
        self.pace.note(batch.kind, of, now.saturating_sub(issued), flights);
        let Some(file) = self.files.get_mut(&(batch.file, batch.kind)) else { return BTreeSet::new() };
        file.flights.remove(&count);
        let mut released = match file.flights.keys().next() {
            Some(oldest) if *oldest < file.until => BTreeSet::new(),
            _ => std::mem::take(&mut file.held),
        };
        released.extend(file.turns.release(!file.has_small_flights(), now));
        released
    }
}

impl Gathering {
    /// Whether something is being carried out that gains by being merged.
    fn has_small_flights(&self) -> bool {
        self.flights.values().any(|gains| *gains)
    }
}

/// Whether a request gains by being merged.
fn gains(asked: &Asked) -> bool {
    asked.merges && asked.len <= LARGE
}
