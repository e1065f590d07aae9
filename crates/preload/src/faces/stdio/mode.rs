//! The mode argument of `fopen`, `fdopen` and `freopen`.

use crate::vfs::Errno;
use std::ffi::CStr;

/// What a mode string says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    /// Access mode and creation flags for `open`.
    pub flags: i32,
    /// Reads are allowed.
    pub reads: bool,
    /// Writes are allowed.
    pub writes: bool,
    /// Every write goes to the end.
    pub appends: bool,
}

impl Mode {
    /// Parses a mode as the C library does: the first character decides, then up to six more of `+ b x e m
    /// c`; unknown ones are skipped, a comma ends it. EINVAL unless it begins with `r`, `w` or `a`.
    pub fn parse(mode: &CStr) -> Result<Mode, Errno> {
        let bytes = mode.to_bytes();
        let (&first, rest) = bytes.split_first().ok_or(Errno::INVAL)?;
        let mut parsed = match first {
            b'r' => Mode { flags: libc::O_RDONLY, reads: true, writes: false, appends: false },
            b'w' => Mode {
                flags: libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
                reads: false,
                writes: true,
                appends: false,
            },
            b'a' => Mode {
                flags: libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
                reads: false,
                writes: true,
                appends: true,
            },
            _ => return Err(Errno::INVAL),
        };
        for &character in rest.iter().take(6) {
            match character {
                b'+' => {
                    parsed.flags = (parsed.flags & !libc::O_ACCMODE) | libc::O_RDWR;
                    parsed.reads = true;
                    parsed.writes = true;
                }
                b'x' => parsed.flags |= libc::O_EXCL,
                b'e' => parsed.flags |= libc::O_CLOEXEC,
                b',' => break,
                _ => {}
            }
        }
        Ok(parsed)
    }

    /// The mode in the only form that `fopencookie` understands.
    pub fn plain(self) -> &'static CStr {
        match (self.appends, self.writes, self.reads) {
            (true, _, true) => c"a+",
            (true, _, false) => c"a",
            (false, true, true) => c"r+",
            (false, true, false) => c"w",
            (false, false, _) => c"r",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_letter_sets_its_flags() {
        let read = Mode::parse(c"rbe").unwrap();
        assert_eq!((read.flags, read.writes), (libc::O_RDONLY | libc::O_CLOEXEC, false));
        let update = Mode::parse(c"rb+").unwrap();
        assert_eq!((update.flags, update.plain()), (libc::O_RDWR, c"r+"));
        let exclusive = Mode::parse(c"w+x").unwrap();
        assert_eq!(exclusive.flags, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL);
        assert_eq!(Mode::parse(c"a+").unwrap().plain(), c"a+");
    }

    #[test]
    fn encoding_after_a_comma_is_not_read_as_letters() {
        assert_eq!(Mode::parse(c"r,ccs=x+").unwrap(), Mode::parse(c"r").unwrap());
    }

    #[test]
    fn other_first_letters_are_refused() {
        assert_eq!(Mode::parse(c"z"), Err(Errno::INVAL));
        assert_eq!(Mode::parse(c""), Err(Errno::INVAL));
    }
}
