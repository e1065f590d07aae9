//! What of this process's memory is still true, and what is added to it.
//!
//! An answer about a name or an inode is kept with the count that its shard had before the question was
//! asked; as long as the version page of the shard's server shows the same count, the answer is as good as a
//! fresh one, and costs no round trip (see [`bivouac_node::versions`]). So this process never uses an
//! outdated answer, and no server has to send invalidations. Only servers of this node have version pages;
//! answers of others are not kept.

use super::Requests;
use crate::memory::Reached;
use crate::memory::facts::{Name, Parent};
use bivouac_layout::{Ino, ServerId, ShardId, namespace};
use bivouac_proto::attr::{Attr, DirEntry, FileKind, Store};
use bivouac_proto::meta::{Change, MetaReply, MetaRequest};

/// The permission to look names up.
const SEARCH: u32 = 1;

/// A small file's contents, which came when it was opened.
pub(crate) struct Contents {
    bytes: Box<[u8]>,
    shard: ShardId,
    seen: u64,
}

/// A shard's count before a question, with the sum of its server's.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    /// Of names: see [`crate::memory::Reached`].
    pub(crate) era: u64,
    pub(crate) shard: ShardId,
    server: ServerId,
    pub(crate) seen: u64,
    total: u64,
}

impl Before {
    /// The shard's count.
    pub(crate) fn count(self) -> u64 {
        self.seen
    }
}

impl Requests {
    /// To be called before a question to a shard whose answer is to be kept. `None`: it cannot be.
    pub(crate) fn before(&self, shard: ShardId) -> Option<Before> {
        let server = self.session().map().primary(shard);
        if let Some(page) = self.pages().versions.get(server)
            && !page.is_known()
        {
            self.fetch_page(server, page);
        }
        let page = self.page(server)?;
        // Learn of moves now: otherwise the answer itself would be dropped when this process learns of them.
        self.catch_up(server);
        Some(Before { era: self.memory().era(), shard, server, total: page.total(), seen: page.shard(shard) })
    }

    /// The count to keep with an answer about `shard`, which came with the answer to the question after
    /// `before`.
    fn count_of(&self, before: Before, shard: ShardId) -> Option<u64> {
        if shard == before.shard {
            return Some(before.seen);
        }
        // In this order, the count is from a moment at which nothing had changed since the question.
        let page = (self.session().map().primary(shard) == before.server)
            .then(|| self.page(before.server))
            .flatten()?;
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
            let known = self.memory().facts().0.try_read().ok()?;
            let fact = known.names.get(&dir).and_then(|names| names.get(name)).copied();
            let absent =
                || known.complete.get(&dir).map(|seen| Name { to: None, shard: dir.shard(), seen: *seen });
            let fact: Name = fact.or_else(absent)?;
            Some(Name { seen: known.runs.until(fact.shard, fact.seen), ..fact })
        };
        let mut fact = find()?;
        let server = self.session().map().primary(fact.shard);
        if self.catch_up(server) {
            fact = find()?;
        }
        if reached.cached && self.memory().era() != reached.era {
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
            let known = self.memory().facts().0.try_read().ok()?;
            let fact = known.inodes.get(&ino)?;
            (fact.attr.clone(), fact.target.to_vec(), known.runs.until(ino.shard(), fact.seen))
        };
        (self.seen(ino.shard())? == seen).then_some((attr, target))
    }

    /// The directory above a directory, and the name in it.
    pub(crate) fn known_parent(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let (dir, name, shard, seen) = {
            let known = self.memory().facts().0.try_read().ok()?;
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
        if let Ok(mut known) = self.memory().facts().0.try_write()
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
            && let Ok(mut known) = self.memory().facts().0.try_write()
            && known.era == before.era
        {
            known.put_name((before.shard, before.seen), dir, name, Some((ino, FileKind::Directory)));
        }
    }

    /// Whether this process is known to have the right to look names up in a directory.
    pub(crate) fn may_search(&self, dir: Ino) -> bool {
        self.session().credentials().uid == 0
            || self
                .known_inode(dir)
                .is_some_and(|(a, _)| self.session().allowed(a.mode, a.uid, a.gid, SEARCH, true))
    }

    /// Keeps a directory's parent and name, as its own inode says.
    pub(crate) fn learn_parent(&self, before: Option<Before>, ino: Ino, dir: Ino, name: &[u8]) {
        if let Some(Before { shard, seen, .. }) = before.filter(|before| before.shard == ino.shard())
            && let Ok(mut known) = self.memory().facts().0.try_write()
        {
            known.put_parent(ino, Parent { dir, name: name.into(), shard, seen });
        }
    }

    /// Keeps what was answered about an inode, to the question after `before`.
    pub(crate) fn learn_inode(&self, before: Option<Before>, attr: &Attr, target: &[u8]) {
        if let Some(before) = before
            && let Some(seen) = self.count_of(before, attr.ino.shard())
            && let Ok(mut known) = self.memory().facts().0.try_write()
        {
            known.put_inode(seen, attr, target);
        }
    }

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
        let Ok(mut known) = self.memory().facts().0.try_write() else { return };
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

    /// Takes in what a request has changed. `era`: that of before it was sent; `written`: how much a write
    /// has written, bytes.
    pub(crate) fn has_changed(
        &self,
        era: u64,
        shard: ShardId,
        (request, written): (&MetaRequest<'_>, usize),
        reply: &MetaReply,
        change: Change,
    ) {
        // Others than servers of this node are not believed later.
        if change.count == 0 || self.page(self.session().map().primary(shard)).is_none() {
            return;
        }
        if let Ok(mut known) = self.memory().facts().0.try_write() {
            known.change(era, shard, (request, written), reply, change);
        }
    }
}
