//! `freopen`: the same stream on another file.
//!
//! Programs ignore what it returns, so the pointer must stay. The descriptor's number stays too, as in the C library:
//! the new file is opened, moved onto the old number, and the stream emptied. What differs is the kind of stream:
//! - the standard ones are exchanged by [`super::standard`] when their descriptor changes hands;
//! - one of ours stays one, also on a file outside of the mount, which `vfs` serves as well;
//! - one of the C library's that moves into the mount is made a cookie stream in place ([`convert`]).

use super::mode::Mode;
use super::stream::{self, FILE};
use super::{open, standard};
use crate::faces::real::{handles, text};
use crate::raw::set_errno;
use crate::vfs::{self, Errno};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

real! {
    real_freopen = freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, else null_mut();
}

faces! {
    /// Opens another file with the same stream.
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        if !vfs::active() || stream.is_null() {
            return real_freopen(path, mode, stream);
        }
        let name = text(path).ok();
        let mine = stream::is_ours(stream) || standard::number_of(stream).is_some();
        if !mine && !name.is_some_and(|name| handles(libc::AT_FDCWD, name) || leads_into_mount(name)) {
            return real_freopen(path, mode, stream);
        }
        reopen(name, mode, stream).unwrap_or_else(|errno| {
            open::fclose(stream);
            set_errno(errno);
            null_mut()
        })
    }

    /// The same as [`freopen`].
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        freopen(path, mode, stream)
    }
}

/// Whether a path outside leads to a file of the mount. Asked before, as a failed `freopen` has freed the stream.
fn leads_into_mount(path: &CStr) -> bool {
    match vfs::openat(libc::AT_FDCWD, path, libc::O_PATH | libc::O_CLOEXEC, 0) {
        Ok(fd) => {
            let ours = vfs::is_ours(fd);
            let _ = vfs::close(fd);
            ours
        }
        Err(_) => false,
    }
}

/// # Safety
/// As for [`freopen`]; the stream is not null.
unsafe fn reopen(path: Option<&CStr>, mode: *const c_char, stream: *mut FILE) -> Result<*mut FILE, Errno> {
    // SAFETY: the caller's promise; members of a live stream.
    unsafe {
        let mode = Mode::parse(text(mode)?)?;
        let number = standard::standard_number(stream);
        let stream = number.map_or(stream, standard::current);
        libc::fflush(stream);
        let old = (*stream::layout(stream)).fileno;
        let opened = match path {
            Some(path) => vfs::openat(libc::AT_FDCWD, path, mode.flags, 0o666)?,
            None => {
                let itself = CString::new(format!("/proc/self/fd/{old}")).map_err(|_| Errno::INVAL)?;
                vfs::openat(libc::AT_FDCWD, &itself, mode.flags & !(libc::O_CREAT | libc::O_EXCL), 0)?
            }
        };
        let fd = move_onto(opened, old, mode)?;
        let stream = match number {
            // The exchange happened when the descriptor changed hands; see what it came to.
            Some(number) if old == number as c_int => {
                standard::std_descriptor_changed(fd);
                let now = standard::current(number);
                if stream::is_ours(now) || !vfs::is_ours(fd) { now } else { replaced(now, fd, mode)? }
            }
            Some(_) => replaced(stream, fd, mode)?,
            None if stream::is_ours(stream) || convert(stream, fd, mode) => stream,
            None => stream::make(fd, mode)?,
        };
        stream::reset(stream, mode);
        if mode.appends && !mode.reads {
            let _ = vfs::lseek(fd, 0, libc::SEEK_END);
        }
        Ok(stream)
    }
}

/// Moves a new descriptor onto the stream's old number, if it had one.
fn move_onto(opened: c_int, old: c_int, mode: Mode) -> Result<c_int, Errno> {
    if old < 0 || old == opened {
        return Ok(opened);
    }
    let moved = vfs::dup3(opened, old, mode.flags & libc::O_CLOEXEC, false);
    let _ = vfs::close(opened);
    moved
}

/// A standard stream that can't be exchanged (the program had closed it): a new one takes the variable's place.
fn replaced(stream: *mut FILE, fd: c_int, mode: Mode) -> Result<*mut FILE, Errno> {
    let made = stream::make(fd, mode)?;
    standard::replace(stream, made);
    Ok(made)
}

/// Makes a stream of the C library a cookie stream on `fd`, in place. False if it is not of the kind that can be.
///
/// `fopen` and `fdopen` allocate the stream together with its lock and its state for wide characters, 472 bytes. A
/// cookie stream has a few pointers where the lock is, so the lock moves into the state for wide characters, which a
/// stream of bytes has no use for. That the stream is one of these is seen from its pointers into itself.
///
/// # Safety
/// `stream` is a live stream that is not in use by other threads, flushed.
unsafe fn convert(stream: *mut FILE, fd: c_int, mode: Mode) -> bool {
    const LOCK: usize = 224;
    const WIDE: usize = 240;
    const NEW_LOCK: usize = 264;
    const LOCK_SIZE: usize = 16;
    // SAFETY: members of a live stream. What lies behind them is read and written only after the stream has been seen
    // to be of the class that `fopen` allocates, whose lock and wide state are behind it.
    unsafe {
        let plain_kind = libc::dlsym(libc::RTLD_DEFAULT, c"_IO_file_jumps".as_ptr()) as usize;
        let layout = stream::layout(stream);
        let base = stream as usize;
        let convertible = plain_kind != 0
            && (*layout).kind == plain_kind
            && (*layout).lock as usize == base + LOCK
            && (*layout).wide as usize == base + WIDE
            && (*layout).mode <= 0;
        if !convertible {
            return false;
        }
        let donor = stream::sample();
        if donor.is_null() {
            return false;
        }
        let model = stream::layout(donor);
        stream.cast::<u8>().add(NEW_LOCK).write_bytes(0, LOCK_SIZE);
        (*layout).lock = stream.cast::<u8>().add(NEW_LOCK).cast();
        (*layout).kind = (*model).kind;
        (*layout).functions = (*model).functions;
        (*layout).cookie = fd as usize;
        (*layout).wide = (*model).wide;
        (*layout).mode = (*model).mode;
        (*layout).fileno = fd;
        stream::dismiss(donor);
        stream::reset(stream, mode);
    }
    true
}
