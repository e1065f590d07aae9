//! Opening files: `open` in all its forms.

use super::{said, with_path};
use crate::{catch, raw::result, vfs};
use std::ffi::{c_char, c_int, c_uint};

real! {
    real_openat = openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int, else -1;
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn open_path(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: promised by the caller.
    let real = || said(unsafe { real_openat(dirfd, path, flags | catch::open_mark(), mode) });
    // SAFETY: promised by the caller.
    result(unsafe { with_path(path, |path| vfs::open::openat_by(dirfd, path, flags, mode, real)) })
}

// The mode is a variable argument in C; both conventions pass it where the third or fourth fixed one is.
faces! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int { open_path(libc::AT_FDCWD, path, flags, mode) }
    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int { open_path(libc::AT_FDCWD, path, flags, mode) }
    fn __open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int { open_path(libc::AT_FDCWD, path, flags, mode) }
    fn __open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int { open_path(libc::AT_FDCWD, path, flags, mode) }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int { open_path(libc::AT_FDCWD, path, flags, 0) }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int { open_path(libc::AT_FDCWD, path, flags, 0) }
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int { open_path(dirfd, path, flags, mode) }
    fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int { open_path(dirfd, path, flags, mode) }
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int { open_path(dirfd, path, flags, 0) }
    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int { open_path(dirfd, path, flags, 0) }
    fn creat(path: *const c_char, mode: c_uint) -> c_int { open_path(libc::AT_FDCWD, path, CREATE, mode) }
    fn creat64(path: *const c_char, mode: c_uint) -> c_int { open_path(libc::AT_FDCWD, path, CREATE, mode) }
}

const CREATE: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
