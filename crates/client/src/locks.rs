//! Byte-range and whole-file locks.
//!
//! They are kept by the inode's server. Waiting is done in turns of half a second at the server, so that a
//! dead client leaves no waiter behind. When a signal comes, the client asks the server to end a turn early,
//! and the server says whether the lock was granted after all.
//!
//! Each lock that was granted is noted in the node's shared table ([`bivouac_node::locks`]), from which the agent tells
//! a server that was restarted what it has forgotten.
//!
//! Locks of the process belong to its first session, so that a program that it executes has them, too. Such a
//! program does not know which files they are on. So for a server where the program before it had locks, it
//! releases the process's locks on each file of that server at its first close.

use crate::client::Client;
use crate::handle::Handle;
use bivouac_layout::Ino;
use bivouac_node::release::monotonic;
use bivouac_proto::Errno;
use bivouac_proto::agent::AgentRequest;
use bivouac_proto::meta::{KERNEL, LockOwner, LockRange, MetaReply, MetaRequest};
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How long one turn of waiting takes at the server, milliseconds.
const TURN_MS: u32 = 500;

/// How long a range on its way is waited for before a file is mapped, nanoseconds.
const PATIENCE: u64 = 30_000_000_000;

/// How often a lock is asked for anew because the agent has reported to servers meanwhile. (It does when servers were
/// restarted, so once is most often enough.)
const REPORTS_MOST: u32 = 8;

/// The kind of a lock, which determines its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Of the process (`fcntl(F_SETLK)`).
    Process,
    /// Of the open file description (`fcntl(F_OFD_SETLK)`).
    Description,
    /// Of the open file description, on the whole file (`flock`).
    Flock,
    /// Of one of the processes that this one acts for (in a mount), by a number that it has assigned.
    /// Released by [`Handle::unlock`], and when this process ends.
    Member(u32),
}

/// As long as this lives, or, if it is forgotten, as long as this process does, blocks of a file stay where they are.
pub struct KeptBlocks {
    client: Arc<Client>,
    ino: Ino,
    owner: LockOwner,
}

impl Drop for KeptBlocks {
    fn drop(&mut self) {
        let KeptBlocks { ref client, ino, owner } = *self;
        // If this fails, they stay until this process ends.
        let _ = client.session().table().note_unlock(ino, owner, 0, u64::MAX);
        let _ = client.requests().meta_on(ino, &MetaRequest::Unlock { ino, owner, start: 0, end: u64::MAX });
    }
}

impl Handle {
    fn owner(&self, kind: LockKind) -> Result<LockOwner, Errno> {
        Ok(match kind {
            LockKind::Process => self.client().session().lock_owner()?,
            LockKind::Description => LockOwner::Description(self.data().open_id()),
            LockKind::Flock => LockOwner::Flock(self.data().open_id()),
            LockKind::Member(number) => LockOwner::Process {
                session: self.client().session().number().map_err(|e| e.errno())?,
                pid: number,
            },
        })
    }

    /// Sets or converts a lock on bytes `start..end` (`u64::MAX` for the end of the file wherever it is).
    /// EAGAIN if another lock conflicts.
    pub fn lock(&self, kind: LockKind, exclusive: bool, start: u64, end: u64) -> Result<(), Errno> {
        let owner = self.announced(kind)?;
        let range = LockRange { start, end, exclusive };
        let request = MetaRequest::Lock { ino: self.ino(), owner, range, wait_ms: 0 };
        let asked = self.granted(owner, range, &|| self.client().requests().meta_on(self.ino(), &request));
        if let (LockOwner::Flock(_), Err(Errno::AGAIN)) = (owner, asked) {
            // A lock that was to be converted is gone: so it is with `flock`.
            let _ = self.client().session().table().note_unlock(self.ino(), owner, start, end);
        }
        asked?;
        self.announced_still(kind, start, end)
    }

    /// The same, waiting for one turn. EAGAIN: the turn is over, ask again. EINTR: it was interrupted.
    ///
    /// `watch` waits for the server's answer to become readable, and returns true if the wait has to end
    /// early. However it ends, no request is under way when this returns.
    pub fn lock_waiting(
        &self,
        kind: LockKind,
        exclusive: bool,
        start: u64,
        end: u64,
        watch: &dyn Fn(BorrowedFd<'_>) -> bool,
    ) -> Result<(), Errno> {
        let owner = self.announced(kind)?;
        let (ino, range) = (self.ino(), LockRange { start, end, exclusive });
        let watch = |answer: BorrowedFd<'_>| {
            if watch(answer) {
                // If this fails, the turn takes its time.
                let _ = self.client().requests().meta_on(ino, &MetaRequest::CancelLock { ino, owner, range });
            }
        };
        let request = MetaRequest::Lock { ino, owner, range, wait_ms: TURN_MS };
        self.granted(owner, range, &|| self.client().requests().meta_watched(ino, &request, &watch))?;
        self.announced_still(kind, start, end)
    }

    /// Asks for a lock, and notes it for the case that its server is restarted. EIO if what the owner had there was
    /// lost when the server was: so much the program is told, once.
    fn granted(
        &self,
        owner: LockOwner,
        range: LockRange,
        ask: &dyn Fn() -> Result<MetaReply, Errno>,
    ) -> Result<(), Errno> {
        let (table, ino) = (self.client().session().table(), self.ino());
        if table.takes_note_of_loss(ino, owner, range.start, range.end) {
            return Err(Errno::IO);
        }
        let before = table.noted_locks(ino, owner, range.start, range.end);
        for turn in 0..REPORTS_MOST {
            let reports = table.reports();
            if let Err(errno) = ask() {
                if turn > 0 {
                    // The server that granted it is gone, and has left what was there before.
                    let _ = table.note_unlock(ino, owner, range.start, range.end);
                    for lock in before {
                        let _ = table.note_lock(ino, owner, lock);
                    }
                }
                return Err(errno);
            }
            if table.note_lock(ino, owner, range).is_err() {
                let _ = self.give_up(owner, range.start, range.end);
                return Err(Errno::NOLCK);
            }
            if table.reports() == reports {
                break;
            }
        }
        Ok(())
    }

    /// Has the server take an owner's locks off a range.
    fn give_up(&self, owner: LockOwner, start: u64, end: u64) -> Result<(), Errno> {
        let request = MetaRequest::Unlock { ino: self.ino(), owner, start, end };
        self.client().requests().meta_on(self.ino(), &request).map(drop)
    }

    /// After a lock was set: if the agent was restarted while the request was on its way, the new one has to
    /// know, too.
    fn announced_still(&self, kind: LockKind, start: u64, end: u64) -> Result<(), Errno> {
        self.announced(kind).map(drop).inspect_err(|_| {
            // Nobody would give it up.
            let _ = self.unlock(kind, start, end);
        })
    }

    /// The owner of a lock that is about to be set. Notes everything that is needed for the lock to be
    /// released in time.
    fn announced(&self, kind: LockKind) -> Result<LockOwner, Errno> {
        let owner = self.owner(kind)?;
        if let LockOwner::Process { session, .. } = owner {
            self.client().note_process_lock(session, self.ino())?;
        } else {
            self.data().slot()?.locks.store(1, Ordering::Release);
        }
        Ok(owner)
    }

    /// Has the file's blocks stay where they are: a kernel is about to use them past all servers. Waits while a range of the
    /// file is on its way to other servers.
    pub(crate) fn keep_blocks(&self) -> Result<KeptBlocks, Errno> {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let number = KERNEL | NUMBERS.fetch_add(1, Ordering::Relaxed);
        let owner = self.owner(LockKind::Member(number))?;
        let kept = KeptBlocks { client: self.client().clone(), ino: self.ino(), owner };
        let begun = monotonic();
        loop {
            match self.lock_waiting(LockKind::Member(number), false, 0, u64::MAX, &|_| false) {
                Err(Errno::AGAIN) if monotonic().saturating_sub(begun) < PATIENCE => {}
                done => return done.map(|()| kept),
            }
        }
    }

    /// Releases the owner's locks on `start..end`. EIO if some of them were lost before, when their server was
    /// restarted. ENOLCK if there is no room for noting what is left.
    pub fn unlock(&self, kind: LockKind, start: u64, end: u64) -> Result<(), Errno> {
        let owner = self.owner(kind)?;
        // First, so that nobody reports any more what is given up.
        let noted = self.client().session().table().note_unlock(self.ino(), owner, start, end);
        let lost = noted.map_err(|_| Errno::NOLCK)?;
        self.give_up(owner, start, end)?;
        if lost { Err(Errno::IO) } else { Ok(()) }
    }

    /// The first lock that would conflict.
    pub fn test_lock(
        &self,
        kind: LockKind,
        exclusive: bool,
        start: u64,
        end: u64,
    ) -> Result<Option<(LockOwner, LockRange)>, Errno> {
        let range = LockRange { start, end, exclusive };
        let request = MetaRequest::TestLock { ino: self.ino(), owner: self.owner(kind)?, range };
        match self.client().requests().meta_on(self.ino(), &request)? {
            MetaReply::Conflict(conflict) => Ok(conflict),
            _ => Err(Errno::PROTO),
        }
    }
}

impl Client {
    /// Whether a lock is one of this process's own, or of its descriptions.
    pub fn is_own_lock(&self, owner: LockOwner) -> bool {
        match owner {
            LockOwner::Process { session, .. } => self.session().number().is_ok_and(|own| own == session),
            LockOwner::Description(open) | LockOwner::Flock(open) => {
                open.agent == self.session().agent_number()
            }
        }
    }

    /// Before the first process lock on a file: this process must give it up at close, and its agent must
    /// know which server to tell when it dies.
    fn note_process_lock(&self, owner: u64, ino: Ino) -> Result<(), Errno> {
        let server = self.requests().server_of(ino);
        // Read before the agent is told: if it changes meanwhile, the next one is told again.
        let restarts = self.session().agent_restarts();
        if !self.memory().held().is_announced(server, restarts)? {
            self.session().tell_agent(&AgentRequest::HoldsLocks { session: owner, server })?;
            self.memory().held().announced(server, restarts)?;
        }
        self.memory().held().note(ino)
    }

    /// Whether this process may have process locks on any file.
    pub fn may_have_process_locks(&self) -> bool {
        // A fork's child has none before its first call.
        self.session().has_session() && !self.memory().held().is_empty()
    }

    /// Whether this process may have process locks on a file.
    pub fn may_have_process_locks_on(&self, ino: Ino) -> bool {
        self.session().has_session() && self.memory().held().may_have(ino, self.requests().server_of(ino))
    }

    /// The process closed a descriptor of a file: as POSIX wants it, all its process locks on that file go.
    pub fn release_process_locks(&self, ino: Ino) {
        if !self.session().has_session() || !self.memory().held().clear(ino, self.requests().server_of(ino)) {
            return;
        }
        let Ok(owner) = self.session().lock_owner() else { return };
        let _ = self.session().table().note_unlock(ino, owner, 0, u64::MAX);
        // Wait for the answer: another process may ask for the lock as soon as it learns of the close.
        let _ = self.requests().meta_on(ino, &MetaRequest::Unlock { ino, owner, start: 0, end: u64::MAX });
    }
}
