//! A load generator for file systems: floods of files, metadata rates, small and large transfers.
//!
//! It measures whatever a directory lies on with the ordinary calls of the C library, so that the same
//! generator measures memory, Bivouac through the preload library, and a kernel mount. It promises that all
//! processes begin each phase together, that the same plan does the same calls in the same order, that every
//! failed operation is counted and named, and that what it made is gone at the end.
//!
//! - [`plan`]: what is to be done. [`ops`]: each operation. [`histogram`]: how long operations took.
//! - [`worker`]: one process of the load. [`coordinator`]: starts the workers, and makes them begin at the
//!   same time.
//! - [`report`]: the figures. [`cpu`]: what they cost.
//! - [`interruption`]: signals that end a phase; the explorer's processes note them in the same way.
//! - [`null`]: round trips of empty requests: the least that a request can cost.
//!
//! Workers are processes, started from this very program, that talk to the coordinator through standard input
//! and output, one line of JSON for each message. So they can be started anywhere by anything that passes
//! these two on (`ssh`, `ip netns exec`). What the figures are compared with is left to whoever reads them.

pub mod coordinator;
pub mod cpu;
pub mod error;
pub mod histogram;
pub mod interruption;
pub mod null;
pub mod ops;
pub mod plan;
pub mod report;
pub mod worker;

pub use error::BenchError;
pub use plan::{Op, Plan};
