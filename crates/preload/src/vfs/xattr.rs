//! Extended attributes: of a path (following or not) or of a descriptor.

use super::at::at;
use super::attrs::described;
use super::{fds, state};
use bivouac_client::Fail;
use bivouac_proto::Errno;
use std::ffi::{CStr, c_long};

/// What a call is about.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// A path, following a link at its end.
    Path(&'a CStr),
    /// A path, not following.
    Link(&'a CStr),
    /// A descriptor.
    Descriptor(i32),
}

/// The system calls of one operation: for a path, for a link, for a descriptor.
pub type Calls = [c_long; 3];

impl Target<'_> {
    /// Calls the kernel with the target as first argument.
    fn kernel(&self, calls: Calls, path: Option<&CStr>, rest: [usize; 4]) -> Result<usize, Errno> {
        let (number, first) = match self {
            Target::Path(own) => (calls[0], path.unwrap_or(own).as_ptr() as usize),
            Target::Link(own) => (calls[1], path.unwrap_or(own).as_ptr() as usize),
            Target::Descriptor(fd) => (calls[2], *fd as usize),
        };
        let [a, b, c, d] = rest;
        // SAFETY: the pointers are the program's, for this very call.
        unsafe { crate::raw::call(number, [first, a, b, c, d, 0]) }
    }

    fn run<T>(
        &self,
        kernel: impl Fn(Option<&CStr>) -> Result<T, Errno>,
        on_file: impl FnOnce(&bivouac_client::Handle) -> Result<T, Errno>,
        on_path: impl Fn(&bivouac_client::Client, bivouac_layout::Ino, &[u8], bool) -> Result<T, Fail>,
    ) -> Result<T, Errno> {
        let (path, follow) = match self {
            Target::Descriptor(fd) => {
                return match fds::get(*fd)? {
                    Some(file) if file.is_path_only() => Err(Errno::BADF),
                    Some(file) => state::apart(|| on_file(&file)),
                    None => kernel(None),
                };
            }
            Target::Path(path)
                if state::active()
                    && let Some(file) = described(libc::AT_FDCWD, path, 0, true)? =>
            {
                return state::apart(|| on_file(&file));
            }
            Target::Path(path) => (path, true),
            Target::Link(path) => (path, false),
        };
        at(
            libc::AT_FDCWD,
            path,
            follow,
            |_, path| kernel(Some(path)),
            |c, start, p| on_path(c, start, p, follow),
        )
    }
}

/// ACLs and other attributes that the system itself interprets: there are none.
fn check_name(name: &CStr) -> Result<&[u8], Errno> {
    let bytes = name.to_bytes();
    if bytes.starts_with(b"system.") || !bytes.contains(&b'.') {
        Err(Errno::OPNOTSUPP)
    } else if bytes.len() > 255 {
        Err(Errno::RANGE)
    } else {
        Ok(bytes)
    }
}

/// What `getxattr` and `listxattr` return: a value that the kernel has already put into the program's memory,
/// or one that is still to be put there.
enum Got {
    Kernel(usize),
    Ours(Vec<u8>),
}

/// Puts a value into the program's memory: its length alone when `size` is 0.
///
/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn put(got: Got, buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let value = match got {
        Got::Kernel(len) => return Ok(len),
        Got::Ours(value) => value,
    };
    if size > 0 {
        if value.len() > size {
            return Err(Errno::RANGE);
        }
        // SAFETY: there is room for `size` bytes, which are at least as many.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer, value.len()) };
    }
    Ok(value.len())
}

/// `getxattr(2)` and its variants.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn get(target: Target<'_>, name: &CStr, buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let calls = [libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr];
    let got = target.run(
        |path| {
            target.kernel(calls, path, [name.as_ptr() as usize, buffer as usize, size, 0]).map(Got::Kernel)
        },
        |file| file.get_xattr(check_name(name)?).map(Got::Ours),
        |client, start, path, follow| {
            client.get_xattr((start, path, follow), check_name(name)?).map(Got::Ours)
        },
    )?;
    // SAFETY: promised by the caller.
    unsafe { put(got, buffer, size) }
}

/// `listxattr(2)` and its variants.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn list(target: Target<'_>, buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let calls = [libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr];
    let got = target.run(
        |path| target.kernel(calls, path, [buffer as usize, size, 0, 0]).map(Got::Kernel),
        |file| file.list_xattr().map(Got::Ours),
        |client, start, path, follow| client.list_xattr((start, path, follow)).map(Got::Ours),
    )?;
    // SAFETY: promised by the caller.
    unsafe { put(got, buffer, size) }
}

/// `setxattr(2)` and its variants.
pub fn set(target: Target<'_>, name: &CStr, value: &[u8], flags: i32) -> Result<(), Errno> {
    let calls = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
    let rest = [name.as_ptr() as usize, value.as_ptr() as usize, value.len(), flags as usize];
    target.run(
        |path| target.kernel(calls, path, rest).map(|_| ()),
        |file| file.set_xattr(check_name(name)?, value, flags),
        |client, start, path, follow| {
            client.set_xattr((start, path, follow), check_name(name)?, value, flags)
        },
    )
}

/// `removexattr(2)` and its variants.
pub fn remove(target: Target<'_>, name: &CStr) -> Result<(), Errno> {
    let calls = [libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr];
    target.run(
        |path| target.kernel(calls, path, [name.as_ptr() as usize, 0, 0, 0]).map(|_| ()),
        |file| file.remove_xattr(check_name(name)?),
        |client, start, path, follow| client.remove_xattr((start, path, follow), check_name(name)?),
    )
}
