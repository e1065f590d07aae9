//! Calls made through libc's symbols, in this process: what a program does, on a local file system, on a
//! mount, or with the preload library.
//!
//! Each `unsafe` block is one such call. Strings end with NUL, buffers are as long as is said and live as
//! long as the call, and descriptors are this client's own.
#![allow(clippy::undocumented_unsafe_blocks, reason = "the module's text gives the reason for all of them")]

mod maps;
mod relative;

use super::call::{Answer, Call, Domain, Held, Hold, Order, SLOTS, Seen, Stamp, Target, pattern};
use libc::{c_char, c_int};
use std::ffi::{CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

/// One client: its descriptors.
#[derive(Default)]
pub struct System {
    slots: [Option<c_int>; SLOTS as usize],
    /// The directory to work in.
    home: String,
}

type Outcome = Result<Answer, i32>;

fn failed() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// What a call returned, or its error.
fn told(value: impl Into<i64>) -> Result<u64, i32> {
    u64::try_from(value.into()).map_err(|_| failed())
}

fn done(value: c_int) -> Outcome {
    told(value).map(|_| Answer::Done)
}

fn text(path: &str) -> CString {
    CString::new(path).expect("no NUL in programs' paths")
}

impl System {
    /// Carries an order out.
    pub fn obey(&mut self, order: &Order) -> Answer {
        let outcome = match order {
            Order::Do(call) => self.call(call),
            Order::Enter(path) => {
                for slot in 0..SLOTS {
                    self.close(slot);
                }
                self.home.clone_from(path);
                std::env::set_current_dir(path).map(|()| Answer::Done).map_err(|e| number(&e))
            }
            Order::Make(path) => std::fs::create_dir(path).map(|()| Answer::Done).map_err(|e| number(&e)),
            Order::Remove(path) => {
                relative::remove(path.as_ref()).map(|()| Answer::Done).map_err(|e| number(&e))
            }
            Order::Identify => Ok(Answer::Count(u64::from(std::process::id()))),
            Order::Split(path) => relative::split(path).map(|()| Answer::Done).map_err(|e| number(&e)),
            Order::Clear(path) => relative::clear(path).map(|()| Answer::Done).map_err(|e| number(&e)),
        };
        outcome.unwrap_or_else(Answer::Failed)
    }

    fn close(&mut self, slot: u8) {
        if let Some(fd) = self.slots[slot as usize].take() {
            // SAFETY: the slot's own descriptor.
            unsafe { libc::close(fd) };
        }
    }

    fn fd(&self, slot: u8) -> Result<c_int, i32> {
        self.slots[slot as usize].ok_or(libc::EBADF)
    }

    fn call(&mut self, call: &Call) -> Outcome {
        match call {
            Call::Open { slot, path, flags, mode } => {
                let path = text(path);
                let fd = told(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, *mode) })?;
                self.close(*slot);
                self.slots[*slot as usize] = Some(fd as c_int);
                Ok(Answer::Done)
            }
            Call::Reopen { slot, from, flags } => {
                let path = text(&format!("/proc/self/fd/{}", self.fd(*from)?));
                let fd = told(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })?;
                self.close(*slot);
                self.slots[*slot as usize] = Some(fd as c_int);
                Ok(Answer::Done)
            }
            Call::Close { slot } => {
                let fd = self.fd(*slot)?;
                self.slots[*slot as usize] = None;
                done(unsafe { libc::close(fd) })
            }
            Call::Dup { from, to } => {
                let fd = self.fd(*from)?;
                let new = match self.slots[*to as usize] {
                    Some(old) => told(unsafe { libc::dup2(fd, old) })?,
                    None => told(unsafe { libc::dup(fd) })?,
                };
                self.slots[*to as usize] = Some(new as c_int);
                Ok(Answer::Done)
            }
            Call::Append { slot, on } => {
                let fd = self.fd(*slot)?;
                let flags = told(unsafe { libc::fcntl(fd, libc::F_GETFL) })? as c_int;
                let flags = if *on { flags | libc::O_APPEND } else { flags & !libc::O_APPEND };
                done(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })
            }
            Call::Read { slot, len } => {
                self.read(*slot, *len, |fd, at, len| unsafe { libc::read(fd, at.cast(), len) })
            }
            Call::Pread { slot, offset, len } => self
                .read(*slot, *len, |fd, at, len| unsafe { libc::pread(fd, at.cast(), len, *offset as i64) }),
            Call::Write { slot, len, seed } => {
                let (fd, data) = (self.fd(*slot)?, pattern(*seed, *len));
                let wrote = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
                told(wrote as i64).map(Answer::Count)
            }
            Call::Pwrite { slot, offset, len, seed } => {
                let (fd, data) = (self.fd(*slot)?, pattern(*seed, *len));
                let wrote = unsafe { libc::pwrite(fd, data.as_ptr().cast(), data.len(), *offset as i64) };
                told(wrote as i64).map(Answer::Count)
            }
            Call::Seek { slot, offset, whence } => {
                let fd = self.fd(*slot)?;
                told(unsafe { libc::lseek(fd, *offset, *whence) }).map(Answer::Count)
            }
            Call::Copy { from, at, to, to_at, len } => self.copy((*from, *at), (*to, *to_at), *len),
            Call::Truncate { target, size } => match target {
                Target::Slot(slot) => done(unsafe { libc::ftruncate(self.fd(*slot)?, *size) }),
                Target::Path(path) | Target::Link(path) => {
                    done(unsafe { libc::truncate(text(path).as_ptr(), *size) })
                }
            },
            Call::Allocate { slot, mode, offset, len } => {
                done(unsafe { libc::fallocate(self.fd(*slot)?, *mode, *offset, *len) })
            }
            Call::Sync { slot } => done(unsafe { libc::fsync(self.fd(*slot)?) }),
            Call::Stat { target } => self.stat(target),
            Call::StatEmpty { slot } => relative::stat(self.fd(*slot)?, "", libc::AT_EMPTY_PATH),
            Call::Chmod { target, mode } => match target {
                Target::Slot(slot) => done(unsafe { libc::fchmod(self.fd(*slot)?, *mode) }),
                Target::Path(path) | Target::Link(path) => {
                    done(unsafe { libc::chmod(text(path).as_ptr(), *mode) })
                }
            },
            Call::Chown { target, uid, gid } => match target {
                Target::Slot(slot) => done(unsafe { libc::fchown(self.fd(*slot)?, *uid, *gid) }),
                Target::Path(path) => done(unsafe { libc::chown(text(path).as_ptr(), *uid, *gid) }),
                Target::Link(path) => done(unsafe { libc::lchown(text(path).as_ptr(), *uid, *gid) }),
            },
            Call::Times { target, atime, mtime } => self.times(target, *atime, *mtime),
            Call::TimesEmpty { slot, atime, mtime } => {
                let (fd, times) = (self.fd(*slot)?, [stamp(*atime), stamp(*mtime)]);
                done(unsafe { libc::utimensat(fd, c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) })
            }
            Call::Rename { from, to, flags } => {
                let (from, to) = (text(from), text(to));
                let (here, from, to) = (libc::AT_FDCWD, from.as_ptr(), to.as_ptr());
                relative::look_first(here, from, to);
                done(match flags {
                    0 => unsafe { libc::rename(from, to) },
                    _ => unsafe { libc::renameat2(here, from, here, to, *flags) },
                })
            }
            Call::Link { from, to, follow } => {
                let flags = if *follow { libc::AT_SYMLINK_FOLLOW } else { 0 };
                link(from, to, flags)
            }
            Call::LinkSlot { slot, to, empty: true } => {
                let (from, to, here) = (self.fd(*slot)?, text(to), libc::AT_FDCWD);
                done(unsafe { libc::linkat(from, c"".as_ptr(), here, to.as_ptr(), libc::AT_EMPTY_PATH) })
            }
            Call::LinkSlot { slot, to, empty: false } => {
                link(&format!("/proc/self/fd/{}", self.fd(*slot)?), to, libc::AT_SYMLINK_FOLLOW)
            }
            Call::Symlink { target, path } => {
                done(unsafe { libc::symlink(text(target).as_ptr(), text(path).as_ptr()) })
            }
            Call::Readlink { path } => {
                let mut target = vec![0u8; 4096];
                let len =
                    unsafe { libc::readlink(text(path).as_ptr(), target.as_mut_ptr().cast(), target.len()) };
                target.truncate(told(len as i64)? as usize);
                Ok(Answer::Bytes(target))
            }
            Call::ReadlinkSlot { slot } => relative::readlink(self.fd(*slot)?, ""),
            Call::Unlink { path } => done(unsafe { libc::unlink(text(path).as_ptr()) }),
            Call::Mkdir { path, mode } => done(unsafe { libc::mkdir(text(path).as_ptr(), *mode) }),
            Call::Mknod { path, mode } => done(unsafe { libc::mknod(text(path).as_ptr(), *mode, 0) }),
            Call::Rmdir { path } => done(unsafe { libc::rmdir(text(path).as_ptr()) }),
            Call::List { target } => self.list(target),
            Call::SetXattr { target, name, value, flags } => {
                let (name, value, len) = (text(name), value.as_ptr().cast(), value.len());
                let name = name.as_ptr();
                done(match target {
                    Target::Path(p) => unsafe { libc::setxattr(text(p).as_ptr(), name, value, len, *flags) },
                    Target::Link(p) => unsafe { libc::lsetxattr(text(p).as_ptr(), name, value, len, *flags) },
                    Target::Slot(slot) => unsafe {
                        libc::fsetxattr(self.fd(*slot)?, name, value, len, *flags)
                    },
                })
            }
            Call::GetXattr { target, name } => {
                let (name, mut value) = (text(name), vec![0u8; 70_000]);
                let (name, into, len) = (name.as_ptr(), value.as_mut_ptr().cast(), value.len());
                let got = match target {
                    Target::Path(path) => unsafe { libc::getxattr(text(path).as_ptr(), name, into, len) },
                    Target::Link(path) => unsafe { libc::lgetxattr(text(path).as_ptr(), name, into, len) },
                    Target::Slot(slot) => unsafe { libc::fgetxattr(self.fd(*slot)?, name, into, len) },
                };
                value.truncate(told(got as i64)? as usize);
                Ok(Answer::Bytes(value))
            }
            Call::ListXattr { target } => {
                let mut names = vec![0u8; 70_000];
                let (into, len) = (names.as_mut_ptr().cast::<c_char>(), names.len());
                let got = match target {
                    Target::Path(path) => unsafe { libc::listxattr(text(path).as_ptr(), into, len) },
                    Target::Link(path) => unsafe { libc::llistxattr(text(path).as_ptr(), into, len) },
                    Target::Slot(slot) => unsafe { libc::flistxattr(self.fd(*slot)?, into, len) },
                };
                names.truncate(told(got as i64)? as usize);
                Ok(Answer::Names(attribute_names(&names)))
            }
            Call::RemoveXattr { target, name } => {
                let name = text(name);
                let name = name.as_ptr();
                done(match target {
                    Target::Path(path) => unsafe { libc::removexattr(text(path).as_ptr(), name) },
                    Target::Link(path) => unsafe { libc::lremovexattr(text(path).as_ptr(), name) },
                    Target::Slot(slot) => unsafe { libc::fremovexattr(self.fd(*slot)?, name) },
                })
            }
            Call::Lock { slot, domain, hold, start, len, wait } => {
                self.lock(*slot, *domain, *hold, (*start, *len), *wait)
            }
            Call::Interrupt => Err(libc::ENOSYS),
            Call::TestLock { slot, domain, exclusive, start, len } => {
                self.test_lock(*slot, *domain, *exclusive, *start, *len).map(Answer::Held)
            }
            Call::MapRead { slot, offset, len } => self.map_read(*slot, *offset, *len),
            Call::MapWrite { slot, offset, len, seed } => self.map_write(*slot, *offset, *len, *seed),
            Call::At { slot, enter: false, call } => self.at(self.fd(*slot)?, call),
            Call::At { slot, enter: true, call } => self.inside(self.fd(*slot)?, call),
        }
    }

    fn read(&self, slot: u8, len: u64, read: impl FnOnce(c_int, *mut u8, usize) -> isize) -> Outcome {
        let mut data = vec![0u8; len as usize];
        let count = told(read(self.fd(slot)?, data.as_mut_ptr(), data.len()) as i64)?;
        data.truncate(count as usize);
        Ok(Answer::Bytes(data))
    }

    /// Until all is copied: one call may do less.
    fn copy(&self, from: (u8, u64), to: (u8, u64), len: u64) -> Outcome {
        let (source, target) = (self.fd(from.0)?, self.fd(to.0)?);
        let (mut at, mut to_at, mut copied) = (from.1 as i64, to.1 as i64, 0);
        while copied < len {
            let rest = (len - copied) as usize;
            let count =
                unsafe { libc::copy_file_range(source, &raw mut at, target, &raw mut to_at, rest, 0) };
            match told(count as i64)? {
                0 => break,
                count => copied += count,
            }
        }
        Ok(Answer::Count(copied))
    }

    fn stat(&self, target: &Target) -> Outcome {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        let value = match target {
            Target::Path(path) => unsafe { libc::stat(text(path).as_ptr(), stat.as_mut_ptr()) },
            Target::Link(path) => unsafe { libc::lstat(text(path).as_ptr(), stat.as_mut_ptr()) },
            Target::Slot(slot) => unsafe { libc::fstat(self.fd(*slot)?, stat.as_mut_ptr()) },
        };
        told(value)?;
        // SAFETY: the call succeeded, so that it is filled in.
        Ok(Answer::Seen(seen(&unsafe { stat.assume_init() })))
    }

    fn times(&self, target: &Target, atime: Stamp, mtime: Stamp) -> Outcome {
        let times = [stamp(atime), stamp(mtime)];
        let times = times.as_ptr();
        let here = libc::AT_FDCWD;
        done(match target {
            Target::Path(path) => unsafe { libc::utimensat(here, text(path).as_ptr(), times, 0) },
            Target::Link(path) => unsafe {
                libc::utimensat(here, text(path).as_ptr(), times, libc::AT_SYMLINK_NOFOLLOW)
            },
            Target::Slot(slot) => unsafe { libc::futimens(self.fd(*slot)?, times) },
        })
    }

    fn list(&self, target: &Target) -> Outcome {
        let stream = match target {
            Target::Path(path) | Target::Link(path) => unsafe { libc::opendir(text(path).as_ptr()) },
            Target::Slot(slot) => unsafe {
                let fd = told(libc::dup(self.fd(*slot)?))? as c_int;
                let stream = libc::fdopendir(fd);
                if stream.is_null() {
                    let errno = failed();
                    libc::close(fd);
                    return Err(errno);
                }
                libc::rewinddir(stream);
                stream
            },
        };
        if stream.is_null() { Err(failed()) } else { names_of(stream) }
    }

    fn lock(&self, slot: u8, domain: Domain, hold: Hold, (start, len): (u64, u64), wait: bool) -> Outcome {
        let fd = self.fd(slot)?;
        if domain == Domain::Whole {
            let operation = match hold {
                Hold::Shared => libc::LOCK_SH,
                Hold::Exclusive => libc::LOCK_EX,
                Hold::Nothing => libc::LOCK_UN,
            };
            let at_once = if wait { 0 } else { libc::LOCK_NB };
            return done(unsafe { libc::flock(fd, operation | at_once) });
        }
        let kind = match hold {
            Hold::Shared => libc::F_RDLCK,
            Hold::Exclusive => libc::F_WRLCK,
            Hold::Nothing => libc::F_UNLCK,
        };
        let mut lock = range(kind, start, len);
        let command = match (domain, wait) {
            (Domain::Process, false) => libc::F_SETLK,
            (Domain::Process, true) => libc::F_SETLKW,
            (_, false) => libc::F_OFD_SETLK,
            (_, true) => libc::F_OFD_SETLKW,
        };
        match done(unsafe { libc::fcntl(fd, command, &raw mut lock) }) {
            Err(libc::EACCES) => Err(libc::EAGAIN),
            other => other,
        }
    }

    fn test_lock(
        &self,
        slot: u8,
        domain: Domain,
        exclusive: bool,
        start: u64,
        len: u64,
    ) -> Result<Option<Held>, i32> {
        let mut lock = range(if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }, start, len);
        let command = if domain == Domain::Process { libc::F_GETLK } else { libc::F_OFD_GETLK };
        told(unsafe { libc::fcntl(self.fd(slot)?, command, &raw mut lock) })?;
        let start = lock.l_start as u64;
        Ok(match c_int::from(lock.l_type) {
            libc::F_UNLCK => None,
            kind => {
                let end = if lock.l_len == 0 { u64::MAX } else { start + lock.l_len as u64 };
                Some((kind == libc::F_WRLCK, start, end))
            }
        })
    }
}

/// What is in a directory stream, which is closed.
fn names_of(stream: *mut libc::DIR) -> Outcome {
    let mut names = Vec::new();
    let mut errno = 0;
    loop {
        // SAFETY: errno is this thread's, the stream is open, and an entry is good until the next call.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir(stream)
        };
        if entry.is_null() {
            let error = failed();
            // A directory that was removed is at its end.
            if error != 0 && error != libc::ENOENT {
                errno = error;
            }
            break;
        }
        // SAFETY: see above; the name ends with NUL.
        let (name, kind) =
            unsafe { (std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast()), (*entry).d_type) };
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push((name.to_bytes().to_vec(), kind));
        }
    }
    // SAFETY: opened above.
    unsafe { libc::closedir(stream) };
    names.sort();
    if errno == 0 { Ok(Answer::Names(names)) } else { Err(errno) }
}

fn stamp(stamp: Stamp) -> libc::timespec {
    match stamp {
        Stamp::Now => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Stamp::Omit => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Stamp::To(time) => {
            libc::timespec { tv_sec: time.div_euclid(1_000_000_000), tv_nsec: time.rem_euclid(1_000_000_000) }
        }
    }
}

fn seen(stat: &libc::stat) -> Seen {
    let time = |seconds: i64, nanoseconds: i64| seconds * 1_000_000_000 + nanoseconds;
    Seen {
        ino: stat.st_ino,
        kind: (stat.st_mode >> 12) as u8,
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        links: stat.st_nlink,
        size: stat.st_size as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn link(from: &str, to: &str, flags: c_int) -> Outcome {
    let here = libc::AT_FDCWD;
    done(unsafe { libc::linkat(here, text(from).as_ptr(), here, text(to).as_ptr(), flags) })
}

fn range(kind: c_int, start: u64, len: u64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}

/// A list of names that each end with NUL, sorted. Those of the system itself do not count.
pub fn attribute_names(list: &[u8]) -> Vec<(Vec<u8>, u8)> {
    let names = list.split(|b| *b == 0).filter(|name| !name.is_empty());
    let own = names.filter(|name| OsStr::from_bytes(name).to_string_lossy().starts_with("user."));
    let mut names: Vec<_> = own.map(|name| (name.to_vec(), 0)).collect();
    names.sort();
    names
}
