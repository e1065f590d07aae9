//! `stat` in its forms: the functions of today, and the `__xstat` family that programs linked before glibc
//! 2.33 use.

use super::{path, with_path};
use crate::raw::{result, set_errno};
use crate::vfs::{self, Errno};
use std::ffi::{c_char, c_int, c_uint};

/// # Safety
/// `name` is NULL or a C string, `into` points to a `struct stat`.
unsafe fn stat_path(dirfd: c_int, name: *const c_char, flags: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::attrs::fstatat_into(dirfd, path, flags, into)) })
}

/// # Safety
/// `into` points to a `struct stat`.
unsafe fn stat_descriptor(fd: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { vfs::attrs::fstat_into(fd, into) })
}

/// Versions of `struct stat` that the `__xstat` family knows: all of them are today's on 64-bit systems.
fn known(version: c_int) -> bool {
    let known = matches!(version, 0 | 1);
    if !known {
        set_errno(Errno::INVAL);
    }
    known
}

const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

faces! {
    fn stat(name: *const c_char, into: *mut libc::stat) -> c_int { stat_path(libc::AT_FDCWD, name, 0, into) }
    fn stat64(name: *const c_char, into: *mut libc::stat) -> c_int { stat_path(libc::AT_FDCWD, name, 0, into) }
    fn lstat(name: *const c_char, into: *mut libc::stat) -> c_int { stat_path(libc::AT_FDCWD, name, NOFOLLOW, into) }
    fn lstat64(name: *const c_char, into: *mut libc::stat) -> c_int { stat_path(libc::AT_FDCWD, name, NOFOLLOW, into) }
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int { stat_descriptor(fd, into) }
    fn fstat64(fd: c_int, into: *mut libc::stat) -> c_int { stat_descriptor(fd, into) }
    fn fstatat(dirfd: c_int, name: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int { stat_path(dirfd, name, flags, into) }
    fn fstatat64(dirfd: c_int, name: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int { stat_path(dirfd, name, flags, into) }
    fn __xstat(version: c_int, name: *const c_char, into: *mut libc::stat) -> c_int {
        if known(version) { stat_path(libc::AT_FDCWD, name, 0, into) } else { -1 }
    }
    fn __xstat64(version: c_int, name: *const c_char, into: *mut libc::stat) -> c_int {
        if known(version) { stat_path(libc::AT_FDCWD, name, 0, into) } else { -1 }
    }
    fn __lxstat(version: c_int, name: *const c_char, into: *mut libc::stat) -> c_int {
        if known(version) { stat_path(libc::AT_FDCWD, name, NOFOLLOW, into) } else { -1 }
    }
    fn __lxstat64(version: c_int, name: *const c_char, into: *mut libc::stat) -> c_int {
        if known(version) { stat_path(libc::AT_FDCWD, name, NOFOLLOW, into) } else { -1 }
    }
    fn __fxstat(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
        if known(version) { stat_descriptor(fd, into) } else { -1 }
    }
    fn __fxstat64(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
        if known(version) { stat_descriptor(fd, into) } else { -1 }
    }
    fn __fxstatat(version: c_int, dirfd: c_int, name: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
        if known(version) { stat_path(dirfd, name, flags, into) } else { -1 }
    }
    fn __fxstatat64(version: c_int, dirfd: c_int, name: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
        if known(version) { stat_path(dirfd, name, flags, into) } else { -1 }
    }
    fn statx(dirfd: c_int, name: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int {
        match path(name) {
            Some(name) => result(vfs::statx(dirfd, name, flags, mask, into)),
            // Newer kernels take NULL for the descriptor itself.
            None if flags & libc::AT_EMPTY_PATH != 0 => result(vfs::statx(dirfd, c"", flags, mask, into)),
            None => result::<c_int, usize>(sys!(SYS_statx, dirfd, name, flags, mask, into)),
        }
    }
}
