//! The libc symbols, by family.
//!
//! A face takes C's arguments, asks [`crate::vfs`], and gives C's result: -1 and errno, or the value. All of
//! the deciding is in `vfs`; what glibc itself does inside a call without going through symbols (streams,
//! directory streams, walking trees, starting programs) is replaced here as far as the mount is concerned.

pub mod real;
#[macro_use]
mod variadic;

pub mod access;
pub mod aio;
pub mod cwd;
pub mod dir;
pub mod exec;
pub mod fd;
pub mod io;
pub mod limit;
pub mod load;
pub mod lock;
pub mod map;
pub mod misc;
pub mod names;
pub mod open;
pub mod stat;
pub mod stdio;
pub mod syscall;
pub mod temp;
pub mod transfer;
pub mod tree;
pub mod xattr;

use crate::raw;
use crate::vfs::{Errno, fds};
use std::ffi::{CStr, c_char, c_int};

/// A path as the program passed it; `None` for NULL (the kernel's answer to which is EFAULT).
///
/// # Safety
/// `path` is NULL or a C string that stays valid for the call.
pub unsafe fn path<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: promised by the caller.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Runs `body` with a path, or fails with EFAULT. (Always inlined, as all that lies around a foreign call: it
/// is to take little stack.)
///
/// # Safety
/// As for [`path`].
#[inline(always)]
pub unsafe fn with_path<T>(
    pointer: *const c_char,
    body: impl FnOnce(&CStr) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY: promised by the caller.
    match unsafe { path(pointer) } {
        Some(path) => body(path),
        None => Err(Errno(libc::EFAULT as u16)),
    }
}

/// Memory of the program that a call writes to. Without a length the program may pass any pointer, also NULL.
///
/// # Safety
/// `pointer` has room for `len` bytes, which nobody else uses during the call.
pub unsafe fn room<'a>(pointer: *mut std::ffi::c_void, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) }
}

/// Memory of the program that a call reads from; likewise.
///
/// # Safety
/// `pointer` points to `len` bytes, which nobody changes during the call.
pub unsafe fn bytes<'a>(pointer: *const std::ffi::c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(pointer.cast(), len) }
}

/// What a C function returned, as a result.
#[inline]
pub fn said<T: raw::Returned + PartialEq>(returned: T) -> Result<T, Errno> {
    if returned == T::FAILED { Err(raw::errno()) } else { Ok(returned) }
}

/// Runs a call on a descriptor that may block and is a cancellation point. For a foreign descriptor this is
/// libc's own function (`real`). For one of ours, the thread can be cancelled before the call does anything,
/// and not during it.
#[inline(always)]
pub fn blocking<T, V>(fd: c_int, real: impl Fn() -> T, ours: impl Fn(&fds::File) -> Result<V, Errno>) -> T
where
    T: raw::Returned + PartialEq + raw::FromValue<V> + raw::FromValue<T>,
{
    cancellation_point(fd);
    raw::result(fds::on(fd, || said(real()), |file| ours(file).map(T::from_value)))
}

/// A cancellation point, if the descriptor is not known to be foreign.
#[inline]
pub fn cancellation_point(fd: c_int) {
    if !fds::is_foreign(fd) {
        cancelled();
    }
}

/// A cancellation point.
pub fn cancelled() {
    if let Some(real) = next!("pthread_testcancel", fn() -> ()) {
        // SAFETY: nothing in the faces above needs to be dropped.
        unsafe { real() };
    }
}
