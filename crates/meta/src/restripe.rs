//! Restriping: ranges of files go to other servers, driven by the server of the inode.
//!
//! One *step* takes one range of a file to where it is to be by the map ([`bivouac_layout::restripe`]). It is logged before
//! anybody hears of it, so that whoever answers for the shard then, after a crash or a takeover, ends it:
//!
//! 1. The step is logged. From then on, whoever would change the file's size, or ask for it, waits ([`Core::in_steps`]); and
//!    so does who wants to open it for writing, if nobody has.
//! 2. The servers that have the range keep changes of it out. Those that are to have it take it.
//! 3. That it is *decided* is logged, and synced, as what was taken has been. (If anything has failed before that, the step is undone at all servers, and forgotten.)
//! 4. Those that had the range give it up, and refuse from then on who goes by the old layout.
//! 5. The new layout becomes the inode's. Until then nobody could see it; so nobody changes at the new servers what others
//!    still read at the old ones.
//!
//! If nobody has the file open for writing, only those servers take part that have some of it. Otherwise all do that could get
//! some by the old layout; and the first step is one that moves hardly anything: what is added from then on goes to the new
//! servers, so that the restriping of a file that grows all the time ends.
//!
//! A file that a kernel holds (mapped, or open in a mount that passes it through) waits until it is closed.

use crate::draft::Draft;
use crate::error::{Op, Stop};
use crate::holders;
use crate::inode::Inode;
use crate::mutation::Mutation;
use crate::opens::reap;
use crate::outside::Standing;
use crate::partition::LockedShard;
use crate::shard::Shard;
use crate::store::{Core, MetaStore, lock};
use bivouac_layout::{FileLayout, Group, Ino, Map, Piece, Rebuild, Rule, ServerId, restripe};
use bivouac_proto::control::HeldFile;
use bivouac_proto::restripe::{Restripe, RestripeReply, RestripeRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;

/// What is added to a file while it is written is expected to be no more than this before a step begins.
const AHEAD: u64 = 1 << 20;

/// A step that is under way.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Pending {
    pub step: Restripe,
    /// It is to be finished, and not undone.
    pub decided: bool,
    /// Somebody may write the file by the old layout.
    pub written: bool,
    /// The file's length when it began, bytes, as far as it was known.
    pub length: u64,
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restriped {
    /// There is nothing to move, or the file is gone.
    Done,
    /// A range has moved; so many bytes of it went from server to server.
    Moved(u64),
    /// A kernel holds the file.
    Held,
}

/// A file of which something has to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToMove {
    /// Which.
    pub ino: Ino,
    /// Its size, as far as it is known, bytes.
    pub size: u64,
    /// So many bytes in a row are spread evenly over all servers that it leaves, and over all that it goes to.
    pub stripe: u64,
}

/// The files whose steps this server is at work on.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<BTreeSet<Ino>>);

/// A file's being worked on, until this is dropped.
struct Working<'w>(&'w AtWork, Ino);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).remove(&self.1);
    }
}

impl AtWork {
    fn begin(&self, ino: Ino) -> Option<Working<'_>> {
        let is_new = lock(&self.0).insert(ino);
        is_new.then(|| Working(self, ino))
    }
}

/// The right by which a step is made.
#[derive(Clone, Copy)]
struct Right {
    standing: Standing,
    /// The term in which this server became the shard's primary.
    reign: u64,
}

impl Shard {
    /// Waits while a range of the file is on its way: its size cannot be told or changed.
    pub(crate) fn is_not_restriped(&self, ino: Ino) -> Op<()> {
        if !self.restripes.is_empty() && self.restripes.contains_key(&ino) { Err(Stop::Wait) } else { Ok(()) }
    }

    /// Waits while a step is under way that counts on nobody's writing the file.
    pub(crate) fn may_be_written(&self, ino: Ino) -> Op<()> {
        let pending = if self.restripes.is_empty() { None } else { self.restripes.get(&ino) };
        if pending.is_some_and(|pending| !pending.written) { Err(Stop::Wait) } else { Ok(()) }
    }
}

impl MetaStore {
    /// The files of this server's shards of which something has to move by a rule, and how many others may turn out to be
    /// such: they are on their way into blocks.
    pub fn to_restripe(&self, rule: Rule) -> (Vec<ToMove>, u64) {
        let map = self.core.outside.map();
        let (mut found, mut unsure) = (Vec::new(), 0);
        for shard in map.shards_of(self.core.outside.me()) {
            let looked = self.core.partitions.with(shard, |locked| {
                let shard = &*locked.shard;
                let (mut files, mut others) = (Vec::new(), 0);
                for (ino, inode) in shard.inodes.unpacked() {
                    match inode.as_blocks() {
                        Some(blocks) if wants((&blocks.layout, blocks.settled, inode.size), &map, rule) => {
                            let stripe = blocks.layout.longest_stripe(&map);
                            files.push(ToMove { ino, size: inode.size, stripe });
                        }
                        Some(_) => {}
                        None => others += u64::from(shard.live.get(&ino).is_some_and(|live| live.busy)),
                    }
                }
                let moving = shard.live.iter().filter(|(ino, live)| live.busy && !is_in_blocks(shard, **ino));
                others = others.max(moving.count() as u64);
                Ok((files, others))
            });
            match looked {
                Ok((files, others)) => {
                    found.extend(files);
                    unsure += others;
                }
                // It does not answer for the shard yet, or not any more.
                Err(_) => unsure += 1,
            }
        }
        (found, unsure)
    }

    /// The files of this server's shards that have to move by a rule and cannot, because a kernel holds them: each with the
    /// sessions of the processes for which it does. So many at most.
    pub fn held_files(&self, rule: Rule, limit: usize) -> Vec<HeldFile> {
        let map = self.core.outside.map();
        let mut found = Vec::new();
        for shard in map.shards_of(self.core.outside.me()) {
            // Of a shard that it does not answer for yet, or not any more, another server tells.
            let _ = self.core.partitions.with(shard, |locked| {
                let shard = &*locked.shard;
                for (ino, live) in &shard.live {
                    let sessions: BTreeSet<u64> =
                        live.locks.iter().filter_map(|(owner, _)| owner.kernel_session()).collect();
                    let inode = if sessions.is_empty() { None } else { shard.inodes.get(*ino) };
                    let has_to_move = inode.is_some_and(|inode| {
                        let blocks = inode.as_blocks();
                        blocks.is_some_and(|b| wants((&b.layout, b.settled, inode.size), &map, rule))
                    });
                    if has_to_move {
                        found.extend(sessions.into_iter().map(|session| HeldFile { ino: *ino, session }));
                    }
                }
                Ok(())
            });
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        found
    }

    /// Makes the next step of a file, in which not much more than `longest` bytes go: who writes there waits until they have.
    pub fn restripe(&self, ino: Ino, (rebuild, longest): (&Rebuild, u64)) -> Result<Restriped, Failure> {
        self.core.restripe(ino, (rebuild, longest))
    }
}

fn is_in_blocks(shard: &Shard, ino: Ino) -> bool {
    shard.inodes.get(ino).is_some_and(|inode| inode.as_blocks().is_some())
}

/// Whether something of a file has to go elsewhere, or what it grows by; that of one that nobody writes is seen to when somebody
/// opens it ([`continue_elsewhere`]).
fn wants((layout, settled, size): (&FileLayout, bool, u64), map: &Map, rule: Rule) -> bool {
    let is_sure = settled || !layout.has_lost(map, u64::MAX);
    let by = if is_sure { rule } else { Rule::Metadata };
    layout.next_to_restripe(map, by, size, u64::MAX).is_some()
        || !settled && is_sure && grows_elsewhere(layout, map)
}

/// Whether what a file grows by would not go to the newest servers.
fn grows_elsewhere(layout: &FileLayout, map: &Map) -> bool {
    layout.ranges.last().is_some_and(|last| last.generation != map.newest_generation())
}

/// To be called before a file is opened for writing: what it grows by goes to the newest servers from now on. If somebody has it
/// open, that would take a step ([`next_step`]), because he goes by the layout as it is. So does a server that was given up and
/// is back: it may still have bytes of the file from before, which only a step removes.
pub(crate) fn continue_elsewhere(locked: &mut LockedShard<'_>, map: &Map, ino: Ino, now: Time) -> Op<()> {
    if locked.shard.must_stay(ino) || !map.spares.is_empty() {
        return Ok(());
    }
    let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(()) };
    let size = inode.size;
    let blocks = inode.as_blocks().filter(|blocks| blocks.settled && blocks.truncating.is_none());
    let Some(blocks) = blocks.filter(|blocks| grows_elsewhere(&blocks.layout, map)) else { return Ok(()) };
    let block = u64::from(blocks.layout.block_size.max(1));
    let cut = size.div_ceil(block).saturating_mul(block);
    let layout = blocks.layout.restriped(map, ino, Rule::Direct, &(cut..u64::MAX));
    let mut draft = Draft::new(now);
    if let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut) {
        blocks.layout = layout;
    }
    locked.commit(draft)
}

/// The next step of a file in blocks.
fn next_step(
    (ino, layout): (Ino, &FileLayout),
    map: &Map,
    (rebuild, longest): (&Rebuild, u64),
    (settled, length, number): (bool, u64, u64),
) -> Option<Restripe> {
    let last = layout.ranges.last()?;
    let block = u64::from(layout.block_size.max(1));
    let cut = length.saturating_add(AHEAD).div_ceil(block).saturating_mul(block);
    // How far a file reached that was being written is not known any more where the last blocks may be lost.
    let is_sure = settled || !layout.has_lost(map, u64::MAX);
    let by = if is_sure { rebuild.rule } else { Rule::Metadata };
    // The last range may begin behind that: if the file has not grown since its last step, there is nothing in it.
    let cut = cut.max(last.start);
    let grows = !settled && is_sure && grows_elsewhere(layout, map);
    let next = layout.next_to_restripe(map, by, length, longest);
    let (rule, range) = match next {
        // All of a short file goes at once.
        Some((range, rule)) if !grows || range.end == u64::MAX && rule == Rule::Direct => (rule, range),
        _ if grows => (Rule::Direct, cut..u64::MAX),
        _ => return None,
    };
    let new = layout.restriped(map, ino, rule, &range);
    Some(Restripe { ino, number, start: range.start, end: range.end, old: layout.clone(), new })
}

/// Whether all that there is of a range stays where it is, and no server may have older bytes of it. If nobody has the file
/// open, then nobody goes by the old layout, and no server has to do anything.
fn moves_nothing(step: &Restripe, map: &Map, length: u64) -> bool {
    if !map.spares.is_empty() || !map.behind.iter().all(|lag| matches!(lag.group, Group::Shard(_))) {
        return false;
    }
    let range = step.start..step.end.min(length);
    let (was, is) = (step.old.pieces(map, range.clone()), step.new.pieces(map, range));
    let place = |piece: Piece| (piece.offset, piece.len, map.holders(piece.group));
    was.map(place).eq(is.map(place))
}

impl Pending {
    /// The layout that the file is about to get, whatever happens.
    pub(crate) fn goes(&self) -> Option<&FileLayout> {
        self.decided.then_some(&self.step.new)
    }

    /// The part of the range whose servers take part.
    fn concerned(&self) -> Range<u64> {
        let range = self.step.range();
        if self.written { range } else { range.start..range.end.min(self.length.max(range.start + 1)) }
    }

    /// Who has the range.
    fn sources(&self, map: &Map) -> Vec<ServerId> {
        self.step.old.holders_in(map, self.concerned())
    }

    /// Who is to have it.
    fn targets(&self, map: &Map) -> Vec<ServerId> {
        self.step.new.holders_in(map, self.concerned())
    }
}

impl Core {
    fn right(&self, locked: &LockedShard<'_>, ino: Ino, map: &Map) -> Right {
        let standing = Standing { group: Group::Shard(ino.shard()), since: map.epoch };
        Right { standing, reign: locked.shard.stream.reign }
    }

    fn is_still(&self, locked: &LockedShard<'_>, right: Right) -> Op<()> {
        let stands = self.outside.stands(right.standing) && locked.shard.stream.reign == right.reign;
        if stands { Ok(()) } else { Err(Refusal::Busy.into()) }
    }

    fn restripe(&self, ino: Ino, (rebuild, longest): (&Rebuild, u64)) -> Result<Restriped, Failure> {
        let Some(_working) = self.at_work.begin(ino) else { return Err(Refusal::Busy.into()) };
        // A step that an earlier start of the server has begun.
        self.conclude_step(ino)?;
        let map = self.outside.map();
        // Of a file that is being written, the servers of its blocks know the length.
        let measured = self.partitions.with(ino.shard(), |locked| {
            locked.shard.is_not_restriped(ino)?;
            let inode = locked.shard.inodes.get(ino);
            let blocks = inode.as_ref().and_then(|inode| inode.as_blocks());
            Ok(blocks.filter(|blocks| !blocks.settled).map(|blocks| blocks.layout.clone()))
        })?;
        let measured = match measured {
            Some(layout) => match self.extent(ino, &layout) {
                Ok(extent) => Some(extent.length),
                // Nobody knows how long it was. Those that have the range say how far it reaches there.
                Err(Errno::IO) if layout.has_lost(&map, u64::MAX) => Some(0),
                Err(errno) => return Err(errno.into()),
            },
            None => None,
        };
        let begun = self.partitions.with(ino.shard(), |locked| {
            locked.shard.is_not_busy(ino)?;
            locked.shard.is_not_restriped(ino)?;
            if locked.shard.learns_locks(locked.id) {
                // Agents have not told yet what kernels hold.
                return Err(Refusal::Busy.into());
            }
            let right = self.right(locked, ino, &map);
            let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(None) };
            let Some(blocks) = inode.as_blocks() else { return Ok(None) };
            locked.shard.has_a_size(ino, &inode)?;
            let length = match (blocks.settled, measured) {
                (true, _) => inode.size,
                (false, Some(length)) => length.max(inode.size),
                (false, None) => return Err(Refusal::Busy.into()),
            };
            let state = (blocks.settled, length, self.outside.now().unsigned_abs().max(1));
            let Some(step) = next_step((ino, &blocks.layout), &map, (rebuild, longest), state) else {
                return Ok(None);
            };
            let live = locked.shard.live.get(&ino);
            if live.is_some_and(|live| live.locks.iter().any(|(owner, _)| owner.is_kernel())) {
                return Ok(Some(Err(Restriped::Held)));
            }
            let in_grace = locked.shard.grace.as_ref().is_some_and(|grace| !grace.is_over());
            let written = in_grace || !blocks.settled || live.is_some_and(|live| live.has_writer());
            let is_open = in_grace || live.is_some_and(|live| !live.opens.is_empty());
            if !written && !is_open && moves_nothing(&step, &map, length) {
                let mut draft = Draft::new(self.outside.now());
                if let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut) {
                    blocks.layout = step.new;
                }
                locked.commit(draft)?;
                return Ok(Some(Err(Restriped::Moved(0))));
            }
            let pending = Pending { step, decided: false, written, length };
            let mut draft = Draft::new(self.outside.now());
            draft.push(Mutation::PutRestripe(ino, Box::new(pending.clone())));
            locked.commit(draft)?;
            Ok(Some(Ok((pending, right))))
        })?;
        let (pending, right) = match begun {
            None => return Ok(Restriped::Done),
            Some(Err(held)) => return Ok(held),
            Some(Ok(begun)) => begun,
        };
        let moved = self.move_range(&map, &pending, right.standing, rebuild.rate).and_then(|moved| {
            self.decide_step(ino, &pending, (right, &map))?;
            Ok(moved)
        });
        let concluded = self.conclude_step(ino);
        if concluded.is_err() {
            self.keeper.restripe(ino);
        }
        let moved = moved?;
        concluded?;
        Ok(Restriped::Moved(moved))
    }

    /// Has the range fenced and taken. How many bytes went from server to server.
    fn move_range(
        &self,
        map: &Map,
        pending: &Pending,
        standing: Standing,
        rate: u64,
    ) -> Result<u64, Failure> {
        let step = Box::new(pending.step.clone());
        let mut length = pending.length;
        for reply in self.ask_each(standing, pending.sources(map), &RestripeRequest::Fence(step.clone()))? {
            match reply {
                RestripeReply::Fenced { length: there } => length = length.max(there),
                _ => return Err(Errno::PROTO.into()),
            }
        }
        let range = step.start..step.end.min(length);
        let mut outdated: Vec<_> = restripe::outdated(map, (&step.old, &step.new), range).collect();
        if !outdated.is_empty() {
            // They would show what they have missed. When the map says so of their new groups, too, the step is tried again.
            outdated.sort_unstable();
            outdated.dedup();
            outdated.into_iter().for_each(|(group, holder)| self.outside.distrust(group, holder));
            return Err(Refusal::Busy.into());
        }
        let take = RestripeRequest::Take { step, length, rate };
        let mut moved = 0;
        for reply in self.ask_each(standing, pending.targets(map), &take)? {
            match reply {
                RestripeReply::Took { bytes } => moved += bytes,
                _ => return Err(Errno::PROTO.into()),
            }
        }
        Ok(moved)
    }

    /// Asks servers; those that take part, where others have the same. One whose storage fails does not have to, when the map
    /// says that it is behind: it will learn what has happened, like one that was down.
    fn ask_each(
        &self,
        standing: Standing,
        servers: Vec<ServerId>,
        request: &RestripeRequest,
    ) -> Result<Vec<RestripeReply>, Failure> {
        let map = self.outside.map();
        let step = request.step();
        let replicas = step.map_or(1, |step| step.old.copies(&map));
        let asked: Vec<ServerId> =
            servers.into_iter().filter(|server| replicas == 1 || map.is_up(*server)).collect();
        let replies = self.outside.restripe(standing, &asked, request);
        let map = self.outside.map();
        let mut done = Vec::with_capacity(replies.len());
        for (server, reply) in asked.iter().zip(replies) {
            let is_behind = |step: &Restripe| {
                [&step.old, &step.new].iter().all(|layout| holders::is_behind(layout, &map, *server))
            };
            match reply? {
                RestripeReply::Excused if step.is_some_and(is_behind) => {}
                RestripeReply::Excused => return Err(Refusal::Busy.into()),
                reply => done.push(reply),
            }
        }
        Ok(done)
    }

    /// From here on the step is finished, whatever happens.
    fn decide_step(&self, ino: Ino, pending: &Pending, (right, map): (Right, &Map)) -> Result<(), Failure> {
        self.partitions.with(ino.shard(), |locked| {
            self.is_still(locked, right)?;
            if self.outside.map().members_since > map.epoch {
                // Others may hold the range now, or may have asked what they are to hold before this is decided.
                return Err(Refusal::Busy.into());
            }
            let is_there = locked.shard.restripes.get(&ino) == Some(pending);
            if !is_there || locked.shard.inodes.get(ino).is_none() {
                return Err(Refusal::Busy.into());
            }
            let mut draft = Draft::new(self.outside.now());
            draft.push(Mutation::PutRestripe(ino, Box::new(Pending { decided: true, ..pending.clone() })));
            locked.commit(draft)
        })
    }

    /// Ends the step of a file that nobody is at work on, after a crash or a failure.
    pub(crate) fn end_step(&self, ino: Ino) -> Result<(), Failure> {
        match self.at_work.begin(ino) {
            Some(_working) => self.conclude_step(ino),
            None => Ok(()),
        }
    }

    /// Finishes a step that is decided, or undoes it, and forgets it.
    fn conclude_step(&self, ino: Ino) -> Result<(), Failure> {
        let map = self.outside.map();
        let found = self.partitions.with(ino.shard(), |locked| {
            let right = self.right(locked, ino, &map);
            Ok(locked.shard.restripes.get(&ino).cloned().map(|pending| (pending, right)))
        })?;
        let Some((pending, right)) = found else { return Ok(()) };
        let step = Box::new(pending.step.clone());
        let mut concerned = pending.sources(&map);
        if pending.decided {
            // What is at the new place only is not to be forgotten in a loss of power.
            self.sync(ino)?;
            self.ask_each(right.standing, concerned, &RestripeRequest::Finish(step))?;
        } else {
            // One that is down and holds nothing by the old layout clears what it has when it is to take something.
            let others = pending.targets(&map).into_iter();
            let others = others.filter(|server| !concerned.contains(server) && map.is_up(*server));
            let others: Vec<ServerId> = others.collect();
            concerned.extend(others);
            self.ask_each(right.standing, concerned, &RestripeRequest::Undo(step))?;
        }
        self.partitions.with(ino.shard(), |locked| {
            self.is_still(locked, right)?;
            if locked.shard.restripes.get(&ino) != Some(&pending) {
                return Err(Refusal::Busy.into());
            }
            let now = self.outside.now();
            let mut draft = Draft::new(now);
            draft.push(Mutation::DropRestripe(ino));
            if pending.decided
                && let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut)
            {
                blocks.layout = pending.step.new.clone();
            }
            locked.commit(draft)?;
            reap(locked, &self.outside.map(), ino, now)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_works_on_a_file() {
        let at_work = AtWork::default();
        let one = at_work.begin(Ino(1));
        assert!(one.is_some() && at_work.begin(Ino(1)).is_none() && at_work.begin(Ino(2)).is_some());
        drop(one);
        assert!(at_work.begin(Ino(1)).is_some());
    }
}
