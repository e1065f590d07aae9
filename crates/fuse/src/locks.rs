//! Byte-range locks and `flock`.
//!
//! All are kept by the inode's server; the kernel keeps none. The kernel names an owner by a 64-bit number:
//! the process, or for locks of an open file description that description, which cannot be told apart.
//! Servers want a session and a 32-bit number, and show that as the owner's process: so each owner gets its
//! process's number if that is free, and any other if not. When a descriptor is closed the kernel sends FLUSH
//! with the process's owner number, whose locks on the file go; when the last one of a description goes,
//! RELEASE, and with it whatever was locked through it and is still there.

use crate::abi::{LOCK_FLOCK, Reply};
use crate::face::{Answer, Call, Face, lock};
use crate::lockers::Leaving;
use bivouac_client::{Handle, LockKind};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::meta::LockOwner;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many interruptions are remembered. (One for a request that has ended is never looked for.)
const INTERRUPTIONS: usize = 256;
/// For so many milliseconds a lock is tried again if the conflicting lock may belong to a description that is
/// being closed.
const CLOSING: u32 = 10;
/// The end of a lock that reaches to the end of the file, as the kernel writes it (inclusive).
const TO_END: u64 = i64::MAX as u64;

/// A request about a lock.
struct Wanted {
    fh: u64,
    owner: u64,
    /// First byte, and the one behind the last.
    range: (u64, u64),
    kind: i32,
    pid: u32,
    flock: bool,
}

impl Call<'_> {
    fn wanted(&mut self) -> Result<Wanted, Errno> {
        let fields = &mut self.fields;
        let (fh, owner) = (fields.u64()?, fields.u64()?);
        let (start, last) = (fields.u64()?, fields.u64()?);
        let (kind, pid) = (fields.u32()? as i32, fields.u32()?);
        let flock = fields.u32()? & LOCK_FLOCK != 0;
        let end = if last >= TO_END { u64::MAX } else { last + 1 };
        Ok(Wanted { fh, owner, range: (start, end), kind, pid, flock })
    }

    pub(crate) fn getlk(&mut self) -> Result<Answer, Errno> {
        let wanted = self.wanted()?;
        let file = self.file(wanted.fh)?;
        let number = self.face.lockers.number(wanted.owner, wanted.pid);
        let (start, end) = wanted.range;
        let exclusive = wanted.kind == i32::from(libc::F_WRLCK as i16);
        let found = file.handle.test_lock(LockKind::Member(number), exclusive, start, end)?;
        let mut reply = Reply::new();
        match found {
            None => reply.u64(start).u64(TO_END).u32(libc::F_UNLCK as u32).u32(0),
            Some((owner, range)) => {
                let kind = if range.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                let pid = match owner {
                    LockOwner::Process { pid, .. } => self.face.lockers.process(pid),
                    _ => 0,
                };
                let last = if range.end == u64::MAX { TO_END } else { range.end.saturating_sub(1) };
                reply.u64(range.start).u64(last).u32(kind as u32).u32(pid)
            }
        };
        Ok(Answer::Told(reply))
    }

    pub(crate) fn setlk(&mut self, wait: bool) -> Result<Answer, Errno> {
        let wanted = self.wanted()?;
        let file = self.file(wanted.fh)?;
        let (ino, (start, end)) = (file.handle.ino(), wanted.range);
        let kind = if wanted.flock {
            LockKind::Flock
        } else if wanted.kind == libc::F_UNLCK {
            match self.face.lockers.known(wanted.owner) {
                Some(number) => LockKind::Member(number),
                None => return Ok(Answer::Empty),
            }
        } else {
            LockKind::Member(self.face.lockers.note(wanted.owner, wanted.pid, ino, wanted.fh))
        };
        if wanted.kind == libc::F_UNLCK {
            file.handle.unlock(kind, start, end)?;
            if !wanted.flock {
                self.face.lockers.gave_up(wanted.owner, ino, wanted.range);
            }
            return Ok(Answer::Empty);
        }
        let exclusive = wanted.kind == libc::F_WRLCK;
        let mut outcome = file.handle.lock(kind, exclusive, start, end);
        for _ in 0..CLOSING {
            if wait || outcome != Err(Errno::AGAIN) || !self.is_held_here(&file.handle, kind, &wanted) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            outcome = file.handle.lock(kind, exclusive, start, end);
        }
        match outcome {
            Err(Errno::AGAIN) if wait => {}
            Ok(()) => {
                self.face.took(&wanted, ino);
                return Ok(Answer::Empty);
            }
            Err(errno) => return Err(errno),
        }
        let (face, channel, unique) = (self.face.clone(), self.channel.clone(), self.asked.unique);
        let interruption = face.interruptions.expect(unique)?;
        let waiter = move || {
            let cut_short = |answer: BorrowedFd<'_>| interruption.before(answer);
            let ended = loop {
                match file.handle.lock_waiting(kind, exclusive, start, end, &cut_short) {
                    Err(Errno::AGAIN) if !interruption.came() => {}
                    Err(Errno::AGAIN) => break Err(Errno::INTR),
                    other => break other,
                }
            };
            face.interruptions.forget(unique);
            if ended.is_ok() {
                face.took(&wanted, ino);
            }
            channel.answer(unique, ended.map(|()| &[][..]));
        };
        match std::thread::Builder::new().name("fuse-lock".into()).spawn(waiter) {
            Ok(_) => Ok(Answer::None),
            Err(_) => Err(Errno::NOLCK),
        }
    }

    /// Whether a lock conflicts with another lock through this mount. The kernel does not wait for RELEASE
    /// when a description is closed. So the other lock may be about to be released, and for the program that
    /// closed the description it is gone already.
    fn is_held_here(&self, handle: &Handle, kind: LockKind, wanted: &Wanted) -> bool {
        let (start, end) = wanted.range;
        match handle.test_lock(kind, wanted.kind == libc::F_WRLCK, start, end) {
            Ok(Some((owner, _))) => self.face.client.is_own_lock(owner),
            // The conflicting lock is gone.
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// The kernel wants a request to end early. Only requests that wait for locks take long enough for that
    /// to matter.
    pub(crate) fn interrupt(&mut self) -> Result<Answer, Errno> {
        let unique = self.fields.u64()?;
        self.face.interruptions.note(unique);
        Ok(Answer::None)
    }

    /// Releases the byte-range locks on a file of an owner that is done with the file.
    pub(crate) fn unlock_all(&self, handle: &Handle, leaving: Leaving) {
        for (start, end) in leaving.ranges {
            if let Err(errno) = handle.unlock(LockKind::Member(leaving.number), start, end) {
                tracing::warn!(?errno, ino = %handle.ino(), "locks of a closed file were not given up");
            }
        }
        if leaving.for_good {
            self.face.lockers.free(leaving.number);
        }
    }
}

impl Face {
    /// A lock was taken. (A `flock` lock belongs to its description alone: the server releases it together
    /// with that.)
    fn took(&self, wanted: &Wanted, ino: Ino) {
        if !wanted.flock {
            self.lockers.took(wanted.owner, ino, wanted.fh, wanted.range);
        }
    }
}

/// Which requests are interrupted.
#[derive(Default)]
pub(crate) struct Interruptions(Mutex<Expected>);

#[derive(Default)]
struct Expected {
    /// Those who wait for a lock, by their requests.
    waiting: HashMap<u64, Arc<OwnedFd>>,
    /// Interruptions of other requests: one of those may be about to wait.
    early: VecDeque<u64>,
}

/// The interruption of one request, which may come.
struct Interruption(Arc<OwnedFd>);

impl Interruption {
    /// Waits for it or for something else to become readable; whether it came first.
    fn before(&self, other: BorrowedFd<'_>) -> bool {
        let mut both = [PollFd::new(&*self.0, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        while matches!(rustix::event::poll(&mut both, None), Err(rustix::io::Errno::INTR)) {}
        let [own, other] = &both;
        !own.revents().is_empty() && other.revents().is_empty()
    }

    fn came(&self) -> bool {
        let mut own = [PollFd::new(&*self.0, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut own, Some(&now)), Ok(1..))
    }
}

impl Interruptions {
    fn note(&self, unique: u64) {
        let mut all = lock(&self.0);
        if let Some(waiter) = all.waiting.get(&unique) {
            let _ = rustix::io::write(&**waiter, &1u64.to_ne_bytes());
            return;
        }
        if all.early.len() >= INTERRUPTIONS {
            all.early.pop_front();
        }
        all.early.push_back(unique);
    }

    /// A request is going to wait.
    fn expect(&self, unique: u64) -> Result<Interruption, Errno> {
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_err(|_| Errno::NOLCK)?;
        let event = Arc::new(event);
        let mut all = lock(&self.0);
        if all.early.contains(&unique) {
            let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
        }
        all.waiting.insert(unique, event.clone());
        Ok(Interruption(event))
    }

    fn forget(&self, unique: u64) {
        lock(&self.0).waiting.remove(&unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_reaches_its_request_also_when_it_comes_first() {
        let interruptions = Interruptions::default();
        interruptions.note(4);
        let (early, other) = (interruptions.expect(4).unwrap(), interruptions.expect(6).unwrap());
        assert!(early.came() && !other.came());
        interruptions.note(6);
        assert!(other.came());
        interruptions.forget(6);
        interruptions.note(6);
        (0..1000).for_each(|unique| interruptions.note(unique));
        assert_eq!(lock(&interruptions.0).early.len(), INTERRUPTIONS);
    }
}
