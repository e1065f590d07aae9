//! The C library's own functions, for what is not in the mount, and small helpers of the faces above the `vfs` layer.
//!
//! Most faces replace a call altogether: `vfs` makes the system call itself when the kernel is to serve it. The faces
//! of streams, directory streams, tree walks and the loader can't do that, as what they return (`FILE`, `DIR`, ..)
//! belongs to the C library. So they decide first, and forward what is not ours to the function that the program would
//! have got without us: the next one of that name in the search order, looked up once and without a lock.

use crate::raw::set_errno;
use crate::vfs::{self, Errno};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// No such function.
pub const NOSYS: Errno = Errno::NOSYS;
/// A null pointer where a string is due.
pub const FAULT: Errno = Errno(libc::EFAULT as u16);

/// A function of the next library that defines it.
pub struct Real {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Real {
    /// The function called `name`, not looked up yet.
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, at: AtomicPtr::new(null_mut()) }
    }

    /// Its address; null when no library has it.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.find() } else { at }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string. RTLD_NEXT is relative to the library that this code is part of.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// Declares functions `real_name(..)` that forward to the C library's `name`. Where it has no such function, errno
/// is set to ENOSYS and the value behind `else` returned.
macro_rules! real {
    ($($function:ident = $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty, else $fail:expr;)+) => {
        $(
            #[doc = concat!("The C library's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As for the function itself.
            #[inline]
            #[allow(clippy::unused_unit)]
            unsafe fn $function($($arg: $type),*) -> $ret {
                static REAL: $crate::faces::real::Real = $crate::faces::real::Real::new(
                    // SAFETY: a literal that ends with its only NUL.
                    unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
                );
                let at = REAL.get();
                if at.is_null() {
                    $crate::raw::set_errno($crate::faces::real::NOSYS);
                    return $fail;
                }
                // SAFETY: the function of that name has this type in every C library that we are loaded into; the
                // arguments are the caller's promise.
                unsafe {
                    let call: unsafe extern "C" fn($($type),*) -> $ret = std::mem::transmute(at);
                    call($($arg),*)
                }
            }
        )+
    };
}

/// The calling thread's `errno`, as C has it.
#[inline]
pub fn saved_errno() -> c_int {
    // SAFETY: the thread's own variable, valid for its life.
    unsafe { *libc::__errno_location() }
}

/// Puts `errno` back to what it was: calls that succeed leave it alone, also when something failed on the way.
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

/// What a C function that returns a pointer gives back: null with `errno` set where it fails.
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

/// Whether the C library must not be left alone with this path: it is in the mount, or it starts from a working
/// directory in the mount (which the kernel sees elsewhere), or it names a descriptor of ours.
///
/// Symbolic links that lead from outside into the mount are not seen here. The kernel answers ENOENT or ENOTDIR for
/// them, and `vfs` looks again.
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

    #[test]
    fn missing_function_is_null_and_present_one_is_not() {
        assert!(Real::new(c"no_such_function_anywhere").get().is_null());
        assert!(!Real::new(c"fopen").get().is_null());
    }
}
