//! The process that a client lives in.
//!
//! A client has descriptors, and minds the process's limits, as a kernel does. In a program that was made for it (the
//! command line, the kernel mount, a program that is linked with the C library) nobody interferes: such a program is
//! [`Plain`]. A program with the preload library knows nothing of the client in it. It may close descriptors that it has not
//! opened, or give their numbers to something else, and a `vfork` child works in its memory with descriptors of its own. So
//! the library supplies a host that keeps the client's descriptors out of the program's way, and says which are still there.

use bivouac_node::{Fd, process};
use bivouac_proto::Errno;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::process::Signal;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a client is to know of its process.
pub trait Host: Sync {
    /// From which number on the client's descriptors are to be. (None may be one of the standard streams, which a program may
    /// have closed.)
    fn floor(&self) -> RawFd {
        3
    }

    /// The client has this descriptor from now on. `None`: nobody will take it away.
    fn claim(&self, _fd: RawFd) -> Option<Claim> {
        None
    }

    /// The process that has what is opened now, if that is another one than the process whose memory this is.
    fn borrower(&self) -> Option<u32> {
        None
    }

    /// How long a file may become, bytes, as RLIMIT_FSIZE has it; `u64::MAX`: no limit. Read at every write.
    fn file_size_limit(&self) -> &'static AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(u64::MAX);
        &NONE
    }
}

/// A process in which nobody interferes. (In a mount, the kernel has checked the limit on the size of files.)
pub struct Plain;

impl Host for Plain {}

/// A claim on a descriptor's number, as its host has it: the number is the client's as long as its owner's word is the
/// claim's token.
#[derive(Debug)]
pub struct Claim {
    /// The word of the number.
    pub owner: &'static AtomicU32,
    /// Not 0, and no other claim's on this number.
    pub token: u32,
    /// To be called with the number when the claim was given up.
    pub given_up: fn(RawFd),
}

impl Claim {
    fn holds(&self) -> bool {
        self.owner.load(Ordering::Acquire) == self.token
    }

    /// Gives it up. Whether it still held.
    fn give_up(&self, fd: RawFd) -> bool {
        let held = self.owner.compare_exchange(self.token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if held {
            (self.given_up)(fd);
        }
        held
    }
}

/// The number of a descriptor of the client's, and the claim on it.
#[derive(Debug)]
pub(crate) struct Number {
    fd: RawFd,
    claim: Option<Claim>,
    /// The process that has it. A forked child may have closed its copy, and have something else under the number.
    process: u32,
}

impl Number {
    pub(crate) fn new(host: &dyn Host, fd: RawFd) -> Number {
        Number { fd, claim: host.claim(fd), process: process::pid() }
    }

    /// Whether it still is the client's.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.claim.as_ref().is_none_or(Claim::holds)
    }

    /// Gives it up. Returns true if it was still the client's, who then has to close it.
    pub(crate) fn give_up(&self) -> bool {
        match &self.claim {
            Some(claim) => claim.give_up(self.fd),
            None => self.process == process::pid(),
        }
    }
}

/// A descriptor of the client's own.
#[derive(Debug)]
pub struct OwnFd(Number);

impl OwnFd {
    /// Moves a descriptor to where its host wants it, or leaves it where it is, if there is no room.
    pub fn new(host: &dyn Host, fd: Fd) -> OwnFd {
        OwnFd(Number::new(host, fd.above(host.floor()).into_raw_fd()))
    }

    /// The descriptor, while it is the client's.
    #[inline]
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the claim holds, so nobody closed it as far as the host knows; after a close that the host has not noticed,
        // operations fail with EBADF, and `lost` is called.
        self.0.holds().then(|| unsafe { BorrowedFd::borrow_raw(self.0.fd) })
    }

    /// To be called when the kernel answers EBADF: the program has closed the number without its host's
    /// noticing.
    pub(crate) fn lost(&self) {
        self.0.give_up();
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        if self.0.give_up() {
            // SAFETY: the client's until this moment, and nobody else's. (Not through libc's close, which may be the preload
            // library's.)
            unsafe { rustix::io::close(self.0.fd) };
        }
    }
}

/// The limit on the size of files: a write that reaches it is shortened; one that begins beyond it, or a truncation beyond
/// it, fails with EFBIG after SIGXFSZ.
#[derive(Clone, Copy)]
pub(crate) struct SizeLimit(pub(crate) &'static AtomicU64);

impl SizeLimit {
    /// Bytes, if there is a limit.
    #[inline]
    pub(crate) fn get(self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    /// How much of a write at `offset` is within the limit; EFBIG if nothing is.
    #[inline]
    pub(crate) fn clipped(self, offset: u64, data: &[u8]) -> Result<&[u8], Errno> {
        match self.get() {
            Some(limit) => clipped_to(limit, offset, data).ok_or_else(exceeded),
            None => Ok(data),
        }
    }
}

fn clipped_to(limit: u64, offset: u64, data: &[u8]) -> Option<&[u8]> {
    let room = limit.checked_sub(offset).filter(|room| *room > 0)?;
    Some(&data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
}

/// Something would go beyond the limit: SIGXFSZ, and if the process outlives that, the error.
#[cold]
pub(crate) fn exceeded() -> Errno {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::XFSZ);
    Errno::FBIG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_may_reach_the_limit_and_not_begin_at_it() {
        assert_eq!(clipped_to(10, 0, &[7; 20]).map(<[u8]>::len), Some(10));
        assert_eq!(clipped_to(10, 9, &[7; 20]).map(<[u8]>::len), Some(1));
        assert_eq!(clipped_to(10, 4, &[7; 3]).map(<[u8]>::len), Some(3));
        assert_eq!(clipped_to(10, 10, &[7; 20]), None);
        assert_eq!(clipped_to(10, 11, &[7; 20]), None);
        assert_eq!(clipped_to(0, 0, &[7]), None);
    }
}
