//! The client core: the one implementation of file operations that all faces (preload library, kernel mount,
//! command line) share.
//!
//! A [`Client`] lives inside somebody else's process. It has no threads and no runtime: every call does its
//! own sending and waiting, over connections that are made lazily, kept in lock-free pools ([`links`]) and
//! not used by the child after a fork. What has to outlive a call is held by the node's agent (sessions) and
//! in the node's table of open descriptions.
//!
//! The way of a call: [`walk`] turns a path into a directory and a last name, with the directories on the way
//! cached ([`paths`]); [`rpc`] sends a request to the server of its shard by the request engine
//! ([`bivouac_transport::engine`]), which repeats it under the same identity until it is answered; [`handle`] reads and writes: inline data of small files ([`inline`]), larger files block by block
//! ([`blocks`]), directly in the local sub-file where the block lies on this node ([`local`]), and in one
//! exchange with all servers concerned where it does not.
//!
//! Only raw system calls are made (rustix), never libc's file functions: inside the preload library those are
//! the faces that call this crate.

mod ahead;
mod blocks;
mod closes;
pub mod error;
mod extents;
mod facts;
mod fork;
mod gather;
mod handle;
mod holes;
pub mod host;
mod inline;
mod layouts;
mod lazy;
mod links;
mod list;
mod local;
mod locks;
mod many;
mod maps;
mod moves;
mod named;
mod names;
mod number;
mod open;
mod opening;
mod own;
mod paths;
mod rpc;
mod session;
mod shortcut;
mod spread;
mod unsynced;
mod walk;

pub use bivouac_node::Environment;
pub use error::{ClientError, Fail};
pub use handle::Handle;
pub use list::Entries;
pub use locks::{KeptBlocks, LockKind};
pub use many::Wanted;
pub use maps::MapRef;
pub use names::StatFs;
pub use number::OpenedFile;
pub use open::is_temporary;
pub use session::Client;
pub use shortcut::{DESCRIBE, MAPS, Shared};
pub use spread::{Holding, Location, Spread};
pub use walk::strip_mount;
