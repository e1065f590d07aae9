//! Making, removing, renaming and reading names.

use super::with_path;
use crate::raw::{self, result};
use crate::vfs::{self, Errno};
use std::ffi::{c_char, c_int, c_uint};

const HERE: c_int = libc::AT_FDCWD;

/// # Safety
/// `name` is NULL or a C string.
unsafe fn make_directory(dirfd: c_int, name: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::mkdirat(dirfd, path, mode)) })
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn make_node(dirfd: c_int, name: *const c_char, mode: c_uint, device: u64) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::mknodat(dirfd, path, mode, device)) })
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn remove_name(dirfd: c_int, name: *const c_char, flags: c_int) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::unlinkat(dirfd, path, flags)) })
}

/// # Safety
/// Both names are NULL or C strings.
unsafe fn rename_path(
    from_fd: c_int,
    from: *const c_char,
    to_fd: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe {
        with_path(from, |from| with_path(to, |to| vfs::renameat2(from_fd, from, to_fd, to, flags)))
    })
}

/// # Safety
/// Both names are NULL or C strings.
unsafe fn link_path(
    from_fd: c_int,
    from: *const c_char,
    to_fd: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe {
        with_path(from, |from| with_path(to, |to| vfs::linkat(from_fd, from, to_fd, to, flags)))
    })
}

/// # Safety
/// Both are NULL or C strings.
unsafe fn make_symlink(target: *const c_char, dirfd: c_int, name: *const c_char) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(target, |target| with_path(name, |name| vfs::symlinkat(target, dirfd, name))) })
}

/// # Safety
/// `name` is NULL or a C string, `buffer` has room for `size` bytes.
unsafe fn read_link(dirfd: c_int, name: *const c_char, buffer: *mut c_char, size: usize) -> isize {
    let read = |path: &std::ffi::CStr| {
        let Ok(_) = isize::try_from(size) else {
            return Err(Errno::INVAL);
        };
        if size == 0 {
            return Err(Errno::INVAL);
        }
        if buffer.is_null() {
            return Err(Errno(libc::EFAULT as u16));
        }
        // SAFETY: promised by the caller, and not NULL.
        vfs::readlinkat(dirfd, path, unsafe { std::slice::from_raw_parts_mut(buffer.cast(), size) })
    };
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, read) })
}

faces! {
    fn mkdir(name: *const c_char, mode: c_uint) -> c_int { make_directory(HERE, name, mode) }
    fn mkdirat(dirfd: c_int, name: *const c_char, mode: c_uint) -> c_int { make_directory(dirfd, name, mode) }
    fn rmdir(name: *const c_char) -> c_int { remove_name(HERE, name, libc::AT_REMOVEDIR) }
    fn unlink(name: *const c_char) -> c_int { remove_name(HERE, name, 0) }
    fn unlinkat(dirfd: c_int, name: *const c_char, flags: c_int) -> c_int { remove_name(dirfd, name, flags) }
    fn remove(name: *const c_char) -> c_int {
        let before = raw::errno();
        if remove_name(HERE, name, 0) == 0 {
            return 0;
        }
        if raw::errno() != Errno::ISDIR {
            return -1;
        }
        let removed = remove_name(HERE, name, libc::AT_REMOVEDIR);
        if removed == 0 {
            raw::set_errno(before);
        }
        removed
    }
    fn mknod(name: *const c_char, mode: c_uint, device: u64) -> c_int { make_node(HERE, name, mode, device) }
    fn mknodat(dirfd: c_int, name: *const c_char, mode: c_uint, device: u64) -> c_int { make_node(dirfd, name, mode, device) }
    fn __xmknod(_version: c_int, name: *const c_char, mode: c_uint, device: *const u64) -> c_int {
        make_node(HERE, name, mode, if device.is_null() { 0 } else { *device })
    }
    fn __xmknodat(_version: c_int, dirfd: c_int, name: *const c_char, mode: c_uint, device: *const u64) -> c_int {
        make_node(dirfd, name, mode, if device.is_null() { 0 } else { *device })
    }
    fn mkfifo(name: *const c_char, mode: c_uint) -> c_int { make_node(HERE, name, mode & 0o7777 | libc::S_IFIFO, 0) }
    fn mkfifoat(dirfd: c_int, name: *const c_char, mode: c_uint) -> c_int { make_node(dirfd, name, mode & 0o7777 | libc::S_IFIFO, 0) }
    fn rename(from: *const c_char, to: *const c_char) -> c_int { rename_path(HERE, from, HERE, to, 0) }
    fn renameat(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char) -> c_int { rename_path(from_fd, from, to_fd, to, 0) }
    fn renameat2(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_uint) -> c_int {
        rename_path(from_fd, from, to_fd, to, flags)
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int { link_path(HERE, from, HERE, to, 0) }
    fn linkat(from_fd: c_int, from: *const c_char, to_fd: c_int, to: *const c_char, flags: c_int) -> c_int {
        link_path(from_fd, from, to_fd, to, flags)
    }
    fn symlink(target: *const c_char, name: *const c_char) -> c_int { make_symlink(target, HERE, name) }
    fn symlinkat(target: *const c_char, dirfd: c_int, name: *const c_char) -> c_int { make_symlink(target, dirfd, name) }
    fn readlink(name: *const c_char, buffer: *mut c_char, size: usize) -> isize { read_link(HERE, name, buffer, size) }
    fn readlinkat(dirfd: c_int, name: *const c_char, buffer: *mut c_char, size: usize) -> isize { read_link(dirfd, name, buffer, size) }
    fn __readlink_chk(name: *const c_char, buffer: *mut c_char, size: usize, _room: usize) -> isize { read_link(HERE, name, buffer, size) }
    fn __readlinkat_chk(dirfd: c_int, name: *const c_char, buffer: *mut c_char, size: usize, _room: usize) -> isize {
        read_link(dirfd, name, buffer, size)
    }
    fn truncate(name: *const c_char, size: i64) -> c_int { result(with_path(name, |path| vfs::truncate(path, size))) }
    fn truncate64(name: *const c_char, size: i64) -> c_int { result(with_path(name, |path| vfs::truncate(path, size))) }
}
