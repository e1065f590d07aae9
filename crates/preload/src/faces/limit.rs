//! Resource limits: the kernel sets them, and the library remembers the one on the size of files, for writes
//! into the mount.

use crate::raw::result;
use crate::vfs;
use std::ffi::c_int;

/// # Safety
/// `new` and `old` are NULL or point to a `struct rlimit`, which has 64-bit fields.
unsafe fn set(pid: c_int, resource: u32, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int {
    let done = sys!(SYS_prlimit64, pid, resource, new, old);
    if !new.is_null() && resource == libc::RLIMIT_FSIZE && done.is_ok() {
        vfs::learn_file_size_limit();
    }
    result(done.map(|_| ()))
}

faces! {
    fn setrlimit(resource: u32, new: *const libc::rlimit) -> c_int { set(0, resource, new, std::ptr::null_mut()) }
    fn setrlimit64(resource: u32, new: *const libc::rlimit) -> c_int { set(0, resource, new, std::ptr::null_mut()) }
    fn prlimit(pid: c_int, resource: u32, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int {
        set(pid, resource, new, old)
    }
    fn prlimit64(pid: c_int, resource: u32, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int {
        set(pid, resource, new, old)
    }
}

/// The result of a system call that sets a limit; `None`: it is none.
///
/// # Safety
/// The arguments are what the call asks for.
pub unsafe fn routed(number: std::ffi::c_long, args: [usize; 6]) -> Option<c_int> {
    let [a, b, c, d, ..] = args;
    // SAFETY: promised by the caller.
    unsafe {
        match number {
            libc::SYS_setrlimit => Some(set(0, a as u32, b as _, std::ptr::null_mut())),
            libc::SYS_prlimit64 => Some(set(a as c_int, b as u32, c as _, d as _)),
            _ => None,
        }
    }
}
