//! Reading and writing data past a kernel mount (`--access both`).
//!
//! Where the deployment is mounted, programs hold the kernel's own descriptors, and the kernel and the mount
//! handle all calls on paths and descriptors. Only reading and writing takes a shorter way: an open file
//! description of the mount is in a slot of this node's table, so that its file can be read and written
//! through the client core as if this library had opened it ([`bivouac_client::Shared`]). What cannot go that
//! way goes through the kernel.
//!
//! **The offset is the kernel's.** A call without an offset of its own first moves it by what it wants to
//! transfer, which the kernel does in one step among all threads and processes, and so owns the range that it
//! has moved over; what it did not transfer it moves back. So no two calls read or write the same range,
//! whether they go past the mount or through it.
//!
//! **Appending** is ordered by the inode's server. The offset follows.
//!
//! **The kernel's page cache** is used by mappings only, and while there are any, the mount makes all data go
//! through the kernel. **The size that the kernel has for a file** matters for mappings, `copy_file_range`,
//! `RWF_APPEND` and `FIONREAD`: before these the library makes the kernel ask the mount for the size
//! ([`refresh_size`]).
//!
//! Attributes of paths are looked up past the mount, too, if the answer is the same: [`attrs`].
//!
//! If another client has moved a directory, the kernel answers ESTALE for a moment, which this library hides:
//! [`stale`].

pub mod attrs;
mod stale;

pub use stale::persistent;

use super::{fds, state};
use bivouac_client::{DESCRIBE, Handle, MAPS, Shared};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The device number of the mount: major in the upper half.
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// Whether what lies at `mount` has this device number, which then is the mount's.
pub fn is_mounted(mount: &str, device: (u32, u32)) -> bool {
    let Ok(path) = CString::new(mount) else { return false };
    let device = u64::from(device.0) << 32 | u64::from(device.1);
    DEVICE.store(device, Ordering::Relaxed);
    device_of(libc::AT_FDCWD, &path) == Some(device)
}

/// The device number of the mount, as `struct stat` has it.
pub fn device() -> u64 {
    let device = DEVICE.load(Ordering::Relaxed);
    libc::makedev((device >> 32) as u32, device as u32)
}

/// Device and inode number of a file, as the kernel knows them without asking the file system.
fn known_of(fd: i32, path: &std::ffi::CStr) -> Option<(u64, u64)> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    sys!(SYS_statx, fd, path.as_ptr(), flags, 0, &raw mut found).ok()?;
    Some((u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor), found.stx_ino))
}

fn device_of(fd: i32, path: &std::ffi::CStr) -> Option<u64> {
    known_of(fd, path).map(|(device, _)| device)
}

/// The inode that a descriptor (or AT_FDCWD) stands for, if it is in the mount.
fn number_of(fd: i32) -> Option<Ino> {
    let (device, number) = known_of(fd, c"")?;
    (device == DEVICE.load(Ordering::Relaxed)).then_some(Ino(number))
}

/// Whether a descriptor stands for something in the mount that this library is beside of.
pub fn is_in_mount(fd: i32) -> bool {
    state::beside() && fd >= 0 && device_of(fd, c"") == Some(DEVICE.load(Ordering::Relaxed))
}

/// The description behind a descriptor of the mount, to go past the mount. `None`: it has to be used through
/// the mount.
pub fn describe(fd: i32) -> Option<Arc<Handle>> {
    let mut bytes = [0u8; Shared::LEN];
    sys!(SYS_ioctl, fd, DESCRIBE, bytes.as_mut_ptr()).ok()?;
    let flags = sys!(SYS_fcntl, fd, libc::F_GETFL).ok()? as i32;
    let handle = state::apart(|| state::client()?.join(Shared::from_bytes(&bytes))).ok()?;
    // O_APPEND was switched on or off without this library noticing.
    ((flags ^ handle.flags()) & libc::O_APPEND == 0).then_some(handle)
}

/// Whether the kernel is to do a call that failed: the description is gone, or cannot be used in this way.
fn is_for_kernel(errno: Errno) -> bool {
    matches!(errno, Errno::BADF | Errno::STALE | Errno::INVAL | Errno::MFILE | Errno::NFILE)
}

/// The result of a call; `None`: the kernel has to do it.
fn settled(fd: i32, done: Result<usize, Errno>) -> Option<Result<usize, Errno>> {
    match done {
        Err(errno) if is_for_kernel(errno) => {
            fds::beside::forget(fd);
            None
        }
        done => Some(done),
    }
}

/// Moves the kernel's offset. Returns the new one.
fn moved(fd: i32, by: i64) -> Option<u64> {
    sys!(SYS_lseek, fd, by, libc::SEEK_CUR).ok().map(|offset| offset as u64)
}

/// Runs a transfer of `count` bytes at the kernel's offset, which is behind what was transferred then.
fn at_offset(
    fd: i32,
    count: usize,
    transfer: impl FnOnce(u64) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let wanted = i64::try_from(count).ok()?;
    let start = moved(fd, wanted)?.checked_sub(count as u64)?;
    let done = transfer(start);
    let missing = count - done.unwrap_or(0).min(count);
    if missing > 0 {
        moved(fd, -(missing as i64));
    }
    Some(done)
}

/// `read(2)` and its relatives; `offset`: the call's own. `None`: the kernel is to do it.
pub fn read(fd: i32, into: &mut [IoSliceMut<'_>], offset: Option<i64>) -> Option<Result<usize, Errno>> {
    let file = fds::beside::get(fd)?;
    let count = into.iter().map(|buffer| buffer.len()).sum::<usize>();
    if count == 0 || file.is_detoured() {
        return None;
    }
    let done = match offset {
        Some(offset) => {
            let offset = u64::try_from(offset).ok()?;
            state::apart(|| file.pread(offset, into))
        }
        None => at_offset(fd, count, |offset| state::apart(|| file.pread(offset, into)))?,
    };
    settled(fd, done)
}

/// `write(2)` and its relatives, likewise.
pub fn write(fd: i32, from: &[IoSlice<'_>], offset: Option<i64>) -> Option<Result<usize, Errno>> {
    let file = fds::beside::get(fd)?;
    let count = from.iter().map(|buffer| buffer.len()).sum::<usize>();
    let entered = if count == 0 { None } else { file.enter() }?;
    let done = if file.flags() & libc::O_APPEND != 0 {
        let appended = state::apart(|| file.append_for_end(from));
        if let (Ok((end, _)), None) = (appended, offset) {
            let _ = sys!(SYS_lseek, fd, end, libc::SEEK_SET);
        }
        appended.map(|(_, count)| count)
    } else {
        match offset {
            Some(offset) => {
                let offset = u64::try_from(offset).ok()?;
                state::apart(|| file.pwrite(offset, from))
            }
            None => at_offset(fd, count, |offset| state::apart(|| file.pwrite(offset, from)))?,
        }
    };
    drop(entered);
    settled(fd, done)
}

/// Makes the kernel ask the mount for a file's size.
pub fn refresh_size(fd: i32) {
    if is_in_mount(fd) {
        // SAFETY: plain numbers, for which zero is a value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        let _ = sys!(SYS_fstat, fd, &raw mut stat);
    }
}

/// To be called before a descriptor is mapped: from now on data goes through the mount, and the kernel learns
/// the file's size.
pub fn before_mapping(fd: i32) {
    if is_in_mount(fd) {
        let _ = sys!(SYS_ioctl, fd, MAPS, 0);
        refresh_size(fd);
    }
}

/// `F_SETFL`; `kernel` does it. Processes that go past the mount do not see whether a description begins or
/// stops to append. So if that changes, no process goes past the mount with it any more.
pub fn set_flags(fd: i32, flags: i32, kernel: impl Fn() -> Result<i32, Errno>) -> Result<i32, Errno> {
    let changes =
        sys!(SYS_fcntl, fd, libc::F_GETFL).is_ok_and(|old| (old as i32 ^ flags) & libc::O_APPEND != 0);
    if changes
        && is_in_mount(fd)
        && let Some(handle) = describe(fd)
    {
        handle.detour();
    }
    kernel()
}
