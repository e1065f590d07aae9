//! `freopen`: the same stream on another file.
//!
//! Programs ignore what it returns, so the pointer must stay. The descriptor's number stays too, as in the C
//! library: the new file is opened, moved onto the old number, and the stream emptied. What differs is the
//! kind of stream:
//! - the standard ones change with their descriptor, see [`super::standard`];
//! - one of ours stays one, also on a file outside of the mount, which `vfs` serves as well;
//! - one of the C library's that moves into the mount is made a cookie stream in place ([`convert`]).

use super::mode::Mode;
use super::stream::{self, FILE, Kind};
use super::{open, standard};
use crate::faces::real::{handles, last_error, text};
use crate::raw::set_errno;
use crate::vfs::{self, Errno};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

real! {
    real_freopen = freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, else null_mut();
}

faces! {
    /// Opens another file with the same stream.
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        if !vfs::tracking() || stream.is_null() {
            return real_freopen(path, mode, stream);
        }
        let name = text(path).ok();
        let number = (*stream::layout(stream)).fileno;
        let mine = stream::is_ours(stream) || (name.is_none() && vfs::is_ours(number));
        if !mine && !name.is_some_and(|name| handles(libc::AT_FDCWD, name) || leads_into_mount(name)) {
            let reopened = open::closed_by(stream, || real_freopen(path, mode, stream));
            if number >= 0 {
                vfs::open::note_unknown(number);
            }
            return reopened;
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

/// Whether a path outside leads to a file of the mount. This is checked beforehand, because a failed
/// `freopen` frees the stream.
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
        libc::fflush(stream);
        let itself = match path {
            Some(_) => None,
            None => {
                let itself = CString::new(format!("/proc/self/fd/{}", (*stream::layout(stream)).fileno))
                    .map_err(|_| Errno::INVAL)?;
                let flags = mode.flags & !(libc::O_CREAT | libc::O_EXCL);
                Some(vfs::openat(libc::AT_FDCWD, &itself, flags, 0)?)
            }
        };
        if !is_plain(stream) {
            make_plain(stream)?;
        }
        let old = (*stream::layout(stream)).fileno;
        let opened = match (itself, path) {
            (Some(opened), _) => opened,
            (None, path) => vfs::openat(libc::AT_FDCWD, path.unwrap_or_default(), mode.flags, 0o666)?,
        };
        let fd = move_onto(opened, old, mode)?;
        let stream = match stream::is_ours(stream) || !vfs::is_ours(fd) {
            true => stream,
            false if standard::become_ours(stream) || convert(stream) => stream,
            false => stream::make(fd, mode)?,
        };
        stream::reset(stream, mode);
        standard::forget_orientation(stream);
        if mode.appends && !mode.reads {
            let _ = vfs::lseek(fd, 0, libc::SEEK_END);
        }
        Ok(stream)
    }
}

/// Whether a stream is open, and of a kind that can be worked on: not closed, nor oriented to wide
/// characters, nor reading by `mmap`.
///
/// # Safety
/// `stream` is a live stream.
unsafe fn is_plain(stream: *mut FILE) -> bool {
    let layout = stream::layout(stream);
    // SAFETY: the caller's promise.
    unsafe {
        (*layout).fileno >= 0
            && (stream::is_ours(stream) || ((*layout).kind == stream::plain() && (*layout).mode <= 0))
    }
}

/// Has the C library reopen a stream of its own on something that is neither read nor written, so that it is
/// a plain one, whatever it was before.
///
/// # Safety
/// `stream` is a live stream of the C library, flushed.
unsafe fn make_plain(stream: *mut FILE) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let number = (*stream::layout(stream)).fileno;
        let reopened = open::closed_by(stream, || real_freopen(c"/".as_ptr(), c"r".as_ptr(), stream));
        if number >= 0 {
            vfs::open::note_unknown(number);
        }
        if reopened.is_null() { Err(last_error()) } else { Ok(()) }
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

/// Makes a stream of the C library a cookie stream, in place. False if it is not of the kind that can be.
///
/// `fopen` and `fdopen` allocate the stream together with its lock and its state for wide characters, 472
/// bytes. A cookie stream has a few pointers where the lock is, so the lock moves into the state for wide
/// characters, which a stream of bytes has no use for. That the stream is one of these is seen from its
/// pointers into itself.
///
/// # Safety
/// `stream` is a live stream that is not in use by other threads, flushed.
unsafe fn convert(stream: *mut FILE) -> bool {
    const LOCK: usize = 224;
    const WIDE: usize = 240;
    const NEW_LOCK: usize = 264;
    const LOCK_SIZE: usize = 16;
    /// What cookie streams have for a state of wide characters.
    const NO_WIDE: *mut c_void = usize::MAX as *mut c_void;
    let Some(Kind { kind, functions }) = stream::kind() else { return false };
    // SAFETY: members of a live stream. What lies behind them is read and written only after the stream has
    // been seen to be of the class that `fopen` allocates, whose lock and wide state are behind it.
    unsafe {
        let layout = stream::layout(stream);
        let base = stream as usize;
        let convertible = (*layout).kind == stream::plain()
            && (*layout).lock as usize == base + LOCK
            && (*layout).wide as usize == base + WIDE
            && (*layout).mode <= 0;
        if !convertible {
            return false;
        }
        stream.cast::<u8>().add(NEW_LOCK).write_bytes(0, LOCK_SIZE);
        (*layout).lock = stream.cast::<u8>().add(NEW_LOCK).cast();
        (*layout).kind = kind;
        (*layout).functions = functions;
        (*layout).cookie = stream.cast();
        (*layout).wide = NO_WIDE;
        (*layout).mode = -1;
    }
    true
}
