//! What the processes of one node share.
//!
//! A program that uses the file system is an ordinary process, and what belongs to its open files has to
//! outlive it: a shell opens a file, forks, and exits while its child still writes. So the *open file
//! descriptions* (inode, flags, offset) live in a table in shared memory, made by the node's agent, which
//! hands it to every client, and each description is tied to a real kernel descriptor, a *placeholder*, which
//! the kernel itself hands on through `dup`, `fork`, `exec` and sockets. This crate is that table, and the
//! names by which processes of a node find each other.
//!
//! # Placeholders
//! A placeholder is a kernel descriptor of an *anchor*: an empty directory in the node's directory. Two
//! things that the kernel keeps for each open file description make it ours:
//! - its **file offset** is set to a magic number plus the slot's index, so that whoever holds a duplicate,
//!   inherited or received descriptor can tell which slot it stands for ([`OpenTable::identify`]);
//! - it holds an **OFD read lock** on the byte `index` of its anchor. The kernel drops that lock exactly when
//!   the last descriptor of the description is closed, in whatever process and for whatever reason, SIGKILL
//!   included. So whether a slot is still in use is asked of the kernel ([`OpenTable::held`]), and nobody
//!   counts forks.
//!
//! Anchors are directories so that a program that does not know Bivouac gets EISDIR or EBADF from a
//! placeholder: what it tries to write fails rather than disappears. There are 256 of them, so that each
//! one's list of locks stays short.
//!
//! # Parts
//! - [`names`]: directories, socket names, environment variables.
//! - [`place`]: where a deployment's directory is on this machine.
//! - [`file`]: reading files that somebody else may have named.
//! - [`table`]: [`OpenTable`], slots being allocated, retired and freed.
//! - [`slot`]: [`Slot`], one open file description.
//! - [`locks`]: what the processes have locked, for servers that were restarted.
//! - `entered`: which threads change data past a kernel mount.
//! - [`anchor`]: placeholders and the questions that the kernel answers about them.
//! - [`offset`]: the lock on a slot's offset, which survives the death of its owner.
//! - `owner`: how a process of the node is named in shared memory, whatever PID namespace it is in.
//! - `boot`: which start of the machine this is.
//! - `absence`: since when a server is not up.
//! - [`process`]: who we are (cached, safe across fork) and whether another process is alive.
//! - [`release`]: what a client or the agent tells a server when a description is gone.
//! - `memory`: shared memory whose length nobody can change.
//! - [`fd`]: descriptors that are closed without libc.
//! - [`versions`]: [`VersionPage`], by which a process sees whether what it knows of a server's metadata is
//!   still true.
//! - [`fences`]: [`FencePage`], by which a server stops direct accesses to its sub-files, and which counts
//!   them.
//! - [`bypass`]: programs that the preload library does not reach.
//! - [`raw`]: system calls that do not go through libc.
//!
//! All of it runs inside other people's programs: no threads, no calls of libc's file functions, no panics.

mod absence;
pub mod anchor;
mod boot;
mod by_server;
pub mod bypass;
mod entered;
pub mod error;
pub mod fd;
pub mod fences;
pub mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzzing;
pub mod locks;
mod memory;
pub mod names;
pub mod offset;
mod owner;
pub mod place;
pub mod process;
pub mod raw;
pub mod release;
pub mod slot;
pub mod table;
pub mod versions;

pub use absence::{Absence, Absences};
pub use boot::Boot;
pub use by_server::ByServer;
pub use entered::Entered;
pub use error::NodeError;
pub use fd::Fd;
pub use fences::{FencePage, Fences, FencesOf};
pub use locks::{LockId, Noted, NotedBy};
pub use names::{CATCH_VARIABLE, Environment, agent_sockets, key_path, node_dir, server_sockets};
pub use offset::OffsetGuard;
pub use slot::Slot;
pub use table::{OpenTable, SlotId, TableOf};
pub use versions::VersionPage;
