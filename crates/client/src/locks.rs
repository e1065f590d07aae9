//! Byte-range and whole-file locks.
//!
//! They are kept by the inode's server. Waiting is done in turns of half a second at the server, so that a signal
//! reaches the program between two turns, and a dead client leaves no waiter behind.

use crate::handle::Handle;
use crate::session::Client;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::agent::AgentRequest;
use bivouac_proto::meta::{LockOwner, LockRange, MetaReply, MetaRequest};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// How long one turn of waiting takes at the server, milliseconds.
const TURN_MS: u32 = 500;

/// Which kind of lock, and so who owns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Of the process (`fcntl(F_SETLK)`).
    Process,
    /// Of the open file description (`fcntl(F_OFD_SETLK)`).
    Description,
    /// Of the open file description, on the whole file (`flock`).
    Flock,
}

/// What this process has locked: inodes with process locks (by session, so that a fork's child has none).
#[derive(Default)]
pub(crate) struct Held {
    files: Mutex<HashSet<(u64, Ino)>>,
    servers: Mutex<HashSet<(u64, ServerId)>>,
}

impl Handle {
    fn owner(&self, kind: LockKind) -> Result<LockOwner, Errno> {
        Ok(match kind {
            LockKind::Process => LockOwner::Process {
                session: self.client().session()?,
                pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
            },
            LockKind::Description => LockOwner::Description(self.open_id()),
            LockKind::Flock => LockOwner::Flock(self.open_id()),
        })
    }

    /// Sets or converts a lock on bytes `start..end` (`u64::MAX` for the end of the file wherever it is). EAGAIN when
    /// another is in the way and `wait` is false; EINTR is the caller's to produce: `interrupted` is asked between turns.
    pub fn lock(
        &self,
        kind: LockKind,
        exclusive: bool,
        start: u64,
        end: u64,
        wait: bool,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Errno> {
        let owner = self.owner(kind)?;
        if let LockOwner::Process { session, .. } = owner {
            self.client().note_process_lock(session, self.ino())?;
        } else {
            self.slot()?.locks.store(1, Ordering::Release);
        }
        let range = LockRange { start, end, exclusive };
        loop {
            let wait_ms = if wait { TURN_MS } else { 0 };
            match self
                .client()
                .meta_on(self.ino(), &MetaRequest::Lock { ino: self.ino(), owner, range, wait_ms })
            {
                Err(Errno::AGAIN) if wait => {
                    if interrupted() {
                        return Err(Errno::INTR);
                    }
                }
                done => return done.map(|_| ()),
            }
        }
    }

    /// Takes the owner's locks off `start..end`.
    pub fn unlock(&self, kind: LockKind, start: u64, end: u64) -> Result<(), Errno> {
        let request = MetaRequest::Unlock { ino: self.ino(), owner: self.owner(kind)?, start, end };
        self.client().meta_on(self.ino(), &request).map(|_| ())
    }

    /// The first lock that would be in the way.
    pub fn test_lock(
        &self,
        kind: LockKind,
        exclusive: bool,
        start: u64,
        end: u64,
    ) -> Result<Option<(LockOwner, LockRange)>, Errno> {
        let range = LockRange { start, end, exclusive };
        let request = MetaRequest::TestLock { ino: self.ino(), owner: self.owner(kind)?, range };
        match self.client().meta_on(self.ino(), &request)? {
            MetaReply::Conflict(conflict) => Ok(conflict),
            _ => Err(Errno::PROTO),
        }
    }
}

impl Client {
    /// Before the first process lock on a file: this process must give it up at close, and its agent must know which
    /// server to tell when it dies.
    fn note_process_lock(&self, session: u64, ino: Ino) -> Result<(), Errno> {
        let server = self.map().primary(ino.shard());
        let known = self.held().servers.lock().map_err(|_| Errno::NOLCK)?.contains(&(session, server));
        if !known {
            self.tell_agent(&AgentRequest::HoldsLocks { session, server })?;
            self.held().servers.lock().map_err(|_| Errno::NOLCK)?.insert((session, server));
        }
        self.held().files.lock().map_err(|_| Errno::NOLCK)?.insert((session, ino));
        Ok(())
    }

    /// The process closed a descriptor of a file: as POSIX wants it, all its process locks on that file go.
    pub fn release_process_locks(&self, ino: Ino) {
        // A fork's child has no process locks before its first call.
        if !self.has_session() {
            return;
        }
        let Ok(session) = self.session() else { return };
        let had = self.held().files.lock().is_ok_and(|mut files| files.remove(&(session, ino)));
        if had {
            let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
            let owner = LockOwner::Process { session, pid };
            // The answer is awaited: whoever is told of the close next may ask for the lock.
            let _ = self.meta_on(ino, &MetaRequest::Unlock { ino, owner, start: 0, end: u64::MAX });
        }
    }
}
