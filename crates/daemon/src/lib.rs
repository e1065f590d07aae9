//! The daemon: agent, server and controller of one node.

pub mod config;

pub use config::{DaemonConfig, ServerConfig};
