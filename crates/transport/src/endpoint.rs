//! Where a daemon listens, and its written form.

use crate::socket;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// Where a daemon listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// For clients of any node. Port 0 lets the kernel choose when listening.
    Tcp(SocketAddr),
    /// An abstract Unix socket, at most 107 bytes: for clients of the same network namespace, which is the
    /// node. It leaves no file behind and needs no directory.
    Unix(String),
    /// Several such names of one daemon, in order. The daemon listens at the first one that no other user has
    /// taken. A client connects to the first one at which a process of this user, or of the superuser,
    /// listens.
    Node(Vec<String>),
}

impl Endpoint {
    /// Whether it is reached by a Unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        !matches!(self, Endpoint::Tcp(_))
    }

    /// Whether connections are accepted there. The kernel does that for a living process, however busy the
    /// process is.
    pub fn takes_connections(&self, within: Duration) -> bool {
        socket::connect(self, socket::now().saturating_add(within)).is_ok()
    }

    /// Whether no machine answers there. (One on which nobody listens refuses connections.)
    pub fn is_unreachable(&self, within: Duration) -> bool {
        let connected = socket::connect(self, socket::now().saturating_add(within));
        connected.is_err_and(|error| error.is_of_route())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Unix(name) => write!(f, "@{name}"),
            Endpoint::Node(names) => write!(f, "@{}", names.first().map_or("", String::as_str)),
        }
    }
}

/// The text is neither `@name` nor `address:port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an endpoint: expected @name, or an IP address with a port")]
pub struct NotAnEndpoint;

impl FromStr for Endpoint {
    type Err = NotAnEndpoint;

    /// The opposite of `to_string`.
    fn from_str(text: &str) -> Result<Endpoint, NotAnEndpoint> {
        match text.strip_prefix('@') {
            Some("") => Err(NotAnEndpoint),
            Some(name) => Ok(Endpoint::Unix(name.to_owned())),
            None => text.parse().map(Endpoint::Tcp).map_err(|_| NotAnEndpoint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_taken_also_for_a_process_that_never_answers() {
        let name = Endpoint::Unix(format!("bivouac-silent-{}", std::process::id()));
        for endpoint in [name, Endpoint::Tcp("127.0.0.1:0".parse().unwrap())] {
            let (listener, bound) = socket::listen(&endpoint).unwrap();
            assert!(bound.takes_connections(Duration::from_secs(5)), "{bound}");
            drop(listener);
            assert!(!bound.takes_connections(Duration::from_secs(5)), "{bound}");
        }
    }

    #[test]
    fn written_form_reads_back() {
        for text in ["@bivouac-1/agent", "127.0.0.1:7000", "[::1]:9"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["", "@", "node1", "node1:7000", "127.0.0.1"] {
            assert_eq!(text.parse::<Endpoint>(), Err(NotAnEndpoint));
        }
    }
}
