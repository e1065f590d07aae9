//! Locks that programs have on files of the backend.
//!
//! For each owner of locks on a file there is a descriptor of that file, and the kernel's locks of open file descriptions do the
//! rest: they meet the locks of everybody else who uses the backend from here, and, where the backend's file system can do that,
//! from anywhere. `flock` likewise. When an owner goes, its descriptor is closed, and its locks go with it.
//!
//! What each owner has is written down, too: when its node begins to go through another I/O node, that one asks for it
//! ([`Locks::give`]) and takes it there. For a moment in between, nobody has it.

use crate::kernel;
use bivouac_layout::Ino;
use bivouac_proto::meta::{LockOwner, LockRange};
use bivouac_proto::{Errno, OpenId};
use rustix::fs::{FlockOperation, OFlags};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a lock is tried that is waited for: a foreign file system tells nobody that one was released.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest wait for a lock in one request.
const WAIT_MAX: Duration = Duration::from_millis(1000);

/// What an owner has on a file.
struct Held {
    fd: Arc<OwnedFd>,
    /// Apart from each other.
    ranges: Vec<LockRange>,
}

impl Held {
    /// Notes that a range is not locked any more.
    fn remove(&mut self, range: &Range<u64>) {
        let cut = |lock: LockRange| {
            let before = LockRange { end: lock.end.min(range.start), ..lock };
            let after = LockRange { start: lock.start.max(range.end), ..lock };
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.ranges = std::mem::take(&mut self.ranges).into_iter().flat_map(cut).collect();
    }
}

#[derive(Default)]
struct Table {
    held: HashMap<(Ino, LockOwner), Held>,
    /// Waits that are to end.
    cancelled: HashSet<(Ino, LockOwner)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks(Mutex<Table>);

impl Locks {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Ignores poisoning: nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptor that has an owner's locks on a file.
    fn descriptor(&self, (ino, of): (Ino, &impl AsFd), owner: LockOwner) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(held) = self.table().held.get(&(ino, owner)) {
            return Ok(held.fd.clone());
        }
        // Shared locks need reading, exclusive ones writing: as much as the backend allows.
        let fd = kernel::reopen(of, OFlags::RDWR)
            .or_else(|_| kernel::reopen(of, OFlags::RDONLY))
            .or_else(|_| kernel::reopen(of, OFlags::WRONLY))?;
        let new = Held { fd: Arc::new(fd), ranges: Vec::new() };
        Ok(self.table().held.entry((ino, owner)).or_insert(new).fd.clone())
    }

    /// Sets or converts a lock; waits so many milliseconds at most. EAGAIN if others have one that conflicts, EINTR if the wait
    /// was ended.
    pub(crate) fn lock(
        &self,
        (ino, of): (Ino, &impl AsFd),
        owner: LockOwner,
        range: LockRange,
        wait_ms: u32,
    ) -> Result<(), Errno> {
        if owner.is_kernel() {
            // Blocks of the backend move nowhere.
            return Ok(());
        }
        let fd = self.descriptor((ino, of), owner)?;
        let until = Instant::now() + Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
        loop {
            let tried = match owner {
                LockOwner::Flock(_) if range.exclusive => {
                    flock(&fd, FlockOperation::NonBlockingLockExclusive)
                }
                LockOwner::Flock(_) => flock(&fd, FlockOperation::NonBlockingLockShared),
                _ => set(
                    &fd,
                    if range.exclusive { libc::F_WRLCK } else { libc::F_RDLCK },
                    range.start..range.end,
                ),
            };
            let was_cancelled = self.table().cancelled.remove(&(ino, owner));
            match tried {
                Err(Errno::AGAIN) if was_cancelled => return Err(Errno::INTR),
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
                tried => {
                    if tried.is_ok()
                        && let Some(held) = self.table().held.get_mut(&(ino, owner))
                    {
                        held.remove(&(range.start..range.end));
                        held.ranges.push(range);
                    }
                    return tried;
                }
            }
        }
    }

    /// Whether it has locks of an owner on a file.
    pub(crate) fn has(&self, ino: Ino, owner: LockOwner) -> bool {
        self.table().held.get(&(ino, owner)).is_some_and(|held| !held.ranges.is_empty())
    }

    /// Gives up what an owner has on a file, for another I/O node to take it.
    pub(crate) fn give(&self, ino: Ino, owner: LockOwner) -> Vec<LockRange> {
        let held = self.table().held.remove(&(ino, owner));
        // Who waits may have the descriptor still: locks are not given up by closing it then.
        held.map_or(Vec::new(), |held| {
            let _ = match owner {
                LockOwner::Flock(_) => flock(&held.fd, FlockOperation::Unlock),
                _ => set(&held.fd, libc::F_UNLCK, 0..u64::MAX),
            };
            held.ranges
        })
    }

    /// Takes an owner's locks off a range.
    pub(crate) fn unlock(&self, ino: Ino, owner: LockOwner, range: Range<u64>) -> Result<(), Errno> {
        let mut table = self.table();
        let Some(held) = table.held.get_mut(&(ino, owner)) else { return Ok(()) };
        held.remove(&range);
        let fd = held.fd.clone();
        if held.ranges.is_empty() || matches!(owner, LockOwner::Flock(_)) {
            table.held.remove(&(ino, owner));
        }
        drop(table);
        match owner {
            LockOwner::Flock(_) => flock(&fd, FlockOperation::Unlock),
            _ => set(&fd, libc::F_UNLCK, range),
        }
    }

    /// The first lock of others that would conflict. Whose it is, the kernel does not tell: that is known of locks that were taken
    /// here.
    pub(crate) fn test(
        &self,
        (ino, of): (Ino, &impl AsFd),
        owner: LockOwner,
        range: LockRange,
    ) -> Result<Option<(LockOwner, LockRange)>, Errno> {
        let fd = self.descriptor((ino, of), owner)?;
        let kind = if range.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        let found = control(&fd, libc::F_OFD_GETLK, kind, range.start..range.end)?;
        if i32::from(found.l_type) == libc::F_UNLCK {
            return Ok(None);
        }
        let start = u64::try_from(found.l_start).unwrap_or(0);
        let end = match u64::try_from(found.l_len) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(len) => start.saturating_add(len),
        };
        let exclusive = i32::from(found.l_type) == libc::F_WRLCK;
        let found_range = LockRange { start, end, exclusive };
        let unknown = LockOwner::Process { session: 0, pid: u32::try_from(found.l_pid).unwrap_or(0) };
        Ok(Some((self.holder(ino, owner, found_range).unwrap_or(unknown), found_range)))
    }

    /// Who else has locked something of a range here.
    fn holder(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Option<LockOwner> {
        let meets = |held: &LockRange| {
            held.exclusive == range.exclusive && held.start < range.end && range.start < held.end
        };
        let table = self.table();
        let mut others = table.held.iter().filter(|((of, other), _)| {
            *of == ino && *other != owner && !matches!(other, LockOwner::Flock(_))
        });
        others.find(|(_, held)| held.ranges.iter().any(meets)).map(|((_, other), _)| *other)
    }

    /// Ends an owner's wait, also one that has not begun.
    pub(crate) fn cancel(&self, ino: Ino, owner: LockOwner, _range: LockRange) {
        self.table().cancelled.insert((ino, owner));
    }

    fn drop_those(&self, of: impl Fn(&LockOwner) -> bool) {
        let mut table = self.table();
        table.cancelled.retain(|(_, owner)| !of(owner));
        let gone: Vec<_> = table.held.extract_if(|(_, owner), _| of(owner)).collect();
        drop(table);
        // Closed without the lock.
        drop(gone);
    }

    /// An open file description is gone, and its locks with it.
    pub(crate) fn release(&self, open: OpenId) {
        self.drop_those(
            |owner| matches!(owner, LockOwner::Description(of) | LockOwner::Flock(of) if *of == open),
        );
    }

    /// A process is gone, and its locks with it.
    pub(crate) fn end_session(&self, session: u64) {
        self.drop_those(|owner| matches!(owner, LockOwner::Process { session: of, .. } if *of == session));
    }
}

fn flock(fd: &OwnedFd, operation: FlockOperation) -> Result<(), Errno> {
    rustix::fs::flock(fd, operation).map_err(kernel::errno)
}

fn set(fd: &OwnedFd, kind: i32, range: Range<u64>) -> Result<(), Errno> {
    control(fd, libc::F_OFD_SETLK, kind, range).map(|_| ())
}

/// `fcntl` for locks of open file descriptions.
fn control(fd: &OwnedFd, command: i32, kind: i32, range: Range<u64>) -> Result<libc::flock, Errno> {
    let start = i64::try_from(range.start).map_err(|_| Errno::OVERFLOW)?;
    // 0 reaches to the end of the file, however it grows.
    let len = i64::try_from(range.end).map_or(0, |end| end.saturating_sub(start));
    if len < 0 {
        return Err(Errno::INVAL);
    }
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the command reads and writes one `flock`, which lives here.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut lock) } {
        -1 => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .and_then(|e| u16::try_from(e).ok())
            .map_or(Errno::IO, Errno)),
        _ => Ok(lock),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_owner_has_is_known_and_is_taken_elsewhere_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "x").expect("a file");
        let file = std::fs::File::open(&path).expect("opened");
        let (ino, one) = (Ino::forwarded(7), LockOwner::Process { session: 1, pid: 1 });
        let other = LockOwner::Process { session: 2, pid: 2 };
        let lock = |start, end, exclusive| LockRange { start, end, exclusive };
        let (here, there) = (Locks::default(), Locks::default());
        here.lock((ino, &file), one, lock(0, 100, true), 0).expect("free");
        here.lock((ino, &file), one, lock(40, 60, false), 0).expect("converted");
        here.unlock(ino, one, 80..90).expect("unlocked");
        assert!(here.has(ino, one) && !here.has(ino, other));
        assert_eq!(there.lock((ino, &file), other, lock(50, 51, true), 0), Err(Errno::AGAIN));
        let found = |locks: &Locks, range| locks.test((ino, &file), other, range).expect("asked");
        assert_eq!(found(&here, lock(50, 51, true)), Some((one, lock(40, 60, false))));
        assert_eq!(found(&here, lock(80, 90, true)), None);
        let foreign = found(&there, lock(95, 96, false)).map(|(owner, range)| (owner, range.exclusive));
        assert!(foreign.is_some_and(|(owner, exclusive)| owner != one && owner != other && exclusive));
        there.lock((ino, &file), other, lock(50, 51, false), 0).expect("shared");
        there.lock((ino, &file), other, lock(85, 86, true), 0).expect("free");
        there.unlock(ino, other, 0..u64::MAX).expect("unlocked");
        let mut given = here.give(ino, one);
        given.sort_by_key(|range| range.start);
        let expected = [lock(0, 40, true), lock(40, 60, false), lock(60, 80, true), lock(90, 100, true)];
        assert_eq!(given, expected);
        for range in given {
            there.lock((ino, &file), one, range, 0).expect("nobody has it here");
        }
        assert_eq!(here.lock((ino, &file), other, lock(0, 1, true), 0), Err(Errno::AGAIN));
        here.lock((ino, &file), other, lock(45, 50, false), 0).expect("shared");
        assert_eq!(here.give(ino, one), []);
        there.unlock(ino, one, 0..u64::MAX).expect("unlocked");
        here.unlock(ino, other, 0..u64::MAX).expect("unlocked");
        here.lock((ino, &file), other, lock(0, u64::MAX, true), 0).expect("all is free");
    }
}
