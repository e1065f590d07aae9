//! The process's limit of open descriptors.

use crate::error::TransportError;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the number of descriptors that this process may open to its hard limit, and returns it (`u64::MAX`: no
/// limit). For daemons, once, at their start.
pub fn raise_descriptor_limit() -> Result<u64, TransportError> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current.unwrap_or(u64::MAX))
}
