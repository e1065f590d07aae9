//! `syscall(2)`: programs and runtimes that make system calls through libc's function.
//!
//! The calls that concern files go the way of their own faces; all others go to the kernel as they are. (Calls made by
//! a program's own `syscall` instruction do not come here: see `docs/preload.md`.)

use super::with_path;
use crate::raw::{call, result};
use crate::vfs::{self, Errno, fds};
use std::ffi::{CStr, c_char, c_long};

/// A call's arguments.
type Args = [usize; 6];

const HERE: i32 = libc::AT_FDCWD;

faces! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let args = [a, b, c, d, e, f];
        let ours = if vfs::active() { routed(number, args) } else { None };
        result(ours.unwrap_or_else(|| call(number, args)))
    }
    fn getdents64(fd: i32, buffer: *mut u8, size: usize) -> isize { result(list(fd, buffer, size)) }
}

/// The result of a call that may concern the mount; `None`: it is the kernel's.
///
/// # Safety
/// The arguments are what the call asks for.
unsafe fn routed(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    // SAFETY: promised by the caller, also below.
    unsafe {
        match number {
            libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_lseek
            | libc::SYS_fstat
            | libc::SYS_ftruncate
            | libc::SYS_fallocate
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_flock
            | libc::SYS_fcntl
            | libc::SYS_ioctl
            | libc::SYS_fchmod
            | libc::SYS_fchown
            | libc::SYS_fchdir
            | libc::SYS_getdents64
                if fds::is_foreign(args[0] as i32) && number != libc::SYS_fcntl =>
            {
                None
            }
            _ => on_descriptor(number, args).or_else(|| on_path(number, args)),
        }
    }
}

fn face(returned: i64) -> Option<Result<usize, Errno>> {
    Some(if returned == -1 { Err(crate::raw::errno()) } else { Ok(returned as usize) })
}

/// # Safety
/// As for [`routed`].
unsafe fn on_descriptor(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    let [a, b, c, d, _, _] = args;
    let fd = a as i32;
    // SAFETY: promised by the caller.
    unsafe {
        match number {
            libc::SYS_read => face(super::io::read(fd, b as _, c) as i64),
            libc::SYS_write => face(super::io::write(fd, b as _, c) as i64),
            libc::SYS_pread64 => face(super::io::pread64(fd, b as _, c, d as i64) as i64),
            libc::SYS_pwrite64 => face(super::io::pwrite64(fd, b as _, c, d as i64) as i64),
            libc::SYS_readv => face(super::io::readv(fd, b as _, c as i32) as i64),
            libc::SYS_writev => face(super::io::writev(fd, b as _, c as i32) as i64),
            libc::SYS_preadv => face(super::io::preadv64(fd, b as _, c as i32, d as i64) as i64),
            libc::SYS_pwritev => face(super::io::pwritev64(fd, b as _, c as i32, d as i64) as i64),
            libc::SYS_lseek => Some(vfs::lseek(fd, b as i64, c as i32).map(|offset| offset as usize)),
            libc::SYS_fstat => face(super::stat::fstat(fd, b as _).into()),
            libc::SYS_ftruncate => done(vfs::ftruncate(fd, b as i64)),
            libc::SYS_fallocate => done(vfs::fallocate(fd, b as i32, c as i64, d as i64)),
            libc::SYS_fsync => done(vfs::fsync(fd, false)),
            libc::SYS_fdatasync => done(vfs::fsync(fd, true)),
            libc::SYS_flock => face(super::lock::flock(fd, b as i32).into()),
            libc::SYS_fcntl => number_of(vfs::control::fcntl(fd, b as i32, c)),
            libc::SYS_ioctl => number_of(vfs::control::ioctl(fd, b as u64, c)),
            libc::SYS_fchmod => done(vfs::fchmod(fd, b as u32)),
            libc::SYS_fchown => done(vfs::fchown(fd, b as u32, c as u32)),
            libc::SYS_fchdir => done(vfs::fchdir(fd)),
            libc::SYS_getdents64 => Some(list(fd, b as *mut u8, c)),
            libc::SYS_close => done(vfs::close(fd)),
            libc::SYS_close_range => done(vfs::close_range(a as u32, b as u32, c as u32)),
            libc::SYS_dup => number_of(vfs::dup(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => number_of(vfs::dup3(fd, b as i32, 0, true)),
            libc::SYS_dup3 => number_of(vfs::dup3(fd, b as i32, c as i32, false)),
            libc::SYS_copy_file_range => {
                let [_, _, _, _, len, flags] = args;
                face(super::transfer::copy_file_range(fd, b as _, c as i32, d as _, len, flags as u32) as i64)
            }
            libc::SYS_sendfile => face(super::transfer::sendfile64(fd, b as i32, c as _, d) as i64),
            _ => None,
        }
    }
}

/// # Safety
/// As for [`routed`].
unsafe fn on_path(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    let [a, b, c, d, e, _] = args;
    let (first, second) = (a as *const c_char, b as *const c_char);
    // SAFETY: promised by the caller.
    unsafe {
        match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => {
                at(HERE, first, |fd, path| vfs::openat(fd, path, b as i32, c as u32).map(|fd| fd as usize))
            }
            libc::SYS_openat => at(a as i32, second, |fd, path| {
                vfs::openat(fd, path, c as i32, d as u32).map(|fd| fd as usize)
            }),
            // Its rules for resolving are the kernel's own: callers fall back to openat.
            libc::SYS_openat2 if in_mount(a as i32, second) => Some(Err(Errno::NOSYS)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => face(super::stat::stat(first, b as _).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => face(super::stat::lstat(first, b as _).into()),
            libc::SYS_newfstatat => face(super::stat::fstatat(a as i32, second, c as _, d as i32).into()),
            libc::SYS_statx => face(super::stat::statx(a as i32, second, c as i32, d as u32, e as _).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => face(super::access::access(first, b as i32).into()),
            libc::SYS_faccessat => face(super::access::faccessat(a as i32, second, c as i32, 0).into()),
            libc::SYS_faccessat2 if in_mount(a as i32, second) => {
                face(super::access::faccessat(a as i32, second, c as i32, d as i32).into())
            }
            libc::SYS_truncate => face(super::names::truncate(first, b as i64).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir => face(super::names::mkdir(first, b as u32).into()),
            libc::SYS_mkdirat => face(super::names::mkdirat(a as i32, second, c as u32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rmdir => face(super::names::rmdir(first).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => face(super::names::unlink(first).into()),
            libc::SYS_unlinkat => face(super::names::unlinkat(a as i32, second, c as i32).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => face(super::names::rename(first, second).into()),
            libc::SYS_renameat2 => {
                face(super::names::renameat2(a as i32, second, c as i32, d as _, e as u32).into())
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => face(super::names::readlink(first, b as _, c) as i64),
            libc::SYS_readlinkat => face(super::names::readlinkat(a as i32, second, c as _, d) as i64),
            libc::SYS_linkat => {
                face(super::names::linkat(a as i32, second, c as i32, d as _, e as i32).into())
            }
            libc::SYS_symlinkat => face(super::names::symlinkat(first, b as i32, c as _).into()),
            libc::SYS_chdir => at(HERE, first, |_, path| vfs::chdir(path).map(|()| 0)),
            libc::SYS_getcwd => Some(working_directory(a as *mut u8, b)),
            libc::SYS_fchmodat => face(super::access::fchmodat(a as i32, second, c as u32, 0).into()),
            libc::SYS_fchownat => {
                face(super::access::fchownat(a as i32, second, c as u32, d as u32, e as i32).into())
            }
            libc::SYS_utimensat if b != 0 => {
                face(super::access::utimensat(a as i32, second, c as _, d as i32).into())
            }
            libc::SYS_umask => Some(Ok(vfs::state::umask(a as u32) as usize)),
            _ => None,
        }
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
    unsafe { super::path(path) }.is_some_and(|path| vfs::in_mount(dirfd, path))
}

fn done(result: Result<(), Errno>) -> Option<Result<usize, Errno>> {
    Some(result.map(|()| 0))
}

fn number_of(result: Result<i32, Errno>) -> Option<Result<usize, Errno>> {
    Some(result.map(|number| number as usize))
}

/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn working_directory(buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let path = vfs::getcwd()?;
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

/// Bytes of a `struct linux_dirent64` before its name: inode, position, length, type.
const ENTRY_HEAD: usize = 19;

/// `getdents64(2)` on a directory of ours.
///
/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn list(fd: i32, buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let Some(file) = fds::get(fd)? else {
        return sys!(SYS_getdents64, fd, buffer, size);
    };
    let before = vfs::lseek(fd, 0, libc::SEEK_CUR)?;
    // The smallest entry takes 24 bytes; what does not fit is asked for again.
    let entries = vfs::state::guarded(|| file.list((size / 48).max(1)))?;
    let mut used = 0;
    // Where the run of entries with the current cookie began, and the cookie before it: a listing never stops within one.
    let mut run = (0, before);
    let mut last = None;
    for entry in &entries {
        let length = (ENTRY_HEAD + entry.name.len() + 1).next_multiple_of(8);
        if last != Some(entry.cookie as i64) {
            run = (used, last.unwrap_or(before));
        }
        if used + length > size {
            vfs::lseek(fd, run.1, libc::SEEK_SET)?;
            if run.0 == 0 {
                return Err(Errno::INVAL);
            }
            used = run.0;
            break;
        }
        let cookie = entry.cookie as i64;
        // SAFETY: the entry fits into what is left.
        unsafe {
            let to = buffer.add(used);
            to.write_bytes(0, length);
            to.cast::<u64>().write_unaligned(entry.ino.0);
            to.add(8).cast::<i64>().write_unaligned(cookie);
            to.add(16).cast::<u16>().write_unaligned(length as u16);
            to.add(18).write(entry.kind.d_type());
            std::ptr::copy_nonoverlapping(entry.name.as_ptr(), to.add(ENTRY_HEAD), entry.name.len());
        }
        used += length;
        last = Some(cookie);
    }
    Ok(used)
}
