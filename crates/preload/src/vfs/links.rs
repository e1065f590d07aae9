//! Walking a path outside the mount, to see whether a symbolic link leads into it.
//!
//! The mount point need not exist, so the kernel says ENOENT or ENOTDIR for a path through such a link. Only then is
//! the path walked, component by component. Most of what is not found is simply not there, in a directory that is: that is told by
//! two system calls, without a walk.

use super::place::{Lexical, lexical, next_component};
use super::{cwd, state};
use bivouac_proto::Errno;
use std::ffi::CStr;

const MAX_LINKS: u32 = 40;
const PATH_MAX: usize = 4096;

/// Whether an error of the kernel can mean that a link leads into the mount.
#[inline]
pub fn may_lead_inside(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::XDEV)
}

/// Where a path that the kernel did not find leads: what follows the mount point. `None`: not into the mount.
#[cold]
pub fn into_mount(dirfd: i32, path: &CStr, follow: bool) -> Option<Vec<u8>> {
    if is_plainly_missing(dirfd, path, follow) { None } else { walk(dirfd, path, follow) }
}

/// The directory exists, and the name in it is no symbolic link that would be followed.
fn is_plainly_missing(dirfd: i32, path: &CStr, follow: bool) -> bool {
    let bytes = path.to_bytes();
    let trimmed = bytes.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let parent =
        bytes.get(..trimmed).unwrap_or_default().iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    let mut buffer = [0u8; PATH_MAX];
    let Some(room) = buffer.get_mut(..parent) else {
        return true;
    };
    if parent > 0 {
        room.copy_from_slice(bytes.get(..parent).unwrap_or_default());
        if sys!(SYS_faccessat, dirfd, buffer.as_ptr(), libc::F_OK).is_err() {
            return false;
        }
    }
    // With a slash behind it a link is followed always.
    if !follow && trimmed == bytes.len() {
        return true;
    }
    let Some(room) = buffer.get_mut(..trimmed) else {
        return true;
    };
    room.copy_from_slice(bytes.get(..trimmed).unwrap_or_default());
    if let Some(end) = buffer.get_mut(trimmed) {
        *end = 0;
    }
    let mut target = [0u8; 1];
    sys!(SYS_readlinkat, dirfd, buffer.as_ptr(), target.as_mut_ptr(), target.len()).is_err()
}

/// Walks, from the real path of where it starts.
#[cold]
pub fn walk(dirfd: i32, path: &CStr, follow: bool) -> Option<Vec<u8>> {
    let bytes = path.to_bytes();
    let start = match bytes.first()? {
        b'/' => Vec::new(),
        _ if dirfd == libc::AT_FDCWD => cwd::of_kernel().ok()?,
        _ => link_target(format!("/proc/self/fd/{dirfd}\0").as_bytes())?,
    };
    let link = |path: &[u8]| link_target(&[path, b"\0"].concat());
    let directory = |path: &[u8]| {
        let path = [path, b"/.\0"].concat();
        sys!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK).is_ok()
    };
    walk_from(state::mount(), start, bytes, follow, link, directory)
}

/// The walk itself; `start` is a real path without links, `link` gives a link's target, `directory` says whether there
/// is such a directory (asked only where a `..` leads back out of it).
fn walk_from(
    mount: &[u8],
    start: Vec<u8>,
    path: &[u8],
    follow: bool,
    link: impl Fn(&[u8]) -> Option<Vec<u8>>,
    directory: impl Fn(&[u8]) -> bool,
) -> Option<Vec<u8>> {
    let mut resolved = if start == b"/" { Vec::new() } else { start };
    let mut rest = path.to_vec();
    let mut at = 0;
    let mut links = 0;
    loop {
        if let Some(inside) = reached(mount, &resolved) {
            return Some([&inside, rest.get(at..)?].concat());
        }
        let (component, end) = next_component(&rest, at)?;
        match component {
            b"." => {}
            b".." => {
                // What is not there leads nowhere; but the way to a mount point that need not exist is there.
                if !is_above(&resolved, mount) && !directory(&resolved) {
                    return None;
                }
                let up = resolved.iter().rposition(|b| *b == b'/').unwrap_or(0);
                resolved.truncate(up);
            }
            name => {
                let before = resolved.len();
                resolved.push(b'/');
                resolved.extend_from_slice(name);
                // The last name is followed when asked for, or when a slash comes after it.
                let last = end == rest.len();
                if reached(mount, &resolved).is_none()
                    && (!last || follow)
                    && let Some(target) = link(&resolved)
                {
                    links += 1;
                    if links > MAX_LINKS || target.is_empty() {
                        return None;
                    }
                    resolved.truncate(if target.first() == Some(&b'/') { 0 } else { before });
                    rest = [&target, rest.get(end..)?].concat();
                    at = 0;
                    continue;
                }
            }
        }
        at = end;
    }
}

/// Whether a real path is one of the directories above the mount point.
fn is_above(resolved: &[u8], mount: &[u8]) -> bool {
    mount.strip_prefix(resolved).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Whether a real path has arrived: at the mount point, or at the mirror of a directory in it.
fn reached(mount: &[u8], resolved: &[u8]) -> Option<Vec<u8>> {
    if resolved.len() < 2 {
        return None;
    }
    match lexical(mount, resolved) {
        Lexical::Inside(rest) => Some(rest.to_vec()),
        _ => cwd::mirrored_path(resolved),
    }
}

/// The target of a symbolic link; `path` ends with NUL.
fn link_target(path: &[u8]) -> Option<Vec<u8>> {
    let mut target = vec![0u8; PATH_MAX];
    let len = sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len()).ok()?;
    target.truncate(len);
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn walked(start: &str, path: &str, follow: bool) -> Option<String> {
        let links: HashMap<&[u8], &[u8]> = HashMap::from([
            (&b"/home/in"[..], &b"/deep/er/bivouac/data"[..]),
            (b"/home/up", b"../deep/er/bivouac"),
            (b"/home/twice", b"in/deep"),
            (b"/home/loop", b"loop"),
            (b"/home/dir", b"/var/lib"),
            (b"/root", b"/"),
        ]);
        let directories = ["/home", "/tmp", "/var", "/var/lib", "/deep"];
        let link = |p: &[u8]| links.get(p).map(|t| t.to_vec());
        let directory = |p: &[u8]| directories.iter().any(|d| d.as_bytes() == p);
        walk_from(b"/deep/er/bivouac", start.into(), path.as_bytes(), follow, link, directory)
            .map(|rest| String::from_utf8(rest).unwrap())
    }

    #[test]
    fn links_into_the_mount_are_found() {
        let cases = [
            ("", "/home/in/x", Some("/data/x")),
            ("/home", "in/x/", Some("/data/x/")),
            ("/home", "up/a/../b", Some("/a/../b")),
            ("/home", "twice/y", Some("/data/deep/y")),
            ("/tmp", "../deep/er/bivouac/x", Some("/x")),
            ("/", "deep/er/bivouac", Some("")),
            ("", "/root/deep/er/bivouac/z", Some("/z")),
            ("/home", "loop/x", None),
            ("", "/home/dir/../deep/er/bivouac", None),
            ("", "/home/dir/../../deep/er/bivouac/q", Some("/q")),
            ("/tmp", "no/such", None),
            ("", "/nonexistent/../deep/er/bivouac/x", None),
            ("/tmp", "no/../../deep/er/bivouac/x", None),
            // The mount point need not exist, nor what is above it.
            ("", "/deep/er/../er/bivouac/x", Some("/x")),
        ];
        for (start, path, expected) in cases {
            assert_eq!(walked(start, path, true).as_deref(), expected, "{path} from {start}");
        }
    }

    #[test]
    fn the_last_link_is_followed_only_when_asked() {
        assert_eq!(walked("", "/home/in", true).as_deref(), Some("/data"));
        assert_eq!(walked("", "/home/in", false), None);
        assert_eq!(walked("", "/home/in/", false).as_deref(), Some("/data/"));
    }
}
