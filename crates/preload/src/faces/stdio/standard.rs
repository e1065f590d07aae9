//! `stdin`, `stdout` and `stderr` on files of the mount.
//!
//! These three are objects of the C library, too small to become cookie streams, and their addresses are
//! everywhere: in the variables, in pointers that programs saved, in the C++ library's buffers. But the C
//! library, too, finds the objects by their symbols. So we define them, with the room that a cookie stream
//! needs, and ours come first: in every process these are *the* standard streams, asleep or awake, whole from
//! the moment they are loaded. They remain streams of the C library's own kind, until descriptor 0, 1 or 2
//! becomes a file of the mount; then they become cookie streams on the same number, and back when it no
//! longer is.
//!
//! The change is one store of one word, the stream's kind, as its functions depend on nothing else; a cookie
//! stream keeps what it needs behind the part that both kinds share. Everything else stays as it is: buffer,
//! waiting bytes, bytes read ahead, marks, lock. So what `dup2` does to a standard stream is what it does
//! without us: waiting bytes go to whatever the descriptor is when they are flushed. No lock is needed, which
//! matters as `dup2` may be called in signal handlers and while another thread is blocked in a read of the
//! same stream.
//!
//! A stream that was oriented to wide characters is the exception: cookie streams are made of bytes. What it
//! has in its buffer of characters is given back to the one of bytes, under the stream's lock.
//!
//! Where the program itself brings objects of these names, they stay the C library's kind, and fail (EBADF)
//! on files of the mount.

use super::stream::{self, FILE, Kind, Layout, bits};
use super::wide;
use crate::vfs;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A lock of the C library: free when zero.
#[repr(C, align(8))]
struct Lock([u8; 16]);

static mut LOCKS: [Lock; 3] = [const { Lock([0; 16]) }; 3];

/// The initial contents of the C library's own object of this kind, without the state for wide characters:
/// its size is not documented, so [`at_start`] copies it from the C library's object.
const fn object(fileno: c_int, flags: c_int, chain: *mut FILE, lock: *mut Lock) -> Layout {
    const MAGIC: c_int = 0xfbad_0000_u32 as c_int;
    let flags = MAGIC | bits::LINKED | bits::FILE_BUFFER | flags;
    Layout::new(flags, fileno, chain, lock.cast(), stream::plain())
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals)]
static mut _IO_2_1_stdin_: Layout = object(0, bits::NO_WRITES, null_mut(), (&raw mut LOCKS).cast());

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals)]
static mut _IO_2_1_stdout_: Layout = object(
    1,
    bits::NO_READS,
    (&raw mut _IO_2_1_stdin_).cast(),
    (&raw mut LOCKS).cast::<Lock>().wrapping_add(1),
);

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals)]
static mut _IO_2_1_stderr_: Layout = object(
    2,
    bits::NO_READS | bits::UNBUFFERED,
    (&raw mut _IO_2_1_stdout_).cast(),
    (&raw mut LOCKS).cast::<Lock>().wrapping_add(2),
);

/// Streams that were oriented to bytes before they became cookie streams. (All cookie streams are.)
static OF_BYTES: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// The object of a number below 3.
fn stream_of(number: usize) -> *mut Layout {
    match number {
        0 => &raw mut _IO_2_1_stdin_,
        1 => &raw mut _IO_2_1_stdout_,
        _ => &raw mut _IO_2_1_stderr_,
    }
}

/// The number whose standard stream this is, as far as the C library uses our objects.
pub fn number_of(stream: *mut FILE) -> Option<usize> {
    (0..3).find(|&number| stream_of(number) == stream::layout(stream))
}

/// To be called when the library starts, even if no deployment is configured, before the program uses the
/// streams for wide characters.
pub fn begin() {
    real_variable!(STDIN, "_IO_2_1_stdin_");
    real_variable!(STDOUT, "_IO_2_1_stdout_");
    real_variable!(STDERR, "_IO_2_1_stderr_");
    for (number, native) in [&STDIN, &STDOUT, &STDERR].into_iter().enumerate() {
        let (ours, native) = (stream_of(number), native.address().cast::<Layout>());
        // SAFETY: the C library's object of this name is one of its streams, and at least as large as the
        // part read.
        unsafe {
            if !native.is_null() && native != ours && (*ours).wide.is_null() {
                (*ours).wide = (*native).wide;
            }
        }
    }
}

/// To be called when a deployment is configured: descriptors 0, 1, 2 may have been ours from the beginning.
pub fn at_start() {
    (0..3).for_each(std_descriptor_changed);
}

/// To be called when descriptor `fd` has become another file, or was closed. Does something for 0, 1 and 2
/// only.
///
/// Not to be called in a `vfork` child, whose streams are its parent's.
pub fn std_descriptor_changed(fd: c_int) {
    let Ok(number @ 0..3) = usize::try_from(fd) else {
        return;
    };
    let object = stream_of(number);
    // SAFETY: members of a stream that lives for ever. A program may have closed it, or opened it on another
    // descriptor: then it does not belong to this number any more.
    unsafe {
        if (*object).fileno != fd {
            return;
        }
        let errno = crate::faces::real::saved_errno();
        if vfs::is_ours(fd) {
            become_ours(object.cast());
        } else {
            become_native(number);
        }
        crate::faces::real::restore_errno(errno);
    }
}

/// The word that makes a stream one of a kind.
///
/// # Safety
/// `object` is a live stream.
unsafe fn kind_of<'a>(object: *mut Layout) -> &'a AtomicPtr<c_void> {
    // SAFETY: the caller's promise; aligned as a pointer is.
    unsafe { AtomicPtr::from_ptr(&raw mut (*object).kind) }
}

/// Makes a standard stream a cookie stream on its descriptor. False if it is no standard stream, or can't
/// become one now.
///
/// # Safety
/// `stream` is a live stream.
pub unsafe fn become_ours(stream: *mut FILE) -> bool {
    let Some(number) = number_of(stream) else { return false };
    let Some(Kind { kind, functions }) = stream::kind() else { return false };
    let object = stream::layout(stream);
    // SAFETY: the object has room for all of these; nobody reads cookie and functions while it is of another
    // kind.
    unsafe {
        (*object).cookie = object.cast();
        (*object).functions = functions;
        if kind_of(object).load(Ordering::Acquire) == kind {
            return true;
        }
        OF_BYTES[number].store((*object).mode < 0, Ordering::Relaxed);
        if (*object).mode <= 0 {
            // Only functions that we replace would orient it otherwise.
            (*object).mode = -1;
            kind_of(object).store(kind, Ordering::Release);
            return true;
        }
        if stream::ftrylockfile(stream) != 0 {
            return false;
        }
        let waiting = wide::take_back(object);
        (*object).mode = -1;
        kind_of(object).store(kind, Ordering::Release);
        libc::fwrite(waiting.as_ptr().cast(), 1, waiting.len(), stream);
        stream::funlockfile(stream);
    }
    true
}

/// Makes a standard stream one of the C library's kind again.
///
/// # Safety
/// The number is below 3.
unsafe fn become_native(number: usize) {
    let object = stream_of(number);
    // SAFETY: the object lives for ever, and is whole as one of that kind.
    unsafe {
        if !stream::is_ours(object.cast()) {
            return;
        }
        kind_of(object).store(stream::plain(), Ordering::Release);
        if !OF_BYTES[number].load(Ordering::Relaxed) {
            (*object).mode = 0;
        }
    }
}

/// Forgets the orientation that a standard stream had, as `freopen` does.
pub fn forget_orientation(stream: *mut FILE) {
    if let Some(number) = number_of(stream) {
        OF_BYTES[number].store(false, Ordering::Relaxed);
        // SAFETY: the object lives for ever.
        unsafe {
            if !stream::is_ours(stream) {
                (*stream::layout(stream)).mode = 0;
            }
        }
    }
}
