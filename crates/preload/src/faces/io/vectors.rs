//! Reading into several buffers, and writing from several: as with [one](super::ways), a macro makes both.

use crate::faces::{blocking, bytes, cancelled, room};
use crate::raw::result;
use crate::vfs::copy::{read_into, write_from};
use crate::vfs::data::position;
use crate::vfs::state::{apart, beside};
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

const RWF_HIPRI: c_int = 1;
const RWF_DSYNC: c_int = 2;
const RWF_SYNC: c_int = 4;
const RWF_APPEND: c_int = 16;

/// `preadv2` and `pwritev2` for one of ours: offset -1 is the descriptor's own; flags that would change what
/// the call does are refused, as file systems do that lack them.
///
/// # Safety
/// As for `reading::ours` or `writing::ours`.
unsafe fn ours_with_flags(
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
        return unsafe { reading::ours(file, parts, count, offset) };
    }
    let written = if flags & RWF_APPEND != 0 {
        // SAFETY: promised by the caller.
        let parts = unsafe { vector(parts, count) }?.iter();
        // SAFETY: promised by the caller.
        let slices = parts.map(|part| IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) }));
        let slices = slices.collect::<Vec<_>>();
        apart(|| file.append_once(&slices, offset.is_none()))?
    } else {
        // SAFETY: promised by the caller.
        unsafe { writing::ours(file, parts, count, offset) }?
    };
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        apart(|| file.sync())?;
    }
    Ok(written)
}

/// Makes one of the two ways: what stands for a piece of the program's memory and for all of them; libc's
/// functions; and what moves bytes in a file of ours, and past a mount.
macro_rules! way {
    (
        slice: $slice:ident of $memory:ident,
        slices: [$($mutable:tt)?] by $get:ident,
        real: $own:ident, $placed:ident, $flagged:ident,
        ours: $ours:path,
        beside: $past:path,
        write: $write:literal,
    ) => {
        /// Runs a transfer with the parts of a vector.
        ///
        /// # Safety
        /// `parts` describe memory that may be used in this way.
        unsafe fn with_parts<T>(
            parts: *const libc::iovec,
            count: c_int,
            transfer: impl FnOnce(& $($mutable)? [$slice<'_>]) -> T,
        ) -> Result<T, Errno> {
            // SAFETY: promised by the caller.
            let parts = unsafe { vector(parts, count) }?;
            // SAFETY: promised by the caller.
            let slice = |part: &libc::iovec| $slice::new(unsafe { $memory(part.iov_base, part.iov_len) });
            if parts.len() <= FEW {
                let $($mutable)? few: [$slice<'_>; FEW] =
                    std::array::from_fn(|i| parts.get(i).map_or($slice::new(& $($mutable)? []), slice));
                return Ok(transfer(few.$get(..parts.len()).unwrap_or_default()));
            }
            Ok(transfer(& $($mutable)? parts.iter().map(slice).collect::<Vec<_>>()))
        }

        /// With one of ours.
        ///
        /// # Safety
        /// As for `with_parts`.
        pub(super) unsafe fn ours(
            file: &Handle,
            parts: *const libc::iovec,
            count: c_int,
            offset: Option<i64>,
        ) -> Result<usize, Errno> {
            let offset = offset.map(position).transpose()?;
            // SAFETY: promised by the caller.
            unsafe { with_parts(parts, count, |parts| $ours(file, parts, offset)) }?
        }

        /// Past the mount. `None`: the kernel is to do it (and to refuse what makes no sense).
        ///
        /// # Safety
        /// As for `with_parts`.
        unsafe fn past(
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
            unsafe { with_parts(parts, count, |parts| $past(fd, parts, offset)) }.ok()?.map(result)
        }

        /// At the descriptor's own place, or at `offset`.
        ///
        /// # Safety
        /// As for `with_parts`.
        pub unsafe fn at(fd: c_int, parts: *const libc::iovec, count: c_int, offset: Option<i64>) -> isize {
            // SAFETY: promised by the caller.
            if let Some(done) = unsafe { past(fd, parts, count, offset) } {
                return done;
            }
            // SAFETY: the program's arguments.
            let real = || unsafe {
                match offset {
                    None => $own(fd, parts, count),
                    Some(offset) => $placed(fd, parts, count, offset),
                }
            };
            // SAFETY: promised by the caller.
            blocking(fd, real, |file| unsafe { ours(file, parts, count, offset) })
        }

        /// With `RWF_*`; offset -1 is the descriptor's own place.
        ///
        /// # Safety
        /// As for `with_parts`.
        pub unsafe fn with_flags(
            fd: c_int,
            parts: *const libc::iovec,
            count: c_int,
            offset: i64,
            flags: c_int,
        ) -> isize {
            let own = (offset != -1).then_some(offset);
            if flags & !RWF_HIPRI == 0
                // SAFETY: promised by the caller.
                && let Some(done) = unsafe { past(fd, parts, count, own) }
            {
                return done;
            }
            if $write && flags & RWF_APPEND != 0 {
                vfs::beside::refresh_size(fd);
            }
            // SAFETY: the program's arguments.
            let real = || unsafe { $flagged(fd, parts, count, offset, flags) };
            // SAFETY: promised by the caller.
            blocking(fd, real, |file| unsafe {
                ours_with_flags(file, (parts, count), offset, flags, $write)
            })
        }
    };
}

/// `readv` and its like.
pub mod reading {
    use super::*;

    way! {
        slice: IoSliceMut of room,
        slices: [mut] by get_mut,
        real: real_readv, real_preadv, real_preadv2,
        ours: read_into,
        beside: vfs::beside::read,
        write: false,
    }
}

/// `writev` and its like.
pub mod writing {
    use super::*;

    way! {
        slice: IoSlice of bytes,
        slices: [] by get,
        real: real_writev, real_pwritev, real_pwritev2,
        ours: write_from,
        beside: vfs::beside::write,
        write: true,
    }
}
