//! What a node's processes share on disk: the run directory with the key, and the node's own directory in it.
//!
//! In tests several nodes share a machine, and then a run directory: it is removed together with the last
//! node's directory.

use crate::agent::random;
use crate::config::{DaemonConfig, hex_key};
use crate::error::DaemonError;
use crate::heritage;
use bivouac_node::{OpenTable, TableOf};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The run directory of an agent's node.
pub(crate) struct RunDir {
    run: PathBuf,
    node: PathBuf,
}

impl RunDir {
    /// Makes the directories and the key file, and the table of open descriptions. Where processes live on
    /// that a dead agent of this node served, their table and its anchors are taken over; what else such an
    /// agent left is replaced.
    pub(crate) fn create(config: &DaemonConfig) -> Result<(RunDir, OpenTable), DaemonError> {
        let run = bivouac_node::place::make(config.uid, &config.name, &config.key)?;
        let node = bivouac_node::node_dir(&run, config.node);
        let dirs = RunDir { run: run.clone().into(), node: node.clone().into() };
        write_key(Path::new(&bivouac_node::key_path(&run)), &hex_key::to_hex(&config.key))?;
        let of = TableOf { deployment: config.deployment, node: config.node };
        if let Some(table) = heritage::adopt(&dirs.node, of) {
            return Ok((dirs, table));
        }
        if let Err(source) = fs::remove_dir_all(&dirs.node)
            && source.kind() != ErrorKind::NotFound
        {
            return Err(DaemonError::Directory { path: dirs.node, source });
        }
        private_dir(&dirs.node)?;
        let agent = config.node.number(random().map_err(|errno| DaemonError::Thread(errno.into()))? | 1);
        let table = OpenTable::create(node.as_bytes(), of, agent)?;
        private_dir(&dirs.node.join("cwd"))?;
        Ok((dirs, table))
    }

    /// The node's directory, for the processes that attach.
    pub(crate) fn node(&self) -> String {
        self.node.to_string_lossy().into_owned()
    }

    /// Removes the node's directory, and the run directory if no other node uses it.
    pub(crate) fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.node) {
            tracing::warn!(%error, path = %self.node.display(), "not removed");
        }
        let shared = fs::read_dir(&self.run).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("node-"))
        });
        if !shared {
            let _ = fs::remove_file(bivouac_node::key_path(&self.run.to_string_lossy()));
            // It may contain storage, which its server removes. The last one to remove something removes the
            // directory.
            let _ = fs::remove_dir(&self.run);
            if let Some(parent) = self.run.parent() {
                let _ = fs::remove_dir(parent);
            }
        }
    }
}

/// Makes a directory that only the user may enter, or makes sure that an existing one is the user's.
fn private_dir(path: &Path) -> Result<(), DaemonError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(source) => {
            return Err(DaemonError::Directory { path: path.into(), source });
        }
    }
    // Anybody may make directories in /dev/shm: one that another user has made is not used.
    let meta =
        fs::symlink_metadata(path).map_err(|source| DaemonError::Directory { path: path.into(), source })?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != me || meta.mode() & 0o077 != 0 {
        return Err(DaemonError::Foreign { path: path.into() });
    }
    Ok(())
}

fn write_key(path: &Path, key: &str) -> Result<(), DaemonError> {
    let failed = |source| DaemonError::Directory { path: path.into(), source };
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed)?;
    file.write_all(key.as_bytes()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}
