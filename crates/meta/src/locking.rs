//! Locks that wait, and circles of waiting processes.
//!
//! A blocked request waits at the server for a bounded time and is then sent again by its client, so the
//! table of who waits for whom is almost always complete. A circle that the table shows is EDEADLK for the
//! request that closes it; circles over several servers are not seen, and end by a signal, as on any network
//! file system.
//!
//! Locks live in memory: a server's restart loses them, unless the shard has copies. Then the agents of the nodes tell
//! which there were ([`Core::relock`]), and until they all have, no lock is granted or said to be free: requests wait.
//! What is unlocked in that time is remembered, because an agent may have looked before. After it, nothing that an agent
//! tells is believed any more: somebody else may have had the lock.

use crate::error::Stop;
use crate::mutation::Mutation;
use crate::opens::STRAGGLERS;
use crate::partition::LockedShard;
use crate::store::{Core, lock};
use bivouac_layout::Ino;
use bivouac_proto::meta::{LockOwner, LockRange, MetaReply, Relocked};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest wait at the server.
const WAIT_MAX: Duration = Duration::from_millis(1000);

/// State about the locks of all files. Each mutex is held only for moments, possibly while a partition is
/// locked.
#[derive(Default)]
pub(crate) struct Locking {
    waits: Mutex<HashMap<LockOwner, Vec<LockOwner>>>,
    sessions: Mutex<Sessions>,
    cancelled: Mutex<Vec<Cancelled>>,
}

/// A request for a lock whose wait has to end. The request may not have arrived yet, or may have ended
/// already.
struct Cancelled {
    what: (Ino, LockOwner, LockRange),
    when: Instant,
}

#[derive(Default)]
struct Sessions {
    /// Where each process has locks.
    files: HashMap<u64, HashSet<Ino>>,
    /// Processes that ended not long ago: if a request of theirs still waits, or arrives only now, it must
    /// not get its lock.
    ended: HashMap<u64, Instant>,
    /// Old ones are removed when there are so many.
    sweep_at: usize,
}

impl Locking {
    /// Notes that `waiter` waits. EDEADLK if it would wait for ever.
    fn wait(&self, waiter: LockOwner, blockers: Vec<LockOwner>) -> Result<(), Errno> {
        if !matches!(waiter, LockOwner::Process { .. }) {
            return Ok(());
        }
        let mut waits = lock(&self.waits);
        let mut open: Vec<LockOwner> = blockers.clone();
        let mut seen: HashSet<LockOwner> = HashSet::new();
        while let Some(owner) = open.pop() {
            if owner == waiter {
                return Err(Errno::DEADLK);
            }
            if seen.insert(owner) {
                open.extend(waits.get(&owner).into_iter().flatten());
            }
        }
        waits.insert(waiter, blockers);
        Ok(())
    }

    /// Whether a process has ended. If not, notes that it has locks on a file.
    pub(crate) fn has_ended(&self, session: u64, ino: Ino) -> bool {
        let mut sessions = lock(&self.sessions);
        let ended = sessions.ended.contains_key(&session);
        if !ended {
            sessions.files.entry(session).or_default().insert(ino);
        }
        ended
    }

    fn cancel(&self, what: (Ino, LockOwner, LockRange)) {
        let mut cancelled = lock(&self.cancelled);
        let now = Instant::now();
        cancelled.retain(|c| now - c.when < 10 * WAIT_MAX);
        cancelled.push(Cancelled { what, when: now });
    }

    /// Whether a request was cancelled. Says so only once.
    fn is_cancelled(&self, what: (Ino, LockOwner, LockRange)) -> bool {
        let mut cancelled = lock(&self.cancelled);
        let found = cancelled.iter().position(|c| c.what == what);
        found.map(|at| cancelled.swap_remove(at)).is_some()
    }

    fn stop_waiting(&self, waiter: LockOwner) {
        lock(&self.waits).remove(&waiter);
    }

    /// These owners have released some locks: removes the notes that others wait for them. A waiter that is
    /// still blocked looks again, and then notes it again. An outdated note could make a deadlock appear
    /// where there is none.
    pub(crate) fn gave_up(&self, gone: impl Fn(&LockOwner) -> bool) {
        for blockers in lock(&self.waits).values_mut() {
            blockers.retain(|blocker| !gone(blocker));
        }
    }
}

fn check(range: LockRange) -> Result<(), Errno> {
    if range.start < range.end { Ok(()) } else { Err(Errno::INVAL) }
}

fn has_locks(locked: &LockedShard<'_>, ino: Ino, owner: LockOwner, range: LockRange) -> bool {
    locked.shard.live.get(&ino).is_some_and(|live| live.locks.has(owner, range.start, range.end))
}

impl Core {
    pub(crate) fn lock(
        &self,
        ino: Ino,
        owner: LockOwner,
        range: LockRange,
        wait_ms: u32,
    ) -> Result<Reply, Failure> {
        check(range)?;
        let patience = Duration::from_millis(u64::from(wait_ms)).min(WAIT_MAX);
        let (mut waited, mut unknown) = (false, false);
        let result = self.partitions.with_patience(ino.shard(), patience, |locked| {
            locked.shard.inode(ino)?;
            unknown = locked.shard.learns_locks(locked.id);
            if unknown {
                if self.locking.is_cancelled((ino, owner, range)) {
                    return Err(Errno::INTR.into());
                }
                return Err(Stop::Wait);
            }
            if owner.is_kernel() {
                locked.shard.is_not_restriped(ino)?;
            }
            let table = locked.shard.live.get(&ino).map(|l| &l.locks);
            let blockers: Vec<LockOwner> =
                table.into_iter().flat_map(|t| t.conflicts(owner, range)).map(|(other, _)| other).collect();
            if !blockers.is_empty() {
                if patience.is_zero() {
                    // Converting a `flock` lock releases the old lock first, as on local file systems: if two
                    // owners share a lock and both want it exclusively, one of them gets it. A request that
                    // waits does not release again, because its description may have got another lock
                    // meanwhile.
                    if matches!(owner, LockOwner::Flock(_)) && has_locks(locked, ino, owner, range) {
                        locked.keep(Mutation::DropLock(ino, owner, range.start, range.end));
                    }
                    return Err(Errno::AGAIN.into());
                }
                if self.locking.is_cancelled((ino, owner, range)) {
                    return Err(Errno::INTR.into());
                }
                self.locking.wait(owner, blockers)?;
                waited = true;
                return Err(Stop::Wait);
            }
            if self.is_owner_away(owner) {
                // Its node's locks may have ended just now, and nobody would end this one.
                return Err(Refusal::OldServer.into());
            }
            if let LockOwner::Description(open) | LockOwner::Flock(open) = owner {
                locked.shard.is_wanted(open)?;
            }
            if let LockOwner::Process { session, .. } = owner
                && self.locking.has_ended(session, ino)
            {
                return Err(Errno::INTR.into());
            }
            if !patience.is_zero() {
                // Too late to be cancelled.
                self.locking.is_cancelled((ino, owner, range));
            }
            // While the partition is locked, so that a request which this owner blocks from now on does not
            // find it waiting.
            if waited {
                self.locking.stop_waiting(owner);
            }
            locked.keep(Mutation::PutLock(ino, owner, range));
            // Turning an exclusive lock into a shared one lets others in.
            self.locking.gave_up(|other| *other == owner);
            Ok(Reply::Done)
        });
        if waited {
            self.locking.stop_waiting(owner);
        }
        match result {
            // Who does not mean to wait for others cannot be told yet whether he would have to.
            Err(Failure::Refused(Refusal::Busy)) if unknown && patience.is_zero() => {
                Err(Refusal::Busy.into())
            }
            Err(Failure::Refused(Refusal::Busy)) => Err(Errno::AGAIN.into()),
            other => other,
        }
    }

    /// Wakes the request that waits for this lock, after noting that it is cancelled, so that it finds the
    /// note.
    pub(crate) fn cancel_lock(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Result<Reply, Failure> {
        check(range)?;
        self.locking.cancel((ino, owner, range));
        self.partitions.with(ino.shard(), |locked| {
            locked.changed();
            Ok(Reply::Done)
        })
    }

    pub(crate) fn unlock(&self, ino: Ino, owner: LockOwner, start: u64, end: u64) -> Result<Reply, Failure> {
        let range = LockRange { start, end, exclusive: false };
        check(range)?;
        self.partitions.with(ino.shard(), |locked| {
            if locked.shard.learns_locks(locked.id) {
                let all = LockRange { exclusive: true, ..range };
                locked.shard.unlocked.entry(ino).or_default().set(owner, all);
            }
            if has_locks(locked, ino, owner, range) {
                locked.keep(Mutation::DropLock(ino, owner, start, end));
                self.locking.gave_up(|other| *other == owner);
            }
            locked.shard.rest(ino);
            Ok(Reply::Done)
        })
    }

    pub(crate) fn test_lock(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Result<Reply, Failure> {
        check(range)?;
        self.partitions.with(ino.shard(), |locked| {
            locked.shard.inode(ino)?;
            if locked.shard.learns_locks(locked.id) {
                return Err(Stop::Wait);
            }
            let table = locked.shard.live.get(&ino).map(|l| &l.locks);
            let conflict = table.and_then(|t| t.conflicts(owner, range).min_by_key(|(_, range)| range.start));
            Ok(Reply::Meta(MetaReply::Conflict(conflict)))
        })
    }

    /// Grants locks again that this server had granted before it was restarted.
    pub(crate) fn relock(&self, start: u64, locks: &[Relocked]) -> Result<Reply, Failure> {
        if !self.has_followed() {
            // It does not know yet what it has forgotten of the shards that it takes over.
            return Err(Refusal::OldServer.into());
        }
        self.check_ended(&self.outside.map())?;
        let mut refused = Vec::new();
        if start == self.start {
            for (at, lock) in (0..).zip(locks) {
                match self.relock_one(*lock) {
                    Ok(true) => {}
                    Ok(false) => refused.push(at),
                    // Removed meanwhile, nonsense, or another server's.
                    Err(Failure::Errno(Errno::NOENT | Errno::IO | Errno::INVAL)) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        if !refused.is_empty() {
            tracing::warn!(
                locks = refused.len(),
                "locks from before the restart, or from before their node was away, cannot be had again"
            );
        }
        Ok(Reply::Meta(MetaReply::Relocked { start: self.start, refused }))
    }

    /// Whether the owner has the lock, or has itself given it up.
    fn relock_one(&self, Relocked { ino, owner, range }: Relocked) -> Result<bool, Failure> {
        check(range)?;
        self.partitions.with(ino.shard(), |locked| {
            locked.shard.inode(ino)?;
            let learns = locked.shard.learns_locks(locked.id) && !self.is_owner_away(owner);
            if let LockOwner::Description(open) | LockOwner::Flock(open) = owner
                && locked.shard.is_wanted(open).is_err()
            {
                return Ok(true);
            }
            let table = locked.shard.live.get(&ino).map(|live| &live.locks);
            if !learns {
                // Locks are noted after they are granted, and before they are given up: what is not here is lost, or not
                // noted any more. What was exclusive may just have become shared.
                let any = LockRange { exclusive: false, ..range };
                return Ok(table.is_some_and(|table| table.covers(owner, any)));
            }
            if table.is_some_and(|table| table.covers(owner, range)) {
                return Ok(true);
            }
            let left = match locked.shard.unlocked.get(&ino) {
                Some(unlocked) => unlocked.outside(owner, range),
                None => vec![range],
            };
            let is_held =
                |piece: &LockRange| table.is_some_and(|t| t.conflicts(owner, *piece).next().is_some());
            if left.iter().any(is_held) {
                return Ok(false);
            }
            if let LockOwner::Process { session, .. } = owner
                && self.locking.has_ended(session, ino)
            {
                return Ok(true);
            }
            left.into_iter().for_each(|piece| locked.keep(Mutation::PutLock(ino, owner, piece)));
            Ok(true)
        })
    }

    pub(crate) fn end_session(&self, session: u64) -> Result<Reply, Failure> {
        let files = {
            let mut sessions = lock(&self.locking.sessions);
            let now = Instant::now();
            if sessions.ended.len() >= sessions.sweep_at {
                sessions.ended.retain(|_, when| now - *when < STRAGGLERS);
                sessions.sweep_at = (2 * sessions.ended.len()).max(64);
            }
            sessions.ended.insert(session, now);
            sessions.files.remove(&session).unwrap_or_default()
        };
        // Another server answers for the others by now, and is told, too.
        let served = files.into_iter().filter(|ino| self.partitions.serves(ino.shard()));
        let (mut left, mut failed) = (Vec::new(), None);
        for ino in served {
            let ended = self.partitions.with(ino.shard(), |locked| {
                if locked.shard.live.contains_key(&ino) {
                    locked.keep(Mutation::DropLocks(ino, session));
                    self.locking.gave_up(
                        |other| matches!(other, LockOwner::Process { session: s, .. } if *s == session),
                    );
                }
                locked.shard.rest(ino);
                Ok(())
            });
            if let Err(failure) = ended {
                left.push(ino);
                failed = Some(failure);
            }
        }
        // The sender tries again, with what is left.
        let Some(failure) = failed else { return Ok(Reply::Done) };
        lock(&self.locking.sessions).files.entry(session).or_default().extend(left);
        Err(failure)
    }
}
