//! Rebuilding: a server has all files of its shards restriped that are not where they are to be by the map.
//!
//! It does so in the background as long as the map has a rebuild ([`bivouac_layout::Rebuild`]), several files at once, each range
//! by range ([`bivouac_meta::MetaStore::restripe`]). When it finds no file any more, it says so in its answers to pings, by the
//! map that it has; when all servers say so by the same map, the controller calls the rebuild complete. By a new map it looks
//! again, because it may answer for other shards. What fails is tried again; nothing is kept here that a restart could lose.

use crate::links::Links;
use crate::restriping::{Restriping, Room};
use bivouac_layout::{Epoch, Map, Rebuild};
use bivouac_meta::{MetaStore, Outside, Restriped, ToMove};
use bivouac_proto::Errno;
use bivouac_proto::restripe::Progress;
use bivouac_proto::status::Failure;
use bivouac_transport::engine::Requester;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Files at once, at most: a small one takes some round trips, in which its links would be idle.
const AT_ONCE: usize = 32;
/// Bytes of files that are at once on their way, at most: more would only make each of them take longer.
const BYTES_AT_ONCE: u64 = 256 << 20;
/// Of a large file, so much at once is on its way.
const LARGE: u64 = 32 << 20;
/// Time before it is looked again for files that could not be moved.
const RETRY: Duration = Duration::from_millis(200);
/// How long shards that move are waited for, at most, each time that all files are gone through.
const SHARDS_FIRST: Duration = Duration::from_secs(2);
/// Time between two looks whether they still do.
const LOOK: Duration = Duration::from_millis(10);
/// Longest sleep when nothing is to be done.
const REST: Duration = Duration::from_secs(60);

/// How far it has come.
#[derive(Default)]
struct State {
    progress: Progress,
    /// No file was found by this map.
    done_by: Epoch,
}

/// The thread that rebuilds.
pub(crate) struct Rebuilder {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rebuilder {
    /// Begins.
    pub(crate) fn start<O: Outside>(
        links: &Arc<Links>,
        meta: Arc<MetaStore<O>>,
        restriping: Arc<Restriping>,
    ) -> std::io::Result<Rebuilder> {
        let state = Arc::<Mutex<State>>::default();
        let (links, told) = (links.clone(), state.clone());
        let work = move || {
            let (mut known, mut rest) = (Epoch(0), Duration::ZERO);
            while let Some(map) = links.wait_for_map(known, rest) {
                known = map.epoch;
                rest = match &map.rebuild {
                    Some(rebuild) => pass(&links, (&meta, &restriping), &map, rebuild, &told),
                    None => REST,
                };
            }
        };
        let thread = std::thread::Builder::new().name("rebuilder".into()).spawn(work)?;
        Ok(Rebuilder { state, thread: Some(thread) })
    }

    /// The rebuild with which this server is done, by this map; 0: with none.
    pub(crate) fn rebuilt(&self, epoch: Epoch) -> u32 {
        let state = lock(&self.state);
        if state.done_by == epoch { state.progress.number } else { 0 }
    }

    /// How far it has come with the rebuild that is under way, or was the last one.
    pub(crate) fn progress(&self) -> Progress {
        lock(&self.state).progress
    }

    /// Waits for the thread, after [`Links::close`].
    pub(crate) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Goes through all files once. How long to rest then.
fn pass<O: Outside>(
    links: &Links,
    (meta, restriping): (&MetaStore<O>, &Restriping),
    map: &Map,
    rebuild: &Rebuild,
    state: &Mutex<State>,
) -> Duration {
    if lock(state).progress.number != rebuild.number {
        *lock(state) = State {
            progress: Progress { number: rebuild.number, ..Progress::default() },
            ..State::default()
        };
    }
    let (mut files, unsure) = meta.to_restripe(rebuild.rule);
    // The longest first, so that none of them is left alone in the end.
    files.sort_unstable_by_key(|file| std::cmp::Reverse(file.size));
    {
        let mut state = lock(state);
        let progress = &mut state.progress;
        progress.files_left = files.len() as u64 + unsure;
        progress.bytes_left = files.iter().map(|file| file.size).sum();
        (progress.held, progress.failed) = (0, 0);
        if files.is_empty() && unsure == 0 {
            progress.no_room = false;
            state.done_by = map.epoch;
            return REST;
        }
    }
    let is_still =
        || !links.is_closing() && links.map().rebuild.is_some_and(|now| now.number == rebuild.number);
    let begun = Instant::now();
    let (next, room) = (AtomicUsize::new(0), Room::default());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let_shards_move_first(links, begun + SHARDS_FIRST, &is_still);
            let pace = || restriping.pace();
            let _room = room.take(file.size.min(longest(pace())), || bytes_at_once(pace()));
            if !is_still() {
                return;
            }
            move_file(meta, (rebuild, restriping), file, &is_still, state);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(files.len()) {
            scope.spawn(work);
        }
        work();
    });
    let progress = &mut lock(state).progress;
    if progress.failed == 0 {
        progress.no_room = false;
    }
    if progress.failed + progress.held > 0 { RETRY } else { Duration::ZERO }
}

/// Waits while shards move, for some time: links that are full of blocks would delay them, and with them everybody who
/// needs these shards; and a step is made anew if its file's shard moves meanwhile.
fn let_shards_move_first(links: &Links, until: Instant, is_still: &impl Fn() -> bool) {
    while !links.map().moving.is_empty() && is_still() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// How much of a file is on its way at once, at this pace (bytes per second; 0: any).
fn longest(pace: u64) -> u64 {
    if pace == 0 { LARGE } else { (pace / 4).clamp(1, LARGE) }
}

/// What may be on its way at this pace.
fn bytes_at_once(pace: u64) -> u64 {
    if pace == 0 { BYTES_AT_ONCE } else { pace.min(BYTES_AT_ONCE) }
}

/// Has a file moved, step by step.
fn move_file<O: Outside>(
    meta: &MetaStore<O>,
    (rebuild, restriping): (&Rebuild, &Restriping),
    file: &ToMove,
    is_still: &impl Fn() -> bool,
    state: &Mutex<State>,
) {
    let note = |change: &dyn Fn(&mut Progress)| change(&mut lock(state).progress);
    while is_still() {
        // Beside programs, in short steps: who writes a range waits while it is on its way.
        let rate = [rebuild.rate, restriping.pace()].into_iter().filter(|rate| *rate > 0).min().unwrap_or(0);
        match meta.restripe(file.ino, &Rebuild { rate, ..*rebuild }) {
            Ok(Restriped::Moved(bytes)) => note(&|progress| progress.bytes_done += bytes),
            Ok(Restriped::Done) => {
                return note(&|progress| {
                    progress.files_done += 1;
                    progress.files_left = progress.files_left.saturating_sub(1);
                    progress.bytes_left = progress.bytes_left.saturating_sub(file.size);
                });
            }
            Ok(Restriped::Held) => return note(&|progress| progress.held += 1),
            Err(failure) => {
                tracing::debug!(ino = %file.ino, ?failure, "a file is not restriped");
                let is_full = matches!(failure, Failure::Errno(Errno::NOSPC | Errno::DQUOT));
                return note(&|progress| {
                    progress.failed += 1;
                    progress.no_room |= is_full;
                });
            }
        }
    }
}
