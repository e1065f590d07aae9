//! Open file descriptions, and the sizes of files that are being written.
//!
//! While somebody has a file in blocks open for writing, its record is *unsettled*: the data servers know its
//! size better. Closing descriptions report how far they wrote; the last one settles the record. Where a
//! report is missing or of another size version, or where a writer may have left holes, the data servers are
//! asked. An inode without links stays as long as it is open, also over a restart: its holders are in the
//! log.

use crate::draft::Draft;
use crate::error::Op;
use crate::inode::{Blocks, Inode};
use crate::mutation::{Mutation, Stamp};
use crate::partition::LockedShard;
use crate::shard::{Live, Opened, Shard, Written};
use crate::steps::Begun;
use crate::store::{Caller, Core};
use bivouac_layout::{Epoch, FileLayout, Ino, NodeId, ServerId, ShardId};
use bivouac_proto::attr::{FileKind, dense};
use bivouac_proto::data::{DataReply, DataRequest, WriteTime};
use bivouac_proto::header::OpenId;
use bivouac_proto::meta::{Reopened, Wrote};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Time};
use std::time::{Duration, Instant};

/// How long the server remembers that a description was given up: longer than a request can be on its way.
pub(crate) const STRAGGLERS: Duration = Duration::from_secs(120);

/// Registers an open file description, if it is not registered already. Pipes, sockets and devices are not
/// registered, because only a node's kernel can open those.
pub(crate) fn register(locked: &mut LockedShard<'_>, now: Time, ino: Ino, opened: Opened) -> Op<()> {
    locked.shard.is_wanted(opened.id)?;
    let inode = locked.shard.inode(ino)?;
    if !matches!(inode.kind(), FileKind::File | FileKind::Directory) {
        return Ok(());
    }
    let writes_blocks = opened.write && inode.as_blocks().is_some();
    let settled = inode.as_blocks().is_some_and(|b| b.settled);
    let (size, orphan) = (inode.size, inode.nlink == 0);
    let mut draft = Draft::new(now);
    if writes_blocks && settled {
        draft.push(Mutation::Stamp(ino, Stamp { settled: false, ..stamp(&inode) }));
    }
    if orphan {
        let mut holders = locked.shard.holders(ino);
        holders.retain(|id| *id != opened.id);
        holders.push(opened.id);
        draft.push(Mutation::PutOrphan(ino, holders));
    }
    locked.commit(draft)?;
    locked.shard.revived.remove(&(ino, opened.id));
    locked.shard.unconfirmed.remove(&(ino, opened.id));
    let live = locked.shard.live.entry(ino).or_default();
    if writes_blocks && settled {
        live.written = Written { append_end: opened.append.then_some(size), ..Written::default() };
    } else if writes_blocks && !live.has_writer() {
        // Somebody wrote to it before this server was restarted, or the data servers have not answered since
        // its last writer closed it. No report about those writes will come any more.
        live.written = Written { unsure: true, ..live.written };
    }
    if opened.write && !opened.append {
        live.written.append_end = None;
    }
    locked.keep_quietly(Mutation::PutOpen(ino, opened));
    Ok(())
}

/// An inode's stamp as it is.
pub(crate) fn stamp(inode: &Inode) -> Stamp {
    Stamp {
        size: inode.size,
        nlink: inode.nlink,
        mtime: inode.mtime,
        ctime: inode.ctime,
        settled: inode.as_blocks().is_some_and(|b| b.settled),
        allocated: inode.as_blocks().and_then(|b| b.allocated),
    }
}

/// What the data servers of a file know of it, taken together.
#[derive(Clone)]
pub(crate) struct Extent {
    /// The file's length, bytes.
    pub length: u64,
    /// Storage that it takes, bytes.
    pub allocated: u64,
    /// When it was last written.
    pub written: WriteTime,
    /// Who has a sub-file of it.
    pub servers: Vec<ServerId>,
}

/// What an inode notes of its file's storage: nothing if it follows from the size.
pub(crate) fn noted(allocated: u64, size: u64) -> Option<u64> {
    (allocated != dense(size)).then_some(allocated)
}

/// The stamp of a file that is settled now, at `size`, last written at `last` (0 or earlier: not since it was
/// settled before).
fn settled_stamp(inode: &Inode, size: u64, last: WriteTime, now: Time) -> Stamp {
    let mut stamp = Stamp { size, settled: true, ..stamp(inode) };
    let mtime_set = inode.as_blocks().map_or(Time::MIN, |b| b.mtime_set);
    if last.earliest > mtime_set.max(0) {
        // An mtime in the future was set before that write, so the write's time replaces it.
        stamp.mtime = if stamp.mtime > now { last.shown } else { stamp.mtime.max(last.shown) };
        stamp.ctime = stamp.ctime.max(last.shown);
    }
    stamp
}

/// Notes that a file's servers know its size better than the inode.
fn unsettle(locked: &mut LockedShard<'_>, ino: Ino, now: Time) -> Op<()> {
    let inode = locked.shard.inode(ino)?;
    if inode.as_blocks().is_some_and(|blocks| blocks.settled) {
        let mut draft = Draft::new(now);
        draft.push(Mutation::Stamp(ino, Stamp { settled: false, ..stamp(&inode) }));
        locked.commit(draft)?;
    }
    Ok(())
}

impl Shard {
    /// Notes that nobody holds a description any more, and that nobody will.
    pub(crate) fn give_up(&mut self, open: OpenId) {
        let now = Instant::now();
        // Amortized: the next sweep comes only after as many new descriptions as this one leaves.
        if self.abandoned.len() >= self.abandoned.capacity().max(64) {
            self.abandoned.retain(|_, since| now - *since < STRAGGLERS);
        }
        self.abandoned.insert(open, now);
    }

    /// EIO for a request on behalf of a description whose holders are all dead: nobody waits for the answer.
    pub(crate) fn is_wanted(&self, open: OpenId) -> Result<(), Errno> {
        let given_up = !self.abandoned.is_empty() && self.abandoned.contains_key(&open);
        if given_up { Err(Errno::IO) } else { Ok(()) }
    }
}

impl Core {
    /// The agent says that nobody holds a description any more. Without `ino` it does not know what the
    /// description opened, if anything.
    pub(crate) fn abandon(
        &self,
        shard: ShardId,
        ino: Option<Ino>,
        open: OpenId,
        wrote: Option<Wrote>,
    ) -> Result<Reply, Failure> {
        let found = self.partitions.with(shard, |locked| {
            locked.keep_quietly(Mutation::GiveUp(open));
            let has_it = |live: &Live| live.opens.iter().any(|o| o.id == open);
            Ok(ino.or_else(|| locked.shard.live.iter().find(|(_, live)| has_it(live)).map(|(ino, _)| *ino)))
        })?;
        match found {
            Some(ino) => self.release(None, ino, open, wrote),
            None => Ok(Reply::Done),
        }
    }

    pub(crate) fn reopen(&self, ino: Ino, open: OpenId, write: bool) -> Result<Reply, Failure> {
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            register(locked, now, ino, Opened { id: open, write, append: false })?;
            Ok(Reply::Done)
        })
    }

    /// Registers what a node's processes hold. What is gone is passed over.
    pub(crate) fn report(
        &self,
        (node, start, epoch): (NodeId, u64, Epoch),
        opens: &[Reopened],
        more: bool,
    ) -> Result<Reply, Failure> {
        if !self.has_followed() {
            // It does not wait yet for the agents to tell what is open in the shards that it takes over.
            return Err(Refusal::OldServer.into());
        }
        for &Reopened { ino, open, write, append } in opens {
            let now = self.outside.now();
            let registered = self
                .partitions
                .with(ino.shard(), |locked| register(locked, now, ino, Opened { id: open, write, append }));
            match registered {
                // Removed meanwhile, given up, or another server's.
                Ok(()) | Err(Failure::Errno(Errno::NOENT | Errno::IO)) => {}
                Err(failure) => return Err(failure),
            }
        }
        let map = self.outside.map();
        let others_answer = map.copies > 1 || !map.moving.is_empty();
        if !more && (start != self.start || others_answer && epoch != map.epoch) {
            return Err(Errno::AGAIN.into());
        }
        if !more && self.keeper.reported(node, epoch) {
            // Those who wait for locks look again.
            self.partitions.each_mut(|_, _| {});
            self.keeper.orphans();
        }
        Ok(Reply::Done)
    }

    pub(crate) fn release(
        &self,
        caller: Option<&Caller>,
        ino: Ino,
        open: OpenId,
        wrote: Option<Wrote>,
    ) -> Result<Reply, Failure> {
        self.release_while(caller, ino, open, wrote, || true)
    }

    /// The same, if a condition still holds when nothing else happens to the shard.
    pub(crate) fn release_while(
        &self,
        caller: Option<&Caller>,
        ino: Ino,
        open: OpenId,
        wrote: Option<Wrote>,
        holds: impl Fn() -> bool,
    ) -> Result<Reply, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let ask = self.partitions.with(ino.shard(), |locked| {
            locked.shard.is_not_busy(ino)?;
            if !holds() {
                return Ok(false);
            }
            let Some(inode) = locked.shard.inodes.get(ino) else {
                locked.shard.live.remove(&ino);
                return Ok(false);
            };
            let size_version = inode.size_version;
            let in_blocks = inode.as_blocks().is_some();
            let orphan = inode.nlink == 0;
            let live = locked.shard.live.entry(ino).or_default();
            let known = live.opens.iter().find(|o| o.id == open).copied();
            let wrote_blocks = in_blocks && (known.is_some_and(|o| o.write) || wrote.is_some());
            if wrote_blocks {
                note(&mut live.written, wrote, size_version, now);
                // Unknown here: opened before a restart, perhaps beside others that never report.
                live.written.unsure |= known.is_none();
            }
            let no_writer = !live.opens.iter().any(|o| o.write && o.id != open);
            if live.locks.is_empty() {
                locked.keep_quietly(Mutation::DropOpen(ino, open));
                locked.changed();
            } else {
                // Others may get its locks from now on: that must not be forgotten.
                locked.keep(Mutation::DropOpen(ino, open));
            }
            if locked.shard.learns_locks(locked.id) && !map.is_away(NodeId::of(open.agent)) {
                // Its agent may tell of its locks without knowing that they are gone. (One that is away is not believed, and
                // may have the file open when it is back.)
                locked.shard.give_up(open);
            }
            let late = known.is_none() && wrote.is_some_and(|wrote| wrote.end > 0 || wrote.unsure);
            if in_blocks && late && !orphan {
                // The size was settled without this writer, who outlived the server that knew of it.
                unsettle(locked, ino, now)?;
            }
            if orphan {
                let mut draft = Draft::freeing(now);
                if locked.shard.in_use(ino) {
                    draft.push(Mutation::PutOrphan(ino, locked.shard.holders(ino)));
                } else {
                    draft.drop_inode(locked.shard, &map, ino);
                }
                locked.commit(draft)?;
                locked.shard.rest(ino);
                return Ok(false);
            }
            let ask = wrote_blocks && no_writer && !settle_by_reports(locked, caller, ino, now)?;
            locked.shard.rest(ino);
            Ok(ask)
        })?;
        if ask {
            self.settle(ino)?;
        }
        Ok(Reply::Done)
    }

    /// Settles a file that nobody writes, by asking the data servers: what its writers would have reported
    /// may be lost.
    pub(crate) fn settle(&self, ino: Ino) -> Result<(), Failure> {
        let settled = self.in_steps(
            ino,
            |locked| {
                if locked.shard.live.get(&ino).is_some_and(Live::has_writer) {
                    return Ok(Begun::Done(()));
                }
                let inode = locked.shard.inodes.get(ino);
                let unsettled = |blocks: &&Blocks| !blocks.settled && blocks.truncating.is_none();
                let blocks = inode.as_ref().and_then(|inode| inode.as_blocks()).filter(unsettled);
                Ok(blocks.map_or(Begun::Done(()), |blocks| Begun::Work(blocks.layout.clone())))
            },
            |layout, _| self.extent(ino, layout),
            |locked, _, found| {
                let found = found.as_ref().map_err(|errno| *errno)?;
                let now = self.outside.now();
                let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(()) };
                let live = locked.shard.live.get(&ino);
                if inode.nlink > 0 && inode.as_blocks().is_some() && !live.is_some_and(Live::has_writer) {
                    let written = live.map(|l| l.written).unwrap_or_default();
                    let size = inode.size.max(found.length).max(written.end);
                    let last = WriteTime::exactly(written.last).max(found.written);
                    let allocated = noted(found.allocated, size);
                    let stamp = Stamp { allocated, ..settled_stamp(&inode, size, last, now) };
                    let blocks = inode.as_blocks();
                    let map = self.outside.map();
                    let reach = blocks.map_or(0, |blocks| blocks.reach_with(&map, size, &found.servers));
                    commit_settled(locked, None, ino, (stamp, reach, now))?;
                }
                Ok(())
            },
        );
        if settled.is_err() {
            self.keeper.settle(ino);
        }
        settled
    }

    /// Asks the servers of a file in blocks what they know of it. With copies, all answer by the same map: a holder leaves
    /// out what it cannot know to be everywhere, because the primary that it has by then counts it.
    pub(crate) fn extent(&self, ino: Ino, layout: &FileLayout) -> Result<Extent, Errno> {
        loop {
            let map = self.outside.map();
            let found = self.extent_by_any_map(ino, layout);
            if layout.copies(&map) == 1 || self.outside.map().epoch == map.epoch {
                return found;
            }
        }
    }

    fn extent_by_any_map(&self, ino: Ino, layout: &FileLayout) -> Result<Extent, Errno> {
        let asked = self.outside.now();
        let answers = self.ask_holders(None, layout, |map| {
            let servers = layout.servers_to_measure(map, u64::MAX);
            servers.into_iter().map(|server| (server, DataRequest::Extent { ino })).collect()
        })?;
        let answered = self.outside.now();
        let mut found = Extent { length: 0, allocated: 0, written: WriteTime::NEVER, servers: Vec::new() };
        for (server, answer) in answers {
            match answer {
                DataReply::Extent { length, allocated, written } => {
                    found.servers.extend(written.map(|_| server));
                    let written = written.map_or(WriteTime::NEVER, |w| w.time(asked, answered));
                    found.length = found.length.max(length);
                    found.allocated = found.allocated.saturating_add(allocated);
                    found.written = found.written.max(written);
                }
                _ => return Err(Errno::PROTO),
            }
        }
        found.allocated /= u64::from(layout.copies(&self.outside.map()).max(1));
        Ok(found)
    }
}

/// The one description that can have written to a file in blocks what its inode does not tell: of all others
/// it is settled.
pub(crate) fn only_writer(shard: &Shard, ino: Ino) -> Option<OpenId> {
    let inode = shard.inodes.get(ino)?;
    let live = shard.live.get(&ino)?;
    let mut writers = live.opens.iter().filter(|open| open.write);
    let (only, others) = (writers.next()?, writers.next());
    let known = !live.busy && !live.written.unsure && live.written.end <= inode.size;
    let unsettled = inode.as_blocks().is_some_and(|blocks| !blocks.settled && blocks.truncating.is_none());
    (unsettled && known && others.is_none() && !only.append).then_some(only.id)
}

/// Takes in what a closing description says about its writes.
fn note(written: &mut Written, wrote: Option<Wrote>, size_version: u32, now: Time) {
    match wrote {
        // The writer itself cannot report its writes: it died, and its agent sends the release.
        None => written.unsure = true,
        Some(wrote) => {
            written.unsure |= wrote.unsure;
            if wrote.end > 0 {
                written.last = written.last.max(now.saturating_sub_unsigned(wrote.age));
                if wrote.size_version == size_version {
                    written.end = written.end.max(wrote.end);
                } else {
                    // The file was truncated meanwhile; only the data servers know what was written since
                    // then.
                    written.unsure = true;
                }
            }
        }
    }
}

/// Settles a file that its last writer has closed, if the reports tell enough. Says whether there is nothing
/// left to be done.
fn settle_by_reports(locked: &mut LockedShard<'_>, caller: Option<&Caller>, ino: Ino, now: Time) -> Op<bool> {
    let inode = locked.shard.inodes.get(ino);
    let Some(inode) = inode.filter(|inode| inode.as_blocks().is_some_and(|blocks| !blocks.settled)) else {
        return Ok(true);
    };
    if inode.as_blocks().is_some_and(|blocks| blocks.truncating.is_some()) {
        // Finishing the truncation will settle it.
        return Ok(true);
    }
    let written = locked.shard.live.get(&ino).map(|l| l.written).unwrap_or_default();
    // What was written may have filled holes.
    let had_holes = inode.as_blocks().is_some_and(|blocks| blocks.allocated.is_some());
    let refilled = had_holes && (written.end > 0 || written.last > 0);
    if written.unsure || refilled {
        return Ok(false);
    }
    let stamp = settled_stamp(&inode, inode.size.max(written.end), WriteTime::exactly(written.last), now);
    let reach = stamp.size;
    commit_settled(locked, caller, ino, (stamp, reach, now))?;
    Ok(true)
}

fn commit_settled(
    locked: &mut LockedShard<'_>,
    caller: Option<&Caller>,
    ino: Ino,
    (stamp, reach, now): (Stamp, u64, Time),
) -> Op<()> {
    let mut draft = Draft::freeing(now);
    let known = locked.shard.inodes.get(ino).and_then(|inode| Some(inode.as_blocks()?.reach)).unwrap_or(0);
    if reach > known.max(stamp.size)
        && let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut)
    {
        blocks.reach = reach;
    }
    draft.push(Mutation::Stamp(ino, stamp));
    match caller {
        Some(caller) => locked.commit_for(caller, draft)?,
        None => locked.commit(draft)?,
    }
    if let Some(live) = locked.shard.live.get_mut(&ino) {
        live.written = Written::default();
    }
    Ok(())
}

/// Removes an inode that lost its last link while it was in use, and is not any more.
pub(crate) fn reap(locked: &mut LockedShard<'_>, map: &bivouac_layout::Map, ino: Ino, now: Time) -> Op<()> {
    let gone = locked.shard.inodes.get(ino).is_some_and(|i| i.nlink == 0);
    if gone && !locked.shard.in_use(ino) {
        let mut draft = Draft::freeing(now);
        draft.drop_inode(locked.shard, map, ino);
        locked.commit(draft)?;
    }
    locked.shard.rest(ino);
    Ok(())
}
