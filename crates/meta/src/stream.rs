//! A shard's stream of records, as its primary sends it to its copies and they receive it.
//!
//! Each record has a [`Position`]: the term of the primary that made it, and the shard's sequence number. Two
//! streams that have the same position have the same records up to there, because a term has one primary, and a
//! primary has taken over all that was acknowledged before its term. So a stream that ends at a position of
//! another one is a *prefix* of it, and can be completed by records. Any other has a tail that nobody
//! acknowledged, and is replaced by an image. The first record of each term is in the log, so that all streams agree on
//! where terms begin.
//!
//! Volatile changes are records of the stream, too, but not of the log. So a server that was restarted may be at
//! an earlier position than before, and lacks those before its position, too. When the primary hears of that, it
//! puts all that is volatile into the stream once more; to others that tells nothing new.

use crate::mutation::Mutation;
use bivouac_layout::{Epoch, ServerId};
use bivouac_proto::peer::{Held, Position};
use std::collections::VecDeque;

/// So many bytes of records that are everywhere are kept, for copies that were away for a moment.
const KEPT: usize = 8 << 10;

/// So many terms are remembered. A copy that is further behind gets an image.
const TERMS: usize = 64;

/// What this server is for a shard.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Role {
    /// The only server that has it: there are no copies.
    #[default]
    Sole,
    /// It answers for the shard.
    Primary,
    /// It receives the shard's records, and answers nobody.
    Copy,
}

/// The newest records of a stream, encoded, whose numbers follow each other. They lie in one buffer, because they
/// come and go with every operation.
#[derive(Debug, Default)]
struct Records {
    /// Number of the first one, and where each one ends, counted from where the first one ever began.
    first: u64,
    ends: VecDeque<u64>,
    /// The bytes, and how many of them belong to records that were dropped.
    bytes: Vec<u8>,
    dropped: usize,
    /// Where the first byte of the buffer is by the count of `ends`.
    base: u64,
}

impl Records {
    fn len(&self) -> usize {
        self.bytes.len() - self.dropped
    }

    /// Adds the next one, which `write` appends to the buffer.
    fn push(&mut self, sequence: u64, write: impl FnOnce(&mut Vec<u8>)) {
        if self.first + self.ends.len() as u64 != sequence {
            // The first one, or one behind records that are unknown: those before it complete nobody's stream.
            *self = Records { first: sequence, ..Records::default() };
        }
        write(&mut self.bytes);
        self.ends.push_back(self.base + self.bytes.len() as u64);
    }

    /// Drops the first one.
    fn pop(&mut self) {
        let Some(end) = self.ends.pop_front() else { return };
        self.first += 1;
        self.dropped = (end - self.base) as usize;
        // Amortized: for each byte that was dropped, four are moved at most.
        if self.dropped >= KEPT / 4 && self.dropped >= self.len() / 4 {
            self.bytes.drain(..self.dropped);
            self.base = end;
            self.dropped = 0;
            if self.bytes.capacity() > 4 * KEPT {
                self.bytes.shrink_to(2 * KEPT);
            }
        }
    }

    /// Those from the one with this number on.
    fn from(&self, sequence: u64) -> impl Iterator<Item = &[u8]> {
        let skipped = usize::try_from(sequence.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let skipped = skipped.min(self.ends.len());
        let mut start = match skipped {
            0 => self.dropped,
            _ => self.ends.get(skipped - 1).map_or(self.bytes.len(), |end| (end - self.base) as usize),
        };
        self.ends.range(skipped..).filter_map(move |end| {
            let end = (end - self.base) as usize;
            self.bytes.get(std::mem::replace(&mut start, end)..end)
        })
    }
}

/// What the primary knows of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Follower {
    pub server: ServerId,
    /// It has all records up to this.
    pub has: u64,
    /// It has said where it is.
    pub is_known: bool,
    /// It was away, and the map calls it behind, since this epoch.
    pub joins: Option<Epoch>,
    /// Its stream is no prefix, or lacks more than is kept: it needs an image.
    pub needs_image: bool,
    /// It was restarted, and all that is volatile is in the stream once more, up to this record. 0: not so.
    pub told: u64,
}

impl Follower {
    /// A copy of which nothing is known yet.
    pub(crate) fn unknown(server: ServerId) -> Follower {
        Follower { server, has: 0, is_known: false, joins: None, needs_image: false, told: 0 }
    }
}

/// A shard's stream: see the module.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub role: Role,
    /// The greatest term that this server has heard of. The primary's own, if it is that.
    pub term: u64,
    /// The term in which this server became the primary: that of its records. (Those of later terms in which it
    /// still is the primary could not be told from them.)
    pub reign: u64,
    /// Place of the newest record.
    pub last: Position,
    /// Terms, each with the sequence number of its first record, in order.
    pub terms: Vec<(u64, u64)>,
    /// This server was restarted since it last had all that is volatile.
    pub restarted: bool,
    /// The newest record that replies wait for.
    pub awaited: u64,
    /// All records up to this are everywhere.
    pub everywhere: u64,
    /// By the map there are fewer copies than a change is to have.
    pub has_too_few: bool,
    /// The copies that are waited for.
    pub followers: Vec<Follower>,
    /// The newest records. All that may not be everywhere are among them.
    records: Records,
}

impl Stream {
    /// Whether this server answers for the shard.
    pub(crate) fn serves(&self) -> bool {
        self.role != Role::Copy
    }

    /// Nobody else has anything of the shard any more, and it does not move.
    pub(crate) fn is_alone(&mut self) {
        self.role = Role::Sole;
        self.records = Records::default();
    }

    /// Whether there are, or may be, copies.
    pub(crate) fn is_shared(&self) -> bool {
        self.role != Role::Sole
    }

    /// What this server says of its copy.
    pub(crate) fn held(&self) -> Held {
        if self.restarted { Held::Restarted(self.last) } else { Held::Has(self.last) }
    }

    /// Where the next record of this server goes.
    pub(crate) fn next(&self) -> Position {
        Position { term: self.reign, sequence: self.last.sequence + 1 }
    }

    /// Notes the place of a new record.
    pub(crate) fn advance(&mut self, at: Position) {
        if at.term > self.last.term {
            self.terms.push((at.term, at.sequence));
            if self.terms.len() > TERMS {
                self.terms.remove(0);
            }
        }
        self.last = at;
        self.term = self.term.max(at.term);
        if self.followers.is_empty() && self.serves() {
            self.everywhere = at.sequence;
        }
    }

    /// Keeps a new record for those who may lack it.
    pub(crate) fn keep(&mut self, at: Position, body: &[u8]) {
        self.records.push(at.sequence, |bytes| bytes.extend_from_slice(body));
        self.trim();
    }

    /// Makes volatile changes, which are in no log, the next record, and keeps it.
    pub(crate) fn add_volatile(&mut self, shard: u16, changes: &[Mutation]) {
        let at = self.next();
        self.advance(at);
        // Like a `Batch`, which would have to own them.
        self.records.push(at.sequence, |bytes| bivouac_proto::encode(&(shard, at, changes), bytes));
        self.trim();
    }

    fn trim(&mut self) {
        while !self.records.ends.is_empty()
            && self.records.first <= self.everywhere
            && self.records.len() > KEPT
        {
            self.records.pop();
        }
    }

    /// All records up to this are everywhere, as the primary says.
    pub(crate) fn settled(&mut self, sequence: u64) {
        self.everywhere = self.everywhere.max(sequence.min(self.last.sequence));
        self.trim();
    }

    /// The term of the record with this number; `None` if that is not known any more, or not yet.
    pub(crate) fn term_of(&self, sequence: u64) -> Option<u64> {
        if sequence == 0 {
            return Some(0);
        }
        if sequence > self.last.sequence {
            return None;
        }
        self.terms.iter().rev().find(|(_, first)| *first <= sequence).map(|(term, _)| *term)
    }

    /// The place of the record with this number, as far as it is known.
    pub(crate) fn place_of(&self, sequence: u64) -> Option<Position> {
        self.term_of(sequence).map(|term| Position { term, sequence })
    }

    /// Whether a stream that ends there is a prefix of this one.
    pub(crate) fn contains(&self, end: Position) -> bool {
        self.term_of(end.sequence) == Some(end.term)
    }

    /// The records behind a place in this stream, if all of them are kept.
    pub(crate) fn after(&self, sequence: u64) -> Option<impl Iterator<Item = &[u8]>> {
        self.has_after(sequence).then(|| self.records.from(sequence.saturating_add(1)))
    }

    /// Whether all records behind a place in this stream are kept.
    fn has_after(&self, sequence: u64) -> bool {
        let first = if self.records.ends.is_empty() { self.last.sequence + 1 } else { self.records.first };
        sequence >= self.last.sequence || sequence + 1 >= first
    }

    /// What is known of a copy.
    pub(crate) fn follower(&mut self, server: ServerId) -> Option<&mut Follower> {
        self.followers.iter_mut().find(|follower| follower.server == server)
    }

    /// A copy is at this position.
    pub(crate) fn is_at(&mut self, server: ServerId, position: Position) {
        let contained = self.contains(position);
        let kept = self.has_after(position.sequence);
        if let Some(follower) = self.follower(server) {
            follower.is_known = true;
            follower.needs_image = !(contained && kept);
            follower.has = if contained { position.sequence } else { 0 };
        }
        self.count();
    }

    /// Finds out what is everywhere.
    pub(crate) fn count(&mut self) {
        let least = self.followers.iter().map(|follower| follower.has).min();
        // That may be less than before: a copy is waited for that was not.
        self.everywhere = least.unwrap_or(self.last.sequence);
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: u64, sequence: u64) -> Position {
        Position { term, sequence }
    }

    fn stream(places: &[(u64, u64)]) -> Stream {
        let mut stream = Stream { role: Role::Copy, ..Stream::default() };
        for (term, sequence) in places {
            stream.advance(at(*term, *sequence));
            stream.keep(at(*term, *sequence), &[1; 100]);
        }
        stream
    }

    #[test]
    fn a_tail_of_another_term_is_no_prefix() {
        let stream = stream(&[(1, 1), (1, 2), (1, 3), (4, 4), (6, 5), (6, 6)]);
        for (term, sequence, prefix) in [
            (0, 0, true),
            (1, 1, true),
            (1, 3, true),
            (1, 4, false),
            (4, 4, true),
            (4, 5, false),
            (6, 6, true),
            (6, 7, false),
            (5, 5, false),
            (0, 1, false),
        ] {
            assert_eq!(stream.contains(at(term, sequence)), prefix, "({term}, {sequence})");
        }
    }

    #[test]
    fn what_may_not_be_everywhere_is_kept_and_little_else() {
        let mut stream = stream(&(1..=500).map(|n| (1, n)).collect::<Vec<_>>());
        assert_eq!(stream.after(0).unwrap().count(), 500);
        stream.settled(450);
        assert_eq!(stream.after(450).unwrap().count(), 50);
        assert!(stream.after(300).is_none());
        let kept = stream.after(430).unwrap().count();
        assert_eq!(kept, 70);
        assert_eq!(stream.after(500).unwrap().count(), 0);
    }

    #[test]
    fn what_is_kept_are_the_records_as_they_were() {
        let mut stream = Stream { role: Role::Copy, ..Stream::default() };
        let body = |n: u64| vec![n as u8; 1 + (n * 37 % 300) as usize];
        for n in 1..=3000 {
            stream.advance(at(1, n));
            stream.keep(at(1, n), &body(n));
            // Nothing is everywhere for a while, and then nearly all.
            if n % 700 == 0 {
                stream.settled(n - 5);
            }
            let first = stream.records.first;
            assert!(first <= n / 700 * 700 + 1, "what may not be everywhere is kept");
            for from in [first, n.saturating_sub(7).max(first), n] {
                let found: Vec<Vec<u8>> = stream.after(from - 1).unwrap().map(<[u8]>::to_vec).collect();
                assert_eq!(found, (from..=n).map(body).collect::<Vec<_>>(), "{from} of {first} to {n}");
            }
        }
        stream.settled(3000);
        assert!(stream.records.bytes.capacity() <= 4 * KEPT, "the memory of the others is given back");
    }

    #[test]
    fn volatile_changes_are_encoded_as_batches_are() {
        let mut stream = Stream { reign: 4, last: at(4, 8), role: Role::Primary, ..Stream::default() };
        let changes = || vec![Mutation::AllTold, Mutation::DropLocks(bivouac_layout::Ino(300), 7)];
        stream.add_volatile(9, &changes());
        let batch = crate::mutation::Batch { shard: 9, at: at(4, 9), mutations: changes() };
        let mut encoded = Vec::new();
        bivouac_proto::encode(&batch, &mut encoded);
        assert_eq!(stream.after(8).unwrap().collect::<Vec<_>>(), [&encoded[..]]);
        assert_eq!(stream.last, at(4, 9));
    }

    #[test]
    fn everywhere_is_what_the_last_copy_has() {
        let mut stream = stream(&[(1, 1), (1, 2), (1, 3)]);
        stream.role = Role::Primary;
        stream.followers = vec![Follower::unknown(ServerId(1)), Follower::unknown(ServerId(2))];
        stream.is_at(ServerId(1), at(1, 3));
        assert_eq!(stream.everywhere, 0);
        stream.is_at(ServerId(2), at(1, 2));
        assert_eq!(stream.everywhere, 2);
        // One with a tail of its own.
        stream.is_at(ServerId(2), at(2, 3));
        assert!(stream.follower(ServerId(2)).unwrap().needs_image);
        stream.followers.pop();
        stream.count();
        assert_eq!(stream.everywhere, 3);
    }
}
