//! Figures of the file system, limits of paths, and what the mount does not offer.

use super::real::handles;
use super::{path, with_path};
use crate::boundary;
use crate::raw::{self, result};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

/// # Safety
/// `name` is NULL or a C string, `into` points to a `struct statfs`.
unsafe fn statfs_path(name: *const c_char, into: *mut libc::statfs) -> c_int {
    let kernel = |path: &CStr| sys!(SYS_statfs, path.as_ptr(), into).map(|_| ());
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::statfs(path, kernel, |ours| into.write(*ours))) })
}

/// # Safety
/// `into` points to a `struct statfs`.
unsafe fn statfs_descriptor(fd: c_int, into: *mut libc::statfs) -> c_int {
    let kernel = || sys!(SYS_fstatfs, fd, into).map(|_| ());
    // SAFETY: promised by the caller.
    result(vfs::fstatfs(fd, kernel, |ours| unsafe { into.write(*ours) }))
}

fn to_statvfs(from: &libc::statfs) -> libc::statvfs {
    // SAFETY: plain numbers, for which zero is a value.
    let mut to: libc::statvfs = unsafe { std::mem::zeroed() };
    to.f_bsize = from.f_bsize as _;
    to.f_frsize = from.f_frsize as _;
    to.f_blocks = from.f_blocks;
    to.f_bfree = from.f_bfree;
    to.f_bavail = from.f_bavail;
    to.f_files = from.f_files;
    to.f_ffree = from.f_ffree;
    to.f_favail = from.f_ffree;
    to.f_namemax = from.f_namelen as _;
    to
}

/// # Safety
/// `name` is NULL or a C string, `into` points to a `struct statvfs`.
unsafe fn statvfs_path(name: *const c_char, into: *mut libc::statvfs) -> c_int {
    let kernel = |path: &CStr| {
        let real = next!("statvfs", fn(*const c_char, *mut libc::statvfs) -> c_int).ok_or(Errno::NOSYS)?;
        // SAFETY: promised by the caller.
        if unsafe { real(path.as_ptr(), into) } == 0 { Ok(()) } else { Err(raw::errno()) }
    };
    // SAFETY: promised by the caller.
    result(unsafe { with_path(name, |path| vfs::statfs(path, kernel, |ours| into.write(to_statvfs(ours)))) })
}

/// # Safety
/// `into` points to a `struct statvfs`.
unsafe fn statvfs_descriptor(fd: c_int, into: *mut libc::statvfs) -> c_int {
    let kernel = || {
        let real = next!("fstatvfs", fn(c_int, *mut libc::statvfs) -> c_int).ok_or(Errno::NOSYS)?;
        // SAFETY: promised by the caller.
        if unsafe { real(fd, into) } == 0 { Ok(()) } else { Err(raw::errno()) }
    };
    // SAFETY: promised by the caller.
    result(vfs::fstatfs(fd, kernel, |ours| unsafe { into.write(to_statvfs(ours)) }))
}

/// `pathconf` for the mount; -1 without an error is "no limit".
fn limit(name: c_int) -> Result<c_long, Errno> {
    Ok(match name {
        libc::_PC_LINK_MAX => bivouac_proto::attr::LINK_MAX as c_long,
        libc::_PC_NAME_MAX => bivouac_proto::attr::NAME_MAX as c_long,
        libc::_PC_PATH_MAX => libc::PATH_MAX as c_long,
        libc::_PC_PIPE_BUF => 4096,
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_NO_TRUNC => 1,
        libc::_PC_VDISABLE => 0,
        libc::_PC_FILESIZEBITS => 64,
        libc::_PC_2_SYMLINKS => 1,
        libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN | libc::_PC_REC_MIN_XFER_SIZE => 4096,
        libc::_PC_MAX_CANON | libc::_PC_MAX_INPUT => 255,
        other if (0..=20).contains(&other) => -1,
        _ => return Err(Errno::INVAL),
    })
}

/// The end of the process.
fn leave(status: c_int) {
    // It ends in any case.
    let _ = boundary::attempt(|| {
        vfs::fds::leave(|| ());
        vfs::state::tell_closes();
    });
    loop {
        let _ = sys!(SYS_exit_group, status);
    }
}

/// After a call that may give paths another meaning (`chroot` and the like): if it succeeded, attributes of
/// paths are not looked up past a mount any more.
fn has_moved(code: c_int) -> c_int {
    if code == 0 {
        vfs::beside::attrs::moved();
    }
    code
}

real! {
    real_chroot = chroot(path: *const c_char) -> c_int, else -1;
    real_setns = setns(fd: c_int, kind: c_int) -> c_int, else -1;
    real_unshare = unshare(what: c_int) -> c_int, else -1;
}

faces! {
    fn chroot(path: *const c_char) -> c_int { has_moved(real_chroot(path)) }
    fn setns(fd: c_int, kind: c_int) -> c_int { has_moved(real_setns(fd, kind)) }
    fn unshare(what: c_int) -> c_int { has_moved(real_unshare(what)) }
    fn statfs(name: *const c_char, into: *mut libc::statfs) -> c_int { statfs_path(name, into) }
    fn statfs64(name: *const c_char, into: *mut libc::statfs) -> c_int { statfs_path(name, into) }
    fn fstatfs(fd: c_int, into: *mut libc::statfs) -> c_int { statfs_descriptor(fd, into) }
    fn fstatfs64(fd: c_int, into: *mut libc::statfs) -> c_int { statfs_descriptor(fd, into) }
    fn statvfs(name: *const c_char, into: *mut libc::statvfs) -> c_int { statvfs_path(name, into) }
    fn statvfs64(name: *const c_char, into: *mut libc::statvfs) -> c_int { statvfs_path(name, into) }
    fn fstatvfs(fd: c_int, into: *mut libc::statvfs) -> c_int { statvfs_descriptor(fd, into) }
    fn fstatvfs64(fd: c_int, into: *mut libc::statvfs) -> c_int { statvfs_descriptor(fd, into) }
    fn pathconf(name: *const c_char, what: c_int) -> c_long {
        if path(name).is_some_and(|path| vfs::in_mount(libc::AT_FDCWD, path)) {
            return result(limit(what));
        }
        next!("pathconf", fn(*const c_char, c_int) -> c_long).map_or(-1, |real| real(name, what))
    }
    fn fpathconf(fd: c_int, what: c_int) -> c_long {
        if !vfs::fds::is_foreign(fd) && vfs::is_ours(fd) {
            return result(limit(what));
        }
        next!("fpathconf", fn(c_int, c_int) -> c_long).map_or(-1, |real| real(fd, what))
    }
    fn name_to_handle_at(dirfd: c_int, name: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int) -> c_int {
        let own = |path: &CStr| path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 && vfs::is_ours(dirfd);
        if path(name).is_some_and(|path| handles(dirfd, path) || vfs::active() && own(path)) {
            return result(Err::<(), _>(Errno::OPNOTSUPP));
        }
        result(sys!(SYS_name_to_handle_at, dirfd, name, handle, mount, flags))
    }
    fn inotify_add_watch(fd: c_int, name: *const c_char, mask: c_uint) -> c_int {
        // Programs that can poll instead do so when there is no inotify.
        if path(name).is_some_and(|path| handles(libc::AT_FDCWD, path)) {
            return result(Err::<(), _>(Errno::NOSYS));
        }
        result(sys!(SYS_inotify_add_watch, fd, name, mask))
    }
    fn _exit(status: c_int) { leave(status) }
    fn _Exit(status: c_int) { leave(status) }
    fn fanotify_mark(fd: c_int, flags: c_uint, mask: u64, dirfd: c_int, name: *const c_char) -> c_int {
        let own = name.is_null() && vfs::active() && vfs::is_ours(dirfd);
        if own || path(name).is_some_and(|path| handles(dirfd, path)) {
            return result(Err::<(), _>(Errno::NOSYS));
        }
        result(sys!(SYS_fanotify_mark, fd, flags, mask, dirfd, name))
    }
}
