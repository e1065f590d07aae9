//! The metadata of one server: names, inodes, small files, opens, locks, and the operations on them.
//!
//! A server holds some of the deployment's shards ([`bivouac_layout::namespace`]). A shard owns everything
//! that belongs to it, in memory, as plain trees; a write-ahead log makes it durable. What an operation needs
//! of other servers it asks through [`Outside`], so that a cluster of stores can run in one process and be
//! broken there at will.
//!
//! - [`MetaStore`]: the interface: open, adopt, serve, close. `serve`: which request is which operation; `answers`: each
//!   is carried out once.
//! - `partition`, `journal`, `log`: locking and logging. 64 log partitions, each a mutex over its shards and one
//!   log file. `mark`: how long each log is known to have been, by which a truncated log is distinguished from a
//!   whole one. `compaction`: long logs are replaced by snapshots, beside the operations.
//! - `shard`, `inode`: what is in memory; `entries`, `inodes` and `runs`: how it is packed so as to need
//!   little memory. `mutation`: the one way in which it changes. `draft`: changes in the making.
//! - `names`, `listing`, `attrs`, `access`: entries and attributes, one shard at a time.
//! - `layouts`: how new files are to be spread, by directory.
//! - `opens`, `locks`, `locking`: files in use, their sizes, their locks.
//! - `inline`, `spill`, `append`, `truncate`: their data, as far as it passes through here; `steps`: what
//!   these have in common.
//! - `intents`, `coordinate`, `rename`, `split`: operations over several shards and servers.
//! - `announce`, `moves`: what other servers and clients have to learn of changed directories.
//! - `stream`, `shipping`, `copying`, `takeover`: shards with copies on other servers. `handover`: shards that move.
//! - `holders`, `placed`: which servers have blocks of a file, and which files have blocks on a server.
//! - `verify`: what is stored is compared with memory, and with copies.
//! - `keeper`, `teller`: work in the background; `grace`, `resumption`: what comes first after a start.
//!
//! **How a change happens.** Under its partition's lock, an operation looks, drafts a batch of changes, and
//! commits it: the batch is appended to the log as one checksummed record and then applied to memory. A batch
//! that cannot be logged changes nothing. It is acknowledged after write(2): it survives the death of the
//! process. `Sync` makes it survive the loss of power.
//!
//! **Locks.** A thread never holds the locks of two partitions, and none while it asks another server. What
//! has to be held longer (an intent's keys, a file that is being truncated) is marked in memory, and
//! operations that need it wait on the partition's condition variable, up to a time limit.

mod access;
mod announce;
mod answers;
mod append;
mod attrs;
mod away;
mod breaking;
mod compaction;
mod coordinate;
mod copying;
mod draft;
mod entries;
mod error;
mod fetch;
mod fetches;
mod file;
mod find;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzzing;
mod grace;
mod handover;
mod holders;
mod inline;
mod inode;
mod inodes;
mod intents;
mod journal;
mod keeper;
mod layouts;
mod lazy;
mod listing;
mod locking;
mod locks;
mod log;
mod mark;
mod moves;
mod mutation;
mod names;
mod opens;
mod outside;
mod partition;
mod placed;
mod rename;
mod restripe;
mod resumption;
mod runs;
mod serve;
mod shard;
mod shipping;
pub mod source;
mod spill;
mod split;
mod steps;
mod store;
mod stream;
mod takeover;
mod teller;
mod truncate;
mod verify;

pub use error::OpenError;
pub use outside::{Observer, Outside, Standing};
pub use restripe::{Restriped, ToMove};
pub use store::{Caller, Counts, MetaStore, Options, Replayed, make_directory};
pub use verify::{ShardsCompared, StoredFile};
