//! Which lazy files are being fetched: who asks for one that is under way waits for it, and is told what came of it.
//!
//! A few threads do the work ([`FETCHERS`]), so that a backend that hangs holds up only those who need it.

use crate::store::{Core, lock};
use bivouac_layout::Ino;
use bivouac_proto::lazy::Unfetchable;
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Refusal, Reply};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files that one server fetches at once.
pub(crate) const FETCHERS: usize = 16;
/// How long a request waits for a fetch before its sender has to ask again: not so long that the server seems to hang.
const TURN: Duration = Duration::from_millis(500);
/// How long a failure is told without another try: who waits asks again in this time.
const TOLD: Duration = Duration::from_secs(1);
/// Files that could not be fetched are remembered for `status`: so many of them.
const REMEMBERED: usize = 1000;
/// Pause after a fetch that has to begin anew, because a server or the map is about to change.
const PAUSE: Duration = Duration::from_millis(20);

/// A fetch.
#[derive(Debug)]
enum Fetch {
    Waits,
    Failed(Unfetchable, Instant),
}

#[derive(Debug, Default)]
struct State {
    /// Those that no thread has begun yet.
    queue: VecDeque<Ino>,
    fetches: HashMap<Ino, Fetch>,
    /// Those that could not be fetched, since the server's start.
    failed: BTreeMap<Ino, String>,
    stop: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    state: Mutex<State>,
    /// There is something to do.
    work: Condvar,
    /// A fetch has ended.
    ended: Condvar,
}

/// What is known of a fetch after a turn of waiting.
#[derive(Debug, PartialEq)]
enum Told {
    Ended,
    Underway,
    Failed(Unfetchable),
}

impl Fetches {
    /// Has a file fetched, if that is not under way already, and waits for one turn.
    fn wait(&self, ino: Ino, turn: Duration) -> Told {
        let mut state = lock(&self.state);
        let until = Instant::now() + turn;
        match state.fetches.get(&ino) {
            Some(Fetch::Failed(why, since)) if since.elapsed() < TOLD => return Told::Failed(why.clone()),
            Some(Fetch::Waits) => {}
            _ => {
                state
                    .fetches
                    .retain(|_, fetch| !matches!(fetch, Fetch::Failed(_, since) if since.elapsed() >= TOLD));
                state.fetches.insert(ino, Fetch::Waits);
                state.queue.push_back(ino);
                self.work.notify_one();
            }
        }
        loop {
            match state.fetches.get(&ino) {
                None => return Told::Ended,
                Some(Fetch::Failed(why, _)) => return Told::Failed(why.clone()),
                Some(Fetch::Waits) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stop {
                return Told::Underway;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next file to fetch; `None`: the store is closed.
    fn next(&self) -> Option<Ino> {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return None;
            }
            if let Some(ino) = state.queue.pop_front() {
                return Some(ino);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, ino: Ino, failed: Option<Unfetchable>) {
        let mut state = lock(&self.state);
        match failed {
            None => {
                state.fetches.remove(&ino);
                state.failed.remove(&ino);
            }
            Some(why) => {
                if state.failed.len() < REMEMBERED {
                    state.failed.insert(ino, why.why.clone());
                }
                state.fetches.insert(ino, Fetch::Failed(why, Instant::now()));
            }
        }
        drop(state);
        self.ended.notify_all();
    }

    /// The files that could not be fetched.
    pub(crate) fn failed(&self) -> Vec<Ino> {
        lock(&self.state).failed.keys().copied().collect()
    }

    /// One of them is not lazy any more.
    pub(crate) fn forget(&self, ino: Ino) {
        lock(&self.state).failed.remove(&ino);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.state).stop
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.work.notify_all();
        self.ended.notify_all();
    }
}

impl Core {
    /// Has a lazy file fetched.
    pub(crate) fn fetch(&self, ino: Ino) -> Result<Reply, Failure> {
        let is_lazy =
            self.partitions.with(ino.shard(), |locked| Ok(locked.shard.inode(ino)?.as_lazy().is_some()))?;
        if !is_lazy {
            return Ok(Reply::Done);
        }
        let told = match self.fetches_later {
            true => self.fetches.wait(ino, TURN),
            false => match self.fetch_now(ino) {
                Ok(()) => Told::Ended,
                Err(Failed::Later(refusal)) => return Err(refusal.into()),
                Err(Failed::Unfetchable(why)) => Told::Failed(why),
            },
        };
        Ok(match told {
            Told::Ended => Reply::Done,
            Told::Underway => Reply::Meta(MetaReply::Fetching),
            Told::Failed(why) => Reply::Meta(MetaReply::Unfetchable(why)),
        })
    }

    /// Fetches files until the store is closed.
    pub(crate) fn fetch_always(&self) {
        while let Some(ino) = self.fetches.next() {
            let failed = match self.fetch_now(ino) {
                Ok(()) => None,
                Err(Failed::Later(_)) => {
                    // Who waits asks again, perhaps another server.
                    std::thread::sleep(PAUSE);
                    None
                }
                Err(Failed::Unfetchable(why)) => {
                    tracing::warn!(%ino, why = %why.why, "the contents of a lazy file could not be fetched");
                    Some(why)
                }
            };
            self.fetches.end(ino, failed);
        }
    }
}

/// Why a fetch has ended without the contents.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// It is to be tried again.
    Later(Refusal),
    Unfetchable(Unfetchable),
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        match failure {
            Failure::Refused(refusal) => Failed::Later(refusal),
            Failure::Errno(errno) => Failed::Unfetchable(errno.into()),
        }
    }
}

impl From<Unfetchable> for Failed {
    fn from(why: Unfetchable) -> Failed {
        Failed::Unfetchable(why)
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Failed {
        Failed::Later(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_proto::Errno;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn those_who_want_the_same_file_wait_for_one_fetch_and_hear_what_came_of_it() {
        let (fetches, ino) = (Fetches::default(), Ino(7));
        assert_eq!(fetches.wait(ino, Duration::ZERO), Told::Underway);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| fetches.wait(ino, LONG))).collect();
            assert_eq!(fetches.next(), Some(ino));
            fetches.end(ino, None);
            // One that came only now has it fetched once more.
            let late = scope.spawn(|| while fetches.next().map(|ino| fetches.end(ino, None)).is_some() {});
            assert!(waiting.into_iter().all(|one| one.join().expect("no panic") == Told::Ended));
            fetches.stop();
            late.join().expect("no panic");
        });
        assert_eq!(fetches.next(), None);
    }

    #[test]
    fn a_failure_is_told_also_to_who_asks_a_moment_later_and_counts_until_it_is_fetched() {
        let (fetches, ino) = (Fetches::default(), Ino(7));
        assert_eq!(fetches.wait(ino, Duration::ZERO), Told::Underway);
        let why = Unfetchable { errno: Errno::IO, why: "gone".into(), unseen: true };
        assert_eq!(fetches.next(), Some(ino));
        fetches.end(ino, Some(why.clone()));
        assert_eq!(fetches.wait(ino, LONG), Told::Failed(why));
        assert_eq!(fetches.failed(), [ino]);
        fetches.end(ino, None);
        assert!(fetches.failed().is_empty());
    }
}
