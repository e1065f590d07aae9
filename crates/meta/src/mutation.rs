//! The changes that a shard can undergo: what the log holds, and the one way in which memory changes.
//!
//! A change is an image of the new state and never a computation on the old one. So replaying the log gives
//! the state that the running server had. A [`Batch`] is one operation's changes to one shard; it is one
//! record of the log and so happens whole or not at all. A snapshot consists of the same changes.
//!
//! The records of each shard are numbered by its own *sequence numbers* ([`crate::stream`]). A snapshot's batches
//! carry the place of the last record that they contain the effect of.
//!
//! Some changes are *volatile*: who has what open, and locks. They are no part of the log and of snapshots on disk,
//! because those who hold files outlive a server and tell it again. But a server that is to take a shard over has
//! to know them: an image for another server consists of the snapshot and [`Shard::volatile`].

use crate::append::Placed;
use crate::inode::{Inode, Part, Spread};
use crate::locks::LockTable;
use crate::restripe::Pending;
use crate::shard::{Answer, Live, Named, Opened, Prepared, Shard};
use bivouac_layout::{Ino, ServerId, ShardId};
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{LockOwner, LockRange};
use bivouac_proto::peer::{IntentId, Position};
use bivouac_proto::{FileKind, Time};
use serde::{Deserialize, Serialize};

/// One operation's changes to one shard.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Batch {
    pub shard: u16,
    /// Its place in the shard's stream of records, whose first has the number 1.
    pub at: Position,
    pub mutations: Vec<Mutation>,
}

/// In [`Batch::shard`]: what concerns the whole server (in the first partition).
pub(crate) const WHOLE_SERVER: u16 = u16::MAX;

/// The parts of an inode that change often.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(crate) struct Stamp {
    pub size: u64,
    pub nlink: u32,
    pub mtime: Time,
    pub ctime: Time,
    /// Of a file in blocks.
    pub settled: bool,
    pub allocated: Option<u64>,
}

/// One change.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Mutation {
    /// The server takes charge of the shard.
    Adopt,
    PutInode(Ino, Box<Inode>),
    /// Also removes the note that it is an orphan, and the announcement that is due about it.
    DropInode(Ino),
    Stamp(Ino, Stamp),
    PutEntry {
        dir: Ino,
        #[serde(with = "serde_bytes")]
        name: Box<[u8]>,
        ino: Ino,
        kind: FileKind,
    },
    DropEntry {
        dir: Ino,
        #[serde(with = "serde_bytes")]
        name: Box<[u8]>,
    },
    /// The entries of a packed directory have moved to its parts.
    Unpack(Ino),
    PutPart(Ino, u16, Part),
    /// With its entries.
    DropPart(Ino, u16),
    LastInode(u64),
    IntentLimit(u64),
    PutIntent(IntentId, Box<Prepared>),
    DropIntent(IntentId),
    /// An intent is decided. The shards that have prepared it are to be told.
    Decide(u64, Vec<ShardId>),
    DropDecision(u64),
    PutAnswer(u64, u32, Box<Answer>),
    PutOrphan(Ino, Vec<OpenId>),
    /// It has a name now.
    DropOrphan(Ino),
    PutPurge(Ino, Vec<ServerId>),
    DropPurge(Ino),
    PutMover(Option<IntentId>),
    /// An announcement is due about this directory's latest change, which has this number.
    PutAnnouncement(Ino, u64),
    DropAnnouncement(Ino),
    /// How often the server was started ([`WHOLE_SERVER`]).
    Starts(u64),
    /// Terms of the stream so far, each with the number of its first record.
    Terms(Vec<(u64, u64)>),
    /// The record is a part of an image that is to replace the shard. With `true` it is the first, and parts from
    /// before are void.
    Staged(bool),
    /// The image is complete, and replaces the shard.
    Replace,

    // Volatile.
    PutOpen(Ino, Opened),
    /// Also takes off the description's locks.
    DropOpen(Ino, OpenId),
    /// With which none conflicts.
    PutLock(Ino, LockOwner, LockRange),
    DropLock(Ino, LockOwner, u64, u64),
    /// Takes off the locks of a process, by its session.
    DropLocks(Ino, u64),
    /// Nobody has the description any more: requests for it are refused.
    GiveUp(OpenId),
    /// All that is volatile was told before: also to a copy that was restarted.
    AllTold,

    // In the log again.
    /// An append to this file begins.
    PutAppend(Ino, Placed),
    DropAppend(Ino),

    // Volatile.
    /// Locks were granted that nobody knows any more, and agents are telling which; or that time is over.
    LocksForgotten(bool),

    // In the log again.
    /// A range of this file is on its way to other servers.
    PutRestripe(Ino, Box<Pending>),
    DropRestripe(Ino),

    // In the log, and of no stream.
    /// Others hold the shard, and what this server had of it is removed.
    Leave,
}

/// So many changes are in a batch of a snapshot, counting large ones several times, so that it fits into a message.
const BATCH: usize = 64;

impl Mutation {
    fn weight(&self) -> usize {
        match self {
            Mutation::PutInode(_, inode) if inode.extra.is_some() => BATCH / 4,
            Mutation::PutIntent(..)
            | Mutation::PutOrphan(..)
            | Mutation::PutAnswer(..)
            | Mutation::PutRestripe(..) => 4,
            _ => 1,
        }
    }

    /// Whether it is no part of the log: see the module.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(
            self,
            Mutation::PutOpen(..)
                | Mutation::DropOpen(..)
                | Mutation::PutLock(..)
                | Mutation::DropLock(..)
                | Mutation::DropLocks(..)
                | Mutation::GiveUp(_)
                | Mutation::AllTold
                | Mutation::LocksForgotten(_)
        )
    }
}

impl Batch {
    /// Whether the terms that it states, if it does, can be those of a stream that ends at its place.
    pub(crate) fn is_sound(&self) -> bool {
        self.mutations.iter().all(|mutation| match mutation {
            Mutation::Terms(terms) => {
                let ascend = terms.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1);
                let fits = |(term, first): &(u64, u64)| *term == self.at.term && *first <= self.at.sequence;
                ascend && terms.first().is_some_and(|(term, _)| *term > 0) && terms.last().is_some_and(fits)
            }
            _ => true,
        })
    }
}

impl Shard {
    /// Applies a record that was read. Says whether it can follow what was applied so far.
    pub(crate) fn replay(&mut self, batch: Batch) -> bool {
        // All batches of a snapshot have the same place. Numbers are missing where volatile changes had them.
        // A term begins with a record of its own.
        let (last, at) = (self.stream.last, batch.at);
        let begins = at.term > last.term && !self.stream.terms.is_empty();
        let goes_back = at.term < last.term || at.sequence < last.sequence;
        if goes_back || (begins && at.sequence == last.sequence) || !batch.is_sound() {
            return false;
        }
        self.stream.advance(batch.at);
        batch.mutations.into_iter().for_each(|mutation| self.apply(mutation));
        true
    }

    /// Applies a logged change to memory.
    pub(crate) fn apply(&mut self, mutation: Mutation) {
        match mutation {
            Mutation::Adopt
            | Mutation::Starts(_)
            | Mutation::Staged(_)
            | Mutation::Replace
            | Mutation::Leave => {}
            Mutation::Terms(terms) => self.stream.terms = terms,
            Mutation::PutInode(ino, inode) => {
                self.last = self.last.max(ino.counter());
                self.inodes.put(ino, inode);
            }
            Mutation::DropInode(ino) => {
                self.inodes.remove(ino);
                self.orphans.remove(&ino);
                self.announcements.remove(&ino);
                self.appends.remove(&ino);
                if !self.live.is_empty()
                    && let Some(live) = self.live.get_mut(&ino)
                {
                    live.opens.clear();
                    live.locks = LockTable::default();
                }
            }
            Mutation::Stamp(ino, stamp) => {
                self.inodes.modify(ino, |inode| {
                    inode.size = stamp.size;
                    inode.nlink = stamp.nlink;
                    inode.mtime = stamp.mtime;
                    inode.ctime = stamp.ctime;
                    if let Some(blocks) = inode.blocks_mut() {
                        blocks.settled = stamp.settled;
                        blocks.allocated = stamp.allocated;
                        if stamp.settled {
                            blocks.reach = blocks.reach.max(stamp.size);
                        }
                    }
                });
            }
            Mutation::PutEntry { dir, name, ino, kind } => {
                self.entries.put(dir, &name, Named { ino, kind });
            }
            Mutation::DropEntry { dir, name } => {
                self.entries.remove(dir, &name);
            }
            Mutation::Unpack(dir) => {
                // What is in parts of the same shard stays.
                let kept: Vec<u16> = self.parts_of(dir);
                self.drop_entries(dir, |part| !kept.contains(&part));
                self.inodes.modify(dir, |inode| {
                    inode.size = 0;
                    inode.nlink = 2;
                    if let crate::inode::Body::Directory(d) = &mut inode.body {
                        d.state = Spread::Split;
                    }
                });
            }
            Mutation::PutPart(dir, number, part) => {
                self.parts.insert((dir, number), part);
            }
            Mutation::DropPart(dir, number) => {
                if self.parts.remove(&(dir, number)).is_some() && !self.is_packed(dir) {
                    self.drop_entries(dir, |part| part == number);
                }
            }
            Mutation::LastInode(last) => self.last = self.last.max(last),
            Mutation::IntentLimit(limit) => self.intent_limit = self.intent_limit.max(limit),
            Mutation::PutIntent(id, prepared) => {
                let made = prepared.made.iter().map(|ino| ino.counter());
                self.last = made.fold(self.last, u64::max);
                self.intents.insert(id, *prepared);
            }
            Mutation::DropIntent(id) => {
                self.intents.remove(&id);
            }
            Mutation::Decide(number, participants) => {
                self.decisions.insert(number, participants);
            }
            Mutation::DropDecision(number) => {
                self.decisions.remove(&number);
            }
            Mutation::PutAnswer(session, slot, answer) => {
                self.answers.insert((session, slot), *answer);
                self.answers_put += 1;
            }
            Mutation::PutOrphan(ino, holders) => {
                self.orphans.insert(ino, holders);
            }
            Mutation::DropOrphan(ino) => {
                self.orphans.remove(&ino);
            }
            Mutation::PutPurge(ino, servers) => {
                self.purges.insert(ino, servers);
            }
            Mutation::DropPurge(ino) => {
                self.purges.remove(&ino);
            }
            Mutation::PutMover(mover) => self.mover = mover,
            Mutation::PutAnnouncement(ino, number) => drop(self.announcements.insert(ino, number)),
            Mutation::DropAnnouncement(ino) => drop(self.announcements.remove(&ino)),
            Mutation::PutOpen(ino, opened) => {
                let opens = &mut self.live.entry(ino).or_default().opens;
                match opens.iter_mut().find(|open| open.id == opened.id) {
                    Some(known) => *known = opened,
                    None => opens.push(opened),
                }
            }
            Mutation::DropOpen(ino, id) => {
                self.change_live(ino, |live| {
                    if let Some(index) = live.opens.iter().position(|open| open.id == id) {
                        live.opens.swap_remove(index);
                    }
                    live.locks.drop_description(id);
                });
            }
            Mutation::PutLock(_, _, range) if range.start >= range.end => {}
            Mutation::DropLock(_, _, start, end) if start >= end => {}
            Mutation::PutLock(ino, owner, range) => self.live.entry(ino).or_default().locks.set(owner, range),
            Mutation::DropLock(ino, owner, start, end) => {
                self.change_live(ino, |live| live.locks.clear(owner, start, end));
            }
            Mutation::DropLocks(ino, session) => {
                self.change_live(ino, |live| live.locks.drop_session(session));
            }
            Mutation::GiveUp(id) => self.give_up(id),
            Mutation::AllTold => self.stream.restarted = false,
            Mutation::LocksForgotten(forgot) => self.forgot_locks = forgot,
            Mutation::PutAppend(ino, placed) => drop(self.appends.insert(ino, placed)),
            Mutation::DropAppend(ino) => drop(self.appends.remove(&ino)),
            Mutation::PutRestripe(ino, pending) => drop(self.restripes.insert(ino, *pending)),
            Mutation::DropRestripe(ino) => drop(self.restripes.remove(&ino)),
        }
    }

    fn change_live(&mut self, ino: Ino, change: impl FnOnce(&mut Live)) {
        if let Some(live) = self.live.get_mut(&ino) {
            change(live);
        }
    }

    fn drop_entries(&mut self, dir: Ino, which: impl Fn(u16) -> bool) {
        self.entries.remove_if(dir, |cookie| which(bivouac_layout::namespace::part_of(cookie)));
    }

    /// The numbers of a directory's parts here.
    pub(crate) fn parts_of(&self, dir: Ino) -> Vec<u16> {
        self.parts.range((dir, 0)..=(dir, u16::MAX)).map(|((_, part), _)| *part).collect()
    }

    fn is_packed(&self, dir: Ino) -> bool {
        self.inodes.get(dir).is_some_and(|i| i.as_directory().is_some_and(|d| d.state != Spread::Split))
    }

    /// The changes that make this state out of an empty shard, in batches. Answers from before `horizon` are
    /// left out.
    pub(crate) fn snapshot(&self, shard: u16, horizon: Time) -> impl Iterator<Item = Batch> + '_ {
        let head =
            [Mutation::Adopt, Mutation::LastInode(self.last), Mutation::IntentLimit(self.intent_limit)];
        let terms = Some(&self.stream.terms).filter(|terms| !terms.is_empty());
        let terms = terms.map(|terms| Mutation::Terms(terms.clone()));
        let inodes = self.inodes.iter().map(|(ino, inode)| Mutation::PutInode(ino, inode));
        let parts = self.parts.iter().map(|((dir, number), part)| Mutation::PutPart(*dir, *number, *part));
        let entries = self.entries.iter().map(|entry| Mutation::PutEntry {
            dir: entry.dir,
            name: entry.name.into(),
            ino: entry.named.ino,
            kind: entry.named.kind,
        });
        let intents = self
            .intents
            .iter()
            .filter(|(_, prepared)| !prepared.own)
            .map(|(id, prepared)| Mutation::PutIntent(*id, Box::new(prepared.clone())));
        let decisions =
            self.decisions.iter().map(|(number, shards)| Mutation::Decide(*number, shards.clone()));
        // In an order that does not depend on the server, so that equal shards have equal images.
        let mut answers: Vec<_> = self.answers.iter().filter(|(_, answer)| answer.time >= horizon).collect();
        answers.sort_unstable_by_key(|(slot, _)| **slot);
        let answers = answers
            .into_iter()
            .map(|((session, slot), answer)| Mutation::PutAnswer(*session, *slot, Box::new(answer.clone())));
        let orphans = self.orphans.iter().map(|(ino, holders)| Mutation::PutOrphan(*ino, holders.clone()));
        let purges = self.purges.iter().map(|(ino, servers)| Mutation::PutPurge(*ino, servers.clone()));
        let announcements =
            self.announcements.iter().map(|(ino, number)| Mutation::PutAnnouncement(*ino, *number));
        let mover = self.mover.map(|mover| Mutation::PutMover(Some(mover)));
        let appends = self.appends.iter().map(|(ino, placed)| Mutation::PutAppend(*ino, *placed));
        let restripes = self
            .restripes
            .iter()
            .map(|(ino, pending)| Mutation::PutRestripe(*ino, Box::new(pending.clone())));
        let all = head
            .into_iter()
            .chain(terms)
            .chain(inodes)
            .chain(parts)
            .chain(entries)
            .chain(intents)
            .chain(decisions)
            .chain(answers)
            .chain(orphans)
            .chain(purges)
            .chain(mover)
            .chain(announcements)
            .chain(appends)
            .chain(restripes);
        self.batches(shard, all)
    }

    /// The volatile changes that make this state out of one that was made by [`Shard::snapshot`], in batches.
    ///
    /// How far a file was written that is still being written is left out: reports of it may get lost with a
    /// server, so a server that takes over asks the data servers. So are holders that are known by the log alone.
    pub(crate) fn volatile(&self, shard: u16) -> impl Iterator<Item = Batch> + '_ {
        let mut inos: Vec<Ino> = self.live.keys().copied().collect();
        inos.sort_unstable();
        let live = inos.into_iter().filter_map(|ino| Some((ino, self.live.get(&ino)?)));
        let used = live.flat_map(|(ino, live)| {
            let known = |open: &&Opened| !self.revived.contains(&(ino, open.id));
            let mut opens: Vec<Opened> = live.opens.iter().filter(known).copied().collect();
            opens.sort_unstable_by_key(|open| open.id);
            let mut locks: Vec<_> = live.locks.iter().copied().collect();
            locks.sort_unstable_by_key(|(owner, range)| (range.start, range.end, order(owner)));
            let opens = opens.into_iter().map(move |open| Mutation::PutOpen(ino, open));
            opens.chain(locks.into_iter().map(move |(owner, range)| Mutation::PutLock(ino, owner, range)))
        });
        let mut given_up: Vec<OpenId> = self.abandoned.keys().copied().collect();
        given_up.sort_unstable();
        let forgotten = self.forgot_locks.then_some(Mutation::LocksForgotten(true));
        self.batches(shard, used.chain(given_up.into_iter().map(Mutation::GiveUp)).chain(forgotten))
    }

    fn batches(&self, shard: u16, all: impl Iterator<Item = Mutation>) -> impl Iterator<Item = Batch> {
        let (mut all, at) = (all.peekable(), self.stream.last);
        std::iter::from_fn(move || {
            all.peek()?;
            let mut room = BATCH;
            let mut mutations = Vec::new();
            while let Some(next) = all.next_if(|_| room > 0) {
                room = room.saturating_sub(next.weight());
                mutations.push(next);
            }
            Some(Batch { shard, at, mutations })
        })
    }
}

/// By what the locks of an image are ordered.
fn order(owner: &LockOwner) -> (u8, u64, OpenId) {
    match owner {
        LockOwner::Process { session, pid } => (0, *session, OpenId { slot: *pid, ..OpenId::default() }),
        LockOwner::Description(open) => (1, 0, *open),
        LockOwner::Flock(open) => (2, 0, *open),
    }
}

#[cfg(test)]
pub(crate) mod tests;
