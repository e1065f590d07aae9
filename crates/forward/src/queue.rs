//! The requests that wait, and what may be issued together.
//!
//! Two rules hold whatever a scheduler chooses:
//!
//! - **Order.** The requests of one process to one file form a *stream*. A request is *ready* when it is the first of its
//!   stream and no earlier one is being carried out. So a later request never overtakes an earlier one.
//! - **Merging.** A batch is a run of requests of one file and one kind without overlaps. Its requests may come from any
//!   processes; of each stream it holds the first ones, without gaps. Reads may be joined across a hole that nobody asked for
//!   (data sieving), up to [`Limits::gap`] bytes each.
//!
//! A request that could be ready may be held for a moment, so that neighbours arrive (`gather`).
//!
//! To find neighbours, the queue keeps the waiting requests of each file sorted by offset.

use crate::gather::Gather;
use crate::request::{Asked, Kind, Number};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Most requests in a batch: with a hole before each, they still go into one system call.
pub const MOST: usize = 512;

/// How far neighbours are merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest batch, bytes. A single request may be longer.
    pub bytes: u64,
    /// Longest hole across which two reads are joined, bytes.
    pub gap: u64,
}

impl Limits {
    /// One request at a time.
    pub const ALONE: Limits = Limits { bytes: 0, gap: 0 };
}

/// Requests that are issued as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The file.
    pub file: u64,
    /// Whether it reads or writes.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, with holes.
    pub len: u64,
    /// The requests, ascending by offset.
    pub parts: Vec<(Number, Asked)>,
}

impl Batch {
    /// How much of each request the backend has done that has done the first `bytes` bytes of the batch.
    pub fn shares(&self, bytes: u64) -> impl Iterator<Item = (Number, u64)> {
        self.parts.iter().map(move |(number, asked)| {
            let before = asked.offset - self.offset;
            (*number, bytes.saturating_sub(before).min(asked.len))
        })
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// What was asked for.
    pub asked: Asked,
    /// When it arrived.
    pub since: Duration,
}

/// The requests of one process to one file.
#[derive(Debug, Default)]
struct Stream {
    waiting: VecDeque<Number>,
    /// How many are being carried out.
    issued: usize,
}

/// The requests that wait.
#[derive(Default)]
pub struct Queue {
    next: Number,
    waiting: BTreeMap<Number, Waiting>,
    ready: BTreeSet<Number>,
    streams: HashMap<(u64, u64), Stream>,
    /// For each file and kind: offset and number of each waiting request.
    places: HashMap<(u64, Kind), BTreeSet<(u64, Number)>>,
    bytes: u64,
    gather: Gather,
}

impl Queue {
    /// Whether what is issued is merged at all: otherwise nothing waits for neighbours.
    pub fn set_merges(&mut self, merges: bool) {
        let freed = self.gather.set_merges(merges);
        self.ready.extend(freed);
    }

    /// When [`Queue::expire`] is to be called, if something is held for neighbours that may not come.
    pub fn expires(&self) -> Option<Duration> {
        self.gather.expires()
    }

    /// What was held for too long becomes ready.
    pub fn expire(&mut self, now: Duration) -> Vec<Number> {
        let freed = self.gather.expire(now);
        self.ready.extend(&freed);
        freed.into_iter().collect()
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The bytes that waiting requests read or write.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A request that waits.
    pub fn get(&self, number: Number) -> Option<&Waiting> {
        self.waiting.get(&number)
    }

    /// Whether a request waits and may be issued.
    pub fn is_ready(&self, number: Number) -> bool {
        self.ready.contains(&number)
    }

    /// The requests that may be issued, in the order in which they arrived.
    pub fn ready(&self) -> impl Iterator<Item = (Number, &Waiting)> {
        self.ready.iter().filter_map(|number| Some((*number, self.waiting.get(number)?)))
    }

    /// Takes a request in. Its number.
    pub fn arrive(&mut self, asked: Asked, now: Duration) -> Number {
        let number = self.next;
        self.next += 1;
        self.bytes += asked.len;
        self.waiting.insert(number, Waiting { asked, since: now });
        self.places.entry((asked.file, asked.kind)).or_default().insert((asked.offset, number));
        let stream = self.streams.entry((asked.process, asked.file)).or_default();
        stream.waiting.push_back(number);
        if stream.issued == 0 && stream.waiting.len() == 1 {
            self.admit(number, &asked);
        }
        number
    }

    /// A request is the first of its stream. Whether it is ready.
    fn admit(&mut self, number: Number, asked: &Asked) -> bool {
        let is_ready = !self.gather.holds(number, asked);
        if is_ready {
            self.ready.insert(number);
        }
        is_ready
    }

    /// Takes out a request that is ready, and with it as many neighbours as the limits allow. `None`: it is not ready.
    pub fn issue(&mut self, seed: Number, limits: Limits, now: Duration) -> Option<Batch> {
        if !self.is_ready(seed) {
            return None;
        }
        let batch = self.merge(seed, limits)?;
        for (number, asked) in &batch.parts {
            self.waiting.remove(number);
            self.ready.remove(number);
            self.bytes -= asked.len;
            if let Some(places) = self.places.get_mut(&(asked.file, asked.kind)) {
                places.remove(&(asked.offset, *number));
                if places.is_empty() {
                    self.places.remove(&(asked.file, asked.kind));
                }
            }
            if let Some(stream) = self.streams.get_mut(&(asked.process, asked.file)) {
                stream.waiting.retain(|waiting| waiting != number);
                stream.issued += 1;
            }
        }
        self.gather.issued(&batch, now);
        Some(batch)
    }

    /// The requests of a batch have been carried out. Those that have become ready, in the order in which they arrived.
    pub fn done(&mut self, batch: &Batch, now: Duration) -> Vec<Number> {
        let mut freed = self.gather.done(batch, now);
        self.ready.extend(&freed);
        for (_, asked) in &batch.parts {
            let key = (asked.process, asked.file);
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            stream.issued -= 1;
            match stream.waiting.front() {
                _ if stream.issued > 0 => {}
                Some(next) => {
                    let next = *next;
                    if let Some(asked) = self.waiting.get(&next).map(|waiting| waiting.asked)
                        && self.admit(next, &asked)
                    {
                        freed.insert(next);
                    }
                }
                None => drop(self.streams.remove(&key)),
            }
        }
        freed.into_iter().collect()
    }

    /// The batch around a request that is ready.
    fn merge(&self, seed: Number, limits: Limits) -> Option<Batch> {
        let asked = self.waiting.get(&seed)?.asked;
        let places = self.places.get(&(asked.file, asked.kind))?;
        let gap = if asked.kind == Kind::Read { limits.gap } else { 0 };
        let mut parts = VecDeque::from([(seed, asked)]);
        if !asked.merges {
            let (offset, len) = (asked.offset, asked.len);
            return Some(Batch { file: asked.file, kind: asked.kind, offset, len, parts: parts.into() });
        }
        let (mut begin, mut end) = (asked.offset, asked.end());
        // How many of each stream the batch has.
        let mut taken: HashMap<u64, usize> = HashMap::from([(asked.process, 1)]);
        loop {
            let fits = |from: u64, to: u64| to.saturating_sub(from) <= limits.bytes;
            let mut may_join = |number: Number, asked: &Asked| {
                if !asked.merges || parts.len() >= MOST {
                    return false;
                }
                let count = taken.entry(asked.process).or_default();
                let stream = self.streams.get(&(asked.process, asked.file));
                let is_next = stream.is_some_and(|s| s.issued == 0 && s.waiting.get(*count) == Some(&number));
                *count += usize::from(is_next);
                is_next
            };
            let after = places
                .range((end, 0)..=(end.saturating_add(gap), Number::MAX))
                .filter_map(|(_, number)| Some((*number, self.waiting.get(number)?.asked)))
                .find(|(number, next)| fits(begin, next.end()) && may_join(*number, next));
            if let Some((number, next)) = after {
                end = next.end();
                parts.push_back((number, next));
                continue;
            }
            // The nearest request that begins before ends here, or there is an overlap or a hole.
            let before = places
                .range(..(begin, 0))
                .next_back()
                .and_then(|(_, number)| Some((*number, self.waiting.get(number)?.asked)))
                .filter(|(_, last)| last.end() <= begin && begin - last.end() <= gap)
                .filter(|(number, last)| fits(last.offset, end) && may_join(*number, last));
            let Some((number, last)) = before else { break };
            begin = last.offset;
            parts.push_front((number, last));
        }
        Some(Batch {
            file: asked.file,
            kind: asked.kind,
            offset: begin,
            len: end - begin,
            parts: parts.into(),
        })
    }
}
