//! The kernel mount: a FUSE server over the client core.
//!
//! The kernel turns what any program does below the mount point into requests on inode numbers, and this
//! crate answers them. The numbers are the client core's own 64-bit inode numbers: those of the deployment,
//! which are never reused and which every server understands, or those of the directory that is forwarded, which
//! every I/O node understands. So the mount remembers nothing between a lookup and the use of its result: it has
//! no table of inodes, and `FORGET` needs no work.
//!
//! **No stale data.** The kernel uses names and attributes only for the call that asked for them (both
//! time-outs are zero). File data goes past the kernel's page cache (`FOPEN_DIRECT_IO`), which only mappings
//! use. So programs see what other nodes have written, as `docs/semantics.md` promises. Where the kernel
//! cannot map files that are read in this way (before Linux 6.6), data is cached, and dropped whenever size
//! or time of the file have changed at a read.
//!
//! **Permissions** are checked by the kernel (`default_permissions`), with the caller's credentials and fresh
//! attributes. If another user than the server's own makes a file, the server changes the file's owner to
//! that user at once.
//!
//! **Open files** are registered like those of every other process, in slots of the node's table that belong
//! to this process. If it dies, the node's agent releases them.
//!
//! **Threads.** Each has a clone of `/dev/fuse` and does one request at a time from beginning to end. Only a
//! lock that has to be waited for gets a thread of its own, so that waiting never keeps other requests from
//! being served; an interruption ends the wait.
//!
//! - [`abi`]: the kernel's messages. [`device`]: `/dev/fuse`, mounting, unmounting.
//! - [`tree`]: which of the two is mounted. [`groups`]: whose the kernel is told that files are.
//! - [`session`]: the conversation: beginning, threads, end. [`awake`]: waiting for the next request.
//! - [`shortcuts`]: files whose data goes past the mount. [`passthrough`]: files that the kernel reads and
//!   writes itself.
//! - [`pages`]: writes beside pages that the kernel has in its cache.
//! - [`writers`]: prevents that late reports of earlier writes change an mtime that was set explicitly.
//! - [`face`]: what all operations share, and which one a request is; [`names`], [`attrs`], [`files`],
//!   [`dirs`], [`locks`] (with [`lockers`]), [`xattrs`]: the families of operations.
//!

mod abi;
mod attrs;
mod awake;
mod device;
mod dirs;
pub mod error;
mod face;
mod files;
mod groups;
mod lockers;
mod locks;
mod names;
mod pages;
mod passthrough;
mod session;
mod shortcuts;
mod tree;
mod writers;
mod xattrs;

pub use device::{Device, Mounted, take_away, take_away_dead, unmount};
pub use error::FuseError;
pub use session::{Terms, serve};
pub use tree::Tree;
