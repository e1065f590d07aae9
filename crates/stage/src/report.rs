//! What a copy did.

use std::path::PathBuf;

/// What a copy did. The copy is complete exactly if nothing [`failed`](Report::failed).
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Regular files copied and verified (further hard links to one included).
    pub files: u64,
    /// Directories made or found.
    pub directories: u64,
    /// Symbolic links made.
    pub symlinks: u64,
    /// Named pipes, sockets and devices made.
    pub special: u64,
    /// Bytes copied and verified, without holes.
    pub bytes: u64,
    /// What the destination cannot hold, and why: special files and extended attributes, but no data.
    pub left_out: Vec<(PathBuf, String)>,
    /// What could not be copied, and why.
    pub failed: Vec<(PathBuf, String)>,
    /// How long it took, seconds.
    pub seconds: f64,
}

impl Report {
    /// Whether everything was copied.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty()
    }
}

/// Why a copy did not even begin.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The source is not there, or cannot be looked at.
    #[error("cannot copy {path}: {source}")]
    Source {
        /// The source.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The destination cannot be made.
    #[error("cannot copy to {path}: {source}")]
    Destination {
        /// The destination.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
