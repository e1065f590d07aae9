//! Facts: what this process has read of the metadata and what is still true.
//!
//! An answer about a name or an inode is kept with the count that its shard had before the question was
//! asked; as long as the version page of the shard's server shows the same count, the answer is as good as a
//! fresh one, and costs no round trip (see [`bivouac_node::versions`]). So this process never uses an
//! outdated answer, and no server has to send invalidations. Only servers of this node have version pages;
//! answers of others are not kept.
//!
//! Kept are: what a name leads to, or that it is not there; the attributes of an inode as its server has them
//! (the data servers know size and time of a file that is being written to better, and are asked:
//! [`Client::exact`]; attributes of a split directory are not kept, because its times lie in several shards),
//! with a symbolic link's target; and the parent of a directory and its name there.
//!
//! A change by this process itself, through a server of its node, leaves everything else as it was
//! ([`crate::own`]).
//!
//! Names were read with this process's permission to search the directory: they are dropped when the
//! directory loses search permission ([`crate::moves`]). A thread that finds the lock of this cache taken
//! goes on as if nothing were known.

use crate::host::OwnFd;
use crate::moves::Reached;
use crate::own::Runs;
use crate::rpc::To;
use crate::session::Client;
use bivouac_layout::{Ino, ServerId, ShardId, namespace};
use bivouac_node::{ByServer, FencePage, VersionPage};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, DirEntry, FileKind, Store};
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::node::NodeRequest;
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, RwLock};

/// When there are so many facts of a kind, all of them are dropped.
const KEPT: usize = 1 << 17;

/// A directory with more entries is not listed for the sake of what is not in it.
const WHOLE: u32 = 256;

/// The permission to look names up.
const SEARCH: u32 = 1;

/// What this node's servers share with its processes, by server number: the version pages to read, and the
/// fence pages for direct accesses.
#[derive(Default)]
pub(crate) struct Pages {
    versions: ByServer<Shared<VersionPage>>,
    fences: ByServer<Shared<Fences>>,
}

/// A server's fence page.
struct Fences {
    page: Arc<FencePage>,
    /// Of which succession of the server: another process may have its number since, on the same node.
    succession: u32,
    /// Kept for a server that follows when this one is killed: it looks for the page in `/proc`.
    _for_server: OwnFd,
}

/// A server's page as far as it is known: null before it was asked for, [`Shared::ABSENT`] where there is
/// none, or from `Box::into_raw`. (Not a `OnceLock`: a child that is forked while another thread fills that
/// in would wait for ever.)
struct Shared<T>(AtomicPtr<T>);

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
    absent: HashMap<Ino, u32>,
    pub(crate) inodes: HashMap<Ino, Inode>,
    parents: HashMap<Ino, Parent>,
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
    target: Box<[u8]>,
    pub(crate) seen: u64,
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

impl<T> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared(AtomicPtr::default())
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

    /// Takes the place of a page that is of no use any more. That one stays: others may be looking at it.
    fn replace(&self, old: &T, page: T) {
        let (old, new) = (std::ptr::from_ref(old).cast_mut(), Box::into_raw(Box::new(page)));
        if self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
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

impl Client {
    pub(crate) fn page(&self, server: ServerId) -> Option<&VersionPage> {
        let page = self.pages().versions.get(server)?.get()?;
        (page.is_live() && !self.table().is_down(server)).then_some(page)
    }

    /// Asks a server of this node for its page, once. With no lock held: answers may take some.
    #[cold]
    fn fetch_page(&self, server: ServerId, page: &Shared<VersionPage>) {
        let here = self.map().server(server).is_some_and(|s| s.node == self.node());
        let asked = here && self.local_access;
        let memory = asked.then(|| self.node_memory(server, NodeRequest::Versions).ok()).flatten();
        page.set(memory.and_then(|memory| VersionPage::attach(memory.as_fd()).ok()));
    }

    /// The fence page of a server of this node, of this succession, once it was asked for.
    fn fences(&self, server: ServerId, succession: u32) -> Option<Arc<FencePage>> {
        let known = self.pages().fences.get(server)?.get()?;
        (known.succession == succession).then(|| known.page.clone())
    }

    /// The same, and asks for it. Without one, nothing is accessed directly.
    pub(crate) fn fetch_fences(&self, server: ServerId, succession: u32) -> Option<Arc<FencePage>> {
        let place = self.pages().fences.get(server)?;
        let known = place.get();
        if known.is_some_and(|known| known.succession == succession) || known.is_none() && place.is_known() {
            return self.fences(server, succession);
        }
        match self.node_memory(server, NodeRequest::Fences) {
            Ok(memory) => {
                let page = FencePage::attach(memory.as_fd()).ok().map(Arc::new);
                let keep = |page| Fences { page, succession, _for_server: OwnFd::new(self.host(), memory) };
                let page = page.map(keep);
                match (known, page) {
                    (None, page) => place.set(page),
                    (Some(known), Some(page)) => place.replace(known, page),
                    (Some(_), None) => {}
                }
            }
            Err(Errno::NOENT) if known.is_none() => place.set(None),
            Err(_) => {}
        }
        self.fences(server, succession)
    }

    pub(crate) fn seen(&self, shard: ShardId) -> Option<u64> {
        Some(self.page(self.map().primary(shard))?.shard(shard))
    }

    /// To be called before a question to a shard whose answer is to be kept. `None`: it cannot be.
    pub(crate) fn before(&self, shard: ShardId) -> Option<Before> {
        let server = self.map().primary(shard);
        if let Some(page) = self.pages().versions.get(server)
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
        let find = || {
            let known = self.facts().0.try_read().ok()?;
            let fact = known.names.get(&dir).and_then(|names| names.get(name)).copied();
            let absent =
                || known.complete.get(&dir).map(|seen| Name { to: None, shard: dir.shard(), seen: *seen });
            let fact: Name = fact.or_else(absent)?;
            Some(Name { seen: known.runs.until(fact.shard, fact.seen), ..fact })
        };
        let mut fact = find()?;
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

    /// An inode's attributes, and the target of a symbolic link. (None of a file that was being written to
    /// when they came: by now its server may have been told what only others knew.)
    pub(crate) fn known_inode(&self, ino: Ino) -> Option<(Box<Attr>, Vec<u8>)> {
        self.known_record(ino).filter(|(attr, _)| attr.store != Store::Blocks { settled: false })
    }

    /// The same, also of a file that is being written to: what its server has.
    pub(crate) fn known_record(&self, ino: Ino) -> Option<(Box<Attr>, Vec<u8>)> {
        let (attr, target, seen) = {
            let known = self.facts().0.try_read().ok()?;
            let fact = known.inodes.get(&ino)?;
            (fact.attr.clone(), fact.target.to_vec(), known.runs.until(ino.shard(), fact.seen))
        };
        (self.seen(ino.shard())? == seen).then_some((attr, target))
    }

    /// The directory above a directory, and the name in it.
    pub(crate) fn known_parent(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let (dir, name, shard, seen) = {
            let known = self.facts().0.try_read().ok()?;
            let fact = known.parents.get(&ino)?;
            (fact.dir, fact.name.to_vec(), fact.shard, known.runs.until(fact.shard, fact.seen))
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
            known.put_name((before.shard, before.seen), dir, name, to);
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
            known.put_name((before.shard, before.seen), dir, name, Some((ino, FileKind::Directory)));
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
                known.put_name((shard, seen), dir, &entry.name, Some((entry.ino, entry.kind)));
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

impl Client {
    /// A name was looked up in a directory and was not there. Who does so again and again mostly makes what
    /// he has not found: then it costs less to know all names of the directory. (It is listed the less often,
    /// the more often that was no good.)
    pub(crate) fn was_absent(&self, dir: Ino) {
        let times = match self.facts().0.try_write() {
            Ok(mut known) => {
                if known.absent.len() > KEPT {
                    known.absent.clear();
                }
                let times = known.absent.entry(dir).or_default();
                *times = times.saturating_add(1);
                *times
            }
            Err(_) => return,
        };
        if times > 1 && times.is_power_of_two() && !self.paths().is_split(dir) && self.may_search(dir) {
            self.learn_all(dir);
        }
    }

    /// Learns all names of a directory, if it is not large.
    fn learn_all(&self, dir: Ino) {
        let Some(before) = self.before(dir.shard()) else { return };
        let request = MetaRequest::ReadDir { dir, split: false, after: 2, limit: WHOLE, attrs: false };
        let listed = self.meta(To::inode(dir), &request, &[], &mut []);
        let Ok((MetaReply::Listing { entries, end: true }, _)) = listed else { return };
        let Ok(mut known) = self.facts().0.try_write() else { return };
        if known.era != before.era || known.runs.is_past(before.shard, before.seen) {
            return;
        }
        for entry in &entries {
            known.put_name((before.shard, before.seen), dir, &entry.name, Some((entry.ino, entry.kind)));
        }
        known.complete.insert(dir, before.seen);
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

    fn put_parent(&mut self, ino: Ino, parent: Parent) {
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
