//! What can go wrong, and how it becomes an errno: in [`LogError::errno`] alone.

use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use std::io;
use std::path::PathBuf;

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused something.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// Another process has the store open.
    #[error(
        "{0} is in use by another server: stop that one first, or give each server its own storage directory"
    )]
    InUse(PathBuf),
    /// A log belongs to something else.
    #[error("{path}: {what}. Give this server the storage directory that it had, or an empty one")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// A log is damaged before its end, so that acknowledged changes would be lost.
    #[error(
        "{path} is damaged at byte {offset} of {length} and holds acknowledged changes after that. Restore the file from \
         a copy; to go on without those changes, cut it there with `truncate -s {offset} {path}` and remove {mark}"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage begins, bytes.
        offset: u64,
        /// Length of the file, bytes.
        length: u64,
        /// The mark beside it.
        mark: PathBuf,
    },
    /// A log ends before the end of what was acknowledged.
    #[error(
        "{path} ends at byte {length}, but had {owed} bytes: acknowledged changes are missing. Restore the file from a \
         copy; to go on with what is there, remove {mark}"
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Where its last whole record ends, bytes.
        length: u64,
        /// How long it must be, bytes.
        owed: u64,
        /// The mark that says so.
        mark: PathBuf,
    },
    /// There is no log where one was.
    #[error(
        "{path} is missing (0 bytes), but had {owed} bytes: the names and files in it are gone. Restore the file from a \
         copy; to go on without them, remove {mark}"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// How long it must be, bytes.
        owed: u64,
        /// The mark that says so.
        mark: PathBuf,
    },
    /// A log is not the one that was in use last: an older copy, most likely.
    #[error(
        "{path} is not the log that was in use last, but an older copy: acknowledged changes are missing. Restore the \
         newest copy; to go on with what is there, remove {mark}"
    )]
    Outdated {
        /// The file.
        path: PathBuf,
        /// The mark that says so.
        mark: PathBuf,
    },
    /// The mark of a log cannot be understood, so that it is not known whether the log is whole.
    #[error(
        "{0} is damaged, so that it cannot be told whether the log beside it is whole. Restore the file from a copy; \
         to go on with the log as it is, remove {0}"
    )]
    MarkDamaged(PathBuf),
    /// Something else is where a log or its mark should be.
    #[error(
        "{0} is not an ordinary file: somebody has put something else in its place. Restore the file from a copy"
    )]
    NotAFile(PathBuf),
    /// The directory with all logs is gone.
    #[error(
        "{0} is missing: all names and small files of this server were in it. Restore the directory from a copy; to begin \
         anew without them, make it, empty"
    )]
    NoDirectory(PathBuf),
}

impl OpenError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.into();
        move |source| OpenError::Io { path, source }
    }
}

/// Why a change could not be logged. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The storage is full (or the record too long for any storage).
    #[error("no space for the log")]
    Full,
    /// The storage failed.
    #[error("the log cannot be written: {0}")]
    Io(#[from] io::Error),
}

impl LogError {
    /// What the program gets.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            LogError::Full => Errno::NOSPC,
            LogError::Io(error) => match error.raw_os_error() {
                Some(28) => Errno::NOSPC,
                Some(122) => Errno::DQUOT,
                _ => Errno::IO,
            },
        }
    }
}

impl LogError {
    /// Whether the storage is broken, and not only full.
    pub(crate) fn is_of_broken_storage(&self) -> bool {
        self.errno() == Errno::IO
    }
}

impl From<LogError> for io::Error {
    fn from(error: LogError) -> io::Error {
        match error {
            LogError::Full => io::ErrorKind::StorageFull.into(),
            LogError::Io(error) => error,
        }
    }
}

/// Why a piece of work under a partition's lock stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Somebody holds what it needs: let go of the partition, and try again when something has changed.
    Wait,
    /// It fails.
    Fail(Failure),
}

/// Work under a partition's lock.
pub(crate) type Op<T> = Result<T, Stop>;

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Fail(failure)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Fail(Failure::Errno(errno))
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Fail(Failure::Refused(refusal))
    }
}

impl From<LogError> for Stop {
    fn from(error: LogError) -> Stop {
        tracing::warn!(%error, "a change was not made");
        Stop::Fail(Failure::Errno(error.errno()))
    }
}
