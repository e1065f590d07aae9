//! Temporary files: the `mkstemp` family, `mkdtemp`, `mktemp`, `tempnam`.
//!
//! The C library makes them by system calls of its own. `tmpfile` and `tmpnam` are always in `/tmp`, and left
//! to it.

use super::real::{handles, pointer, text};
use crate::raw::{result, set_errno};
use crate::vfs::{self, Errno};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

/// What a template ends in.
const MARKS: &[u8] = b"XXXXXX";
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// How many names are tried.
const ATTEMPTS: usize = 62 * 62 * 62;

real! {
    real_mkostemps = mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, else -1;
    real_mkdtemp = mkdtemp(template: *mut c_char) -> *mut c_char, else null_mut();
    real_mktemp = mktemp(template: *mut c_char) -> *mut c_char, else null_mut();
    real_tempnam = tempnam(directory: *const c_char, prefix: *const c_char) -> *mut c_char, else null_mut();
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

fn fill(name: &mut [u8]) {
    let mut random = [0u8; 8];
    let length = sys!(SYS_getrandom, random.as_mut_ptr(), random.len(), libc::GRND_NONBLOCK);
    if length.is_err() {
        // Early in the life of the machine: names need to differ, not to be secret.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        random = (now.tv_nsec as u64 ^ (now.tv_sec as u64) << 30)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_ne_bytes();
    }
    let mut value = u64::from_ne_bytes(random);
    for byte in name {
        *byte = LETTERS.get((value % 62) as usize).copied().unwrap_or(b'x');
        value /= 62;
    }
}

/// Tries names until `attempt` does not say EEXIST. The template then holds the name.
///
/// # Safety
/// `template` is a C string that may be written to.
unsafe fn make<T>(
    template: *mut c_char,
    suffix: c_int,
    attempt: impl Fn(&CStr) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let suffix = usize::try_from(suffix).map_err(|_| Errno::INVAL)?;
    // SAFETY: the caller's promise. Between the attempts nobody else looks at the bytes.
    unsafe {
        let length = CStr::from_ptr(template).count_bytes();
        let start =
            length.checked_sub(suffix).and_then(|end| end.checked_sub(MARKS.len())).ok_or(Errno::INVAL)?;
        let marks = template.add(start).cast::<u8>();
        if std::slice::from_raw_parts(marks, MARKS.len()) != MARKS {
            return Err(Errno::INVAL);
        }
        for _ in 0..ATTEMPTS {
            fill(std::slice::from_raw_parts_mut(marks, MARKS.len()));
            match attempt(CStr::from_ptr(template)) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
    }
    Err(Errno::EXIST)
}

fn open(path: &CStr, flags: c_int) -> Result<c_int, Errno> {
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    vfs::openat(libc::AT_FDCWD, path, flags, 0o600)
}

/// The program's variable, unless it runs with other rights than its user's.
fn variable(name: &CStr) -> Option<CString> {
    // SAFETY: secure_getenv returns null or a string of the environment, copied at once.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    }
}

fn usable(directory: &CStr) -> bool {
    !directory.is_empty()
        && vfs::fstatat(libc::AT_FDCWD, directory, 0)
            .is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

faces! {
    /// Makes and opens a file with a name of its own: a template, a suffix behind it, flags.
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        match text(template) {
            Ok(name) if handles(libc::AT_FDCWD, name) => result(make(template, suffix, |path| open(path, flags))),
            _ => real_mkostemps(template, suffix, flags),
        }
    }

    /// The same as [`mkostemps`].
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        mkostemps(template, suffix, flags)
    }

    /// Likewise, without suffix.
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        mkostemps(template, 0, flags)
    }

    /// The same as [`mkostemp`].
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        mkostemps(template, 0, flags)
    }

    /// Likewise, without flags.
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        mkostemps(template, suffix, 0)
    }

    /// The same as [`mkstemps`].
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
        mkostemps(template, suffix, 0)
    }

    /// Likewise, without either.
    fn mkstemp(template: *mut c_char) -> c_int {
        mkostemps(template, 0, 0)
    }

    /// The same as [`mkstemp`].
    fn mkstemp64(template: *mut c_char) -> c_int {
        mkostemps(template, 0, 0)
    }

    /// Makes a directory with a name of its own.
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        match text(template) {
            Ok(name) if handles(libc::AT_FDCWD, name) => {
                let made = make(template, 0, |path| vfs::mkdirat(libc::AT_FDCWD, path, 0o700));
                pointer(made.map(|()| template))
            }
            _ => real_mkdtemp(template),
        }
    }

    /// A name that does not exist at the moment; an empty one if there is none.
    fn mktemp(template: *mut c_char) -> *mut c_char {
        match text(template) {
            Ok(name) if handles(libc::AT_FDCWD, name) => {
                let free = |path: &CStr| match vfs::fstatat(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => Ok(()),
                    Err(errno) => Err(errno),
                    Ok(_) => Err(Errno::EXIST),
                };
                if let Err(errno) = make(template, 0, free) {
                    set_errno(errno);
                    template.write(0);
                }
                template
            }
            _ => real_mktemp(template),
        }
    }

    /// A name that does not exist, in `TMPDIR` or the directory given, in fresh memory.
    fn tempnam(directory: *const c_char, prefix: *const c_char) -> *mut c_char {
        if !vfs::active() {
            return real_tempnam(directory, prefix);
        }
        let given = text(directory).ok().map(CStr::to_owned);
        let place = variable(c"TMPDIR").into_iter().chain(given).find(|place| usable(place));
        let Some(place) = place.filter(|place| handles(libc::AT_FDCWD, place)) else {
            return real_tempnam(directory, prefix);
        };
        let prefix = text(prefix).map_or(&b"file"[..], CStr::to_bytes);
        let prefix = prefix.get(..5).unwrap_or(prefix);
        let name = [place.to_bytes(), b"/", prefix, MARKS].concat();
        let Ok(name) = CString::new(name) else { return pointer(Err(Errno::INVAL)) };
        let copy = libc::strdup(name.as_ptr());
        if copy.is_null() {
            return null_mut();
        }
        mktemp(copy);
        if copy.read() == 0 {
            libc::free(copy.cast());
            return null_mut();
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Vec<u8> {
        [text.as_bytes(), b"\0"].concat()
    }

    #[test]
    fn name_is_filled_before_the_suffix_and_retried_when_taken() {
        let mut name = template("/d/abXXXXXX.c");
        let tries = std::cell::Cell::new(0);
        let attempt = |path: &CStr| {
            tries.set(tries.get() + 1);
            assert!(path.to_bytes().starts_with(b"/d/ab") && path.to_bytes().ends_with(b".c"));
            if tries.get() < 3 { Err(Errno::EXIST) } else { Ok(()) }
        };
        // SAFETY: a C string of our own.
        assert_eq!(unsafe { make(name.as_mut_ptr().cast(), 2, attempt) }, Ok(()));
        assert_eq!(tries.get(), 3);
        assert!(!name.windows(3).any(|three| three == b"XXX"));
    }

    #[test]
    fn template_without_marks_is_refused() {
        for (text, suffix) in [("/d/abXXXXX", 0), ("XXXXXX", 1), ("abXXXXXX", -1), ("", 0)] {
            let mut name = template(text);
            // SAFETY: as above.
            let made = unsafe { make(name.as_mut_ptr().cast(), suffix, |_| Ok(())) };
            assert_eq!(made, Err(Errno::INVAL));
        }
    }
}
