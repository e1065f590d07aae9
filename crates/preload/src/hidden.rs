//! The client's own descriptors, kept out of the program's way: what the client core is to know of a process with this
//! library ([`Host`]).
//!
//! They live at high numbers, and a bitmap says which numbers are ours, so that the faces can answer EBADF to
//! a program that closes what it never opened. A program may still take a number away (`dup2` onto it):
//! [`make_way`] clears the bit. The number may then come back to the library for something else, so each
//! owner has a *token* of its own, and checks before each use that the number still carries it. So the
//! library never writes into a file that now has the number.

use bivouac_client::host::{Claim, Host};
use bivouac_node::process;
use rustix::fd::RawFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Numbers that the bitmap covers.
const COVERED: usize = 1 << 20;
static OURS: [AtomicU64; COVERED / 64] = [const { AtomicU64::new(0) }; COVERED / 64];
/// The owner of each number: its token, or 0.
static OWNERS: [AtomicU32; COVERED] = [const { AtomicU32::new(0) }; COVERED];
/// Counts owners. It may wrap: an owner of 2^32 owners ago is assumed to be gone.
static TOKENS: AtomicU32 = AtomicU32::new(0);
/// Own descriptors get numbers from here on; 0 until that is known.
static FLOOR: AtomicI32 = AtomicI32::new(0);
/// The process's limit on the size of files (RLIMIT_FSIZE), bytes.
static FILE_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// A process with this library.
pub struct Preloaded;

impl Host for Preloaded {
    fn floor(&self) -> RawFd {
        floor()
    }

    fn claim(&self, fd: RawFd) -> Option<Claim> {
        // Numbers beyond the table cannot be told, and are not hidden.
        let (word, mask) = bit(fd)?;
        let owner = OWNERS.get(fd as usize)?;
        let token = TOKENS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        owner.store(token, Ordering::Release);
        word.fetch_or(mask, Ordering::AcqRel);
        Some(Claim { owner, token, given_up: show })
    }

    fn borrower(&self) -> Option<u32> {
        let process = process::real_pid();
        (process != process::pid()).then_some(process)
    }

    fn file_size_limit(&self) -> &'static AtomicU64 {
        &FILE_SIZE
    }
}

/// This process must not make a file longer than so many bytes; `u64::MAX`: no limit.
pub fn set_file_size_limit(bytes: u64) {
    FILE_SIZE.store(bytes, Ordering::Relaxed);
}

/// How long a file may become, bytes; `u64::MAX`: no limit.
pub fn file_size_limit() -> u64 {
    FILE_SIZE.load(Ordering::Relaxed)
}

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

/// From which number on own descriptors are placed. Raises the soft limit once, so that they do not eat into
/// what the program may open: half of 65,536 for each, where the hard limit allows.
fn floor() -> RawFd {
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
