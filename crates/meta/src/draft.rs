//! A change in the making: an operation's steps on one shard, gathered into one [`Batch`].
//!
//! To a look-up, a draft answers with its own changed inodes, and otherwise with those of the shard. Changes
//! of a directory's counts add up. Nothing changes in the shard until the batch is committed.

use crate::inode::{Body, Inode, Spread};
use crate::mutation::{Batch, Mutation, Stamp};
use crate::shard::{Answer, Home, Named, Shard};
use bivouac_layout::{Ino, Map, ShardId};
use bivouac_proto::header::RequestId;
use bivouac_proto::{FileKind, Reply, Time};

/// A change in the making: see the module.
#[derive(Debug)]
pub(crate) struct Draft {
    pub now: Time,
    mutations: Vec<Mutation>,
    inodes: Vec<(Ino, Box<Inode>)>,
    homes: Vec<(Home, Change)>,
    /// The change frees space, and so may use the space that is reserved for such changes.
    pub frees: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct Change {
    entries: i64,
    subdirectories: i64,
}

impl Draft {
    pub(crate) fn new(now: Time) -> Draft {
        Draft { now, mutations: Vec::with_capacity(6), inodes: Vec::new(), homes: Vec::new(), frees: false }
    }

    /// A change that frees space.
    pub(crate) fn freeing(now: Time) -> Draft {
        Draft { frees: true, ..Draft::new(now) }
    }

    pub(crate) fn push(&mut self, mutation: Mutation) {
        self.mutations.push(mutation);
    }

    /// The number of the next new inode.
    pub(crate) fn next_ino(&self, shard: &Shard, id: ShardId) -> Ino {
        let drafted = self.inodes.iter().map(|(ino, _)| ino.counter());
        Ino::new(id, drafted.fold(shard.last, u64::max) + 1)
    }

    /// Adds or replaces an inode.
    pub(crate) fn put_inode(&mut self, ino: Ino, inode: Inode) {
        match self.inodes.iter_mut().find(|(i, _)| *i == ino) {
            Some((_, drafted)) => **drafted = inode,
            None => self.inodes.push((ino, Box::new(inode))),
        }
    }

    /// An inode to be changed.
    pub(crate) fn inode<'a>(&'a mut self, shard: &Shard, ino: Ino) -> Option<&'a mut Inode> {
        let index = match self.inodes.iter().position(|(i, _)| *i == ino) {
            Some(index) => index,
            None => {
                self.inodes.push((ino, shard.inodes.get(ino)?.into_box()));
                self.inodes.len() - 1
            }
        };
        self.inodes.get_mut(index).map(|(_, inode)| &mut **inode)
    }

    /// An entry appears, or names something else (`replaced`) than before.
    pub(crate) fn put_entry(&mut self, home: Home, name: &[u8], new: Named, replaced: Option<FileKind>) {
        let dir = home.dir();
        self.push(Mutation::PutEntry { dir, name: name.into(), ino: new.ino, kind: new.kind });
        let change = self.change(home);
        change.entries += i64::from(replaced.is_none());
        change.subdirectories += is_directory(new.kind) - replaced.map_or(0, is_directory);
    }

    /// An entry goes.
    pub(crate) fn drop_entry(&mut self, home: Home, name: &[u8], kind: FileKind) {
        self.push(Mutation::DropEntry { dir: home.dir(), name: name.into() });
        let change = self.change(home);
        change.entries -= 1;
        change.subdirectories -= is_directory(kind);
    }

    /// An inode loses a link (a directory: all links). Without links and users it is removed, and its blocks,
    /// too.
    pub(crate) fn drop_link(&mut self, shard: &Shard, map: &Map, ino: Ino) {
        let now = self.now;
        self.frees = true;
        let drafted = self.inodes.iter().any(|(i, _)| *i == ino);
        if !drafted && !shard.must_stay(ino) && shard.inodes.get(ino).is_some_and(|i| i.nlink <= 1) {
            // The common case, for which the inode need not be copied.
            return self.drop_inode(shard, map, ino);
        }
        let Some(inode) = self.inode(shard, ino) else {
            return;
        };
        let directory = matches!(inode.body, Body::Directory(_));
        inode.nlink = if directory { 0 } else { inode.nlink.saturating_sub(1) };
        inode.ctime = now;
        if inode.nlink > 0 {
            return;
        }
        if shard.must_stay(ino) {
            self.push(Mutation::PutOrphan(ino, shard.holders(ino)));
        } else {
            self.drop_inode(shard, map, ino);
        }
    }

    /// Removes an inode and its blocks.
    pub(crate) fn drop_inode(&mut self, shard: &Shard, map: &Map, ino: Ino) {
        self.frees = true;
        let blocks = match self.inodes.iter().position(|(i, _)| *i == ino) {
            Some(index) => self.inodes.swap_remove(index).1.as_blocks().cloned(),
            None => shard.inodes.get(ino).and_then(|i| i.as_blocks().cloned()),
        };
        if let Some(blocks) = blocks {
            let end = if blocks.settled { blocks.reach } else { u64::MAX };
            let servers = blocks.layout.servers_to_clear(map, end);
            if !servers.is_empty() {
                self.push(Mutation::PutPurge(ino, servers));
            }
        }
        self.push(Mutation::DropInode(ino));
    }

    /// Sets the answer to the request, also for when the request is repeated.
    pub(crate) fn answer(&mut self, id: &RequestId, reply: &Reply) {
        if id.session != 0 {
            let mut encoded = Vec::new();
            if *reply != Reply::Done {
                encoded.reserve(96);
                bivouac_proto::encode(reply, &mut encoded);
            }
            let answer = Answer { sequence: id.sequence, time: self.now, reply: encoded.into() };
            self.push(Mutation::PutAnswer(id.session, id.slot, Box::new(answer)));
        }
    }

    /// Whether there is nothing to log.
    pub(crate) fn is_empty(&self) -> bool {
        self.mutations.is_empty() && self.inodes.is_empty() && self.homes.is_empty()
    }

    /// What is to be logged.
    pub(crate) fn finish(mut self, id: ShardId, shard: &Shard) -> Batch {
        let now = self.now;
        for (home, change) in std::mem::take(&mut self.homes) {
            let add = |n: u64, by: i64| n.saturating_add_signed(by);
            match home {
                Home::Packed(dir) => {
                    if let Some((_, inode)) = self.inodes.iter_mut().find(|(i, _)| *i == dir) {
                        inode.size = add(inode.size, change.entries);
                        inode.nlink = add(u64::from(inode.nlink), change.subdirectories) as u32;
                        inode.mtime = now;
                        inode.ctime = now;
                    } else if let Some(inode) = shard.inodes.get(dir) {
                        let stamp = Stamp {
                            size: add(inode.size, change.entries),
                            nlink: add(u64::from(inode.nlink), change.subdirectories) as u32,
                            mtime: now,
                            ctime: now,
                            settled: false,
                            allocated: None,
                        };
                        self.mutations.push(Mutation::Stamp(dir, stamp));
                    }
                }
                Home::Part(dir, number) => {
                    if let Some(part) = shard.parts.get(&(dir, number)) {
                        let mut part = *part;
                        part.entries = add(u64::from(part.entries), change.entries) as u32;
                        part.subdirectories =
                            add(u64::from(part.subdirectories), change.subdirectories) as u32;
                        part.mtime = now;
                        self.mutations.push(Mutation::PutPart(dir, number, part));
                    }
                }
            }
        }
        let mut mutations = self.mutations;
        // Inodes come before what drops them again.
        let inodes = self.inodes.into_iter().map(|(ino, inode)| Mutation::PutInode(ino, inode));
        mutations.splice(0..0, inodes);
        Batch { shard: id.0, at: shard.stream.next(), mutations }
    }

    fn change(&mut self, home: Home) -> &mut Change {
        let index = match self.homes.iter().position(|(h, _)| *h == home) {
            Some(index) => index,
            None => {
                self.homes.push((home, Change::default()));
                self.homes.len() - 1
            }
        };
        &mut self.homes[index].1
    }
}

impl Home {
    pub(crate) fn dir(self) -> Ino {
        match self {
            Home::Packed(dir) | Home::Part(dir, _) => dir,
        }
    }
}

fn is_directory(kind: FileKind) -> i64 {
    i64::from(kind == FileKind::Directory)
}

/// Whether a directory has grown past the bound of packed ones.
pub(crate) fn wants_split(inode: &Inode) -> bool {
    inode.size > bivouac_layout::namespace::SPLIT_AT as u64
        && inode.as_directory().is_some_and(|d| d.state == Spread::Packed)
}
