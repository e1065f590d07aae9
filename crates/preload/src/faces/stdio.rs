//! Streams: `fopen` and its relatives, and `stdin`, `stdout`, `stderr` on files of the mount.
//!
//! The C library's streams make their system calls inside the library, where no symbol can be replaced. But
//! it has a kind of stream that asks others for the bytes: `fopencookie`. So a stream on one of our files is
//! such a stream, whose four functions call `vfs` with the descriptor's number. Everything above (buffering,
//! `printf`, `getline`, flushing at exit) is the C library's own code, and so behaves as ever.
//!
//! # What a cookie stream lacks
//! - A **descriptor number**: `fileno` would say EBADF. We write the number into the stream ([`stream`]).
//! - A **fixed identity**: `freopen` has to keep the pointer, as programs ignore what it returns. [`reopen`]
//!   turns the streams in place.
//! - **Wide characters**: the C library fixes the orientation of a cookie stream to bytes. [`wide`] replaces
//!   the wide functions for our streams, by way of the byte functions.
//! - **`stdin`, `stdout`, `stderr`** exist before anybody opens anything. We provide those objects, with room
//!   for becoming cookie streams while descriptor 0, 1 or 2 is a file of the mount ([`standard`]).
//!
//! `dprintf` has no stream and is done in [`direct`].
//!
//! # Limits
//! `fwscanf` and its relatives fail on our streams, and `,ccs=` in a mode is ignored (the locale's encoding
//! is used). After `dup2` of a file of the mount onto the descriptor of another stream of the C library than
//! the three, that stream fails (EBADF).

pub mod direct;
pub mod flush;
pub mod mode;
pub mod open;
pub mod reopen;
pub mod standard;
pub mod stream;
pub mod wide;

pub use flush::flush_ours;
pub use standard::{at_start, begin, std_descriptor_changed};
