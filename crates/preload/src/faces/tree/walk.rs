//! `ftw` and `nftw` for trees in the mount.
//!
//! A walk as glibc does it: the same order of calls, the same flags for each object, the same return values,
//! including those of FTW_ACTIONRETVAL. A directory's entries are read before any of them is reported, so
//! that a function which removes what it is shown does not disturb the listing. Each level holds one
//! descriptor; the limit that the caller names is not kept, as the levels of a tree are few.

use crate::faces::dir;
use crate::faces::real::{handles, last_error, set_no_error, text};
use crate::raw::result;
use crate::vfs::{self, Errno};
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int};

/// Options.
mod option {
    pub const PHYS: i32 = 1;
    pub const MOUNT: i32 = 2;
    pub const CHDIR: i32 = 4;
    pub const DEPTH: i32 = 8;
    pub const ACTION: i32 = 16;
}

/// What the function is told about an object.
mod kind {
    pub const FILE: i32 = 0;
    pub const DIRECTORY: i32 = 1;
    pub const UNREADABLE: i32 = 2;
    pub const NO_STAT: i32 = 3;
    pub const LINK: i32 = 4;
    pub const DIRECTORY_AFTER: i32 = 5;
    pub const DANGLING: i32 = 6;
}

/// What the function may answer with FTW_ACTIONRETVAL.
const STOP: i32 = 1;
const SKIP_SUBTREE: i32 = 2;
const SKIP_SIBLINGS: i32 = 3;

/// Where the name begins in the path, and how deep it is.
#[repr(C)]
pub struct Position {
    base: c_int,
    level: c_int,
}

type Old = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;
type New = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut Position) -> c_int;

real! {
    real_ftw = ftw(path: *const c_char, function: Old, descriptors: c_int) -> c_int, else -1;
    real_nftw = nftw(path: *const c_char, function: New, descriptors: c_int, flags: c_int) -> c_int, else -1;
}

/// The program's function, in one of its two forms.
#[derive(Clone, Copy)]
enum Function {
    Old(Old),
    New(New),
}

struct Walk {
    function: Function,
    flags: i32,
    device: u64,
    /// Directories visited, when links are followed.
    seen: HashSet<(u64, u64)>,
    /// The path of the current object.
    path: Vec<u8>,
    position: Position,
}

/// Ends the walk: with what a function returned, or an error.
enum End {
    Answer(c_int),
    Error(Errno),
}

impl From<Errno> for End {
    fn from(errno: Errno) -> End {
        End::Error(errno)
    }
}

impl Walk {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Calls the function. 0 goes on.
    fn call(&mut self, stat: &libc::stat, kind: i32) -> Result<(), End> {
        let path = CString::new(self.path.clone()).map_err(|_| Errno::INVAL)?;
        // SAFETY: the program's function, with what it was promised.
        let answer = unsafe {
            match self.function {
                Function::Old(function) => {
                    let kind = match kind {
                        kind::LINK => kind::FILE,
                        kind::DANGLING => kind::NO_STAT,
                        kind::DIRECTORY_AFTER => kind::DIRECTORY,
                        other => other,
                    };
                    function(path.as_ptr(), stat, kind)
                }
                Function::New(function) => function(path.as_ptr(), stat, kind, &mut self.position),
            }
        };
        if answer == 0 { Ok(()) } else { Err(End::Answer(answer)) }
    }

    /// The path to use in calls for the current object.
    fn reachable(&self, name: &CStr) -> Result<CString, Errno> {
        if self.has(option::CHDIR) {
            Ok(name.to_owned())
        } else {
            CString::new(self.path.clone()).map_err(|_| Errno::INVAL)
        }
    }

    fn start(&mut self, stat: &libc::stat, name: &CStr) -> Result<(), End> {
        self.device = stat.st_dev;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {
                self.seen.insert((stat.st_dev, stat.st_ino));
                self.directory(stat, None, name)
            }
            libc::S_IFLNK => self.call(stat, kind::LINK),
            _ => self.call(stat, kind::FILE),
        }
    }

    /// Walks the current directory. `above`: the descriptor of the one that it is in.
    fn directory(&mut self, stat: &libc::stat, above: Option<c_int>, name: &CStr) -> Result<(), End> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let opened = match above {
            Some(above) => vfs::openat(above, name, flags, 0),
            None => vfs::openat(libc::AT_FDCWD, &self.reachable(name)?, flags, 0),
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::ACCESS) => return self.call(stat, kind::UNREADABLE),
            Err(errno) => return Err(errno.into()),
        };
        let walked = self.inside(stat, fd);
        let _ = vfs::close(fd);
        let goes_back = match &walked {
            Ok(()) => true,
            Err(End::Answer(answer)) => self.has(option::ACTION) && *answer != -1 && *answer != STOP,
            Err(End::Error(_)) => false,
        };
        if self.has(option::CHDIR)
            && goes_back
            && let Some(above) = above
        {
            vfs::fchdir(above)?;
        }
        walked
    }

    fn inside(&mut self, stat: &libc::stat, fd: c_int) -> Result<(), End> {
        let names = names(fd)?;
        if !self.has(option::DEPTH) {
            self.call(stat, kind::DIRECTORY)?;
        }
        if self.has(option::CHDIR) {
            vfs::fchdir(fd)?;
        }
        let (length, base) = (self.path.len(), self.position.base);
        if self.path.last() != Some(&b'/') {
            self.path.push(b'/');
        }
        let below = self.path.len();
        self.position.level += 1;
        let mut outcome = Ok(());
        for name in names {
            self.path.truncate(below);
            self.path.extend_from_slice(name.to_bytes());
            self.position.base = below as c_int;
            outcome = self.entry(fd, &name);
            if outcome.is_err() {
                break;
            }
        }
        self.path.truncate(length);
        self.position.level -= 1;
        self.position.base = base;
        match outcome {
            Err(End::Answer(SKIP_SIBLINGS)) if self.has(option::ACTION) => {}
            other => other?,
        }
        if self.has(option::DEPTH) {
            self.call(stat, kind::DIRECTORY_AFTER)?;
        }
        Ok(())
    }

    fn entry(&mut self, fd: c_int, name: &CStr) -> Result<(), End> {
        let follow = if self.has(option::PHYS) { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
        let (stat, what) = match vfs::fstatat(fd, name, follow) {
            Ok(stat) => {
                let what = match stat.st_mode & libc::S_IFMT {
                    libc::S_IFDIR => kind::DIRECTORY,
                    libc::S_IFLNK => kind::LINK,
                    _ => kind::FILE,
                };
                (stat, what)
            }
            Err(Errno::ACCESS | Errno::NOENT) => match vfs::fstatat(fd, name, libc::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) if follow == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFLNK => {
                    (stat, kind::DANGLING)
                }
                // SAFETY: plain data, for which zeros are a value.
                _ => (unsafe { std::mem::zeroed::<libc::stat>() }, kind::NO_STAT),
            },
            Err(errno) => return Err(errno.into()),
        };
        if what != kind::NO_STAT && self.has(option::MOUNT) && stat.st_dev != self.device {
            return Ok(());
        }
        let outcome = if what != kind::DIRECTORY {
            self.call(&stat, what)
        } else if self.has(option::PHYS) || self.seen.insert((stat.st_dev, stat.st_ino)) {
            self.directory(&stat, Some(fd), name)
        } else {
            Ok(())
        };
        match outcome {
            Err(End::Answer(SKIP_SUBTREE)) if self.has(option::ACTION) => Ok(()),
            other => other,
        }
    }
}

/// The names in a directory, whose descriptor stays open.
fn names(fd: c_int) -> Result<Vec<CString>, Errno> {
    let own = vfs::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)?;
    // SAFETY: a stream on a descriptor of our own, read to its end and closed.
    unsafe {
        let stream = dir::fdopendir(own);
        if stream.is_null() {
            let errno = last_error();
            let _ = vfs::close(own);
            return Err(errno);
        }
        let mut all = Vec::new();
        let failed = loop {
            set_no_error();
            let entry = dir::readdir(stream);
            if entry.is_null() {
                break last_error();
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                all.push(name.to_owned());
            }
        };
        dir::closedir(stream);
        if failed.0 == 0 { Ok(all) } else { Err(failed) }
    }
}

fn walk(path: &CStr, function: Function, flags: i32) -> Result<c_int, Errno> {
    let bytes = path.to_bytes();
    if bytes.is_empty() {
        return Err(Errno::NOENT);
    }
    let length = bytes.iter().rposition(|&byte| byte != b'/').map_or(1, |last| last + 1);
    let bytes = bytes.get(..length).unwrap_or_default();
    let base =
        if length == 1 { 0 } else { bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1) };
    let mut walk = Walk {
        function,
        flags,
        device: 0,
        seen: HashSet::new(),
        path: bytes.to_vec(),
        position: Position { base: base as c_int, level: 0 },
    };
    let cwd = if flags & option::CHDIR != 0 {
        Some(vfs::openat(libc::AT_FDCWD, c".", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?)
    } else {
        None
    };
    let outcome = begin(&mut walk, bytes, base);
    if let Some(cwd) = cwd {
        let back = vfs::fchdir(cwd);
        let _ = vfs::close(cwd);
        if outcome.is_ok() {
            back?;
        }
    }
    match outcome {
        Ok(()) => Ok(0),
        Err(End::Answer(SKIP_SUBTREE | SKIP_SIBLINGS)) if flags & option::ACTION != 0 => Ok(0),
        Err(End::Answer(answer)) => Ok(answer),
        Err(End::Error(errno)) => Err(errno),
    }
}

fn begin(walk: &mut Walk, path: &[u8], base: usize) -> Result<(), End> {
    let whole = CString::new(path).map_err(|_| Errno::INVAL)?;
    let mut name = whole.clone();
    if walk.has(option::CHDIR) && base > 0 {
        let above = CString::new(path.get(..base).unwrap_or_default()).map_err(|_| Errno::INVAL)?;
        vfs::chdir(&above)?;
        name = CString::new(path.get(base..).unwrap_or_default()).map_err(|_| Errno::INVAL)?;
    }
    let follow = if walk.has(option::PHYS) { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    match vfs::fstatat(libc::AT_FDCWD, &name, follow) {
        Ok(stat) => walk.start(&stat, &name),
        Err(Errno::NOENT) if follow == 0 => {
            let stat = vfs::fstatat(libc::AT_FDCWD, &name, libc::AT_SYMLINK_NOFOLLOW)?;
            walk.call(&stat, kind::DANGLING)
        }
        Err(errno) => Err(errno.into()),
    }
}

faces! {
    /// Walks a tree, following links.
    fn ftw(path: *const c_char, function: Old, descriptors: c_int) -> c_int {
        match text(path) {
            Ok(name) if handles(libc::AT_FDCWD, name) => result(walk(name, Function::Old(function), 0)),
            _ => real_ftw(path, function, descriptors),
        }
    }

    /// The same as [`ftw`].
    fn ftw64(path: *const c_char, function: Old, descriptors: c_int) -> c_int {
        ftw(path, function, descriptors)
    }

    /// Walks a tree, in the way that the flags say.
    fn nftw(path: *const c_char, function: New, descriptors: c_int, flags: c_int) -> c_int {
        match text(path) {
            Ok(name) if handles(libc::AT_FDCWD, name) => {
                if flags & !(option::PHYS | option::MOUNT | option::CHDIR | option::DEPTH | option::ACTION) != 0 {
                    return result(Err::<(), _>(Errno::INVAL));
                }
                result(walk(name, Function::New(function), flags))
            }
            _ => real_nftw(path, function, descriptors, flags),
        }
    }

    /// The same as [`nftw`].
    fn nftw64(path: *const c_char, function: New, descriptors: c_int, flags: c_int) -> c_int {
        nftw(path, function, descriptors, flags)
    }
}
