//! Reading and writing. A foreign descriptor costs one look into a table, then the call is libc's.

mod vectors;
mod ways;

use std::ffi::{c_int, c_void};
use ways::{reading, writing};

unsafe extern "C" {
    fn __chk_fail() -> !;
}

/// What a fortified call checks: the program dies rather than overflow its buffer.
fn check(count: usize, room: usize) {
    if count > room {
        // SAFETY: libc's own end for this.
        unsafe { __chk_fail() }
    }
}

faces! {
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize { reading::at(fd, buffer, count, None) }
    fn __read(fd: c_int, buffer: *mut c_void, count: usize) -> isize { reading::at(fd, buffer, count, None) }
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: usize, room: usize) -> isize {
        check(count, room);
        reading::at(fd, buffer, count, None)
    }
    fn pread(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize { reading::at(fd, buffer, count, Some(offset)) }
    fn pread64(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize { reading::at(fd, buffer, count, Some(offset)) }
    fn __pread64(fd: c_int, buffer: *mut c_void, count: usize, offset: i64) -> isize { reading::at(fd, buffer, count, Some(offset)) }
    fn __pread_chk(fd: c_int, buffer: *mut c_void, count: usize, offset: i64, room: usize) -> isize {
        check(count, room);
        reading::at(fd, buffer, count, Some(offset))
    }
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, count: usize, offset: i64, room: usize) -> isize {
        check(count, room);
        reading::at(fd, buffer, count, Some(offset))
    }
    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize { vectors::reading::at(fd, parts, count, None) }
    fn preadv(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { vectors::reading::at(fd, parts, count, Some(offset)) }
    fn preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { vectors::reading::at(fd, parts, count, Some(offset)) }
    fn preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        vectors::reading::with_flags(fd, parts, count, offset, flags)
    }
    fn preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        vectors::reading::with_flags(fd, parts, count, offset, flags)
    }
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize { writing::at(fd, buffer, count, None) }
    fn __write(fd: c_int, buffer: *const c_void, count: usize) -> isize { writing::at(fd, buffer, count, None) }
    fn pwrite(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize { writing::at(fd, buffer, count, Some(offset)) }
    fn pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize { writing::at(fd, buffer, count, Some(offset)) }
    fn __pwrite64(fd: c_int, buffer: *const c_void, count: usize, offset: i64) -> isize { writing::at(fd, buffer, count, Some(offset)) }
    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize { vectors::writing::at(fd, parts, count, None) }
    fn pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { vectors::writing::at(fd, parts, count, Some(offset)) }
    fn pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize { vectors::writing::at(fd, parts, count, Some(offset)) }
    fn pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        vectors::writing::with_flags(fd, parts, count, offset, flags)
    }
    fn pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int) -> isize {
        vectors::writing::with_flags(fd, parts, count, offset, flags)
    }
}
