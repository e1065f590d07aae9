//! Facts: what this process has read of the metadata, and under which counts.
//!
//! Kept are: what a name leads to, or that it is not there; the attributes of an inode as its server has them
//! (the data servers know size and time of a file that is being written to better, and are asked:
//! `Namespace::exact`; attributes of a split directory are not kept, because its times lie in several shards),
//! with a symbolic link's target; and the parent of a directory and its name there. Each comes with the count that its
//! shard had before the question was asked. Whether that count still holds is looked up where facts are used
//! (`requests::known`).
//!
//! A change by this process itself, through a server of its node, leaves everything else as it was
//! ([`super::own`]).
//!
//! Names were read with this process's permission to search the directory: they are dropped when the
//! directory loses search permission ([`super::heard`]). A thread that finds the lock of this cache taken
//! goes on as if nothing were known.

use super::own::Runs;
use bivouac_layout::{Ino, ShardId};
use bivouac_proto::attr::{Attr, FileKind};
use std::collections::HashMap;
use std::sync::RwLock;

/// When there are so many facts of a kind, all of them are dropped.
pub(crate) const KEPT: usize = 1 << 17;

/// The facts.
#[derive(Default)]
pub(crate) struct Facts(pub(crate) RwLock<Known>);

#[derive(Default)]
pub(crate) struct Known {
    /// Names from earlier eras are not added.
    pub(crate) era: u64,
    pub(crate) names: HashMap<Ino, HashMap<Box<[u8]>, Name>>,
    pub(crate) named: usize,
    /// Directories all of whose names are known, with the count that their shard had: what is not among them
    /// is not there.
    pub(crate) complete: HashMap<Ino, u64>,
    /// How many names were not found in a directory.
    pub(crate) absent: HashMap<Ino, u32>,
    pub(crate) inodes: HashMap<Ino, Inode>,
    pub(crate) parents: HashMap<Ino, Parent>,
    /// What this process has changed itself.
    pub(crate) runs: Runs,
}

/// What a name leads to.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) to: Option<(Ino, FileKind)>,
    /// Which shard's count this is: that of the entry, or that of the directory that it leads to. (The entry
    /// moves to another shard when its directory is split, and the counts of two shards may happen to be
    /// equal.)
    pub(crate) shard: ShardId,
    pub(crate) seen: u64,
}

pub(crate) struct Inode {
    pub(crate) attr: Box<Attr>,
    pub(crate) target: Box<[u8]>,
    pub(crate) seen: u64,
}

/// The parent of a directory, and its name there.
pub(crate) struct Parent {
    pub(crate) dir: Ino,
    pub(crate) name: Box<[u8]>,
    pub(crate) shard: ShardId,
    pub(crate) seen: u64,
}

impl Facts {
    /// Empty, as of this era.
    pub(crate) fn new(era: u64) -> Facts {
        Facts(RwLock::new(Known { era, ..Known::default() }))
    }

    /// A new era begins: drops the names in directories that moved or lost search permission, or with `None`
    /// all names. (The name of a moved directory itself need not be dropped, because the count of its shard
    /// has changed.)
    pub(crate) fn forget_names(&self, era: u64, moved: Option<&[Ino]>) {
        // No thread holds the lock during a request, so the wait is short.
        let Ok(mut known) = self.0.write() else { return };
        known.era = known.era.max(era);
        match moved {
            Some(moved) => {
                for ino in moved {
                    let names = known.names.remove(ino).map_or(0, |names| names.len());
                    known.named -= names;
                    known.complete.remove(ino);
                }
            }
            None => {
                known.names.clear();
                known.complete.clear();
                known.parents.clear();
                known.named = 0;
            }
        }
    }

    /// A new era begins in which other servers answer for shards: nothing that is known can be compared with
    /// their counts.
    pub(crate) fn forget_all(&self, era: u64) {
        let Ok(mut known) = self.0.write() else { return };
        *known = Known { era: known.era.max(era), ..Known::default() };
    }
}

impl Known {
    pub(crate) fn put_name(
        &mut self,
        (shard, seen): (ShardId, u64),
        dir: Ino,
        name: &[u8],
        to: Option<(Ino, FileKind)>,
    ) {
        if self.runs.is_past(shard, seen) {
            return;
        }
        if self.named > KEPT {
            self.names.clear();
            self.complete.clear();
            self.named = 0;
        }
        let names = self.names.entry(dir).or_default();
        let fact = Name { to, shard, seen };
        if let Some(known) = names.get_mut(name) {
            *known = fact;
        } else {
            names.insert(name.into(), fact);
            self.named += 1;
        }
        if let Some((ino, FileKind::Directory)) = to {
            self.put_parent(ino, Parent { dir, name: name.into(), shard, seen });
        }
    }

    pub(crate) fn put_parent(&mut self, ino: Ino, parent: Parent) {
        if self.runs.is_past(parent.shard, parent.seen) {
            return;
        }
        if self.parents.len() > KEPT {
            self.parents.clear();
        }
        self.parents.insert(ino, parent);
    }

    pub(crate) fn put_inode(&mut self, seen: u64, attr: &Attr, target: &[u8]) {
        if attr.split || self.runs.is_past(attr.ino.shard(), seen) {
            return;
        }
        if self.inodes.len() > KEPT {
            self.inodes.clear();
        }
        let fact = Inode { attr: Box::new(attr.clone()), target: target.into(), seen };
        self.inodes.insert(attr.ino, fact);
    }
}
