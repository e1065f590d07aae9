//! `flock` and `lockf`. (`fcntl`'s locks come in through `fcntl`.)

use super::blocking;
use crate::raw::result;
use crate::vfs::{Errno, control, fds, locks};
use std::ffi::c_int;

real! {
    real_lockf = lockf64(fd: c_int, command: c_int, len: i64) -> c_int, else -1;
}

fn lock_file(fd: c_int, operation: c_int) -> Result<(), Errno> {
    match fds::get(fd)? {
        Some(file) => locks::flock(&file, operation),
        None => sys!(SYS_flock, fd, operation).map(|_| ()),
    }
}

/// `lockf` on one of ours is `fcntl` from the current position on.
fn lock_section(fd: c_int, command: c_int, len: i64) -> Result<(), Errno> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_whence = libc::SEEK_CUR as i16;
    lock.l_len = len;
    let (kind, action) = match command {
        libc::F_LOCK => (libc::F_WRLCK, libc::F_SETLKW),
        libc::F_TLOCK => (libc::F_WRLCK, libc::F_SETLK),
        libc::F_ULOCK => (libc::F_UNLCK, libc::F_SETLK),
        libc::F_TEST => (libc::F_RDLCK, libc::F_GETLK),
        _ => return Err(Errno::INVAL),
    };
    lock.l_type = kind as i16;
    // SAFETY: the lock lives through the call.
    unsafe { control::fcntl(fd, action, &raw mut lock as usize) }?;
    let free =
        i32::from(lock.l_type) == libc::F_UNLCK || lock.l_pid == bivouac_node::process::real_pid() as i32;
    if command == libc::F_TEST && !free { Err(Errno::ACCESS) } else { Ok(()) }
}

fn section(fd: c_int, command: c_int, len: i64) -> c_int {
    // SAFETY: plain numbers.
    blocking(fd, || unsafe { real_lockf(fd, command, len) }, |_| lock_section(fd, command, len))
}

faces! {
    fn flock(fd: c_int, operation: c_int) -> c_int { result(lock_file(fd, operation)) }
    fn lockf(fd: c_int, command: c_int, len: i64) -> c_int { section(fd, command, len) }
    fn lockf64(fd: c_int, command: c_int, len: i64) -> c_int { section(fd, command, len) }
}
