//! The explorer: how fast programs with a certain access pattern are with different numbers of I/O nodes.
//!
//! After FORGE (Bez et al., "Towards On-Demand I/O Forwarding in HPC Platforms"): a *pattern* says how many
//! processes do which requests; an *exploration* measures each pattern with each number of I/O nodes, several
//! times, in random order. The processes are ordinary programs inside a deployment. Every byte that they read is
//! checked, and what they have written is read back by others.
//!
//! - [`patterns`]: what is measured, and its file. [`paper`]: the patterns of that paper.
//! - [`sequence`]: in which order. [`results`]: the file of results, which an interrupted exploration goes on with.
//! - [`scheme`]: where each process's requests are in which file. [`content`]: what has to stand there.
//! - [`load`]: what one process does, [`worker`]: on whose orders. [`node`]: the part on each node, which starts
//!   the processes there and passes orders and answers on. [`protocol`]: what is said.
//! - [`arbitrate`]: sharing I/O nodes among jobs by what was measured of them.
//! - [`run`]: the part in the command: has all nodes go through one pattern, phase by phase.
//! - [`characterize`]: measures storages with the same processes and nodes: transfers, floods, metadata.
//!
//! How nodes are reached, how programs get into a deployment, and how the number of I/O nodes is changed is the
//! business of whoever uses this crate.

pub mod arbitrate;
pub mod characterize;
pub mod content;
pub mod error;
pub mod load;
pub mod node;
pub mod paper;
pub mod patterns;
pub mod protocol;
mod random;
pub mod results;
pub mod run;
pub mod scheme;
pub mod sequence;
pub mod worker;

pub use error::ExploreError;
pub use patterns::{Pattern, Phase};
