//! Small helpers of the faces: errno, strings from the program, and whether libc may be left alone with a
//! path.

use crate::raw::set_errno;
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

/// An error for a null pointer in place of a string.
pub const FAULT: Errno = Errno(libc::EFAULT as u16);

/// The calling thread's `errno`, as C has it.
#[inline]
pub fn saved_errno() -> c_int {
    // SAFETY: the thread's own variable, valid for its life.
    unsafe { *libc::__errno_location() }
}

/// Puts `errno` back to what it was: calls that succeed leave it alone, also when something failed on the
/// way.
#[inline]
pub fn restore_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

/// Clears `errno`, before a C function that says only by it whether it failed.
pub fn set_no_error() {
    restore_errno(0);
}

/// The error of a C function that has just failed.
pub fn last_error() -> Errno {
    Errno(saved_errno() as u16)
}

/// The return value of a C function that returns a pointer: null, with `errno` set, if it fails.
#[inline]
pub fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        null_mut()
    })
}

/// The string that a program handed over; EFAULT for a null pointer, where the kernel would say the same.
///
/// # Safety
/// `string` is null or a C string that outlives the result.
#[inline]
pub unsafe fn text<'a>(string: *const c_char) -> Result<&'a CStr, Errno> {
    if string.is_null() {
        return Err(FAULT);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(string) })
}

/// Whether the C library must not handle this path itself: because it is in the mount, or is relative to a
/// working directory in the mount (for which the kernel has another directory), or names a descriptor of
/// ours.
///
/// Symbolic links that lead from outside into the mount are not seen here. The kernel answers ENOENT or
/// ENOTDIR for them, and `vfs` looks again.
#[inline]
pub fn handles(dirfd: c_int, path: &CStr) -> bool {
    if !vfs::active() {
        return false;
    }
    if vfs::in_mount(dirfd, path) {
        return true;
    }
    let bytes = path.to_bytes();
    match bytes.first() {
        Some(b'/') => names_descriptor(bytes).is_some_and(vfs::is_ours),
        _ => vfs::in_mount(dirfd, c"."),
    }
}

/// Whether a failure of the C library may come from a symbolic link into the mount.
#[inline]
pub fn may_be_link_into_mount() -> bool {
    let errno = saved_errno();
    vfs::active() && (errno == libc::ENOENT || errno == libc::ENOTDIR)
}

/// Whether a path is one of the names of an open descriptor.
/// The descriptor of this process that a path names or starts from.
fn names_descriptor(path: &[u8]) -> Option<c_int> {
    let rest = match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => [&b"/dev/fd/"[..], b"/proc/self/fd/", b"/proc/thread-self/fd/"]
            .iter()
            .find_map(|prefix| path.strip_prefix(*prefix))
            .or_else(|| own_process(path))?,
    };
    let digits = rest.split(|&b| b == b'/').next()?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What follows `/proc/PID/fd/` for the own process.
fn own_process(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let end = rest.iter().position(|&b| b == b'/')?;
    let pid: u32 = std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()?;
    let rest = rest.get(end..)?.strip_prefix(b"/fd/")?;
    (pid == bivouac_node::process::pid()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_descriptors_are_recognised() {
        assert_eq!(names_descriptor(b"/dev/stdin"), Some(0));
        assert_eq!(names_descriptor(b"/dev/fd/7"), Some(7));
        assert_eq!(names_descriptor(b"/proc/self/fd/7/x"), Some(7));
        let own = format!("/proc/{}/fd/3", std::process::id());
        assert_eq!(names_descriptor(own.as_bytes()), Some(3));
        for other in [
            &b"/dev/null"[..],
            b"/proc/self/exe",
            b"/proc/1/fd/3",
            b"/dev/fd/",
            b"/dev/fd/x",
            b"/proc/self/fd",
        ] {
            assert_eq!(names_descriptor(other), None);
        }
    }
}
