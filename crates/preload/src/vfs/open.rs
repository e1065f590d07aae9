//! Opening, closing and duplicating descriptors.

use super::at::at;
use super::fds::{self, File, Standing};
use super::place::{Place, place};
use super::state;
use bivouac_client::{Client, Fail, Handle, hidden};
use bivouac_layout::Ino;
use bivouac_node::Fd;
use bivouac_proto::Errno;
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// `openat(2)`.
#[inline]
pub fn openat(dirfd: i32, path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    let kernel = |dirfd: i32, path: &CStr| {
        let fd = sys!(SYS_openat, dirfd, path.as_ptr(), flags, mode)? as i32;
        note_foreign(fd);
        Ok(fd)
    };
    if !state::active() {
        return kernel(dirfd, path);
    }
    if let Ok(Place::Descriptor(fd)) = place(dirfd, path)
        && let Some(file) = fds::get(fd)?
    {
        return open_descriptor(&file, flags);
    }
    let follow = flags & libc::O_NOFOLLOW == 0
        && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL;
    let inside = |client, start, path: &[u8]| open_inside(client, start, path, flags, mode);
    at(dirfd, path, follow, kernel, inside)
}

/// What `/proc/self/fd/N` and its like name, opened anew.
fn open_descriptor(file: &File, flags: i32) -> Result<i32, Errno> {
    let opened = state::guarded(|| {
        let client = state::client()?;
        let handle = client.open_again(file, flags)?;
        Ok::<_, Fail>(placed(client, handle, flags)?)
    });
    opened.map_err(|fail| match fail {
        Fail::Errno(errno) => errno,
        Fail::Outside(_) => Errno::IO,
    })
}

fn open_inside(client: &'static Client, start: Ino, path: &[u8], flags: i32, mode: u32) -> Result<i32, Fail> {
    let handle = client.open(start, path, flags, state::masked(mode & 0o7777))?;
    Ok(placed(client, handle, flags)?)
}

/// Gives a new description its number.
fn placed(client: &Client, handle: Arc<Handle>, flags: i32) -> Result<i32, Errno> {
    let file = fds::opened(handle)?;
    // When this fails, dropping the file gives the description back.
    let placeholder = client
        .table()
        .placeholder(file.id(), flags & libc::O_CLOEXEC != 0)
        .map_err(|error| Errno(error.raw_errno() as u16))?;
    Ok(installed(placeholder.into_raw_fd(), file))
}

fn installed(fd: i32, file: File) -> i32 {
    if state::borrowed() {
        // The kernel's descriptor holds the description; this process will find out by itself.
        std::mem::forget(file);
    } else {
        fds::set(fd, Standing::Ours(file));
    }
    fd
}

/// The kernel gave the program this descriptor, for something that is not ours.
#[inline]
pub fn note_foreign(fd: i32) {
    if state::active() && !state::borrowed() {
        fds::set(fd, Standing::Foreign);
    }
}

/// The kernel gave the program this descriptor, for something of which nothing is known.
pub fn note_unknown(fd: i32) {
    if state::active() && !state::borrowed() {
        fds::set(fd, Standing::Unknown);
    }
}

/// `close(2)`. A descriptor of the library's own is not open, as far as the program can tell.
#[inline]
pub fn close(fd: i32) -> Result<(), Errno> {
    if state::active() { close_active(fd) } else { sys!(SYS_close, fd).map(|_| ()) }
}

fn close_active(fd: i32) -> Result<(), Errno> {
    if hidden::is_hidden(fd) {
        return Err(Errno::BADF);
    }
    if state::borrowed() {
        return sys!(SYS_close, fd).map(|_| ());
    }
    // Also one that nobody has looked at yet may be the last of its description.
    let _ = fds::get(fd);
    let file = fds::take(fd);
    if let Some(file) = &file {
        release_locks(file);
    }
    let closed = sys!(SYS_close, fd).map(|_| ());
    let was_ours = file.is_some();
    drop(file);
    if was_ours && fd <= 2 {
        crate::faces::stdio::std_descriptor_changed(fd);
    }
    closed
}

/// Runs a function of the C library that closes `fd` by a system call of its own, and lets go of what the number stood
/// for. A number below 0 is none. If the thread is cancelled in `call`, nothing is dropped.
pub fn closed_by<T>(fd: i32, call: impl FnOnce() -> T) -> T {
    if !state::active() || state::borrowed() {
        return call();
    }
    let file = ManuallyDrop::new(fds::take(fd));
    if let Some(file) = &*file {
        release_locks(file);
    }
    let done = call();
    drop(ManuallyDrop::into_inner(file));
    done
}

/// A process that closes any descriptor of a file loses its process locks on it, as POSIX has it.
fn release_locks(file: &File) {
    let _ = state::guarded(|| {
        state::client()?.release_process_locks(file.ino());
        Ok::<(), Errno>(())
    });
}

/// `close_range(2)`, going around the library's own descriptors.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    let whole = |flags: u32| sys!(SYS_close_range, first, last, flags).map(|_| ());
    if !state::active() || flags & libc::CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return whole(flags);
    }
    // Where the kernel has no close_range (before 5.9), nothing is to be done.
    sys!(SYS_close_range, u32::MAX, u32::MAX, flags)?;
    let flags = flags & !libc::CLOSE_RANGE_UNSHARE;
    if !state::borrowed() {
        let end = i32::try_from(last).unwrap_or(i32::MAX).min(fds::highest());
        for fd in i32::try_from(first).unwrap_or(i32::MAX)..=end {
            if fds::is_known(fd) {
                let _ = close(fd);
            }
        }
    }
    let mut from = first;
    while let Some(own) = hidden::next_hidden(from, last) {
        if own > from {
            sys!(SYS_close_range, from, own - 1, flags)?;
        }
        from = own.saturating_add(1);
        if from > last {
            return Ok(());
        }
    }
    sys!(SYS_close_range, from, last, flags).map(|_| ())
}

/// `dup(2)`.
pub fn dup(fd: i32) -> Result<i32, Errno> {
    duplicate(fd, 0, false)
}

/// `F_DUPFD`, `F_DUPFD_CLOEXEC`.
pub fn duplicate(fd: i32, least: usize, cloexec: bool) -> Result<i32, Errno> {
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    if state::active() && hidden::is_hidden(fd) {
        return Err(Errno::BADF);
    }
    let new = sys!(SYS_fcntl, fd, command, least)? as i32;
    stands_as(fd, new);
    Ok(new)
}

/// `dup3(2)`, and with `same` also `dup2(2)`: there both numbers may be one.
pub fn dup3(old: i32, new: i32, flags: i32, same: bool) -> Result<i32, Errno> {
    if state::active() && hidden::is_hidden(old) {
        return Err(Errno::BADF);
    }
    if old == new {
        if !same {
            return Err(Errno::INVAL);
        }
        return sys!(SYS_fcntl, old, libc::F_GETFD).map(|_| new);
    }
    let duplicate = || sys!(SYS_dup3, old, new, flags).map(|fd| fd as i32);
    if !state::active() || state::borrowed() {
        return duplicate();
    }
    // What is replaced may be the last of its description, and is closed in every sense.
    let replaced = fds::get(new).unwrap_or(None);
    if hidden::is_hidden(new) {
        hidden::make_way(new);
    }
    let fd = duplicate()?;
    stands_as(old, fd);
    if let Some(file) = &replaced {
        release_locks(file);
    }
    Ok(fd)
}

/// Now `new` stands for what `old` stands for.
fn stands_as(old: i32, new: i32) {
    if !state::active() || state::borrowed() {
        return;
    }
    fds::set(
        new,
        match fds::get(old) {
            Ok(Some(file)) => Standing::Ours(file),
            Ok(None) if fds::is_known(old) => Standing::Foreign,
            _ => Standing::Unknown,
        },
    );
}

/// A descriptor of the kernel's that is not to be seen by the program, for the length of a call.
pub fn owned(fd: usize) -> Fd {
    // SAFETY: a system call has just returned it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }.into()
}
