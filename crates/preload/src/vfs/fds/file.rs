//! The open files of ours, and who uses them.
//!
//! Each has an *entry*, which counts its users: each number that stands for it (after `dup` several share it)
//! and each call under way. Entries lie in memory that is never given back, so that a call which has just
//! read a number's word can safely try to count itself in. When the last user goes, the client is told: it
//! asks the kernel whether another process holds the description.

use super::steps;
use crate::boundary;
use crate::vfs::state;
use bivouac_client::Handle;
use bivouac_proto::Errno;
use bivouac_proto::attr::FileKind;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const CHUNK: usize = 1024;
/// Most entries.
pub(super) const ENTRIES: usize = 64 * CHUNK;
static CHUNKS: [AtomicPtr<[Entry; CHUNK]>; ENTRIES / CHUNK] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; 64];
static HINT: AtomicU32 = AtomicU32::new(0);

struct Entry {
    /// 0: free. The module [`steps`] changes it.
    users: AtomicU32,
    /// Set while there are users.
    handle: UnsafeCell<Option<Arc<Handle>>>,
}

// SAFETY: `handle` is written only by who fills or empties the entry, and read only by users.
unsafe impl Sync for Entry {}

/// A use of an open file of ours. While it lives, the handle does.
pub struct File {
    pub(super) index: u32,
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
    /// Whether paths may start from it. (Whether a description that another program has opened with O_PATH is
    /// a directory, only its server knows.)
    pub fn starts_paths(&self) -> Result<bool, Errno> {
        if self.is_directory() || !self.is_path_only() {
            return Ok(self.is_directory());
        }
        state::apart(|| Ok(self.attr()?.kind == FileKind::Directory))
    }

    /// An entry for a handle, with one user. `None`: all entries are taken.
    pub(super) fn new(handle: Arc<Handle>) -> Option<File> {
        let mut handle = Some(handle);
        let start = HINT.load(Ordering::Relaxed);
        let all = (CHUNKS.len() * CHUNK) as u32;
        for step in 0..all {
            let index = (start + step) % all;
            let entry = make_entry(index)?;
            // SAFETY: the entry is being filled, by this thread alone.
            if steps::claim(&entry.users, || unsafe { *entry.handle.get() = handle.take() }) {
                HINT.store(index + 1, Ordering::Relaxed);
                return Some(File { index });
            }
        }
        None
    }

    /// One more user of an entry; `None`: it has none any more.
    pub(super) fn again(index: u32) -> Option<File> {
        steps::enter(&entry(index)?.users).then_some(File { index })
    }
}

impl Clone for File {
    fn clone(&self) -> File {
        if let Some(entry) = entry(self.index) {
            steps::share(&entry.users);
        }
        File { index: self.index }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(entry) = entry(self.index) else { return };
        // SAFETY: this was the last user, so the entry is being emptied, by this thread alone.
        let Some(handle) = steps::leave(&entry.users, || unsafe { (*entry.handle.get()).take() }) else {
            return;
        };
        HINT.fetch_min(self.index, Ordering::Relaxed);
        // Beside a mount, the description is the mount's.
        if let Some(handle) = handle.filter(|_| !state::beside()) {
            let id = handle.id();
            drop(handle);
            // Also while a panic is on its way to the boundary: a second one here would end the process.
            let _ = boundary::attempt(|| state::client().map(|client| client.closed(id)));
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
