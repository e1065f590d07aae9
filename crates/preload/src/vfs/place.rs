//! Where a path leads, judged by its text.
//!
//! An absolute path below the mount is the client's; `..` and symbolic links behind the mount point are the
//! client's business too. A relative path belongs to where its directory is. What cannot be told from the
//! text alone (`..` before the mount point, where a symbolic link may stand) is [`Place::Unsure`], and
//! walked. The common answer, "not in the mount", needs no allocation and no system call.

use super::{cwd, fds, state};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use std::ffi::CStr;

/// Where a path leads: who serves it.
pub enum Place<'p> {
    /// The kernel (as far as the text tells: a symbolic link may still lead into the mount).
    Kernel,
    /// The client, from a directory.
    Inside {
        /// The directory.
        start: Ino,
        /// The rest.
        path: &'p [u8],
    },
    /// An open descriptor of ours, named through `/proc/self/fd` or `/dev/fd`.
    Descriptor(i32),
    /// The text does not tell: the path has to be walked.
    Unsure,
}

/// What the text of an absolute path says.
#[derive(PartialEq, Eq, Debug)]
pub enum Lexical<'p> {
    /// Not below the mount.
    Outside,
    /// Below it: what follows the mount point, with its slashes.
    Inside(&'p [u8]),
    /// Below it if no component before a `..` is a symbolic link.
    Unsure,
}

/// Judges an absolute path by its text.
#[inline(never)]
pub fn lexical<'p>(mount: &[u8], path: &'p [u8]) -> Lexical<'p> {
    // Most paths differ from the mount point in their first component, and have no `..`. (Places in the mount
    // point are kept as numbers and not as iterators: this runs on small stacks, too.)
    let mut wanted = 0;
    let mut matched = 0usize;
    let mut depth = 0usize;
    let mut went_up = false;
    let mut at = 0;
    loop {
        let next = next_component(mount, wanted);
        if depth == matched && next.is_none() {
            let rest = path.get(at..).unwrap_or_default();
            return if went_up { Lexical::Unsure } else { Lexical::Inside(rest) };
        }
        let Some((component, end)) = next_component(path, at) else {
            return Lexical::Outside;
        };
        at = end;
        match component {
            b"." => {}
            b".." => {
                went_up = true;
                depth = depth.saturating_sub(1);
                if matched > depth {
                    matched = depth;
                    wanted = 0;
                    for _ in 0..matched {
                        wanted = next_component(mount, wanted).map_or(wanted, |(_, end)| end);
                    }
                }
            }
            name => {
                match next {
                    Some((expected, end)) if depth == matched && expected == name => {
                        wanted = end;
                        matched += 1;
                    }
                    _ if !has_dot_dot(path, at) => return Lexical::Outside,
                    _ => {}
                }
                depth += 1;
            }
        }
    }
}

fn has_dot_dot(path: &[u8], from: usize) -> bool {
    path.get(from..).unwrap_or_default().windows(3).any(|w| w == b"/..")
}

/// The component that begins at or after `at`, and where it ends.
pub fn next_component(path: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let begin = at + path.get(at..)?.iter().position(|b| *b != b'/')?;
    let end = path.get(begin..)?.iter().position(|b| *b == b'/').map_or(path.len(), |i| begin + i);
    Some((path.get(begin..end)?, end))
}

/// Judges any path. Fails only when it starts from a descriptor of ours that is no directory, or from a working directory that
/// is not known ([`cwd::current`]).
///
/// The parts are functions of their own, so that none takes stack for another.
#[inline(never)]
pub fn place<'p>(dirfd: i32, path: &'p CStr) -> Result<Place<'p>, Errno> {
    let bytes = path.to_bytes();
    if bytes.len() > bivouac_proto::attr::PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    match bytes.first() {
        None => Ok(Place::Kernel),
        Some(b'/') => absolute(bytes),
        Some(_) if dirfd == libc::AT_FDCWD => Ok(match cwd::current()? {
            cwd::Current::Inside(start) => Place::Inside { start, path: bytes },
            cwd::Current::Outside => relative(bytes),
        }),
        Some(_) => from_descriptor(dirfd, bytes),
    }
}

#[inline(never)]
fn absolute(path: &[u8]) -> Result<Place<'_>, Errno> {
    if let Some(found) = below(state::mount(), Ino::ROOT, path) {
        return Ok(found);
    }
    let forwarded = state::forwarded();
    if !forwarded.is_empty()
        && let Some(found) = below(forwarded, Ino::FORWARDED, path)
    {
        return Ok(found);
    }
    match path.starts_with(b"/proc/") || path.starts_with(b"/dev/") {
        true => named_descriptor(path),
        false => Ok(Place::Kernel),
    }
}

/// Whether a path lies below one of our directories, as far as the text tells.
fn below<'p>(root: &[u8], start: Ino, path: &'p [u8]) -> Option<Place<'p>> {
    match lexical(root, path) {
        Lexical::Inside(path) => Some(Place::Inside { start, path }),
        Lexical::Unsure => Some(Place::Unsure),
        Lexical::Outside => None,
    }
}

#[inline(never)]
fn from_descriptor(dirfd: i32, path: &[u8]) -> Result<Place<'_>, Errno> {
    match fds::get(dirfd)? {
        None => Ok(relative(path)),
        Some(file) if file.starts_paths()? => Ok(Place::Inside { start: file.ino(), path }),
        Some(_) => Err(Errno::NOTDIR),
    }
}

/// A relative path that starts outside: it can lead to one of our directories only through that one's own name
/// (links apart).
#[inline(never)]
fn relative(path: &[u8]) -> Place<'_> {
    let forwarded = state::forwarded();
    match names(state::mount(), path) || !forwarded.is_empty() && names(forwarded, path) {
        true => Place::Unsure,
        false => Place::Kernel,
    }
}

/// Whether a component of a path is the name of a directory.
fn names(directory: &[u8], path: &[u8]) -> bool {
    let name = directory.rsplit(|b| *b == b'/').next().unwrap_or_default();
    // Shorter than the name is the quick answer for most.
    if path.len() < name.len() {
        return false;
    }
    let mut at = 0;
    while let Some((component, end)) = next_component(path, at) {
        if component == name {
            return true;
        }
        at = end;
    }
    false
}

/// Paths in `/proc` and `/dev` that name one of our descriptors.
#[inline(never)]
fn named_descriptor(path: &[u8]) -> Result<Place<'_>, Errno> {
    let pid = bivouac_node::process::real_pid();
    if let Some(rest) = below_cwd(path, pid) {
        return through_cwd(rest);
    }
    match descriptor_number(path, pid) {
        Some((fd, rest)) => through_descriptor(fd, rest),
        None => Ok(Place::Kernel),
    }
}

/// A path that begins with the name of a descriptor: the rest.
#[inline(never)]
fn through_descriptor(fd: i32, rest: &[u8]) -> Result<Place<'_>, Errno> {
    match fds::get(fd) {
        Ok(None) => Ok(Place::Kernel),
        Ok(Some(file)) if !rest.is_empty() => match file.starts_paths()? {
            true => Ok(Place::Inside { start: file.ino(), path: rest }),
            false => Err(Errno::NOTDIR),
        },
        _ => Ok(Place::Descriptor(fd)),
    }
}

/// A path that begins with the name that `/proc` has for the working directory: the rest, with its slash.
#[inline(never)]
fn through_cwd(rest: &[u8]) -> Result<Place<'_>, Errno> {
    Ok(match cwd::current()? {
        cwd::Current::Inside(start) => Place::Inside { start, path: rest },
        cwd::Current::Outside => Place::Kernel,
    })
}

/// What follows the name that `/proc` has for the working directory, with its slash: the link itself is the
/// kernel's.
fn below_cwd(path: &[u8], pid: u32) -> Option<&[u8]> {
    let rest = of_process(path, pid)?.strip_prefix(b"/cwd")?;
    (rest.first() == Some(&b'/')).then_some(rest)
}

/// What follows `/proc/` and a process's own number or name.
fn of_process(path: &[u8], pid: u32) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let (who, end) = next_component(rest, 0)?;
    let own = matches!(who, b"self" | b"thread-self") || number(who) == Some(u64::from(pid));
    if own { rest.get(end..) } else { None }
}

/// The descriptor that a path names, and what follows it.
pub fn descriptor_number(path: &[u8], pid: u32) -> Option<(i32, &[u8])> {
    match path {
        b"/dev/stdin" => return Some((0, b"")),
        b"/dev/stdout" => return Some((1, b"")),
        b"/dev/stderr" => return Some((2, b"")),
        _ => {}
    }
    let rest = if let Some(rest) = path.strip_prefix(b"/dev/fd/") {
        rest
    } else {
        of_process(path, pid)?.strip_prefix(b"/fd/")?
    };
    let (digits, end) = next_component(rest, 0)?;
    Some((i32::try_from(number(digits)?).ok()?, rest.get(end..)?))
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(path: &str) -> Lexical<'_> {
        lexical(b"/mnt/bivouac", path.as_bytes())
    }

    #[test]
    fn paths_below_the_mount_are_recognised_whatever_their_slashes() {
        assert_eq!(judge("/mnt/bivouac"), Lexical::Inside(b""));
        assert_eq!(judge("//mnt///bivouac/"), Lexical::Inside(b"/"));
        assert_eq!(judge("/./mnt/./bivouac/a/../../x"), Lexical::Inside(b"/a/../../x"));
    }

    #[test]
    fn names_that_only_begin_like_the_mount_are_outside() {
        for path in [
            "/",
            "/mnt",
            "/mnt/",
            "/mnt/bivouac2",
            "/mnt/bivoua",
            "/bivouac",
            "/mnt/x/bivouac",
            "/x/mnt/bivouac",
        ] {
            assert_eq!(judge(path), Lexical::Outside, "{path}");
        }
    }

    #[test]
    fn going_up_before_the_mount_has_to_be_walked() {
        for path in
            ["/tmp/../mnt/bivouac/x", "/mnt/x/../bivouac", "/../mnt/bivouac", "/a/b/../../mnt/bivouac"]
        {
            assert_eq!(judge(path), Lexical::Unsure, "{path}");
        }
        for path in ["/tmp/../x", "/a/../mnt/b/../c", "/mnt/../bivouac", "/tmp/..", "/a/..b/mnt/bivouac"] {
            assert_eq!(judge(path), Lexical::Outside, "{path}");
        }
    }

    #[test]
    fn relative_paths_are_walked_when_they_name_the_mount_point() {
        for (path, walked) in [("bivouac", true), ("../bivouac/x", true), ("x/bivouac2", false), ("a", false)]
        {
            assert_eq!(names(b"/mnt/bivouac", path.as_bytes()), walked, "{path}");
        }
    }

    #[test]
    fn descriptors_are_found_by_all_their_names() {
        for (path, expected) in [
            ("/dev/stdin", Some((0, ""))),
            ("/dev/fd/17", Some((17, ""))),
            ("/proc/self/fd/3", Some((3, ""))),
            ("/proc/99/fd/3/x", Some((3, "/x"))),
            ("/proc/98/fd/3", None),
            ("/dev/fd/", None),
            ("/dev/fd/3x", None),
            ("/dev/fd/99999999999", None),
            ("/proc/self/status", None),
        ] {
            let expected = expected.map(|(fd, rest)| (fd, rest.as_bytes()));
            assert_eq!(descriptor_number(path.as_bytes(), 99), expected, "{path}");
        }
    }

    #[test]
    fn what_is_below_the_working_directory_in_proc_is_found_but_not_the_link_itself() {
        for (path, expected) in [
            ("/proc/self/cwd/x", Some("/x")),
            ("/proc/99/cwd/", Some("/")),
            ("/proc/self/cwd", None),
            ("/proc/self/cwdx/", None),
            ("/proc/98/cwd/x", None),
        ] {
            assert_eq!(below_cwd(path.as_bytes(), 99), expected.map(str::as_bytes), "{path}");
        }
    }

    proptest::proptest! {
        /// Against a plain model: components on a stack.
        #[test]
        fn the_judgement_agrees_with_normalising(parts in proptest::collection::vec("(mnt|bivouac|a|\\.|\\.\\.|)", 0..8)) {
            let path = format!("/{}", parts.join("/"));
            let mut stack: Vec<&str> = Vec::new();
            let mut up = false;
            let mut inside = None;
            for part in path.split('/') {
                if stack == ["mnt", "bivouac"] {
                    inside = Some(up);
                    break;
                }
                match part {
                    "" | "." => {}
                    ".." => { up = true; stack.pop(); }
                    name => stack.push(name),
                }
            }
            if inside.is_none() && stack == ["mnt", "bivouac"] {
                inside = Some(up);
            }
            let judged = lexical(b"/mnt/bivouac", path.as_bytes());
            match inside {
                None => proptest::prop_assert_eq!(judged, Lexical::Outside),
                Some(true) => proptest::prop_assert_eq!(judged, Lexical::Unsure),
                Some(false) => proptest::prop_assert!(matches!(judged, Lexical::Inside(_))),
            }
        }
    }
}
