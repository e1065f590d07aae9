//! What can go wrong, and which error number a program sees for it.

use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use std::path::PathBuf;

/// Why an operation failed, or a store could not be opened. The messages of the latter name cause and remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DataError {
    /// The local file system failed an operation on a sub-file.
    #[error("the storage failed: {0}")]
    Io(Errno),
    /// A sub-file that this server has made, and that Bivouac has not removed, is gone.
    #[error("the sub-file of inode {0} is gone although nobody removed it: what was in it is lost")]
    Missing(Ino),
    /// The journal of sub-files has not the right format.
    #[error(
        "the file `bivouac-made` in a storage directory is not Bivouac's, or of another version: restore it; to go on with the sub-files that are there, remove it"
    )]
    JournalUnknown,
    /// The operation would reach beyond [`bivouac_proto::attr::FILE_MAX`].
    #[error("beyond the largest file offset")]
    TooFar,
    /// No storage directory was named.
    #[error("no storage directory was given: name at least one with --storage")]
    NoDirectory,
    /// More directories than the format can count.
    #[error("{0} storage directories are too many: at most 65535")]
    TooManyDirectories(usize),
    /// The directory is not there, and neither is the one that it would be made in.
    #[error("storage directory {0} cannot be made: the directory above it does not exist; make that first")]
    NoParent(PathBuf),
    /// Something else than a directory has the name.
    #[error("storage {0} is not a directory: name a directory, or a path where one can be made")]
    NotADirectory(PathBuf),
    /// The directory belongs to another user, who could change what is stored.
    #[error(
        "storage directory {path} belongs to user {owner}, not to you (user {user}): name a directory of your own, for example a new one below it"
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user who asks.
        user: u32,
    },
    /// No permission.
    #[error(
        "storage directory {0} is not accessible: you need read, write and search permission (chmod u+rwx)"
    )]
    NoPermission(PathBuf),
    /// Nothing can be written there.
    #[error("storage directory {0} is on a read-only file system: name one that can be written to")]
    ReadOnly(PathBuf),
    /// There is not enough space even for an empty store.
    #[error("no space (or no inodes) left for storage directory {0}: free some, or name another file system")]
    NoSpace(PathBuf),
    /// Another server's data is there.
    #[error(
        "storage directory {path} holds the data of server {server} of deployment {deployment:016x}: name another directory, or, if that deployment is gone for good, remove the directory"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Whose data is there.
        deployment: u64,
        /// Whose data is there.
        server: ServerId,
    },
    /// Another process has the store open.
    #[error(
        "storage directory {0} is in use by another server process: stop that, or name another directory"
    )]
    InUse(PathBuf),
    /// There is a directory `sub` without an identity file, so it is not a store's.
    #[error("storage directory {0} has a `sub` that is not Bivouac's: name an empty or new directory")]
    Occupied(PathBuf),
    /// The identity file cannot be understood.
    #[error("{path} is damaged ({what}): restore it, or, if the data is not needed, remove the directory")]
    Damaged {
        /// The identity file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Directories are missing from the list, or there are too many.
    #[error(
        "storage directory {path} belongs to a store of {expected} directories, but {given} were given: name all of them, and only them"
    )]
    WrongCount {
        /// A directory of the store.
        path: PathBuf,
        /// How many there are.
        expected: u16,
        /// How many were named.
        given: u16,
    },
    /// A directory is empty although the store has data.
    #[error(
        "storage directory {path} is empty, but {other} belongs to a store that had data there: name (or mount) the directory that it was"
    )]
    Lost {
        /// The empty directory.
        path: PathBuf,
        /// One that is not.
        other: PathBuf,
    },
    /// Two names lead to the same directory, or one is a copy of another.
    #[error("storage directories {0} and {1} are the same, or copies of each other: name each once")]
    Twice(PathBuf, PathBuf),
    /// The local file system failed while a store was opened or removed.
    #[error("cannot {action} {path}: {errno}")]
    Setup {
        /// What was tried, as a verb.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// How it failed.
        errno: Errno,
    },
}

impl DataError {
    /// The error number that a program sees: the one place where these errors become numbers.
    pub fn errno(&self) -> Errno {
        match self {
            DataError::Io(errno) | DataError::Setup { errno, .. } => *errno,
            DataError::TooFar => Errno::FBIG,
            DataError::NoDirectory | DataError::TooManyDirectories(_) | DataError::Twice(..) => Errno::INVAL,
            DataError::NoParent(_) => Errno::NOENT,
            DataError::NotADirectory(_) => Errno::NOTDIR,
            DataError::NotOurs { .. } => Errno::PERM,
            DataError::NoPermission(_) => Errno::ACCESS,
            DataError::ReadOnly(_) => Errno::ROFS,
            DataError::NoSpace(_) => Errno::NOSPC,
            DataError::InUse(_) => Errno::BUSY,
            DataError::Foreign { .. } | DataError::Occupied(_) => Errno::EXIST,
            DataError::Missing(_)
            | DataError::JournalUnknown
            | DataError::Damaged { .. }
            | DataError::WrongCount { .. }
            | DataError::Lost { .. } => Errno::IO,
        }
    }
}

impl From<rustix::io::Errno> for DataError {
    fn from(errno: rustix::io::Errno) -> DataError {
        DataError::Io(to_errno(errno))
    }
}

impl From<DataError> for Errno {
    fn from(error: DataError) -> Errno {
        error.errno()
    }
}

/// The kernel's error number in the type of the wire.
pub(crate) fn to_errno(errno: rustix::io::Errno) -> Errno {
    Errno(u16::try_from(errno.raw_os_error()).unwrap_or(Errno::IO.0))
}
