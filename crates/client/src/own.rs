//! What this process's own changes do to what it knows.
//!
//! A change raises its shard's count, and with that everything that is known of the shard is in doubt ([`crate::facts`]): also what the change has
//! not touched, and what its answer has just told. So an answer says which count the change has made ([`Change`]). If everything was known as
//! of the count before, nobody else has changed anything in between: what the change touched is brought up to date or
//! forgotten, and all else goes on to hold under the new count. A *run* is such a row of counts of one shard.
//!
//! An answer to a question that was asked before a change may come after it, and may or may not show it. It is not kept, because its
//! count is within a run and not at its end. Where a fact is adjusted rather than replaced, it must not show the change yet:
//! its ctime says so.

use crate::facts::{Known, Name};
use crate::session::Client;
use bivouac_layout::{Ino, ShardId};
use bivouac_proto::Time;
use bivouac_proto::attr::{Attr, FileKind, Store};
use bivouac_proto::meta::{At, Change, MetaReply, MetaRequest};
use std::collections::HashMap;

/// Set-user-ID and set-group-ID bits of a mode.
const SET_ID: u16 = 0o6000;

/// Counts of a shard between which this process alone has changed it.
#[derive(Clone, Copy)]
struct Run {
    from: u64,
    to: u64,
}

/// The latest run of each shard that this process has changed.
#[derive(Default)]
pub(crate) struct Runs(HashMap<ShardId, Run>);

impl Runs {
    /// Until which count that holds which was seen under this one, as far as is known here.
    pub(crate) fn until(&self, shard: ShardId, seen: u64) -> u64 {
        match self.0.get(&shard) {
            Some(run) if (run.from..=run.to).contains(&seen) => run.to,
            _ => seen,
        }
    }

    /// Whether this process has changed the shard since it had this count.
    pub(crate) fn is_past(&self, shard: ShardId, seen: u64) -> bool {
        self.0.get(&shard).is_some_and(|run| seen < run.to)
    }

    /// A change has made this count out of the one before. False: more is known already.
    fn extend(&mut self, shard: ShardId, to: u64) -> bool {
        let run = self.0.entry(shard).or_insert(Run { from: to - 1, to: to - 1 });
        if run.to >= to {
            return false;
        }
        if run.to != to - 1 {
            run.from = to - 1;
        }
        run.to = to;
        true
    }
}

impl Client {
    /// Takes in what a request has changed. `era`: that of before it was sent; `written`: how much a write has written, bytes.
    pub(crate) fn has_changed(
        &self,
        era: u64,
        shard: ShardId,
        (request, written): (&MetaRequest<'_>, usize),
        reply: &MetaReply,
        change: Change,
    ) {
        // Others than servers of this node are not believed later.
        if change.count == 0 || self.page(self.map().primary(shard)).is_none() {
            return;
        }
        if let Ok(mut known) = self.facts().0.try_write() {
            known.change(era, shard, (request, written), reply, change);
        }
    }
}

impl Known {
    fn change(
        &mut self,
        era: u64,
        shard: ShardId,
        (request, written): (&MetaRequest<'_>, usize),
        reply: &MetaReply,
        change: Change,
    ) {
        let Change { count, time, .. } = change;
        let before = count - 1;
        match (request, reply) {
            (MetaRequest::Open { at, .. }, MetaReply::Opened { attr, created: true, target })
            | (MetaRequest::MakeNode { at, .. }, MetaReply::Entry { attr, target }) => {
                if self.runs.extend(shard, count) {
                    self.count_entry(at, before, change, 1);
                    self.set_name(era, shard, at, count, Some((attr.ino, attr.kind)));
                    self.set_inode(count, attr, target);
                }
            }
            (MetaRequest::Unlink { at }, _) => {
                // Which inode has lost a name is not told.
                let named = self.names.get(&at.dir).and_then(|names| names.get(at.name)).copied();
                if let Some(Name { to: Some((ino, _)), shard: of, seen }) = named
                    && of == shard
                    && self.runs.until(shard, seen) == before
                    && self.runs.extend(shard, count)
                {
                    self.count_entry(at, before, change, -1);
                    self.set_name(era, shard, at, count, None);
                    self.inodes.remove(&ino);
                }
            }
            (MetaRequest::SetAttr { .. } | MetaRequest::Spill { .. }, MetaReply::Attr(attr)) => {
                if self.runs.extend(shard, count) {
                    self.set_inode(count, attr, b"");
                }
            }
            (MetaRequest::WriteInline { ino, offset }, _) => {
                if self.runs.extend(shard, count) {
                    let end = offset.saturating_add(written as u64);
                    self.adjust(*ino, before, change, |attr| {
                        let plain = attr.store == Store::Inline && attr.mode & SET_ID == 0;
                        attr.size = attr.size.max(end);
                        (attr.mtime, attr.ctime) = (time, time);
                        plain
                    });
                }
            }
            (MetaRequest::Release { ino, .. }, _) => {
                if self.runs.extend(shard, count) {
                    self.inodes.remove(ino);
                }
            }
            _ => {}
        }
    }

    /// An entry that is no directory has come or gone.
    fn count_entry(&mut self, at: &At<'_>, before: u64, change: Change, by: i64) {
        let time: Time = change.time;
        self.adjust(at.dir, before, change, |attr| {
            attr.size = attr.size.saturating_add_signed(by);
            (attr.mtime, attr.ctime) = (time, time);
            !at.split && !attr.split
        });
    }

    /// Brings what is known of an inode up to date, or forgets it if that is not to be had.
    fn adjust(&mut self, ino: Ino, before: u64, change: Change, adjust: impl FnOnce(&mut Attr) -> bool) {
        let runs = &self.runs;
        if let Some(fact) = self.inodes.get_mut(&ino) {
            let held = fact.seen == before || runs.until(ino.shard(), fact.seen) == change.count;
            if held && fact.attr.ctime < change.time && adjust(&mut fact.attr) {
                fact.seen = change.count;
            } else {
                self.inodes.remove(&ino);
            }
        }
    }

    fn set_inode(&mut self, count: u64, attr: &Attr, target: &[u8]) {
        self.inodes.remove(&attr.ino);
        if attr.kind != FileKind::Symlink || !target.is_empty() {
            self.put_inode(count, attr, target);
        }
    }

    fn set_name(&mut self, era: u64, shard: ShardId, at: &At<'_>, seen: u64, to: Option<(Ino, FileKind)>) {
        if self.era == era {
            self.put_name((shard, seen), at.dir, at.name, to);
        } else if let Some(names) = self.names.get_mut(&at.dir)
            && names.remove(at.name).is_some()
        {
            self.named -= 1;
        }
    }
}
