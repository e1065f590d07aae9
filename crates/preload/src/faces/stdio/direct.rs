//! `dprintf`: printing to a descriptor without a stream, which the C library does by a system call of its
//! own.

#![cfg(target_arch = "x86_64")]

use crate::faces::variadic::VaList;
use crate::raw::set_errno;
use crate::vfs::{self, Errno};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: *mut VaList) -> c_int;
}

real! {
    real_vdprintf = vdprintf(fd: c_int, format: *const c_char, list: *mut VaList) -> c_int, else -1;
    real_vdprintf_chk = __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut VaList) -> c_int,
        else -1;
}

fn is_ours(fd: c_int) -> bool {
    vfs::active() && vfs::is_ours(fd)
}

/// Writes all of it.
fn write(fd: c_int, mut text: &[u8]) -> Result<(), Errno> {
    while !text.is_empty() {
        let count = vfs::write(fd, text)?;
        text = text.get(count..).unwrap_or_default();
    }
    Ok(())
}

/// # Safety
/// As for `vdprintf`.
unsafe fn print(fd: c_int, format: *const c_char, list: *mut VaList) -> c_int {
    let mut text = null_mut();
    // SAFETY: the caller's promise; the text has as many bytes as `vasprintf` says, and is freed here.
    unsafe {
        let length = vasprintf(&mut text, format, list);
        let Ok(count) = usize::try_from(length) else { return -1 };
        let written = write(fd, std::slice::from_raw_parts(text.cast(), count));
        libc::free(text.cast());
        match written {
            Ok(()) => length,
            Err(errno) => {
                set_errno(errno);
                -1
            }
        }
    }
}

faces! {
    /// Prints to a descriptor, arguments in a list.
    fn vdprintf(fd: c_int, format: *const c_char, list: *mut VaList) -> c_int {
        if is_ours(fd) { print(fd, format, list) } else { real_vdprintf(fd, format, list) }
    }

    /// [`vdprintf`], checked.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut VaList) -> c_int {
        if is_ours(fd) { print(fd, format, list) } else { real_vdprintf_chk(fd, flag, format, list) }
    }
}

variadic! {
    /// Prints to a descriptor.
    dprintf, 2 => vdprintf;
    /// Prints to a descriptor, checked.
    __dprintf_chk, 3 => __vdprintf_chk;
}
