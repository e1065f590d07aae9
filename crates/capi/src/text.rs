//! What comes from C and goes there: strings, buffers, places for results.

use crate::error::Failed;
use bivouac_proto::Errno;
use std::ffi::{CStr, c_char, c_void};

/// A string that must be there.
///
/// # Safety
/// `text` is NULL or ends with NUL, and lasts for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a [u8], Failed> {
    if text.is_null() {
        return Err(Failed::new(Errno::INVAL, "a NULL was given for a string"));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A path inside the deployment. The root has a name, too.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a [u8], Failed> {
    // SAFETY: as the caller says.
    let path = unsafe { text(path) }?;
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    Ok(if path.iter().all(|byte| *byte == b'/') { b"." } else { path })
}

/// Memory to write to.
///
/// # Safety
/// `buffer` is valid for `length` bytes for `'a`, and nobody else uses these (or `length` is 0).
pub(crate) unsafe fn room<'a>(buffer: *mut c_void, length: usize) -> Result<&'a mut [u8], Failed> {
    match (buffer.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno(libc::EFAULT as u16).into()),
        (false, _) => {
            // SAFETY: as the caller says. (No object is longer than isize::MAX.)
            Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length.min(isize::MAX as usize)) })
        }
    }
}

/// Memory to read from.
///
/// # Safety
/// `buffer` is valid for `length` bytes for `'a` (or `length` is 0).
pub(crate) unsafe fn bytes<'a>(buffer: *const c_void, length: usize) -> Result<&'a [u8], Failed> {
    match (buffer.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno(libc::EFAULT as u16).into()),
        (false, _) => {
            // SAFETY: as the caller says. (No object is longer than isize::MAX.)
            Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), length.min(isize::MAX as usize)) })
        }
    }
}

/// Puts a result where the program wants it.
///
/// # Safety
/// `place` is NULL or valid for a write.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failed> {
    if place.is_null() {
        return Err(Failed::new(Errno::INVAL, "a NULL was given for the place of a result"));
    }
    // SAFETY: as the caller says; what was there is no value that would have to be dropped.
    unsafe { place.write(value) };
    Ok(())
}

/// Copies a value into the program's memory, and returns its length. With no memory at all, only the length is wanted.
///
/// # Safety
/// As for [`room`].
pub(crate) unsafe fn copy(value: &[u8], buffer: *mut c_void, length: usize) -> Result<i64, Failed> {
    if length > 0 {
        // SAFETY: as the caller says.
        let room = unsafe { room(buffer, length) }?;
        let room = room.get_mut(..value.len()).ok_or(Errno::RANGE)?;
        room.copy_from_slice(value);
    }
    Ok(value.len() as i64)
}

/// An offset or a length that must not be negative.
pub(crate) fn natural(number: i64) -> Result<u64, Failed> {
    u64::try_from(number).map_err(|_| Failed::from(Errno::INVAL))
}
