//! What this process's own changes do to what it knows.
//!
//! A change raises its shard's count, and with that everything that is known of the shard is in doubt
//! ([`super::facts`]): also what the change has not touched, and what its answer has just told. So an answer
//! says which count the change has made ([`Change`]). If everything was known as of the count before, nobody
//! else has changed anything in between: what the change touched is brought up to date or forgotten, and all
//! else goes on to hold under the new count. A *run* is such a row of counts of one shard.
//!
//! An answer to a question that was asked before a change may come after it, and may or may not show it. It
//! is not kept, because its count is within a run and not at its end. Where a fact is adjusted rather than
//! replaced, it must not show the change yet: its ctime says so.

use super::facts::Known;
use bivouac_layout::{Ino, ShardId};
use bivouac_proto::attr::{Attr, FileKind, Store, Time};
use bivouac_proto::meta::{At, Change, MetaReply, MetaRequest, RenameMode};
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

impl Known {
    pub(crate) fn change(
        &mut self,
        era: u64,
        shard: ShardId,
        (request, written): (&MetaRequest<'_>, usize),
        reply: &MetaReply,
        change: Change,
    ) {
        let Change { count, time, .. } = change;
        let before = count - 1;
        // Each arm knows what its request has touched, and extends the run. Where none does, the new count
        // ends what was known.
        match (request, reply) {
            (MetaRequest::Open { at, .. }, MetaReply::Opened { attr, created: true, target })
            | (MetaRequest::MakeNode { at, .. }, MetaReply::Entry { attr, target })
                if self.runs.extend(shard, count) =>
            {
                self.count_entry(at, before, change, 1);
                self.set_name(era, shard, at, count, Some((attr.ino, attr.kind)));
                self.set_inode(count, attr, target);
            }
            (MetaRequest::Unlink { at }, _) => {
                // Which inode has lost a name is not told.
                if let Some(Some((ino, _))) = self.named(shard, before, at)
                    && self.runs.extend(shard, count)
                {
                    self.count_entry(at, before, change, -1);
                    self.set_name(era, shard, at, count, None);
                    self.inodes.remove(&ino);
                }
            }
            (MetaRequest::Rename { from, to, mode }, _) if *mode != RenameMode::Exchange => {
                let named = |at: &At<'_>| self.named(shard, before, at);
                if let (Some(Some(moved)), Some(target)) = (named(from), named(to))
                    && moved.1 != FileKind::Directory
                    && target.is_none_or(|target| target.0 != moved.0)
                    && self.runs.extend(shard, count)
                {
                    let gone = if target.is_some() { -1 } else { 0 };
                    if from.dir == to.dir {
                        self.count_entry(from, before, change, gone);
                    } else {
                        self.count_entry(from, before, change, -1);
                        self.count_entry(to, before, change, 1 + gone);
                    }
                    self.set_name(era, shard, from, count, None);
                    self.set_name(era, shard, to, count, Some(moved));
                    for (ino, _) in target.into_iter().chain([moved]) {
                        self.inodes.remove(&ino);
                    }
                }
            }
            (MetaRequest::SetAttr { .. } | MetaRequest::Spill { .. }, MetaReply::Attr(attr))
                if self.runs.extend(shard, count) =>
            {
                self.set_inode(count, attr, b"");
            }
            (MetaRequest::WriteInline { ino, offset }, _) if self.runs.extend(shard, count) => {
                let end = offset.saturating_add(written as u64);
                self.adjust(*ino, before, change, |attr| {
                    let plain = attr.store == Store::Inline && attr.mode & SET_ID == 0;
                    attr.size = attr.size.max(end);
                    (attr.mtime, attr.ctime) = (time, time);
                    plain
                });
            }
            (MetaRequest::Release { ino, .. }, _) if self.runs.extend(shard, count) => {
                self.inodes.remove(ino);
            }
            _ => {}
        }
    }

    /// What a name led to before a change; `None` for not knowing.
    fn named(&self, shard: ShardId, before: u64, at: &At<'_>) -> Option<Option<(Ino, FileKind)>> {
        let holds = |of: ShardId, seen: u64| of == shard && self.runs.until(of, seen) == before;
        match self.names.get(&at.dir).and_then(|names| names.get(at.name)) {
            Some(name) => holds(name.shard, name.seen).then_some(name.to),
            None => {
                let seen = *self.complete.get(&at.dir)?;
                (!at.split && holds(at.dir.shard(), seen)).then_some(None)
            }
        }
    }

    /// An entry that is no directory has come or gone, or led elsewhere.
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
        } else {
            self.complete.remove(&at.dir);
            if self.names.get_mut(&at.dir).is_some_and(|names| names.remove(at.name).is_some()) {
                self.named -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_proto::meta::OpenHow;
    use bivouac_proto::{Errno, OpenId};

    const SHARD: ShardId = ShardId(7);
    const DIR: Ino = Ino(7 << 52 | 1);
    const FILE: Ino = Ino(7 << 52 | 2);
    const OTHER: Ino = Ino(7 << 52 | 3);

    fn at(name: &[u8]) -> At<'_> {
        At { dir: DIR, split: false, name }
    }

    fn attr(ino: Ino, kind: FileKind, changed: Time) -> Attr {
        Attr {
            ino,
            kind,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            atime: 0,
            mtime: changed,
            ctime: changed,
            btime: 0,
            store: Store::Inline,
            size_version: 0,
            split: false,
            xattrs: false,
            layout: None,
            mtime_set: None,
            allocated: None,
        }
    }

    /// A process that knows an empty directory and a file elsewhere in its shard, as of count 10 and time
    /// 100.
    fn known() -> Known {
        let mut known = Known::default();
        assert_eq!(DIR.shard(), SHARD);
        known.put_inode(10, &attr(DIR, FileKind::Directory, 100), b"");
        known.put_inode(10, &attr(OTHER, FileKind::File, 100), b"");
        known.complete.insert(DIR, 10);
        known
    }

    /// What is known of an inode under a count.
    fn seen(known: &Known, ino: Ino, count: u64) -> Result<&Attr, Errno> {
        let fact = known.inodes.get(&ino).ok_or(Errno::NOENT)?;
        if known.runs.until(ino.shard(), fact.seen) == count { Ok(&fact.attr) } else { Err(Errno::STALE) }
    }

    fn create(known: &mut Known, name: &[u8], count: u64, time: Time) {
        let request = MetaRequest::Open { at: at(name), how: OpenHow::default(), open: OpenId::default() };
        let attr = Box::new(attr(FILE, FileKind::File, time));
        let reply = MetaReply::Opened { attr, created: true, target: Vec::new() };
        known.change(0, SHARD, (&request, 0), &reply, Change { count, time, writer: None });
    }

    #[test]
    fn what_a_change_has_not_touched_goes_on_to_hold_and_what_it_has_is_up_to_date() {
        let mut known = known();
        create(&mut known, b"a", 11, 200);
        assert_eq!(seen(&known, OTHER, 11).map(|attr| attr.ctime), Ok(100));
        assert_eq!(seen(&known, FILE, 11).map(|attr| attr.size), Ok(0));
        assert_eq!(seen(&known, DIR, 11).map(|attr| (attr.size, attr.mtime)), Ok((1, 200)));
        let write = MetaRequest::WriteInline { ino: FILE, offset: 5 };
        known.change(0, SHARD, (&write, 7), &MetaReply::Done, Change { count: 12, time: 300, writer: None });
        assert_eq!(seen(&known, FILE, 12).map(|attr| (attr.size, attr.mtime)), Ok((12, 300)));
        assert_eq!(known.named(SHARD, 12, &at(b"a")), Some(Some((FILE, FileKind::File))));
        assert_eq!(known.named(SHARD, 12, &at(b"b")), Some(None), "all names are known");
        let (from, to) = (at(b"a"), at(b"b"));
        let rename = MetaRequest::Rename { from, to, mode: RenameMode::Replace };
        known.change(0, SHARD, (&rename, 0), &MetaReply::Done, Change { count: 13, time: 400, writer: None });
        assert_eq!(known.named(SHARD, 13, &at(b"a")), Some(None));
        assert_eq!(known.named(SHARD, 13, &at(b"b")), Some(Some((FILE, FileKind::File))));
        assert_eq!(seen(&known, DIR, 13).map(|attr| (attr.size, attr.mtime)), Ok((1, 400)));
        assert_eq!(seen(&known, FILE, 13), Err(Errno::NOENT), "it has another ctime now");
        let unlink = MetaRequest::Unlink { at: at(b"b") };
        known.change(0, SHARD, (&unlink, 0), &MetaReply::Done, Change { count: 14, time: 500, writer: None });
        assert_eq!(seen(&known, DIR, 14).map(|attr| (attr.size, attr.mtime)), Ok((0, 500)));
        assert_eq!(known.named(SHARD, 14, &at(b"b")), Some(None));
        assert!(seen(&known, OTHER, 14).is_ok());
    }

    #[test]
    fn a_change_by_somebody_else_in_between_ends_what_was_known() {
        let mut known = known();
        create(&mut known, b"a", 12, 200);
        assert!(seen(&known, FILE, 12).is_ok());
        assert_eq!(seen(&known, OTHER, 12), Err(Errno::STALE));
        assert_eq!(seen(&known, DIR, 12), Err(Errno::NOENT));
        assert_eq!(known.named(SHARD, 12, &at(b"b")), None);
        // What the page shows after another change of somebody else's.
        assert_eq!(seen(&known, FILE, 13), Err(Errno::STALE));
    }

    #[test]
    fn answers_to_questions_from_before_a_change_are_not_kept_and_do_not_count_it_twice() {
        let mut known = known();
        // Asked under count 10, answered after the change, taken in before its answer.
        known.put_inode(10, &Attr { size: 1, ..attr(DIR, FileKind::Directory, 200) }, b"");
        create(&mut known, b"a", 11, 200);
        assert_eq!(seen(&known, DIR, 11), Err(Errno::NOENT));
        // The same, taken in after it.
        known.put_inode(10, &attr(DIR, FileKind::Directory, 100), b"");
        known.put_name((SHARD, 10), DIR, b"a", None);
        assert_eq!(seen(&known, DIR, 11), Err(Errno::NOENT));
        assert_eq!(known.named(SHARD, 11, &at(b"a")), Some(Some((FILE, FileKind::File))));
        // An older change whose answer comes late.
        create(&mut known, b"c", 11, 150);
        assert!(!known.names[&DIR].contains_key(&b"c"[..]));
    }

    #[test]
    fn names_made_after_a_move_are_not_known_and_neither_is_what_is_not_there() {
        let mut known = known();
        known.era = 1;
        create(&mut known, b"a", 11, 200);
        assert_eq!(known.named(SHARD, 11, &at(b"a")), None);
        assert_eq!(known.named(SHARD, 11, &at(b"b")), None);
    }
}
