//! The sub-file store: what one server holds of each file.
//!
//! A server keeps its blocks of a file in one sparse local file, the *sub-file*, at the file's own offsets.
//! Its length is the end of the last byte that the server was given; holes are other servers' blocks, or were
//! never written, and read as zeros. A sub-file that was never made is one of length 0; one that is gone is
//! an error.
//!
//! What this crate promises:
//! - What [`DataStore::write`] returned as written is read by every later read, and only that much was
//!   stored: on a full store, the count and the content agree.
//! - An error of the local file system is an error here, with its errno: nothing is acknowledged that failed.
//! - Operations on one file may run on any number of threads at once. Each is as atomic as the local file
//!   system makes it; truncations of one file exclude each other.
//! - [`DataStore::destroy`] removes what the store made, and nothing else.
//!
//! How: a store spreads over one or several directories (disks). A sub-file lies whole in one of them, chosen
//! by a hash of its inode number, below `sub/` and one of 256 subdirectories that are made up front. Each
//! directory has an identity file, which says to which server it belongs and which position it has in the
//! list. So the directories may later be named in any order, and another server's are refused. Descriptors
//! are kept open in a bounded cache, so that a read or a write of a file in use is one short lock and one
//! system call.
//!
//! What it leaves to others: who may do what, the file's real size, which blocks belong here, and that an
//! inode number is not written to after its removal (it is never reused, so such a write would make a
//! sub-file that nobody removes).
//!
//! - `disk`: one storage directory: opening, identity, tree, removal. `identity` is the file's format.
//! - `inventory`: which sub-files should exist, so that a lost one is distinguished from a hole.
//! - `place`: where in the directories a sub-file lies.
//! - `cache`: the open descriptors.
//! - `file`: one open sub-file.
//! - `store`: the operations. `seek`: looking for data and holes. `undo`: undoing a write.
//! - `probe`: finding out whether the storage works.
//! - `sums`: checksums of sub-files that have copies.
//! - `stripes`: which files have given blocks to other servers.
//! - `relocate`: keeping processes of the node out of a sub-file, and making it another local file.

mod cache;
mod disk;
mod error;
mod file;
mod identity;
mod inventory;
mod place;
mod probe;
mod relocate;
mod seek;
mod store;
mod stripes;
mod sums;
mod suspects;
mod undo;

pub use error::DataError;
pub use file::SubFile;
pub use store::{DataStore, Extent, Space};
pub use stripes::{StripeNote, Striped, Stripes};
pub use sums::{CHUNK, Sum, sum_of};
pub use undo::Wrote;
