//! Calls whose paths begin at an open directory, and directories that have split.
#![allow(clippy::undocumented_unsafe_blocks, reason = "as in the module above")]

use super::{Outcome, System, done, failed, names_of, seen, stamp, text, told};
use crate::model::call::{Answer, Call, Target};
use libc::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

/// Entries with which a directory has split, for good.
const MANY: usize = 2500;

impl System {
    pub(super) fn at(&mut self, dir: c_int, call: &Call) -> Outcome {
        match call {
            Call::Open { slot, path, flags, mode } => {
                let flags = flags | libc::O_CLOEXEC;
                let fd = told(unsafe { libc::openat(dir, text(path).as_ptr(), flags, *mode) })?;
                self.close(*slot);
                self.slots[*slot as usize] = Some(fd as c_int);
                Ok(Answer::Done)
            }
            Call::Stat { target: Target::Path(path) } => stat(dir, path, 0),
            Call::Stat { target: Target::Link(path) } => stat(dir, path, libc::AT_SYMLINK_NOFOLLOW),
            Call::Chmod { target: Target::Path(path), mode } => {
                done(unsafe { libc::fchmodat(dir, text(path).as_ptr(), *mode, 0) })
            }
            Call::Times { target: Target::Path(path), atime, mtime } => {
                let times = [stamp(*atime), stamp(*mtime)];
                done(unsafe { libc::utimensat(dir, text(path).as_ptr(), times.as_ptr(), 0) })
            }
            Call::Rename { from, to, flags } => {
                let (from, to) = (text(from), text(to));
                look_first(dir, from.as_ptr(), to.as_ptr());
                done(match flags {
                    0 => unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) },
                    _ => unsafe { libc::renameat2(dir, from.as_ptr(), dir, to.as_ptr(), *flags) },
                })
            }
            Call::Link { from, to, follow } => {
                let flags = if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                let (from, to) = (text(from), text(to));
                done(unsafe { libc::linkat(dir, from.as_ptr(), dir, to.as_ptr(), flags) })
            }
            Call::Symlink { target, path } => {
                done(unsafe { libc::symlinkat(text(target).as_ptr(), dir, text(path).as_ptr()) })
            }
            Call::Readlink { path } => readlink(dir, path),
            Call::Unlink { path } => done(unsafe { libc::unlinkat(dir, text(path).as_ptr(), 0) }),
            Call::Rmdir { path } => {
                done(unsafe { libc::unlinkat(dir, text(path).as_ptr(), libc::AT_REMOVEDIR) })
            }
            Call::Mkdir { path, mode } => done(unsafe { libc::mkdirat(dir, text(path).as_ptr(), *mode) }),
            Call::List { target: Target::Path(path) } => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
                let fd = told(unsafe { libc::openat(dir, text(path).as_ptr(), flags) })? as c_int;
                let stream = unsafe { libc::fdopendir(fd) };
                if stream.is_null() { Err(failed()) } else { names_of(stream) }
            }
            other => panic!("not a call with paths: {other:?}"),
        }
    }

    /// Makes a call in a directory, and comes back.
    pub(super) fn inside(&mut self, dir: c_int, call: &Call) -> Outcome {
        told(unsafe { libc::fchdir(dir) })?;
        let outcome = self.call(call);
        told(unsafe { libc::chdir(text(&self.home).as_ptr()) }).expect("the directory is left alone");
        outcome
    }
}

pub(super) fn readlink(dir: c_int, path: &str) -> Outcome {
    let mut target = vec![0u8; 4096];
    let (into, len) = (target.as_mut_ptr().cast(), target.len());
    let len = unsafe { libc::readlinkat(dir, text(path).as_ptr(), into, len) };
    target.truncate(told(len as i64)? as usize);
    Ok(Answer::Bytes(target))
}

pub(super) fn stat(dir: c_int, path: &str, flags: c_int) -> Outcome {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    told(unsafe { libc::fstatat(dir, text(path).as_ptr(), stat.as_mut_ptr(), flags) })?;
    // SAFETY: the call succeeded, so that it is filled in.
    Ok(Answer::Seen(seen(&unsafe { stat.assume_init() })))
}

/// Makes a directory that has split, and is empty.
pub(super) fn split(path: &str) -> io::Result<()> {
    fs::create_dir(path)?;
    for number in 0..MANY {
        fs::File::create(format!("{path}/{number}"))?;
    }
    clear(path)
}

/// Removes a directory with all that is in it, also what its owner had no rights to.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    empty(path)?;
    fs::remove_dir(path)
}

fn empty(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Empties a directory, and sets its attributes to those of a new one.
pub(super) fn clear(path: &str) -> io::Result<()> {
    empty(path.as_ref())?;
    std::os::unix::fs::chown(path, Some(unsafe { libc::geteuid() }), Some(unsafe { libc::getegid() }))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    let path = text(path);
    for name in ["user.a", "user.b", "user.c"] {
        unsafe { libc::removexattr(path.as_ptr(), text(name).as_ptr()) };
    }
    let none = std::ptr::null();
    told(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), none, 0) })
        .map(|_| ())
        .map_err(io::Error::from_raw_os_error)
}

/// Looks at what is about to be renamed. In a mount without the library, a program that renames what another
/// node may have moved has to (`docs/fuse.md`); with the library, and everywhere else, it has not, and does
/// not.
pub(super) fn look_first(dir: c_int, from: *const c_char, to: *const c_char) {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if !is_set("BIVOUAC_DEPLOYMENT") || is_set("LD_PRELOAD") {
        return;
    }
    for path in [from, to] {
        let mut seen = MaybeUninit::<libc::stat>::uninit();
        unsafe { libc::fstatat(dir, path, seen.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    }
}
