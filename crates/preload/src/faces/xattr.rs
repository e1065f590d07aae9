//! Extended attributes.

use super::{bytes, path};
use crate::raw::result;
use crate::vfs::Errno;
use crate::vfs::xattr::{self, Target};
use std::ffi::{c_char, c_int, c_void};

const FAULT: Errno = Errno(libc::EFAULT as u16);

/// # Safety
/// `name` is NULL or a C string, `value` holds `size` bytes.
unsafe fn set(
    target: Option<Target<'_>>,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    let (Some(target), Some(name)) = (target, unsafe { path(name) }) else {
        return result(Err::<(), _>(FAULT));
    };
    if size > 0 && value.is_null() {
        return result(Err::<(), _>(FAULT));
    }
    if size > 1 << 16 {
        return result(Err::<(), _>(Errno(libc::E2BIG as u16)));
    }
    // SAFETY: promised by the caller.
    let value = unsafe { bytes(value, size) };
    result(xattr::set(target, name, value, flags))
}

/// # Safety
/// `name` is NULL or a C string, `value` has room for `size` bytes.
unsafe fn get(target: Option<Target<'_>>, name: *const c_char, value: *mut c_void, size: usize) -> isize {
    // SAFETY: promised by the caller.
    let (Some(target), Some(name)) = (target, unsafe { path(name) }) else {
        return result(Err::<usize, _>(FAULT));
    };
    // SAFETY: promised by the caller.
    result(unsafe { xattr::get(target, name, value.cast(), size) })
}

/// # Safety
/// `names` has room for `size` bytes.
unsafe fn list(target: Option<Target<'_>>, names: *mut c_char, size: usize) -> isize {
    let Some(target) = target else {
        return result(Err::<usize, _>(FAULT));
    };
    // SAFETY: promised by the caller.
    result(unsafe { xattr::list(target, names.cast(), size) })
}

/// # Safety
/// `name` is NULL or a C string.
unsafe fn remove(target: Option<Target<'_>>, name: *const c_char) -> c_int {
    // SAFETY: promised by the caller.
    let (Some(target), Some(name)) = (target, unsafe { path(name) }) else {
        return result(Err::<(), _>(FAULT));
    };
    result(xattr::remove(target, name))
}

faces! {
    fn getxattr(at: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize { get(path(at).map(Target::Path), name, value, size) }
    fn lgetxattr(at: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize { get(path(at).map(Target::Link), name, value, size) }
    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: usize) -> isize { get(Some(Target::Descriptor(fd)), name, value, size) }
    fn listxattr(at: *const c_char, names: *mut c_char, size: usize) -> isize { list(path(at).map(Target::Path), names, size) }
    fn llistxattr(at: *const c_char, names: *mut c_char, size: usize) -> isize { list(path(at).map(Target::Link), names, size) }
    fn flistxattr(fd: c_int, names: *mut c_char, size: usize) -> isize { list(Some(Target::Descriptor(fd)), names, size) }
    fn setxattr(at: *const c_char, name: *const c_char, value: *const c_void, size: usize, flags: c_int) -> c_int {
        set(path(at).map(Target::Path), name, value, size, flags)
    }
    fn lsetxattr(at: *const c_char, name: *const c_char, value: *const c_void, size: usize, flags: c_int) -> c_int {
        set(path(at).map(Target::Link), name, value, size, flags)
    }
    fn fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, size: usize, flags: c_int) -> c_int {
        set(Some(Target::Descriptor(fd)), name, value, size, flags)
    }
    fn removexattr(at: *const c_char, name: *const c_char) -> c_int { remove(path(at).map(Target::Path), name) }
    fn lremovexattr(at: *const c_char, name: *const c_char) -> c_int { remove(path(at).map(Target::Link), name) }
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int { remove(Some(Target::Descriptor(fd)), name) }
}
