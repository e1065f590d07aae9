//! Attributes past a kernel mount.
//!
//! Looking at a path costs the kernel two requests to the mount for each name on it; the client core answers from what it knows and
//! can still believe, or with one request. That answer is given where it is the kernel's: for an absolute path whose text leads
//! into the mount, in a process that asks for the user that the client acts for, of something that belongs to that user (others'
//! numbers may look different in a user namespace), with no other file system mounted below. Anything else, and every error but
//! ENOENT, is asked of the kernel.

use crate::vfs::place::{Lexical, lexical};
use crate::vfs::state;
use bivouac_client::{Client, Fail};
use bivouac_layout::Ino;
use bivouac_proto::attr::PATH_MAX;
use bivouac_proto::{Attr, Errno};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Looks through the kernel before the client is asked: most processes look at a few paths only, and need no client for that.
const FIRST: u32 = 3;
const USABLE: u32 = 100;
const UNUSABLE: u32 = 101;
/// Looks so far, or what came of looking around.
static LOOKS: AtomicU32 = AtomicU32::new(0);

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

/// Whether nothing else is mounted below the mount.
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
    Some(!text.split(|b| *b == b'\n').any(|line| is_below(state::mount(), line)))
}

/// Whether a line of the mount table speaks of a place below `mount`. (Odd bytes are written as numbers there: then every place
/// that begins alike counts.)
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

/// What the client says of a path. `None`: the kernel is to be asked.
#[inline(never)]
fn ask<T>(
    path: &CStr,
    look: impl FnOnce(&'static Client, &[u8]) -> Result<Option<T>, Fail>,
) -> Option<Result<T, Errno>> {
    let path = path.to_bytes();
    if path.first() != Some(&b'/') || path.len() > PATH_MAX {
        return None;
    }
    let Lexical::Inside(rest) = lexical(state::mount(), path) else { return None };
    if !is_usable() {
        return None;
    }
    let asked = || {
        let client = state::client()?;
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if client.user() == me { look(client, rest) } else { Ok(None) }
    };
    match state::guarded(asked) {
        Ok(found) => found.map(Ok),
        Err(Fail::Errno(Errno::NOENT)) => Some(Err(Errno::NOENT)),
        Err(_) => None,
    }
}

/// The attributes of what a path names. `None`: the kernel is to be asked.
pub fn stat(path: &CStr, follow: bool) -> Option<Result<Attr, Errno>> {
    ask(path, |client, rest| {
        let attr = client.stat(Ino::ROOT, rest, follow)?;
        let mine = (attr.uid, attr.gid) == client.user() && attr.device() == 0;
        Ok(mine.then_some(attr))
    })
}

/// Whether what a path names may be accessed. `None`: the kernel is to be asked.
pub fn access(path: &CStr, mode: i32, follow: bool) -> Option<Result<(), Errno>> {
    ask(path, |client, rest| {
        let real = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        if client.user() != real {
            return Ok(None);
        }
        client.access(Ino::ROOT, rest, mode as u32, follow).map(Some)
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
        assert!(!is_below(b"/bivouac", b"") && !is_below(b"/bivouac", b"1 2"));
    }
}
