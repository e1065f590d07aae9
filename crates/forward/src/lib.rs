//! I/O nodes: the forwarding of a directory of the site's storage.
//!
//! An I/O node receives reads and writes of many programs for files on the site's storage (the *backend*) and issues
//! fewer and larger ones. The queue decides which requests are issued together, and when; it does no I/O and reads no
//! clock: the caller says what time it is, so that tests control it. The engine has threads that do what it says.
//!
//! - [`request`]: what is known of a request.
//! - [`queue`]: the requests that wait. The queue keeps the order of each process's requests to one file, and merges
//!   neighbours into one [`Batch`]. `gather`: which requests wait for neighbours.
//! - [`schedulers`]: the policies that choose the next request. A policy never sees a request that may not be issued yet,
//!   and never merges; so it can neither reorder nor corrupt anything.
//!   [`spec`]: how users name one, with its settings.
//! - [`dispatch`]: a queue with its scheduler. Dispatchers take batches from it and report when they are done.
//! - [`engine`]: the dispatchers. Requests go in with their buffers and come back with what the backend said.
//! - [`backend`]: files of the backend, and what a batch does with them.
//!
//! What is not a read or write is carried out as it comes:
//!
//! - [`io_node`]: requests of clients, and what comes of them.
//! - `names`: names, attributes and opens. `tree`: what clients know by which number; nothing outside the forwarded directory
//!   is ever reached; `journal`: the same for an I/O node that is started again. `files`: what is open; `resident`: what of it is in memory; `special`: what goes past
//!   memory, or to stable storage at once.
//!   [`outbox`]: where it is, for others to know, in case this I/O node dies; [`entrusted`]: what others have told. `locks`: who has locked what. `kernel`: what the backend's file system says,
//!   in the words of the protocol.

pub mod backend;
mod brief;
pub mod dispatch;
pub mod engine;
pub mod entrusted;
mod files;
mod gather;
pub mod io_node;
mod journal;
mod kernel;
mod locks;
mod names;
pub mod outbox;
mod pace;
mod queue;
mod recent;
pub mod request;
mod resident;
pub mod schedulers;
pub mod spec;
mod special;
mod stale;
mod tree;
mod turns;

pub use backend::File;
pub use dispatch::{Counts, Dispatch, Next};
pub use engine::{Bounds, Engine, NOT_ISSUED, Transfer};
pub use entrusted::Entrusted;
pub use io_node::{IoNode, Now, Options};
pub use outbox::Outbox;
pub use queue::{Batch, Limits, Queue};
pub use request::{Asked, By, Kind, Number};
pub use resident::Resident;
pub use schedulers::{Choice, Scheduler, Settings};
pub use spec::{Spec, SpecError};

#[cfg(test)]
mod tests;
