//! What can go wrong with a connection, and the errno that a program gets for it.

use crate::endpoint::Endpoint;
use bivouac_proto::Errno;
use bivouac_proto::header::{HeaderError, VERSION};
use rustix::io::Errno as Sys;

/// Why a connection could not be made or used. After any of them but [`TransportError::TooLong`] the
/// connection is broken: make a new one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Nobody listens there.
    #[error("connection refused: no daemon listens there")]
    Refused,
    /// There is no route to the peer.
    #[error("unreachable: {0}")]
    Unreachable(Errno),
    /// The peer closed the connection, or died. The request may or may not have been served.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer was silent for too long. The request may or may not have been served.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer speaks another version of the protocol.
    #[error(
        "the peer speaks protocol version {theirs}, this program {VERSION}: install the same Bivouac on all nodes"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// The peer did not prove that it knows the key, or did not accept our proof.
    #[error("authentication failed: wrong key, another deployment, or a role that the daemon does not serve")]
    Authentication,
    /// The peer sent what it must not send.
    #[error("protocol violation: {0}")]
    Protocol(&'static str),
    /// The request itself exceeds what a message can carry. Nothing was sent; the connection is as it was.
    #[error("message too long: body {body}, payload {payload} bytes")]
    TooLong {
        /// Bytes of the body.
        body: usize,
        /// Bytes of the payload.
        payload: usize,
    },
    /// A server cannot listen.
    #[error("cannot listen on {endpoint}: {errno}")]
    Listen {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        errno: Errno,
    },
    /// A system call failed.
    #[error("{0}")]
    System(Errno),
}

impl TransportError {
    /// Whether the way to the peer is cut, as far as one can see: no answer from its machine, or no route to it. (The
    /// kernel's answers for routes and rules that lead nowhere are among these; that this process has no descriptors
    /// left, for example, is not.)
    pub fn is_of_route(&self) -> bool {
        match self {
            TransportError::TimedOut | TransportError::Unreachable(_) => true,
            TransportError::System(errno) => matches!(*errno, Errno::INVAL | Errno::ACCESS | Errno::PERM),
            _ => false,
        }
    }

    /// What the program gets. A peer that cannot be used is an I/O error, whatever the reason.
    pub fn errno(&self) -> Errno {
        match self {
            TransportError::Refused
            | TransportError::Unreachable(_)
            | TransportError::Closed
            | TransportError::TimedOut => Errno::IO,
            TransportError::Version { .. } | TransportError::Protocol(_) => Errno::PROTO,
            TransportError::Authentication => Errno::ACCESS,
            TransportError::TooLong { .. } => Errno::INVAL,
            TransportError::Listen { errno, .. } | TransportError::System(errno) => *errno,
        }
    }
}

/// The wire's form of a system error.
pub(crate) fn errno_of(error: Sys) -> Errno {
    Errno(u16::try_from(error.raw_os_error()).unwrap_or(Errno::IO.0))
}

impl From<Sys> for TransportError {
    fn from(error: Sys) -> TransportError {
        match error {
            Sys::CONNREFUSED => TransportError::Refused,
            Sys::HOSTUNREACH | Sys::NETUNREACH | Sys::HOSTDOWN | Sys::NETDOWN => {
                TransportError::Unreachable(errno_of(error))
            }
            Sys::PIPE | Sys::CONNRESET | Sys::CONNABORTED | Sys::NOTCONN => TransportError::Closed,
            // A blocking call returns EAGAIN when its timeout has expired.
            Sys::TIMEDOUT | Sys::AGAIN => TransportError::TimedOut,
            other => TransportError::System(errno_of(other)),
        }
    }
}

impl From<HeaderError> for TransportError {
    fn from(error: HeaderError) -> TransportError {
        match error {
            HeaderError::Version { theirs } => TransportError::Version { theirs },
            HeaderError::Magic(_) => TransportError::Protocol("not a Bivouac peer"),
            HeaderError::Kind(_) => TransportError::Protocol("unknown message kind"),
            HeaderError::Length { .. } => TransportError::Protocol("message longer than allowed"),
        }
    }
}
