//! The working directory.

use super::with_path;
use crate::raw::{self, result};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_int};

real! {
    real_getcwd = getcwd(buffer: *mut c_char, size: usize) -> *mut c_char, else std::ptr::null_mut();
    real_getcwd_chk = __getcwd_chk(buffer: *mut c_char, size: usize, room: usize) -> *mut c_char,
        else std::ptr::null_mut();
    real_getwd = getwd(buffer: *mut c_char) -> *mut c_char, else std::ptr::null_mut();
}

/// Hands a path to C: into the program's buffer, or into memory from `malloc`.
///
/// # Safety
/// `buffer` is NULL or has room for `size` bytes.
unsafe fn hand_over(
    path: Result<Vec<u8>, Errno>,
    buffer: *mut c_char,
    size: usize,
) -> Result<*mut c_char, Errno> {
    let path = path?;
    let needed = path.len() + 1;
    if (size > 0 || !buffer.is_null()) && needed > size {
        return Err(Errno::RANGE);
    }
    // SAFETY: what malloc gives, or what the caller promised, has room for the path and NUL.
    unsafe {
        let to = if buffer.is_null() { libc::malloc(size.max(needed)).cast::<c_char>() } else { buffer };
        if to.is_null() {
            return Err(Errno::NOMEM);
        }
        std::ptr::copy_nonoverlapping(path.as_ptr(), to.cast(), path.len());
        to.add(path.len()).write(0);
        Ok(to)
    }
}

/// The working directory, if it is in the mount; otherwise libc's function (`real`) returns the kernel's.
///
/// # Safety
/// As for `hand_over`.
unsafe fn working_directory(
    buffer: *mut c_char,
    size: usize,
    real: impl FnOnce() -> *mut c_char,
) -> *mut c_char {
    let Some(path) = vfs::path_inside() else {
        return real();
    };
    if size == 0 && !buffer.is_null() {
        return failed(Errno::INVAL);
    }
    // SAFETY: promised by the caller.
    unsafe { hand_over(path, buffer, size) }.unwrap_or_else(failed)
}

fn failed(errno: Errno) -> *mut c_char {
    raw::set_errno(errno);
    std::ptr::null_mut()
}

/// `$PWD`, when it names the working directory: it may go through symbolic links that the user wants to see.
fn from_environment() -> Option<Vec<u8>> {
    // SAFETY: like any reader of the environment this relies on no other thread changing it meanwhile.
    let value = unsafe { libc::getenv(c"PWD".as_ptr()) };
    // SAFETY: getenv returned a C string.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })?;
    let there = vfs::fstatat(libc::AT_FDCWD, value, 0).ok()?;
    let here = vfs::fstatat(libc::AT_FDCWD, c".", 0).ok()?;
    (there.st_dev == here.st_dev && there.st_ino == here.st_ino).then(|| value.to_bytes().to_vec())
}

faces! {
    fn chdir(name: *const c_char) -> c_int { result(with_path(name, vfs::chdir)) }
    fn fchdir(fd: c_int) -> c_int { result(vfs::fchdir(fd)) }
    fn getcwd(buffer: *mut c_char, size: usize) -> *mut c_char {
        working_directory(buffer, size, || real_getcwd(buffer, size))
    }
    fn __getcwd_chk(buffer: *mut c_char, size: usize, room: usize) -> *mut c_char {
        // The given size may be larger than the buffer: use no more than there is.
        working_directory(buffer, size.min(room), || real_getcwd_chk(buffer, size, room))
    }
    fn getwd(buffer: *mut c_char) -> *mut c_char {
        if buffer.is_null() {
            return failed(Errno::INVAL);
        }
        working_directory(buffer, libc::PATH_MAX as usize, || real_getwd(buffer))
    }
    fn get_current_dir_name() -> *mut c_char {
        match from_environment() {
            Some(path) => hand_over(Ok(path), std::ptr::null_mut(), 0).unwrap_or_else(failed),
            None => working_directory(std::ptr::null_mut(), 0, || real_getcwd(std::ptr::null_mut(), 0)),
        }
    }
}
