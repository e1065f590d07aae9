//! Reading into several buffers, and writing from several.

use crate::faces::{blocking, bytes, cancelled, room};
use crate::raw::result;
use crate::vfs::copy::{read_into, write_from};
use crate::vfs::data::position;
use crate::vfs::state::{beside, guarded};
use crate::vfs::{self, Errno};
use bivouac_client::Handle;
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};

const FAULT: Errno = Errno(libc::EFAULT as u16);
/// Most buffers of one call.
const IOV_MAX: c_int = 1024;
/// So many buffers need no allocation.
const FEW: usize = 8;

real! {
    real_readv = readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, else -1;
    real_preadv = preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize, else -1;
    real_preadv2 = preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize, else -1;
    real_writev = writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, else -1;
    real_pwritev = pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize, else -1;
    real_pwritev2 = pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize, else -1;
}

/// Checks a vector as the kernel does: its count, and that its lengths have a sum.
///
/// # Safety
/// `vector` points to `count` elements.
unsafe fn vector<'a>(vector: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec], Errno> {
    if !(0..=IOV_MAX).contains(&count) {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if vector.is_null() {
        return Err(FAULT);
    }
    // SAFETY: promised by the caller.
    let vector = unsafe { std::slice::from_raw_parts(vector, count as usize) };
    let mut sum = 0usize;
    for part in vector {
        sum =
            sum.checked_add(part.iov_len).filter(|sum| isize::try_from(*sum).is_ok()).ok_or(Errno::INVAL)?;
        if part.iov_len > 0 && part.iov_base.is_null() {
            return Err(FAULT);
        }
    }
    Ok(vector)
}

/// Runs a read into the parts of a vector.
///
/// # Safety
/// `parts` describe memory that may be written.
unsafe fn into_parts<T>(
    parts: *const libc::iovec,
    count: c_int,
    read: impl FnOnce(&mut [IoSliceMut<'_>]) -> T,
) -> Result<T, Errno> {
    // SAFETY: promised by the caller.
    let parts = unsafe { vector(parts, count) }?;
    // SAFETY: promised by the caller.
    let slice = |part: &libc::iovec| IoSliceMut::new(unsafe { room(part.iov_base, part.iov_len) });
    if parts.len() <= FEW {
        let mut few: [IoSliceMut<'_>; FEW] =
            std::array::from_fn(|i| parts.get(i).map_or(IoSliceMut::new(&mut []), slice));
        return Ok(read(few.get_mut(..parts.len()).unwrap_or_default()));
    }
    Ok(read(&mut parts.iter().map(slice).collect::<Vec<_>>()))
}

/// Reads from one of ours.
///
/// # Safety
/// As for `into_parts`.
unsafe fn read_parts(
    file: &Handle,
    parts: *const libc::iovec,
    count: c_int,
    offset: Option<i64>,
) -> Result<usize, Errno> {
    let offset = offset.map(position).transpose()?;
    // SAFETY: promised by the caller.
    unsafe { into_parts(parts, count, |parts| read_into(file, parts, offset)) }?
}

/// Runs a write from the parts of a vector.
///
/// # Safety
/// `parts` describe memory that may be read.
unsafe fn from_parts<T>(
    parts: *const libc::iovec,
    count: c_int,
    write: impl FnOnce(&[IoSlice<'_>]) -> T,
) -> Result<T, Errno> {
    // SAFETY: promised by the caller.
    let parts = unsafe { vector(parts, count) }?;
    // SAFETY: promised by the caller.
    let slice = |part: &libc::iovec| IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) });
    if parts.len() <= FEW {
        let few: [IoSlice<'_>; FEW] = std::array::from_fn(|i| parts.get(i).map_or(IoSlice::new(&[]), slice));
        return Ok(write(few.get(..parts.len()).unwrap_or_default()));
    }
    Ok(write(&parts.iter().map(slice).collect::<Vec<_>>()))
}

/// Writes to one of ours.
///
/// # Safety
/// As for `from_parts`.
unsafe fn write_parts(
    file: &Handle,
    parts: *const libc::iovec,
    count: c_int,
    offset: Option<i64>,
) -> Result<usize, Errno> {
    let offset = offset.map(position).transpose()?;
    // SAFETY: promised by the caller.
    unsafe { from_parts(parts, count, |parts| write_from(file, parts, offset)) }?
}

/// A vectored read past the mount. `None`: the kernel is to do it (and to refuse what makes no sense).
///
/// # Safety
/// As for `into_parts`.
unsafe fn readv_beside(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: Option<i64>,
) -> Option<isize> {
    if !beside() {
        return None;
    }
    cancelled();
    // SAFETY: promised by the caller.
    unsafe { into_parts(parts, count, |parts| vfs::beside::read(fd, parts, offset)) }.ok()?.map(result)
}

/// A vectored write past the mount, likewise.
///
/// # Safety
/// As for `from_parts`.
unsafe fn writev_beside(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: Option<i64>,
) -> Option<isize> {
    if !beside() {
        return None;
    }
    cancelled();
    // SAFETY: promised by the caller.
    unsafe { from_parts(parts, count, |parts| vfs::beside::write(fd, parts, offset)) }.ok()?.map(result)
}

/// # Safety
/// `parts` describe memory that may be written.
pub unsafe fn readv_at(fd: c_int, parts: *const libc::iovec, count: c_int, offset: Option<i64>) -> isize {
    // SAFETY: promised by the caller.
    if let Some(done) = unsafe { readv_beside(fd, parts, count, offset) } {
        return done;
    }
    // SAFETY: the program's arguments.
    let real = || unsafe {
        match offset {
            None => real_readv(fd, parts, count),
            Some(offset) => real_preadv(fd, parts, count, offset),
        }
    };
    // SAFETY: promised by the caller.
    blocking(fd, real, |file| unsafe { read_parts(file, parts, count, offset) })
}

/// # Safety
/// `parts` describe memory that may be read.
pub unsafe fn writev_at(fd: c_int, parts: *const libc::iovec, count: c_int, offset: Option<i64>) -> isize {
    // SAFETY: promised by the caller.
    if let Some(done) = unsafe { writev_beside(fd, parts, count, offset) } {
        return done;
    }
    // SAFETY: the program's arguments.
    let real = || unsafe {
        match offset {
            None => real_writev(fd, parts, count),
            Some(offset) => real_pwritev(fd, parts, count, offset),
        }
    };
    // SAFETY: promised by the caller.
    blocking(fd, real, |file| unsafe { write_parts(file, parts, count, offset) })
}

const RWF_HIPRI: c_int = 1;
const RWF_DSYNC: c_int = 2;
const RWF_SYNC: c_int = 4;
const RWF_APPEND: c_int = 16;

/// `preadv2` and `pwritev2` for one of ours: offset -1 is the descriptor's own; flags that would change what the call does
/// are refused, as file systems do that lack them.
///
/// # Safety
/// As for `read_parts` or `write_parts`.
unsafe fn parts_with_flags(
    file: &Handle,
    (parts, count): (*const libc::iovec, c_int),
    offset: i64,
    flags: c_int,
    write: bool,
) -> Result<usize, Errno> {
    let known = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | if write { RWF_APPEND } else { 0 };
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let offset = (offset != -1).then_some(offset);
    if !write {
        // SAFETY: promised by the caller.
        return unsafe { read_parts(file, parts, count, offset) };
    }
    let written = if flags & RWF_APPEND != 0 {
        // SAFETY: promised by the caller.
        let parts = unsafe { vector(parts, count) }?.iter();
        // SAFETY: promised by the caller.
        let slices = parts.map(|part| IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) }));
        let slices = slices.collect::<Vec<_>>();
        guarded(|| file.append_once(&slices, offset.is_none()))?
    } else {
        // SAFETY: promised by the caller.
        unsafe { write_parts(file, parts, count, offset) }?
    };
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        guarded(|| file.sync())?;
    }
    Ok(written)
}

/// # Safety
/// As for `readv_at`.
pub unsafe fn readv_with_flags(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    let own = (offset != -1).then_some(offset);
    if flags & !RWF_HIPRI == 0
        // SAFETY: promised by the caller.
        && let Some(done) = unsafe { readv_beside(fd, parts, count, own) }
    {
        return done;
    }
    // SAFETY: the program's arguments.
    let real = || unsafe { real_preadv2(fd, parts, count, offset, flags) };
    // SAFETY: promised by the caller.
    blocking(fd, real, |file| unsafe { parts_with_flags(file, (parts, count), offset, flags, false) })
}

/// # Safety
/// As for `writev_at`.
pub unsafe fn writev_with_flags(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    let own = (offset != -1).then_some(offset);
    if flags & !RWF_HIPRI == 0
        // SAFETY: promised by the caller.
        && let Some(done) = unsafe { writev_beside(fd, parts, count, own) }
    {
        return done;
    }
    if flags & RWF_APPEND != 0 {
        vfs::beside::refresh_size(fd);
    }
    // SAFETY: the program's arguments.
    let real = || unsafe { real_pwritev2(fd, parts, count, offset, flags) };
    // SAFETY: promised by the caller.
    blocking(fd, real, |file| unsafe { parts_with_flags(file, (parts, count), offset, flags, true) })
}
