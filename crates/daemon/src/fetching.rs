//! A server's part in fetching a lazy file: it reads what is to be its own from the backend, and keeps it.
//!
//! The server of the file's inode drives it ([`bivouac_meta`]), range by range; where blocks have copies, their primary reads
//! them and has the other holders write them as it does with a program's write. Nobody has the file open before all of it is
//! there, so nobody sees how far it is.
//!
//! A request that was given up by its sender may still be at work here, because the backend was slow. Before another attempt
//! at the same file begins, it is brought to an end; and what of an earlier attempt comes later is not begun. So old bytes
//! are never written over those of a file that was fetched and changed since.

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

/// See the module.
pub(crate) struct Fetching {
    links: Arc<Links>,
    store: Arc<DataStore>,
    copies: Arc<Copies>,
    restriping: Arc<Restriping>,
    me: ServerId,
    attempts: Mutex<HashMap<Ino, Attempt>>,
    ended: Condvar,
}

/// A request's being carried out, until this is dropped.
struct AtWork<'f> {
    fetching: &'f Fetching,
    ino: Ino,
    interrupted: Arc<AtomicBool>,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if let Some(attempt) = lock(&self.fetching.attempts).get_mut(&self.ino) {
            attempt.at_work = None;
        }
        self.fetching.ended.notify_all();
    }
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
        let (attempts, ended) = Default::default();
        Fetching { links, store, copies, restriping, me, attempts, ended }
    }

    /// Serves a request of the server of a file's inode.
    pub(crate) fn serve(&self, from: ServerId, request: &FetchRequest) -> Result<FetchReply, Failure> {
        let map = self.links.map();
        if map.epoch != request.epoch {
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
        let at_work = self.begin(request.ino, request.number)?;
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
        if self.links.epoch() != map.epoch {
            return Err(Refusal::Busy.into());
        }
        Ok(copied.and_then(|()| file.check()))
    }

    /// Ends what is under way for the file, and begins.
    fn begin(&self, ino: Ino, number: u64) -> Result<AtWork<'_>, Refusal> {
        let mut attempts = lock(&self.attempts);
        // Not at each request: the next time is when as many have come as are left.
        if attempts.len() == attempts.capacity() {
            attempts.retain(|_, attempt| attempt.at_work.is_some() || attempt.since.elapsed() < MEMORY);
        }
        loop {
            match attempts.get(&ino) {
                Some(attempt) if attempt.number > number => return Err(Refusal::Busy),
                Some(Attempt { at_work: Some(interrupted), .. }) => {
                    interrupted.store(true, Ordering::Relaxed)
                }
                _ => break,
            }
            attempts = self.ended.wait(attempts).unwrap_or_else(PoisonError::into_inner);
        }
        let interrupted = Arc::<AtomicBool>::default();
        let attempt = Attempt { number, since: Instant::now(), at_work: Some(interrupted.clone()) };
        attempts.insert(ino, attempt);
        Ok(AtWork { fetching: self, ino, interrupted })
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
