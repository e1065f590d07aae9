//! The door: what becomes of a call that the gate could not pass at once.
//!
//! Whether it concerns the mount is decided as for the faces, and served by the same functions, by way of
//! those that `syscall(2)` uses. Two things differ, as this is the inside of libc:
//! - What may block, and is the kernel's, is passed on to it (`None`), to be done in its old place; only
//!   there a thread can be cancelled. So an `open` that is the kernel's by its text is looked up first: one
//!   that finds nothing does not block, and may lead into the mount by a link.
//! - While it is at work, the signal by which glibc cancels threads is held back, as the function around the
//!   site may have allowed that at any instruction; and `errno` is left alone, which is that function's to
//!   set.

use super::LOOKED_AT;
use super::gate::{Kind, NUMBERS};
use crate::faces::real::{restore_errno, saved_errno};
use crate::faces::{path as path_of, syscall};
use crate::vfs::{Errno, fds, links, place, state};
use std::ffi::{c_char, c_long};

/// The signal by which glibc cancels a thread, as a set.
static CANCEL_SET: u64 = 1 << 31;

/// Calls whose first argument is a descriptor.
const DESCRIPTORS: [c_long; 37] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_sync_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_getdents,
    libc::SYS_getdents64,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
    libc::SYS_dup,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_close,
    libc::SYS_mmap,
];

/// Calls that change what a number or the working directory is, and calls on paths: none of them blocks where
/// it is the kernel's.
const OTHERS: [c_long; 56] = [
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_close_range,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_truncate,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_chmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_inotify_add_watch,
    libc::SYS_execve,
];

/// What the gate is to do with each number.
pub const fn kinds() -> [Kind; NUMBERS] {
    let mut kinds = [Kind::Pass; NUMBERS];
    let mut at = 0;
    while at < DESCRIPTORS.len() {
        kinds[DESCRIPTORS[at] as usize] = Kind::Descriptor;
        at += 1;
    }
    at = 0;
    while at < OTHERS.len() {
        kinds[OTHERS[at] as usize] = Kind::Ask;
        at += 1;
    }
    kinds[libc::SYS_close as usize] = Kind::Close;
    kinds[libc::SYS_mmap as usize] = Kind::Map;
    kinds[libc::SYS_open as usize] = Kind::Open;
    kinds[libc::SYS_openat as usize] = Kind::OpenAt;
    // Two descriptors.
    kinds[libc::SYS_sendfile as usize] = Kind::Ask;
    kinds[libc::SYS_copy_file_range as usize] = Kind::Ask;
    kinds
}

/// Whether calls of a number are caught.
pub fn concerns(number: u32) -> bool {
    const KINDS: [Kind; NUMBERS] = kinds();
    KINDS.get(number as usize).is_some_and(|kind| *kind != Kind::Pass)
}

/// The result of a call; `None`: it is the kernel's.
///
/// # Safety
/// The arguments are what the call asks for.
pub unsafe fn answer(number: usize, args: [usize; 6]) -> Option<Result<usize, Errno>> {
    if !state::active() {
        return None;
    }
    let number = number as c_long;
    let errno = saved_errno();
    let held = if is_cancellable(number) { hold_cancellation() } else { None };
    // SAFETY: promised by the caller.
    let answer = unsafe { if passes(number, args) { None } else { syscall::routed(number, args) } };
    // A thread that is to be cancelled may end here: there is nothing that would have to be dropped.
    if let Some(before) = held {
        set_mask(before);
    }
    restore_errno(errno);
    answer
}

/// Whether libc may let threads be cancelled at any time during this call.
fn is_cancellable(number: c_long) -> bool {
    matches!(number, libc::SYS_open | libc::SYS_openat | libc::SYS_creat) || DESCRIPTORS.contains(&number)
}

/// Holds back cancellation by other threads, if there are any; the signals held back before.
fn hold_cancellation() -> Option<u64> {
    real_variable!(SINGLE, "__libc_single_threaded");
    // SAFETY: a variable of one byte, as long as libc is there.
    if SINGLE.get().is_some_and(|single| unsafe { single.cast::<u8>().read_volatile() } != 0) {
        return None;
    }
    let mut before = 0u64;
    let set =
        sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const CANCEL_SET, &raw mut before, size_of::<u64>());
    set.is_ok().then_some(before)
}

fn set_mask(mask: u64) {
    let _ = sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, size_of::<u64>());
}

/// Whether a call is left to the kernel, in its old place.
///
/// # Safety
/// As for [`answer`].
unsafe fn passes(number: c_long, args: [usize; 6]) -> bool {
    let is_foreign = |fd: usize| matches!(fds::get(fd as i32), Ok(None));
    let [a, b, c, d, e, _] = args;
    match number {
        // SAFETY: promised by the caller.
        libc::SYS_open => unsafe { opens_outside(libc::AT_FDCWD, a as _, b as i32) },
        // SAFETY: promised by the caller.
        libc::SYS_openat => unsafe { opens_outside(a as i32, b as _, c as i32) },
        libc::SYS_mmap => d as i32 & libc::MAP_ANONYMOUS != 0 || is_foreign(e),
        libc::SYS_sendfile => is_foreign(a) && is_foreign(b),
        libc::SYS_copy_file_range => is_foreign(a) && is_foreign(c),
        libc::SYS_close => false,
        _ if DESCRIPTORS.contains(&number) => is_foreign(a),
        _ => false,
    }
}

/// Whether `open` is the kernel's, and finds something.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn opens_outside(dirfd: i32, path: *const c_char, flags: i32) -> bool {
    // SAFETY: promised by the caller.
    let Some(path) = (unsafe { path_of(path) }) else { return true };
    // Nothing there is a link into a mount. `malloc` opens files there, and it must not be called again from
    // here.
    if flags & LOOKED_AT != 0 || path.to_bytes().starts_with(b"/sys/") {
        return true;
    }
    if !matches!(place::place(dirfd, path), Ok(place::Place::Kernel)) {
        return false;
    }
    match sys!(SYS_faccessat, dirfd, path.as_ptr(), libc::F_OK) {
        Err(errno) => !links::may_lead_inside(errno),
        Ok(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_nothing_to_do_with_files_passes_at_once() {
        for number in [
            libc::SYS_rt_sigreturn,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_futex,
            libc::SYS_rt_sigprocmask,
            libc::SYS_munmap,
            libc::SYS_brk,
            libc::SYS_getpid,
        ] {
            assert!(!concerns(number as u32), "{number}");
        }
        assert!(!concerns(u32::MAX) && concerns(libc::SYS_openat as u32) && concerns(libc::SYS_read as u32));
    }

    #[test]
    fn without_a_deployment_every_call_is_the_kernels() {
        for number in DESCRIPTORS.into_iter().chain(OTHERS) {
            // SAFETY: nothing is done with the arguments.
            assert!(unsafe { answer(number as usize, [0; 6]) }.is_none());
        }
    }
}
