//! Making, removing and renaming names; symbolic links; canonical paths.

use super::at::{Settled, at, settle};
use super::attrs::described;
use super::place::{Place, place};
use super::{fds, links, state};
use bivouac_client::Fail;
use bivouac_proto::Errno;
use std::ffi::CStr;

/// `mkdirat(2)`.
pub fn mkdirat(dirfd: i32, path: &CStr, mode: u32) -> Result<(), Errno> {
    at(
        dirfd,
        path,
        false,
        |dirfd, path| sys!(SYS_mkdirat, dirfd, path.as_ptr(), mode).map(|_| ()),
        |client, start, path| client.mkdir(start, path, state::masked(mode & 0o1777)),
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
            0 => client.mknod(start, path, libc::S_IFREG | state::masked(mode & 0o7777)),
            kind @ (libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK) => {
                client.mknod(start, path, kind | state::masked(mode & 0o7777))
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
        |client, start, path| client.symlink(target.to_bytes(), start, path),
    )
}

/// `readlinkat(2)`.
pub fn readlinkat(dirfd: i32, path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let target = match (state::active(), place(dirfd, path)) {
        (true, Ok(Place::Descriptor(fd))) => descriptor_target(fd)?,
        (true, _) if path.is_empty() && fds::is_ours(dirfd) => own_target(dirfd)?,
        _ => {
            let kernel = |dirfd: i32, path: &CStr| {
                let mut target = [0u8; 4096];
                let len = sys!(SYS_readlinkat, dirfd, path.as_ptr(), target.as_mut_ptr(), target.len())?;
                let target = target.get(..len).unwrap_or_default();
                Ok(seen_through(target).unwrap_or_else(|| target.to_vec()))
            };
            at(dirfd, path, false, kernel, |client, start, path| client.readlink(start, path))?
        }
    };
    // Like the kernel: a target that is too long is cut, without an error; an empty buffer is one.
    if buffer.is_empty() {
        return Err(Errno::INVAL);
    }
    let len = target.len().min(buffer.len());
    for (to, from) in buffer.iter_mut().zip(&target) {
        *to = *from;
    }
    Ok(len)
}

/// What links in `/proc` show of ours, in the mount's own words: `/proc/self/cwd` (the mirror) and `/proc/self/exe`
/// (the copy of a program that is stored in the mount).
fn seen_through(target: &[u8]) -> Option<Vec<u8>> {
    if !state::active() {
        return None;
    }
    if let Some(program) = crate::faces::exec::program_of_link(target) {
        return Some(program.to_vec());
    }
    if !target.starts_with(b"/dev/shm/bivouac-") {
        return None;
    }
    super::cwd::mirrored_path(target).map(|inside| [state::mount(), &inside].concat())
}

/// What `/proc/self/fd/N` shows for one of ours: its path, or else what the kernel shows for things without a name.
fn descriptor_target(fd: i32) -> Result<Vec<u8>, Errno> {
    let file = fds::get(fd)?.ok_or(Errno::NOENT)?;
    let path = state::guarded(|| file.path())?;
    Ok(path.unwrap_or_else(|| format!("bivouac:[{}]", file.ino()).into_bytes()))
}

/// The target of a symbolic link that was opened with O_PATH. Without a path nothing else has one.
fn own_target(fd: i32) -> Result<Vec<u8>, Errno> {
    let file = fds::get(fd)?.ok_or(Errno::NOENT)?;
    let target = state::guarded(|| state::client()?.link_target(file.ino()));
    target.map_err(|errno| if errno == Errno::INVAL { Errno::NOENT } else { errno })
}

/// `linkat(2)`.
pub fn linkat(from_fd: i32, from: &CStr, to_fd: i32, to: &CStr, flags: i32) -> Result<(), Errno> {
    let named = flags & libc::AT_SYMLINK_FOLLOW != 0;
    if state::active()
        && let Some(file) = described(from_fd, from, flags, named)?
    {
        return match settle(to_fd, to)? {
            Settled::Inside(to, to_path) => {
                state::guarded(|| state::client()?.link(file.ino(), b".", to, &to_path, true))
                    .map_err(Fail::errno)
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
            state::client()?.link(start, &path, to, &to_path, follow)
        }
        // From one file system to another; but what is not there is not there.
        (Settled::Inside(start, path), _) => {
            state::client()?.stat(start, &path, false)?;
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
                state::client()?.stat(start, &path, false)?;
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
        return kernel(from.0, from.1, to.0, to.1);
    }
    let kernels = |(fd, path): (i32, &CStr)| Ok::<bool, Errno>(matches!(place(fd, path)?, Place::Kernel));
    if kernels(from)? && kernels(to)? {
        match kernel(from.0, from.1, to.0, to.1) {
            Err(errno) if links::may_lead_inside(errno) => {}
            other => return other,
        }
    }
    match (settle(from.0, from.1)?, settle(to.0, to.1)?) {
        (Settled::Kernel(from_fd, from), Settled::Kernel(to_fd, to)) => kernel(from_fd, &from, to_fd, &to),
        (from, to) => state::guarded(|| otherwise(from, to)).map_err(Fail::errno),
    }
}

/// The canonical path of what a path names, all of which exists. `None`: it is not in the mount, ask the kernel.
pub fn real_path(dirfd: i32, path: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    let kernel =
        |dirfd: i32, path: &CStr| sys!(SYS_faccessat, dirfd, path.as_ptr(), libc::F_OK).map(|_| None);
    at(dirfd, path, true, kernel, |client, start, path| client.real_path(start, path).map(Some))
}
