//! Which directories have moved lately, so that no client goes on using cached paths that are wrong now.
//!
//! Clients cache which inode a directory's path leads to. Before a directory's move can be seen, every server
//! notes it (`NoteMoves`); so does a directory's loss of search permission. Each server numbers what it
//! notes: that number is its *namespace version*. A request along a cached path carries the version up to
//! which its sender has heard of this server's moves. If the server has noted later ones, it refuses the
//! request and names the directories that moved since. The sender drops its cached paths to those, and
//! nothing else.
//!
//! Versions of different servers are independent of each other, so noting a move needs no agreement. Nothing
//! of this is logged. A server that starts, or that was away while others noted moves, goes on with a version
//! that is far greater than all that it has had ([`Moves::new`], [`Moves::forget`]), so that every client
//! with an older one drops all paths.

use crate::store::{Core, lock};
use bivouac_layout::{Ino, ServerState};
use bivouac_proto::Refusal;
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many of the latest moves are remembered. The version page of the server's node shows as many.
pub(crate) const REMEMBERED: u64 = bivouac_layout::namespace::MOVES_REMEMBERED;
/// Versions between one start of the server and the next.
const PER_START: u64 = 1 << 32;

/// What this server has noted.
#[derive(Debug)]
pub(crate) struct Moves {
    /// The latest moves, oldest first; the last one's version is `version`.
    recent: Mutex<VecDeque<Ino>>,
    /// Changed under `recent`'s lock.
    version: AtomicU64,
}

impl Moves {
    /// Begins at a version beyond all that the server has had. `starts`: how often it has been started.
    pub(crate) fn new(starts: u64) -> Moves {
        Moves { recent: Mutex::default(), version: AtomicU64::new(starts.saturating_mul(PER_START)) }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes moves. `tell` hears of each with its version, before that version is given out.
    fn note(&self, moved: &[Ino], mut tell: impl FnMut(Ino, u64)) {
        let mut recent = lock(&self.recent);
        for ino in moved {
            if recent.len() as u64 >= REMEMBERED {
                recent.pop_front();
            }
            recent.push_back(*ino);
            let version = self.version() + 1;
            tell(*ino, version);
            self.version.store(version, Ordering::Release);
        }
    }

    /// From now on refuses every path that clients have cached so far, because this server may have missed
    /// moves. Returns the new version.
    fn forget(&self) -> u64 {
        let mut recent = lock(&self.recent);
        recent.clear();
        // Further than the version page remembers, too.
        let version = self.version() + REMEMBERED;
        self.version.store(version, Ordering::Release);
        version
    }

    /// The refusal of a request whose sender has heard of moves up to `known`, if there are later ones.
    pub(crate) fn check(&self, known: u64) -> Result<(), Refusal> {
        if known >= self.version() {
            return Ok(());
        }
        let recent = lock(&self.recent);
        let version = self.version();
        let missed = usize::try_from(version - known.min(version)).ok();
        let from = missed.and_then(|missed| recent.len().checked_sub(missed));
        let moved = from.map(|from| recent.iter().skip(from).collect::<BTreeSet<_>>());
        let moved = moved.map(|moved| moved.into_iter().copied().collect());
        Err(Refusal::StaleNamespace { version, moved })
    }
}

impl Core {
    /// Notes moves on this server.
    pub(crate) fn note_moves_here(&self, moved: &[Ino]) {
        let observer = self.partitions.observer.as_ref();
        self.moves.note(moved, |ino, version| {
            if let Some(observer) = observer {
                observer.moved(ino, version);
            }
        });
    }

    /// Makes every server that is not down note moves, this one included. If it fails, some servers may have
    /// noted them. That does no harm: their clients only walk the path again.
    pub(crate) fn note_moves(&self, moved: &[Ino]) -> Result<(), Failure> {
        let me = self.outside.me();
        self.note_moves_here(moved);
        let mut told = BTreeSet::from([me]);
        loop {
            let map = self.outside.map();
            let serving = map.servers.iter().filter(|s| s.state != ServerState::Down).map(|s| s.id);
            let others: Vec<_> = serving.filter(|server| !told.contains(server)).collect();
            if others.is_empty() {
                return Ok(());
            }
            let request = PeerRequest::NoteMoves { moved: moved.to_vec() };
            let answers = self.outside.peer_all(&others, &request);
            // In a newer map, one that did not answer may be down, and one that has come back was not told
            // yet.
            let map = self.outside.map();
            for (server, answer) in others.into_iter().zip(answers) {
                let serves = map.server(server).is_some_and(|s| s.state != ServerState::Down);
                match answer {
                    Err(failure) if serves => return Err(failure),
                    _ => told.insert(server),
                };
            }
        }
    }

    /// To be called when this server was away: the others may have noted moves without it.
    pub(crate) fn forget_moves(&self) {
        let version = self.moves.forget();
        if let Some(observer) = &self.partitions.observer {
            observer.namespace(version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(moves: &Moves, known: u64) -> (u64, Option<Vec<Ino>>) {
        match moves.check(known) {
            Err(Refusal::StaleNamespace { version, moved }) => (version, moved),
            other => panic!("{known}: {other:?}"),
        }
    }

    #[test]
    fn who_is_behind_hears_what_moved_since_and_who_is_not_passes() {
        let moves = Moves::new(1);
        let start = moves.version();
        assert_eq!(moves.check(start), Ok(()));
        moves.note(&[Ino(7)], |_, _| {});
        moves.note(&[Ino(8), Ino(7)], |_, _| {});
        assert_eq!(refusal(&moves, start), (start + 3, Some(vec![Ino(7), Ino(8)])));
        assert_eq!(refusal(&moves, start + 2), (start + 3, Some(vec![Ino(7)])));
        assert_eq!(moves.check(start + 3), Ok(()));
        assert_eq!(moves.check(u64::MAX), Ok(()));
    }

    #[test]
    fn who_is_too_far_behind_or_from_before_a_start_forgets_everything() {
        let moves = Moves::new(2);
        let start = moves.version();
        for n in 0..REMEMBERED + 1 {
            moves.note(&[Ino(n)], |_, _| {});
        }
        assert_eq!(refusal(&moves, start), (start + REMEMBERED + 1, None));
        assert_eq!(refusal(&moves, start + 1).1.map(|moved| moved.len()), Some(REMEMBERED as usize));
        assert_eq!(refusal(&moves, 0).1, None);
        let known = moves.version();
        moves.forget();
        assert_eq!(refusal(&moves, known).1, None);
        assert!(Moves::new(3).version() > moves.version());
    }
}
