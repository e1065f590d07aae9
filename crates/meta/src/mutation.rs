//! The changes that a shard can undergo: what the log holds, and the one way in which memory changes.
//!
//! A change is an image of the new state and never a computation on the old one. So replaying the log gives
//! the state that the running server had. A [`Batch`] is one operation's changes to one shard; it is one
//! record of the log and so happens whole or not at all. A snapshot consists of the same changes.
//!
//! The records of each shard are numbered by its own *sequence numbers*. A snapshot's batches carry the number of
//! the last record that they contain the effect of.

use crate::inode::{Inode, Part, Spread};
use crate::shard::{Answer, Named, Prepared, Shard};
use bivouac_layout::{Ino, ServerId, ShardId};
use bivouac_proto::header::OpenId;
use bivouac_proto::peer::IntentId;
use bivouac_proto::{FileKind, Time};
use serde::{Deserialize, Serialize};

/// One operation's changes to one shard.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Batch {
    pub shard: u16,
    /// Its place in the shard's sequence of records; the first is 1.
    pub sequence: u64,
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
}

impl Shard {
    /// Applies a record that was read. Says whether it can follow what was applied so far.
    pub(crate) fn replay(&mut self, batch: Batch) -> bool {
        // The first batch of a snapshot tells which number the shard has reached; its others carry the same.
        let begins = self.sequence == 0 && matches!(batch.mutations.first(), Some(Mutation::Adopt));
        if !begins && batch.sequence != self.sequence && Some(batch.sequence) != self.sequence.checked_add(1)
        {
            return false;
        }
        self.sequence = batch.sequence;
        batch.mutations.into_iter().for_each(|mutation| self.apply(mutation));
        true
    }

    /// Applies a logged change to memory.
    pub(crate) fn apply(&mut self, mutation: Mutation) {
        match mutation {
            Mutation::Adopt | Mutation::Starts(_) => {}
            Mutation::PutInode(ino, inode) => {
                self.last = self.last.max(ino.counter());
                self.inodes.put(ino, inode);
            }
            Mutation::DropInode(ino) => {
                self.inodes.remove(ino);
                self.orphans.remove(&ino);
                self.announcements.remove(&ino);
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
        let answers =
            self.answers.iter().filter(move |(_, answer)| answer.time >= horizon).map(
                |((session, slot), answer)| Mutation::PutAnswer(*session, *slot, Box::new(answer.clone())),
            );
        let orphans = self.orphans.iter().map(|(ino, holders)| Mutation::PutOrphan(*ino, holders.clone()));
        let purges = self.purges.iter().map(|(ino, servers)| Mutation::PutPurge(*ino, servers.clone()));
        let announcements =
            self.announcements.iter().map(|(ino, number)| Mutation::PutAnnouncement(*ino, *number));
        let mover = self.mover.map(|mover| Mutation::PutMover(Some(mover)));
        let mut all = head
            .into_iter()
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
            .peekable();
        std::iter::from_fn(move || {
            all.peek()?;
            Some(Batch { shard, sequence: self.sequence, mutations: all.by_ref().take(64).collect() })
        })
    }
}
