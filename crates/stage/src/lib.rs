//! Preload and flush: copying trees between the site's file system and a deployment.
//!
//! A copy walks the source and fills the destination with several threads. Every piece that is written is
//! read back and compared; modes, times, the users' extended attributes, holes, symbolic and hard links,
//! named pipes and sockets are kept. What fails is reported and does not stop the rest. The [`Report`] counts
//! everything, so that the user can check that the copy is complete.
//!
//! [`copy`] is the engine; it sees both sides as a [`tree::Tree`]: [`local`] is the site's file system,
//! [`mount`] the deployment's, through the client core (no library has to be preloaded for it).

mod copy;
mod local;
mod mount;
mod progress;
mod report;
#[cfg(test)]
mod tests;
mod tree;

pub use copy::Options;
pub use report::{Report, StageError};

use bivouac_client::Client;
use local::Local;
use mount::Mount;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Copies `source` of the site's file system to `destination` below the mount (a path relative to it, or
/// absolute beginning with it). Directories are merged; files are replaced. A file goes into `destination` if
/// that is a directory.
pub fn copy_in(
    client: &'static Client,
    source: &Path,
    destination: &[u8],
    options: &Options,
) -> Result<Report, StageError> {
    let destination = below(client, destination);
    copy::copy(&Local, source.as_os_str().as_bytes(), &Mount::new(client), &destination, options)
}

/// Copies `source` below the mount to `destination` on the site's file system, in the same way. An existing
/// file there is replaced only when the new one is complete.
pub fn copy_out(
    client: &'static Client,
    source: &[u8],
    destination: &Path,
    options: &Options,
) -> Result<Report, StageError> {
    let source = below(client, source);
    copy::copy(&Mount::new(client), &source, &Local, destination.as_os_str().as_bytes(), options)
}

/// A path relative to the mount.
fn below(client: &Client, path: &[u8]) -> Vec<u8> {
    let inside = bivouac_client::strip_mount(client.mount(), path).unwrap_or(path);
    let start = inside.iter().position(|&b| b != b'/').unwrap_or(inside.len());
    inside[start..].to_vec()
}
