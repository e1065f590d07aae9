//! Checking what a server stores (`bivouac verify`), in a thread, at the command line's request.
//!
//! First stage ([`Stage::Own`]), what a server can see by itself: its metadata logs, and which sub-files are gone. A
//! sub-file that is gone and has copies makes its server a holder that has fallen behind, as a failing storage does; so
//! the server does not show the file while it fetches it ([`crate::copies`]).
//!
//! Second stage ([`Stage::Together`]): a server compares the copies of the shards and of the blocks of which it is the
//! primary. Of the files whose inodes it has it looks whether their sub-files are as long as they should be, and which of
//! them have blocks only on servers that are not there.
//!
//! The last stage ([`Stage::Away`]) is for those who are about to give servers up: only the files of which nobody serves
//! some blocks.
//!
//! The thread ends when nobody has asked how far it is for [`FORGOTTEN`], so that nothing goes on for a command that was
//! killed. It reads so many bytes in a second as it was told; what it asks of other servers, these read at the same pace.

use crate::copies::{Checked, Copies};
use crate::links::{Links, all_of};
use bivouac_data::DataStore;
use bivouac_layout::placement::MAX_BLOCK;
use bivouac_layout::{FileLayout, Group, Ino, Map, SHARDS, ServerId, ShardId};
use bivouac_meta::{MetaStore, StoredFile};
use bivouac_proto::control::ControlReply;
use bivouac_proto::copies::CHUNK;
use bivouac_proto::data::{DataReply, DataRequest, Share};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::verify::{
    FINDINGS, Fault, Finding, IN_MESSAGE, Outcome, Progress, Stage, VerifyRequest, VerifyState,
};
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::Requester;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After so long without a question the work ends.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Longest range that is compared at once, bytes: changes of it wait meanwhile.
const AT_ONCE: u64 = 1 << 20;
/// Shards whose copies are compared at once.
const SHARDS_AT_ONCE: usize = 64;
/// How long a server that fetches what it had lost is waited for.
const FETCHING: Duration = Duration::from_secs(600);
/// Time between two looks at that.
const LOOK: Duration = Duration::from_millis(50);
/// How often a length is looked at before it is believed to be wrong.
const LOOKS: u32 = 4;

/// What the thread works on.
pub(crate) struct With {
    pub(crate) me: ServerId,
    pub(crate) links: Arc<Links>,
    pub(crate) data: Arc<DataStore>,
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) copies: Arc<Copies>,
}

/// The work that is under way, or was the last.
#[derive(Default)]
pub(crate) struct Verifier(Mutex<Option<(Arc<Run>, JoinHandle<()>)>>);

/// What the thread and those who ask for it have in common.
struct Run {
    stop: AtomicBool,
    asked: Mutex<Instant>,
    state: Mutex<VerifyState>,
}

impl Verifier {
    /// Serves a request of the command line.
    pub(crate) fn serve(
        &self,
        request: &VerifyRequest,
        with: impl FnOnce() -> With,
    ) -> Result<Option<ControlReply>, Failure> {
        match request {
            VerifyRequest::Start { stage, dry_run, rate } => {
                self.start(*stage, *dry_run, *rate, with()).map(|()| None)
            }
            VerifyRequest::State { from } => {
                Ok(Some(ControlReply::Verify(Box::new(self.state(*from, &with().links)))))
            }
            VerifyRequest::Cancel => {
                self.stop();
                Ok(None)
            }
            VerifyRequest::Names { inos } if inos.len() <= IN_MESSAGE => {
                let wanted: BTreeSet<Ino> = inos.iter().copied().collect();
                Ok(Some(ControlReply::Names(with().meta.names_of(&wanted, IN_MESSAGE))))
            }
            VerifyRequest::Names { .. } => Err(Errno::INVAL.into()),
        }
    }

    /// Ends the work, and waits until it has ended.
    pub(crate) fn stop(&self) {
        let under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((run, thread)) = under_way {
            run.stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
    }

    fn start(&self, stage: Stage, dry_run: bool, rate: u64, with: With) -> Result<(), Failure> {
        self.stop();
        let epoch = with.links.epoch();
        let state = VerifyState { is_running: true, epochs: (epoch, epoch), ..VerifyState::default() };
        let run = Arc::new(Run {
            stop: AtomicBool::new(false),
            asked: Mutex::new(Instant::now()),
            state: Mutex::new(state),
        });
        let work = Work {
            with,
            run: run.clone(),
            repairs: !dry_run,
            pace: Mutex::new(Pace { rate, ready: Instant::now() }),
        };
        let begin = move || {
            let _running = Running(&work.run);
            match stage {
                Stage::Own => work.check_own(),
                Stage::Together => work.check_together(),
                Stage::Away => work.look_what_is_away(),
            }
        };
        let thread = std::thread::Builder::new().name("verify".into()).spawn(begin).map_err(|error| {
            tracing::error!(%error, "no thread to verify");
            Failure::Errno(Errno::AGAIN)
        })?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((run, thread));
        Ok(())
    }

    fn state(&self, from: u32, links: &Links) -> VerifyState {
        let under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((run, _)) = &*under_way else { return VerifyState::default() };
        *run.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let state = run.state();
        let findings = state.findings.iter().skip(from as usize).take(IN_MESSAGE).copied().collect();
        VerifyState { epochs: (state.epochs.0, links.epoch()), findings, ..*state }
    }
}

impl Run {
    fn state(&self) -> MutexGuard<'_, VerifyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says so when the work has ended.
struct Running<'r>(&'r Run);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().is_running = false;
    }
}

/// Keeps reading at a rate.
struct Pace {
    /// Bytes in a second; 0: no limit.
    rate: u64,
    /// When the next bytes may be read.
    ready: Instant,
}

impl Pace {
    /// How long to wait before reading so many bytes.
    fn wait(&mut self, bytes: u64, now: Instant) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let wait = self.ready.saturating_duration_since(now);
        let takes = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        self.ready = self.ready.max(now) + takes;
        wait
    }
}

struct Work {
    with: With,
    run: Arc<Run>,
    repairs: bool,
    pace: Mutex<Pace>,
}

impl Work {
    fn is_stopped(&self) -> bool {
        let asked = *self.run.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.run.stop.load(Ordering::Relaxed) || self.with.links.is_closing() || asked.elapsed() > FORGOTTEN
    }

    fn count(&self, count: impl FnOnce(&mut Progress)) {
        count(&mut self.run.state().progress);
    }

    fn note(&self, finding: Finding) {
        let mut state = self.run.state();
        state.found += 1;
        if state.findings.len() < FINDINGS {
            state.findings.push(finding);
        }
    }

    /// Waits until so many bytes may be read.
    fn pace(&self, bytes: u64) {
        let wait = self.pace.lock().unwrap_or_else(PoisonError::into_inner).wait(bytes, Instant::now());
        let until = Instant::now() + wait;
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    fn check_own(&self) {
        let With { meta, me, .. } = &self.with;
        for partition in (0..meta.logs()).take_while(|_| !self.is_stopped()) {
            let (length, found) = meta.check_log(partition, self.repairs);
            self.count(|progress| progress.log_bytes += length);
            if let Some(outcome) = found {
                self.note(Finding::Log { server: *me, partition, outcome });
            }
            self.pace(length);
        }
        let missing = match self.with.data.find_missing() {
            Ok(missing) => missing,
            Err(error) => {
                tracing::error!(%error, "the sub-files cannot be looked for");
                return self.count(|progress| progress.skipped += 1);
            }
        };
        let map = self.with.links.map();
        let mut fetched: Vec<(Ino, BTreeSet<Group>)> = Vec::new();
        for ino in missing {
            match self.lose(&map, ino) {
                Lost::Nothing => {}
                Lost::Outcome(outcome) => self.note(self.is_missing(ino, outcome)),
                Lost::Fetched(groups) => fetched.push((ino, groups)),
            }
        }
        self.wait_for_fetched(fetched);
    }

    fn is_missing(&self, ino: Ino, outcome: Outcome) -> Finding {
        Finding::SubFile { ino, server: self.with.me, fault: Fault::Missing, offset: 0, len: 0, outcome }
    }

    /// What becomes of a file whose sub-file is gone here.
    fn lose(&self, map: &Map, ino: Ino) -> Lost {
        let With { me, links, copies, data, .. } = &self.with;
        let inode = links.meta(ino.shard(), &MetaRequest::GetAttr { ino });
        if let Err(Failure::Errno(Errno::NOENT)) = inode {
            // The file was removed: only this server did not take note of it.
            return Lost::Nothing;
        }
        let Some(layout) = self.copied_layout(ino) else { return Lost::Outcome(Outcome::Damaged) };
        let is_held = |group: &Group| map.holders(*group).all().contains(me);
        let groups: BTreeSet<Group> = layout.groups(map, u64::MAX).filter(is_held).collect();
        if !groups.iter().all(|group| map.serving(*group).any(|holder| holder != *me)) {
            return Lost::Outcome(Outcome::Damaged);
        }
        if !self.repairs {
            return Lost::Outcome(Outcome::Seen);
        }
        data.let_go(ino);
        groups.iter().for_each(|group| copies.suspect(*group, *me));
        Lost::Fetched(groups)
    }

    /// The layout of a file that has copies.
    fn copied_layout(&self, ino: Ino) -> Option<FileLayout> {
        let files = self.with.copies.files(ino.shard(), Ino(ino.0.checked_sub(1)?)).ok()?;
        files.into_iter().next().filter(|(found, _)| *found == ino).map(|(_, layout)| layout)
    }

    /// Waits until this server has again what was gone.
    fn wait_for_fetched(&self, fetched: Vec<(Ino, BTreeSet<Group>)>) {
        let With { me, links, copies, data, .. } = &self.with;
        let until = Instant::now() + FETCHING;
        let is_behind = |map: &Map, groups: &BTreeSet<Group>| groups.iter().any(|g| map.is_behind(*g, *me));
        let mut left = fetched;
        while !left.is_empty() && !self.is_stopped() && Instant::now() < until {
            std::thread::sleep(LOOK);
            let (map, suspects) = (links.map(), copies.suspects());
            let gone = data.find_missing().unwrap_or_default();
            left.retain(|(ino, groups)| {
                let is_suspect = groups.iter().any(|group| suspects.contains(&(*group, *me)));
                let is_back = !is_suspect && !is_behind(&map, groups) && !gone.contains(ino);
                if is_back {
                    self.note(self.is_missing(*ino, Outcome::Repaired));
                }
                !is_back
            });
        }
        left.iter().for_each(|(ino, _)| self.note(self.is_missing(*ino, Outcome::Damaged)));
    }

    fn check_together(&self) {
        let With { me, links, meta, .. } = &self.with;
        let map = links.map();
        if map.copies > 1 {
            let own: Vec<ShardId> = (0..SHARDS).map(ShardId).filter(|id| map.primary(*id) == *me).collect();
            for shards in own.chunks(SHARDS_AT_ONCE).take_while(|_| !self.is_stopped()) {
                let compared = meta.compare_copies(shards, self.repairs);
                self.count(|progress| {
                    progress.shards += compared.compared;
                    progress.skipped += compared.skipped;
                });
                for (shard, server, outcome) in compared.differ {
                    self.note(Finding::Shard { shard, server, outcome });
                }
            }
        }
        for shard in (0..SHARDS).map(ShardId).take_while(|_| !self.is_stopped()) {
            if map.primary(shard) == *me {
                self.check_inodes(shard, |file| self.check_file(file));
            }
            if map.copies > 1 && map.serving(Group::Shard(shard)).next().is_some() {
                self.check_copies(shard);
            }
        }
    }

    fn look_what_is_away(&self) {
        let (map, me) = (self.with.links.map(), self.with.me);
        for shard in (0..SHARDS).map(ShardId).filter(|id| map.primary(*id) == me) {
            self.check_inodes(shard, |file| self.note_if_away(&map, file));
        }
    }

    /// Looks at files whose inodes this server has.
    fn check_inodes(&self, shard: ShardId, check: impl Fn(&StoredFile)) {
        let mut after = Ino(0);
        loop {
            let Ok(files) = self.with.meta.stored_files(shard, after) else {
                return self.count(|progress| progress.skipped += 1);
            };
            let Some(last) = files.last() else { return };
            after = last.ino;
            for file in files {
                if self.is_stopped() {
                    return;
                }
                check(&file);
            }
        }
    }

    fn check_file(&self, file: &StoredFile) {
        let map = self.with.links.map();
        self.note_if_away(&map, file);
        self.count(|progress| progress.files += 1);
        self.check_length(&map, file);
    }

    /// Notes a file of which nobody serves some blocks.
    fn note_if_away(&self, map: &Map, file: &StoredFile) {
        let is_away = |group: Group| map.is_gone(group) || map.serving(group).next().is_none();
        if file.layout.groups(map, file.size.unwrap_or(u64::MAX)).any(is_away) {
            self.note(Finding::Away { ino: file.ino });
        }
    }

    /// The sub-file with a file's last byte ends there. (How long the others should be, nobody knows: what is not there
    /// may be a hole.)
    fn check_length(&self, map: &Map, file: &StoredFile) {
        let With { me, links, data, meta, .. } = &self.with;
        let Some(size) = file.size.filter(|size| *size > 0) else { return };
        let Some(piece) = file.layout.piece_at(map, size - 1, size) else { return };
        if !map.serving(piece.group).any(|server| server == piece.server) {
            return;
        }
        let (ino, server) = (file.ino, piece.server);
        let mut length = 0;
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(LOOK * look);
                let now = meta.stored_files(ino.shard(), Ino(ino.0 - 1)).unwrap_or_default();
                if now.first() != Some(file) {
                    // It is in use.
                    return;
                }
            }
            let found = match server == *me {
                true => data.extent(ino).map(|extent| extent.length).map_err(|error| error.errno().into()),
                false => match links.ask(all_of(server), &Request::Data(DataRequest::Extent { ino })) {
                    Ok(Reply::Data(DataReply::Extent { length, .. })) => Ok(length),
                    Ok(_) => Err(Failure::Errno(Errno::PROTO)),
                    Err(failure) => Err(failure),
                },
            };
            match found {
                Ok(found) if found >= size => return,
                Ok(found) => length = found,
                // If it is gone, its server has found out. If it is not there, that is known.
                Err(_) => return,
            }
        }
        let (fault, outcome) = (Fault::Length, Outcome::Damaged);
        self.note(Finding::SubFile { ino, server, fault, offset: length, len: size - length, outcome });
    }

    /// Compares blocks of which this server is the primary.
    fn check_copies(&self, shard: ShardId) {
        let mut after = Ino(0);
        loop {
            let Ok(files) = self.with.copies.files(shard, after) else {
                return self.count(|progress| progress.skipped += 1);
            };
            let Some((last, _)) = files.last() else { return };
            after = *last;
            for (ino, layout) in files {
                if self.is_stopped() {
                    return;
                }
                self.check_blocks(ino, &layout);
            }
        }
    }

    fn check_blocks(&self, ino: Ino, layout: &FileLayout) {
        let With { me, links, copies, .. } = &self.with;
        let map = links.map();
        if !layout.groups(&map, u64::MAX).any(|group| map.primary_of(group) == Some(*me)) {
            return;
        }
        let Ok(end) = copies.longest(&map, ino, layout) else {
            return self.count(|progress| progress.skipped += 1);
        };
        // Whole chunks, so that nobody appends to one that is being compared.
        let (end, mut at) = (end.next_multiple_of(CHUNK), 0);
        let mut others = BTreeMap::new();
        while !self.is_stopped() {
            at = self.next_used(&map, (ino, layout), at..end, &mut others);
            let Some(piece) = layout.piece_at(&map, at, end) else { return };
            let range = at..(at + piece.len.min(AT_ONCE));
            at = range.end;
            if piece.server != *me {
                continue;
            }
            let len = range.end - range.start;
            self.pace(len);
            let file = Checked { group: piece.group, ino, layout, repairs: self.repairs };
            match copies.check(&file, &range, || self.copied_layout(ino).is_some()) {
                Ok(findings) => {
                    self.count(|progress| progress.bytes += len);
                    findings.into_iter().for_each(|finding| self.note(finding));
                }
                Err(failure) => {
                    tracing::warn!(%ino, ?failure, offset = range.start, "copies could not be compared");
                    self.count(|progress| progress.skipped += 1);
                }
            }
        }
    }

    /// The first chunk of a range in which some server may have something other than a hole. `others`: what is known of
    /// the other servers.
    fn next_used(
        &self,
        map: &Map,
        (ino, layout): (Ino, &FileLayout),
        range: Range<u64>,
        others: &mut BTreeMap<ServerId, u64>,
    ) -> u64 {
        let With { me, links, data, .. } = &self.with;
        let Range { start, end } = range;
        let Ok(own) = data.next_used(ino, start) else { return start };
        let mut next = own.unwrap_or(end);
        if next < start + AT_ONCE {
            return next - next % CHUNK;
        }
        for server in layout.servers(map, end).into_iter().filter(|server| server != me) {
            let known = others.entry(server).or_default();
            if *known <= start {
                // All of the sub-file, whichever blocks are there.
                let share = Share { block_size: MAX_BLOCK, width: 1, turn: 0 };
                let seek = DataRequest::Seek { ino, offset: start, end, hole: false, share };
                *known = match links.ask(all_of(server), &Request::Data(seek)) {
                    Ok(Reply::Data(DataReply::Position { offset })) => offset,
                    Err(Failure::Errno(Errno::NXIO)) => end,
                    _ => return start,
                };
            }
            next = next.min(*known);
        }
        next - next % CHUNK
    }
}

/// What becomes of a file whose sub-file is gone.
enum Lost {
    /// There is no such file any more.
    Nothing,
    /// Nothing can be done, or is to be.
    Outcome(Outcome),
    /// Others have the blocks of these groups.
    Fetched(BTreeSet<Group>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_lets_so_many_bytes_through_in_a_second() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut pace = Pace { rate: 1000, ready: now };
        assert_eq!(pace.wait(500, now), Duration::ZERO);
        assert_eq!(pace.wait(2000, now), second / 2);
        assert_eq!(pace.wait(1, now + second * 2), second / 2);
        // What was not used is not saved up.
        assert_eq!(pace.wait(1000, now + second * 60), Duration::ZERO);
        assert_eq!(pace.wait(1000, now + second * 60), second);
        assert_eq!(Pace { rate: 0, ready: now }.wait(u64::MAX, now), Duration::ZERO);
    }
}
