//! A server's part in fetching a lazy file: it reads what is to be its own from the backend, and keeps it.
//!
//! The server of the file's inode drives it ([`bivouac_meta`]), range by range; where blocks have copies, their primary reads
//! them and has the other holders write them as it does with a program's write. Nobody has the file open before all of it is
//! there, so nobody sees how far it is.
//!
//! A request that was given up by its sender may still be at work here, because the backend was slow. Before another attempt
//! at the same file begins, and before what it has left is removed, it is brought to an end; and what of an earlier attempt comes
//! later is not begun. So old bytes are never written over those of a file that was fetched, or emptied, and changed since.

use crate::copies::{Copies, Sender};
use crate::links::Links;
use crate::restriping::Restriping;
use crate::serve;
use bivouac_data::DataStore;
use bivouac_layout::{Group, Ino, Piece, ServerId};
use bivouac_meta::Standing;
use bivouac_meta::source::{SourceFile, copy_pieces};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::lazy::{FetchReply, FetchRequest, Unfetchable};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use bivouac_transport::engine::Requester;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For so long the newest attempt at a file is remembered: longer than requests are repeated.
const MEMORY: Duration = Duration::from_secs(120);
/// How long a write that others hold up is tried.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(1);

/// The newest attempt at a file.
struct Attempt {
    number: u64,
    since: Instant,
    /// A request of it is being carried out; with whether it is to end.
    at_work: Option<Arc<AtomicBool>>,
}

/// What is, or was of late, under way.
#[derive(Default)]
struct Attempts {
    newest: Mutex<HashMap<Ino, Attempt>>,
    ended: Condvar,
}

/// A request's being carried out, until this is dropped.
struct AtWork<'f> {
    attempts: &'f Attempts,
    ino: Ino,
    interrupted: Arc<AtomicBool>,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if let Some(attempt) = lock(&self.attempts.newest).get_mut(&self.ino) {
            attempt.at_work = None;
        }
        self.attempts.ended.notify_all();
    }
}

impl Attempts {
    /// Ends what is under way for the file, and begins. Refused if there was a later attempt.
    fn begin(&self, ino: Ino, number: u64) -> Result<AtWork<'_>, Refusal> {
        let mut newest = lock(&self.newest);
        // Not at each request: the next time is when as many have come as are left.
        if newest.len() == newest.capacity() {
            newest.retain(|_, attempt| attempt.at_work.is_some() || attempt.since.elapsed() < MEMORY);
        }
        loop {
            match newest.get(&ino) {
                Some(attempt) if attempt.number > number => return Err(Refusal::Busy),
                Some(Attempt { at_work: Some(interrupted), .. }) => {
                    interrupted.store(true, Ordering::Relaxed)
                }
                _ => break,
            }
            newest = self.ended.wait(newest).unwrap_or_else(PoisonError::into_inner);
        }
        let interrupted = Arc::<AtomicBool>::default();
        let attempt = Attempt { number, since: Instant::now(), at_work: Some(interrupted.clone()) };
        newest.insert(ino, attempt);
        Ok(AtWork { attempts: self, ino, interrupted })
    }

    /// Has what is under way for the file end. EAGAIN until it has.
    fn interrupt(&self, ino: Ino) -> Result<(), Errno> {
        match lock(&self.newest).get(&ino) {
            Some(Attempt { at_work: Some(interrupted), .. }) => {
                interrupted.store(true, Ordering::Relaxed);
                Err(Errno::AGAIN)
            }
            _ => Ok(()),
        }
    }
}

/// See the module.
pub(crate) struct Fetching {
    links: Arc<Links>,
    store: Arc<DataStore>,
    copies: Arc<Copies>,
    restriping: Arc<Restriping>,
    me: ServerId,
    attempts: Attempts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fetching {
    pub(crate) fn new(
        links: Arc<Links>,
        store: Arc<DataStore>,
        copies: Arc<Copies>,
        restriping: Arc<Restriping>,
        me: ServerId,
    ) -> Fetching {
        Fetching { links, store, copies, restriping, me, attempts: Attempts::default() }
    }

    /// Serves a request of the server of a file's inode.
    pub(crate) fn serve(&self, from: ServerId, request: &FetchRequest) -> Result<FetchReply, Failure> {
        let map = self.links.map();
        if !(map.members_since..=map.epoch).contains(&request.epoch) {
            // Others may be responsible by this map.
            return Err(Refusal::Busy.into());
        }
        let is_sound = request.layout.is_valid(&map) && request.start < request.end;
        if !is_sound || request.end > request.source.size {
            return Err(Errno::INVAL.into());
        }
        let by = Sender {
            server: from,
            standing: Some(Standing { group: Group::Shard(request.ino.shard()), since: request.since }),
        };
        let write = DataRequest::Write { ino: request.ino, offset: request.start, sync: false };
        self.copies.check_sender(by, &write)?;
        let at_work = self.attempts.begin(request.ino, request.number)?;
        let file = match SourceFile::open(&request.source) {
            Ok(file) => file,
            Err(failed) => return Ok(Err(failed)),
        };
        let is_mine = |piece: &Piece| piece.server == self.me;
        let mut refused = None;
        let copied = copy_pieces(
            &file,
            (&request.layout, &map),
            request.start..request.end,
            is_mine,
            |piece, bytes| {
                if at_work.interrupted.load(Ordering::Relaxed) || self.links.is_closing() {
                    refused = Some(Refusal::Busy);
                    return Err(Errno::AGAIN.into());
                }
                self.write(by, request, piece, bytes).map_err(|failure| match failure {
                    Failure::Errno(errno) => Unfetchable::from(errno),
                    Failure::Refused(refusal) => {
                        refused = Some(refusal);
                        Errno::AGAIN.into()
                    }
                })
            },
        );
        if let Some(refusal) = refused {
            return Err(refusal.into());
        }
        if self.links.map().members_since > map.epoch {
            return Err(Refusal::Busy.into());
        }
        Ok(copied.and_then(|()| file.check()))
    }

    /// To be called before a sub-file is removed: what an interrupted fetch has left is, and the fetch may still be at work. EAGAIN
    /// until that has ended.
    pub(crate) fn interrupt(&self, request: &DataRequest) -> Result<(), Errno> {
        match request {
            DataRequest::Remove { ino } => self.attempts.interrupt(*ino),
            _ => Ok(()),
        }
    }

    fn write(&self, by: Sender, request: &FetchRequest, piece: &Piece, bytes: &[u8]) -> Result<(), Failure> {
        let write = DataRequest::Write { ino: request.ino, offset: piece.offset, sync: false };
        let until = Instant::now() + PATIENCE;
        self.restriping.goes_by(&write, request.layout.version)?;
        loop {
            self.copies.check_sender(by, &write)?;
            let written = match piece.group {
                Group::Blocks { copies: 2.., .. } => {
                    self.copies.change((piece.group, request.epoch), (&write, Some(by)), bytes, None)
                }
                _ => serve::data_locally((&self.store, &self.copies), &write, bytes, &mut []),
            };
            return match written {
                Err(Failure::Refused(Refusal::Busy))
                    if Instant::now() < until && !self.links.is_closing() =>
                {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Ok(DataReply::Written { count, .. }) if count as usize == bytes.len() => Ok(()),
                Ok(DataReply::Written { .. }) => Err(Errno::NOSPC.into()),
                Ok(_) => Err(Errno::PROTO.into()),
                Err(failure) => Err(failure),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_begins_when_the_one_before_has_ended_and_none_after_a_later_one() {
        let (attempts, ino) = (Attempts::default(), Ino(7));
        let first = attempts.begin(ino, 1).expect("nothing is under way");
        let _other = attempts.begin(Ino(8), 1).expect("another file");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| attempts.begin(ino, 2).map(drop));
            while !first.interrupted.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert!(!second.is_finished());
            drop(first);
            assert!(second.join().expect("no panic").is_ok());
        });
        assert_eq!(attempts.begin(ino, 1).err(), Some(Refusal::Busy));
        assert!(attempts.begin(ino, 2).is_ok(), "the next range");
    }

    #[test]
    fn nothing_is_removed_while_an_attempt_may_still_write() {
        let (attempts, ino) = (Attempts::default(), Ino(7));
        assert_eq!(attempts.interrupt(ino), Ok(()));
        let at_work = attempts.begin(ino, 1).expect("nothing is under way");
        assert_eq!(attempts.interrupt(ino), Err(Errno::AGAIN));
        assert!(at_work.interrupted.load(Ordering::Relaxed));
        drop(at_work);
        assert_eq!(attempts.interrupt(ino), Ok(()));
    }
}
