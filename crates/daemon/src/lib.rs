//! The daemon: agent, server and controller of one node.

pub mod config;
pub mod controller;

pub use config::{DaemonConfig, ServerConfig};
pub use controller::{ControlSession, Controller, ControllerConfig, ControllerError};
