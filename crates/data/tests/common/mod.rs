//! Places to store in: on disk, in memory, and small file systems of our own.

#![allow(dead_code)] // each test binary uses a part of it

use bivouac_data::DataStore;
use bivouac_layout::ServerId;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The deployment of all tests.
pub const DEPLOYMENT: u64 = 0xb170;

/// A directory on disk and one in memory (where there is `/dev/shm`).
pub fn places() -> Vec<TempDir> {
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    if memory.is_none() {
        bivouac_testing::skip_part("there is no /dev/shm that can be written");
    }
    std::iter::once(tempfile::tempdir().unwrap()).chain(memory).collect()
}

/// A store over one directory. One that was just closed may be held for a moment yet: between its fork and
/// its exec, a child that another test starts has all of this process's descriptors.
pub fn store(dir: impl AsRef<Path>) -> DataStore {
    let mut opened = None;
    bivouac_testing::eventually("the store can be opened", || {
        let result = DataStore::open(&[dir.as_ref().to_owned()], DEPLOYMENT, ServerId(1));
        opened = result.inspect_err(|error| eprintln!("{error}")).ok();
        opened.is_some()
    });
    opened.unwrap()
}

/// All names below a directory, sorted.
pub fn listing(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(listing(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// A file system of our own; unmounted in the end.
pub struct Mount {
    dir: TempDir,
    /// Of what type.
    pub kind: &'static str,
}

impl Mount {
    /// A memory file system, or `None` with a printed reason where mounting is not permitted.
    pub fn memory(options: &str) -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        mount(Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]), dir, "tmpfs")
    }

    /// An ext4 file system of some MiB in a file, or `None` with a printed reason.
    pub fn ext4(mib: u64) -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(mib << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image.path()).output();
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            bivouac_testing::skip(&format!("mkfs.ext4 failed: {made:?}"));
            return None;
        }
        mount(Command::new("mount").args(["-o", "loop"]).arg(image.path()), dir, "ext4")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn mount(command: &mut Command, dir: TempDir, kind: &'static str) -> Option<Mount> {
    let done = command.arg(dir.path()).output();
    if done.as_ref().is_ok_and(|done| done.status.success()) {
        return Some(Mount { dir, kind });
    }
    bivouac_testing::skip(&format!("mounting {kind} failed: {done:?}"));
    None
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).output();
    }
}
