//! Searching for a program in `PATH`.

use super::Strings;
use crate::vfs::Errno;
use std::ffi::{CStr, CString, c_char};

/// Not a program.
pub const NOEXEC: Errno = Errno(libc::ENOEXEC as u16);
/// What runs a file without a `#!` line.
pub const SHELL: &CStr = c"/bin/sh";
/// Where is searched when there is no `PATH`.
const DEFAULT: &[u8] = b"/bin:/usr/bin";

/// The paths that a file may have, in the order of `PATH`. An empty element is the working directory.
pub struct Candidates {
    path: Vec<u8>,
    file: Vec<u8>,
}

impl Candidates {
    /// Those of a file, by this process's `PATH`.
    pub fn of(file: &CStr) -> Candidates {
        // SAFETY: getenv returns null or a C string of the environment; it is copied at once.
        let path = unsafe {
            let value = libc::getenv(c"PATH".as_ptr());
            if value.is_null() { DEFAULT.to_vec() } else { CStr::from_ptr(value).to_bytes().to_vec() }
        };
        Candidates { path, file: file.to_bytes().to_vec() }
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = CString> {
        self.path.split(|byte| *byte == b':').filter_map(|directory| {
            let whole = match directory {
                b"" => self.file.clone(),
                directory => [directory, b"/", &self.file].concat(),
            };
            CString::new(whole).ok()
        })
    }
}

/// Whether the search goes on after this error. (EACCES too, but it is remembered.)
pub fn goes_on_after(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::NODEV | Errno::TIMEDOUT)
}

/// The shell's arguments for a file without a `#!` line.
///
/// # Safety
/// `argv` is null or a valid list.
pub unsafe fn for_shell(path: &CStr, argv: Strings) -> Vec<*const c_char> {
    let mut all = vec![SHELL.as_ptr(), path.as_ptr()];
    // SAFETY: the caller's promise: read up to the null that ends the list.
    unsafe {
        if !argv.is_null() && !(*argv).is_null() {
            let mut at = argv.add(1);
            while !(*at).is_null() {
                all.push(*at);
                at = at.add(1);
            }
        }
    }
    all.push(std::ptr::null());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_elements_are_the_working_directory() {
        let all: Vec<CString> =
            Candidates { path: b"/bin::/usr/bin:".to_vec(), file: b"x".to_vec() }.iter().collect();
        assert_eq!(all, [c"/bin/x", c"x", c"/usr/bin/x", c"x"].map(CStr::to_owned));
    }

    #[test]
    fn shell_gets_path_and_arguments_but_not_the_name() {
        let argv = [c"name".as_ptr(), c"one".as_ptr(), std::ptr::null()];
        // SAFETY: a valid list.
        let all = unsafe { for_shell(c"/a/b", argv.as_ptr()) };
        assert_eq!(all.len(), 4);
        assert_eq!(all[2], argv[1]);
        assert!(all[3].is_null());
    }
}
