//! Making, removing and renaming names; symbolic links; canonical paths.

use super::at::{Settled, at, settle};
use super::attrs::described;
use super::beside::persistent;
use super::place::{Place, descriptor_number, place};
use super::scratch::Scratch;
use super::{fds, links, state};
use bivouac_client::{Client, Fail};
use bivouac_proto::Errno;
use std::ffi::CStr;
use std::sync::Arc;

/// `mkdirat(2)`.
pub fn mkdirat(dirfd: i32, path: &CStr, mode: u32) -> Result<(), Errno> {
    at(
        dirfd,
        path,
        false,
        |dirfd, path| sys!(SYS_mkdirat, dirfd, path.as_ptr(), mode).map(|_| ()),
        |client, start, path| client.mkdir(start, path, state::masked(mode & 0o1777)).map(drop),
    )
}

/// `mknodat(2)`.
pub fn mknodat(dirfd: i32, path: &CStr, mode: u32, device: u64) -> Result<(), Errno> {
    at(
        dirfd,
        path,
        false,
        |dirfd, path| sys!(SYS_mknodat, dirfd, path.as_ptr(), mode, device).map(|_| ()),
        |client, start, path| match mode & libc::S_IFMT {
            0 => client.mknod(start, path, libc::S_IFREG | state::masked(mode & 0o7777)).map(drop),
            kind @ (libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK) => {
                client.mknod(start, path, kind | state::masked(mode & 0o7777)).map(drop)
            }
            libc::S_IFCHR | libc::S_IFBLK => Err(Errno::PERM.into()),
            _ => Err(Errno::INVAL.into()),
        },
    )
}

/// `unlinkat(2)`.
pub fn unlinkat(dirfd: i32, path: &CStr, flags: i32) -> Result<(), Errno> {
    at(
        dirfd,
        path,
        false,
        |dirfd, path| sys!(SYS_unlinkat, dirfd, path.as_ptr(), flags).map(|_| ()),
        |client, start, path| match flags {
            0 => client.unlink(start, path),
            libc::AT_REMOVEDIR => client.rmdir(start, path),
            _ => Err(Errno::INVAL.into()),
        },
    )
}

/// `symlinkat(2)`.
pub fn symlinkat(target: &CStr, dirfd: i32, path: &CStr) -> Result<(), Errno> {
    at(
        dirfd,
        path,
        false,
        |dirfd, path| sys!(SYS_symlinkat, target.as_ptr(), dirfd, path.as_ptr()).map(|_| ()),
        |client, start, path| client.symlink(target.to_bytes(), start, path).map(drop),
    )
}

/// A link's target: already in the program's buffer (so many bytes), or still to be copied there.
enum Target {
    Kernel(usize),
    Ours(Vec<u8>),
}

/// `readlinkat(2)`. The buffer is not empty.
pub fn readlinkat(dirfd: i32, path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (room, size) = (buffer.as_mut_ptr(), buffer.len());
    let kernel = |dirfd: i32, path: &CStr| {
        let len = sys!(SYS_readlinkat, dirfd, path.as_ptr(), room, size)?;
        // SAFETY: what the kernel has just written into the program's buffer.
        let said = unsafe { std::slice::from_raw_parts(room, len) };
        let seen = if may_be_seen_through(said) { seen_through(dirfd, path) } else { None };
        Ok(seen.map_or(Target::Kernel(len), Target::Ours))
    };
    let inside =
        |client: &Arc<Client>, start, path: &[u8]| client.readlink((start, path, false)).map(Target::Ours);
    let own = if state::active() { described_target(dirfd, path)? } else { None };
    let target = match own {
        Some(target) => Target::Ours(target),
        None => at(dirfd, path, false, kernel, inside)?,
    };
    match target {
        Target::Kernel(len) => Ok(len),
        Target::Ours(target) => {
            // Like the kernel: a target that is too long is truncated, without an error.
            let len = target.len().min(buffer.len());
            for (to, from) in buffer.iter_mut().zip(&target) {
                *to = *from;
            }
            Ok(len)
        }
    }
}

/// Whether a link's target, as far as it was read, may name something of ours.
fn may_be_seen_through(said: &[u8]) -> bool {
    let alike = |own: &[u8]| said.iter().zip(own).all(|(a, b)| a == b);
    state::active() && (alike(super::cwd::MIRRORS) || alike(crate::faces::exec::PROGRAM_LINK))
}

/// The targets of links in `/proc` that name something of ours, as paths of the mount: `/proc/self/cwd` (for
/// the mirror) and `/proc/self/exe` (for the copy of a program that is stored in the mount).
fn seen_through(dirfd: i32, path: &CStr) -> Option<Vec<u8>> {
    let mut scratch = Scratch::take()?;
    let [mut target, ..] = scratch.texts();
    target.fill(|to, fits| sys!(SYS_readlinkat, dirfd, path.as_ptr(), to, fits))?;
    if let Some(program) = crate::faces::exec::program_of_link(target.bytes()) {
        return Some(program.to_vec());
    }
    super::cwd::mirrored_path(target.bytes())
}

/// What `readlinkat` gives for a descriptor of ours: for its name in `/proc` or `/dev`, or, with an empty path, for a symbolic link
/// that it was opened for. `None`: the path names neither. (A function of its own, as those that it calls: none takes stack
/// for another.)
#[inline(never)]
fn described_target(dirfd: i32, path: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    if path.is_empty() {
        return if fds::is_ours(dirfd) { own_target(dirfd).map(Some) } else { Ok(None) };
    }
    match descriptor_number(path.to_bytes(), bivouac_node::process::real_pid()) {
        Some((fd, b"")) if fds::is_ours(fd) => descriptor_target(fd).map(Some),
        _ => Ok(None),
    }
}

/// What `/proc/self/fd/N` shows for one of ours: its path, or else what the kernel shows for things without a
/// name.
#[inline(never)]
fn descriptor_target(fd: i32) -> Result<Vec<u8>, Errno> {
    let file = fds::get(fd)?.ok_or(Errno::NOENT)?;
    let path = state::apart(|| file.path())?;
    Ok(path.unwrap_or_else(|| format!("bivouac:[{}]", file.ino()).into_bytes()))
}

/// The target of a symbolic link that was opened with O_PATH: only such a descriptor can be read by
/// `readlinkat` with an empty path.
#[inline(never)]
fn own_target(fd: i32) -> Result<Vec<u8>, Errno> {
    let file = fds::get(fd)?.ok_or(Errno::NOENT)?;
    let target = state::apart(|| state::client()?.readlink(file.ino()));
    target.map_err(Fail::errno).map_err(|errno| if errno == Errno::INVAL { Errno::NOENT } else { errno })
}

/// `linkat(2)`.
pub fn linkat(from_fd: i32, from: &CStr, to_fd: i32, to: &CStr, flags: i32) -> Result<(), Errno> {
    let named = flags & libc::AT_SYMLINK_FOLLOW != 0;
    if state::active()
        && let Some(file) = described(from_fd, from, flags, named)?
    {
        return match settle(to_fd, to)? {
            Settled::Inside(to, to_path) => {
                state::apart(|| file.link(to, &to_path)).map(drop).map_err(Fail::errno)
            }
            Settled::Kernel(..) => Err(Errno::XDEV),
        };
    }
    let kernel = |from_fd: i32, from: &CStr, to_fd: i32, to: &CStr| {
        sys!(SYS_linkat, from_fd, from.as_ptr(), to_fd, to.as_ptr(), flags).map(|_| ())
    };
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    two_paths((from_fd, from), (to_fd, to), kernel, |from, to| match (from, to) {
        (Settled::Inside(start, path), Settled::Inside(to, to_path)) => {
            state::client()?.link((start, &path, follow), to, &to_path).map(drop)
        }
        // From one file system to another; but what is not there is not there.
        (Settled::Inside(start, path), _) => {
            state::client()?.stat((start, &path, false))?;
            Err(Errno::XDEV.into())
        }
        (Settled::Kernel(fd, path), _) => {
            sys!(SYS_faccessat, fd, path.as_ptr(), libc::F_OK)?;
            Err(Errno::XDEV.into())
        }
    })
}

/// `renameat2(2)`.
pub fn renameat2(from_fd: i32, from: &CStr, to_fd: i32, to: &CStr, flags: u32) -> Result<(), Errno> {
    let kernel = |from_fd: i32, from: &CStr, to_fd: i32, to: &CStr| {
        // The plain call where no flags are given: older kernels, and some file systems, have only that.
        match flags {
            #[cfg(target_arch = "x86_64")]
            0 => sys!(SYS_renameat, from_fd, from.as_ptr(), to_fd, to.as_ptr()).map(|_| ()),
            _ => sys!(SYS_renameat2, from_fd, from.as_ptr(), to_fd, to.as_ptr(), flags).map(|_| ()),
        }
    };
    two_paths((from_fd, from), (to_fd, to), kernel, |from, to| {
        match (from, to) {
            (Settled::Inside(start, path), Settled::Inside(to, to_path)) => {
                state::client()?.rename(start, &path, to, &to_path, flags)
            }
            // From one file system to another; but what is not there is not there.
            (Settled::Inside(start, path), _) => {
                state::client()?.stat((start, &path, false))?;
                Err(Errno::XDEV.into())
            }
            (Settled::Kernel(fd, path), _) => {
                sys!(SYS_faccessat, fd, path.as_ptr(), libc::F_OK)?;
                Err(Errno::XDEV.into())
            }
        }
    })
}

fn two_paths(
    from: (i32, &CStr),
    to: (i32, &CStr),
    kernel: impl Fn(i32, &CStr, i32, &CStr) -> Result<(), Errno>,
    otherwise: impl Fn(Settled, Settled) -> Result<(), Fail>,
) -> Result<(), Errno> {
    if !state::active() {
        return persistent(&[from, to], || kernel(from.0, from.1, to.0, to.1));
    }
    let kernels = |(fd, path): (i32, &CStr)| Ok::<bool, Errno>(matches!(place(fd, path)?, Place::Kernel));
    if kernels(from)? && kernels(to)? {
        match kernel(from.0, from.1, to.0, to.1) {
            Err(errno) if links::may_lead_inside(errno) => {
                let inside = |(fd, path)| links::into_mount(fd, path, false).is_some();
                if !inside(from) && !inside(to) {
                    return Err(errno);
                }
            }
            other => return other,
        }
    }
    match (settle(from.0, from.1)?, settle(to.0, to.1)?) {
        (Settled::Kernel(from_fd, from), Settled::Kernel(to_fd, to)) => kernel(from_fd, &from, to_fd, &to),
        (from, to) => state::apart(|| otherwise(from, to)).map_err(Fail::errno),
    }
}

/// The canonical path of what a path names, all of which exists. `None`: it is not in the mount, ask the
/// kernel.
pub fn real_path(dirfd: i32, path: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    if state::active()
        && let Ok(Place::Descriptor(fd)) = place(dirfd, path)
    {
        let file = fds::get(fd)?.ok_or(Errno::NOENT)?;
        return state::apart(|| file.real_path()).map(Some);
    }
    let kernel =
        |dirfd: i32, path: &CStr| sys!(SYS_faccessat, dirfd, path.as_ptr(), libc::F_OK).map(|_| None);
    at(dirfd, path, true, kernel, |client, start, path| client.real_path(start, path).map(Some))
}
