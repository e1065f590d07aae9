//! Processes that take turns in a file.
//!
//! Each of them reads or writes one piece of every stripe (the papers' 1D-strided pattern), so the neighbours of its requests are
//! other processes'. They can be merged while all processes are at about the same stripe. They do not stay there by themselves: where
//! each request takes the backend its time, who is a little ahead has no neighbours, and stays ahead. So where the backend does no more at
//! once than one after the other, who is ahead waits: the first in the file is issued next, with the neighbours that have come. After
//! some requests of those who are behind, a stripe is one request.

use crate::gather::LONGEST;
use crate::request::{Asked, Number};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The latest requests count by this part.
const WEIGHT: f32 = 1.0 / 16.0;
/// So large a part of the requests has to be turns.
const MOSTLY: f32 = 0.75;
/// Processes of a file that are told apart.
const PROCESSES: usize = 1024;
/// After so many requests it is looked for processes that have asked for nothing since (or, of many, while all others have twice).
const LOOK: u64 = 256;
/// After so many batches for each process, a batch has to have [`FEW`] requests.
const PATIENCE: u64 = 16;
const FEW: f32 = 2.0;
/// If it has not, so many requests for each process are not held.
const REST: u64 = 256;

/// Where a process was last, how far that was from where it was before, and when, in requests of the file.
#[derive(Default)]
struct Place {
    offset: u64,
    step: u64,
    seen: u64,
}

/// The turns of a file's reads or of its writes.
#[derive(Default)]
pub(crate) struct Turns {
    places: HashMap<u64, Place>,
    /// Requests so far.
    requests: u64,
    /// Which part of the latest requests was as far from the process's one before as that one from the one before it, with room for
    /// others in between.
    regular: f32,
    /// What waits, by its offset, and since when.
    waiting: BTreeMap<(u64, Number), Duration>,
    /// Batches since what is ahead waits, and how many requests the latest of them had.
    batches: u64,
    gain: f32,
    /// So many requests are not held, because it was no use.
    rest: u64,
}

impl Turns {
    /// A request arrives. Whether it is one of processes that take turns, which fill a stripe together.
    pub(crate) fn sees(&mut self, asked: &Asked) -> bool {
        self.requests += 1;
        self.rest = self.rest.saturating_sub(1);
        if self.requests.is_multiple_of(LOOK) {
            let oldest = self.requests.saturating_sub(LOOK.max(2 * self.places.len() as u64));
            self.places.retain(|_, place| place.seen >= oldest);
        }
        if self.places.len() >= PROCESSES && !self.places.contains_key(&asked.process) {
            return false;
        }
        let place = self.places.entry(asked.process).or_default();
        let step = asked.offset.saturating_sub(place.offset);
        let is_turn = step > asked.len && step == place.step;
        *place = Place { offset: asked.offset, step, seen: self.requests };
        self.regular += (f32::from(u8::from(is_turn)) - self.regular) * WEIGHT;
        let together = asked.len.saturating_mul(self.places.len() as u64);
        is_turn && self.rest == 0 && self.regular > MOSTLY && together >= step / 2
    }

    /// Whether the latest batches of those that have waited were merged.
    pub(crate) fn pay(&self) -> bool {
        self.gain >= FEW && self.rest == 0
    }

    /// A request waits until it is the first one in the file.
    pub(crate) fn hold(&mut self, number: Number, asked: &Asked, now: Duration) {
        self.waiting.insert((asked.offset, number), now);
    }

    /// A batch is issued that may have what has waited, and others. Whether one of them has waited.
    pub(crate) fn issued(&mut self, parts: &[(Number, Asked)]) -> bool {
        let mut has_waited = false;
        for (number, asked) in parts {
            has_waited |= self.waiting.remove(&(asked.offset, *number)).is_some();
        }
        if has_waited {
            self.batches += 1;
            self.gain += (parts.len() as f32 - self.gain) * WEIGHT;
        }
        if self.batches > PATIENCE * self.places.len() as u64 {
            if self.gain < FEW {
                self.rest = REST * self.places.len() as u64;
            }
            self.batches = 0;
        }
        has_waited
    }

    /// What waits no longer. `idle`: nothing that it waits for is being carried out.
    pub(crate) fn release(&mut self, idle: bool, now: Duration) -> Vec<Number> {
        let expired = self.expire(now);
        if !expired.is_empty() || self.rest > 0 {
            return [expired, self.release_all()].concat();
        }
        let next = if idle { self.waiting.pop_first() } else { None };
        next.map(|((_, number), _)| number).into_iter().collect()
    }

    /// Since when something waits.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.waiting.values().min().copied()
    }

    /// If something has waited for too long, nothing waits any more. What has.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Number> {
        match self.since() {
            Some(since) if now >= since + LONGEST => self.release_all(),
            _ => Vec::new(),
        }
    }

    /// Nothing waits any more. What has.
    pub(crate) fn release_all(&mut self) -> Vec<Number> {
        std::mem::take(&mut self.waiting).into_keys().map(|(_, number)| number).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Kind;

    const LEN: u64 = 32 << 10;

    fn piece(process: u64, number: u64) -> Asked {
        let offset = number * LEN;
        Asked { job: 1, process, file: 1, kind: Kind::Write, offset, len: LEN, merges: true }
    }

    /// Whether the requests of 16 processes, 32 each, at the places that a function gives are taken for turns in the end.
    fn are_turns(place: impl Fn(u64, u64) -> u64) -> bool {
        let mut turns = Turns::default();
        let all = (0..32).flat_map(|count| (0..16).map(move |process| (process, count)));
        all.fold(false, |_, (process, count)| turns.sees(&piece(process, place(process, count))))
    }

    #[test]
    fn turns_are_told_from_other_patterns() {
        assert!(are_turns(|process, count| count * 16 + process));
        assert!(are_turns(|process, count| (count + process) * 16 + process), "also if some are ahead");
        assert!(!are_turns(|process, count| process * 1000 + count), "each its own part");
        assert!(!are_turns(|process, count| count * 64 + process), "most of the file is nobody's");
        assert!(!are_turns(|process, count| (count * 16 + process) * 619 % 1024), "in no order");
    }

    #[test]
    fn the_first_in_the_file_is_next_unless_something_has_waited_for_too_long() {
        let mut turns = Turns::default();
        for (number, place) in [(1, 40), (2, 20), (3, 30)] {
            turns.hold(number, &piece(number, place), Duration::from_millis(10));
        }
        assert_eq!(turns.release(false, Duration::from_millis(11)), []);
        assert_eq!(turns.release(true, Duration::from_millis(11)), [2]);
        assert_eq!(turns.release(false, Duration::from_millis(9) + LONGEST), []);
        assert_eq!(turns.release(false, Duration::from_millis(10) + LONGEST), [3, 1]);
        assert!(turns.is_empty());
    }

    #[test]
    fn what_is_not_merged_waits_no_longer_for_a_while() {
        let mut turns = Turns::default();
        let (mut held, mut rested) = (0, 0);
        for count in 0..400 {
            for process in 0..4 {
                // There is room between them that nobody fills.
                let asked = piece(process, (count * 4 + process) * 2);
                if turns.sees(&asked) {
                    held += 1;
                    turns.hold(count, &asked, Duration::ZERO);
                    turns.issued(&[(count, asked)]);
                } else if held > 0 {
                    rested += 1;
                }
            }
        }
        assert!(held > 0 && held < 4 * 100, "{held}");
        assert!(rested > 2 * held, "{rested}");
    }

    #[test]
    fn processes_that_have_ended_fill_no_stripes() {
        let mut turns = Turns::default();
        // Many, one after the other, of which each fills one place in sixty-four.
        let each = |process: u64| (0..32).map(move |count| piece(process, count * 64));
        let taken = (0..200).flat_map(each).map(|asked| turns.sees(&asked));
        assert_eq!(taken.skip(32 * 100).filter(|taken| *taken).count(), 0);
    }
}
