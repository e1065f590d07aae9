//! What can go wrong: [`Fail`] for calls (what a program sees), [`ClientError`] for the beginning.

use bivouac_node::NodeError;
use bivouac_node::names::NAME_MAX;
use bivouac_proto::Errno;
use bivouac_transport::TransportError;

/// How a call on a path fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fail {
    /// The program gets this error.
    Errno(Errno),
    /// A symbolic link or `..` led out of the mount: the absolute path to give to the kernel instead.
    Outside(Vec<u8>),
}

impl ClientError {
    /// The error for callers that take numbers.
    pub fn errno(&self) -> Errno {
        match self {
            ClientError::Name { .. } => Errno::INVAL,
            ClientError::Unnamed | ClientError::Unknown { .. } => Errno::NOENT,
            ClientError::Key { .. } | ClientError::Foreign { .. } => Errno::ACCESS,
            ClientError::Closed { .. } => Errno::BUSY,
            ClientError::Agent { .. } | ClientError::Answer { .. } | ClientError::Node(_) => Errno::IO,
        }
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Fail {
        Fail::Errno(errno)
    }
}

impl Fail {
    /// The error for callers that cannot follow a path out of the mount.
    pub fn errno(self) -> Errno {
        match self {
            Fail::Errno(errno) => errno,
            Fail::Outside(_) => Errno::XDEV,
        }
    }
}

/// Why a client could not begin.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No deployment can have this name.
    #[error(
        "'{name}' cannot be the name of a deployment: it has up to {NAME_MAX} letters, digits, '-', '_' and '.'"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// The environment names no deployment.
    #[error("no deployment is named: give a name, or run the program with `bivouac run` or `bivouac exec`")]
    Unnamed,
    /// This user has no such deployment on this node.
    #[error("no deployment '{name}' of this user is on this node; see `bivouac status`")]
    Unknown {
        /// The deployment.
        name: String,
    },
    /// The key file cannot be read or does not hold a key.
    #[error("the key {path} cannot be used: {why}; is the deployment still running? See `bivouac status`")]
    Key {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The key is there, but not for this user.
    #[error(
        "the deployment is another user's, whose key {path} this process may not read; other users' programs need a mount: see \
         `bivouac mount`"
    )]
    Foreign {
        /// The key's file.
        path: String,
    },
    /// No agent answers on this node.
    #[error(
        "no Bivouac daemon of deployment '{name}' answers on this node: {source}; see `bivouac status {name}`"
    )]
    Agent {
        /// The deployment.
        name: String,
        /// What happened.
        source: TransportError,
    },
    /// The agent takes no program.
    #[error(
        "the deployment '{name}' takes no programs at this moment: it is being rebuilt through the site's file system; wait until that \
         is complete, or go on with it if it was interrupted: `bivouac rebuild {name} --rebuild backend`"
    )]
    Closed {
        /// The deployment.
        name: String,
    },
    /// The agent's answer makes no sense.
    #[error(
        "the agent of deployment '{name}' gave an unexpected answer; install the same Bivouac on all nodes"
    )]
    Answer {
        /// The deployment.
        name: String,
    },
    /// The node's shared table cannot be used.
    #[error("the node's table of open files cannot be used: {0}")]
    Node(#[from] NodeError),
}
