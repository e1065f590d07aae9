//! Blocks that have copies: what their primary does, and what the other holders do.
//!
//! The primary of a group orders the changes of its blocks. It keeps other changes of the same range out
//! ([`ranges`]), has all other holders that are up make the change, whether they are in step or catching up, and makes
//! it itself when they have. So its own sub-file shows what everybody has: it can be read without looking whether a
//! change is under way. A holder that does not answer is waited for until the map says that it is down. If one cannot
//! make the change because its storage is full, the primary gives the others its own bytes of the range again, and the
//! program gets the error. One whose storage fails is left out: the map calls it behind, until it has caught up
//! ([`faults`]). The bytes of long writes are on their way before all this ([`chain`]).
//!
//! A holder keeps in mind which changes may not have been made by all others ([`marks`]). When a primary dies, the
//! next one gathers these, and gives all holders its own bytes of their ranges before it serves the group.
//!
//! Programs also read from other holders, as long as these show the same as the primary ([`showing`]).
//!
//! A server that was away compares what it holds with the primaries ([`catching`]).

mod catching;
mod chain;
mod checking;
mod faults;
mod fetching;
mod holder;
mod marks;
mod pace;
mod ranges;
mod showing;
mod slots;
mod stripes;

use crate::links::Links;
use bivouac_data::DataStore;
use bivouac_layout::{Epoch, Group, Ino, Map, ServerId};
use bivouac_meta::Standing;
use bivouac_proto::copies::{Change, CopyReply, CopyRequest, Mark};
use bivouac_proto::data::{DataReply, DataRequest, Fallocate};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request};
use bivouac_transport::engine::Requester;
use catching::Catching;
use chain::Chain;
pub(crate) use chain::{Coming, Program, SentAhead, may_send_ahead};
pub(crate) use checking::Checked;
use faults::Faults;
use marks::Marks;
use ranges::Ranges;
use showing::Tidied;
use slots::Slots;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a change waits for others of the same range.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a range that are given to a holder again at once.
const MIRRORED: u64 = 1 << 20;
/// Time before a holder is asked again that has not answered.
const AGAIN: Duration = Duration::from_millis(5);

/// The blocks of this server that have copies.
pub(crate) struct Copies {
    links: Arc<Links>,
    store: Arc<DataStore>,
    me: ServerId,
    ranges: Ranges,
    slots: Slots,
    marks: Marks,
    catching: Catching,
    chain: Chain,
    /// What the maps up to this epoch have made this server the primary of, it serves.
    ready: AtomicU64,
    faults: Faults,
    tidied: Tidied,
    taken: stripes::Taken,
}

/// A change of a range, as its primary has the others make it.
#[derive(Clone, Copy)]
struct Step {
    group: Group,
    /// Its slot and turn.
    place: (u32, u64),
    ino: Ino,
    offset: u64,
    len: u64,
    change: Change,
    /// By what right.
    standing: Standing,
}

/// The server of a file's shard, which has blocks of the file changed.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) server: ServerId,
    /// By what right. `None`: it changes nothing.
    pub(crate) standing: Option<Standing>,
}

/// The change, without waiting until it is on stable storage.
fn unsynced(request: &DataRequest) -> DataRequest {
    match *request {
        DataRequest::Write { ino, offset, .. } => DataRequest::Write { ino, offset, sync: false },
        other => other,
    }
}

/// Whether a range that is allocated makes a sub-file longer.
fn grows(mode: Fallocate) -> bool {
    matches!(mode, Fallocate::Extend | Fallocate::Zero)
}

impl Copies {
    /// Of a server that has just been started: it serves no group before [`Copies::follow`].
    pub(crate) fn new(links: Arc<Links>, store: Arc<DataStore>, me: ServerId) -> Copies {
        let fences = store.fences().cloned();
        let (marks, ranges) = (Marks::new(fences.clone()), Ranges::new(PATIENCE, fences));
        let begun = crate::links::now().unsigned_abs();
        let (slots, chain) = (Slots::new(begun), Chain::new(begun));
        let (catching, ready, faults, tidied, taken) = Default::default();
        Copies { links, store, me, ranges, slots, marks, catching, chain, ready, faults, tidied, taken }
    }

    /// The map, if this server is the group's primary by it, has a lease, and serves the group.
    pub(crate) fn serving(&self, group: Group) -> Result<Arc<Map>, Refusal> {
        let map = self.links.map();
        let serves = self.is_primary(&map, group) && self.links.lease.is_valid();
        if serves && self.ready.load(Ordering::Acquire) >= map.members_since.0 {
            Ok(map)
        } else {
            Err(Refusal::OldServer)
        }
    }

    /// Whether this server is a group's primary by the newest map.
    pub(crate) fn is_primary_of(&self, group: Group) -> bool {
        self.is_primary(&self.links.map(), group)
    }

    fn is_primary(&self, map: &Map, group: Group) -> bool {
        map.primary_of(group) == Some(self.me) && map.is_up(self.me)
    }

    /// Makes a change of a group's blocks, everywhere. The payload may have been sent ahead. Of servers, only that of the
    /// inode changes blocks (`by`): one that is not any more must not, however late its request comes. `since`: the epoch
    /// by which this was asked for, before it has waited for anything.
    pub(crate) fn change(
        &self,
        (group, since): (Group, Epoch),
        (request, by): (&DataRequest, Option<Sender>),
        payload: &[u8],
        sent: Option<&SentAhead>,
    ) -> Result<DataReply, Failure> {
        let range = match *request {
            DataRequest::Write { offset, .. } => offset..offset.saturating_add(payload.len() as u64),
            DataRequest::Fallocate { offset, len, .. } => offset..offset.saturating_add(len),
            DataRequest::TakeBack { end, size, .. } if size < end => size..end,
            _ => return Err(Errno::INVAL.into()),
        };
        let (DataRequest::Write { ino, .. }
        | DataRequest::Fallocate { ino, .. }
        | DataRequest::TakeBack { ino, .. }) = *request
        else {
            return Err(Errno::INVAL.into());
        };
        let _alone = self.ranges.hold(ino, range.clone())?;
        // Not before: a holder that begins to catch up must not be left out.
        let map = self.serving(group)?;
        let standing = Standing { group, since };
        if !self.links.stands(standing) {
            // Whoever has asked for it has asked another one meanwhile.
            return Err(Refusal::OldServer.into());
        }
        let check_sender = || by.map_or(Ok(()), |by| self.check_sender(by, request));
        check_sender()?;
        if self.gives_up(group) {
            return Err(Refusal::OldServer.into());
        }
        let others = self.others(&map, group);
        if map.has_too_few(group) {
            return Err(Errno::IO.into());
        }
        let slot = self.slots.take();
        let place = (slot.number(), slot.turn());
        let step = |change| Step {
            group,
            place,
            ino,
            offset: range.start,
            len: range.end - range.start,
            change,
            standing,
        };
        let failed = match *request {
            DataRequest::Write { sync, .. } => {
                let write = step(Change::Write { sync });
                let (mut failed, left) = self.forward_sent(&write, &others, (sent, payload), sync);
                failed.extend(self.forward(&write, &left, payload));
                failed
            }
            DataRequest::Fallocate { mode, .. } => self.forward(&step(Change::Fallocate(mode)), &others, &[]),
            _ => Vec::new(),
        };
        let (broken, others_failed): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|(_, errno)| errno.is_of_broken_storage());
        let forwarded = match others_failed.first() {
            // A copy is full, for example.
            Some((_, errno)) => Err(Failure::Errno(*errno)),
            None => {
                let broken: Vec<ServerId> = broken.into_iter().map(|(holder, _)| holder).collect();
                self.leave_out(&map, group, &broken).map_err(Failure::Errno)
            }
        };
        let has_all = forwarded.is_ok();
        let (map, refusal) = match self.serving(group) {
            Ok(map) => (map, None),
            Err(refusal) => (self.links.map(), Some(refusal)),
        };
        if !self.is_primary(&map, group) {
            // Another one takes over, which decides what becomes of the change.
            slot.leave(group);
            return Err(Refusal::OldServer.into());
        }
        if !self.links.stands(standing) {
            // Another one has.
            return Err(Refusal::OldServer.into());
        }
        let made = forwarded
            .and_then(|()| if map.has_too_few(group) { Err(Errno::IO.into()) } else { Ok(()) })
            .and_then(|()| {
                // It may be behind in other blocks of the file, and be about to give the sub-file another length.
                let make = || {
                    // In this moment: who was stopped for long, and has another map now, has others' changes.
                    if !self.is_primary(&self.links.map(), group) || !self.links.stands(standing) {
                        return Err(Refusal::OldServer.into());
                    }
                    check_sender()?;
                    let done = crate::serve::change_copied((&self.store, self), &unsynced(request), payload)?;
                    match (request, done) {
                        (DataRequest::Write { .. }, DataReply::Written { count, .. }) => {
                            self.marks.reaches(ino, range.start + u64::from(count));
                        }
                        (DataRequest::Fallocate { mode, .. }, _) if grows(*mode) => {
                            self.marks.reaches(ino, range.end);
                        }
                        _ => {}
                    }
                    Ok(done)
                };
                self.catching.fetches.apply(ino, range.clone(), make)
            });
        if !self.is_primary(&self.links.map(), group) {
            slot.leave(group);
            return Err(Refusal::OldServer.into());
        }
        if !self.links.stands(standing) {
            return Err(Refusal::OldServer.into());
        }
        if let (Err(Failure::Errno(errno)), true) = (&made, has_all)
            && errno.is_of_broken_storage()
            && self.fails_here(group, ino, *errno)
        {
            // All others have made it. The next primary sees to that, and the sender repeats it there.
            slot.leave(group);
            return Err(Refusal::OldServer.into());
        }
        // Others do not wait for that.
        if let (Ok(_), DataRequest::Write { sync: true, .. }) = (&made, request)
            && let Err(error) = self.store.sync(ino)
        {
            // All have made it.
            slot.leave(group);
            self.note_failure(ino, error.errno());
            return Err(if self.could_not_sync() { Refusal::OldServer.into() } else { error.errno().into() });
        }
        let is_whole = match made {
            Ok(DataReply::Written { count, .. }) => count as usize == payload.len(),
            Ok(_) => !matches!(request, DataRequest::TakeBack { .. }),
            Err(_) => false,
        };
        if !is_whole {
            let undoes = !matches!(request, DataRequest::TakeBack { .. });
            if !self.mirror(&step(Change::Mirror { undoes }), &others) {
                slot.leave(group);
            }
        }
        if let Some(refusal) = refusal {
            // All have made it, but it must not be acknowledged: the sender asks again.
            return Err(refusal.into());
        }
        made
    }

    /// A program reads or changes blocks of this server: what is fetched leaves it room.
    pub(crate) fn is_used(&self) {
        self.catching.pace.is_used();
    }

    /// A part of a truncation was not made here, because the storage has failed. Whether that is excused: this server
    /// has to catch up anyway, and compares everything again before it says that it has.
    pub(crate) fn is_excused(&self) -> bool {
        let map = self.links.map();
        let behind = map.replicated().filter(holder::is_of_blocks);
        let behind = behind.filter_map(|group| Some((group, map.behind_since(group, self.me)?)));
        let excused: Vec<bool> = behind.map(|(group, since)| self.catching.excuses(group, since)).collect();
        !excused.is_empty() && excused.into_iter().all(|excused| excused)
    }

    /// The other holders that are up.
    fn others(&self, map: &Map, group: Group) -> Vec<ServerId> {
        let holders = map.holders(group);
        holders.all().iter().copied().filter(|server| *server != self.me && map.is_up(*server)).collect()
    }

    /// Gives others this server's bytes of a range. A copy that cannot take them cannot be relied on any more. Says
    /// whether it could read its own.
    fn mirror(&self, step: &Step, others: &[ServerId]) -> bool {
        let end = step.offset.saturating_add(step.len);
        let mut buffer = vec![0; step.len.min(MIRRORED) as usize];
        let mut at = step.offset;
        while at < end {
            let len = (end - at).min(MIRRORED);
            let count = match self.store.read(step.ino, at, &mut buffer[..len as usize]) {
                Ok(count) => count,
                Err(error) => {
                    self.fails_here(step.group, step.ino, error.errno());
                    return false;
                }
            };
            // Behind the sub-file's end there is nothing to read.
            let len = if (count as u64) < len { end - at } else { len };
            for (holder, _) in self.forward(&Step { offset: at, len, ..*step }, others, &buffer[..count]) {
                self.suspect(step.group, holder);
            }
            if !self.links.stands(step.standing) {
                return true;
            }
            at += len;
        }
        true
    }

    /// Has those others make a write to whom its bytes were sent ahead. Those whose storage cannot, and why; and those
    /// that have to be sent the bytes with the change.
    fn forward_sent(
        &self,
        step: &Step,
        others: &[ServerId],
        (sent, payload): (Option<&SentAhead>, &[u8]),
        sync: bool,
    ) -> (Vec<(ServerId, Errno)>, Vec<ServerId>) {
        let Some(sent) = sent else { return (Vec::new(), others.to_vec()) };
        let Step { group, place: (slot, turn), ino, offset, len, standing, .. } = *step;
        let sum = crc32c::crc32c(payload);
        let (mut asked, mut left, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for other in others {
            match sent.to(*other) {
                Some(sent) => {
                    let change = Change::Sent { sent, sum, sync };
                    let forward = CopyRequest::Forward { group, slot, turn, ino, offset, len, change };
                    asked.push((*other, Request::Copy(forward)));
                }
                None => left.push(*other),
            }
        }
        let answers = self.links.ask_all((standing, self.needed(ino)), &asked);
        for ((server, _), answer) in asked.iter().zip(answers) {
            match answer {
                Ok(Reply::Copy(CopyReply::Made)) => {}
                Ok(Reply::Copy(CopyReply::Failed(errno))) => failed.push((*server, errno)),
                answer => {
                    if let Ok(Reply::Copy(CopyReply::Missing)) = answer {
                        self.chain.doubt(*server);
                    }
                    left.push(*server);
                }
            }
        }
        (failed, left)
    }

    /// Has all others make a change. Those whose storage cannot, and why.
    fn forward(&self, step: &Step, others: &[ServerId], payload: &[u8]) -> Vec<(ServerId, Errno)> {
        let Step { group, place: (slot, turn), ino, offset, len, change, standing } = *step;
        let mut left = others.to_vec();
        let mut failed = Vec::new();
        let request = Request::Copy(CopyRequest::Forward { group, slot, turn, ino, offset, len, change });
        loop {
            // By the layout by which the change has come, or a newer one.
            let answers = self.links.ask_holders((standing, self.needed(ino)), &left, &request, payload);
            let map = self.links.map();
            let mut again = Vec::new();
            for (server, answer) in left.iter().zip(answers) {
                match answer {
                    Ok(Reply::Copy(CopyReply::Made)) => {}
                    Ok(Reply::Copy(CopyReply::Failed(errno))) => failed.push((*server, errno)),
                    Ok(_) => failed.push((*server, Errno::PROTO)),
                    // One that is down, or holds it no more, is not waited for; nor is anybody by a primary that
                    // has been replaced.
                    Err(_) if map.primary_of(group) != Some(self.me) || !self.links.stands(standing) => {}
                    Err(_) if self.others(&map, group).contains(server) => again.push(*server),
                    Err(_) => {}
                }
            }
            if self.links.is_closing() {
                failed.extend(again.into_iter().map(|server| (server, Errno::IO)));
                return failed;
            }
            if again.is_empty() {
                return failed;
            }
            left = again;
            std::thread::sleep(AGAIN);
        }
    }

    /// Bytes of a range when no change of it is under way, for a holder that catches up.
    pub(crate) fn settled(
        &self,
        group: Group,
        ino: Ino,
        range: Range<u64>,
    ) -> Result<ranges::Held<'_>, Failure> {
        let held = self.ranges.hold(ino, range)?;
        self.serving(group)?;
        Ok(held)
    }

    /// Makes a change of a range of a sub-file: what was fetched of it from others before is older.
    pub(crate) fn apply<T>(&self, ino: Ino, range: Range<u64>, make: impl FnOnce() -> T) -> T {
        match self.links.map().copies {
            1 => make(),
            _ => self.catching.fetches.apply(ino, range, make),
        }
    }

    /// A sub-file was truncated.
    pub(crate) fn note_length(&self, ino: Ino) {
        let length = self.store.extent(ino).map_or(0, |extent| extent.length);
        self.marks.cut(ino, length);
    }

    /// How much of a sub-file of this length has been made by all, or is only of this server.
    pub(crate) fn certain_length(&self, ino: Ino, length: u64) -> u64 {
        if self.links.map().copies == 1 { length } else { self.marks.certain_length(ino, length) }
    }

    /// Refuses as long as this server has not taken over what the newest map has made it the primary of: others may have
    /// more of it.
    pub(crate) fn check_ready(&self) -> Result<(), Refusal> {
        let map = self.links.map();
        let is_ready = map.copies == 1 || self.ready.load(Ordering::Acquire) >= map.members_since.0;
        if is_ready { Ok(()) } else { Err(Refusal::OldServer) }
    }

    /// Which changes of files may begin.
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Checks that a server that changes a file is that of its inode: no other server does. (Another one may have taken over
    /// from it, and gone on with the file, before its request comes.)
    pub(crate) fn check_sender(&self, by: Sender, request: &DataRequest) -> Result<(), Refusal> {
        let is_right = match request.changed() {
            Some(ino) => self.links.map().primary(ino.shard()) == by.server,
            None => true,
        };
        let stands = || by.standing.is_none_or(|standing| self.links.stands(standing));
        // It hears of the newer map when it asks again.
        if is_right && stands() { Ok(()) } else { Err(Refusal::Busy) }
    }

    /// Does what a new map asks for: takes over the groups of which this server is the primary now. Says whether it
    /// serves them.
    pub(crate) fn follow(&self, before: &Map, map: &Map) -> bool {
        // Between two maps that do not follow each other, another one may have been the primary, and not be it any more.
        let follows = before.epoch.0 + 1 == map.epoch.0 || before.epoch >= map.primaries_since;
        let has_stayed = follows && before.is_up(self.me);
        let is_new = |group: &Group| {
            map.primary_of(*group) == Some(self.me)
                && !(has_stayed && before.primary_of(*group) == Some(self.me))
        };
        let gained: Vec<Group> =
            map.replicated().filter(|g| matches!(g, Group::Blocks { .. })).filter(is_new).collect();
        if !before.is_up(self.me) {
            // It was away: what was closed by then is open elsewhere.
            self.ranges.open_all();
        }
        if !gained.is_empty() && !self.take_over(map, &gained) {
            return false;
        }
        self.ready.fetch_max(map.epoch.0, Ordering::AcqRel);
        true
    }

    /// Gives all holders this server's bytes of what may not have been changed everywhere.
    fn take_over(&self, map: &Map, gained: &[Group]) -> bool {
        let others: BTreeSet<ServerId> = gained.iter().flat_map(|group| self.others(map, *group)).collect();
        let others: Vec<ServerId> = others.into_iter().collect();
        let request = Request::Copy(CopyRequest::Marks);
        let mut found: Vec<Mark> = self.marks.all();
        for answer in self.links.ask_each(None, &others, &request, &[]) {
            match answer {
                Ok(Reply::Copy(CopyReply::Marks(marks))) => found.extend(marks),
                _ => return false,
            }
        }
        found.retain(|mark| gained.contains(&mark.group));
        let Ok(found) = self.those_that_stay(map, found) else { return false };
        for mark in &found {
            let (group, ino) = (mark.group, mark.ino);
            let Ok(_alone) = self.ranges.hold(ino, mark.offset..mark.offset.saturating_add(mark.len)) else {
                return false;
            };
            let slot = self.slots.take();
            let step = Step {
                group,
                place: (slot.number(), slot.turn()),
                ino,
                offset: mark.offset,
                len: mark.len,
                change: Change::Mirror { undoes: false },
                standing: Standing { group, since: map.epoch },
            };
            self.mirror(&step, &self.others(map, group));
        }
        self.marks.forget(gained);
        self.slots.end(gained);
        self.links.map().members_since <= map.epoch
    }
}
