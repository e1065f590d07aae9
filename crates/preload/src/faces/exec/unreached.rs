//! Warning of programs that this library will not be in.
//!
//! What they would do below the mount path, they would do to the kernel's files, and nobody would notice
//! ([`bivouac_node::bypass`]). With a mount there is nothing to warn of: they see that.

use super::program_of_link;
use crate::raw::complain;
use crate::vfs::{self, state};
use bivouac_node::bypass;
use rustix::fd::BorrowedFd;
use rustix::fs::CWD;
use std::ffi::{CStr, c_int};

/// Where the memory lies that programs of the mount are executed from.
const MEMORY: &[u8] = b"/proc/self/fd/";

/// Warns, if there is reason to, of what the kernel is about to execute.
pub fn warn(dirfd: c_int, path: &CStr) {
    if !vfs::active() {
        return;
    }
    // SAFETY: the number is the program's own, or means the working directory; what it stands for is the
    // kernel's to check.
    let directory = if dirfd < 0 { CWD } else { unsafe { BorrowedFd::borrow_raw(dirfd) } };
    let Some(bypass) = bypass::of(directory, path) else { return };
    let Some(environment) = state::environment() else { return };
    let mut target = [0u8; 4096];
    let mut name = path.to_bytes();
    if name.starts_with(MEMORY)
        && let Ok(length) =
            sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len())
    {
        let link = target.get(..length).unwrap_or_default();
        name = program_of_link(link).unwrap_or(link);
    }
    if bypass::is_first(environment, name) {
        let name = String::from_utf8_lossy(name);
        complain(&bypass.warning(&name, &environment.mount, &environment.name));
    }
}

/// Likewise for the program of a descriptor.
pub fn warn_of_descriptor(fd: c_int) {
    if let Ok(path) = std::ffi::CString::new(format!("/proc/self/fd/{fd}")) {
        warn(libc::AT_FDCWD, &path);
    }
}
