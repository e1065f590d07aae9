//! The working directory, also when it is in the mount.
//!
//! The kernel knows nothing of the mount, but keeps a working directory through fork and exec, for any child and
//! whatever happens to the environment. So when a program goes to a directory of the mount, the kernel's
//! working directory becomes a *mirror*: an empty directory `<node directory>/cwd/<inode>`, named by the inode number of
//! the real one. Its name tells any process where it is, a rename of the real directory changes nothing, and a relative path
//! that escapes the faces finds nothing there rather than a wrong file.
//!
//! What is known is kept in one word, until the next `chdir`.

use super::{fds, state};
use bivouac_client::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the process is.
pub enum Current {
    /// Not in the mount.
    Outside,
    /// In this directory of the mount.
    Inside(Ino),
}

const UNKNOWN: u64 = 0;
const OUTSIDE: u64 = u64::MAX;
/// One of these, or an inode number.
static KNOWN: AtomicU64 = AtomicU64::new(UNKNOWN);

const PATH_MAX: usize = 4096;

/// Where the process is. Asks the kernel once after each change; in a vfork child, whose word this is not, always.
#[inline]
pub fn current() -> Current {
    match KNOWN.load(Ordering::Acquire) {
        _ if state::borrowed() => look(),
        UNKNOWN => look(),
        OUTSIDE => Current::Outside,
        ino => Current::Inside(Ino(ino)),
    }
}

#[cold]
fn look() -> Current {
    let Ok(path) = of_kernel() else {
        return Current::Outside;
    };
    let word = match mirrored(&path) {
        Some((ino, _)) => ino.0,
        None => OUTSIDE,
    };
    if !state::borrowed() {
        KNOWN.store(word, Ordering::Release);
    }
    match word {
        OUTSIDE => Current::Outside,
        ino => Current::Inside(Ino(ino)),
    }
}

/// The kernel's working directory.
pub fn of_kernel() -> Result<Vec<u8>, Errno> {
    let mut path = vec![0u8; PATH_MAX];
    let len = sys!(SYS_getcwd, path.as_mut_ptr(), path.len())?;
    path.truncate(len.saturating_sub(1));
    // "(unreachable)/..." is no path.
    if path.first() == Some(&b'/') { Ok(path) } else { Err(Errno::NOENT) }
}

/// The inode that a mirror stands for, and what follows in the path.
fn mirrored(path: &[u8]) -> Option<(Ino, &[u8])> {
    mirrored_in(state::environment()?.name.as_bytes(), path)
}

/// `/dev/shm/bivouac-<uid>/<name>/node-<n>/cwd/<inode>`; of the user and the node only the form is checked.
fn mirrored_in<'p>(name: &[u8], path: &'p [u8]) -> Option<(Ino, &'p [u8])> {
    let digits = |text: &'p [u8]| {
        let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
        (end > 0).then(|| text.get(end..)).flatten()
    };
    let rest = digits(path.strip_prefix(b"/dev/shm/bivouac-")?)?;
    let rest = rest.strip_prefix(b"/")?.strip_prefix(name)?.strip_prefix(b"/node-")?;
    let rest = digits(rest)?.strip_prefix(b"/cwd/")?;
    let hex = std::str::from_utf8(rest.get(..16)?).ok()?;
    let ino = u64::from_str_radix(hex, 16).ok().filter(|ino| (1..OUTSIDE).contains(ino))?;
    let rest = rest.get(16..)?;
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some((Ino(ino), rest))
}

/// The path, behind the mount point, of what lies below a mirror: for walking links like `/proc/self/cwd`.
pub fn mirrored_path(path: &[u8]) -> Option<Vec<u8>> {
    let (ino, rest) = mirrored(path)?;
    let path = state::guarded(|| state::client()?.path_of(ino)).ok()?;
    let below = path.strip_prefix(state::mount())?;
    Some([below, rest].concat())
}

fn mirror_name(dir: Ino) -> Result<Vec<u8>, Errno> {
    Ok([state::client()?.node_dir(), format!("/cwd/{dir}\0").as_bytes()].concat())
}

/// Makes the mirror of a directory and returns its path, ended by NUL.
pub fn mirror(dir: Ino) -> Result<Vec<u8>, Errno> {
    let parent = [state::client()?.node_dir(), b"/cwd\0"].concat();
    let path = mirror_name(dir)?;
    let make = |path: &[u8], mode: usize| match sys!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), mode) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    };
    match make(&path, 0o500) {
        Err(Errno::NOENT) => {
            make(&parent, 0o700)?;
            make(&path, 0o500)?;
        }
        other => other?,
    }
    Ok(path)
}

fn enter(dir: Ino) -> Result<(), Errno> {
    let path = mirror_name(dir)?;
    if sys!(SYS_chdir, path.as_ptr()).is_err() {
        sys!(SYS_chdir, mirror(dir)?.as_ptr())?;
    }
    remember(dir.0);
    Ok(())
}

fn remember(word: u64) {
    if !state::borrowed() {
        KNOWN.store(word, Ordering::Release);
    }
}

/// The directory of the mount that a path names, checked to be one that may be entered.
fn directory(client: &bivouac_client::Client, start: Ino, path: &[u8]) -> Result<Ino, Fail> {
    let attr = client.stat(start, path, true)?;
    if attr.kind != bivouac_proto::FileKind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    client.access(start, path, libc::X_OK as u32, true)?;
    Ok(attr.ino)
}

/// `chdir(2)`.
pub fn chdir(path: &CStr) -> Result<(), Errno> {
    let kernel = |_: i32, path: &CStr| {
        sys!(SYS_chdir, path.as_ptr())?;
        if state::active() {
            remember(UNKNOWN);
        }
        Ok(())
    };
    let inside = |client: &_, start: Ino, path: &[u8]| Ok(enter(directory(client, start, path)?)?);
    super::at::at(libc::AT_FDCWD, path, true, kernel, inside)
}

/// The kernel's path of a directory of the mount that `path` names (its mirror, ended by NUL), for children whose
/// working directory is set by others; `None` when it is not in the mount.
pub fn kernel_path(dirfd: i32, path: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    let inside = |client: &_, start: Ino, path: &[u8]| Ok(Some(mirror(directory(client, start, path)?)?));
    super::at::at(dirfd, path, true, |_, _| Ok(None), inside)
}

/// `fchdir(2)`.
pub fn fchdir(fd: i32) -> Result<(), Errno> {
    match fds::get(fd)? {
        Some(file) if file.starts_paths() => {
            enter(state::guarded(|| directory(state::client()?, file.ino(), b".").map_err(Fail::errno))?)
        }
        Some(_) => Err(Errno::NOTDIR),
        None => {
            sys!(SYS_fchdir, fd)?;
            if state::active() {
                remember(UNKNOWN);
            }
            Ok(())
        }
    }
}

/// The working directory's path. ENOENT when it was removed.
pub fn getcwd() -> Result<Vec<u8>, Errno> {
    if !state::active() {
        return of_kernel();
    }
    match current() {
        Current::Inside(dir) => state::guarded(|| state::client()?.path_of(dir)),
        _ => of_kernel(),
    }
}

/// Something else changed the working directory.
pub fn moved() {
    remember(UNKNOWN);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_names_its_inode_and_nothing_else_does() {
        let path = b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007";
        assert_eq!(mirrored_in(b"job", path), Some((Ino(0x00f0_0000_0000_0007), &b""[..])));
        let below = [&path[..], b"/x"].concat();
        assert_eq!(mirrored_in(b"job", &below), Some((Ino(0x00f0_0000_0000_0007), &b"/x"[..])));
        for bad in [
            &b"/dev/shm/bivouac-1000/job2/node-3/cwd/00f0000000000007"[..],
            b"/dev/shm/bivouac-1000/job/node-3/cwd/00f000000000000",
            b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007x",
            b"/dev/shm/bivouac-1000/job/node-3/cwd/0000000000000000",
            b"/dev/shm/bivouac-x/job/node-3/cwd/00f0000000000007",
            b"/dev/shm/bivouac-1000/job/node-3/anchors/3",
            b"/tmp",
        ] {
            assert_eq!(mirrored_in(b"job", bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }
}
