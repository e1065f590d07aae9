//! Reading and writing. A foreign descriptor costs one look into a table, then the call is libc's.

use super::{blocking, bytes, cancelled, room};
use crate::raw::{MAX_TRANSFER, errno, result};
use crate::vfs::copy::{read_into, write_from};
use crate::vfs::data::position;
use crate::vfs::fds::{self, Sight};
use crate::vfs::state::beside;
use crate::vfs::state::guarded;
use crate::vfs::{self, Errno};
use bivouac_client::Handle;
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

const FAULT: Errno = Errno(libc::EFAULT as u16);
/// Most buffers of one call.
const IOV_MAX: c_int = 1024;
/// So many buffers need no allocation.
const FEW: usize = 8;

real! {
    real_read = read(fd: c_int, buffer: *mut c_void, count: usize) -> isize, else -1;
    real_pread = pread64(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize, else -1;
    real_readv = readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, else -1;
    real_preadv = preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize, else -1;
    real_preadv2 = preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize, else -1;
    real_write = write(fd: c_int, buffer: *const c_void, count: usize) -> isize, else -1;
    real_pwrite = pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize, else -1;
    real_writev = writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, else -1;
    real_pwritev = pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize, else -1;
    real_pwritev2 = pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize, else -1;
}

real_variable!(READ, "read");
real_variable!(PREAD, "pread64");
real_variable!(WRITE, "write");
real_variable!(PWRITE, "pwrite64");

/// What a transfer needs to be made again. Kept in memory from before the call, not in registers whose contents would have to
/// be saved first: the second time is rare, and the first is to cost next to nothing.
struct Kept {
    fd: c_int,
    seen: Sight,
    buffer: *const c_void,
    count: usize,
    /// `None`: the descriptor's own place.
    offset: Option<i64>,
}

impl Kept {
    #[inline(always)]
    fn keep(
        into: &mut MaybeUninit<Kept>,
        fd: c_int,
        seen: Sight,
        buffer: *const c_void,
        count: usize,
        offset: Option<i64>,
    ) {
        let kept = into.as_mut_ptr();
        // SAFETY: the place is there to be written. Volatile, so that it is not put off to the second time.
        unsafe {
            (&raw mut (*kept).fd).write_volatile(fd);
            (&raw mut (*kept).seen).write_volatile(seen);
            (&raw mut (*kept).buffer).write_volatile(buffer);
            (&raw mut (*kept).count).write_volatile(count);
            (&raw mut (*kept).offset).write_volatile(offset);
        }
    }
}

/// # Safety
/// `buffer` has room for `count` bytes.
#[inline(always)]
unsafe fn read_at(fd: c_int, buffer: *mut c_void, count: usize, offset: Option<i64>) -> isize {
    let Some(seen) = fds::known_foreign(fd) else {
        // SAFETY: promised by the caller.
        return unsafe { read_either(fd, buffer, count, offset) };
    };
    let mut kept = MaybeUninit::uninit();
    Kept::keep(&mut kept, fd, seen, buffer, count, offset);
    // SAFETY: written just now.
    let kept = unsafe { kept.assume_init_ref() };
    // SAFETY: libc's functions of these names have these types; the rest is promised by the caller.
    unsafe {
        let returned = match (offset, READ.ready(), PREAD.ready()) {
            (None, Some(at), _) => std::mem::transmute::<
                NonNull<c_void>,
                unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize,
            >(at)(fd, buffer, count),
            (Some(offset), _, Some(at)) => std::mem::transmute::<
                NonNull<c_void>,
                unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, i64) -> isize,
            >(at)(fd, buffer, count, offset),
            _ => return read_late(kept),
        };
        if returned == -1 { read_refused(kept) } else { returned }
    }
}

/// Before the library's start.
///
/// # Safety
/// The arguments are those of `read_at`.
#[cold]
#[inline(never)]
unsafe fn read_late(kept: &Kept) -> isize {
    // SAFETY: promised by the caller.
    unsafe { plain_read(kept.fd, kept.buffer.cast_mut(), kept.count, kept.offset) }
}

/// A read of what was the kernel's has failed.
///
/// # Safety
/// The arguments are those of `read_at`.
#[cold]
#[inline(never)]
unsafe fn read_refused(kept: &Kept) -> isize {
    if !fds::refused(kept.fd, kept.seen, errno()) {
        return -1;
    }
    // SAFETY: promised by the caller.
    unsafe { read_either(kept.fd, kept.buffer.cast_mut(), kept.count, kept.offset) }
}

/// # Safety
/// As for `read_at`.
#[inline(always)]
unsafe fn plain_read(fd: c_int, buffer: *mut c_void, count: usize, offset: Option<i64>) -> isize {
    // SAFETY: promised by the caller.
    unsafe {
        match offset {
            None => real_read(fd, buffer, count),
            Some(offset) => real_pread(fd, buffer, count, offset),
        }
    }
}

/// # Safety
/// As for `read_at`.
#[inline(never)]
unsafe fn read_either(fd: c_int, buffer: *mut c_void, count: usize, offset: Option<i64>) -> isize {
    // SAFETY: promised by the caller.
    let real = || unsafe { plain_read(fd, buffer, count, offset) };
    if beside() {
        cancelled();
        let count = if buffer.is_null() { 0 } else { count.min(MAX_TRANSFER) };
        // SAFETY: promised by the caller.
        let into = unsafe { room(buffer, count) };
        return match vfs::beside::read(fd, &mut [IoSliceMut::new(into)], offset) {
            Some(done) => result(done),
            None => real(),
        };
    }
    blocking(fd, real, |file| {
        let offset = offset.map(position).transpose()?;
        let count = count.min(MAX_TRANSFER);
        if count > 0 && buffer.is_null() {
            return Err(FAULT);
        }
        // SAFETY: promised by the caller.
        let into = unsafe { room(buffer, count) };
        read_into(file, &mut [IoSliceMut::new(into)], offset)
    })
}

/// # Safety
/// `buffer` holds `count` bytes.
#[inline(always)]
unsafe fn write_at(fd: c_int, buffer: *const c_void, count: usize, offset: Option<i64>) -> isize {
    let Some(seen) = fds::known_foreign(fd) else {
        // SAFETY: promised by the caller.
        return unsafe { write_either(fd, buffer, count, offset) };
    };
    let mut kept = MaybeUninit::uninit();
    Kept::keep(&mut kept, fd, seen, buffer, count, offset);
    // SAFETY: written just now.
    let kept = unsafe { kept.assume_init_ref() };
    // SAFETY: libc's functions of these names have these types; the rest is promised by the caller.
    unsafe {
        let returned = match (offset, WRITE.ready(), PWRITE.ready()) {
            (None, Some(at), _) => std::mem::transmute::<
                NonNull<c_void>,
                unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> isize,
            >(at)(fd, buffer, count),
            (Some(offset), _, Some(at)) => std::mem::transmute::<
                NonNull<c_void>,
                unsafe extern "C-unwind" fn(c_int, *const c_void, usize, i64) -> isize,
            >(at)(fd, buffer, count, offset),
            _ => return write_late(kept),
        };
        if returned == -1 { write_refused(kept) } else { returned }
    }
}

/// Before the library's start.
///
/// # Safety
/// The arguments are those of `write_at`.
#[cold]
#[inline(never)]
unsafe fn write_late(kept: &Kept) -> isize {
    // SAFETY: promised by the caller.
    unsafe { plain_write(kept.fd, kept.buffer, kept.count, kept.offset) }
}

/// A write to what was the kernel's has failed.
///
/// # Safety
/// The arguments are those of `write_at`.
#[cold]
#[inline(never)]
unsafe fn write_refused(kept: &Kept) -> isize {
    if !fds::refused(kept.fd, kept.seen, errno()) {
        return -1;
    }
    // SAFETY: promised by the caller.
    unsafe { write_either(kept.fd, kept.buffer, kept.count, kept.offset) }
}

/// # Safety
/// As for `write_at`.
#[inline(always)]
unsafe fn plain_write(fd: c_int, buffer: *const c_void, count: usize, offset: Option<i64>) -> isize {
    // SAFETY: promised by the caller.
    unsafe {
        match offset {
            None => real_write(fd, buffer, count),
            Some(offset) => real_pwrite(fd, buffer, count, offset),
        }
    }
}

/// # Safety
/// As for `write_at`.
#[inline(never)]
unsafe fn write_either(fd: c_int, buffer: *const c_void, count: usize, offset: Option<i64>) -> isize {
    // SAFETY: promised by the caller.
    let real = || unsafe { plain_write(fd, buffer, count, offset) };
    if beside() {
        cancelled();
        let count = if buffer.is_null() { 0 } else { count.min(MAX_TRANSFER) };
        // SAFETY: promised by the caller.
        let from = unsafe { bytes(buffer, count) };
        return match vfs::beside::write(fd, &[IoSlice::new(from)], offset) {
            Some(done) => result(done),
            None => real(),
        };
    }
    blocking(fd, real, |file| {
        let offset = offset.map(position).transpose()?;
        let count = count.min(MAX_TRANSFER);
        if count > 0 && buffer.is_null() {
            return Err(FAULT);
        }
        // SAFETY: promised by the caller.
        let from = unsafe { bytes(buffer, count) };
        write_from(file, &[IoSlice::new(from)], offset)
    })
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
unsafe fn readv_at(fd: c_int, parts: *const libc::iovec, count: c_int, offset: Option<i64>) -> isize {
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
unsafe fn writev_at(fd: c_int, parts: *const libc::iovec, count: c_int, offset: Option<i64>) -> isize {
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
unsafe fn readv_with_flags(
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
unsafe fn writev_with_flags(
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

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// What a fortified call checks: the program dies rather than overflow its buffer.
fn check(count: usize, room: usize) {
    if count > room {
        // SAFETY: libc's own end for this.
        unsafe { __chk_fail() }
    }
}

faces! {
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize { read_at(fd, buffer, count, None) }
    fn __read(fd: c_int, buffer: *mut c_void, count: usize) -> isize { read_at(fd, buffer, count, None) }
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: usize, room: usize) -> isize {
        check(count, room);
        read_at(fd, buffer, count, None)
    }
    fn pread(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize { read_at(fd, buffer, count, Some(offset)) }
    fn pread64(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize { read_at(fd, buffer, count, Some(offset)) }
    fn __pread64(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize { read_at(fd, buffer, count, Some(offset)) }
    fn __pread_chk(fd: c_int, buffer: *mut c_void, count: usize, offset: i64, room: usize) -> isize {
        check(count, room);
        read_at(fd, buffer, count, Some(offset))
    }
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, count: usize, offset: i64, room: usize) -> isize {
        check(count, room);
        read_at(fd, buffer, count, Some(offset))
    }
    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize { readv_at(fd, parts, count, None) }
    fn preadv(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { readv_at(fd, parts, count, Some(offset)) }
    fn preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { readv_at(fd, parts, count, Some(offset)) }
    fn preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        readv_with_flags(fd, parts, count, offset, flags)
    }
    fn preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        readv_with_flags(fd, parts, count, offset, flags)
    }
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize { write_at(fd, buffer, count, None) }
    fn __write(fd: c_int, buffer: *const c_void, count: usize) -> isize { write_at(fd, buffer, count, None) }
    fn pwrite(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize { write_at(fd, buffer, count, Some(offset)) }
    fn pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize { write_at(fd, buffer, count, Some(offset)) }
    fn __pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize { write_at(fd, buffer, count, Some(offset)) }
    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize { writev_at(fd, parts, count, None) }
    fn pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { writev_at(fd, parts, count, Some(offset)) }
    fn pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { writev_at(fd, parts, count, Some(offset)) }
    fn pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        writev_with_flags(fd, parts, count, offset, flags)
    }
    fn pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        writev_with_flags(fd, parts, count, offset, flags)
    }
}
