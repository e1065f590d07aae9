//! System calls whose first argument is a descriptor.

use super::{Args, done, face, listing, number_of};
use crate::faces::{fd as control, io, lock, map, misc, stat, transfer, xattr};
use crate::vfs::{self, Errno, fds};
use std::ffi::c_long;

/// Whether a call concerns nothing but the descriptor that comes first, so that a foreign one is the kernel's
/// at once.
fn is_about_one(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_pread64
            | libc::SYS_pwrite64
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_preadv
            | libc::SYS_pwritev
            | libc::SYS_preadv2
            | libc::SYS_pwritev2
            | libc::SYS_lseek
            | libc::SYS_fstat
            | libc::SYS_fstatfs
            | libc::SYS_ftruncate
            | libc::SYS_fallocate
            | libc::SYS_fadvise64
            | libc::SYS_readahead
            | libc::SYS_sync_file_range
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_syncfs
            | libc::SYS_flock
            | libc::SYS_fchmod
            | libc::SYS_fchown
            | libc::SYS_getdents64
            | libc::SYS_fgetxattr
            | libc::SYS_flistxattr
            | libc::SYS_fsetxattr
            | libc::SYS_fremovexattr
    )
}

/// The result of a call on descriptors; `None`: it is none, or the kernel's.
///
/// # Safety
/// The arguments are what the call asks for.
pub unsafe fn routed(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    let [a, b, c, d, e, f] = args;
    let fd = a as i32;
    if is_about_one(number) && fds::is_foreign(fd) {
        return None;
    }
    // SAFETY: promised by the caller.
    unsafe {
        match number {
            libc::SYS_read => face(io::read(fd, b as _, c) as i64),
            libc::SYS_write => face(io::write(fd, b as _, c) as i64),
            libc::SYS_pread64 => face(io::pread64(fd, b as _, c, d as i64) as i64),
            libc::SYS_pwrite64 => face(io::pwrite64(fd, b as _, c, d as i64) as i64),
            libc::SYS_readv => face(io::readv(fd, b as _, c as i32) as i64),
            libc::SYS_writev => face(io::writev(fd, b as _, c as i32) as i64),
            libc::SYS_preadv => face(io::preadv64(fd, b as _, c as i32, d as i64) as i64),
            libc::SYS_pwritev => face(io::pwritev64(fd, b as _, c as i32, d as i64) as i64),
            libc::SYS_preadv2 => face(io::preadv64v2(fd, b as _, c as i32, d as i64, f as i32) as i64),
            libc::SYS_pwritev2 => face(io::pwritev64v2(fd, b as _, c as i32, d as i64, f as i32) as i64),
            libc::SYS_lseek => Some(vfs::lseek(fd, b as i64, c as i32).map(|offset| offset as usize)),
            libc::SYS_fstat => face(stat::fstat(fd, b as _).into()),
            libc::SYS_fstatfs => face(misc::fstatfs(fd, b as _).into()),
            libc::SYS_ftruncate => done(vfs::ftruncate(fd, b as i64)),
            libc::SYS_fallocate => done(vfs::fallocate(fd, b as i32, c as i64, d as i64)),
            libc::SYS_fadvise64 => code(control::posix_fadvise64(fd, b as i64, c as i64, d as i32)),
            libc::SYS_readahead => face(control::readahead(fd, b as i64, c) as i64),
            libc::SYS_sync_file_range => {
                face(control::sync_file_range(fd, b as i64, c as i64, d as u32).into())
            }
            libc::SYS_fsync => done(vfs::fsync(fd, false)),
            libc::SYS_fdatasync => done(vfs::fsync(fd, true)),
            libc::SYS_syncfs => face(control::syncfs(fd).into()),
            libc::SYS_flock => face(lock::flock(fd, b as i32).into()),
            libc::SYS_fcntl => number_of(vfs::control::fcntl(fd, b as i32, c)),
            libc::SYS_ioctl => number_of(vfs::control::ioctl(fd, b as u64, c)),
            libc::SYS_fchmod => done(vfs::fchmod(fd, b as u32)),
            libc::SYS_fchown => done(vfs::fchown(fd, b as u32, c as u32)),
            libc::SYS_fchdir => done(vfs::fchdir(fd)),
            libc::SYS_getdents64 => Some(listing::list(fd, b as *mut u8, c)),
            // Its records have another form, which nobody has asked for in twenty years.
            #[cfg(target_arch = "x86_64")]
            libc::SYS_getdents if vfs::is_ours(fd) => Some(Err(Errno::NOSYS)),
            libc::SYS_fgetxattr => face(xattr::fgetxattr(fd, b as _, c as _, d) as i64),
            libc::SYS_flistxattr => face(xattr::flistxattr(fd, b as _, c) as i64),
            libc::SYS_fsetxattr => face(xattr::fsetxattr(fd, b as _, c as _, d, e as i32).into()),
            libc::SYS_fremovexattr => face(xattr::fremovexattr(fd, b as _).into()),
            libc::SYS_close => done(vfs::close(fd)),
            libc::SYS_close_range => done(vfs::close_range(a as u32, b as u32, c as u32)),
            libc::SYS_dup => number_of(vfs::dup(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => number_of(vfs::dup3(fd, b as i32, 0, true)),
            libc::SYS_dup3 => number_of(vfs::dup3(fd, b as i32, c as i32, false)),
            libc::SYS_copy_file_range => {
                face(transfer::copy_file_range(fd, b as _, c as i32, d as _, e, f as u32) as i64)
            }
            libc::SYS_sendfile => face(transfer::sendfile64(fd, b as i32, c as _, d) as i64),
            libc::SYS_splice => face(transfer::splice(fd, b as _, c as i32, d as _, e, f as u32) as i64),
            libc::SYS_tee => face(transfer::tee(fd, b as i32, c, d as u32) as i64),
            libc::SYS_vmsplice => face(transfer::vmsplice(fd, b as _, c, d as u32) as i64),
            libc::SYS_recvmsg => face(control::recvmsg(fd, b as _, c as i32) as i64),
            libc::SYS_recvmmsg => face(control::recvmmsg(fd, b as _, c as u32, d as i32, e as _).into()),
            libc::SYS_mmap => face(map::mmap64(a as _, b, c as i32, d as i32, e as i32, f as i64) as i64),
            _ => None,
        }
    }
}

/// The result of a function that returns its error.
fn code(code: i32) -> Option<Result<usize, Errno>> {
    Some(if code == 0 { Ok(0) } else { Err(Errno(code as u16)) })
}
