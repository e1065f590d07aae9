//! Connections: how requests get from a client to a server and answers back.
//!
//! The client half ([`Connection`], [`exchange`]) lives inside other people's processes. It has no threads,
//! makes raw system calls only (never through a symbol of libc, which the preload library may have replaced),
//! prints nothing, raises no SIGPIPE. A call that ends early leaves a connection unusable rather than with
//! half a message in it.
//!
//! The server half ([`Server`], [`Service`], [`Call`]) gives a thread to each connection that is busy,
//! and parks those that are idle in one epoll, where they cost neither a thread nor a buffer.
//!
//! - [`endpoint`]: where a daemon listens.
//! - [`connection`]: one request, one answer; [`exchange()`]: several at once, on several connections.
//! - [`engine`]: where requests go and what happens when they fail; the table of time budgets.
//! - [`server`]: accepting, authenticating, serving.
//! - [`Refusals`]: who takes no connections, and since when.
//!
//! Both halves prove to each other that they know the deployment's key ([`bivouac_proto::auth`]) before
//! anything else. What requests mean is left to the callers.

pub mod connection;
mod crowd;
pub mod endpoint;
pub mod engine;
mod error;
mod exchange;
mod gather;
mod handshake;
mod limits;
mod progress;
mod refusals;
pub mod server;
mod socket;
mod spin;

pub use bivouac_node::Fd;
pub use connection::{Answer, ConnectOptions, Connection, Outgoing};
pub use endpoint::Endpoint;
pub use error::TransportError;
pub use exchange::{Exchange, exchange};
pub use limits::raise_descriptor_limit;
pub use progress::Received;
pub use refusals::{Peer, Refusals};
pub use server::{Call, Parting, PeerInfo, Responder, Server, ServerOptions, Service};
pub use spin::Spin;
