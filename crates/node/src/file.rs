//! Small files that somebody else may have named: read without waiting, and never more than expected.
//!
//! A path from the environment or from a directory that others can write to may lead to anything: a FIFO that
//! nobody writes to, a terminal, a device without end, another user's file. Opening must not wait, and only
//! an ordinary file of the user's own (or the superuser's) is read, up to a limit.
//!
//! It runs inside other people's programs: system calls only.

use crate::fd::Fd;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Why a file was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// A system call failed.
    #[error("{0}")]
    System(Errno),
    /// It is a pipe, a device, a directory, ...
    #[error("it is not an ordinary file")]
    Kind,
    /// It belongs to somebody else.
    #[error("it belongs to user {0}")]
    Owner(u32),
    /// It is longer than what was expected can be.
    #[error("it is too long")]
    Length,
}

impl From<FileError> for std::io::Error {
    fn from(error: FileError) -> std::io::Error {
        match error {
            FileError::System(errno) => errno.into(),
            other => std::io::Error::new(std::io::ErrorKind::InvalidInput, other.to_string()),
        }
    }
}

/// Reads all of an ordinary file of this user, which has `most` bytes at most.
pub fn read(path: impl rustix::path::Arg, most: usize) -> Result<Vec<u8>, FileError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map(Fd::from).map_err(FileError::System)?;
    let stat = rustix::fs::fstat(&file).map_err(FileError::System)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(FileError::Kind);
    }
    let own = [rustix::process::geteuid(), rustix::process::getuid(), rustix::process::Uid::ROOT];
    if !own.iter().any(|uid| uid.as_raw() == stat.st_uid) {
        return Err(FileError::Owner(stat.st_uid));
    }
    let length = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if length > most {
        return Err(FileError::Length);
    }
    // One byte more shows a file that grows.
    let mut content = vec![0; length + 1];
    let mut filled = 0;
    loop {
        let Some(rest) = content.get_mut(filled..).filter(|rest| !rest.is_empty()) else {
            if filled > most {
                return Err(FileError::Length);
            }
            content.resize((filled * 2).max(64).min(most + 1), 0);
            continue;
        };
        match rustix::io::read(&file, rest) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(FileError::System(errno)),
        }
    }
    content.truncate(filled);
    if filled > most { Err(FileError::Length) } else { Ok(content) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_files_of_a_bounded_length_are_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("good"), "12345").expect("written");
        std::fs::write(path("empty"), "").expect("written");
        assert_eq!(read(path("good"), 5), Ok(b"12345".to_vec()));
        assert_eq!(read(path("empty"), 5), Ok(Vec::new()));
        assert_eq!(read(path("good"), 4), Err(FileError::Length));
        assert_eq!(read(path("missing"), 4), Err(FileError::System(Errno::NOENT)));
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("made");
        for other in [path("fifo"), path(""), "/dev/zero".into(), "/dev/tty".into()] {
            let refused = read(&other, 100).expect_err("refused");
            assert!(matches!(refused, FileError::Kind | FileError::System(_)), "{}", other.display());
        }
        if !bivouac_testing::is_root() {
            bivouac_testing::skip_part("giving a file away needs root");
        } else {
            std::os::unix::fs::chown(path("good"), Some(1001), None).expect("root may");
            assert_eq!(read(path("good"), 100), Err(FileError::Owner(1001)));
        }
        // Those of /proc have no length.
        assert!(read("/proc/self/status", 1 << 16).is_ok_and(|text| text.len() > 100));
        assert_eq!(read("/proc/self/status", 10), Err(FileError::Length));
    }
}
