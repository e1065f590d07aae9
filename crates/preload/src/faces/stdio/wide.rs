//! Wide characters on our streams.
//!
//! A cookie stream is oriented to bytes, and the C library's wide functions refuse it. For our streams they
//! are done here by way of the byte functions, with the locale's encoding: each wide character is converted
//! and written, or bytes are read until they make one. Streams of the C library go to its own functions.
//!
//! What one stream's functions share is only the stream's own state, so bytes and wide characters can be
//! mixed on our streams, which C leaves undefined. `fwscanf` and its relatives are not replaced and fail on
//! our streams.

use super::stream::{self, FILE, bits};
use crate::faces::real::{last_error, set_no_error};
#[cfg(target_arch = "x86_64")]
use crate::faces::variadic::VaList;
use crate::raw::set_errno;
use crate::vfs::Errno;
use libc::wchar_t;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// C's `wint_t` and its end-of-file value.
type Wint = u32;
const WEOF: Wint = u32::MAX;
const ILSEQ: Errno = Errno(libc::EILSEQ as u16);
/// Longest character of any encoding, bytes.
const LONGEST: usize = 16;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    fn wcrtomb(bytes: *mut c_char, character: wchar_t, state: *mut u64) -> usize;
    fn mbrtowc(character: *mut wchar_t, bytes: *const c_char, length: usize, state: *mut u64) -> usize;
}

real! {
    real_fwide = fwide(stream: *mut FILE, mode: c_int) -> c_int, else 0;
    real_fputwc = fputwc(character: wchar_t, stream: *mut FILE) -> Wint, else WEOF;
    real_fputws = fputws(text: *const wchar_t, stream: *mut FILE) -> c_int, else -1;
    real_fgetwc = fgetwc(stream: *mut FILE) -> Wint, else WEOF;
    real_fgetws = fgetws(into: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t, else null_mut();
    real_ungetwc = ungetwc(character: Wint, stream: *mut FILE) -> Wint, else WEOF;
}

/// Sets the stream's error mark and `errno`.
///
/// # Safety
/// `stream` is a live stream.
unsafe fn mark(stream: *mut FILE, errno: Errno) {
    // SAFETY: the caller's promise.
    unsafe { (*stream::layout(stream)).flags |= bits::ERR_SEEN };
    set_errno(errno);
}

/// A character's bytes in the locale's encoding.
fn encode(character: wchar_t, bytes: &mut [u8; LONGEST]) -> Option<&[u8]> {
    let mut state = 0u64;
    // SAFETY: there is room for the longest character; the state is as large as C's.
    let length = unsafe { wcrtomb(bytes.as_mut_ptr().cast(), character, &mut state) };
    bytes.get(..length)
}

/// Writes a character; false, with the error mark set, if that fails.
///
/// # Safety
/// `stream` is a live stream of ours.
unsafe fn put(character: wchar_t, stream: *mut FILE) -> bool {
    let mut room = [0u8; LONGEST];
    // SAFETY: the caller's promise.
    unsafe {
        match encode(character, &mut room) {
            Some(bytes) => libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stream) == bytes.len(),
            None => {
                mark(stream, ILSEQ);
                false
            }
        }
    }
}

/// Reads a character.
///
/// # Safety
/// As for [`put`].
unsafe fn get(stream: *mut FILE) -> Wint {
    const INCOMPLETE: usize = usize::MAX - 1;
    let (mut state, mut begun) = (0u64, false);
    loop {
        // SAFETY: the caller's promise; the state lives through the character.
        unsafe {
            let byte = libc::fgetc(stream);
            if byte == libc::EOF {
                if begun {
                    mark(stream, ILSEQ);
                }
                return WEOF;
            }
            let byte = byte as c_char;
            let mut character: wchar_t = 0;
            match mbrtowc(&mut character, &byte, 1, &mut state) {
                0 | 1 => return character as Wint,
                INCOMPLETE => begun = true,
                _ => {
                    mark(stream, ILSEQ);
                    return WEOF;
                }
            }
        }
    }
}

/// The beginning of the state of a stream of wide characters.
#[repr(C)]
struct WideState {
    read_ptr: *const wchar_t,
    read_end: *mut wchar_t,
    read_base: *mut wchar_t,
    write_base: *mut wchar_t,
    write_ptr: *mut wchar_t,
}

/// The bytes of the characters from one pointer to another; what can't be encoded is left out.
///
/// # Safety
/// Both are null, or into one buffer.
unsafe fn encoded(from: *const wchar_t, to: *const wchar_t) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = from;
    while at < to {
        let mut room = [0u8; LONGEST];
        // SAFETY: between the two.
        unsafe {
            bytes.extend_from_slice(encode(*at, &mut room).unwrap_or_default());
            at = at.add(1);
        }
    }
    bytes
}

/// Empties the characters' buffer of a stream of the C library's kind that is oriented to wide characters:
/// those read ahead become bytes that are not read yet; those that wait to be written are returned, to go
/// behind what waits in the buffer of bytes.
///
/// # Safety
/// `object` is such a stream, locked.
pub(super) unsafe fn take_back(object: *mut stream::Layout) -> Vec<u8> {
    // SAFETY: a stream so oriented has this state, and its pointers point into its buffers.
    unsafe {
        let wide = (*object).wide.cast::<WideState>();
        if wide.is_null() {
            return Vec::new();
        }
        let ahead = encoded((*wide).read_ptr, (*wide).read_end).len();
        if ahead <= (*object).read_ptr.offset_from((*object).read_base) as usize {
            (*object).read_ptr = (*object).read_ptr.sub(ahead);
        }
        (*wide).read_ptr = (*wide).read_end;
        let waiting = encoded((*wide).write_base, (*wide).write_ptr);
        (*wide).write_ptr = (*wide).write_base;
        waiting
    }
}

faces! {
    /// Asks for or sets a stream's orientation. Ours take either at any time.
    fn fwide(stream: *mut FILE, mode: c_int) -> c_int {
        if stream::is_ours(stream) { mode.signum() } else { real_fwide(stream, mode) }
    }

    /// Writes a wide character.
    fn fputwc(character: wchar_t, stream: *mut FILE) -> Wint {
        if !stream::is_ours(stream) {
            return real_fputwc(character, stream);
        }
        if put(character, stream) { character as Wint } else { WEOF }
    }

    /// The same as [`fputwc`].
    fn putwc(character: wchar_t, stream: *mut FILE) -> Wint { fputwc(character, stream) }

    /// The same as [`fputwc`]; that it locks does no harm.
    fn fputwc_unlocked(character: wchar_t, stream: *mut FILE) -> Wint { fputwc(character, stream) }

    /// The same as [`fputwc`].
    fn putwc_unlocked(character: wchar_t, stream: *mut FILE) -> Wint { fputwc(character, stream) }

    /// [`fputwc`] on `stdout`.
    fn putwchar(character: wchar_t) -> Wint { fputwc(character, stdout) }

    /// [`fputwc`] on `stdout`.
    fn putwchar_unlocked(character: wchar_t) -> Wint { fputwc(character, stdout) }

    /// Writes a wide string.
    fn fputws(text: *const wchar_t, stream: *mut FILE) -> c_int {
        if !stream::is_ours(stream) {
            return real_fputws(text, stream);
        }
        let mut at = text;
        while *at != 0 {
            if !put(*at, stream) {
                return -1;
            }
            at = at.add(1);
        }
        1
    }

    /// The same as [`fputws`].
    fn fputws_unlocked(text: *const wchar_t, stream: *mut FILE) -> c_int { fputws(text, stream) }

    /// Reads a wide character.
    fn fgetwc(stream: *mut FILE) -> Wint {
        if stream::is_ours(stream) { get(stream) } else { real_fgetwc(stream) }
    }

    /// The same as [`fgetwc`].
    fn getwc(stream: *mut FILE) -> Wint { fgetwc(stream) }

    /// The same as [`fgetwc`].
    fn fgetwc_unlocked(stream: *mut FILE) -> Wint { fgetwc(stream) }

    /// The same as [`fgetwc`].
    fn getwc_unlocked(stream: *mut FILE) -> Wint { fgetwc(stream) }

    /// [`fgetwc`] on `stdin`.
    fn getwchar() -> Wint { fgetwc(stdin) }

    /// [`fgetwc`] on `stdin`.
    fn getwchar_unlocked() -> Wint { fgetwc(stdin) }

    /// Reads a line of wide characters.
    fn fgetws(into: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t {
        if !stream::is_ours(stream) {
            return real_fgetws(into, room, stream);
        }
        let Some(last) = usize::try_from(room).ok().and_then(|room| room.checked_sub(1)) else { return null_mut() };
        let mut count = 0;
        while count < last {
            let character = get(stream);
            if character == WEOF {
                if count == 0 || libc::ferror(stream) != 0 {
                    return null_mut();
                }
                break;
            }
            into.add(count).write(character as wchar_t);
            count += 1;
            if character == '\n' as Wint {
                break;
            }
        }
        into.add(count).write(0);
        into
    }

    /// The same as [`fgetws`].
    fn fgetws_unlocked(into: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t {
        fgetws(into, room, stream)
    }

    /// [`fgetws`], checked.
    fn __fgetws_chk(into: *mut wchar_t, size: usize, room: c_int, stream: *mut FILE) -> *mut wchar_t {
        if room > 0 && room as usize > size {
            libc::abort();
        }
        fgetws(into, room, stream)
    }

    /// [`fgetws`], checked.
    fn __fgetws_unlocked_chk(into: *mut wchar_t, size: usize, room: c_int, stream: *mut FILE) -> *mut wchar_t {
        __fgetws_chk(into, size, room, stream)
    }

    /// Puts a wide character back.
    fn ungetwc(character: Wint, stream: *mut FILE) -> Wint {
        if !stream::is_ours(stream) {
            return real_ungetwc(character, stream);
        }
        let mut room = [0u8; LONGEST];
        let bytes = if character == WEOF { None } else { encode(character as wchar_t, &mut room) };
        let Some(bytes) = bytes else { return WEOF };
        for &byte in bytes.iter().rev() {
            if libc::ungetc(c_int::from(byte), stream) == libc::EOF {
                return WEOF;
            }
        }
        character
    }
}

#[cfg(target_arch = "x86_64")]
mod printing {
    use super::*;

    unsafe extern "C" {
        fn vswprintf(into: *mut wchar_t, room: usize, format: *const wchar_t, list: *mut VaList) -> c_int;
    }

    real! {
        real_vfwprintf = vfwprintf(stream: *mut FILE, format: *const wchar_t, list: *mut VaList) -> c_int, else -1;
        real_vfwprintf_chk = __vfwprintf_chk(stream: *mut FILE, flag: c_int, format: *const wchar_t, list: *mut VaList)
            -> c_int, else -1;
    }

    /// Prints to memory, which grows until the text fits, then to the stream.
    ///
    /// # Safety
    /// As for `vfwprintf`; the stream is ours.
    unsafe fn print(stream: *mut FILE, format: *const wchar_t, list: *mut VaList) -> c_int {
        const LARGEST: usize = 1 << 26;
        let mut text: Vec<wchar_t> = vec![0; 1024];
        // SAFETY: the caller's promise; each attempt reads a list of its own.
        unsafe {
            let errno = crate::faces::real::saved_errno();
            loop {
                let mut again = *list;
                set_no_error();
                let length = vswprintf(text.as_mut_ptr(), text.len(), format, &mut again);
                if let Some(text) = usize::try_from(length).ok().and_then(|length| text.get(..length)) {
                    crate::faces::real::restore_errno(errno);
                    return if text.iter().all(|&character| put(character, stream)) { length } else { -1 };
                }
                if last_error() == ILSEQ || text.len() >= LARGEST {
                    mark(stream, if last_error() == ILSEQ { ILSEQ } else { Errno::OVERFLOW });
                    return -1;
                }
                text.resize(text.len() * 4, 0);
            }
        }
    }

    faces! {
        /// Prints wide characters, arguments in a list.
        fn vfwprintf(stream: *mut FILE, format: *const wchar_t, list: *mut VaList) -> c_int {
            if stream::is_ours(stream) { print(stream, format, list) } else { real_vfwprintf(stream, format, list) }
        }

        /// [`vfwprintf`] on `stdout`.
        fn vwprintf(format: *const wchar_t, list: *mut VaList) -> c_int { vfwprintf(stdout, format, list) }

        /// [`vfwprintf`], checked.
        fn __vfwprintf_chk(stream: *mut FILE, flag: c_int, format: *const wchar_t, list: *mut VaList) -> c_int {
            if stream::is_ours(stream) {
                print(stream, format, list)
            } else {
                real_vfwprintf_chk(stream, flag, format, list)
            }
        }

        /// [`vwprintf`], checked.
        fn __vwprintf_chk(flag: c_int, format: *const wchar_t, list: *mut VaList) -> c_int {
            __vfwprintf_chk(stdout, flag, format, list)
        }
    }

    variadic! {
        /// Prints wide characters.
        fwprintf, 2 => vfwprintf;
        /// Prints wide characters on `stdout`.
        wprintf, 1 => vwprintf;
        /// Prints wide characters, checked.
        __fwprintf_chk, 3 => __vfwprintf_chk;
        /// Prints wide characters on `stdout`, checked.
        __wprintf_chk, 2 => __vwprintf_chk;
    }
}
