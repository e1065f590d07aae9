//! `glob`: the C library's, with other functions to read directories.
//!
//! It has an option for that, GLOB_ALTDIRFUNC, with five functions in the result's structure. They are ours,
//! which tell by themselves whether a path is in the mount. A program that brings its own is left alone.

use crate::faces::dir;
use crate::faces::real::text;
use crate::raw::result;
use crate::vfs;
use libc::{DIR, dirent};
use std::ffi::{c_char, c_int, c_void};

/// The program brings its own functions.
const ALTDIRFUNC: c_int = 1 << 9;

type ErrorFunction = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;
type StatFunction = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;

/// C's `glob_t`.
#[repr(C)]
pub struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    closedir: unsafe extern "C" fn(*mut c_void),
    readdir: unsafe extern "C" fn(*mut c_void) -> *mut dirent,
    opendir: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    lstat: StatFunction,
    stat: StatFunction,
}

real! {
    real_glob = glob(pattern: *const c_char, flags: c_int, error: ErrorFunction, result: *mut Glob) -> c_int,
        else libc::GLOB_ABORTED;
}

callbacks! {
    fn open_directory(path: *const c_char) -> *mut c_void {
        // SAFETY: `glob` passes a path of its own.
        unsafe { dir::opendir(path).cast() }
    }

    fn next_entry(stream: *mut c_void) -> *mut dirent {
        // SAFETY: `glob` passes what `open_directory` returned.
        unsafe { dir::readdir(stream.cast::<DIR>()) }
    }

    fn close_directory(stream: *mut c_void) {
        // SAFETY: as above.
        unsafe { dir::closedir(stream.cast::<DIR>()) };
    }
}

/// # Safety
/// As for `stat`.
unsafe fn look(path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    result(unsafe { text(path) }.and_then(|path| vfs::fstatat(libc::AT_FDCWD, path, flags)).map(|stat| {
        // SAFETY: the caller's promise.
        unsafe { into.write(stat) };
    }))
}

callbacks! {
    fn look_at_link(path: *const c_char, into: *mut libc::stat) -> c_int {
        // SAFETY: `glob` passes a path and a structure of its own.
        unsafe { look(path, into, libc::AT_SYMLINK_NOFOLLOW) }
    }

    fn look_behind_link(path: *const c_char, into: *mut libc::stat) -> c_int {
        // SAFETY: as above.
        unsafe { look(path, into, 0) }
    }
}

faces! {
    /// Expands a pattern into paths.
    fn glob(pattern: *const c_char, flags: c_int, error: ErrorFunction, result: *mut Glob) -> c_int, else (libc::GLOB_ABORTED) {
        if !vfs::active() || result.is_null() || flags & ALTDIRFUNC != 0 {
            return real_glob(pattern, flags, error, result);
        }
        (&raw mut (*result).closedir).write(close_directory);
        (&raw mut (*result).readdir).write(next_entry);
        (&raw mut (*result).opendir).write(open_directory);
        (&raw mut (*result).lstat).write(look_at_link);
        (&raw mut (*result).stat).write(look_behind_link);
        let code = real_glob(pattern, flags | ALTDIRFUNC, error, result);
        (*result).flags &= !ALTDIRFUNC;
        code
    }

    /// The same as [`glob`].
    fn glob64(pattern: *const c_char, flags: c_int, error: ErrorFunction, result: *mut Glob) -> c_int, else (libc::GLOB_ABORTED) {
        glob(pattern, flags, error, result)
    }
}
