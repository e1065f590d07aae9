//! Walking a path outside the mount, to see whether a symbolic link leads into it.
//!
//! The mount point need not exist, so the kernel says ENOENT or ENOTDIR for a path through such a link. Only
//! then is the path walked, component by component. Most of what is not found is simply not there, in a
//! directory that is: that is told by two system calls, without a walk. All of it is fit for signal handlers:
//! see [`scratch`](super::scratch).

use super::place::{Lexical, lexical, next_component};
use super::scratch::{Scratch, Text};
use super::state::Roots;
use super::{cwd, state};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use std::ffi::CStr;

const MAX_LINKS: u32 = 40;

/// Whether an error of the kernel can mean that a link leads into the mount.
#[inline]
pub fn may_lead_inside(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::XDEV)
}

/// A directory of the client's, and the path from there. (Small: this is on small stacks, too.)
pub type Inside = (Ino, Box<[u8]>);

/// Where a path that the kernel did not find leads. `None`: not to anything of the client's.
#[cold]
#[inline(never)]
pub fn into_mount(dirfd: i32, path: &CStr, follow: bool) -> Option<Inside> {
    let mut scratch = Scratch::take()?;
    let [mut text, ..] = scratch.texts();
    if is_plainly_missing(dirfd, path.to_bytes(), follow, &mut text)? {
        return None;
    }
    walk_in(dirfd, path, follow, &mut scratch)
}

/// The directory exists, and the name in it is no symbolic link that would be followed. `None`: the path is
/// too long.
fn is_plainly_missing(dirfd: i32, path: &[u8], follow: bool, text: &mut Text<'_>) -> Option<bool> {
    let trimmed = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let parent = path.get(..trimmed)?.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    text.push(path.get(..parent)?)?;
    if parent > 0 && sys!(SYS_faccessat, dirfd, text.as_ptr(), libc::F_OK).is_err() {
        return Some(false);
    }
    // A link with a slash behind it is always followed.
    if !follow && trimmed == path.len() {
        return Some(true);
    }
    text.push(path.get(parent..trimmed)?)?;
    let mut target = [0u8; 1];
    Some(sys!(SYS_readlinkat, dirfd, text.as_ptr(), target.as_mut_ptr(), target.len()).is_err())
}

/// Walks, from the real path of where it starts.
#[cold]
pub fn walk(dirfd: i32, path: &CStr, follow: bool) -> Option<Inside> {
    walk_in(dirfd, path, follow, &mut Scratch::take()?)
}

#[inline(never)]
fn walk_in(dirfd: i32, path: &CStr, follow: bool, scratch: &mut Scratch) -> Option<Inside> {
    let [mut resolved, mut rest, mut target] = scratch.texts();
    let bytes = path.to_bytes();
    match bytes.first()? {
        b'/' => {}
        _ if dirfd == libc::AT_FDCWD => cwd::into_text(&mut resolved)?,
        _ => {
            rest.push(b"/proc/self/fd/")?;
            rest.push_number(dirfd)?;
            link_target(&rest, &mut resolved)?;
            rest.truncate(0);
        }
    }
    rest.push(bytes)?;
    let directory = |path: &mut Text<'_>| {
        let before = path.bytes().len();
        let there = path.push(b"/.").is_some()
            && sys!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK).is_ok();
        path.truncate(before);
        there
    };
    walk_from(state::roots(), [&mut resolved, &mut rest, &mut target], follow, link_target, directory)
}

/// The walk itself, in three texts: the real path of where it starts, without links; the path; and room for a
/// link's target. `link` tells that, `directory` says whether there is such a directory (asked only where a
/// `..` leads back out of it).
fn walk_from(
    roots: &Roots<'_>,
    [resolved, rest, target]: [&mut Text<'_>; 3],
    follow: bool,
    link: impl Fn(&Text<'_>, &mut Text<'_>) -> Option<()>,
    directory: impl Fn(&mut Text<'_>) -> bool,
) -> Option<Inside> {
    if resolved.bytes() == b"/" {
        resolved.truncate(0);
    }
    let mut at = 0;
    let mut links = 0;
    loop {
        if let Some((root, inside)) = reached(roots, resolved.bytes()) {
            return Some((root, joined(inside, rest.bytes().get(at..)?)));
        }
        let (component, end) = next_component(rest.bytes(), at)?;
        match component {
            b"." => {}
            b".." => {
                // A missing name leads nowhere, except on the way to the mount point, which need not exist.
                if !is_above(resolved.bytes(), roots) && !directory(resolved) {
                    return None;
                }
                let up = resolved.bytes().iter().rposition(|b| *b == b'/').unwrap_or(0);
                resolved.truncate(up);
            }
            name => {
                let before = resolved.bytes().len();
                resolved.push(b"/")?;
                resolved.push(name)?;
                // The last name is followed when asked for, or when a slash comes after it.
                let last = end == rest.bytes().len();
                if reached(roots, resolved.bytes()).is_none()
                    && (!last || follow)
                    && link(resolved, target).is_some()
                {
                    links += 1;
                    if links > MAX_LINKS || target.bytes().is_empty() {
                        return None;
                    }
                    resolved.truncate(if target.bytes().first() == Some(&b'/') { 0 } else { before });
                    rest.replace_start(end, target.bytes())?;
                    at = 0;
                    continue;
                }
            }
        }
        at = end;
    }
}

/// One behind the other. (Apart: what it needs on the stack is not to be there while a path is walked.)
#[inline(never)]
fn joined(before: &[u8], after: &[u8]) -> Box<[u8]> {
    [before, after].concat().into_boxed_slice()
}

/// Whether a real path is one of the directories above one of ours.
fn is_above(resolved: &[u8], roots: &Roots<'_>) -> bool {
    roots.iter().any(|(root, _)| root.strip_prefix(resolved).is_some_and(|rest| rest.first() == Some(&b'/')))
}

/// Whether a real path has arrived: at one of our directories, or at the mirror of a directory below. (Inlined: this runs on small
/// stacks, too.)
#[inline(always)]
fn reached<'p>(roots: &Roots<'_>, resolved: &'p [u8]) -> Option<(Ino, &'p [u8])> {
    if resolved.len() < 2 {
        return None;
    }
    for (root, start) in roots {
        if !root.is_empty()
            && let Lexical::Inside(rest) = lexical(root, resolved)
        {
            return Some((*start, rest));
        }
    }
    cwd::mirrored(resolved)
}

/// The target of a symbolic link.
fn link_target(path: &Text<'_>, target: &mut Text<'_>) -> Option<()> {
    target.fill(|to, fits| sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), to, fits))
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
        let link = |p: &Text<'_>, target: &mut Text<'_>| {
            target.truncate(0);
            target.push(links.get(p.bytes())?)
        };
        let directory = |p: &mut Text<'_>| directories.iter().any(|d| d.as_bytes() == p.bytes());
        let mut scratch = Scratch::take().unwrap();
        let [mut resolved, mut rest, mut target] = scratch.texts();
        resolved.push(start.as_bytes()).unwrap();
        rest.push(path.as_bytes()).unwrap();
        let roots = [(&b"/deep/er/bivouac"[..], Ino::ROOT), (b"/site/me", Ino::FORWARDED)];
        walk_from(&roots, [&mut resolved, &mut rest, &mut target], follow, link, directory).map(
            |(root, rest)| {
                let rest = String::from_utf8(rest.into_vec()).unwrap();
                if root == Ino::ROOT { rest } else { format!("site:{rest}") }
            },
        )
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
            ("", "/site/me/y", Some("site:/y")),
            ("/home", "../site/./me", Some("site:")),
            ("", "/site/me2/y", None),
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
