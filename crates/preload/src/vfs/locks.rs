//! Locks: `fcntl`'s of the process and of the description, and `flock`.
//!
//! Waiting is done at the server, in turns of half a second, so that locks go to who asked first and
//! deadlocks are seen. What a signal does to it is in [`super::signals`].

use super::signals::{Held, Next};
use super::state;
use bivouac_client::{Handle, LockKind};
use bivouac_proto::Errno;
use bivouac_proto::meta::LockOwner;
use rustix::fd::BorrowedFd;

/// Takes a lock, waiting if need be.
fn take(
    file: &Handle,
    kind: LockKind,
    exclusive: bool,
    start: u64,
    end: u64,
    wait: bool,
) -> Result<(), Errno> {
    let attempt = || state::apart(|| file.lock(kind, exclusive, start, end));
    if !wait {
        return attempt();
    }
    // From here on no signal is missed: one that comes before the wait also ends it.
    let mut signals = Held::all();
    let first = attempt();
    if first != Err(Errno::AGAIN) {
        return first;
    }
    signals.narrow();
    loop {
        // Handlers run between two turns only: one that leaves by `siglongjmp` leaves nothing under way.
        let watch = |answer: BorrowedFd<'_>| signals.comes_before(answer);
        match state::apart(|| file.lock_waiting(kind, exclusive, start, end, &watch)) {
            Err(Errno::AGAIN | Errno::INTR) => match signals.let_in() {
                Next::GoOn => {}
                Next::GiveUp => return Err(Errno::INTR),
            },
            outcome => return outcome,
        }
    }
}

/// `flock(2)` on a file of ours.
pub fn flock(file: &Handle, operation: i32) -> Result<(), Errno> {
    if file.is_path_only() {
        return Err(Errno::BADF);
    }
    let wait = operation & libc::LOCK_NB == 0;
    match operation & !libc::LOCK_NB {
        libc::LOCK_SH => take(file, LockKind::Flock, false, 0, u64::MAX, wait),
        libc::LOCK_EX => take(file, LockKind::Flock, true, 0, u64::MAX, wait),
        libc::LOCK_UN => state::apart(|| file.unlock(LockKind::Flock, 0, u64::MAX)),
        _ => Err(Errno::INVAL),
    }
}

/// `fcntl`'s lock commands on a file of ours.
pub fn fcntl(file: &Handle, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
    let kind = match command {
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            if lock.l_pid != 0 {
                return Err(Errno::INVAL);
            }
            LockKind::Description
        }
        _ => LockKind::Process,
    };
    let (start, end) = range(file, lock)?;
    let exclusive = match i32::from(lock.l_type) {
        libc::F_RDLCK => false,
        libc::F_WRLCK => true,
        libc::F_UNLCK
            if matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW) =>
        {
            return state::apart(|| file.unlock(kind, start, end));
        }
        _ => return Err(Errno::INVAL),
    };
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let found = state::apart(|| file.test_lock(kind, exclusive, start, end))?;
        let Some((owner, range)) = found else {
            lock.l_type = libc::F_UNLCK as i16;
            return Ok(());
        };
        lock.l_type = (if range.exclusive { libc::F_WRLCK } else { libc::F_RDLCK }) as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = i64::try_from(range.start).unwrap_or(i64::MAX);
        // Up to the end of the file, however it grows, is length 0.
        lock.l_len = i64::try_from(range.end).map_or(0, |end| end - lock.l_start);
        lock.l_pid = match owner {
            LockOwner::Process { pid, .. } => pid as i32,
            _ => -1,
        };
        return Ok(());
    }
    let access = file.flags() & libc::O_ACCMODE;
    if access == if exclusive { libc::O_RDONLY } else { libc::O_WRONLY } {
        return Err(Errno::BADF);
    }
    let wait = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    take(file, kind, exclusive, start, end, wait)
}

/// The bytes that a `struct flock` means.
fn range(file: &Handle, lock: &libc::flock) -> Result<(u64, u64), Errno> {
    let base = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => state::apart(|| file.seek(0, libc::SEEK_CUR))? as i64,
        libc::SEEK_END => i64::try_from(state::apart(|| file.attr())?.size).map_err(|_| Errno::OVERFLOW)?,
        _ => return Err(Errno::INVAL),
    };
    bounds(base.checked_add(lock.l_start).ok_or(Errno::OVERFLOW)?, lock.l_len)
}

/// From `start`, `len` bytes: 0 means to the end of the file, a negative number the bytes before.
fn bounds(start: i64, len: i64) -> Result<(u64, u64), Errno> {
    let (start, end) = match len {
        0 => (start, None),
        1.. => (start, Some(start.checked_add(len).ok_or(Errno::OVERFLOW)?)),
        _ => (start.checked_add(len).ok_or(Errno::INVAL)?, Some(start)),
    };
    let start = u64::try_from(start).map_err(|_| Errno::INVAL)?;
    Ok((start, end.map_or(u64::MAX, |end| end as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ranges_follow_posix() {
        assert_eq!(bounds(10, 0), Ok((10, u64::MAX)));
        assert_eq!(bounds(10, 5), Ok((10, 15)));
        assert_eq!(bounds(10, -5), Ok((5, 10)));
        assert_eq!(bounds(3, -5), Err(Errno::INVAL));
        assert_eq!(bounds(-1, 5), Err(Errno::INVAL));
        assert_eq!(bounds(i64::MAX, 2), Err(Errno::OVERFLOW));
    }
}
