//! The one way of every operation on a path.
//!
//! [`at`] takes what the kernel does and what the client does, and goes from one to the other as links lead:
//! from the kernel when it does not find the path and a walk ends in the mount, from the client when it says
//! [`Fail::Outside`]. Operations on two paths settle first where each one lies ([`settle`]).

use super::beside::persistent;
use super::place::{Place, place};
use super::{fds, links, state};
use bivouac_client::{Client, Fail};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// How often a path may lead out of the mount and back.
const MAX_TURNS: u32 = 40;

/// Runs an operation on a path. `follow`: a symbolic link at its end is followed.
#[inline(always)]
pub fn at<T>(
    dirfd: i32,
    path: &CStr,
    follow: bool,
    kernel: impl Fn(i32, &CStr) -> Result<T, Errno>,
    inside: impl Fn(&'static Arc<Client>, Ino, &[u8]) -> Result<T, Fail>,
) -> Result<T, Errno> {
    if !state::active() {
        return persistent(&[], || kernel(dirfd, path));
    }
    if !matches!(place(dirfd, path)?, Place::Kernel) {
        return turns(dirfd, path, follow, None, &kernel, &inside);
    }
    match kernel(dirfd, path) {
        Err(errno) if links::may_lead_inside(errno) => match links::into_mount(dirfd, path, follow) {
            Some(found) => turns(dirfd, path, follow, Some(found), &kernel, &inside),
            None => Err(errno),
        },
        other => other,
    }
}

/// As above, if the path is not simply the kernel's. `found`: the path's links have been walked, and lead to
/// this path in the mount.
#[inline(never)]
pub(super) fn turns<T>(
    dirfd: i32,
    path: &CStr,
    follow: bool,
    mut found: Option<links::Inside>,
    kernel: &impl Fn(i32, &CStr) -> Result<T, Errno>,
    inside: &impl Fn(&'static Arc<Client>, Ino, &[u8]) -> Result<T, Fail>,
) -> Result<T, Errno> {
    let mut outside: Option<CString> = None;
    for _ in 0..MAX_TURNS {
        let (dirfd, path) = match &outside {
            Some(path) => (libc::AT_FDCWD, path.as_c_str()),
            None => (dirfd, path),
        };
        let walked: Box<[u8]>;
        let place = if found.is_some() { Place::Kernel } else { place(dirfd, path)? };
        let (start, rest) = match place {
            Place::Inside { start, path } => (start, path),
            // The symbolic link in /proc itself.
            Place::Descriptor(_) if !follow => return kernel(dirfd, path),
            Place::Descriptor(fd) => match fds::get(fd)? {
                Some(file) if file.starts_paths()? => (file.ino(), &b""[..]),
                // A path that comes here must lead to a directory.
                Some(_) => return Err(Errno::NOTDIR),
                // The descriptor has become the kernel's meanwhile.
                None => continue,
            },
            Place::Unsure => match links::walk(dirfd, path, follow) {
                Some((start, inside)) => {
                    walked = inside;
                    (start, &walked[..])
                }
                None => return kernel(dirfd, path),
            },
            Place::Kernel => {
                let (start, inside) = match found.take() {
                    Some(found) => found,
                    None => match kernel(dirfd, path) {
                        Err(errno) if links::may_lead_inside(errno) => {
                            links::into_mount(dirfd, path, follow).ok_or(errno)?
                        }
                        other => return other,
                    },
                };
                walked = inside;
                (start, &walked[..])
            }
        };
        match state::apart(|| inside(state::client()?, start, rest)) {
            Ok(done) => return Ok(done),
            Err(Fail::Errno(errno)) => return Err(errno),
            Err(Fail::Outside(path)) => outside = Some(CString::new(path).map_err(|_| Errno::INVAL)?),
        }
    }
    Err(Errno::LOOP)
}

/// Whether the mount would serve a path, by its text and the working directory. (Links from outside into the
/// mount are found only by doing something.)
pub fn in_mount(dirfd: i32, path: &CStr) -> bool {
    if !state::active() {
        return false;
    }
    match place(dirfd, path) {
        Ok(Place::Inside { .. }) => true,
        Ok(Place::Unsure) => links::walk(dirfd, path, true).is_some(),
        _ => false,
    }
}

/// Where a path finally is: in the mount or outside, with no more links on its way that lead to the other
/// one.
pub enum Settled {
    /// The kernel's, from a descriptor or AT_FDCWD.
    Kernel(i32, CString),
    /// The client's.
    Inside(Ino, Vec<u8>),
}

/// Settles where the *name* that a path ends in lies: its directory is followed, the name itself is not.
pub fn settle(dirfd: i32, path: &CStr) -> Result<Settled, Errno> {
    let mut outside: Option<CString> = None;
    for _ in 0..MAX_TURNS {
        let (dirfd, path) = match &outside {
            Some(path) => (libc::AT_FDCWD, path.as_c_str()),
            None => (dirfd, path),
        };
        let (start, rest) = match place(dirfd, path)? {
            Place::Inside { start, path } => (start, path.to_vec()),
            Place::Descriptor(_) => return Err(Errno::XDEV),
            Place::Unsure => match links::walk(dirfd, path, false) {
                Some((start, inside)) => (start, inside.into_vec()),
                None => return Ok(Settled::Kernel(dirfd, path.to_owned())),
            },
            // A name that is not there, or not yet, may still lie behind a link.
            Place::Kernel => match sys!(SYS_faccessat, dirfd, path.as_ptr(), libc::F_OK) {
                Err(errno) if links::may_lead_inside(errno) => match links::into_mount(dirfd, path, false) {
                    Some((start, inside)) => (start, inside.into_vec()),
                    None => return Ok(Settled::Kernel(dirfd, path.to_owned())),
                },
                _ => return Ok(Settled::Kernel(dirfd, path.to_owned())),
            },
        };
        let (directory, name) = split_name(&rest);
        match state::apart(|| state::client()?.real_path(start, directory)) {
            Err(Fail::Outside(directory)) => {
                outside =
                    Some(CString::new([&directory[..], b"/", name].concat()).map_err(|_| Errno::INVAL)?);
            }
            // Whether or not it exists: the operation will say.
            _ => return Ok(Settled::Inside(start, rest)),
        }
    }
    Err(Errno::LOOP)
}

/// A path's directory (`.` for none) and its last name with the slashes behind it.
fn split_name(path: &[u8]) -> (&[u8], &[u8]) {
    let trimmed = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let begin = path.get(..trimmed).unwrap_or_default().iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    let directory = if begin == 0 { &b"."[..] } else { path.get(..begin).unwrap_or_default() };
    (directory, path.get(begin..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_the_slashes_behind_them() {
        assert_eq!(split_name(b"/a/b/"), (&b"/a/"[..], &b"b/"[..]));
        assert_eq!(split_name(b"b"), (&b"."[..], &b"b"[..]));
        assert_eq!(split_name(b"/"), (&b"."[..], &b"/"[..]));
    }
}
