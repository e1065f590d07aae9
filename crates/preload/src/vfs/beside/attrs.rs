//! Attributes past a kernel mount.
//!
//! To look at a path, the kernel sends two requests to the mount for each name on it. The client core answers
//! from its facts, or with one request. This library uses the client's answer where it is the same as the
//! kernel's: for a path whose text leads into the mount, in a process that has the user that the client acts
//! for, for something that belongs to that user (the numbers of others may look different in a user
//! namespace), with no other file system mounted below. In all other cases, and after every error but ENOENT,
//! it asks the kernel.
//!
//! A path that is relative to a directory (the working directory, or a descriptor's) is looked up from that
//! directory's inode. The kernel tells the inode number without asking the mount; the directory's path, as
//! the kernel knows it, may be out of date.

use crate::vfs::place::{Lexical, lexical};
use crate::vfs::state;
use bivouac_client::{Client, Fail};
use bivouac_layout::Ino;
use bivouac_proto::attr::PATH_MAX;
use bivouac_proto::{Attr, Errno};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// So many looks go through the kernel before the client is asked: most processes look at a few paths only,
/// and need no client.
const FIRST: u32 = 3;
const USABLE: u32 = 100;
const UNUSABLE: u32 = 101;
/// Looks so far, or what came of looking around.
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// Descriptors up to this number can start paths here.
const DIRECTORIES: usize = 1024;
/// Which of them, and as the last one the working directory, were seen to be outside of the mount. This
/// library does not notice all changes: if one is in the mount by now, paths from it simply go through the
/// kernel.
static OUTSIDE: [AtomicU64; DIRECTORIES / 64 + 1] = [const { AtomicU64::new(0) }; DIRECTORIES / 64 + 1];

fn outside(dirfd: i32) -> Option<(&'static AtomicU64, u64)> {
    let at = if dirfd == libc::AT_FDCWD { DIRECTORIES } else { usize::try_from(dirfd).ok()? };
    let word = if at > DIRECTORIES { None } else { OUTSIDE.get(at / 64) }?;
    Some((word, 1 << (at % 64)))
}

/// The working directory changes.
pub fn working_directory_changes() {
    if let Some((word, bit)) = outside(libc::AT_FDCWD) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// The directory that a path starts from, if it is in the mount.
fn start(dirfd: i32) -> Option<Ino> {
    let (word, bit) = outside(dirfd)?;
    if word.load(Ordering::Relaxed) & bit != 0 {
        return None;
    }
    let found = super::number_of(dirfd);
    if found.is_none() {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    found
}

/// Paths do not mean what they did: the process has another root directory, or other mounts.
pub fn moved() {
    LOOKS.store(UNUSABLE, Ordering::Relaxed);
}

/// Whether paths in the mount can be looked at without the kernel.
fn is_usable() -> bool {
    match LOOKS.load(Ordering::Relaxed) {
        USABLE => !state::borrowed(),
        UNUSABLE => false,
        FIRST if state::borrowed() => false,
        FIRST => {
            let usable = is_alone() == Some(true);
            LOOKS.store(if usable { USABLE } else { UNUSABLE }, Ordering::Relaxed);
            usable
        }
        looks => {
            let _ = LOOKS.compare_exchange(looks, looks + 1, Ordering::Relaxed, Ordering::Relaxed);
            false
        }
    }
}

/// Whether nothing else is mounted below the mount, and it can be seen at one place only.
fn is_alone() -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty());
    let table = table.map(bivouac_node::Fd::from).ok()?;
    let mut text = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        match rustix::io::read(&table, &mut piece[..]) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(piece.get(..count)?),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let lines = || text.split(|b| *b == b'\n');
    let places = lines().filter(|line| is_of(super::device(), line)).count();
    Some(places == 1 && !lines().any(|line| is_below(state::mount(), line)))
}

/// Whether a line of the mount table is about a path below `mount`. (The table writes special bytes as
/// numbers; then every path with the same beginning counts.)
fn is_below(mount: &[u8], line: &[u8]) -> bool {
    let Some(place) = line.split(|b| *b == b' ').nth(4) else { return false };
    let plain = mount.iter().take_while(|b| !b" \t\n\\".contains(b)).count();
    let (begin, whole) = (mount.get(..plain).unwrap_or_default(), plain == mount.len());
    match place.strip_prefix(begin) {
        Some(rest) if whole => rest.first() == Some(&b'/'),
        Some(rest) => !rest.is_empty(),
        None => false,
    }
}

/// Whether a line of the mount table speaks of this device.
fn is_of(device: u64, line: &[u8]) -> bool {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    line.split(|b| *b == b' ').nth(2) == Some(number.as_bytes())
}

/// The client's answer about a path. `None`: ask the kernel.
#[inline(never)]
fn ask<T>(
    dirfd: i32,
    path: &CStr,
    look: impl FnOnce(&'static Arc<Client>, Ino, &[u8]) -> Result<Option<T>, Fail>,
) -> Option<Result<T, Errno>> {
    let path = path.to_bytes();
    if path.is_empty() || path.len() > PATH_MAX {
        return None;
    }
    let relative = path.first() != Some(&b'/');
    let (start, rest) = if relative {
        (start(dirfd)?, path)
    } else {
        let Lexical::Inside(rest) = lexical(state::mount(), path) else { return None };
        (Ino::ROOT, rest)
    };
    if !is_usable() {
        return None;
    }
    let asked = || {
        let client = state::client()?;
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if client.user() == me { look(client, start, rest) } else { Ok(None) }
    };
    match state::apart(asked) {
        Ok(found) => found.map(Ok),
        // The kernel can still look at a removed directory, and follow its `..`.
        Err(Fail::Errno(Errno::NOENT)) if !relative || path.first() != Some(&b'.') => Some(Err(Errno::NOENT)),
        Err(_) => None,
    }
}

/// The attributes of what a path names. `None`: the kernel is to be asked.
pub fn stat(dirfd: i32, path: &CStr, follow: bool) -> Option<Result<Attr, Errno>> {
    ask(dirfd, path, |client, start, rest| {
        let attr = client.stat((start, rest, follow))?;
        let mine = (attr.uid, attr.gid) == client.user() && attr.device() == 0;
        Ok(mine.then_some(attr))
    })
}

/// Whether what a path names may be accessed. `None`: the kernel is to be asked.
pub fn access(dirfd: i32, path: &CStr, mode: i32, follow: bool) -> Option<Result<(), Errno>> {
    ask(dirfd, path, |client, start, rest| {
        let real = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        if client.user() != real {
            return Ok(None);
        }
        client.access((start, rest, follow), mode as u32).map(Some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_the_mount_are_noticed_and_others_are_not() {
        let line = |place: &str| format!("36 35 98:0 / {place} rw,noatime - ext3 /dev/root rw").into_bytes();
        for (mount, place, below) in [
            ("/bivouac", "/bivouac/sub", true),
            ("/bivouac", "/bivouac", false),
            ("/bivouac", "/bivouac2", false),
            ("/bivouac", "/", false),
            ("/a b", "/a\\040b", true),
            ("/a b", "/x", false),
        ] {
            assert_eq!(is_below(mount.as_bytes(), &line(place)), below, "{mount} {place}");
        }
        let device = libc::makedev(98, 0);
        assert!(is_of(device, &line("/")) && !is_of(libc::makedev(9, 80), &line("/")) && !is_of(device, b""));
        assert!(!is_below(b"/bivouac", b"") && !is_below(b"/bivouac", b"1 2"));
    }
}
