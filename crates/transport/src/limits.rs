//! The process's limit of open descriptors.

use crate::error::TransportError;
use rustix::fd::RawFd;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the number of descriptors that this process may open to its hard limit, and returns it (`u64::MAX`:
/// no limit). For daemons, once, at their start.
pub fn raise_descriptor_limit() -> Result<u64, TransportError> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current.unwrap_or(u64::MAX))
}

/// Connections may only have descriptors below this number. The others are for the data store, which keeps up
/// to a quarter of all descriptors for its files, and for logs, snapshots and descriptors that are passed to
/// clients.
pub(crate) fn connection_ceiling() -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let reserved = (limit / 4).min(65_536) + (limit / 16).min(1024);
    RawFd::try_from(limit - reserved).unwrap_or(RawFd::MAX)
}
