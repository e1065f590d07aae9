//! `fopen`, `fdopen`, `fclose` and `pclose`.

use super::mode::Mode;
use super::stream::{self, FILE};
use crate::faces::real::{handles, may_be_link_into_mount, pointer, text};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

real! {
    real_fopen = fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, else null_mut();
    real_fdopen = fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, else null_mut();
    real_fclose_raw = fclose(stream: *mut FILE) -> c_int, else libc::EOF;
    real_pclose = pclose(stream: *mut FILE) -> c_int, else -1;
}

/// The C library's `fclose`.
///
/// # Safety
/// As for the function itself.
pub(super) unsafe fn real_fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { real_fclose_raw(stream) }
}

/// A stream on a descriptor that `vfs` opened: of ours if the file is in the mount.
///
/// # Safety
/// `mode` is a C string, and what `parsed` came from.
unsafe fn on_descriptor(fd: c_int, mode: *const c_char, parsed: Mode) -> Result<*mut FILE, Errno> {
    let made = if vfs::is_ours(fd) {
        stream::make(fd, parsed)
    } else {
        // SAFETY: the caller's promise.
        let made = unsafe { real_fdopen(fd, mode) };
        if made.is_null() { Err(Errno::NOMEM) } else { Ok(made) }
    };
    if made.is_err() {
        let _ = vfs::close(fd);
    }
    made
}

/// Opens a path through `vfs`.
///
/// # Safety
/// `mode` is a C string.
unsafe fn open_ours(path: &CStr, mode: *const c_char) -> Result<*mut FILE, Errno> {
    // SAFETY: the caller's promise.
    let parsed = Mode::parse(unsafe { text(mode)? })?;
    let fd = vfs::openat(libc::AT_FDCWD, path, parsed.flags, 0o666)?;
    if parsed.appends && !parsed.reads {
        let _ = vfs::lseek(fd, 0, libc::SEEK_END);
    }
    // SAFETY: as above.
    unsafe { on_descriptor(fd, mode, parsed) }
}

/// A stream on a descriptor of ours that the program has opened.
fn adopt(fd: c_int, mode: &CStr) -> Result<*mut FILE, Errno> {
    let mode = Mode::parse(mode)?;
    let flags = vfs::fcntl(fd, libc::F_GETFL, 0)?;
    let access = flags & libc::O_ACCMODE;
    if (access == libc::O_RDONLY && mode.writes) || (access == libc::O_WRONLY && mode.reads) {
        return Err(Errno::INVAL);
    }
    if mode.appends {
        if flags & libc::O_APPEND == 0 {
            vfs::fcntl(fd, libc::F_SETFL, (flags | libc::O_APPEND) as usize)?;
        }
        if !mode.reads {
            let _ = vfs::lseek(fd, 0, libc::SEEK_END);
        }
    }
    stream::make(fd, mode)
}

/// Whether opening again through `vfs` may find what the C library did not, having failed with the present
/// `errno`: a symbolic link into the mount. It must not create what the C library left alone.
pub(super) fn reaches_mount(path: &CStr) -> bool {
    if !may_be_link_into_mount() {
        return false;
    }
    let errno = crate::faces::real::saved_errno();
    let reaches = match vfs::openat(libc::AT_FDCWD, path, libc::O_PATH | libc::O_CLOEXEC, 0) {
        Ok(fd) => {
            let ours = vfs::is_ours(fd);
            let _ = vfs::close(fd);
            ours
        }
        // A link to a file that is to be created.
        Err(Errno::NOENT) => {
            let mut target = [0u8; 1];
            vfs::readlinkat(libc::AT_FDCWD, path, &mut target).is_ok()
        }
        Err(_) => false,
    };
    crate::faces::real::restore_errno(errno);
    reaches
}

/// Runs a function of the C library that closes a stream.
///
/// # Safety
/// `stream` is null or a live stream.
pub(super) unsafe fn closed_by<T>(stream: *mut FILE, call: impl FnOnce() -> T) -> T {
    // SAFETY: the caller's promise.
    if !vfs::tracking() || stream.is_null() || unsafe { stream::is_ours(stream) } {
        return call();
    }
    // SAFETY: as above; a stream without a descriptor has a number below 0 there.
    vfs::open::closed_by(unsafe { (*stream::layout(stream)).fileno }, call)
}

faces! {
    /// Opens a file as a stream.
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        let Ok(name) = text(path) else { return real_fopen(path, mode) };
        if handles(libc::AT_FDCWD, name) {
            return pointer(open_ours(name, mode));
        }
        let stream = real_fopen(path, mode);
        if stream.is_null() && reaches_mount(name) {
            return pointer(open_ours(name, mode));
        }
        stream
    }

    /// The same as [`fopen`].
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        fopen(path, mode)
    }

    /// The name of [`fopen`] in old programs.
    #[allow(non_snake_case)]
    fn _IO_fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        fopen(path, mode)
    }

    /// A stream on an open descriptor.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if vfs::active() && vfs::is_ours(fd) {
            pointer(text(mode).and_then(|mode| adopt(fd, mode)))
        } else {
            real_fdopen(fd, mode)
        }
    }

    /// The name of [`fdopen`] in old programs.
    #[allow(non_snake_case)]
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        fdopen(fd, mode)
    }

    /// Closes a stream. Ours close their descriptors through `vfs`. The C library's may stand on a number
    /// that has become ours since.
    fn fclose(stream: *mut FILE) -> c_int {
        closed_by(stream, || real_fclose(stream))
    }

    /// Closes a stream of `popen`.
    fn pclose(stream: *mut FILE) -> c_int {
        closed_by(stream, || real_pclose(stream))
    }

    /// The name of [`fclose`] in old programs.
    #[allow(non_snake_case)]
    fn _IO_fclose(stream: *mut FILE) -> c_int {
        fclose(stream)
    }
}
