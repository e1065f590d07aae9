//! Small file systems in memory, for storage that is full or read-only, and as a reference.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs, which is unmounted when it is dropped. Needs root.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts one on a directory, which is made if it is not there; `options` as of mount(8).
    pub fn new(at: impl Into<PathBuf>, options: &str) -> Mounted {
        let at = at.into();
        std::fs::create_dir_all(&at).expect("a mount point");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&at).status();
        assert!(status.expect("mount starts").success(), "a tmpfs with {options} on {}", at.display());
        Mounted(at)
    }

    /// Moves a directory into one.
    pub fn instead_of(at: &Path, options: &str) -> Mounted {
        let aside = at.with_extension("aside");
        std::fs::rename(at, &aside).expect("renamed");
        let mounted = Mounted::new(at, options);
        let copied = Command::new("cp").arg("-a").arg(aside.join(".")).arg(at).status();
        assert!(copied.expect("cp starts").success());
        std::fs::remove_dir_all(aside).expect("removed");
        mounted
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
