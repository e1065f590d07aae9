//! Mapping files into memory.
//!
//! The kernel can map only its own files. A range that lies in one block on this node is mapped from the
//! sub-file itself: such a mapping is the file, writable and shared too, also when the file grows into it.
//! Any other range is *filled in*: anonymous memory with the file's bytes as they are now, which is what a
//! private mapping promises, and what a shared read-only one is used for (later writes do not show in it). A
//! shared mapping that cannot be the file is refused with ENODEV, never faked, if it is writable, or reaches
//! so far behind the end of the file that it must be meant to show how that grows.

use super::{fds, state};
use crate::hidden;
use bivouac_client::Handle;
use bivouac_node::Fd;
use bivouac_proto::Errno;
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use std::ffi::CStr;
use std::io::IoSliceMut;
use std::ops::Range;

const PAGE: usize = 4096;
/// Bytes asked for at once when filling in.
const PIECE: usize = 8 << 20;

/// Below 2 GiB; only x86_64 has it.
const MAP_32BIT: i32 = if cfg!(target_arch = "x86_64") { 0x40 } else { 0 };

/// Flags that a mapping which is filled in has, too.
const KEPT: i32 =
    libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE | MAP_32BIT | libc::MAP_LOCKED;

/// What `mmap(2)` is given.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Where, or 0.
    pub address: usize,
    /// Bytes.
    pub len: usize,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
}

impl Wanted {
    fn map(&self, flags: i32, protection: i32, fd: i32, offset: i64) -> Result<usize, Errno> {
        sys!(SYS_mmap, self.address, self.len, protection, flags, fd, offset)
    }
}

/// `mmap(2)`.
#[inline]
pub fn mmap(wanted: Wanted, fd: i32, offset: i64) -> Result<usize, Errno> {
    if wanted.flags & libc::MAP_ANONYMOUS == 0
        && fd >= 0
        && let Some(file) = fds::get(fd)?
    {
        return map_ours(wanted, &file, offset);
    }
    if wanted.flags & libc::MAP_ANONYMOUS == 0 {
        super::beside::before_mapping(fd);
    }
    wanted.map(wanted.flags, wanted.protection, fd, offset)
}

fn map_ours(wanted: Wanted, file: &fds::File, offset: i64) -> Result<usize, Errno> {
    let shared = match wanted.flags & libc::MAP_TYPE {
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => true,
        libc::MAP_PRIVATE => false,
        _ => return Err(Errno::INVAL),
    };
    let start =
        u64::try_from(offset).ok().filter(|start| start.is_multiple_of(PAGE as u64)).ok_or(Errno::INVAL)?;
    if wanted.len == 0 {
        return Err(Errno::INVAL);
    }
    if file.is_path_only() {
        return Err(Errno::BADF);
    }
    let access = file.flags() & libc::O_ACCMODE;
    let writable = shared && wanted.protection & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || writable && access != libc::O_RDWR {
        return Err(Errno::ACCESS);
    }
    if file.is_directory() {
        return Err(Errno::NODEV);
    }
    let size = state::apart(|| file.attr())?.size;
    let end = start.checked_add(wanted.len as u64).ok_or(Errno::OVERFLOW)?;
    if size > start {
        if writable {
            // A file with inline data has no sub-file that could be mapped.
            state::apart(|| file.leave_inline())?;
        }
        let create = access == libc::O_RDWR && shared;
        if let Some(address) = map_block(wanted, file, start..end, size, create)? {
            return Ok(address);
        }
    }
    let waits_for_more = end > size.next_multiple_of(PAGE as u64);
    if writable || shared && waits_for_more {
        return Err(Errno::NODEV);
    }
    let end = end.min(size);
    let copy = if shared { read_only(wanted, file, start, end)? } else { None };
    copy.map_or_else(|| fill_in(wanted, file, start, end), Ok)
}

/// Maps the local sub-file, if all of the range lies in one of the file's blocks here; also what the file
/// (`size` bytes) does not have yet.
fn map_block(
    wanted: Wanted,
    file: &Handle,
    range: Range<u64>,
    size: u64,
    create: bool,
) -> Result<Option<usize>, Errno> {
    let Range { start, end } = range;
    let descriptor = state::apart(|| Ok::<_, Errno>(file.local_descriptor(start, end - start, create)))?;
    let Some((descriptor, kept)) = descriptor else {
        return Ok(None);
    };
    // Where the sub-file is shorter (a hole at the end of the file), touching the mapping would be a SIGBUS.
    let length = rustix::fs::fstat(&descriptor).map_or(0, |stat| stat.st_size);
    if u64::try_from(length).unwrap_or(0) < end.min(size) {
        return Ok(None);
    }
    let fd = descriptor.as_raw_fd();
    let offset = i64::try_from(start).map_err(|_| Errno::OVERFLOW)?;
    let address = wanted.map(wanted.flags, wanted.protection, fd, offset)?;
    // Nobody says when a mapping ends: the blocks stay there as long as the process does.
    std::mem::forget(kept);
    Ok(Some(address))
}

/// A mapping that is filled in, and that the program cannot make writable, because what it wrote would be
/// lost. `None`: such memory is not available here.
fn read_only(wanted: Wanted, file: &Handle, start: u64, end: u64) -> Result<Option<usize>, Errno> {
    // For the kernel it is a file mapping.
    if hidden::file_size_limit() < wanted.len as u64 {
        return Ok(None);
    }
    let memory = rustix::fs::memfd_create(c"bivouac", MemfdFlags::CLOEXEC).map(Fd::from);
    let Ok(memory) = memory.and_then(|fd| rustix::fs::ftruncate(&fd, wanted.len as u64).map(|()| fd)) else {
        return Ok(None);
    };
    // What the mapping keeps is a description that only reads.
    let path = format!("/proc/self/fd/{}\0", memory.as_raw_fd());
    let path = CStr::from_bytes_with_nul(path.as_bytes()).unwrap_or_default();
    let Ok(reader) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(Fd::from)
    else {
        return Ok(None);
    };
    let writable = Wanted { address: 0, protection: libc::PROT_READ | libc::PROT_WRITE, ..wanted };
    let Ok(address) = writable.map(libc::MAP_SHARED, writable.protection, memory.as_raw_fd(), 0) else {
        return Ok(None);
    };
    let filled = fill(address, file, start, end);
    let _ = sys!(SYS_munmap, address, wanted.len);
    filled?;
    wanted.map(wanted.flags & KEPT | libc::MAP_SHARED, wanted.protection, reader.as_raw_fd(), 0).map(Some)
}

fn fill_in(wanted: Wanted, file: &Handle, start: u64, end: u64) -> Result<usize, Errno> {
    let flags = wanted.flags & KEPT | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let address = wanted.map(flags, writable, -1, 0)?;
    let filled = fill(address, file, start, end);
    if let Err(errno) = filled {
        let _ = sys!(SYS_munmap, address, wanted.len);
        return Err(errno);
    }
    if wanted.protection != writable {
        sys!(SYS_mprotect, address, wanted.len, wanted.protection)?;
    }
    Ok(address)
}

fn fill(address: usize, file: &Handle, start: u64, end: u64) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(PIECE);
        let to = address + (at - start) as usize;
        // SAFETY: freshly mapped, writable memory of ours: the range from `start` to `end` fits into it.
        let into = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
        match state::apart(|| file.pread(at, &mut [IoSliceMut::new(into)]))? {
            // The file was truncated meanwhile: the rest stays zero.
            0 => return Ok(()),
            read => at += read as u64,
        }
    }
    Ok(())
}
