//! One stream of ours: a cookie stream that carries its descriptor's number.
//!
//! `FILE` is opaque in the documentation only: the layout below has been compiled into programs (`getc` was a
//! macro) and is the same in glibc 2.28 to 2.41. What is relied on is checked when the first stream is made
//! ([`Shape`]): if the C library is laid out otherwise, opening fails with ENOTSUP and nothing is touched.
//!
//! The *cookie* is the stream itself, which has the descriptor's number, so a stream needs no memory of ours,
//! and whether a `FILE` is ours is seen from its functions, without a table or a lock. Having the stream, the
//! write function keeps the file offset that the C library remembers in it, which its cookie streams
//! otherwise forget to do: seeking relative to the position after a write would go wrong.

use super::mode::Mode;
use crate::vfs::{self, Errno};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

pub use libc::FILE;

/// Flag bits of a stream.
pub mod bits {
    /// The C library must not free the buffer.
    pub const USER_BUFFER: i32 = 0x0001;
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
    /// In the list of all streams.
    pub const LINKED: i32 = 0x0080;
    /// Flushed at each line.
    pub const LINE_BUFFERED: i32 = 0x0200;
    /// The buffer holds bytes to be written.
    pub const PUTTING: i32 = 0x0800;
    /// Every write goes to the end.
    pub const APPENDING: i32 = 0x1000;
    /// Stands for a file.
    pub const FILE_BUFFER: i32 = 0x2000;
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
    /// The next of all streams.
    pub chain: *mut FILE,
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
    pub kind: *mut c_void,
    /// Of a cookie stream: what its functions get.
    pub cookie: *mut c_void,
    /// Its functions, mangled by glibc.
    pub functions: [usize; 4],
}

impl Layout {
    /// A stream of no orientation and without a buffer.
    pub const fn new(
        flags: c_int,
        fileno: c_int,
        chain: *mut FILE,
        lock: *mut c_void,
        kind: *mut c_void,
    ) -> Layout {
        Layout {
            flags,
            read_ptr: null_mut(),
            read_end: null_mut(),
            read_base: null_mut(),
            write_base: null_mut(),
            write_ptr: null_mut(),
            write_end: null_mut(),
            buf_base: null_mut(),
            buf_end: null_mut(),
            backup: [null_mut(); 3],
            markers: null_mut(),
            chain,
            fileno,
            flags2: 0,
            old_offset: -1,
            column: [0; 8],
            lock,
            offset: -1,
            codecvt: null_mut(),
            wide: null_mut(),
            free_list: [null_mut(); 2],
            pad: 0,
            mode: 0,
            unused: [0; 20],
            kind,
            cookie: null_mut(),
            functions: [0; 4],
        }
    }
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
    static _IO_file_jumps: c_void;
    fn __fpurge(stream: *mut FILE);
    /// Takes a stream's lock if nobody else has it; 0 for success.
    pub fn ftrylockfile(stream: *mut FILE) -> c_int;
    /// Gives a stream's lock back.
    pub fn funlockfile(stream: *mut FILE);
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The kind of streams on files in the C library.
pub const fn plain() -> *mut c_void {
    (&raw const _IO_file_jumps).cast_mut()
}

/// What makes a stream one of ours.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Cookie streams' kind.
    pub kind: *mut c_void,
    /// Our functions, mangled.
    pub functions: [usize; 4],
}

/// The same, learned from the first stream; the kind is set last.
struct Shape {
    kind: AtomicPtr<c_void>,
    functions: [AtomicUsize; 4],
}

static SHAPE: Shape =
    Shape { kind: AtomicPtr::new(null_mut()), functions: [const { AtomicUsize::new(0) }; 4] };

/// A stream for descriptor `fd`.
///
/// ENOMEM, or ENOTSUP when the C library's streams are not laid out as we know them.
pub fn make(fd: c_int, mode: Mode) -> Result<*mut FILE, Errno> {
    let functions = Functions { read, write, seek, close };
    let sign = fd as usize as *mut c_void;
    // SAFETY: the functions get the stream as their cookie, before any is called; the mode is a C string.
    let stream = unsafe { fopencookie(sign, mode.plain().as_ptr(), functions) };
    if stream.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: a cookie stream that was just made has the whole of the layout behind it: glibc allocates these
    // members in all versions, and they are checked before any is written.
    unsafe {
        let layout = layout(stream);
        let known = (*layout).cookie == sign && matches!((*layout).fileno, -1 | -2);
        if !known {
            return Err(Errno::OPNOTSUPP);
        }
        (*layout).fileno = fd;
        (*layout).cookie = stream.cast();
        for (known, &function) in SHAPE.functions.iter().zip(&(*layout).functions) {
            known.store(function, Ordering::Relaxed);
        }
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
    if kind.is_null() || stream.is_null() {
        return false;
    }
    let layout = layout(stream);
    // SAFETY: every stream has its kind; those of the cookie kind have functions behind it.
    unsafe { (*layout).kind == kind && (*layout).functions[0] == SHAPE.functions[0].load(Ordering::Relaxed) }
}

/// Puts a stream into the state of a newly opened one: drops what it has buffered (also what was put back),
/// how it buffers, and sets what it may do from now on. The stream must be locked or not be in use by other
/// threads.
///
/// # Safety
/// `stream` is a live stream that is not oriented to wide characters.
pub unsafe fn reset(stream: *mut FILE, mode: Mode) {
    let layout = layout(stream);
    // SAFETY: the members of a live stream; empty areas at the buffer's beginning are what a new stream has.
    // A buffer that is the program's, or the byte inside the stream that serves as one, is left to it.
    unsafe {
        __fpurge(stream);
        if (*layout).flags & bits::USER_BUFFER != 0 {
            (*layout).buf_base = null_mut();
            (*layout).buf_end = null_mut();
        }
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
            | bits::ERR_SEEN
            | bits::USER_BUFFER
            | bits::UNBUFFERED
            | bits::LINE_BUFFERED);
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

/// The descriptor of a cookie.
///
/// # Safety
/// A stream of ours.
unsafe fn number(cookie: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*cookie.cast::<Layout>()).fileno }
}

callbacks! {
    fn read(cookie: *mut c_void, buffer: *mut c_char, length: usize) -> isize {
        // SAFETY: the C library gives its own buffer; it is written before it is read. The cookie is a
        // stream.
        let (fd, buffer) =
            unsafe { (number(cookie), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length)) };
        match vfs::read(fd, buffer) {
            Ok(count) => count as isize,
            Err(errno) => fail(errno, -1),
        }
    }

    /// Writes all of it, as streams on files do. If it returns less, the C library sets the stream's error
    /// flag.
    fn write(cookie: *mut c_void, buffer: *const c_char, length: usize) -> isize {
        // SAFETY: the C library gives bytes of its own or of the program. The cookie is a stream.
        let (fd, buffer) = unsafe { (number(cookie), std::slice::from_raw_parts(buffer.cast::<u8>(), length)) };
        let mut rest = buffer;
        while !rest.is_empty() {
            match vfs::write(fd, rest) {
                Ok(0) => break,
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(errno) => {
                    crate::raw::set_errno(errno);
                    break;
                }
            }
        }
        let written = length - rest.len();
        // SAFETY: the stream is in use by this thread.
        unsafe {
            let layout = cookie.cast::<Layout>();
            if (*layout).offset >= 0 {
                (*layout).offset += written as i64;
            }
        }
        written as isize
    }

    fn seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
        // SAFETY: the C library gives a place for the offset, in and out. The cookie is a stream.
        unsafe {
            match vfs::lseek(number(cookie), *offset, whence) {
                Ok(now) => {
                    *offset = now;
                    0
                }
                Err(errno) => fail(errno, -1) as c_int,
            }
        }
    }

    fn close(cookie: *mut c_void) -> c_int {
        // SAFETY: the cookie is a stream.
        match vfs::close(unsafe { number(cookie) }) {
            Ok(()) => 0,
            Err(errno) => fail(errno, -1) as c_int,
        }
    }
}

/// What makes a stream one of ours; `None` where the C library's streams are not laid out as we know them.
pub fn kind() -> Option<Kind> {
    if SHAPE.kind.load(Ordering::Acquire).is_null() {
        let reading = Mode { flags: libc::O_RDONLY, reads: true, writes: false, appends: false };
        let sample = make(-1, reading).ok()?;
        // SAFETY: just made, and nobody else's. It has no descriptor to close.
        unsafe { super::open::real_fclose(sample) };
    }
    let functions = SHAPE.functions.each_ref().map(|function| function.load(Ordering::Relaxed));
    Some(Kind { kind: SHAPE.kind.load(Ordering::Acquire), functions })
}
