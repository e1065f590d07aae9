//! The library's own descriptors, kept out of the program's way.
//!
//! They live at high numbers, and a bitmap says which numbers are ours, so that the faces can answer EBADF to a
//! program that closes what it never opened. A program may still take a number away (`dup2` onto it, or a raw
//! system call): [`make_way`] clears the bit, and an owner checks [`Hidden::valid`] before each use, so that it never
//! writes into what is now somebody else's file.

use rustix::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Numbers that the bitmap covers.
const COVERED: usize = 1 << 20;
static OURS: [AtomicU64; COVERED / 64] = [const { AtomicU64::new(0) }; COVERED / 64];
/// Own descriptors get numbers from here on; 0 until [`prepare`].
static FLOOR: AtomicI32 = AtomicI32::new(0);

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(fd).ok()?;
    Some((OURS.get(index / 64)?, 1 << (index % 64)))
}

/// Whether a number is one of the library's own descriptors.
pub fn is_hidden(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, mask)| word.load(Ordering::Relaxed) & mask != 0)
}

/// The lowest hidden descriptor in `first..=last`, for sweeps that have to go around them.
pub fn next_hidden(first: u32, last: u32) -> Option<u32> {
    let last = last.min(COVERED as u32 - 1);
    let mut at = first;
    while at <= last {
        let word = OURS[at as usize / 64].load(Ordering::Relaxed) >> (at % 64);
        if word != 0 {
            let found = at + word.trailing_zeros();
            return (found <= last).then_some(found);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The program wants this number for itself: whoever owned it finds it gone.
pub fn make_way(fd: RawFd) {
    if let Some((word, mask)) = bit(fd)
        && word.fetch_and(!mask, Ordering::AcqRel) & mask != 0
    {
        // SAFETY: the bit was set, so the number was ours to close, and its owner will see that it is no longer valid.
        unsafe { rustix::io::close(fd) };
    }
}

/// From which number on own descriptors are placed. Raises the soft limit once, so that they do not eat into what
/// the program may open: half of 65,536 for each, where the hard limit allows.
pub(crate) fn floor() -> RawFd {
    let known = FLOOR.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(1 << 20);
    let hard = limit.maximum.unwrap_or(1 << 20);
    let wanted = soft.max(hard.min(65_536));
    let usable = if wanted > soft
        && setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                maximum: limit.maximum,
            },
        )
        .is_ok()
    {
        wanted
    } else {
        soft
    }
    .min(COVERED as u64);
    let floor = if usable >= 2048 {
        usable / 2
    } else {
        usable - usable / 4
    } as RawFd;
    FLOOR.store(floor, Ordering::Relaxed);
    floor
}

/// A descriptor of the library's own.
#[derive(Debug)]
pub struct Hidden(RawFd);

impl Hidden {
    /// Moves a descriptor to a high number (where it is, if there is no room) and hides it.
    pub fn new(fd: OwnedFd) -> Hidden {
        let fd = if fd.as_raw_fd() >= floor() {
            fd
        } else {
            rustix::io::fcntl_dupfd_cloexec(&fd, floor()).unwrap_or(fd)
        };
        Hidden::mark(fd)
    }

    fn mark(fd: OwnedFd) -> Hidden {
        let raw = fd.into_raw_fd();
        if let Some((word, mask)) = bit(raw) {
            word.fetch_or(mask, Ordering::AcqRel);
        }
        Hidden(raw)
    }

    /// Whether the number still is ours.
    pub fn valid(&self) -> bool {
        is_hidden(self.0)
    }

    /// The descriptor, while it is ours.
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the bit is set, so nobody closed it through the faces; a raw close by the program makes operations
        // fail with EBADF.
        self.valid().then(|| unsafe { BorrowedFd::borrow_raw(self.0) })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Some((word, mask)) = bit(self.0)
            && word.fetch_and(!mask, Ordering::AcqRel) & mask != 0
        {
            // SAFETY: ours until this moment, and nobody else's. (Not through libc's close, which may be a face of ours.)
            unsafe { rustix::io::close(self.0) };
        }
    }
}

/// Hides a descriptor that something else owns (a connection), for as long as the mark lives.
#[derive(Debug)]
pub(crate) struct Mark(RawFd);

impl Mark {
    pub(crate) fn new(fd: RawFd) -> Mark {
        if let Some((word, mask)) = bit(fd) {
            word.fetch_or(mask, Ordering::AcqRel);
        }
        Mark(fd)
    }

    /// Whether the number still is ours.
    pub(crate) fn valid(&self) -> bool {
        is_hidden(self.0)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some((word, mask)) = bit(self.0) {
            word.fetch_and(!mask, Ordering::AcqRel);
        }
    }
}
