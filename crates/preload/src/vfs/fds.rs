//! What each descriptor number is: not yet known, foreign, or ours; and the handles behind ours.
//!
//! One word for each number, in memory that the kernel provides only where it is touched. Looking up a foreign descriptor
//! is one load. One of ours has an *entry*, which counts its users: each number that stands for it (after `dup`
//! several share it) and each call under way. Entries lie in memory that is never given back, so that a call which
//! has just read a number's word can safely try to count itself in, and then looks whether the word still holds.
//! When the last user goes, the client is told: it asks the kernel whether another process holds the description.
//!
//! A number that is not known (inherited, received through a socket) is looked at once: its kernel offset tells.

use super::state;
use bivouac_client::Handle;
use bivouac_proto::Errno;
use rustix::fd::BorrowedFd;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// Numbers from here on are foreign always.
const NUMBERS: usize = 1 << 20;
const UNKNOWN: u32 = 0;
const FOREIGN: u32 = 1;
/// Words from here on are entries.
const FIRST_ENTRY: u32 = 2;

static WORDS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(UNKNOWN) }; NUMBERS];
/// No number above this one was ever anything but unknown.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

const CHUNK: usize = 1024;
static CHUNKS: [AtomicPtr<[Entry; CHUNK]>; 64] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 64];
static HINT: AtomicU32 = AtomicU32::new(0);

/// Being made or being taken apart.
const BUSY: u32 = 1 << 31;

struct Entry {
    /// 0: free. Up to [`BUSY`]: users.
    users: AtomicU32,
    /// Set while there are users.
    handle: UnsafeCell<Option<Arc<Handle>>>,
}

// SAFETY: `handle` is written only by who holds BUSY, and read only by users.
unsafe impl Sync for Entry {}

impl Entry {
    fn enter(&self) -> bool {
        let enter = |users: u32| (users > 0 && users < BUSY - 1).then_some(users + 1);
        self.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }
}

/// A use of an open file of ours. While it lives, the handle does.
pub struct File {
    index: u32,
}

impl std::ops::Deref for File {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        // SAFETY: a counted user; the handle is set while there are any.
        let handle = entry(self.index).and_then(|entry| unsafe { &*entry.handle.get() }.as_deref());
        match handle {
            Some(handle) => handle,
            None => unreachable!("an entry with users has a handle"),
        }
    }
}

impl File {
    /// Whether paths may start from it: a directory, or what was opened with O_PATH (then its server will say).
    pub fn starts_paths(&self) -> bool {
        self.is_directory() || self.is_path_only()
    }

    /// Whether it was opened with O_PATH: it names something, and can do little else.
    pub fn is_path_only(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    fn new(handle: Arc<Handle>) -> Option<File> {
        let start = HINT.load(Ordering::Relaxed);
        let all = (CHUNKS.len() * CHUNK) as u32;
        for step in 0..all {
            let index = (start + step) % all;
            let entry = make_entry(index)?;
            if entry.users.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                // SAFETY: BUSY is ours.
                unsafe { *entry.handle.get() = Some(handle) };
                entry.users.store(1, Ordering::Release);
                HINT.store(index + 1, Ordering::Relaxed);
                return Some(File { index });
            }
        }
        None
    }

    fn again(index: u32) -> Option<File> {
        entry(index)?.enter().then_some(File { index })
    }
}

impl Clone for File {
    fn clone(&self) -> File {
        if let Some(entry) = entry(self.index) {
            entry.users.fetch_add(1, Ordering::Relaxed);
        }
        File { index: self.index }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(entry) = entry(self.index) else { return };
        let leave = |users: u32| Some(if users == 1 { BUSY } else { users - 1 });
        if entry.users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, leave) != Ok(1) {
            return;
        }
        // SAFETY: the last user: BUSY is ours.
        let handle = unsafe { (*entry.handle.get()).take() };
        entry.users.store(0, Ordering::Release);
        HINT.fetch_min(self.index, Ordering::Relaxed);
        if let Some(handle) = handle {
            let id = handle.id();
            drop(handle);
            let _ = state::guarded(|| state::client().map(|client| client.closed(id)));
        }
    }
}

fn entry(index: u32) -> Option<&'static Entry> {
    let chunk = CHUNKS.get(index as usize / CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: chunks are never given back.
    unsafe { &*chunk }.get(index as usize % CHUNK)
}

fn make_entry(index: u32) -> Option<&'static Entry> {
    let chunk = CHUNKS.get(index as usize / CHUNK)?;
    if chunk.load(Ordering::Acquire).is_null() {
        let fresh = Box::into_raw(Box::new(
            [const { Entry { users: AtomicU32::new(0), handle: UnsafeCell::new(None) } }; CHUNK],
        ));
        if chunk.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: not published.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    entry(index)
}

fn word(fd: i32) -> Option<&'static AtomicU32> {
    usize::try_from(fd).ok().and_then(|fd| WORDS.get(fd))
}

/// Whether a number is known to be foreign: the fast way out of every face that takes a descriptor.
#[inline]
pub fn is_foreign(fd: i32) -> bool {
    !state::active() || word(fd).is_none_or(|word| word.load(Ordering::Relaxed) == FOREIGN)
}

/// The open file of ours that a number stands for; `None`: it is not ours. Fails when it is ours, but cannot be used.
#[inline]
pub fn get(fd: i32) -> Result<Option<File>, Errno> {
    if is_foreign(fd) { Ok(None) } else { find(fd) }
}

fn find(fd: i32) -> Result<Option<File>, Errno> {
    let Some(word) = word(fd) else { return Ok(None) };
    loop {
        match word.load(Ordering::Acquire) {
            UNKNOWN => return resolve(fd, word),
            FOREIGN => return Ok(None),
            seen => {
                let Some(file) = File::again(seen - FIRST_ENTRY) else {
                    continue;
                };
                // Otherwise it was closed in between, and this may be another file.
                if word.load(Ordering::Acquire) == seen {
                    return Ok(Some(file));
                }
            }
        }
    }
}

/// Looks at the kernel's descriptor.
#[cold]
fn resolve(fd: i32, word: &AtomicU32) -> Result<Option<File>, Errno> {
    // SAFETY: only asked about; a number that is not open gives an error.
    let borrowed_fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let marked = match rustix::fs::tell(borrowed_fd) {
        Err(rustix::io::Errno::BADF) => return Ok(None),
        Ok(offset) => bivouac_node::anchor::is_marked(offset),
        Err(_) => false,
    };
    let id = if marked { state::client()?.table().identify(borrowed_fd) } else { None };
    let Some(id) = id else {
        if !state::borrowed() {
            let _ = word.compare_exchange(UNKNOWN, FOREIGN, Ordering::AcqRel, Ordering::Relaxed);
            HIGHEST.fetch_max(fd, Ordering::Relaxed);
        }
        return Ok(None);
    };
    let handle = state::guarded(|| state::client()?.adopt(id))?;
    let file = File::new(handle).ok_or(Errno::MFILE)?;
    if !state::borrowed() {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
        let shared = file.clone();
        let ours = FIRST_ENTRY + shared.index;
        if word.compare_exchange(UNKNOWN, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            std::mem::forget(shared);
        }
    }
    Ok(Some(file))
}

/// Whether a descriptor is an open file of the mount.
pub fn is_ours(fd: i32) -> bool {
    !matches!(get(fd), Ok(None))
}

/// What a number is to stand for.
pub enum Standing {
    /// Nothing known: closed, or got in a way that says nothing.
    Unknown,
    /// The kernel's.
    Foreign,
    /// Ours.
    Ours(File),
}

/// Sets what a number stands for, and lets go of what it stood for before. Not in a `vfork` child.
pub fn set(fd: i32, standing: Standing) {
    let Some(word) = word(fd) else { return };
    let value = match &standing {
        Standing::Unknown => UNKNOWN,
        Standing::Foreign => FOREIGN,
        Standing::Ours(file) => FIRST_ENTRY + file.index,
    };
    // From here on the number itself is the user.
    std::mem::forget(standing);
    if value != UNKNOWN {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    let old = word.swap(value, Ordering::AcqRel);
    if old >= FIRST_ENTRY {
        drop(File { index: old - FIRST_ENTRY });
    }
    if fd <= 2 && old != value {
        crate::faces::stdio::std_descriptor_changed(fd);
    }
}

/// Takes a number's file out before the kernel closes it: dropped afterwards, it lets go.
pub fn take(fd: i32) -> Option<File> {
    let old = word(fd)?.swap(UNKNOWN, Ordering::AcqRel);
    (old >= FIRST_ENTRY).then(|| File { index: old - FIRST_ENTRY })
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
    word(fd).is_some_and(|word| word.load(Ordering::Relaxed) != UNKNOWN)
}

/// The process ends: locks are given up now, not when the agent has noticed. (The kernel too is done with them before
/// anybody who waits for the process goes on.) Other descriptors need no hurry. `flush` runs before anything is given up, as
/// what a stream still holds is to be written under the lock.
pub fn leave(flush: impl Fn()) {
    if !state::has_client() || state::borrowed() {
        return;
    }
    let Ok(client) = state::client() else { return };
    let mut flushed = false;
    for fd in 0..=highest() {
        if word(fd).is_none_or(|word| word.load(Ordering::Relaxed) < FIRST_ENTRY) {
            continue;
        }
        let Ok(Some(file)) = get(fd) else { continue };
        if !flushed {
            flush();
            flushed = true;
        }
        let _ = state::guarded(|| {
            client.release_process_locks(file.ino());
            Ok::<(), Errno>(())
        });
        let locked =
            client.table().slot(file.id()).is_some_and(|slot| slot.locks.load(Ordering::Acquire) != 0);
        if locked {
            drop(file);
            let file = take(fd);
            let _ = sys!(SYS_close, fd);
            drop(file);
        }
    }
}
