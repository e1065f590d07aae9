//! Why a mount could not be made or served.

use std::path::PathBuf;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// `/dev/fuse` cannot be used.
    #[error("cannot open /dev/fuse: {0}")]
    Device(rustix::io::Errno),
    /// The kernel refuses the mount.
    #[error("cannot mount at {}: {cause}", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        cause: rustix::io::Errno,
    },
    /// Neither may this process mount, nor does fusermount3 do it.
    #[error("cannot mount at {}: only root may, or fusermount3 for others, and that says: {said}", path.display())]
    Helper {
        /// Where.
        path: PathBuf,
        /// What the helper said.
        said: String,
    },
    /// The kernel is too old.
    #[error("this kernel's FUSE protocol {major}.{minor} is too old: Linux 4.20 is needed")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// A system call failed.
    #[error("cannot {doing}: {cause}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        cause: rustix::io::Errno,
    },
}

impl FuseError {
    pub(crate) fn system(doing: &'static str) -> impl Fn(rustix::io::Errno) -> FuseError {
        move |cause| FuseError::System { doing, cause }
    }
}
