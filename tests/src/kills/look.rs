//! Looks at everything that there is.

use super::attempt::{contents, lock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is at a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// It is a directory.
    pub directory: bool,
    /// Inode number.
    pub ino: u64,
    /// Names.
    pub links: u64,
    /// What `stat` says.
    pub size: u64,
    /// What is in the file, or the error number of the call that failed.
    pub content: Result<Vec<u8>, i32>,
    /// Somebody has a lock.
    pub locked: bool,
}

/// Everything, by path from the mount.
pub type Look = BTreeMap<String, Found>;

/// Writes into a local file what there is in a mount, and empties the file that all programs share, for the
/// next round.
pub fn look(mount: &Path, into: &Path) {
    let mut all = Look::new();
    walk(mount, "", &mut all);
    std::fs::write(mount.join(super::SHARED), "").expect("emptied");
    std::fs::write(into, postcard::to_allocvec(&all).expect("it has a form")).expect("written");
}

fn walk(mount: &Path, directory: &str, all: &mut Look) {
    let entries = std::fs::read_dir(mount.join(directory)).expect("lists");
    for entry in entries {
        let name = entry.expect("lists").file_name().to_string_lossy().into_owned();
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        let found = find(&mount.join(&path));
        let is_directory = found.directory;
        assert!(all.insert(path.clone(), found).is_none(), "{path} is listed twice");
        if is_directory {
            walk(mount, &path, all);
        }
    }
}

fn find(path: &Path) -> Found {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
    let seen = match std::fs::symlink_metadata(path) {
        Ok(seen) => seen,
        Err(error) => {
            let content = Err(number(error));
            return Found { directory: false, ino: 0, links: 0, size: 0, content, locked: false };
        }
    };
    let mut found = Found {
        directory: seen.is_dir(),
        ino: seen.ino(),
        links: seen.nlink(),
        size: seen.len(),
        content: Ok(Vec::new()),
        locked: false,
    };
    if found.directory {
        return found;
    }
    // For writing, so that the servers are asked for the size and settle it again.
    found.content = OpenOptions::new().read(true).write(true).open(path).map_err(number).and_then(|file| {
        found.locked = lock(&file).is_err();
        let (size, content) = contents(&file).map_err(number)?;
        if size != content.len() as u64 {
            found.size = u64::MAX;
        }
        Ok(content)
    });
    found
}
