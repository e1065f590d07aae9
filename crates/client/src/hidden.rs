//! The library's own descriptors, kept out of the program's way.
//!
//! They live at high numbers, and a bitmap says which numbers are ours, so that the faces can answer EBADF to
//! a program that closes what it never opened. A program may still take a number away (`dup2` onto it):
//! [`make_way`] clears the bit. The number may then come back to the library for something else, so each
//! owner has a *token* of its own, and checks before each use that the number still carries it. So the
//! library never writes into a file that now has the number.

use bivouac_node::Fd;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Numbers that the bitmap covers.
const COVERED: usize = 1 << 20;
static OURS: [AtomicU64; COVERED / 64] = [const { AtomicU64::new(0) }; COVERED / 64];
/// The owner of each number: its token, or 0.
static OWNERS: [AtomicU32; COVERED] = [const { AtomicU32::new(0) }; COVERED];
/// Counts owners. It may wrap: an owner of 2^32 owners ago is assumed to be gone.
static TOKENS: AtomicU32 = AtomicU32::new(0);
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

/// The program takes this number for itself: closes the library's descriptor, whose owner will notice that it
/// is gone.
pub fn make_way(fd: RawFd) {
    if let Some(owner) = usize::try_from(fd).ok().and_then(|index| OWNERS.get(index))
        && owner.swap(0, Ordering::AcqRel) != 0
    {
        show(fd);
        // SAFETY: the number had an owner, so it was the library's to close, and the owner will see that it
        // is gone.
        unsafe { rustix::io::close(fd) };
    }
}

fn show(fd: RawFd) {
    if let Some((word, mask)) = bit(fd) {
        word.fetch_and(!mask, Ordering::AcqRel);
    }
}

/// The claim of one owner on one number.
#[derive(Debug)]
pub(crate) struct Claim {
    fd: RawFd,
    token: u32,
}

impl Claim {
    /// Hides a number that the caller owns.
    pub(crate) fn new(fd: RawFd) -> Claim {
        let token = TOKENS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        if let Some((word, mask)) = bit(fd) {
            OWNERS[fd as usize].store(token, Ordering::Release);
            word.fetch_or(mask, Ordering::AcqRel);
        }
        Claim { fd, token }
    }

    /// Whether the number still is the owner's. (Numbers beyond the table cannot be told, and are not
    /// hidden.)
    pub(crate) fn holds(&self) -> bool {
        bit(self.fd).is_none() || OWNERS[self.fd as usize].load(Ordering::Acquire) == self.token
    }

    /// Gives up the number. Returns true if it was still the owner's, who then has to close it.
    pub(crate) fn give_up(&self) -> bool {
        if bit(self.fd).is_none() {
            return true;
        }
        let owner = &OWNERS[self.fd as usize];
        if owner.compare_exchange(self.token, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        show(self.fd);
        true
    }
}

/// From which number on own descriptors are placed. Raises the soft limit once, so that they do not eat into
/// what the program may open: half of 65,536 for each, where the hard limit allows.
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
        && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).is_ok()
    {
        wanted
    } else {
        soft
    }
    .min(COVERED as u64);
    let floor = if usable >= 2048 { usable / 2 } else { usable - usable / 4 } as RawFd;
    FLOOR.store(floor, Ordering::Relaxed);
    floor
}

/// A descriptor of the library's own.
#[derive(Debug)]
pub struct Hidden {
    fd: RawFd,
    claim: Claim,
}

impl Hidden {
    /// Moves a descriptor to a high number (where it is, if there is no room) and hides it.
    pub fn new(fd: Fd) -> Hidden {
        let fd = fd.above(floor()).into_raw_fd();
        Hidden { fd, claim: Claim::new(fd) }
    }

    /// The descriptor, while it is ours.
    #[inline]
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the claim holds, so nobody closed it through the faces; after a raw close by the program
        // operations fail with EBADF, and `lost` is called.
        self.claim.holds().then(|| unsafe { BorrowedFd::borrow_raw(self.fd) })
    }

    /// To be called when the kernel answers EBADF: the program has closed the number without the library
    /// noticing.
    pub(crate) fn lost(&self) {
        self.claim.give_up();
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if self.claim.give_up() {
            // SAFETY: ours until this moment, and nobody else's. (Not through libc's close, which may be a
            // face of ours.)
            unsafe { rustix::io::close(self.fd) };
        }
    }
}
