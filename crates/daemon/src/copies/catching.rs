//! Catching up: a server that was away compares what it holds with the primaries, and gets what differs.
//!
//! From the moment that the map calls it up, the primaries have it make all new changes. For what it has missed it
//! goes through all files that have copies, and asks the primary of each stretch that it holds for checksums of it;
//! what differs it fetches ([`super::fetching`]), several stretches of one file and of several at once, as far as
//! [`super::pace`] lets it.
//!
//! A group counts as caught up when all of its files were compared, and when no change of it has failed here meanwhile
//! ([`Catching::excuses`]), for as long as the map says that the server is behind since the same epoch. Groups do not
//! wait for each other: one whose primary does not answer is tried again later.

use super::Copies;
use super::fetching::{Fetches, Source};
use super::holder::is_of_blocks;
use super::pace::{AT_ONCE, Pace};
use crate::links::{Whom, all_of, now};
use bivouac_data::DataError;
use bivouac_layout::map::NO_SERVER;
use bivouac_layout::{Epoch, FileLayout, Group, Ino, Map, Piece, ServerId, ShardId};
use bivouac_proto::copies::{CopyReply, CopyRequest};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::peer::{PeerReply, PeerRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request, Time};
use bivouac_transport::engine::To;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of which checksums are asked at once.
const COMPARED: u64 = 16 << 20;
/// So often a file is compared that gets newer layouts all the while.
const COMPARISONS: u32 = 4;
/// So often it is tried to give a file that is being written its length, before others are compared.
const EVENED: u32 = 50;
/// Time between two tries where there was no room.
const FULL: Duration = Duration::from_secs(10);

/// What is being fetched, and how far the catching up has come.
#[derive(Default)]
pub(crate) struct Catching {
    pub(super) fetches: Fetches,
    state: Mutex<State>,
    /// How many bytes were fetched.
    pub(super) fetched: AtomicU64,
    /// How many files there was no room for when it was last tried.
    without_room: AtomicU64,
    pub(super) pace: Pace,
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

impl Catching {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What was fetched may be lost: these groups, in which the server is behind, have to be compared again. Of which of
    /// them it has said that it has caught up.
    pub(super) fn spoil(&self, behind: Vec<Group>) -> Vec<Group> {
        let mut state = self.state();
        state.spoiled.extend(behind);
        state.complete.keys().copied().collect()
    }
}

/// What another server has of a file.
#[derive(Clone, Copy)]
struct Theirs {
    length: u64,
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
        if !self.works_again() || !self.learn_stripes() {
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
        let missed = Mutex::new(Missed::default());
        let without = self.shards_without();
        let shards = (0..bivouac_layout::SHARDS).map(ShardId).filter(|shard| !without.contains(shard));
        try_each(shards, |shard| self.compare_shard(shard, wanted, &missed))?;
        let mut missed = missed.into_inner().unwrap_or_else(PoisonError::into_inner);
        *without_room = missed.without_room;
        missed.left.append(&mut missed.away);
        Ok(missed.left)
    }

    /// Shards of which their primaries say that there is nothing to compare. Most often these are nearly all, and
    /// asking for each of them takes longer than what there is to fetch.
    fn shards_without(&self) -> BTreeSet<ShardId> {
        let map = self.links.map();
        let primaries: BTreeSet<ServerId> =
            (0..bivouac_layout::SHARDS).map(|shard| map.primary(ShardId(shard))).collect();
        let primaries: Vec<ServerId> = primaries.into_iter().filter(|server| map.is_up(*server)).collect();
        let answers = self.links.ask_each(None, &primaries, &Request::Peer(PeerRequest::ShardsWithout), &[]);
        let shards = answers.into_iter().filter_map(|answer| match answer {
            Ok(Reply::Peer(PeerReply::Shards(shards))) => Some(shards),
            _ => None,
        });
        shards.flatten().collect()
    }

    fn compare_shard(
        &self,
        shard: ShardId,
        wanted: &BTreeMap<Group, Epoch>,
        missed: &Mutex<Missed>,
    ) -> Result<(), Failure> {
        let mut after = Ino(0);
        loop {
            let files = self.files(shard, after)?;
            let Some((last, _)) = files.last() else { return Ok(()) };
            after = *last;
            let has_fetched = AtomicBool::new(false);
            for (ino, layout) in &files {
                self.compare_file(*ino, layout, wanted, missed, &has_fetched)?;
            }
            if has_fetched.into_inner() {
                self.remove_what_is_gone(shard, &files)?;
            }
        }
    }

    /// Compares a file by the layout with which it was listed, or by a newer one that it has got since: it was opened for writing
    /// then, most likely.
    fn compare_file(
        &self,
        ino: Ino,
        listed: &FileLayout,
        wanted: &BTreeMap<Group, Epoch>,
        missed: &Mutex<Missed>,
        has_fetched: &AtomicBool,
    ) -> Result<(), Failure> {
        let missed = || missed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut layout = listed.clone();
        for is_last in (1..=COMPARISONS).map(|number| number == COMPARISONS) {
            let map = self.links.map();
            self.clear_what_has_left(&map, ino, &layout)?;
            let groups: Vec<Group> =
                layout.groups(&map, u64::MAX).filter(|group| wanted.contains_key(group)).collect();
            if groups.is_empty() || missed().are_away(&groups) {
                return Ok(());
            }
            let Err(failure) = self.catch_up_file(&map, ino, &layout, has_fetched) else { return Ok(()) };
            tracing::debug!(%ino, ?failure, "not caught up with");
            let newer = match failure {
                Failure::Refused(Refusal::StaleLayout) if !is_last => self.layout_of(&map, ino)?,
                _ => None,
            };
            match newer.filter(|newer| newer.version > layout.version) {
                Some(newer) => layout = newer,
                None => {
                    missed().note(groups, &failure);
                    return Ok(());
                }
            }
        }
        Ok(())
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
        let others = groups.into_iter().filter(|(server, _)| *server != self.me && *server != NO_SERVER);
        others
            .map(|(server, group)| Ok((server, self.extent_of(server, group, (ino, layout.version))?)))
            .collect()
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
    fn extent_of(
        &self,
        server: ServerId,
        group: Group,
        (ino, layout): (Ino, u32),
    ) -> Result<Theirs, Failure> {
        let asked = now();
        match self.links.ask(
            Whom::from(To::Primary(server, group)).of_layout(layout),
            &Request::Copy(CopyRequest::Extent { group, ino }),
        )? {
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
            self.store.drop_sub_file(ino).map_err(|error| error.errno())?;
            self.store.renounce(ino);
        }
        Ok(())
    }

    fn catch_up_file(
        &self,
        map: &Map,
        ino: Ino,
        layout: &FileLayout,
        has_fetched: &AtomicBool,
    ) -> Result<(), Failure> {
        self.forget_what_is_gone(map, ino, layout)?;
        let own = self.length(ino)?;
        let theirs = self.primaries(map, ino, layout)?;
        let end = theirs.values().map(|theirs: &Theirs| theirs.length).fold(own, u64::max);
        let pieces = layout.pieces(map, 0..end).filter(|piece| map.is_behind(piece.group, self.me));
        try_each(pieces, |piece| {
            let theirs = theirs.get(&piece.server).ok_or(Errno::AGAIN)?;
            let layout = layout.version;
            let from =
                Source { group: piece.group, primary: piece.server, ino, layout, written: theirs.written };
            // Behind the ends of both there is nothing to compare.
            let stop = (piece.offset + piece.len).min(own.max(theirs.length));
            let mut at = piece.offset;
            while at < stop {
                let len = (stop - at).min(COMPARED);
                self.compare(&from, (at, len), has_fetched)?;
                at += len;
            }
            Ok(())
        })?;
        // A hole at the end looks the same whether it is there or not.
        if self.length(ino)? == self.reach(map, layout, &theirs, own) {
            return Ok(());
        }
        // This may make a sub-file, too.
        has_fetched.store(true, Ordering::Relaxed);
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
            let begun = self.catching.fetches.begin(ino, 0..u64::MAX);
            let own = self.length(ino)?;
            let theirs = self.primaries(map, ino, layout)?;
            let reach = self.reach(map, layout, &theirs, own);
            let written = theirs.values().filter_map(|theirs| theirs.written).max();
            let made = begun.end(|| {
                if self.has_newer(ino, layout.version) {
                    // By a newer layout it may have to be longer.
                    return Err(Refusal::StaleLayout.into());
                }
                self.marks.cut(ino, reach);
                let made = self.unseen(ino, written, || self.store.truncate(ino, reach, true).map(drop));
                made.map_err(|error| Failure::Errno(error.errno()))
            });
            if let Some(made) = made {
                return made;
            }
        }
        // It is written all the time: later.
        Err(Errno::AGAIN.into())
    }
}

/// What could not be caught up with.
#[derive(Default)]
struct Missed {
    /// Groups whose primaries do not answer.
    away: BTreeSet<Group>,
    /// Groups of files for which there is no room, or which have got another layout since they were listed.
    left: BTreeSet<Group>,
    /// How many files there was no room for.
    without_room: u64,
}

impl Missed {
    /// Whether there is no sense in trying a file of these groups.
    fn are_away(&self, groups: &[Group]) -> bool {
        groups.iter().all(|group| self.away.contains(group))
    }

    fn note(&mut self, groups: Vec<Group>, failure: &Failure) {
        match failure {
            Failure::Errno(Errno::NOSPC | Errno::DQUOT) => {
                self.without_room += 1;
                self.left.extend(groups);
            }
            Failure::Refused(Refusal::StaleLayout) => self.left.extend(groups),
            _ => self.away.extend(groups),
        }
    }
}

/// Does something with each, with several at once, until one fails.
fn try_each<T: Send>(
    mut items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let mut first: VecDeque<T> = items.by_ref().take(AT_ONCE).collect();
    // Most files are small: for these it is done here.
    if first.len() < 2 {
        return first.pop_front().map_or(Ok(()), work);
    }
    let workers = first.len();
    let left = Mutex::new(first.into_iter().chain(items));
    let failed = Mutex::new(None);
    let each = || {
        loop {
            let has_failed = failed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
            let next =
                if has_failed { None } else { left.lock().unwrap_or_else(PoisonError::into_inner).next() };
            let Some(item) = next else { return };
            if let Err(failure) = work(item) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            // Where there is no thread to be had, the others do it.
            let _ = std::thread::Builder::new().name("data-catcher".into()).spawn_scoped(scope, each);
        }
        each();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once_and_none_after_a_failure() {
        for count in [0, 1, 2, 3, 100] {
            let done = Mutex::new(Vec::new());
            let note = |number: u32| {
                done.lock().expect("no panic").push(number);
                Ok(())
            };
            assert!(try_each(0..count, note).is_ok());
            let mut done = done.into_inner().expect("no panic");
            done.sort_unstable();
            assert_eq!(done, (0..count).collect::<Vec<_>>());
        }
        let tried = AtomicU64::new(0);
        let fail = |_| {
            tried.fetch_add(1, Ordering::Relaxed);
            Err(Errno::AGAIN.into())
        };
        assert!(matches!(try_each(0..100, fail), Err(Failure::Errno(Errno::AGAIN))));
        assert!(tried.into_inner() <= AT_ONCE as u64);
    }
}
