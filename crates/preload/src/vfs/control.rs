//! `fcntl` and `ioctl`.

use super::{fds, locks, open, state};
use crate::hidden;
use bivouac_client::Handle;
use bivouac_proto::Errno;

/// `F_GETFL` of any file on a 64-bit system shows it; libc's constant is 0 there.
const LARGE_FILE: i32 = 0o100_000;

/// `fcntl(2)`.
///
/// # Safety
/// `arg` is what the command asks for: a pointer to a `struct flock` for the lock commands.
pub unsafe fn fcntl(fd: i32, command: i32, arg: usize) -> Result<i32, Errno> {
    let kernel = || sys!(SYS_fcntl, fd, command, arg).map(|value| value as i32);
    // SAFETY: promised by the caller.
    unsafe { fcntl_by(fd, command, arg, kernel) }
}

/// As above; `kernel` does what is not ours.
///
/// # Safety
/// As above.
pub unsafe fn fcntl_by(
    fd: i32,
    command: i32,
    arg: usize,
    kernel: impl Fn() -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    if !state::tracking() {
        return kernel();
    }
    match command {
        libc::F_DUPFD => return open::duplicate(fd, arg, false),
        libc::F_DUPFD_CLOEXEC => return open::duplicate(fd, arg, true),
        _ if hidden::is_hidden(fd) => return Err(Errno::BADF),
        libc::F_GETFD | libc::F_SETFD => return kernel(),
        libc::F_SETFL if state::beside() => return super::beside::set_flags(fd, arg as i32, kernel),
        _ => {}
    }
    // SAFETY: promised by the caller.
    fds::on(fd, &kernel, |file| unsafe { on_ours(fd, file, command, arg) })
}

/// # Safety
/// As for [`fcntl`].
unsafe fn on_ours(fd: i32, file: &Handle, command: i32, arg: usize) -> Result<i32, Errno> {
    match command {
        libc::F_GETFL => Ok(file.flags() | LARGE_FILE),
        _ if file.is_path_only() => Err(Errno::BADF),
        libc::F_SETFL => {
            file.set_flags(arg as i32);
            Ok(0)
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            if arg == 0 {
                return Err(Errno(libc::EFAULT as u16));
            }
            // SAFETY: promised by the caller, and not NULL.
            let lock = unsafe { &mut *(arg as *mut libc::flock) };
            locks::fcntl(file, command, lock).map(|()| 0)
        }
        libc::F_GETLEASE => Ok(libc::F_UNLCK),
        libc::F_SETLEASE | libc::F_NOTIFY => Err(Errno::OPNOTSUPP),
        libc::F_GETOWN | libc::F_SETOWN => sys!(SYS_fcntl, fd, command, arg).map(|value| value as i32),
        libc::F_SETPIPE_SZ | libc::F_GETPIPE_SZ => Err(Errno::BADF),
        _ => Err(Errno::INVAL),
    }
}

/// `fcntl(2)` for commands whose argument is a number.
pub fn fcntl_number(fd: i32, command: i32, arg: usize) -> Result<i32, Errno> {
    match command {
        libc::F_DUPFD
        | libc::F_DUPFD_CLOEXEC
        | libc::F_GETFD
        | libc::F_SETFD
        | libc::F_GETFL
        | libc::F_SETFL => {
            // SAFETY: none of these takes a pointer.
            unsafe { fcntl(fd, command, arg) }
        }
        _ => Err(Errno::INVAL),
    }
}

/// `ioctl(2)`.
///
/// # Safety
/// `arg` is what the request asks for.
pub unsafe fn ioctl(fd: i32, request: u64, arg: usize) -> Result<i32, Errno> {
    let kernel = || sys!(SYS_ioctl, fd, request, arg).map(|value| value as i32);
    if fds::is_foreign(fd) && request as u32 != FICLONE {
        if request as u32 == FIONREAD {
            super::beside::refresh_size(fd);
        }
        return kernel();
    }
    let Some(file) = fds::get(fd)? else {
        // A clone from one of ours onto the kernel's file.
        let across = request as u32 == FICLONE && state::active() && fds::is_ours(arg as i32);
        return if across { Err(Errno::XDEV) } else { kernel() };
    };
    if file.is_path_only() {
        return Err(Errno::BADF);
    }
    let on = || match arg {
        0 => Err(Errno(libc::EFAULT as u16)),
        // SAFETY: promised by the caller: FIONBIO's argument points to an int.
        _ => Ok(unsafe { *(arg as *const i32) } != 0),
    };
    match request as u32 {
        FIOCLEX | FIONCLEX => kernel(),
        FIONBIO => {
            let flags = file.flags() & !libc::O_NONBLOCK;
            file.set_flags(flags | if on()? { libc::O_NONBLOCK } else { 0 });
            Ok(0)
        }
        FIONREAD => {
            if arg == 0 {
                return Err(Errno(libc::EFAULT as u16));
            }
            let left = state::apart(|| left(&file))?;
            // SAFETY: promised by the caller: FIONREAD's argument points to an int.
            unsafe { *(arg as *mut i32) = i32::try_from(left).unwrap_or(i32::MAX) };
            Ok(0)
        }
        FICLONE | FICLONERANGE | FIDEDUPERANGE => Err(Errno::OPNOTSUPP),
        _ => Err(Errno(libc::ENOTTY as u16)),
    }
}

fn left(file: &Handle) -> Result<u64, Errno> {
    if file.is_directory() {
        return Err(Errno(libc::ENOTTY as u16));
    }
    let offset = file.seek(0, libc::SEEK_CUR)?;
    Ok(file.attr()?.size.saturating_sub(offset))
}

const FIONREAD: u32 = 0x541B;
const FIONBIO: u32 = 0x5421;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940D;
const FIDEDUPERANGE: u32 = 0xC018_9436;
