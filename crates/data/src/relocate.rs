//! Keeping the processes of the node out of a sub-file, and making it another local file.
//!
//! Processes of the node write to sub-files by descriptors that were passed to them, and look at the server's
//! fence page before and after ([`bivouac_node::fences`]). The server raises a fence and waits for those who
//! are inside. One who does not come out, because he is stopped for example, must not hold the server up; nor
//! may he write to the sub-file later, when the server counts on nobody doing so. So the sub-file is copied
//! (without its blocks, where the file system can share them) and the copy renamed over it. The late writer
//! has a descriptor of the old local file, which goes when he closes it.
//!
//! Writes through this server do not mark anything. They look at a count of relocations before and after,
//! which is odd while one is under way ([`DataStore::change`]); what was written meanwhile is written again,
//! to the new file. Truncating, undoing and passing exclude relocations by the lock of truncations. Reads need
//! nothing: what one reads from the old file was in it when the read began.
//!
//! What the kernel itself holds of a sub-file (mappings, backing files of a mount) stays with the old local
//! file, so a file that is held in such a way must not be relocated. This module does not know which are.

use crate::error::DataError;
use crate::file::SubFile;
use crate::place::{self, SubPath};
use crate::store::DataStore;
use bivouac_layout::Ino;
use bivouac_node::fences::{Against, Fence};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The copy, until it has the sub-file's name.
pub(crate) const COPY: &str = "bivouac-moving";
/// Bytes that are copied at once where the kernel does not copy by itself.
const PIECE: usize = 1 << 20;

/// Relocations of a store: one at a time.
#[derive(Default)]
pub(crate) struct Relocations {
    /// Odd while one is under way.
    count: AtomicU64,
    under_way: Mutex<()>,
}

/// Makes the count even again.
struct UnderWay<'r>(&'r Relocations);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
    }
}

impl DataStore {
    /// Raises a fence against direct reads of a file, and direct writes, and waits until nobody writes any
    /// more. Where somebody does not come out within `limit`, the sub-file becomes another local file; this
    /// takes as long as copying it does, and fails where there is no room for that. `None`: nobody has a
    /// descriptor, because this server has no fence page.
    pub fn keep_out(&self, ino: Ino, limit: Duration) -> Result<Option<Fence<'_>>, DataError> {
        let Some(fences) = self.fences() else { return Ok(None) };
        let fence = fences.raise(ino, Against::All);
        if let Err(inside) = fence.wait(limit) {
            tracing::warn!(%ino, threads = ?inside.threads, "a write does not end: its sub-file is copied");
            self.relocate(ino, &fence)?;
        }
        Ok(Some(fence))
    }

    /// Runs a change of a sub-file, again if the sub-file became another local file meanwhile. So running it
    /// twice must do the same as once.
    pub(crate) fn change<T>(&self, mut change: impl FnMut() -> Result<T, DataError>) -> Result<T, DataError> {
        let Relocations { count, under_way } = self.relocations();
        loop {
            let before = count.load(Ordering::SeqCst);
            if before % 2 == 1 {
                drop(under_way.lock().unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            let done = change();
            if count.load(Ordering::SeqCst) == before {
                return done;
            }
        }
    }

    /// Makes a sub-file another local file, behind a fence.
    fn relocate(&self, ino: Ino, fence: &Fence<'_>) -> Result<(), DataError> {
        let relocations = self.relocations();
        let _truncations = self.lock_truncations(ino);
        let _one = relocations.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        relocations.count.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(relocations);
        // This also makes all processors see the count.
        fence.retire();
        let Some(old) = self.existing(ino)? else {
            fence.forget_late();
            return Ok(());
        };
        let mixed = place::mix(ino);
        let disk = self.disk(mixed)?;
        let _ = fs::unlinkat(&disk.root, COPY, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let new = fs::openat(&disk.root, COPY, flags, Mode::RUSR | Mode::WUSR)?;
        let path = SubPath::new(ino, mixed);
        let replace = || fs::renameat(&disk.root, COPY, &disk.sub, path.as_c_str());
        let replaced =
            copy(&old, &new).map_err(DataError::from).and_then(|()| disk.inventory.look_again(ino, replace));
        if !matches!(replaced, Ok(Some(()))) {
            let _ = fs::unlinkat(&disk.root, COPY, AtFlags::empty());
        }
        replaced?;
        self.forget(mixed);
        fence.forget_late();
        // If the old one was on stable storage, the new one has to be.
        if let Some(new) = self.existing(ino)? {
            self.sync_file(ino, &new)?;
        }
        Ok(())
    }
}

/// Copies content, length and time of the last write. Holes stay holes.
fn copy(old: &SubFile, new: &OwnedFd) -> Result<(), Errno> {
    let stat = fs::fstat(old)?;
    let length = u64::try_from(stat.st_size).unwrap_or(0);
    if fs::ioctl_ficlone(new, old).is_err() {
        fs::ftruncate(new, length)?;
        let mut at = 0;
        while let Some(start) = next(old, SeekFrom::Data(at))? {
            let end = next(old, SeekFrom::Hole(start))?.unwrap_or(length);
            copy_range(old, new, start, end)?;
            at = end;
        }
    }
    let written = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() as _ };
    fs::futimens(new, &Timestamps { last_access: written, last_modification: written })?;
    fs::fsync(new)
}

fn next(file: impl AsFd, to: SeekFrom) -> Result<Option<u64>, Errno> {
    match fs::seek(file, to) {
        Ok(position) => Ok(Some(position)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn copy_range(old: &SubFile, new: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut from, mut to) = (start, start);
    let mut buffer = Vec::new();
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        let copied = match fs::copy_file_range(old, Some(&mut from), new, Some(&mut to), left) {
            Err(Errno::INTR) => continue,
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::IO) => {
                buffer.resize(PIECE, 0);
                let count = rustix::io::pread(old, &mut buffer[..left.min(PIECE)], from)?;
                let mut done = 0;
                while done < count {
                    match rustix::io::pwrite(new, &buffer[done..count], to + done as u64)? {
                        0 => return Err(Errno::NOSPC),
                        n => done += n,
                    }
                }
                (from, to) = (from + count as u64, to + count as u64);
                count
            }
            copied => copied?,
        };
        if copied == 0 {
            // The old file has become shorter: only its length counts.
            break;
        }
    }
    Ok(())
}
