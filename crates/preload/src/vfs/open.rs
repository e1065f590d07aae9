//! Opening, closing and duplicating descriptors.

use super::at::turns;
use super::fds::{self, File, Standing};
use super::place::{Place, place};
use super::{links, state};
use crate::boundary;
use crate::hidden;
use bivouac_client::{Client, Fail, Handle};
use bivouac_layout::Ino;
use bivouac_node::{Fd, NodeError, SlotId};
use bivouac_proto::Errno;
use rustix::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// `openat(2)`.
pub fn openat(dirfd: i32, path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    openat_by(dirfd, path, flags, mode, || kernel_open(dirfd, path, flags, mode))
}

fn kernel_open(dirfd: i32, path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    sys!(SYS_openat, dirfd, path.as_ptr(), flags, mode).map(|fd| fd as i32)
}

/// As above; `kernel` opens what is not in the mount, as far as the path's text tells. (When that finds
/// nothing, and links have to be followed, the kernel is called by a system call: there, something is to be
/// dropped afterwards.)
#[inline(always)]
pub fn openat_by(
    dirfd: i32,
    path: &CStr,
    flags: i32,
    mode: u32,
    kernel: impl Fn() -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    if !state::active() {
        return super::beside::persistent(&[], kernel).inspect(|fd| note_unknown(*fd));
    }
    if !matches!(place(dirfd, path), Ok(Place::Kernel)) {
        return open_elsewhere(dirfd, path, flags, mode, None);
    }
    match kernel() {
        Ok(fd) => {
            note_foreign(fd);
            Ok(fd)
        }
        Err(errno) if links::may_lead_inside(errno) => match links::into_mount(dirfd, path, follows(flags)) {
            Some(found) => open_elsewhere(dirfd, path, flags, mode, Some(found)),
            None => Err(errno),
        },
        Err(errno) => Err(errno),
    }
}

/// Whether a symbolic link at the end of a path is followed.
fn follows(flags: i32) -> bool {
    let creates = libc::O_CREAT | libc::O_EXCL;
    flags & libc::O_NOFOLLOW == 0 && flags & creates != creates
}

/// Opens what is not simply the kernel's; `found` is where the path's links lead in the mount, if they have
/// been walked.
#[inline(never)]
fn open_elsewhere(
    dirfd: i32,
    path: &CStr,
    flags: i32,
    mode: u32,
    found: Option<links::Inside>,
) -> Result<i32, Errno> {
    // Flags that make no sense come before anything about paths.
    if bivouac_client::is_temporary(flags) && flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(Errno::INVAL);
    }
    if let Ok(Place::Descriptor(fd)) = place(dirfd, path)
        && let Some(file) = fds::get(fd)?
    {
        return open_descriptor(&file, flags, mode);
    }
    let kernel = |dirfd: i32, path: &CStr| {
        let fd = kernel_open(dirfd, path, flags, mode)?;
        note_foreign(fd);
        Ok(fd)
    };
    let inside = |client, start, path: &[u8]| open_inside(client, start, path, flags, mode);
    turns(dirfd, path, follows(flags), found, &kernel, &inside)
}

/// What `/proc/self/fd/N` and its like name, opened anew.
fn open_descriptor(file: &File, flags: i32, mode: u32) -> Result<i32, Errno> {
    let opened = state::apart(|| {
        let client = state::client()?;
        let mode = state::masked(mode & 0o7777);
        let opened = client.open_again(|id| early(client, id, flags), file, flags, mode)?;
        Ok::<_, Fail>(placed(client, opened, flags)?)
    });
    opened.map_err(|fail| match fail {
        Fail::Errno(errno) => errno,
        Fail::Outside(_) => Errno::IO,
    })
}

fn open_inside(
    client: &'static Arc<Client>,
    start: Ino,
    path: &[u8],
    flags: i32,
    mode: u32,
) -> Result<i32, Fail> {
    let mode = state::masked(mode & 0o7777);
    let opened = client.open_after(|id| early(client, id, flags), start, path, flags, mode)?;
    Ok(placed(client, opened, flags)?)
}

/// Before something is made or truncated, a descriptor number is reserved, so that a lack of numbers (EMFILE)
/// has no effect on files.
fn early(client: &Client, id: SlotId, flags: i32) -> Result<Option<Fd>, Errno> {
    if flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
        return Ok(None);
    }
    client.table().blank(id, flags & libc::O_CLOEXEC != 0).map(Some).map_err(failed)
}

/// Gives a new description its number, if it has none yet.
fn placed(client: &Client, opened: (Arc<Handle>, Option<Fd>), flags: i32) -> Result<i32, Errno> {
    let (handle, early) = opened;
    // When the rest fails, dropping the file gives the description back.
    let file = fds::opened(handle)?;
    let (table, id) = (client.table(), file.id());
    let placeholder = match early {
        Some(blank) => table.fill_in(id, blank.as_fd()).map(|()| blank),
        None => table.placeholder(id, flags & libc::O_CLOEXEC != 0),
    };
    Ok(installed(placeholder.map_err(failed)?.into_raw_fd(), file))
}

fn failed(error: NodeError) -> Errno {
    Errno(error.raw_errno() as u16)
}

fn installed(fd: i32, file: File) -> i32 {
    if state::borrowed() {
        // The kernel's descriptor holds the description; this process will recognise it at its next use.
        drop(file);
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

/// The kernel gave the program this descriptor, and it is not known for what.
pub fn note_unknown(fd: i32) {
    if state::tracking() && !state::borrowed() {
        fds::set(fd, Standing::Unknown);
    }
}

/// `close(2)`. A descriptor of the library's own is not open, as far as the program can tell.
pub fn close(fd: i32) -> Result<(), Errno> {
    close_by(fd, || sys!(SYS_close, fd).map(|_| ()))
}

/// As above; `kernel` closes what is not ours.
#[inline]
pub fn close_by(fd: i32, kernel: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    if !state::tracking() {
        return kernel();
    }
    if hidden::is_hidden(fd) {
        return Err(Errno::BADF);
    }
    if state::borrowed() {
        fds::doubt(fd);
        return kernel();
    }
    // A descriptor that was not looked at yet may also be the last of its description.
    let _ = fds::get(fd);
    match fds::begin(fd) {
        (change, Standing::Ours(file)) if state::active() => close_ours(fd, change, file),
        (change, before) => {
            drop(before);
            let closed = kernel();
            fds::end(change, Standing::Unknown);
            closed
        }
    }
}

fn close_ours(fd: i32, change: fds::Change, file: File) -> Result<(), Errno> {
    release_locks(&file);
    let closed = sys!(SYS_close, fd).map(|_| ());
    drop(file);
    fds::end(change, Standing::Unknown);
    closed
}

/// Runs a function of the C library that closes `fd` by a system call of its own, and lets go of what the
/// number stood for. A number below 0 is none. If the thread is cancelled in `call`, nothing is dropped.
pub fn closed_by<T>(fd: i32, call: impl FnOnce() -> T) -> T {
    if !state::tracking() {
        return call();
    }
    if state::borrowed() {
        fds::doubt(fd);
        return call();
    }
    let (change, before) = fds::begin(fd);
    let before = ManuallyDrop::new(before);
    if let Standing::Ours(file) = &*before {
        release_locks(file);
    }
    let done = call();
    drop(ManuallyDrop::into_inner(before));
    fds::end(change, Standing::Unknown);
    done
}

/// A process that closes any descriptor of a file loses its process locks on it, as POSIX has it; what was
/// opened with O_PATH is none.
fn release_locks(file: &File) {
    // Beside a mount the kernel has them.
    if state::beside() || file.is_path_only() {
        return;
    }
    // The descriptor is closed in any case.
    let _ = boundary::attempt(|| state::client().map(|client| client.release_process_locks(file.ino())));
}

/// `close_range(2)`, going around the library's own descriptors.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    let whole = |flags: u32| sys!(SYS_close_range, first, last, flags).map(|_| ());
    if !state::tracking() || flags & libc::CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return whole(flags);
    }
    // Where the kernel has no close_range (before 5.9), nothing is to be done.
    sys!(SYS_close_range, u32::MAX, u32::MAX, flags)?;
    let flags = flags & !libc::CLOSE_RANGE_UNSHARE;
    let borrowed = state::borrowed();
    let end = i32::try_from(last).unwrap_or(i32::MAX).min(fds::highest());
    for fd in i32::try_from(first).unwrap_or(i32::MAX)..=end {
        if borrowed {
            fds::doubt(fd);
        } else if fds::is_known(fd) {
            let _ = close(fd);
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
    if state::tracking() && hidden::is_hidden(fd) {
        return Err(Errno::BADF);
    }
    let duplicate = || sys!(SYS_fcntl, fd, command, least).map(|fd| fd as i32);
    if !state::tracking() || state::borrowed() {
        return duplicate();
    }
    let model = Model::of(fd);
    let new = duplicate()?;
    fds::set(new, model.standing());
    Ok(new)
}

/// `dup3(2)`, and with `same` also `dup2(2)`: there both numbers may be one.
pub fn dup3(old: i32, new: i32, flags: i32, same: bool) -> Result<i32, Errno> {
    if state::tracking() && hidden::is_hidden(old) {
        return Err(Errno::BADF);
    }
    if old == new {
        if !same {
            return Err(Errno::INVAL);
        }
        return sys!(SYS_fcntl, old, libc::F_GETFD).map(|_| new);
    }
    let duplicate = || sys!(SYS_dup3, old, new, flags).map(|fd| fd as i32);
    if !state::tracking() {
        return duplicate();
    }
    if state::borrowed() {
        fds::doubt(new);
        return duplicate();
    }
    // The replaced descriptor may be the last of its description, and is closed like by `close`.
    let _ = fds::get(new);
    if hidden::is_hidden(new) {
        hidden::make_way(new);
    }
    let model = Model::of(old);
    let (change, replaced) = fds::begin(new);
    match duplicate() {
        Ok(fd) => {
            fds::end(change, model.standing());
            if let Standing::Ours(file) = &replaced {
                release_locks(file);
            }
            Ok(fd)
        }
        Err(errno) => {
            fds::end(change, replaced);
            Err(errno)
        }
    }
}

/// What a descriptor was before it was duplicated.
struct Model {
    fd: i32,
    file: Option<File>,
    seen: fds::Sight,
}

impl Model {
    fn of(fd: i32) -> Model {
        let file = fds::get(fd).unwrap_or(None);
        Model { fd, file, seen: fds::sight(fd) }
    }

    /// What the duplicate stands for. Unknown beside a mount, or if the descriptor itself has become another
    /// one meanwhile.
    fn standing(self) -> Standing {
        if state::beside() {
            return Standing::Unknown;
        }
        fds::duplicated(self.fd, self.seen, self.file)
    }
}

/// A descriptor of the kernel's that is not to be seen by the program, for the length of a call.
pub fn owned(fd: usize) -> Fd {
    // SAFETY: a system call has just returned it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }.into()
}
