//! The daemon: one process on each node of the job, in up to three roles.
//!
//! - *Agent* ([`agent`]): owns the sessions of the node's processes, sees them die, and releases what they
//!   held.
//! - *Server* ([`storage`]): serves the metadata of its shards and the blocks in its storage.
//! - *Controller* ([`controller`]): keeps the map, watches the servers, ends the deployment. One of the agents has
//!   it; others elect one of them when it dies.
//!
//! [`start`] binds the sockets and answers; the deployment begins when the first map is installed. [`daemon`]
//! is the service behind all sockets: it hands each request to the service that is registered for it ([`services`]). [`links`] are the connections to other daemons, and [`around`] what a metadata store asks of them; [`run_dir`] is what the node's
//! processes share on disk; [`tether`] makes a daemon end when the `run` that made it has ended; [`wards`] are the
//! servers that an agent looks after, and starts again when they die; [`vigil`] makes the version page invalid when its server dies.

pub mod agent;
mod around;
pub mod config;
pub mod controller;
mod copies;
mod daemon;
mod error;
mod fetching;
mod follower;
mod forwarding;
mod heritage;
mod lease;
mod links;
mod lookout;
mod order;
mod reach;
mod rebuilding;
mod restriping;
mod run_dir;
mod running;
mod serve;
mod services;
mod standing;
mod storage;
mod tether;
mod verify;
mod vigil;
mod wards;

pub use config::{DaemonConfig, ServerConfig};
pub use controller::ControllerError;
pub use controller::group::VOTER_FILES;
pub use daemon::End;
pub use error::DaemonError;
pub use running::{Running, start};
pub use wards::View;
