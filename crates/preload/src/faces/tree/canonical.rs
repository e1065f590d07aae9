//! `realpath`: a path without symbolic links, `.` and `..`.

use crate::faces::real::{handles, last_error, may_be_link_into_mount, pointer, text};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

/// Longest path, with its NUL.
const PATH_MAX: usize = 4096;

real! {
    real_realpath = realpath(path: *const c_char, into: *mut c_char) -> *mut c_char, else null_mut();
}

/// The canonical path, from `vfs`; `None`: ask the kernel.
fn resolve(path: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if let Some(canonical) = vfs::real_path(libc::AT_FDCWD, path)? {
        return Ok(Some(canonical));
    }
    // A path outside that only `vfs` can follow: what the kernel says of its descriptor.
    let fd = vfs::openat(libc::AT_FDCWD, path, libc::O_PATH | libc::O_CLOEXEC, 0)?;
    let mut target = vec![0u8; PATH_MAX];
    let link = format!("/proc/self/fd/{fd}\0");
    let length = sys!(SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), target.as_mut_ptr(), target.len());
    let _ = vfs::close(fd);
    target.truncate(length?);
    Ok(Some(target))
}

/// Hands a path over as `realpath` does: into the caller's memory, or into fresh memory.
///
/// # Safety
/// `into` is null or has room for [`PATH_MAX`] bytes.
unsafe fn hand_over(path: Vec<u8>, into: *mut c_char) -> Result<*mut c_char, Errno> {
    if path.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    // SAFETY: the caller's promise, or memory that was just allocated for it.
    unsafe {
        let target = if into.is_null() { libc::malloc(path.len() + 1).cast() } else { into };
        if target.is_null() {
            return Err(Errno::NOMEM);
        }
        std::ptr::copy_nonoverlapping(path.as_ptr().cast(), target, path.len());
        target.add(path.len()).write(0);
        Ok(target)
    }
}

faces! {
    /// The canonical path.
    fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
        let Ok(name) = text(path) else { return real_realpath(path, into) };
        if !handles(libc::AT_FDCWD, name) {
            let found = real_realpath(path, into);
            if !found.is_null() || !may_be_link_into_mount() {
                return found;
            }
            let error = last_error();
            return match vfs::real_path(libc::AT_FDCWD, name) {
                Ok(Some(canonical)) => pointer(hand_over(canonical, into)),
                _ => pointer(Err(error)),
            };
        }
        match resolve(name) {
            Ok(Some(canonical)) => pointer(hand_over(canonical, into)),
            Ok(None) => real_realpath(path, into),
            Err(errno) => pointer(Err(errno)),
        }
    }

    /// [`realpath`], checked: the memory must have room for any path.
    fn __realpath_chk(path: *const c_char, into: *mut c_char, room: usize) -> *mut c_char {
        if room < PATH_MAX {
            libc::abort();
        }
        realpath(path, into)
    }

    /// [`realpath`] into fresh memory.
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath(path, null_mut())
    }
}
