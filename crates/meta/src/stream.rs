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

use bivouac_layout::{Epoch, ServerId};
use bivouac_proto::peer::{Held, Position};
use std::collections::VecDeque;
use std::sync::Arc;

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

/// A record, encoded.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub at: Position,
    pub body: Arc<[u8]>,
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
    records: VecDeque<Record>,
    bytes: usize,
}

impl Stream {
    /// Whether this server answers for the shard.
    pub(crate) fn serves(&self) -> bool {
        self.role != Role::Copy
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
        self.bytes += body.len();
        self.records.push_back(Record { at, body: body.into() });
        self.trim();
    }

    fn trim(&mut self) {
        while let Some(first) = self.records.front()
            && first.at.sequence <= self.everywhere
            && self.bytes > KEPT
        {
            self.bytes -= first.body.len();
            self.records.pop_front();
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
    pub(crate) fn after(&self, sequence: u64) -> Option<impl Iterator<Item = &Record>> {
        let first = self.records.front().map_or(self.last.sequence + 1, |record| record.at.sequence);
        let known = sequence >= self.last.sequence || sequence + 1 >= first;
        known.then(|| self.records.iter().filter(move |record| record.at.sequence > sequence))
    }

    /// What is known of a copy.
    pub(crate) fn follower(&mut self, server: ServerId) -> Option<&mut Follower> {
        self.followers.iter_mut().find(|follower| follower.server == server)
    }

    /// A copy is at this position.
    pub(crate) fn is_at(&mut self, server: ServerId, position: Position) {
        let contained = self.contains(position);
        let kept = self.after(position.sequence).is_some();
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
