//! Measuring storages: how fast a directory's file system is at transfers, at floods of small files, and at
//! metadata.
//!
//! The processes are those of explorations, on nodes of a deployment or as ordinary processes of this
//! machine. One of them makes a directory below the storage's, in which everything happens; it is removed in
//! the end, and also if the command dies, because processes without orders remove it ([`process`]). All of
//! them are started at once, and those that a measurement does not take are idle in it ([`protocol::Group`]).
//!
//! A measurement has steps, and all processes have done one before any begins the next: so before what is
//! measured, all have opened their files and wait. Time is from the first one's begin to the last one's end.
//! What is read was written by another process, on another node if there is one, and is compared with what
//! that wrote there.
//!
//! - [`plan`]: which measurements there are, in which order, and what room they take. [`results`]: the file
//!   of results.
//! - [`measure`]: the part in the command. [`protocol`]: what it tells the processes.
//! - [`process`]: a process, [`transfer`] its transfers, [`flood`] its small files, [`metadata`] its other
//!   operations.

pub mod flood;
pub mod measure;
pub mod metadata;
pub mod plan;
pub mod process;
pub mod protocol;
pub mod results;
pub mod transfer;

#[cfg(test)]
mod tests;
