//! What whole-system tests share: binaries that are built once, deployments that are taken down even if a
//! test fails, and comparisons of what a program does inside a deployment with what it does on a local
//! directory.
//!
//! Every test has a [`Site`]: a `BIVOUAC_HOME` of its own in a scratch directory. When it is dropped, also by
//! a panic, every deployment in it is taken down and the directory removed.

mod access;
pub mod agents;
mod compare;
pub mod failing;
pub mod forwarding;
mod killed;
pub mod kills;
pub mod library;
pub mod load;
mod machine;
pub mod model;
mod mounted;
mod network;
pub mod paused;
pub mod program;
pub mod ranks;
mod script;
pub mod signalled;
mod site;
pub mod soak;
pub mod staging;
pub mod suites;

pub use access::{accesses, hiding, tool};
pub use bivouac_testing::{
    HANG, can_mount, eventually, is_quick, is_root, skip, skip_part, skip_part_unsupported, skip_unsupported,
    skipped_without_mount, skipped_without_root,
};
pub use compare::{manifest, same_as_local};
pub use killed::Killed;
pub use machine::{Lost, Machine};
pub use mounted::Mounted;
pub use network::{Cut, Network, on_node, on_node_by};
pub use script::{python_in_each_access, python_in_each_access_to, python_says};
pub use site::{Finished, Site, bivouac, children, default_signals, finish, run_dir};
