//! What each descriptor number is: not yet known, foreign, or ours.
//!
//! One word for each number, in memory that the kernel provides only where it is touched. Looking up a
//! foreign descriptor is one load. One of ours has an entry ([`file`]), and the number's word names it: a
//! call counts itself in as a user of the entry, and then looks whether the word still holds. A number that
//! is not known (inherited, received through a socket) is looked at once: its kernel offset tells.
//!
//! # Other threads
//! The kernel's table and ours cannot change in one step. So a number that is about to be closed or replaced
//! is *changing* until that is done ([`begin`], [`end`]): calls that come meanwhile ask the kernel each time
//! and store nothing. Each change also counts up the word's *turn*, so that what was found out under an
//! earlier turn is not written down under a later one, when the number is something else. Two changes of one
//! number at once leave it not known. The module [`steps`] has what threads do to the words
//! without a lock.
//!
//! A call that took the number for the kernel's just before it became ours meets a placeholder, which is a
//! directory: it fails in a way that files do not, and is done again ([`on`]).
//!
//! # `vfork` children
//! Such a child shares this memory, but has descriptors of its own: a number that it closes or redefines is
//! *doubted* in the parent's word ([`doubt`]), and the child asks the kernel about it from then on.

pub mod beside;
mod file;
mod steps;

pub use file::File;
pub use steps::{CHANGING, FOREIGN, STATE};

use super::state;
use crate::boundary;
use bivouac_client::Handle;
use bivouac_node::process;
use bivouac_proto::Errno;
use rustix::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use steps::{DOUBTED, FIRST_ENTRY, NEW, UNKNOWN, USED, learn, meaning, replace};

/// Numbers from here on are foreign always.
pub const NUMBERS: usize = 1 << 20;

const _: () = assert!(file::ENTRIES as u32 + FIRST_ENTRY < DOUBTED);

pub static WORDS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(UNKNOWN) }; NUMBERS];
/// All numbers above this one have always been unknown.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

fn word(fd: i32) -> Option<&'static AtomicU32> {
    usize::try_from(fd).ok().and_then(|fd| WORDS.get(fd))
}

/// The thread whose `vfork` child doubted a number last.
static DOUBTER: AtomicUsize = AtomicUsize::new(0);

/// What was known of a number at some time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sight(u32);

impl Sight {
    /// Whether the number is the kernel's.
    #[inline]
    pub fn is_foreign(self) -> bool {
        self.0 & STATE == FOREIGN
    }
}

/// What is known of a number now.
#[inline]
pub fn sight(fd: i32) -> Sight {
    match word(fd) {
        Some(word) if state::active() => Sight(word.load(Ordering::Acquire)),
        _ => Sight(FOREIGN),
    }
}

/// What is known of a number, if that is that it is the kernel's; `None` also where nothing is known, as
/// without a deployment.
#[inline(always)]
pub fn known_foreign(fd: i32) -> Option<Sight> {
    let sight = Sight(word(fd)?.load(Ordering::Acquire));
    sight.is_foreign().then_some(sight)
}

/// Whether a number is known to be foreign: the fast way out of every face that takes a descriptor.
#[inline]
pub fn is_foreign(fd: i32) -> bool {
    sight(fd).is_foreign()
}

/// The open file of ours that a number stands for; `None`: it is not ours. Fails when it is ours, but cannot
/// be used.
#[inline]
pub fn get(fd: i32) -> Result<Option<File>, Errno> {
    if is_foreign(fd) { Ok(None) } else { find(fd) }
}

#[inline(never)]
fn find(fd: i32) -> Result<Option<File>, Errno> {
    let Some(word) = word(fd) else { return Ok(None) };
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen & DOUBTED != 0 && is_another_here(word, seen) {
            return asked(fd);
        }
        match meaning(seen) {
            UNKNOWN | NEW | USED => return resolve(fd, word, seen),
            FOREIGN => return Ok(None),
            CHANGING => return asked(fd),
            entry => {
                let held = steps::hold(word, seen, || File::again(entry - FIRST_ENTRY));
                if held.is_some() {
                    return Ok(held);
                }
            }
        }
    }
}

/// Whether this is a `vfork` child, for which a doubted number is what the kernel says.
#[cold]
fn is_another_here(word: &AtomicU32, seen: u32) -> bool {
    if state::borrowed() {
        return true;
    }
    if DOUBTER.load(Ordering::Relaxed) == process::thread_mark() {
        // This very thread goes on, so its child is gone.
        steps::trust(word, seen);
    }
    false
}

/// In a `vfork` child: a number means something else from now on, or nothing; only here.
pub fn doubt(fd: i32) {
    let Some(word) = word(fd) else { return };
    if steps::doubt(word) {
        DOUBTER.store(process::thread_mark(), Ordering::Relaxed);
    }
}

/// What the kernel says of a number; the caller must not store it in the table.
fn asked(fd: i32) -> Result<Option<File>, Errno> {
    Ok(match look(fd)? {
        Look::Ours(file) => Some(file),
        _ => None,
    })
}

/// What the kernel knows of a number.
enum Look {
    Closed,
    Foreign,
    Ours(File),
}

/// Asks the kernel.
#[cold]
fn look(fd: i32) -> Result<Look, Errno> {
    // SAFETY: only asked about; a number that is not open gives an error.
    let borrowed_fd = unsafe { BorrowedFd::borrow_raw(fd) };
    match rustix::fs::tell(borrowed_fd) {
        Err(rustix::io::Errno::BADF) => return Ok(Look::Closed),
        Ok(offset) if bivouac_node::anchor::is_marked(offset) => {}
        _ => return Ok(Look::Foreign),
    }
    // A file that happens to have such an offset is no placeholder; this must be known even if no daemon
    // answers.
    let kind = rustix::fs::fstat(borrowed_fd).map_or(0, |stat| stat.st_mode & libc::S_IFMT);
    if kind != libc::S_IFDIR {
        return Ok(Look::Foreign);
    }
    let Some(id) = state::client()?.table().identify(borrowed_fd) else {
        return Ok(Look::Foreign);
    };
    let handle = state::apart(|| state::client()?.adopt(id))?;
    Ok(Look::Ours(File::new(handle).ok_or(Errno::MFILE)?))
}

/// Finds out what an unknown number is, and stores it in the table.
#[cold]
fn resolve(fd: i32, word: &AtomicU32, seen: u32) -> Result<Option<File>, Errno> {
    let found = look(fd)?;
    let learn = |state: u32| {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
        learn(word, seen, state)
    };
    match found {
        Look::Closed => Ok(None),
        Look::Foreign => {
            if !state::borrowed() {
                learn(FOREIGN);
            }
            Ok(None)
        }
        Look::Ours(file) => {
            if !state::borrowed() {
                let shared = file.clone();
                if learn(FIRST_ENTRY + shared.index) {
                    std::mem::forget(shared);
                }
            }
            Ok(Some(file))
        }
    }
}

/// Runs a call on a descriptor: `kernel` where it is not ours. (Nothing that would have to be dropped is
/// alive while `kernel` runs: a thread may be cancelled there.)
#[inline(always)]
pub fn on<T>(
    fd: i32,
    kernel: impl Fn() -> Result<T, Errno>,
    ours: impl Fn(&File) -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        let mut seen = sight(fd);
        if !seen.is_foreign() {
            if let Some(done) = on_ours(fd, &ours) {
                return done;
            }
            seen = sight(fd);
        }
        match kernel() {
            Err(errno) if refused(fd, seen, errno) => {}
            done => return done,
        }
    }
}

/// The call, if the number is ours. (Not inlined, so that calls that are not take no stack for it.)
#[inline(never)]
fn on_ours<T>(fd: i32, ours: &impl Fn(&File) -> Result<T, Errno>) -> Option<Result<T, Errno>> {
    match find(fd) {
        Ok(Some(file)) => Some(ours(&file)),
        Ok(None) => None,
        Err(errno) => Some(Err(errno)),
    }
}

/// Errors that calls meet on a placeholder, which is a directory opened for reading.
fn shows_placeholder(errno: Errno) -> bool {
    matches!(errno, Errno::BADF | Errno::ISDIR | Errno::INVAL | Errno::NODEV)
        || [libc::ENOTTY, libc::ESPIPE, libc::ENOTSOCK].contains(&i32::from(errno.0))
}

/// To be called when a call has failed on a number that was taken for the kernel's. Returns whether that was
/// wrong, or may have been. Returns true repeatedly only while the number is changed repeatedly.
#[cold]
#[inline(never)]
pub fn refused(fd: i32, seen: Sight, errno: Errno) -> bool {
    shows_placeholder(errno) && mistaken(fd, seen)
}

fn mistaken(fd: i32, seen: Sight) -> bool {
    let Some(word) = word(fd).filter(|_| state::active()) else {
        return false;
    };
    if sight(fd) != seen {
        return true;
    }
    if state::borrowed() {
        return false;
    }
    if !matches!(look(fd), Ok(Look::Ours(_)) | Err(_)) {
        // Or it was ours just now, and was changed again before we looked.
        return sight(fd) != seen;
    }
    if seen.is_foreign() {
        // It became ours without this library noticing.
        learn(word, seen.0, UNKNOWN);
    }
    true
}

/// Whether a descriptor is an open file of the mount.
pub fn is_ours(fd: i32) -> bool {
    !matches!(get(fd), Ok(None))
}

/// What a number is to stand for.
pub enum Standing {
    /// Unknown: closed, or obtained in a way that does not tell.
    Unknown,
    /// The kernel's.
    Foreign,
    /// Ours.
    Ours(File),
}

impl Standing {
    /// As a state of the number, which from here on is a user of the file itself.
    fn into_state(self) -> u32 {
        match self {
            Standing::Unknown => UNKNOWN,
            Standing::Foreign => FOREIGN,
            Standing::Ours(file) => FIRST_ENTRY + std::mem::ManuallyDrop::new(file).index,
        }
    }

    /// What a word said whose number is no user any more.
    fn from_word(word: u32) -> Standing {
        match meaning(word) {
            UNKNOWN | CHANGING | NEW | USED => Standing::Unknown,
            FOREIGN => Standing::Foreign,
            entry => Standing::Ours(File { index: entry - FIRST_ENTRY }),
        }
    }
}

/// Sets what a number stands for that the kernel has just given out. Not in a `vfork` child.
pub fn set(fd: i32, standing: Standing) {
    let Some(word) = word(fd) else { return };
    let state = standing.into_state();
    if state != UNKNOWN {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    let old = replace(word, state);
    drop(Standing::from_word(old));
    if fd <= 2 && old & STATE != state {
        crate::faces::stdio::std_descriptor_changed(fd);
    }
}

/// A number that is being closed or replaced.
#[derive(Clone, Copy)]
pub struct Change {
    fd: i32,
    mark: u32,
    was_ours: bool,
}

/// A number is about to be closed or replaced: what it stands for until then. Not in a `vfork` child.
pub fn begin(fd: i32) -> (Change, Standing) {
    let Some(word) = word(fd) else { return (Change { fd, mark: 0, was_ours: false }, Standing::Foreign) };
    let (old, mark) = steps::begin(word);
    let was_ours = meaning(old) >= FIRST_ENTRY;
    (Change { fd, mark, was_ours }, Standing::from_word(old))
}

/// To be called after the kernel's call. If another change came in between, it is not known in which order
/// the kernel made the two; then the number becomes unknown, and the kernel is asked when it is used next.
pub fn end(change: Change, standing: Standing) {
    let Some(word) = word(change.fd) else { return };
    let state = standing.into_state();
    if state != UNKNOWN {
        HIGHEST.fetch_max(change.fd, Ordering::Relaxed);
    }
    if let Some(old) = steps::end(word, change.mark, state) {
        drop(Standing::from_word(state));
        drop(Standing::from_word(old));
    }
    if change.fd <= 2 && (change.was_ours || state >= FIRST_ENTRY) {
        crate::faces::stdio::std_descriptor_changed(change.fd);
    }
}

/// What a duplicate of `fd` stands for, which the kernel has just made: `held` is what [`get`] gave before,
/// and `seen` what was known after that.
pub fn duplicated(fd: i32, seen: Sight, held: Option<File>) -> Standing {
    let state = steps::duplicated(seen.0, sight(fd).0, held.as_ref().map(|file| file.index));
    match (state, held) {
        (UNKNOWN, _) => Standing::Unknown,
        (FOREIGN, _) => Standing::Foreign,
        (_, held) => held.map_or(Standing::Unknown, Standing::Ours),
    }
}

/// An open file that has no number yet.
pub fn opened(handle: Arc<Handle>) -> Result<File, Errno> {
    let id = handle.id();
    File::new(handle).ok_or_else(|| {
        let _ = state::client().map(|client| client.closed(id));
        Errno::MFILE
    })
}

/// The highest number of which anything is known.
pub fn highest() -> i32 {
    HIGHEST.load(Ordering::Relaxed)
}

/// Whether anything is known of a number.
pub fn is_known(fd: i32) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Relaxed) & STATE != UNKNOWN)
}

/// To be called when the process ends: releases locks now rather than when the agent notices. (The kernel
/// also releases its locks before anybody who waits for the process goes on.) Other descriptors need not be
/// closed now. `flush` runs before any lock is released, because what a stream still holds has to be written
/// while the locks are held.
pub fn leave(flush: impl Fn()) {
    if !state::has_client() || state::borrowed() {
        return;
    }
    let Ok(client) = state::client() else { return };
    let mut flushed = false;
    for fd in 0..=highest() {
        if word(fd).is_none_or(|word| meaning(word.load(Ordering::Relaxed)) < FIRST_ENTRY) {
            continue;
        }
        let Ok(Some(file)) = get(fd) else { continue };
        if !flushed {
            flush();
            flushed = true;
        }
        // The others are gone through in any case.
        let _ = boundary::attempt(|| client.release_process_locks(file.ino()));
        let locked =
            client.table().slot(file.id()).is_some_and(|slot| slot.locks.load(Ordering::Acquire) != 0);
        if locked {
            drop(file);
            let (change, before) = begin(fd);
            let _ = sys!(SYS_close, fd);
            drop(before);
            end(change, Standing::Unknown);
        }
    }
}
