//! Catching up: a server that was away compares what it holds with the primaries, and gets what differs.
//!
//! From the moment that the map calls it up, the primaries have it make all new changes. For what it has missed it
//! goes through all files that have copies, and asks the primary of each stretch that it holds for checksums of it;
//! what differs it fetches. A change may come between the fetching of bytes and their writing, and is newer then:
//! the bytes are fetched again.
//!
//! A group counts as caught up when all of its files were compared, and when no change of it has failed here meanwhile
//! ([`Catching::excuses`]), for as long as the map says that the server is behind since the same epoch. Groups do not
//! wait for each other: one whose primary does not answer is tried again later.

use super::Copies;
use super::holder::is_of_blocks;
use super::pace::Pace;
use crate::links::{all_of, now};
use bivouac_data::DataError;
use bivouac_layout::{Epoch, FileLayout, Group, Ino, Map, Piece, ServerId, ShardId};
use bivouac_proto::copies::{CopyReply, CopyRequest, DIGESTED};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::peer::{PeerReply, PeerRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Request, Time};
use bivouac_transport::engine::To;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of which checksums are asked at once.
const COMPARED: u64 = 16 << 20;
/// So often it is tried to give a file that is being written its length, before others are compared.
const EVENED: u32 = 50;
/// Sub-files are divided among so many locks.
const PARTS: usize = 64;

/// Most bytes that are fetched at once, where so many in a row differ.
const FETCHED: u64 = 1 << 20;
/// Time between two tries where there was no room.
const FULL: Duration = Duration::from_secs(10);

/// What is being fetched, and how far the catching up has come.
pub(crate) struct Catching {
    /// Under the lock of its part, one change of a sub-file is made after the other. In it: what is being fetched.
    parts: [Mutex<Option<Fetching>>; PARTS],
    state: Mutex<State>,
    /// How many stretches were fetched.
    fetches: AtomicU64,
    /// How many bytes they had.
    fetched: AtomicU64,
    /// How many files there was no room for when it was last tried.
    without_room: AtomicU64,
    pace: Pace,
}

/// A range that is being fetched, and whether it was changed since that began.
struct Fetching {
    ino: Ino,
    range: Range<u64>,
    is_changed: bool,
}

#[derive(Default)]
struct State {
    /// Groups in which a change was not made here, so that they have to be compared again.
    spoiled: BTreeSet<Group>,
    /// Groups that were caught up with, and since when they were behind.
    complete: BTreeMap<Group, Epoch>,
    /// When there was no room for everything.
    full: Option<Instant>,
}

impl Default for Catching {
    fn default() -> Catching {
        let parts = std::array::from_fn(|_| Mutex::default());
        let zero = || AtomicU64::new(0);
        let (fetches, fetched, without_room) = (zero(), zero(), zero());
        Catching { parts, state: Mutex::default(), fetches, fetched, without_room, pace: Pace::default() }
    }
}

impl Catching {
    fn part(&self, ino: Ino) -> MutexGuard<'_, Option<Fetching>> {
        self.parts[ino.0 as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change of a range of a sub-file, while no other change of the sub-file is made.
    pub(super) fn apply<T>(&self, ino: Ino, range: Range<u64>, make: impl FnOnce() -> T) -> T {
        let mut part = self.part(ino);
        if let Some(fetching) = part.as_mut().filter(|fetching| fetching.ino == ino) {
            let overlaps = fetching.range.start < range.end && range.start < fetching.range.end;
            fetching.is_changed |= overlaps;
        }
        make()
    }

    /// A change of a group was not made here, because the storage has failed. Whether that is excused: the server is
    /// behind since this epoch, has not said that it has caught up, and is going to compare the group again before.
    pub(super) fn excuses(&self, group: Group, since: Epoch) -> bool {
        let mut state = self.state();
        if state.complete.get(&group) == Some(&since) {
            return false;
        }
        state.spoiled.insert(group);
        true
    }

    fn begin(&self, ino: Ino, range: Range<u64>) {
        *self.part(ino) = Some(Fetching { ino, range, is_changed: false });
    }

    /// Makes what was fetched, unless the range was changed meanwhile. Says whether it has.
    fn end<T>(&self, ino: Ino, make: impl FnOnce() -> T) -> Option<T> {
        let mut part = self.part(ino);
        match part.take() {
            Some(Fetching { is_changed: false, .. }) => Some(make()),
            _ => None,
        }
    }
}

/// What another server has of a file.
#[derive(Clone, Copy)]
struct Theirs {
    length: u64,
    written: Option<Time>,
}

/// Where a stretch of a file is fetched from.
#[derive(Clone, Copy)]
struct Source {
    group: Group,
    primary: ServerId,
    ino: Ino,
    /// When the primary's sub-file was written last.
    written: Option<Time>,
}

impl Copies {
    /// Gets what this server has missed of blocks, as far as their primaries answer. Says whether that is everything.
    pub(crate) fn catch_up(&self) -> bool {
        let map = self.links.map();
        if !map.is_up(self.me) {
            return true;
        }
        let wanted: BTreeMap<Group, Epoch> = {
            let mut state = self.catching.state();
            let since = |group: &Group| map.behind_since(*group, self.me);
            state.complete.retain(|group, known| since(group) == Some(*known));
            if state.full.is_some_and(|full| full.elapsed() < FULL) {
                return false;
            }
            let behind = map.replicated().filter(is_of_blocks);
            let behind = behind.filter_map(|group| Some((group, since(&group)?)));
            let wanted = behind.filter(|(group, _)| !state.complete.contains_key(group)).collect();
            // What fails from now on.
            state.spoiled.clear();
            wanted
        };
        if wanted.is_empty() {
            return true;
        }
        if !self.works_again() {
            return false;
        }
        let mut without_room = 0;
        let compared = self.compare_all(&wanted, &mut without_room);
        self.catching.without_room.store(without_room, Ordering::Relaxed);
        let Ok(left) = compared else { return false };
        let map = self.links.map();
        let mut state = self.catching.state();
        state.full = (without_room > 0).then(Instant::now);
        let is_complete = |(group, since): &(&Group, &Epoch)| {
            let is_behind_since = map.behind_since(**group, self.me) == Some(**since);
            is_behind_since && !left.contains(*group) && !state.spoiled.contains(*group)
        };
        let complete: Vec<(Group, Epoch)> =
            wanted.iter().filter(is_complete).map(|(group, since)| (*group, *since)).collect();
        let is_everything = complete.len() == wanted.len();
        state.complete.extend(complete);
        is_everything
    }

    /// The groups of blocks with which this server has caught up, and in which it is behind by this map.
    pub(crate) fn caught_up(&self, map: &Map) -> Vec<Group> {
        let state = self.catching.state();
        let is_behind =
            |(group, since): &(&Group, &Epoch)| map.behind_since(**group, self.me) == Some(**since);
        state.complete.iter().filter(is_behind).map(|(group, _)| *group).collect()
    }

    /// Bytes that were fetched since the start.
    pub(crate) fn fetched(&self) -> u64 {
        self.catching.fetched.load(Ordering::Relaxed)
    }

    /// Files that lack something for which there is no room.
    pub(crate) fn without_room(&self) -> u64 {
        self.catching.without_room.load(Ordering::Relaxed)
    }

    /// Compares all files in which these groups occur. The groups for which that was not possible. Files for which there
    /// is no room are counted, and others are gone on with: within a shard, the oldest are first.
    fn compare_all(
        &self,
        wanted: &BTreeMap<Group, Epoch>,
        without_room: &mut u64,
    ) -> Result<BTreeSet<Group>, Failure> {
        // Those whose primaries do not answer, and those for which there is no room.
        let (mut away, mut left) = (BTreeSet::new(), BTreeSet::new());
        for shard in (0..bivouac_layout::SHARDS).map(ShardId) {
            let mut after = Ino(0);
            loop {
                let files = self.files(shard, after)?;
                let Some((last, _)) = files.last() else { break };
                after = *last;
                let before = self.catching.fetches.load(Ordering::Relaxed);
                for (ino, layout) in &files {
                    let map = self.links.map();
                    let groups: Vec<Group> =
                        layout.groups(&map, u64::MAX).filter(|group| wanted.contains_key(group)).collect();
                    if groups.is_empty() || groups.iter().all(|group| away.contains(group)) {
                        continue;
                    }
                    let Err(failure) = self.catch_up_file(&map, *ino, layout) else { continue };
                    tracing::debug!(%ino, ?failure, "not caught up with");
                    match failure {
                        Failure::Errno(Errno::NOSPC | Errno::DQUOT) => {
                            *without_room += 1;
                            left.extend(groups);
                        }
                        _ => away.extend(groups),
                    }
                }
                if self.catching.fetches.load(Ordering::Relaxed) != before {
                    self.remove_what_is_gone(shard, &files)?;
                }
            }
        }
        left.append(&mut away);
        Ok(left)
    }

    /// Files of a shard that have copies.
    pub(crate) fn files(&self, shard: ShardId, after: Ino) -> Result<Vec<(Ino, FileLayout)>, Failure> {
        let request = Request::Peer(PeerRequest::Files { shard, after });
        match self.links.ask(To::Shard(shard), &request)? {
            Reply::Peer(PeerReply::Files(files)) => Ok(files),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// A file may have been removed after it was listed, here before its bytes were fetched.
    fn remove_what_is_gone(&self, shard: ShardId, listed: &[(Ino, FileLayout)]) -> Result<(), Failure> {
        let Some(((first, _), (last, _))) = listed.first().zip(listed.last()) else { return Ok(()) };
        let mut there = BTreeSet::new();
        let mut after = Ino(first.0 - 1);
        while after < *last {
            let files = self.files(shard, after)?;
            after = files.last().map_or(*last, |(ino, _)| *ino);
            there.extend(files.into_iter().map(|(ino, _)| ino));
        }
        for (ino, _) in listed.iter().filter(|(ino, _)| !there.contains(ino)) {
            self.store.remove(*ino).map_err(|error| error.errno())?;
        }
        Ok(())
    }

    /// How far the primaries' sub-files reach, and when they were written last. What was under way when this began has
    /// ended by then.
    fn primaries(
        &self,
        map: &Map,
        ino: Ino,
        layout: &FileLayout,
    ) -> Result<BTreeMap<ServerId, Theirs>, Failure> {
        let groups = layout.groups(map, u64::MAX);
        let groups: BTreeMap<ServerId, Group> =
            groups.filter_map(|group| Some((map.primary_of(group)?, group))).collect();
        let others = groups.into_iter().filter(|(server, _)| *server != self.me);
        others.map(|(server, group)| Ok((server, self.extent_of(server, group, ino)?))).collect()
    }

    /// How far the longest sub-file of a file reaches on servers in step.
    pub(crate) fn longest(&self, map: &Map, ino: Ino, layout: &FileLayout) -> Result<u64, Failure> {
        let mut longest = 0;
        for server in layout.servers(map, u64::MAX).into_iter().filter(|server| map.is_up(*server)) {
            let length = match server == self.me {
                true => self.length(ino)?,
                false => match self.links.ask(all_of(server), &Request::Data(DataRequest::Extent { ino }))? {
                    Reply::Data(DataReply::Extent { length, .. }) => length,
                    _ => return Err(Errno::PROTO.into()),
                },
            };
            longest = longest.max(length);
        }
        Ok(longest)
    }

    /// How far a primary's sub-file reaches, and when it was written last.
    fn extent_of(&self, server: ServerId, group: Group, ino: Ino) -> Result<Theirs, Failure> {
        let asked = now();
        match self
            .links
            .ask(To::Primary(server, group), &Request::Copy(CopyRequest::Extent { group, ino }))?
        {
            Reply::Copy(CopyReply::Extent { length, written }) => {
                let written = written.map(|written| written.time(asked, now()).shown);
                Ok(Theirs { length, written })
            }
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// A sub-file that is gone can be fetched as a whole, if others have all of it, and this server shows nothing of
    /// it meanwhile.
    fn forget_what_is_gone(&self, map: &Map, ino: Ino, layout: &FileLayout) -> Result<(), Failure> {
        let is_held = |group: &Group| map.holders(*group).all().contains(&self.me);
        let is_gone = matches!(self.store.extent(ino), Err(DataError::Missing(_)));
        if is_gone && layout.groups(map, u64::MAX).filter(is_held).all(|group| map.is_behind(group, self.me))
        {
            self.store.remove(ino).map_err(|error| error.errno())?;
            self.store.renounce(ino);
        }
        Ok(())
    }

    fn catch_up_file(&self, map: &Map, ino: Ino, layout: &FileLayout) -> Result<(), Failure> {
        self.forget_what_is_gone(map, ino, layout)?;
        let own = self.length(ino)?;
        let theirs = self.primaries(map, ino, layout)?;
        let end = theirs.values().map(|theirs: &Theirs| theirs.length).fold(own, u64::max);
        for piece in layout.pieces(map, 0..end).filter(|piece| map.is_behind(piece.group, self.me)) {
            let theirs = theirs.get(&piece.server).ok_or(Errno::AGAIN)?;
            let from = Source { group: piece.group, primary: piece.server, ino, written: theirs.written };
            // Behind the ends of both there is nothing to compare.
            let stop = (piece.offset + piece.len).min(own.max(theirs.length));
            let mut at = piece.offset;
            while at < stop {
                let len = (stop - at).min(COMPARED);
                self.compare(&from, at, len)?;
                at += len;
            }
        }
        // A hole at the end looks the same whether it is there or not.
        if self.length(ino)? == self.reach(map, layout, &theirs, own) {
            return Ok(());
        }
        self.even(map, ino, layout)
    }

    /// The length of the own sub-file.
    fn length(&self, ino: Ino) -> Result<u64, Failure> {
        Ok(self.store.extent(ino).map_err(|error| error.errno())?.length)
    }

    /// How long this server's sub-file is, when it is not behind: as far as the primaries' go in its own blocks.
    fn reach(&self, map: &Map, layout: &FileLayout, theirs: &BTreeMap<ServerId, Theirs>, own: u64) -> u64 {
        let end = theirs.values().map(|theirs| theirs.length).fold(own, u64::max);
        let reach = |piece: Piece| {
            let length = if map.is_behind(piece.group, self.me) {
                theirs.get(&piece.server).map_or(0, |theirs| theirs.length)
            } else if map.holders(piece.group).all().contains(&self.me) {
                own
            } else {
                0
            };
            let reach = length.min(piece.offset + piece.len);
            if reach > piece.offset { reach } else { 0 }
        };
        layout.pieces(map, 0..end).map(reach).max().unwrap_or(0)
    }

    /// Gives the own sub-file the length that it should have.
    fn even(&self, map: &Map, ino: Ino, layout: &FileLayout) -> Result<(), Failure> {
        for _ in 0..EVENED {
            self.catching.begin(ino, 0..u64::MAX);
            let own = self.length(ino)?;
            let theirs = self.primaries(map, ino, layout)?;
            let reach = self.reach(map, layout, &theirs, own);
            let written = theirs.values().filter_map(|theirs| theirs.written).max();
            let made = self.catching.end(ino, || {
                self.marks.cut(ino, reach);
                self.unseen(ino, written, || self.store.truncate(ino, reach, true).map(drop))
            });
            if let Some(made) = made {
                return made.map_err(|error| error.errno().into());
            }
        }
        // It is written all the time: later.
        Err(Errno::AGAIN.into())
    }

    /// Compares a range with its primary's, and fetches what differs.
    fn compare(&self, from: &Source, offset: u64, len: u64) -> Result<(), Failure> {
        let Source { group, primary, ino, .. } = *from;
        let mut theirs = vec![0; len.div_ceil(DIGESTED) as usize * 4];
        let request = Request::Copy(CopyRequest::Digest { group, ino, offset, len });
        let own = self.digests(ino, offset, len).map_err(|error| error.errno())?;
        match self.links.ask_into(To::Primary(primary, group), &request, &[], &mut theirs)? {
            (Reply::Copy(CopyReply::Read), count) if count == theirs.len() => {}
            _ => return Err(Errno::PROTO.into()),
        }
        let (theirs, _) = theirs.as_chunks::<4>();
        for run in runs_that_differ(&own, theirs) {
            let end = (run.end * DIGESTED).min(len);
            for at in (run.start * DIGESTED..end).step_by(FETCHED as usize) {
                self.fetch(from, offset + at, (end - at).min(FETCHED))?;
            }
        }
        Ok(())
    }

    fn fetch(&self, from: &Source, offset: u64, len: u64) -> Result<(), Failure> {
        let Source { group, primary, ino, .. } = *from;
        let mut bytes = vec![0; len as usize];
        loop {
            self.catching.begin(ino, offset..offset + len);
            let request = Request::Copy(CopyRequest::Fetch { group, ino, offset, len: len as u32 });
            let count = match self.links.ask_into(To::Primary(primary, group), &request, &[], &mut bytes)? {
                (Reply::Copy(CopyReply::Read), count) if count <= bytes.len() => count,
                _ => return Err(Errno::PROTO.into()),
            };
            let count = self.keep_what_is_right((group, primary), ino, offset, &mut bytes, count)?;
            let made = self.catching.end(ino, || self.take_in(from, offset..offset + len, &bytes[..count]));
            if let Some(made) = made {
                self.catching.fetches.fetch_add(1, Ordering::Relaxed);
                self.catching.fetched.fetch_add(count as u64, Ordering::Relaxed);
                self.catching.pace.wait(count as u64, self.links.map().heal_rate);
                return made.map_err(|error: DataError| error.errno().into());
            }
        }
    }

    /// A range becomes as it is at its primary.
    fn take_in(&self, from: &Source, range: Range<u64>, bytes: &[u8]) -> Result<(), DataError> {
        let end = range.start + bytes.len() as u64;
        let is_hole = bytes.iter().all(|byte| *byte == 0);
        self.unseen(from.ino, from.written, || {
            self.marks.reaches(from.ino, end);
            self.copy_mirror(from.ino, range.clone(), if is_hole { &[] } else { bytes }, None)?;
            if !bytes.is_empty() && self.store.extent(from.ino)?.length < end {
                self.store.truncate(from.ino, end, true)?;
            }
            // Whatever was damaged here is replaced.
            self.store.renew_sums(from.ino, range)
        })
    }

    /// Makes a change that is not one of the file: when it was written last stays, or becomes `theirs` if that is
    /// later.
    pub(super) fn unseen(
        &self,
        ino: Ino,
        theirs: Option<Time>,
        change: impl FnOnce() -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let own = self.store.extent(ino)?.written.map(|written| written.at);
        change()?;
        own.max(theirs).map_or(Ok(()), |written| self.store.set_written(ino, written))
    }
}

/// Where two rows of checksums differ: runs of stretches, by their numbers.
fn runs_that_differ(own: &[u32], theirs: &[[u8; 4]]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let differs = |(_, (own, theirs)): &(u64, (&u32, &[u8; 4]))| **own != u32::from_le_bytes(**theirs);
    for (number, _) in (0..).zip(own.iter().zip(theirs)).filter(differs) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found_in_runs() {
        let runs = |own: &[u32], theirs: &[u32]| {
            runs_that_differ(own, &theirs.iter().map(|sum| sum.to_le_bytes()).collect::<Vec<_>>())
        };
        assert_eq!(runs(&[1, 2, 3, 4, 5], &[1, 0, 0, 4, 0]), [1..3, 4..5]);
        assert_eq!(runs(&[1, 2, 3], &[3, 4, 3]), std::slice::from_ref(&(0..2)));
        assert!(runs(&[1, 2], &[1, 2]).is_empty() && runs(&[], &[]).is_empty());
    }
}
