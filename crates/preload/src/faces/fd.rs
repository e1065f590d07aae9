//! Descriptors themselves: closing, duplicating, `fcntl`, `ioctl`, positions, sizes, syncing.

use super::{blocking, cancellation_point, said};
use crate::raw::{self, result};
use crate::vfs::{self, Errno, fds, open, state};
use std::ffi::{c_char, c_int, c_uint, c_ulong};

const TCGETS: usize = 0x5401;

real! {
    real_close = close(fd: c_int) -> c_int, else -1;
    real_fcntl = fcntl(fd: c_int, command: c_int, arg: usize) -> c_int, else -1;
    real_fallocate = fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int, else -1;
    real_sync_file_range = sync_file_range(fd: c_int, offset: i64, len: i64, flags: c_uint) -> c_int, else -1;
    real_fsync = fsync(fd: c_int) -> c_int, else -1;
    real_fdatasync = fdatasync(fd: c_int) -> c_int, else -1;
    real_recvmsg = recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize, else -1;
    real_recvmmsg = recvmmsg(
        socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec,
    ) -> c_int, else -1;
}

/// The result of a function that returns only whether it failed.
fn went(code: c_int) -> Result<(), Errno> {
    said(code).map(|_| ())
}

fn close_number(fd: c_int) -> c_int {
    cancellation_point(fd);
    // SAFETY: a plain number.
    result(open::close_by(fd, || went(unsafe { real_close(fd) })))
}

/// # Safety
/// `arg` is what the command asks for.
unsafe fn control_descriptor(fd: c_int, command: c_int, arg: usize) -> c_int {
    if matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW) {
        cancellation_point(fd);
    }
    // SAFETY: promised by the caller.
    result(unsafe { vfs::control::fcntl_by(fd, command, arg, || said(real_fcntl(fd, command, arg))) })
}

fn allocate_storage(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
    cancellation_point(fd);
    // SAFETY: plain numbers.
    let real = || went(unsafe { real_fallocate(fd, mode, offset, len) });
    result(vfs::data::fallocate_by(fd, mode, offset, len, real))
}

fn sync(fd: c_int, data_only: bool) -> c_int {
    cancellation_point(fd);
    // SAFETY: a plain number.
    let real = || went(unsafe { if data_only { real_fdatasync(fd) } else { real_fsync(fd) } });
    result(vfs::data::fsync_by(fd, real))
}

/// Closes everything from a number on, where the kernel has no `close_range`.
fn close_listed(first: c_int) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let Ok(list) = sys!(SYS_openat, libc::AT_FDCWD, c"/proc/self/fd".as_ptr(), flags) else {
        return;
    };
    let list = open::owned(list);
    let mut numbers = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = rustix::fs::RawDir::new(&list, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<c_int>().ok());
        numbers.extend(number.filter(|number| *number >= first));
    }
    drop(list);
    for number in numbers {
        let _ = vfs::close(number);
    }
}

/// `isatty`: a file of ours is never a terminal.
fn terminal(fd: c_int) -> Result<(), Errno> {
    if !fds::is_foreign(fd)
        && let Some(file) = fds::get(fd)?
    {
        return Err(if file.is_path_only() { Errno::BADF } else { Errno(libc::ENOTTY as u16) });
    }
    let mut state = [0u8; 64];
    sys!(SYS_ioctl, fd, TCGETS, state.as_mut_ptr()).map(|_| ())
}

/// What `posix_*` functions return: the error itself.
fn number(result: Result<(), Errno>) -> c_int {
    result.err().map_or(0, |errno| c_int::from(errno.0))
}

fn advise(fd: c_int, offset: i64, len: i64, advice: c_int) -> c_int {
    number(match fds::get(fd) {
        Ok(Some(file)) if file.is_path_only() => Err(Errno::BADF),
        Ok(Some(_)) if len < 0 || !(0..=5).contains(&advice) => Err(Errno::INVAL),
        Ok(Some(_)) => Ok(()),
        // The kernel would read into its page cache, as if for a mapping.
        Ok(None) if advice == libc::POSIX_FADV_WILLNEED && vfs::beside::is_in_mount(fd) => Ok(()),
        Ok(None) => sys!(SYS_fadvise64, fd, offset, len, advice).map(|_| ()),
        Err(errno) => Err(errno),
    })
}

fn allocate(fd: c_int, offset: i64, len: i64) -> c_int {
    if !fds::is_foreign(fd) && fds::is_ours(fd) {
        return number(vfs::fallocate(fd, 0, offset, len));
    }
    match next!("posix_fallocate64", fn(c_int, i64, i64) -> c_int) {
        // SAFETY: plain numbers.
        Some(real) => unsafe { real(fd, offset, len) },
        None => number(vfs::fallocate(fd, 0, offset, len)),
    }
}

/// Descriptors that come with a message may be ours.
///
/// # Safety
/// `message` was filled in by `recvmsg`.
unsafe fn note_received(message: *const libc::msghdr) {
    // SAFETY: the macros walk the control data that the kernel wrote.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            if (*control).cmsg_level == libc::SOL_SOCKET && (*control).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(control);
                let header = data as usize - control as usize;
                let count = ((*control).cmsg_len as usize).saturating_sub(header) / size_of::<c_int>();
                for i in 0..count {
                    open::note_unknown(data.cast::<c_int>().add(i).read_unaligned());
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
}

faces! {
    fn close(fd: c_int) -> c_int { close_number(fd) }
    fn __close(fd: c_int) -> c_int { close_number(fd) }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int { result(vfs::close_range(first, last, flags as u32)) }
    fn closefrom(first: c_int) {
        let first = first.max(0);
        if vfs::close_range(first as u32, u32::MAX, 0).is_err() {
            close_listed(first);
        }
    }
    fn dup(fd: c_int) -> c_int { result(vfs::dup(fd)) }
    fn dup2(old: c_int, new: c_int) -> c_int { result(vfs::dup3(old, new, 0, true)) }
    fn __dup2(old: c_int, new: c_int) -> c_int { result(vfs::dup3(old, new, 0, true)) }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int { result(vfs::dup3(old, new, flags, false)) }
    fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int { control_descriptor(fd, command, arg) }
    fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int { control_descriptor(fd, command, arg) }
    fn __fcntl(fd: c_int, command: c_int, arg: usize) -> c_int { control_descriptor(fd, command, arg) }
    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int { result(vfs::control::ioctl(fd, request, arg)) }
    fn isatty(fd: c_int) -> c_int {
        match terminal(fd) {
            Ok(()) => 1,
            Err(errno) => { raw::set_errno(errno); 0 }
        }
    }
    fn ttyname_r(fd: c_int, buffer: *mut c_char, size: usize) -> c_int, else (libc::EIO) {
        if !fds::is_foreign(fd) && vfs::is_ours(fd) {
            return libc::ENOTTY;
        }
        next!("ttyname_r", fn(c_int, *mut c_char, usize) -> c_int).map_or(libc::ENOSYS, |real| real(fd, buffer, size))
    }
    fn ttyname(fd: c_int) -> *mut c_char {
        if !fds::is_foreign(fd) && vfs::is_ours(fd) {
            raw::set_errno(Errno(libc::ENOTTY as u16));
            return std::ptr::null_mut();
        }
        next!("ttyname", fn(c_int) -> *mut c_char).map_or(std::ptr::null_mut(), |real| real(fd))
    }
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 { result(vfs::lseek(fd, offset, whence)) }
    fn lseek64(fd: c_int, offset: i64, whence: c_int) -> i64 { result(vfs::lseek(fd, offset, whence)) }
    fn __lseek(fd: c_int, offset: i64, whence: c_int) -> i64 { result(vfs::lseek(fd, offset, whence)) }
    fn llseek(fd: c_int, offset: i64, whence: c_int) -> i64 { result(vfs::lseek(fd, offset, whence)) }
    fn ftruncate(fd: c_int, size: i64) -> c_int { result(vfs::ftruncate(fd, size)) }
    fn ftruncate64(fd: c_int, size: i64) -> c_int { result(vfs::ftruncate(fd, size)) }
    fn fallocate(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int { allocate_storage(fd, mode, offset, len) }
    fn fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int { allocate_storage(fd, mode, offset, len) }
    fn posix_fallocate(fd: c_int, offset: i64, len: i64) -> c_int, else (libc::EIO) { allocate(fd, offset, len) }
    fn posix_fallocate64(fd: c_int, offset: i64, len: i64) -> c_int, else (libc::EIO) { allocate(fd, offset, len) }
    fn posix_fadvise(fd: c_int, offset: i64, len: i64, advice: c_int) -> c_int, else (libc::EIO) { advise(fd, offset, len, advice) }
    fn posix_fadvise64(fd: c_int, offset: i64, len: i64, advice: c_int) -> c_int, else (libc::EIO) { advise(fd, offset, len, advice) }
    fn readahead(fd: c_int, offset: i64, count: usize) -> isize {
        if vfs::beside::is_in_mount(fd) {
            return 0;
        }
        if !fds::is_foreign(fd) && let Ok(Some(file)) = fds::get(fd) {
            return result(if file.is_path_only() { Err(Errno::BADF) } else { Ok(0usize) });
        }
        result(sys!(SYS_readahead, fd, offset, count))
    }
    fn sync_file_range(fd: c_int, offset: i64, len: i64, flags: c_uint) -> c_int {
        let real = || real_sync_file_range(fd, offset, len, flags);
        blocking(fd, real, |file| state::apart(|| file.sync()))
    }
    fn fsync(fd: c_int) -> c_int { sync(fd, false) }
    fn fdatasync(fd: c_int) -> c_int { sync(fd, true) }
    fn syncfs(fd: c_int) -> c_int {
        if !fds::is_foreign(fd) && vfs::is_ours(fd) {
            return result(vfs::fsync(fd, false));
        }
        result(sys!(SYS_syncfs, fd))
    }
    fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        let received = real_recvmsg(socket, message, flags);
        if received >= 0 && vfs::tracking() && !(*message).msg_control.is_null() {
            note_received(message);
        }
        received
    }
    fn recvmmsg(socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int {
        let received = real_recvmmsg(socket, messages, count, flags, timeout);
        if vfs::tracking() {
            for i in 0..usize::try_from(received).unwrap_or(0) {
                let message = &raw mut (*messages.add(i)).msg_hdr;
                if !(*message).msg_control.is_null() {
                    note_received(message);
                }
            }
        }
        received
    }
    fn daemon(stay: c_int, keep: c_int) -> c_int {
        // It goes to `/` and puts /dev/null on the standard descriptors, inside libc.
        let forked = next!("daemon", fn(c_int, c_int) -> c_int).map_or(-1, |real| real(stay, keep));
        if forked == 0 && vfs::tracking() {
            if keep == 0 {
                (0..3).for_each(open::note_unknown);
            }
            vfs::cwd::moved();
        }
        forked
    }
}
