//! `syscall(2)`: programs and runtimes that make system calls through libc's function.
//!
//! The calls that concern files go the way of their own faces; all others go to the kernel as they are.
//! (Calls made by a program's own `syscall` instruction do not come here: see `docs/preload.md`.)
//!
//! - [`descriptors`]: calls on descriptors.
//! - [`paths`]: calls on paths.
//! - [`listing`]: `getdents64`, which libc has a function for, too.

mod descriptors;
mod listing;
mod paths;

use super::limit;
use crate::raw::{call, result};
use crate::vfs::{self, Errno};
use std::ffi::c_long;

/// A call's arguments.
type Args = [usize; 6];

faces! {
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let args = [a, b, c, d, e, f];
        let ours = if vfs::tracking() { routed(number, args) } else { None };
        result(ours.unwrap_or_else(|| call(number, args)))
    }
    fn getdents64(fd: i32, buffer: *mut u8, size: usize) -> isize { result(listing::list(fd, buffer, size)) }
}

/// The result of a call that may concern the mount; `None`: it is the kernel's.
///
/// # Safety
/// The arguments are what the call asks for.
pub unsafe fn routed(number: c_long, args: Args) -> Option<Result<usize, Errno>> {
    if number == libc::SYS_exit_group {
        vfs::fds::leave(|| ());
    }
    // SAFETY: promised by the caller.
    unsafe {
        descriptors::routed(number, args)
            .or_else(|| paths::routed(number, args))
            .or_else(|| face(limit::routed(number, args)?.into()))
    }
}

fn face(returned: i64) -> Option<Result<usize, Errno>> {
    Some(if returned == -1 { Err(crate::raw::errno()) } else { Ok(returned as usize) })
}

fn done(result: Result<(), Errno>) -> Option<Result<usize, Errno>> {
    Some(result.map(|()| 0))
}

fn number_of(result: Result<i32, Errno>) -> Option<Result<usize, Errno>> {
    Some(result.map(|number| number as usize))
}
