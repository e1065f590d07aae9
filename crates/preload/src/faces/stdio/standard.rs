//! `stdin`, `stdout` and `stderr` on files of the mount.
//!
//! The three streams are objects of the C library that make kernel calls, so while descriptor 0, 1 or 2 is one of
//! ours, the variable points at a cookie stream on the same number instead. `printf`, `puts`, `perror` and the
//! rest go through the variables, inside the C library too.
//!
//! For the program there is one stream all along. So an exchange hands over what makes a stream's state: bytes that
//! wait to be written (they belong to whatever the descriptor is when they are flushed, as with `dup2` in general), the
//! kind of buffering, the end-of-file and error marks. Bytes read ahead are dropped, and dropped from the original
//! too: at exit the C library would seek back over them, in a descriptor that is ours by then.
//!
//! Shells redirect thousands of times, so the cookie streams are made once and kept.

use super::mode::Mode;
use super::stream::{self, FILE, bits};
use super::{cxx, open};
use crate::raw::set_errno;
use crate::vfs;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Our streams for the three numbers, made when first needed.
static OURS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
/// While a variable is exchanged: what it held before.
static ORIGINAL: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
/// Held during an exchange. Taken by trying only: whoever finds it held (another thread, or a signal handler that
/// moves descriptors) leaves the matter to its holder.
static EXCHANGING: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The variable of a number; null for other numbers.
fn variable(number: usize) -> *mut *mut FILE {
    match number {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        2 => &raw mut stderr,
        _ => null_mut(),
    }
}

/// What the stream of a number may do.
fn mode_of(number: usize) -> Mode {
    let reads = number == 0;
    Mode { flags: if reads { libc::O_RDONLY } else { libc::O_WRONLY }, reads, writes: !reads, appends: false }
}

/// To be called when the library starts: descriptors 0, 1, 2 may have been ours from the beginning.
pub fn at_start() {
    for number in 0..3 {
        std_descriptor_changed(number);
    }
}

/// To be called when descriptor `fd` has become another file, or was closed. Does something for 0, 1 and 2 only.
///
/// Not to be called in a `vfork` child, whose variables are its parent's.
pub fn std_descriptor_changed(fd: c_int) {
    let Ok(number @ 0..3) = usize::try_from(fd) else {
        return;
    };
    let ours = vfs::is_ours(fd);
    let exchanged = !ORIGINAL[number].load(Ordering::Acquire).is_null();
    if ours == exchanged || EXCHANGING.swap(true, Ordering::Acquire) {
        return;
    }
    let errno = crate::faces::real::saved_errno();
    // SAFETY: the C library's variables and streams, which live for ever; `EXCHANGING` keeps other threads out.
    unsafe { if ours { exchange(number) } else { put_back(number) } }
    crate::faces::real::restore_errno(errno);
    EXCHANGING.store(false, Ordering::Release);
}

/// Makes the variable point at our stream.
///
/// # Safety
/// Under `EXCHANGING`; `number` is below 3.
unsafe fn exchange(number: usize) {
    // SAFETY: the variables hold live streams or, if the program says so, null.
    unsafe {
        let variable = variable(number);
        let original = *variable;
        // A program may have closed the stream, or put another one there: then it is none of our business.
        if original.is_null()
            || stream::is_ours(original)
            || (*stream::layout(original)).fileno != number as c_int
        {
            return;
        }
        let mut ours = OURS[number].load(Ordering::Acquire);
        if ours.is_null() {
            let Ok(made) = stream::make(number as c_int, mode_of(number)) else {
                return;
            };
            ours = made;
            OURS[number].store(made, Ordering::Release);
        }
        stream::reset(ours, mode_of(number));
        hand_over(original, ours);
        let layout = stream::layout(original);
        (*layout).read_ptr = (*layout).read_end;
        ORIGINAL[number].store(original, Ordering::Release);
        *variable = ours;
        cxx::follow(original, ours);
    }
}

/// Makes the variable point at the C library's stream again.
///
/// # Safety
/// As for [`exchange`].
unsafe fn put_back(number: usize) {
    // SAFETY: as above; both streams were recorded by `exchange`.
    unsafe {
        let original = ORIGINAL[number].swap(null_mut(), Ordering::AcqRel);
        let ours = OURS[number].load(Ordering::Acquire);
        let variable = variable(number);
        if original.is_null() || *variable != ours {
            return;
        }
        hand_over(ours, original);
        *variable = original;
        cxx::follow(ours, original);
    }
}

/// Gives one stream's state to another that is empty.
///
/// # Safety
/// Both are live streams.
unsafe fn hand_over(from: *mut FILE, to: *mut FILE) {
    const BUFFERING: i32 = bits::UNBUFFERED | bits::LINE_BUFFERED;
    const MARKS: i32 = bits::EOF_SEEN | bits::ERR_SEEN;
    let (source, target) = (stream::layout(from), stream::layout(to));
    // SAFETY: members of live streams. The waiting bytes lie between the two pointers of the source's buffer.
    unsafe {
        let buffering = (*source).flags & BUFFERING;
        if buffering != (*target).flags & BUFFERING {
            let kind = match buffering {
                0 => libc::_IOFBF,
                bits::LINE_BUFFERED => libc::_IOLBF,
                _ => libc::_IONBF,
            };
            libc::setvbuf(to, null_mut(), kind, 0);
        }
        (*target).flags = ((*target).flags & !MARKS) | ((*source).flags & MARKS);
        if (*source).flags & bits::PUTTING != 0 && (*source).mode <= 0 {
            let waiting = (*source).write_ptr.offset_from((*source).write_base);
            if waiting > 0 {
                let bytes = (*source).write_base.cast::<c_void>();
                libc::fwrite(bytes, 1, waiting as usize, to);
                (*source).write_ptr = (*source).write_base;
            }
        }
    }
}

/// The number whose standard stream this is, if that stream is exchanged at present (either side of the exchange).
pub fn number_of(stream: *mut FILE) -> Option<usize> {
    if stream.is_null() {
        return None;
    }
    (0..3).find(|&number| {
        let original = ORIGINAL[number].load(Ordering::Acquire);
        !original.is_null() && (stream == original || stream == OURS[number].load(Ordering::Relaxed))
    })
}

/// The number that a stream is the standard stream of, exchanged or not.
pub fn standard_number(stream: *mut FILE) -> Option<usize> {
    // SAFETY: reading the C library's variables.
    number_of(stream).or_else(|| (0..3).find(|&number| unsafe { *variable(number) } == stream))
}

/// The stream that the variable of `number` (below 3) holds now.
pub fn current(number: usize) -> *mut FILE {
    let variable = variable(number);
    if variable.is_null() {
        return null_mut();
    }
    // SAFETY: the C library's variable.
    unsafe { *variable }
}

/// Makes the variable that holds `old`, if one does, hold `new`.
pub fn replace(old: *mut FILE, new: *mut FILE) {
    for number in 0..3 {
        // SAFETY: the C library's variables.
        unsafe {
            if *variable(number) == old {
                *variable(number) = new;
            }
        }
    }
}

/// `fclose` of the standard stream of `number`, which is exchanged. Afterwards the variable holds the C library's
/// stream, closed, as it would without us: programs go on to use it (and get errors), so it can't be freed memory.
///
/// # Safety
/// `number` came from [`number_of`] for `stream`.
pub unsafe fn close(number: usize, stream: *mut FILE) -> c_int {
    // SAFETY: the streams live for ever.
    unsafe {
        let ours = OURS[number].load(Ordering::Acquire);
        let original = ORIGINAL[number].load(Ordering::Acquire);
        if original.is_null() {
            return open::real_fclose(stream);
        }
        let flushed = libc::fflush(ours);
        stream::reset(ours, mode_of(number));
        let closed = vfs::close(number as c_int);
        std_descriptor_changed(number as c_int);
        // The descriptor is closed already: without its number, the C library closes nobody else's.
        (*stream::layout(original)).fileno = -1;
        (*stream::layout(original)).flags |= bits::NO_READS | bits::NO_WRITES;
        open::real_fclose(original);
        if let Err(errno) = closed {
            set_errno(errno);
            return libc::EOF;
        }
        flushed
    }
}
