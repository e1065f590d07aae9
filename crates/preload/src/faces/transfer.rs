//! Moving bytes between descriptors.

use crate::raw::result;
use crate::vfs::{Errno, copy};
use std::ffi::{c_int, c_uint};

real! {
    real_copy_file_range = copy_file_range(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: usize, flags: c_uint,
    ) -> isize, else -1;
    real_splice = splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: usize, flags: c_uint,
    ) -> isize, else -1;
    real_tee = tee(from: c_int, to: c_int, len: usize, flags: c_uint) -> isize, else -1;
    real_vmsplice = vmsplice(fd: c_int, parts: *const libc::iovec, count: usize, flags: c_uint) -> isize, else -1;
}

/// # Safety
/// The offsets are NULL or point to one.
unsafe fn send(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
    // SAFETY: promised by the caller.
    let ours = copy::sendfile(to, from, unsafe { offset.as_mut() }, count);
    result(ours.unwrap_or_else(|| sys!(SYS_sendfile, to, from, offset, count)))
}

faces! {
    fn sendfile(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize { send(to, from, offset, count) }
    fn sendfile64(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize { send(to, from, offset, count) }
    fn copy_file_range(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: usize, flags: c_uint) -> isize {
        match copy::copy_file_range((from, from_offset.as_mut()), (to, to_offset.as_mut()), len, flags) {
            Some(ours) => result(ours),
            None => real_copy_file_range(from, from_offset, to, to_offset, len, flags),
        }
    }
    fn splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: usize, flags: c_uint) -> isize {
        if copy::refuses(&[from, to]) {
            return result(Err::<usize, _>(Errno::INVAL));
        }
        real_splice(from, from_offset, to, to_offset, len, flags)
    }
    fn tee(from: c_int, to: c_int, len: usize, flags: c_uint) -> isize {
        if copy::refuses(&[from, to]) {
            return result(Err::<usize, _>(Errno::INVAL));
        }
        real_tee(from, to, len, flags)
    }
    fn vmsplice(fd: c_int, parts: *const libc::iovec, count: usize, flags: c_uint) -> isize {
        if copy::refuses(&[fd]) {
            return result(Err::<usize, _>(Errno::INVAL));
        }
        real_vmsplice(fd, parts, count, flags)
    }
}
