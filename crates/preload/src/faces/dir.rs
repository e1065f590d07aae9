//! Directory streams: `opendir`, `readdir` and their relatives, `scandir`, `getdirentries`.
//!
//! The C library reads directories by system calls of its own, so a directory of the mount gets a `DIR` of
//! ours. The type is opaque in C, so ours can be anything, as long as a `DIR` of the C library is told from
//! it: that one begins with a descriptor's number, which is never negative, and ours with a negative mark
//! ([`MARK`]).
//!
//! Entries come from `vfs::list` in batches, from the cookie that the open file description holds: as with
//! the C library, two streams on one description (after `dup` or `fork`) share the place where the next batch
//! begins. What `telldir` gives is the cookie behind the entry returned last, so `seekdir` is a seek and
//! works also after entries were added and removed.

use super::real::{handles, last_error, may_be_link_into_mount, pointer, restore_errno, saved_errno, text};
use crate::raw::result;
use crate::vfs::{self, Errno};
use bivouac_proto::attr::DirEntry;
use libc::{DIR, dirent};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a directory stream of ours begins with.
const MARK: i32 = -0x0b1f_0ac5;
/// Entries asked for at a time.
const BATCH: usize = 1024;

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

real! {
    real_opendir = opendir(path: *const c_char) -> *mut DIR, else null_mut();
    real_fdopendir = fdopendir(fd: c_int) -> *mut DIR, else null_mut();
    real_readdir = readdir(dir: *mut DIR) -> *mut dirent, else null_mut();
    real_readdir_r = readdir_r(dir: *mut DIR, entry: *mut dirent, out: *mut *mut dirent) -> c_int, else libc::ENOSYS;
    real_closedir = closedir(dir: *mut DIR) -> c_int, else -1;
    real_rewinddir = rewinddir(dir: *mut DIR) -> (), else {};
    real_telldir = telldir(dir: *mut DIR) -> c_long, else -1;
    real_seekdir = seekdir(dir: *mut DIR, place: c_long) -> (), else {};
    real_dirfd = dirfd(dir: *mut DIR) -> c_int, else -1;
}

/// A directory stream of ours.
#[repr(C)]
struct Stream {
    mark: i32,
    fd: c_int,
    state: Mutex<State>,
}

struct State {
    /// Entries that were listed and not returned yet.
    ahead: VecDeque<DirEntry>,
    /// There are no entries after those.
    ended: bool,
    /// The cookie behind the entry returned last.
    place: u64,
    /// What `readdir` returns a pointer to.
    entry: dirent,
}

/// The stream, if it is one of ours.
///
/// # Safety
/// `dir` is a live directory stream, or null.
unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a Stream> {
    // SAFETY: both kinds begin with an `int`; ours are whole, and live until `closedir`.
    unsafe {
        if dir.is_null() || dir.cast::<i32>().read() != MARK {
            return None;
        }
        Some(&*dir.cast::<Stream>())
    }
}

impl Stream {
    /// A stream on a descriptor of ours, which must be a directory's.
    fn open(fd: c_int) -> Result<*mut DIR, Errno> {
        if vfs::fstat(fd)?.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        let place = vfs::lseek(fd, 0, libc::SEEK_CUR).unwrap_or(0) as u64;
        // SAFETY: plain data, for which zeros are a value.
        let entry: dirent = unsafe { std::mem::zeroed() };
        let state = Mutex::new(State { ahead: VecDeque::new(), ended: false, place, entry });
        Ok(Box::into_raw(Box::new(Stream { mark: MARK, fd, state })).cast())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the next entry into `state.entry`; false at the end.
    fn advance(&self, state: &mut State) -> Result<bool, Errno> {
        if state.ahead.is_empty() && !state.ended {
            state.ahead = match vfs::list(self.fd, BATCH) {
                Ok(listed) => {
                    state.ended = listed.end;
                    listed.entries.into()
                }
                // A directory that was removed has come to its end.
                Err(Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(errno),
            };
        }
        let Some(entry) = state.ahead.pop_front() else {
            return Ok(false);
        };
        state.place = entry.cookie;
        fill(&mut state.entry, &entry);
        Ok(true)
    }

    fn seek(&self, place: i64) {
        let mut state = self.state();
        state.ahead.clear();
        state.ended = false;
        state.place = place as u64;
        let _ = vfs::lseek(self.fd, place, libc::SEEK_SET);
    }
}

/// Bytes of an entry with a name of `length` bytes.
fn record_length(length: usize) -> usize {
    (offset_of!(dirent, d_name) + length + 1).next_multiple_of(align_of::<dirent>())
}

fn fill(target: &mut dirent, entry: &DirEntry) {
    target.d_ino = entry.ino.0;
    target.d_off = entry.cookie as i64;
    target.d_type = entry.kind.d_type();
    let length = entry.name.len().min(target.d_name.len() - 1);
    target.d_reclen = record_length(length) as u16;
    for (to, &from) in target.d_name.iter_mut().zip(entry.name.iter().take(length).chain([&0])) {
        *to = from as c_char;
    }
}

/// Opens a directory through `vfs`; a stream of the C library's when it turns out not to be in the mount.
fn open_at(dirfd: c_int, path: &CStr) -> Result<*mut DIR, Errno> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let fd = vfs::openat(dirfd, path, flags, 0)?;
    let opened = if vfs::is_ours(fd) {
        Stream::open(fd)
    } else {
        // SAFETY: a descriptor that was just opened.
        let dir = unsafe { real_fdopendir(fd) };
        if dir.is_null() { Err(last_error()) } else { Ok(dir) }
    };
    if opened.is_err() {
        let _ = vfs::close(fd);
    }
    opened
}

/// `scandirat` for a directory of ours.
fn scan(
    dirfd: c_int,
    path: &CStr,
    out: *mut *mut *mut dirent,
    select: Filter,
    compare: Compare,
) -> Result<c_int, Errno> {
    let dir = open_at(dirfd, path)?;
    let saved = saved_errno();
    let mut found: Vec<*mut dirent> = Vec::new();
    let failed = loop {
        restore_errno(0);
        // SAFETY: the stream that was just opened; entries are valid until the next is read.
        unsafe {
            let entry = readdir(dir);
            if entry.is_null() {
                break saved_errno();
            }
            if select.is_some_and(|select| select(entry) == 0) {
                continue;
            }
            // Entries are the caller's to free, so they come from malloc.
            let length = usize::from((*entry).d_reclen);
            let copy = libc::malloc(length).cast::<dirent>();
            if copy.is_null() {
                break libc::ENOMEM;
            }
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), length);
            found.push(copy);
        }
    };
    // SAFETY: the stream was opened here; what was allocated here is freed or handed over; `out` is the
    // caller's.
    unsafe {
        closedir(dir);
        let list = libc::malloc((found.len().max(1)) * size_of::<*mut dirent>()).cast::<*mut dirent>();
        if failed != 0 || list.is_null() {
            found.iter().for_each(|&entry| libc::free(entry.cast()));
            libc::free(list.cast());
            return Err(Errno(if failed != 0 { failed } else { libc::ENOMEM } as u16));
        }
        std::ptr::copy_nonoverlapping(found.as_ptr(), list, found.len());
        if let Some(compare) = compare {
            let compare: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int =
                std::mem::transmute(compare);
            libc::qsort(list.cast(), found.len(), size_of::<*mut dirent>(), Some(compare));
        }
        *out = list;
    }
    restore_errno(saved);
    c_int::try_from(found.len()).map_err(|_| Errno::OVERFLOW)
}

faces! {
    /// Opens a directory stream.
    fn opendir(path: *const c_char) -> *mut DIR {
        let Ok(name) = text(path) else { return real_opendir(path) };
        if handles(libc::AT_FDCWD, name) {
            return pointer(open_at(libc::AT_FDCWD, name));
        }
        let open = || {
            let dir = real_opendir(path);
            if dir.is_null() { Err(crate::raw::errno()) } else { Ok(dir) }
        };
        // If it fails, the last attempt has set errno.
        let dir = vfs::beside::persistent(&[], open).unwrap_or(std::ptr::null_mut());
        if dir.is_null() && may_be_link_into_mount() {
            return pointer(open_at(libc::AT_FDCWD, name));
        }
        dir
    }

    /// A directory stream on an open descriptor, which is the stream's from then on.
    fn fdopendir(fd: c_int) -> *mut DIR {
        if !vfs::active() || !vfs::is_ours(fd) {
            return real_fdopendir(fd);
        }
        pointer(vfs::fcntl(fd, libc::F_GETFL, 0).and_then(|flags| {
            if flags & libc::O_ACCMODE == libc::O_WRONLY || flags & libc::O_PATH != 0 {
                return Err(Errno::BADF);
            }
            vfs::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize)?;
            Stream::open(fd)
        }))
    }

    /// The next entry; null at the end.
    fn readdir(dir: *mut DIR) -> *mut dirent {
        let Some(stream) = ours(dir) else { return real_readdir(dir) };
        let mut state = stream.state();
        match stream.advance(&mut state) {
            Ok(true) => &raw mut state.entry,
            Ok(false) => null_mut(),
            Err(errno) => pointer(Err(errno)),
        }
    }

    /// The same as [`readdir`].
    fn readdir64(dir: *mut DIR) -> *mut dirent {
        readdir(dir)
    }

    /// The next entry, into memory of the caller's.
    fn readdir_r(dir: *mut DIR, entry: *mut dirent, out: *mut *mut dirent) -> c_int, else (libc::EIO) {
        let Some(stream) = ours(dir) else { return real_readdir_r(dir, entry, out) };
        let mut state = stream.state();
        match stream.advance(&mut state) {
            Ok(true) => {
                // Only as much as the entry has: a caller may have given no more.
                let length = usize::from(state.entry.d_reclen);
                std::ptr::copy_nonoverlapping((&raw const state.entry).cast::<u8>(), entry.cast::<u8>(), length);
                *out = entry;
                0
            }
            Ok(false) => {
                *out = null_mut();
                0
            }
            Err(errno) => {
                *out = null_mut();
                c_int::from(errno.0)
            }
        }
    }

    /// The same as [`readdir_r`].
    fn readdir64_r(dir: *mut DIR, entry: *mut dirent, out: *mut *mut dirent) -> c_int, else (libc::EIO) {
        readdir_r(dir, entry, out)
    }

    /// Closes a directory stream and its descriptor.
    fn closedir(dir: *mut DIR) -> c_int {
        if ours(dir).is_none() {
            if dir.is_null() {
                return result(Err::<(), _>(Errno::INVAL));
            }
            // The number of its descriptor may have become ours since.
            return vfs::open::closed_by(real_dirfd(dir), || real_closedir(dir));
        }
        let mut stream = Box::from_raw(dir.cast::<Stream>());
        stream.mark = 0;
        result(vfs::close(stream.fd))
    }

    /// Goes back to the first entry, and sees what has changed.
    fn rewinddir(dir: *mut DIR) {
        match ours(dir) {
            Some(stream) => stream.seek(0),
            None => real_rewinddir(dir),
        }
    }

    /// The place behind the entry returned last.
    fn telldir(dir: *mut DIR) -> c_long {
        match ours(dir) {
            Some(stream) => stream.state().place as c_long,
            None => real_telldir(dir),
        }
    }

    /// Goes to a place that [`telldir`] gave.
    fn seekdir(dir: *mut DIR, place: c_long) {
        match ours(dir) {
            Some(stream) => stream.seek(place),
            None => real_seekdir(dir, place),
        }
    }

    /// The stream's descriptor.
    fn dirfd(dir: *mut DIR) -> c_int {
        match ours(dir) {
            Some(stream) => stream.fd,
            None => real_dirfd(dir),
        }
    }

    /// Lists a directory, filtered and sorted.
    fn scandirat(
        dirfd: c_int,
        path: *const c_char,
        out: *mut *mut *mut dirent,
        select: Filter,
        compare: Compare,
    ) -> c_int {
        // The C library's function would open the directory by itself. So if a deployment is configured, this
        // one is used for all directories; it calls faces, which decide between the mount and the kernel.
        result(text(path).and_then(|path| scan(dirfd, path, out, select, compare)))
    }

    /// The same as [`scandirat`].
    fn scandirat64(
        dirfd: c_int,
        path: *const c_char,
        out: *mut *mut *mut dirent,
        select: Filter,
        compare: Compare,
    ) -> c_int {
        scandirat(dirfd, path, out, select, compare)
    }

    /// [`scandirat`] from the working directory.
    fn scandir(path: *const c_char, out: *mut *mut *mut dirent, select: Filter, compare: Compare) -> c_int {
        scandirat(libc::AT_FDCWD, path, out, select, compare)
    }

    /// The same as [`scandir`].
    fn scandir64(path: *const c_char, out: *mut *mut *mut dirent, select: Filter, compare: Compare) -> c_int {
        scandirat(libc::AT_FDCWD, path, out, select, compare)
    }

    /// Entries as the kernel gives them, with the offset before them.
    fn getdirentries(fd: c_int, buffer: *mut c_char, length: usize, before: *mut i64) -> isize {
        match vfs::lseek(fd, 0, libc::SEEK_CUR) {
            Ok(offset) => {
                if !before.is_null() {
                    *before = offset;
                }
                super::syscall::getdents64(fd, buffer.cast(), length)
            }
            Err(errno) => result(Err::<usize, _>(errno)),
        }
    }

    /// The same as [`getdirentries`].
    fn getdirentries64(fd: c_int, buffer: *mut c_char, length: usize, before: *mut i64) -> isize {
        getdirentries(fd, buffer, length, before)
    }
}
