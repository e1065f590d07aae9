//! Permissions, owners and times.

use super::{path, with_path};
use crate::raw::{self, result};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_int, c_uint};

fn kernel_chmod(dirfd: c_int, path: &CStr, mode: c_uint, flags: c_int) -> Result<(), Errno> {
    if flags == 0 {
        return sys!(SYS_fchmodat, dirfd, path.as_ptr(), mode).map(|_| ());
    }
    // libc knows what older kernels lack.
    let real = next!("fchmodat", fn(c_int, *const c_char, c_uint, c_int) -> c_int).ok_or(Errno::NOSYS)?;
    // SAFETY: a C string and numbers.
    from_libc(unsafe { real(dirfd, path.as_ptr(), mode, flags) })
}

fn from_libc(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(raw::errno()) }
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn access_path(dirfd: c_int, name: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::attrs::faccessat_flags(dirfd, path, mode, flags)) })
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn chmod_path(dirfd: c_int, name: *const c_char, mode: c_uint, flags: c_int) -> c_int {
    let set = |path: &CStr| {
        vfs::fchmodat(dirfd, path, mode, flags, |dirfd, path| kernel_chmod(dirfd, path, mode, flags))
    };
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, set) })
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn chown_path(dirfd: c_int, name: *const c_char, uid: c_uint, gid: c_uint, flags: c_int) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::fchownat(dirfd, path, uid, gid, flags)) })
}

type Times = vfs::attrs::Times;

/// Two `struct timeval`, or NULL for now.
///
/// # Safety
/// `times` is NULL or points to two.
unsafe fn from_timevals(times: *const libc::timeval) -> Result<Times, Errno> {
    if times.is_null() {
        return Ok(None);
    }
    let one = |time: libc::timeval| match time.tv_usec {
        0..=999_999 => Ok(libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 }),
        _ => Err(Errno::INVAL),
    };
    // SAFETY: promised by the caller, and not NULL.
    Ok(Some(unsafe { [one(*times)?, one(*times.add(1))?] }))
}

/// # Safety
/// `times` is NULL or points to two.
unsafe fn from_timespecs(times: *const libc::timespec) -> Times {
    // SAFETY: promised by the caller.
    (!times.is_null()).then(|| unsafe { [*times, *times.add(1)] })
}

/// # Safety
/// `name` is NULL or a C string, `times` NULL or two.
unsafe fn set_times(dirfd: c_int, name: *const c_char, times: *const libc::timeval, flags: c_int) -> c_int {
    // SAFETY: promised by the caller.
    result(unsafe {
        from_timevals(times)
            .and_then(|times| with_path(name, |path| vfs::utimensat(dirfd, path, times, flags)))
    })
}

const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

faces! {
    fn access(name: *const c_char, mode: c_int) -> c_int { access_path(libc::AT_FDCWD, name, mode, 0) }
    fn faccessat(dirfd: c_int, name: *const c_char, mode: c_int, flags: c_int) -> c_int { access_path(dirfd, name, mode, flags) }
    fn eaccess(name: *const c_char, mode: c_int) -> c_int { access_path(libc::AT_FDCWD, name, mode, libc::AT_EACCESS) }
    fn euidaccess(name: *const c_char, mode: c_int) -> c_int { access_path(libc::AT_FDCWD, name, mode, libc::AT_EACCESS) }
    fn chmod(name: *const c_char, mode: c_uint) -> c_int { chmod_path(libc::AT_FDCWD, name, mode, 0) }
    fn lchmod(name: *const c_char, mode: c_uint) -> c_int { chmod_path(libc::AT_FDCWD, name, mode, NOFOLLOW) }
    fn fchmodat(dirfd: c_int, name: *const c_char, mode: c_uint, flags: c_int) -> c_int { chmod_path(dirfd, name, mode, flags) }
    fn fchmod(fd: c_int, mode: c_uint) -> c_int { result(vfs::fchmod(fd, mode)) }
    fn chown(name: *const c_char, uid: c_uint, gid: c_uint) -> c_int { chown_path(libc::AT_FDCWD, name, uid, gid, 0) }
    fn lchown(name: *const c_char, uid: c_uint, gid: c_uint) -> c_int { chown_path(libc::AT_FDCWD, name, uid, gid, NOFOLLOW) }
    fn fchownat(dirfd: c_int, name: *const c_char, uid: c_uint, gid: c_uint, flags: c_int) -> c_int { chown_path(dirfd, name, uid, gid, flags) }
    fn fchown(fd: c_int, uid: c_uint, gid: c_uint) -> c_int { result(vfs::fchown(fd, uid, gid)) }
    fn utime(name: *const c_char, times: *const libc::utimbuf) -> c_int {
        let times = (!times.is_null()).then(|| {
            let time = |tv_sec| libc::timespec { tv_sec, tv_nsec: 0 };
            [time((*times).actime), time((*times).modtime)]
        });
        result(with_path(name, |path| vfs::utimensat(libc::AT_FDCWD, path, times, 0)))
    }
    fn utimes(name: *const c_char, times: *const libc::timeval) -> c_int { set_times(libc::AT_FDCWD, name, times, 0) }
    fn lutimes(name: *const c_char, times: *const libc::timeval) -> c_int { set_times(libc::AT_FDCWD, name, times, NOFOLLOW) }
    fn futimes(fd: c_int, times: *const libc::timeval) -> c_int {
        result(from_timevals(times).and_then(|times| vfs::futimens(fd, times)))
    }
    fn futimesat(dirfd: c_int, name: *const c_char, times: *const libc::timeval) -> c_int {
        if name.is_null() {
            return result(from_timevals(times).and_then(|times| vfs::futimens(dirfd, times)));
        }
        set_times(dirfd, name, times, 0)
    }
    fn utimensat(dirfd: c_int, name: *const c_char, times: *const libc::timespec, flags: c_int) -> c_int {
        result(match path(name) {
            Some(name) => vfs::utimensat(dirfd, name, from_timespecs(times), flags),
            None => Err(Errno::INVAL),
        })
    }
    fn futimens(fd: c_int, times: *const libc::timespec) -> c_int { result(vfs::futimens(fd, from_timespecs(times))) }
    fn umask(mask: c_uint) -> c_uint { vfs::state::umask(mask) }
}
