//! One stream of ours: a cookie stream that carries its descriptor's number.
//!
//! `FILE` is opaque in the documentation only: the layout below has been compiled into programs (`getc` was a macro)
//! and is the same in glibc 2.28 to 2.41. What is relied on is checked when the first stream is made ([`Shape`]): if
//! the C library is laid out otherwise, opening fails with ENOTSUP and nothing is touched.
//!
//! The *cookie* is the descriptor's number, so a stream needs no memory of ours, and whether a `FILE` is ours is seen
//! from its functions, without a table or a lock.

use super::mode::Mode;
use crate::vfs::{self, Errno};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use libc::FILE;

/// Flag bits of a stream.
pub mod bits {
    /// No buffer.
    pub const UNBUFFERED: i32 = 0x0002;
    /// Opened for writing only.
    pub const NO_READS: i32 = 0x0004;
    /// Opened for reading only.
    pub const NO_WRITES: i32 = 0x0008;
    /// The end was met.
    pub const EOF_SEEN: i32 = 0x0010;
    /// A call failed.
    pub const ERR_SEEN: i32 = 0x0020;
    /// Flushed at each line.
    pub const LINE_BUFFERED: i32 = 0x0200;
    /// The buffer holds bytes to be written.
    pub const PUTTING: i32 = 0x0800;
    /// Every write goes to the end.
    pub const APPENDING: i32 = 0x1000;
}

/// The beginning of a `FILE`, with what glibc keeps behind it.
#[repr(C)]
pub struct Layout {
    /// Flag bits; the upper half is a magic number.
    pub flags: c_int,
    /// Next byte to read.
    pub read_ptr: *mut c_char,
    /// End of the bytes to read.
    pub read_end: *mut c_char,
    /// Their beginning.
    pub read_base: *mut c_char,
    /// First byte not written yet.
    pub write_base: *mut c_char,
    /// Where the next byte to write goes.
    pub write_ptr: *mut c_char,
    /// End of the room for bytes to write.
    pub write_end: *mut c_char,
    /// The buffer.
    pub buf_base: *mut c_char,
    /// Its end.
    pub buf_end: *mut c_char,
    backup: [*mut c_char; 3],
    markers: *mut c_void,
    chain: *mut FILE,
    /// The descriptor; -1 closed, -2 none.
    pub fileno: c_int,
    flags2: c_int,
    old_offset: i64,
    column: [u8; 8],
    /// The lock.
    pub lock: *mut c_void,
    /// Known file offset, or -1.
    pub offset: i64,
    codecvt: *mut c_void,
    /// State of a wide stream; -1 for a stream of bytes.
    pub wide: *mut c_void,
    free_list: [*mut c_void; 2],
    pad: usize,
    /// Orientation: negative bytes, positive wide, 0 not decided.
    pub mode: c_int,
    unused: [u8; 20],
    /// The kind of stream.
    pub kind: usize,
    /// Of a cookie stream: what its functions get.
    pub cookie: usize,
    /// Its functions, mangled by glibc.
    pub functions: [usize; 4],
}

const _: () = {
    assert!(std::mem::offset_of!(Layout, fileno) == 112);
    assert!(std::mem::offset_of!(Layout, lock) == 136);
    assert!(std::mem::offset_of!(Layout, mode) == 192);
    assert!(std::mem::offset_of!(Layout, kind) == 216);
    assert!(std::mem::size_of::<Layout>() == 264);
};

/// Functions of a cookie stream.
#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// What our streams look like, learned from the first one.
struct Shape {
    kind: AtomicUsize,
    read: AtomicUsize,
}

static SHAPE: Shape = Shape { kind: AtomicUsize::new(0), read: AtomicUsize::new(0) };

/// A stream for descriptor `fd`.
///
/// ENOMEM, or ENOTSUP when the C library's streams are not laid out as we know them.
pub fn make(fd: c_int, mode: Mode) -> Result<*mut FILE, Errno> {
    let functions = Functions { read, write, seek, close };
    // SAFETY: the functions take the number that the cookie is; the mode is a C string.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode.plain().as_ptr(), functions) };
    if stream.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: a cookie stream that was just made has the whole of the layout behind it: glibc allocates these
    // members in all versions, and they are checked before any is written.
    unsafe {
        let layout = layout(stream);
        let known = (*layout).cookie == fd as usize && matches!((*layout).fileno, -1 | -2);
        if !known {
            return Err(Errno::OPNOTSUPP);
        }
        (*layout).fileno = fd;
        SHAPE.read.store((*layout).functions[0], Ordering::Relaxed);
        SHAPE.kind.store((*layout).kind, Ordering::Release);
    }
    Ok(stream)
}

/// The members of a stream.
pub fn layout(stream: *mut FILE) -> *mut Layout {
    stream.cast()
}

/// Whether a stream is one of ours.
///
/// # Safety
/// `stream` is a live stream.
#[inline]
pub unsafe fn is_ours(stream: *mut FILE) -> bool {
    let kind = SHAPE.kind.load(Ordering::Acquire);
    if kind == 0 || stream.is_null() {
        return false;
    }
    let layout = layout(stream);
    // SAFETY: every stream has its kind; those of the cookie kind have functions behind it.
    unsafe { (*layout).kind == kind && (*layout).functions[0] == SHAPE.read.load(Ordering::Relaxed) }
}

/// Forgets what a stream has buffered, and sets what it may do from now on. The stream must be locked or not be in use
/// by other threads.
///
/// # Safety
/// `stream` is a live stream that is not oriented to wide characters.
pub unsafe fn reset(stream: *mut FILE, mode: Mode) {
    let layout = layout(stream);
    // SAFETY: the members of a live stream; empty areas at the buffer's beginning are what a new stream has.
    unsafe {
        let base = (*layout).buf_base;
        (*layout).read_ptr = base;
        (*layout).read_end = base;
        (*layout).read_base = base;
        (*layout).write_base = base;
        (*layout).write_ptr = base;
        (*layout).write_end = base;
        (*layout).offset = -1;
        let mut flags = (*layout).flags;
        flags &= !(bits::NO_READS
            | bits::NO_WRITES
            | bits::APPENDING
            | bits::PUTTING
            | bits::EOF_SEEN
            | bits::ERR_SEEN);
        if !mode.reads {
            flags |= bits::NO_READS;
        }
        if !mode.writes {
            flags |= bits::NO_WRITES;
        }
        if mode.appends {
            flags |= bits::APPENDING;
        }
        (*layout).flags = flags;
    }
}

fn fail(errno: Errno, value: isize) -> isize {
    crate::raw::set_errno(errno);
    value
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, length: usize) -> isize {
    // SAFETY: the C library gives its own buffer; it is written before it is read.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    match vfs::read(cookie as usize as c_int, buffer) {
        Ok(count) => count as isize,
        Err(errno) => fail(errno, -1),
    }
}

/// Writes all of it, as streams on files do. What it returns short of that makes the stream an erroneous one.
unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: usize) -> isize {
    // SAFETY: the C library gives bytes of its own or of the program.
    let buffer = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
    let mut rest = buffer;
    while !rest.is_empty() {
        match vfs::write(cookie as usize as c_int, rest) {
            Ok(0) => break,
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(errno) => return fail(errno, (length - rest.len()) as isize),
        }
    }
    (length - rest.len()) as isize
}

unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    // SAFETY: the C library gives a place for the offset, in and out.
    unsafe {
        match vfs::lseek(cookie as usize as c_int, *offset, whence) {
            Ok(now) => {
                *offset = now;
                0
            }
            Err(errno) => fail(errno, -1) as c_int,
        }
    }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    match vfs::close(cookie as usize as c_int) {
        Ok(()) => 0,
        Err(errno) => fail(errno, -1) as c_int,
    }
}

/// A cookie that stands for no descriptor: every call on it fails with EBADF.
pub const NO_DESCRIPTOR: usize = -1i32 as u32 as usize;

/// Frees a stream without closing what its descriptor's number stands for.
///
/// # Safety
/// `stream` was made by [`make`], nobody else uses it, and it is not used afterwards.
pub unsafe fn dismiss(stream: *mut FILE) {
    // SAFETY: the caller's promise; with this cookie the close function reaches no descriptor.
    unsafe {
        (*layout(stream)).cookie = NO_DESCRIPTOR;
        super::open::real_fclose(stream);
    }
}

/// Where streams are learned from when none has been made yet; null for failure.
pub fn sample() -> *mut FILE {
    let reading = Mode { flags: libc::O_RDONLY, reads: true, writes: false, appends: false };
    make(-1, reading).unwrap_or(null_mut())
}
