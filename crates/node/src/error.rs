//! What can go wrong with the node's shared state.

use rustix::io::Errno;

/// Why the table of open descriptions could not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// A system call failed.
    #[error("{what}: {errno}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// The shared memory does not have this version's format.
    #[error("what the node's processes share was made by another version of Bivouac, or is damaged")]
    Format,
    /// A lock in the table has had the same living owner for so long that the owner must be an error.
    #[error("the node's table of open files is damaged: a lock that is never released")]
    Stuck,
    /// All slots are taken.
    #[error("the node's table of open files is full")]
    Full,
    /// All records of locks are taken.
    #[error("the node's table of locks is full")]
    NoLocks,
    /// Every name for the deployment's directory is taken.
    #[error("others have taken every name that its directory could have in /dev/shm")]
    NoPlace,
    /// The slot was freed or used again in the meantime.
    #[error("the open file is not in the node's table any more")]
    Stale,
}

impl NodeError {
    /// The number that the program gets.
    pub fn raw_errno(self) -> i32 {
        match self {
            NodeError::System { errno, .. } => errno.raw_os_error(),
            NodeError::Format | NodeError::NoPlace | NodeError::Stuck => libc::EIO,
            NodeError::Full => libc::ENFILE,
            NodeError::NoLocks => libc::ENOLCK,
            NodeError::Stale => libc::EBADF,
        }
    }
}

/// For `map_err`: says what was tried.
pub(crate) fn doing(what: &'static str) -> impl Fn(Errno) -> NodeError {
    move |errno| NodeError::System { what, errno }
}
