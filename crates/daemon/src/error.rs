//! Why a daemon does not start.

use bivouac_data::DataError;
use bivouac_meta::OpenError;
use bivouac_node::NodeError;
use bivouac_transport::TransportError;
use std::path::PathBuf;

/// Why a daemon does not take a map, and with the first one does not begin to serve.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The map breaks the rules of maps.
    #[error("the map cannot be used: {0}")]
    Map(&'static str),
    /// Another process has this server's number by the map.
    #[error("the map has another process of this server's number")]
    Replaced,
    /// The metadata in the server's storage.
    #[error(transparent)]
    Meta(#[from] OpenError),
    /// The shards that the map gives to the server cannot be taken over.
    #[error("the server cannot take its part of the metadata over: {0}")]
    Adopt(bivouac_proto::Errno),
    /// The server's storage has no room for checksums, or fails.
    #[error("the checksums of copies cannot be kept: {0}")]
    Sums(#[from] DataError),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A directory or file that it needs cannot be made.
    #[error("cannot make {path}: {source}; make sure that the parent directory exists and is writable")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The directory for the node's shared tables belongs to somebody else.
    #[error("{path} belongs to somebody else: remove it, or choose another deployment name")]
    Foreign {
        /// Which.
        path: PathBuf,
    },
    /// The node's tables.
    #[error("the node's table of open files: {0}")]
    Node(#[from] NodeError),
    /// The storage.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The metadata's logs.
    #[error(transparent)]
    Meta(#[from] bivouac_meta::OpenError),
    /// The sockets.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
