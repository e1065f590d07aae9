//! The client core: the one implementation of file operations that all faces (preload library, kernel mount,
//! command line) share.
//!
//! A [`Client`] lives inside somebody else's process. It has no threads and no runtime: every call does its
//! own sending and waiting, over connections that are made lazily, kept in lock-free pools (`session::links`) and
//! not used by the child after a fork. What has to outlive a call is held by the node's agent (sessions) and
//! in the node's table of open descriptions.
//!
//! It is built in rooms, one above the other. Each owns the one below it and is reached from above only; none knows one
//! above it:
//!
//! | room | what it is for |
//! |---|---|
//! | `memory` | what the process remembers: paths, facts, moves that it has heard of, locks that it may hold. Sends nothing |
//! | `session` | who the process is, and whom it can reach: key, user, agent, map, connections. Owns the memory, and begins anew after a fork |
//! | `requests` | sends requests and interprets their answers; says what of the memory is still true |
//! | `namespace` | walks paths, looks up and lists names, reads and sets attributes, makes, moves and removes names |
//! | `data` | reads and writes the contents of open files |
//!
//! Above them is the face of this crate: [`Client`] and [`Handle`], and how descriptions are opened, closed and locked.
//!
//! The way of a call: `namespace::walk` turns a path into a directory and a last name, with the directories on the way
//! cached (`memory::paths`); `requests` sends a request to the server of its shard by the request engine
//! ([`bivouac_transport::engine`]), which repeats it under the same identity until it is answered; `data` reads and writes:
//! inline data of small files (`data::inline`), larger files block by block (`data::blocks`), directly in the local sub-file
//! where the block lies on this node (`data::local`), and in one exchange with all servers concerned where it does not.
//!
//! Only raw system calls are made (rustix), never libc's file functions: inside the preload library those are
//! the faces that call this crate.

mod client;
mod closing;
mod data;
pub mod error;
mod handle;
pub mod host;
mod locks;
mod many;
mod memory;
mod namespace;
mod open;
mod opening;
mod requests;
mod session;
mod shortcut;
mod spare;
mod spread;

pub use bivouac_node::Environment;
pub use client::Client;
pub use error::{ClientError, Fail};
pub use handle::Handle;
pub use locks::{KeptBlocks, LockKind};
pub use many::Wanted;
pub use memory::listing::Entries;
pub use namespace::{Changed, StatFs, Target};
pub use open::{OpenedFile, is_temporary};
pub use session::{MapRef, strip_mount};
pub use shortcut::{DESCRIBE, MAPS, Shared};
pub use spread::{Holding, Location, Spread};
