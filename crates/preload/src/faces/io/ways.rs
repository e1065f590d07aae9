//! The two ways of moving bytes between a descriptor and one buffer: reading and writing. They differ in
//! names and types only, so that one macro makes both.
//!
//! What is known to be the kernel's goes to libc's function at once; when that fails in a way that a
//! placeholder would explain, the call is made again as what it may be.

use crate::faces::{blocking, bytes, cancelled, room};
use crate::raw::{errno, result};
use crate::vfs::copy::{read_into, write_from};
use crate::vfs::data::position;
use crate::vfs::fds::{self, Sight};
use crate::vfs::state::beside;
use crate::vfs::{self, Errno};
use bivouac_proto::attr::TRANSFER_MAX;
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

real! {
    real_read = read(fd: c_int, buffer: *mut c_void, count: usize) -> isize, else -1;
    real_pread = pread64(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize, else -1;
    real_write = write(fd: c_int, buffer: *const c_void, count: usize) -> isize, else -1;
    real_pwrite = pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize, else -1;
}

real_variable!(READ, "read");
real_variable!(PREAD, "pread64");
real_variable!(WRITE, "write");
real_variable!(PWRITE, "pwrite64");

/// What is needed to repeat a transfer. It is stored in memory before the call, and not kept in registers,
/// whose contents would have to be saved first: a repetition is rare, and the first attempt should cost next
/// to nothing.
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

/// Makes a way: libc's two functions for it, each with the variable that says where it is; the program's
/// memory as the rest of the library takes it; and what moves bytes past a mount, and in a file of ours.
macro_rules! way {
    (
        pointer: $pointer:ty,
        own: $own:ident, $own_ready:ident,
        placed: $placed:ident, $placed_ready:ident,
        slices: |$memory:ident, $count:ident| $slices:expr,
        beside: $beside:path,
        ours: $ours:path,
    ) => {
        /// Moves bytes at the descriptor's own place, or at `offset`.
        ///
        /// # Safety
        /// `buffer` is `count` bytes of the program's that may be used in this way.
        #[inline(always)]
        pub unsafe fn at(fd: c_int, buffer: $pointer, count: usize, offset: Option<i64>) -> isize {
            let Some(seen) = fds::known_foreign(fd) else {
                // SAFETY: promised by the caller.
                return unsafe { either(fd, buffer, count, offset) };
            };
            let mut kept = MaybeUninit::uninit();
            Kept::keep(&mut kept, fd, seen, buffer, count, offset);
            // SAFETY: written just now.
            let kept = unsafe { kept.assume_init_ref() };
            // SAFETY: libc's functions of these names have these types; the rest is promised by the caller.
            unsafe {
                let returned = match (offset, $own_ready.ready(), $placed_ready.ready()) {
                    (None, Some(at), _) => std::mem::transmute::<
                        NonNull<c_void>,
                        unsafe extern "C-unwind" fn(c_int, $pointer, usize) -> isize,
                    >(at)(fd, buffer, count),
                    (Some(offset), _, Some(at)) => std::mem::transmute::<
                        NonNull<c_void>,
                        unsafe extern "C-unwind" fn(c_int, $pointer, usize, i64) -> isize,
                    >(at)(fd, buffer, count, offset),
                    _ => return late(kept),
                };
                if returned == -1 { refused(kept) } else { returned }
            }
        }

        /// Before the library's start.
        ///
        /// # Safety
        /// What is kept are the arguments of `at`.
        #[cold]
        #[inline(never)]
        unsafe fn late(kept: &Kept) -> isize {
            // SAFETY: promised by the caller.
            unsafe { plain(kept.fd, kept.buffer as $pointer, kept.count, kept.offset) }
        }

        /// To be called when a call on a descriptor that was taken for the kernel's has failed.
        ///
        /// # Safety
        /// What is kept are the arguments of `at`.
        #[cold]
        #[inline(never)]
        unsafe fn refused(kept: &Kept) -> isize {
            if !fds::refused(kept.fd, kept.seen, errno()) {
                return -1;
            }
            // SAFETY: promised by the caller.
            unsafe { either(kept.fd, kept.buffer as $pointer, kept.count, kept.offset) }
        }

        /// # Safety
        /// As for `at`.
        #[inline(always)]
        unsafe fn plain(fd: c_int, buffer: $pointer, count: usize, offset: Option<i64>) -> isize {
            // SAFETY: promised by the caller.
            unsafe {
                match offset {
                    None => $own(fd, buffer, count),
                    Some(offset) => $placed(fd, buffer, count, offset),
                }
            }
        }

        /// # Safety
        /// As for `at`.
        #[inline(never)]
        unsafe fn either(fd: c_int, $memory: $pointer, count: usize, offset: Option<i64>) -> isize {
            // SAFETY: promised by the caller.
            let real = || unsafe { plain(fd, $memory, count, offset) };
            if beside() {
                cancelled();
                let $count = if $memory.is_null() { 0 } else { count.min(TRANSFER_MAX) };
                // SAFETY: promised by the caller.
                return match unsafe { $beside(fd, $slices, offset) } {
                    Some(done) => result(done),
                    None => real(),
                };
            }
            blocking(fd, real, |file| {
                let offset = offset.map(position).transpose()?;
                let $count = count.min(TRANSFER_MAX);
                if $count > 0 && $memory.is_null() {
                    return Err(Errno(libc::EFAULT as u16));
                }
                // SAFETY: promised by the caller.
                unsafe { $ours(file, $slices, offset) }
            })
        }
    };
}

/// `read` and `pread`.
pub mod reading {
    use super::*;

    way! {
        pointer: *mut c_void,
        own: real_read, READ,
        placed: real_pread, PREAD,
        slices: |memory, count| &mut [IoSliceMut::new(room(memory, count))],
        beside: vfs::beside::read,
        ours: read_into,
    }
}

/// `write` and `pwrite`.
pub mod writing {
    use super::*;

    way! {
        pointer: *const c_void,
        own: real_write, WRITE,
        placed: real_pwrite, PWRITE,
        slices: |memory, count| &[IoSlice::new(bytes(memory, count))],
        beside: vfs::beside::write,
        ours: write_from,
    }
}
