//! The working directory, also when it is in the mount.
//!
//! The kernel knows nothing of the mount, but keeps a working directory through fork and exec, for any child
//! and whatever happens to the environment. So when a program goes to a directory of the mount, the kernel's
//! working directory becomes a *mirror*: an empty directory `<node directory>/cwd/<inode>/<inode>`, named by
//! the inode number of the real one. Its name tells any process where it is, a rename of the real directory
//! changes nothing, and a relative path that escapes the faces finds nothing there rather than a wrong file.
//! Once entered, the mirror and the directory above it are removed: where nothing has a name, nobody can
//! create anything, not even the superuser, and what a program without the library writes fails rather than
//! goes astray.
//!
//! A forwarded directory may be a directory of the node's own, too. A process that is started in it has no mirror: the library asks
//! the I/O node for the inode number of the directory that the kernel names.
//!
//! What is known is kept until the next change. Other threads and signal handlers may ask while it changes,
//! so changes are counted, when they begin and when they end: what was found out while none was under way
//! holds as long as the count is the same; anything else is not kept.

use super::scratch::{Scratch, Text};
use super::{fds, state};
use bivouac_client::{Client, Fail};
use bivouac_layout::Ino;
use bivouac_node::{Fd, process};
use bivouac_proto::Errno;
use rustix::fd::AsRawFd;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where the process is.
pub enum Current {
    /// Not in the mount.
    Outside,
    /// In this directory of the mount.
    Inside(Ino),
}

impl Current {
    fn from_word(word: u64) -> Current {
        if word == OUTSIDE { Current::Outside } else { Current::Inside(Ino(word)) }
    }
}

/// Changes of the working directory: how many have begun (lower half) and have ended (upper half).
static CHANGES: AtomicU64 = AtomicU64::new(0);
const BEGUN: u64 = 1;
const ENDED: u64 = 1 << 32;

/// [`OUTSIDE`] or an inode number, as it was when [`CHANGES`] was [`KNOWN_AT`].
static KNOWN: AtomicU64 = AtomicU64::new(OUTSIDE);
static KNOWN_AT: AtomicU64 = AtomicU64::new(NEVER);
const OUTSIDE: u64 = u64::MAX;
const NEVER: u64 = u64::MAX;
/// The process of which a thread is writing the two, or 0. A thread that finds another one writing does not
/// write.
static LEARNING: AtomicU32 = AtomicU32::new(0);

/// Where mirrors lie: what their paths begin with.
pub const MIRRORS: &[u8] = b"/dev/shm/bivouac-";
/// More than a mirror's path can have.
const MIRROR_MAX: usize = 160;
const _: () = assert!(bivouac_node::names::NAME_MAX + 100 <= MIRROR_MAX);

/// Where the process is. Asks the kernel once after each change; in a `vfork` child, for which these
/// variables are not valid, always. It fails if the process is in a forwarded directory that the backend does not have, or whose
/// I/O node does not answer: relative names then give the error that absolute names of the same files give.
#[inline(never)]
pub fn current() -> Result<Current, Errno> {
    let changes = CHANGES.load(Ordering::Acquire);
    if KNOWN_AT.load(Ordering::Acquire) == changes && !state::borrowed() {
        let word = KNOWN.load(Ordering::Acquire);
        if KNOWN_AT.load(Ordering::Acquire) == changes && CHANGES.load(Ordering::Acquire) == changes {
            return Ok(Current::from_word(word));
        }
    }
    look(changes)
}

#[cold]
#[inline(never)]
fn look(changes: u64) -> Result<Current, Errno> {
    let mut path = [0u8; MIRROR_MAX];
    let mirror = match sys!(SYS_getcwd, path.as_mut_ptr(), path.len()) {
        Ok(len) => mirrored(path.get(..len.saturating_sub(1)).unwrap_or_default()),
        // Too long for a mirror.
        Err(Errno::RANGE) => None,
        // Removed, as mirrors are. /proc still shows what its path was.
        Err(_) => {
            let link = c"/proc/self/cwd";
            match sys!(SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), path.as_mut_ptr(), path.len()) {
                Ok(len) => mirrored(path.get(..len).unwrap_or_default()),
                Err(_) => return Ok(Current::Outside),
            }
        }
    };
    let word = match mirror {
        Some((ino, _)) => ino.0,
        None if state::forwarded().is_empty() => OUTSIDE,
        // After an error it is asked for again.
        None => state::apart(in_forwarded)?.map_or(OUTSIDE, |ino| ino.0),
    };
    if !state::borrowed() {
        learn(changes, word);
    }
    Ok(Current::from_word(word))
}

/// The directory of the backend that the process is in without a mirror: its node sees the backend, too, and the process was
/// started there, or went there along a link.
fn in_forwarded() -> Result<Option<Ino>, Errno> {
    let Ok(path) = of_kernel() else { return Ok(None) };
    let below = |above: &[u8]| match path.strip_prefix(above) {
        Some(rest) if rest.is_empty() || rest.first() == Some(&b'/') => Some(rest.to_vec()),
        _ => None,
    };
    // The kernel names it by its own path; links may lead there by the one that is forwarded.
    let Some(rest) = below(state::forwarded()).or_else(|| below(&of_kernel_at(state::forwarded())?)) else {
        return Ok(None);
    };
    match directory(state::client()?, Ino::FORWARDED, &rest) {
        Ok(ino) => Ok(Some(ino)),
        Err(fail) => Err(fail.errno()),
    }
}

/// The kernel's own path of a directory.
fn of_kernel_at(path: &[u8]) -> Option<Vec<u8>> {
    let path = [path, b"\0"].concat();
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let fd = super::open::owned(sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags).ok()?);
    let link = format!("/proc/self/fd/{}\0", fd.as_raw_fd());
    let mut own = vec![0u8; libc::PATH_MAX as usize];
    let len = sys!(SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), own.as_mut_ptr(), own.len()).ok()?;
    own.truncate(len);
    Some(own)
}

/// Stores what was found, unless something has changed since `changes` was read.
fn learn(changes: u64, word: u64) {
    let me = process::pid();
    let taken = LEARNING.load(Ordering::Relaxed);
    if changes as u32 != (changes >> 32) as u32
        // A thread of the process that this one was forked from does not go on here.
        || taken == me
        || LEARNING.compare_exchange(taken, me, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return;
    }
    if CHANGES.load(Ordering::Acquire) == changes {
        KNOWN_AT.store(NEVER, Ordering::Release);
        KNOWN.store(word, Ordering::Release);
        KNOWN_AT.store(changes, Ordering::Release);
    }
    LEARNING.store(0, Ordering::Release);
}

/// Runs a system call that changes the working directory. (If it is left by a `siglongjmp`, nothing is known
/// any more.)
fn changing(call: impl FnOnce() -> Result<usize, Errno>) -> Result<(), Errno> {
    if !state::active() || state::borrowed() {
        let done = call();
        super::beside::attrs::working_directory_changes();
        return done.map(|_| ());
    }
    CHANGES.fetch_add(BEGUN, Ordering::AcqRel);
    let done = call();
    CHANGES.fetch_add(ENDED, Ordering::AcqRel);
    done.map(|_| ())
}

/// The kernel's working directory.
pub fn into_text(text: &mut Text<'_>) -> Option<()> {
    text.fill(|to, fits| sys!(SYS_getcwd, to, fits).map(|len| len.saturating_sub(1)))?;
    // "(unreachable)/..." is no path.
    (text.bytes().first() == Some(&b'/')).then_some(())
}

fn of_kernel() -> Result<Vec<u8>, Errno> {
    let mut scratch = Scratch::take().ok_or(Errno::NOMEM)?;
    let [mut path, ..] = scratch.texts();
    into_text(&mut path).ok_or(Errno::NOENT)?;
    Ok(path.bytes().to_vec())
}

/// The inode that a mirror stands for, and what follows in the path.
pub fn mirrored(path: &[u8]) -> Option<(Ino, &[u8])> {
    mirrored_in(state::environment()?.name.as_bytes(), path)
}

/// `/dev/shm/bivouac-<uid>/<name>/node-<n>/cwd/<inode>/<inode> (deleted)`; of the user and the node only the
/// form is checked.
fn mirrored_in<'p>(name: &[u8], path: &'p [u8]) -> Option<(Ino, &'p [u8])> {
    let digits = |text: &'p [u8]| {
        let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
        (end > 0).then(|| text.get(end..)).flatten()
    };
    let rest = digits(path.strip_prefix(MIRRORS)?)?;
    let rest = rest.strip_prefix(b"/")?.strip_prefix(name)?.strip_prefix(b"/node-")?;
    let rest = digits(rest)?.strip_prefix(b"/cwd/")?;
    let hex = std::str::from_utf8(rest.get(..16)?).ok()?;
    let ino = u64::from_str_radix(hex, 16).ok().filter(|ino| (1..OUTSIDE).contains(ino))?;
    let rest = rest.get(16..)?.strip_prefix(b"/")?.strip_prefix(hex.as_bytes())?;
    let rest = rest.strip_prefix(b" (deleted)").unwrap_or(rest);
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some((Ino(ino), rest))
}

/// The path of what lies below a mirror: for walking links like `/proc/self/cwd`.
#[inline(never)]
pub fn mirrored_path(path: &[u8]) -> Option<Vec<u8>> {
    let (ino, rest) = mirrored(path)?;
    let path = state::apart(|| state::client()?.path_of(ino)).ok()?;
    Some([&path, rest].concat())
}

/// How often making a mirror is tried: another process may have removed it in between.
const TRIES: usize = 1000;

/// A descriptor of a mirror, which has no name any more.
fn mirror(dir: Ino) -> Result<Fd, Errno> {
    let all = [state::client()?.node_dir(), b"/cwd\0"].concat();
    let above = [state::client()?.node_dir(), format!("/cwd/{dir}\0").as_bytes()].concat();
    let path = [state::client()?.node_dir(), format!("/cwd/{dir}/{dir}\0").as_bytes()].concat();
    let make = |path: &[u8], mode: usize| match sys!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), mode) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    for _ in 0..TRIES {
        let made = make(&all, 0o700).and_then(|()| make(&above, 0o700)).and_then(|()| make(&path, 0o500));
        let opened = made.and_then(|()| sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags));
        let opened = match opened {
            Ok(fd) => super::open::owned(fd),
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        for path in [&path, &above] {
            let _ = sys!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), libc::AT_REMOVEDIR);
        }
        return Ok(opened);
    }
    Err(Errno::IO)
}

fn enter(dir: Ino) -> Result<(), Errno> {
    let mirror = mirror(dir)?;
    changing(|| sys!(SYS_fchdir, mirror.as_raw_fd()))
}

/// The directory of the mount that a path names, checked to be one that may be entered.
fn directory(client: &bivouac_client::Client, start: Ino, path: &[u8]) -> Result<Ino, Fail> {
    let attr = client.stat((start, path, true))?;
    if attr.kind != bivouac_proto::FileKind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    client.access((start, path, true), libc::X_OK as u32)?;
    Ok(attr.ino)
}

/// `chdir(2)`.
pub fn chdir(path: &CStr) -> Result<(), Errno> {
    let kernel = |_: i32, path: &CStr| changing(|| sys!(SYS_chdir, path.as_ptr()));
    let inside = |client: &Arc<Client>, start: Ino, path: &[u8]| Ok(enter(directory(client, start, path)?)?);
    super::at::at(libc::AT_FDCWD, path, true, kernel, inside)
}

/// A descriptor of the kernel's for a directory of the mount that `path` names (its mirror), for children
/// whose working directory is set by others; `None` when it is not in the mount.
pub fn kernel_directory(dirfd: i32, path: &CStr) -> Result<Option<Fd>, Errno> {
    let inside =
        |client: &Arc<Client>, start: Ino, path: &[u8]| Ok(Some(mirror(directory(client, start, path)?)?));
    super::at::at(dirfd, path, true, |_, _| Ok(None), inside)
}

/// `fchdir(2)`.
pub fn fchdir(fd: i32) -> Result<(), Errno> {
    match fds::get(fd)? {
        Some(file) if file.starts_paths()? => {
            enter(state::apart(|| directory(state::client()?, file.ino(), b"").map_err(Fail::errno))?)
        }
        Some(_) => Err(Errno::NOTDIR),
        None => changing(|| sys!(SYS_fchdir, fd)),
    }
}

/// The working directory's path, if it is in the mount. ENOENT when it was removed.
pub fn path_inside() -> Option<Result<Vec<u8>, Errno>> {
    if !state::active() {
        return None;
    }
    match current() {
        Ok(Current::Inside(dir)) => Some(state::apart(|| state::client()?.path_of(dir))),
        // The kernel names a forwarded directory, too.
        Ok(Current::Outside) | Err(_) => None,
    }
}

/// The working directory's path, for the library itself.
pub fn getcwd() -> Result<Vec<u8>, Errno> {
    path_inside().unwrap_or_else(of_kernel)
}

/// Something else changed the working directory.
pub fn moved() {
    if !state::borrowed() {
        CHANGES.fetch_add(BEGUN + ENDED, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_names_its_inode_and_nothing_else_does() {
        let path = b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007/00f0000000000007 (deleted)";
        assert_eq!(mirrored_in(b"job", path), Some((Ino(0x00f0_0000_0000_0007), &b""[..])));
        let not_yet = path.strip_suffix(b" (deleted)").unwrap();
        assert_eq!(mirrored_in(b"job", not_yet), Some((Ino(0x00f0_0000_0000_0007), &b""[..])));
        let below = [&path[..], b"/x"].concat();
        assert_eq!(mirrored_in(b"job", &below), Some((Ino(0x00f0_0000_0000_0007), &b"/x"[..])));
        for bad in [
            &b"/dev/shm/bivouac-1000/job2/node-3/cwd/00f0000000000007/00f0000000000007"[..],
            b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007",
            b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007/00f0000000000008",
            b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007/00f000000000000",
            b"/dev/shm/bivouac-1000/job/node-3/cwd/00f0000000000007/00f0000000000007x",
            b"/dev/shm/bivouac-1000/job/node-3/cwd/0000000000000000/0000000000000000",
            b"/dev/shm/bivouac-x/job/node-3/cwd/00f0000000000007/00f0000000000007",
            b"/dev/shm/bivouac-1000/job/node-3/anchors/3",
            b"/tmp",
        ] {
            assert_eq!(mirrored_in(b"job", bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }
}
