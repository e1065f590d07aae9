//! System calls on paths.

use super::{Args, face};
use crate::faces::real::handles;
use crate::faces::{access, exec, misc, names, open, path as path_of, stat, with_path, xattr};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_long};

const HERE: i32 = libc::AT_FDCWD;

/// The result of a call on paths; `None`: it is none, or the kernel's.
///
/// # Safety
/// The arguments are what the call asks for.
pub unsafe fn routed(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    let [a, b, c, d, e, _] = args;
    let (first, second) = (a as *const c_char, b as *const c_char);
    // SAFETY: promised by the caller.
    unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => {
                at(HERE, first, |fd, path| vfs::openat(fd, path, b as i32, c as u32).map(|fd| fd as usize))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => face(open::creat(first, b as u32).into()),
            libc::SYS_openat => at(a as i32, second, |fd, path| {
                vfs::openat(fd, path, c as i32, d as u32).map(|fd| fd as usize)
            }),
            // ENOSYS: `openat2` has its own rules for resolving paths; callers fall back to openat.
            libc::SYS_openat2 if in_mount(a as i32, second) => Some(Err(Errno::NOSYS)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => face(stat::stat(first, b as _).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => face(stat::lstat(first, b as _).into()),
            libc::SYS_newfstatat => face(stat::fstatat(a as i32, second, c as _, d as i32).into()),
            libc::SYS_statx => face(stat::statx(a as i32, second, c as i32, d as u32, e as _).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => face(access::access(first, b as i32).into()),
            libc::SYS_faccessat => face(access::faccessat(a as i32, second, c as i32, 0).into()),
            libc::SYS_faccessat2 => Some(faccessat2(a as i32, second, c as i32, d as i32)),
            libc::SYS_truncate => face(names::truncate(first, b as i64).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir => face(names::mkdir(first, b as u32).into()),
            libc::SYS_mkdirat => face(names::mkdirat(a as i32, second, c as u32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rmdir => face(names::rmdir(first).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => face(names::unlink(first).into()),
            libc::SYS_unlinkat => face(names::unlinkat(a as i32, second, c as i32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => face(names::rename(first, second).into()),
            libc::SYS_renameat => face(names::renameat(a as i32, second, c as i32, d as _).into()),
            libc::SYS_renameat2 => {
                face(names::renameat2(a as i32, second, c as i32, d as _, e as u32).into())
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => face(names::readlink(first, b as _, c) as i64),
            libc::SYS_readlinkat => face(names::readlinkat(a as i32, second, c as _, d) as i64),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_link => face(names::link(first, second).into()),
            libc::SYS_linkat => face(names::linkat(a as i32, second, c as i32, d as _, e as i32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_symlink => face(names::symlink(first, second).into()),
            libc::SYS_symlinkat => face(names::symlinkat(first, b as i32, c as _).into()),
            libc::SYS_chdir => at(HERE, first, |_, path| vfs::chdir(path).map(|()| 0)),
            libc::SYS_getcwd => vfs::path_inside().map(|path| working_directory(path, a as *mut u8, b)),
            libc::SYS_fchmodat => face(access::fchmodat(a as i32, second, c as u32, 0).into()),
            libc::SYS_fchownat => {
                face(access::fchownat(a as i32, second, c as u32, d as u32, e as i32).into())
            }
            libc::SYS_fchmodat2 => Some(fchmodat2(a as i32, second, c as u32, d as i32)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => face(access::chmod(first, b as u32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chown => face(access::chown(first, b as u32, c as u32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lchown => face(access::lchown(first, b as u32, c as u32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mknod => face(names::mknod(first, b as u32, c as u64).into()),
            libc::SYS_mknodat => face(names::mknodat(a as i32, second, c as u32, d as u64).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_utime => face(access::utime(first, b as _).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_utimes => face(access::utimes(first, b as _).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_futimesat => face(access::futimesat(a as i32, second, c as _).into()),
            // Without a path: the descriptor's own.
            libc::SYS_utimensat if b == 0 && a as i32 != HERE => {
                if d == 0 {
                    face(access::futimens(a as i32, c as _).into())
                } else {
                    Some(Err(Errno::INVAL))
                }
            }
            libc::SYS_utimensat if b != 0 => {
                face(access::utimensat(a as i32, second, c as _, d as i32).into())
            }
            libc::SYS_statfs => face(misc::statfs(first, b as _).into()),
            libc::SYS_getxattr => face(xattr::getxattr(first, second, c as _, d) as i64),
            libc::SYS_lgetxattr => face(xattr::lgetxattr(first, second, c as _, d) as i64),
            libc::SYS_listxattr => face(xattr::listxattr(first, b as _, c) as i64),
            libc::SYS_llistxattr => face(xattr::llistxattr(first, b as _, c) as i64),
            libc::SYS_setxattr => face(xattr::setxattr(first, second, c as _, d, e as i32).into()),
            libc::SYS_lsetxattr => face(xattr::lsetxattr(first, second, c as _, d, e as i32).into()),
            libc::SYS_removexattr => face(xattr::removexattr(first, second).into()),
            libc::SYS_lremovexattr => face(xattr::lremovexattr(first, second).into()),
            libc::SYS_name_to_handle_at => {
                face(misc::name_to_handle_at(a as i32, second, c as _, d as _, e as i32).into())
            }
            libc::SYS_inotify_add_watch => face(misc::inotify_add_watch(a as i32, second, c as u32).into()),
            libc::SYS_fanotify_mark => {
                face(misc::fanotify_mark(a as i32, b as u32, c as u64, d as i32, e as _).into())
            }
            libc::SYS_execve => face(exec::execve(first, b as _, c as _).into()),
            libc::SYS_execveat => face(exec::execveat(a as i32, second, c as _, d as _, e as i32).into()),
            libc::SYS_umask => Some(Ok(vfs::state::umask(a as u32) as usize)),
            _ => None,
        }
    }
}

/// Whether a call may concern the mount, judged by its arguments. (Links from outside into the mount are
/// noticed only by an error.)
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn concerns(dirfd: i32, path: *const c_char, flags: i32) -> bool {
    // SAFETY: promised by the caller.
    match unsafe { path_of(path) } {
        Some(path) if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 => {
            if dirfd == HERE {
                vfs::in_mount(HERE, c".")
            } else {
                vfs::is_ours(dirfd)
            }
        }
        Some(path) => handles(dirfd, path),
        None => false,
    }
}

/// The kernel's answer to a call that libc has no exact function for; `None`: the mount's is to be asked.
///
/// # Safety
/// The arguments are what the call asks for; the second is its path, the fourth its flags.
unsafe fn kernels(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    // SAFETY: promised by the caller.
    unsafe {
        if concerns(args[0] as i32, args[1] as _, args[3] as i32) {
            return None;
        }
        match crate::raw::call(number, args) {
            Err(errno) if vfs::links::may_lead_inside(errno) => None,
            other => Some(other),
        }
    }
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn faccessat2(dirfd: i32, path: *const c_char, mode: i32, flags: i32) -> Result<usize, Errno> {
    // SAFETY: promised by the caller.
    unsafe {
        let args = [dirfd as usize, path as usize, mode as usize, flags as usize, 0, 0];
        kernels(libc::SYS_faccessat2, args).unwrap_or_else(|| {
            with_path(path, |path| vfs::attrs::faccessat_flags(dirfd, path, mode, flags)).map(|()| 0)
        })
    }
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn fchmodat2(dirfd: i32, path: *const c_char, mode: u32, flags: i32) -> Result<usize, Errno> {
    let args = [dirfd as usize, path as usize, mode as usize, flags as usize, 0, 0];
    let kernel = |dirfd: i32, path: &CStr| sys!(SYS_fchmodat2, dirfd, path.as_ptr(), mode, flags).map(|_| ());
    // SAFETY: promised by the caller.
    unsafe {
        kernels(libc::SYS_fchmodat2, args).unwrap_or_else(|| {
            with_path(path, |path| vfs::fchmodat(dirfd, path, mode, flags, kernel)).map(|()| 0)
        })
    }
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn at(
    dirfd: i32,
    path: *const c_char,
    body: impl FnOnce(i32, &CStr) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    // SAFETY: promised by the caller.
    Some(unsafe { with_path(path, |path| body(dirfd, path)) })
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn in_mount(dirfd: i32, path: *const c_char) -> bool {
    // SAFETY: promised by the caller.
    unsafe { path_of(path) }.is_some_and(|path| vfs::in_mount(dirfd, path))
}

/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn working_directory(
    path: Result<Vec<u8>, Errno>,
    buffer: *mut u8,
    size: usize,
) -> Result<usize, Errno> {
    let path = path?;
    if path.len() >= size {
        return Err(Errno::RANGE);
    }
    // SAFETY: there is room for the path and its NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(path.as_ptr(), buffer, path.len());
        buffer.add(path.len()).write(0);
    }
    Ok(path.len() + 1)
}
