//! Rebuilding: a server has all files of its shards restriped that are not where they are to be by the map.
//!
//! It does so in the background as long as the map has a rebuild ([`bivouac_layout::Rebuild`]), several files at once, each range
//! by range ([`bivouac_meta::MetaStore::restripe`]). When it finds no file any more, it says so in its answers to pings, by the
//! map that it has; when all servers say so by the same map, the controller calls the rebuild complete. By a new map it looks
//! again, because it may answer for other shards. What fails is tried again; nothing is kept here that a restart could lose.

use crate::links::Links;
use crate::restriping::{Restriping, Room};
use bivouac_layout::{Epoch, Map, Rebuild};
use bivouac_meta::{MetaStore, Restriped, ToMove};
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
/// Bytes of a file that go in one step, at most; and the part of what may be on its way at once.
const LONGEST: u64 = 32 << 20;
/// Of files whose stripes are longer, fewer blocks go at once than there are links.
const LONGEST_STRIPE: u64 = 128 << 20;
const PART: u64 = 4;
/// Time before it is looked again for files that could not be moved: at first, and at most. It doubles while nothing moves.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_LONGEST: Duration = Duration::from_secs(2);
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

/// What came of going through all files once.
enum Passed {
    /// Nothing is to be done.
    Rests,
    /// All that was found has moved. There may be more by now.
    Moved,
    /// Some could not be moved, or not yet; others may have been.
    Failed { moved: bool },
}

/// How long the thread rests between two times that it goes through all files.
#[derive(Debug, Default)]
struct Pauses {
    /// The last pause after which nothing had moved.
    last: Duration,
}

impl Pauses {
    /// The pause until it goes through them again. `is_news`: it went by a map that it had not seen before.
    fn after(&mut self, passed: Passed, is_news: bool) -> Duration {
        match passed {
            Passed::Rests => REST,
            Passed::Moved => Duration::ZERO,
            Passed::Failed { moved } => {
                let is_stuck = !moved && !is_news;
                self.last = if is_stuck { (2 * self.last).clamp(RETRY, RETRY_LONGEST) } else { RETRY };
                self.last
            }
        }
    }
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
    pub(crate) fn start(
        links: &Arc<Links>,
        meta: Arc<MetaStore>,
        restriping: Arc<Restriping>,
    ) -> std::io::Result<Rebuilder> {
        let state = Arc::<Mutex<State>>::default();
        let (links, told) = (links.clone(), state.clone());
        let work = move || {
            let (mut known, mut rest, mut pauses) = (Epoch(0), Duration::ZERO, Pauses::default());
            while let Some(map) = links.wait_for_map(known, rest) {
                let is_news = map.epoch > std::mem::replace(&mut known, map.epoch);
                let passed = match &map.rebuild {
                    Some(rebuild) => pass(&links, (&meta, &restriping), &map, rebuild, &told),
                    None => Passed::Rests,
                };
                rest = pauses.after(passed, is_news);
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

/// Goes through all files once.
fn pass(
    links: &Links,
    (meta, restriping): (&MetaStore, &Restriping),
    map: &Map,
    rebuild: &Rebuild,
    state: &Mutex<State>,
) -> Passed {
    if lock(state).progress.number != rebuild.number {
        *lock(state) = State {
            progress: Progress { number: rebuild.number, ..Progress::default() },
            ..State::default()
        };
    }
    let (mut files, unsure) = meta.to_restripe(rebuild.rule);
    // The longest first, so that none of them is left alone in the end.
    files.sort_unstable_by_key(|file| std::cmp::Reverse(file.size));
    let before = {
        let mut state = lock(state);
        let progress = &mut state.progress;
        progress.files_left = files.len() as u64 + unsure;
        progress.bytes_left = files.iter().map(|file| file.size).sum();
        (progress.held, progress.failed) = (0, 0);
        if files.is_empty() && unsure == 0 {
            progress.no_room = false;
            state.done_by = map.epoch;
            return Passed::Rests;
        }
        (state.progress.files_done, state.progress.bytes_done)
    };
    let is_still =
        || !links.is_closing() && links.map().rebuild.is_some_and(|now| now.number == rebuild.number);
    let begun = Instant::now();
    let (next, room) = (AtomicUsize::new(0), Room::default());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let_shards_move_first(links, begun + SHARDS_FIRST, &is_still);
            let step = || step_of(file, restriping.at_once(rebuild.rate));
            // While one step is being decided, another one moves.
            let at_once = || restriping.at_once(rebuild.rate).max(2 * step());
            let _room = room.take(file.size.min(step()), at_once);
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
    // Files that programs hold are looked at often: that is quick, and somebody may wait for them.
    match progress.failed {
        0 if progress.held == 0 => Passed::Moved,
        0 => Passed::Failed { moved: true },
        _ => Passed::Failed { moved: (progress.files_done, progress.bytes_done) != before },
    }
}

/// Waits while shards move, for some time: links that are full of blocks would delay them, and with them everybody who
/// needs these shards; and a step is made anew if its file's shard moves meanwhile.
fn let_shards_move_first(links: &Links, until: Instant, is_still: &impl Fn() -> bool) {
    while !links.map().moving.is_empty() && is_still() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// How much of a file goes in one step, where so many bytes may be on their way at once: whole stripes, because with less some
/// links would carry nothing.
fn step_of(file: &ToMove, at_once: u64) -> u64 {
    let bytes = (at_once / PART).clamp(1, LONGEST);
    if file.stripe <= LONGEST_STRIPE { bytes.next_multiple_of(file.stripe.max(1)) } else { bytes }
}

/// Has a file moved, step by step.
fn move_file(
    meta: &MetaStore,
    (rebuild, restriping): (&Rebuild, &Restriping),
    file: &ToMove,
    is_still: &impl Fn() -> bool,
    state: &Mutex<State>,
) {
    let note = |change: &dyn Fn(&mut Progress)| change(&mut lock(state).progress);
    while is_still() {
        let longest = step_of(file, restriping.at_once(rebuild.rate));
        match meta.restripe(file.ino, (rebuild, longest)) {
            Ok(Restriped::Moved(bytes)) => {
                restriping.has_moved(bytes);
                note(&|progress| progress.bytes_done += bytes);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::Ino;

    #[test]
    fn what_does_not_move_is_tried_ever_more_rarely_until_something_does_or_the_map_is_another_one() {
        let mut pauses = Pauses::default();
        let stuck = |pauses: &mut Pauses| pauses.after(Passed::Failed { moved: false }, false).as_millis();
        let all: Vec<u128> = (0..6).map(|_| stuck(&mut pauses)).collect();
        assert_eq!(all, [200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(pauses.after(Passed::Failed { moved: true }, false), RETRY);
        assert_eq!([stuck(&mut pauses), stuck(&mut pauses)], [400, 800]);
        assert_eq!(pauses.after(Passed::Failed { moved: false }, true), RETRY);
        assert_eq!(pauses.after(Passed::Moved, false), Duration::ZERO);
        assert_eq!(pauses.after(Passed::Rests, false), REST);
    }

    #[test]
    fn a_step_is_whole_stripes_unless_these_are_very_long() {
        let file = |stripe| ToMove { ino: Ino(1), size: 1 << 30, stripe };
        assert_eq!(step_of(&file(512 << 10), 8 << 20), 2 << 20);
        assert_eq!(step_of(&file(3 << 20), 8 << 20), 3 << 20);
        assert_eq!(step_of(&file(32 << 20), 8 << 20), 32 << 20);
        assert_eq!(step_of(&file(1 << 30), 8 << 20), 2 << 20);
        assert_eq!(step_of(&file(0), 0), 1);
        assert_eq!(step_of(&file(4096), u64::MAX), LONGEST);
    }
}
