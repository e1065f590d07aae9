//! Facts: what this process has read of the metadata and what is still true.
//!
//! An answer about a name or an inode is kept with the count that its shard had before the question was
//! asked; as long as the version page of the shard's server shows the same count, the answer is as good as a
//! fresh one, and costs no round trip (see [`bivouac_node::versions`]). So this process never uses an
//! outdated answer, and no server has to send invalidations. Only servers of this node have version pages;
//! answers of others are not kept.
//!
//! Kept are: what a name leads to, or that it is not there; the attributes of an inode (but not of a file
//! that is being written to, whose size the data servers know better, nor of a split directory, whose times
//! lie in several shards), with a symbolic link's target; and the parent of a directory and its name there.
//!
//! Names were read with this process's permission to search the directory: they are dropped when the
//! directory loses search permission ([`crate::moves`]). A thread that finds the lock of this cache taken
//! goes on as if nothing were known.

use crate::moves::Reached;
use crate::session::Client;
use bivouac_layout::{Ino, ServerId, ShardId, namespace};
use bivouac_node::{TrafficPage, VersionPage};
use bivouac_proto::attr::{Attr, DirEntry, FileKind, Store};
use bivouac_proto::node::NodeRequest;
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// When there are so many facts of a kind, all of them are dropped.
const KEPT: usize = 1 << 17;

/// The permission to look names up.
const SEARCH: u32 = 1;

/// What this node's servers share with its processes, by server number: the version pages to read, and the
/// counters of direct accesses.
pub(crate) struct Pages {
    versions: Box<[Shared<VersionPage>]>,
    traffic: Box<[Shared<TrafficPage>]>,
}

/// A server's page as far as it is known: null before it was asked for, [`Shared::ABSENT`] where there is
/// none, or from `Box::into_raw`. (Not a `OnceLock`: a child that is forked while another thread fills that
/// in would wait for ever.)
struct Shared<T>(AtomicPtr<T>);

/// The facts.
#[derive(Default)]
pub(crate) struct Facts(RwLock<Known>);

#[derive(Default)]
struct Known {
    /// Names from earlier eras are not added.
    era: u64,
    names: HashMap<Ino, HashMap<Box<[u8]>, Name>>,
    named: usize,
    inodes: HashMap<Ino, Inode>,
    parents: HashMap<Ino, Parent>,
}

/// What a name leads to.
#[derive(Clone, Copy)]
struct Name {
    to: Option<(Ino, FileKind)>,
    /// Which shard's count this is: that of the entry, or that of the directory that it leads to. (The entry
    /// moves to another shard when its directory is split, and the counts of two shards may happen to be
    /// equal.)
    shard: ShardId,
    seen: u64,
}

struct Inode {
    attr: Box<Attr>,
    target: Box<[u8]>,
    seen: u64,
}

/// The parent of a directory, and its name there.
struct Parent {
    dir: Ino,
    name: Box<[u8]>,
    shard: ShardId,
    seen: u64,
}

/// A small file's contents, which came when it was opened.
pub(crate) struct Contents {
    bytes: Box<[u8]>,
    shard: ShardId,
    seen: u64,
}

/// A shard's count before a question, with the sum of its server's.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    /// Of names: see [`crate::moves`].
    era: u64,
    shard: ShardId,
    server: ServerId,
    seen: u64,
    total: u64,
}

impl Before {
    /// The shard's count.
    pub(crate) fn count(self) -> u64 {
        self.seen
    }
}

impl Pages {
    pub(crate) fn new(servers: usize) -> Pages {
        Pages {
            versions: (0..servers).map(|_| Shared(AtomicPtr::default())).collect(),
            traffic: (0..servers).map(|_| Shared(AtomicPtr::default())).collect(),
        }
    }
}

impl<T> Shared<T> {
    /// There is no page.
    const ABSENT: *mut T = std::ptr::dangling_mut();

    fn get(&self) -> Option<&T> {
        let page = self.0.load(Ordering::Acquire);
        // SAFETY: from Box::into_raw, freed only when `self` is dropped.
        (!page.is_null() && page != Shared::ABSENT).then(|| unsafe { &*page })
    }

    /// Fills it in, unless another thread was faster.
    fn set(&self, page: Option<T>) {
        let new = page.map_or(Shared::ABSENT, |page| Box::into_raw(Box::new(page)));
        let null = std::ptr::null_mut();
        let lost = self.0.compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed).is_err();
        if lost && new != Shared::ABSENT {
            // SAFETY: not installed, so nobody else has it.
            drop(unsafe { Box::from_raw(new) });
        }
    }

    fn is_known(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let page = *self.0.get_mut();
        if !page.is_null() && page != Shared::ABSENT {
            // SAFETY: from Box::into_raw; `&mut self` excludes users.
            drop(unsafe { Box::from_raw(page) });
        }
    }
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
                }
            }
            None => {
                known.names.clear();
                known.parents.clear();
                known.named = 0;
            }
        }
    }
}

impl Client {
    pub(crate) fn page(&self, server: ServerId) -> Option<&VersionPage> {
        let page = self.pages().versions.get(usize::from(server.0))?.get()?;
        (page.is_live() && !self.table().is_down(server)).then_some(page)
    }

    /// Asks a server of this node for its page, once. With no lock held: answers may take some.
    #[cold]
    fn fetch_page(&self, server: ServerId, page: &Shared<VersionPage>) {
        let here = self.map().server(server).is_some_and(|s| s.node == self.node());
        let memory =
            if here && self.local_access { self.node_memory(server, NodeRequest::Versions) } else { None };
        page.set(memory.and_then(|memory| VersionPage::attach(memory.as_fd()).ok()));
    }

    /// Where direct accesses to the sub-files of a server of this node are counted.
    pub(crate) fn traffic(&self, server: ServerId) -> Option<&TrafficPage> {
        self.pages().traffic.get(usize::from(server.0))?.get()
    }

    /// Asks a server of this node for its counters, once: it has just passed a sub-file.
    pub(crate) fn fetch_traffic(&self, server: ServerId) {
        if let Some(page) = self.pages().traffic.get(usize::from(server.0))
            && !page.is_known()
        {
            let memory = self.node_memory(server, NodeRequest::Traffic);
            page.set(memory.and_then(|memory| TrafficPage::attach(memory.as_fd()).ok()));
        }
    }

    pub(crate) fn seen(&self, shard: ShardId) -> Option<u64> {
        Some(self.page(self.map().primary(shard))?.shard(shard))
    }

    /// To be called before a question to a shard whose answer is to be kept. `None`: it cannot be.
    pub(crate) fn before(&self, shard: ShardId) -> Option<Before> {
        let server = self.map().primary(shard);
        if let Some(page) = self.pages().versions.get(usize::from(server.0))
            && !page.is_known()
        {
            self.fetch_page(server, page);
        }
        let page = self.page(server)?;
        // Learn of moves now: otherwise the answer itself would be dropped when this process learns of them.
        self.catch_up(server);
        Some(Before { era: self.era(), shard, server, total: page.total(), seen: page.shard(shard) })
    }

    /// The count to keep with an answer about `shard`, which came with the answer to the question after
    /// `before`.
    fn count_of(&self, before: Before, shard: ShardId) -> Option<u64> {
        if shard == before.shard {
            return Some(before.seen);
        }
        // In this order, the count is from a moment at which nothing had changed since the question.
        let page =
            (self.map().primary(shard) == before.server).then(|| self.page(before.server)).flatten()?;
        let seen = page.shard(shard);
        (page.total() == before.total).then_some(seen)
    }

    /// What a name leads to: `None` for not knowing, `Some(None)` for nothing.
    pub(crate) fn known_name(
        &self,
        reached: Reached,
        dir: Ino,
        shard: ShardId,
        name: &[u8],
    ) -> Option<Option<(Ino, FileKind)>> {
        let find = || self.facts().0.try_read().ok()?.names.get(&dir)?.get(name).copied();
        let mut fact: Name = find()?;
        let server = self.map().primary(fact.shard);
        if self.catch_up(server) {
            fact = find()?;
        }
        if reached.cached && self.era() != reached.era {
            return None;
        }
        let of_itself = matches!(fact.to, Some((ino, FileKind::Directory)) if ino.shard() == fact.shard);
        let page = self.page(server)?;
        ((fact.shard == shard || of_itself) && page.shard(fact.shard) == fact.seen).then_some(fact.to)
    }

    /// An inode's attributes, and the target of a symbolic link.
    pub(crate) fn known_inode(&self, ino: Ino) -> Option<(Box<Attr>, Vec<u8>)> {
        let (attr, target, seen) = {
            let known = self.facts().0.try_read().ok()?;
            let fact = known.inodes.get(&ino)?;
            (fact.attr.clone(), fact.target.to_vec(), fact.seen)
        };
        (self.seen(ino.shard())? == seen).then_some((attr, target))
    }

    /// The directory above a directory, and the name in it.
    pub(crate) fn known_parent(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let (dir, name, shard, seen) = {
            let known = self.facts().0.try_read().ok()?;
            let fact = known.parents.get(&ino)?;
            (fact.dir, fact.name.to_vec(), fact.shard, fact.seen)
        };
        (self.seen(shard)? == seen).then_some((dir, name))
    }

    /// Keeps what was answered about a name: `before` is of its shard.
    pub(crate) fn learn_name(
        &self,
        before: Option<Before>,
        dir: Ino,
        name: &[u8],
        to: Option<(Ino, FileKind)>,
    ) {
        let Some(before) = before else { return };
        if let Ok(mut known) = self.facts().0.try_write()
            && known.era == before.era
        {
            known.put_name(before, dir, name, to);
        }
    }

    /// Takes along the contents of a file that was opened by the question after `before`.
    pub(crate) fn keep(&self, before: Option<Before>, attr: &Attr, bytes: &[u8]) -> Option<Contents> {
        let shard = attr.ino.shard();
        let seen = self.count_of(before?, shard)?;
        (bytes.len() as u64 == attr.size).then(|| Contents { bytes: bytes.into(), shard, seen })
    }

    /// The contents, if nothing has changed.
    pub(crate) fn still<'c>(&self, contents: &'c Contents) -> Option<&'c [u8]> {
        (self.seen(contents.shard)? == contents.seen).then_some(&contents.bytes[..])
    }

    /// Keeps a directory's parent and name, as its own inode says; and thereby what that name leads to, if
    /// this process may look names up there. (A directory has only one name, and its shard's count changes
    /// before its name does.)
    pub(crate) fn learn_place(&self, before: Option<Before>, ino: Ino, dir: Ino, name: &[u8]) {
        self.learn_parent(before, ino, dir, name);
        if let Some(before) = before.filter(|before| before.shard == ino.shard())
            && self.may_search(dir)
            && let Ok(mut known) = self.facts().0.try_write()
            && known.era == before.era
        {
            known.put_name(before, dir, name, Some((ino, FileKind::Directory)));
        }
    }

    /// Whether this process is known to have the right to look names up in a directory.
    fn may_search(&self, dir: Ino) -> bool {
        self.credentials().uid == 0
            || self.known_inode(dir).is_some_and(|(a, _)| self.allowed(a.mode, a.uid, a.gid, SEARCH, true))
    }

    /// Keeps a directory's parent and name, as its own inode says.
    pub(crate) fn learn_parent(&self, before: Option<Before>, ino: Ino, dir: Ino, name: &[u8]) {
        if let Some(Before { shard, seen, .. }) = before.filter(|before| before.shard == ino.shard())
            && let Ok(mut known) = self.facts().0.try_write()
        {
            known.put_parent(ino, Parent { dir, name: name.into(), shard, seen });
        }
    }

    /// Keeps what was answered about an inode, to the question after `before`.
    pub(crate) fn learn_inode(&self, before: Option<Before>, attr: &Attr, target: &[u8]) {
        if let Some(before) = before
            && let Some(seen) = self.count_of(before, attr.ino.shard())
            && let Ok(mut known) = self.facts().0.try_write()
        {
            known.put_inode(seen, attr, target);
        }
    }
}

impl Client {
    /// Keeps what a listing says, if this process may look its names up. (Of names without attributes only
    /// those of directories, which are likely to be gone into.)
    pub(crate) fn learn_listing(
        &self,
        before: Option<Before>,
        dir: Ino,
        split: bool,
        (entries, attrs): (&[DirEntry], bool),
    ) {
        let Some(before) = before else { return };
        if !self.may_search(dir) {
            return;
        }
        let Ok(mut known) = self.facts().0.try_write() else { return };
        for entry in entries.iter().filter(|e| e.attr.is_some() || e.kind == FileKind::Directory || attrs) {
            let shard = namespace::entry_shard(dir, split, &entry.name);
            if known.era == before.era
                && let Some(seen) = self.count_of(before, shard)
            {
                known.put_name(
                    Before { shard, seen, ..before },
                    dir,
                    &entry.name,
                    Some((entry.ino, entry.kind)),
                );
            }
            // A link's target does not come with a listing.
            if let Some(attr) = &entry.attr
                && attr.kind != FileKind::Symlink
                && let Some(seen) = self.count_of(before, entry.ino.shard())
            {
                known.put_inode(seen, attr, b"");
            }
        }
    }
}

impl Known {
    fn put_name(&mut self, before: Before, dir: Ino, name: &[u8], to: Option<(Ino, FileKind)>) {
        if self.named > KEPT {
            self.names.clear();
            self.named = 0;
        }
        let names = self.names.entry(dir).or_default();
        let fact = Name { to, shard: before.shard, seen: before.seen };
        if let Some(known) = names.get_mut(name) {
            *known = fact;
        } else {
            names.insert(name.into(), fact);
            self.named += 1;
        }
        if let Some((ino, FileKind::Directory)) = to {
            self.put_parent(ino, Parent { dir, name: name.into(), shard: before.shard, seen: before.seen });
        }
    }

    fn put_parent(&mut self, ino: Ino, parent: Parent) {
        if self.parents.len() > KEPT {
            self.parents.clear();
        }
        self.parents.insert(ino, parent);
    }

    fn put_inode(&mut self, seen: u64, attr: &Attr, target: &[u8]) {
        if attr.split || attr.store == (Store::Blocks { settled: false }) {
            return;
        }
        if self.inodes.len() > KEPT {
            self.inodes.clear();
        }
        let fact = Inode { attr: Box::new(attr.clone()), target: target.into(), seen };
        self.inodes.insert(attr.ino, fact);
    }
}
