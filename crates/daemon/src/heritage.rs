//! What an agent takes over from the one before it on its node, which was killed: the table of open
//! descriptions.
//!
//! The table is memory without a name, which lasts as long as anybody has it. Each process that uses the file
//! system keeps its descriptor (the preload library out of the program's sight), and `/proc` shows an agent
//! the descriptors of its user's processes. The agent's number goes with the table: servers know descriptions
//! by it.

use bivouac_node::{Fd, OpenTable, TableOf};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The table of this node's processes, if any of them has lived on. `node_dir`: where its anchors are.
pub(crate) fn adopt(node_dir: &Path, of: TableOf) -> Option<OpenTable> {
    if !node_dir.is_dir() {
        // No agent was killed here: it would have left its directory.
        return None;
    }
    let node_dir = node_dir.as_os_str().as_bytes();
    let table = kept_descriptors().find_map(|path| {
        let descriptor =
            Fd::from(rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?);
        OpenTable::adopt(node_dir, of, descriptor).ok()
    })?;
    tracing::info!(
        open = table.in_use().count(),
        "processes of this node have lived on: their open files are taken over"
    );
    Some(table)
}

/// Descriptors of tables, of whatever deployment, in the user's processes.
fn kept_descriptors() -> impl Iterator<Item = PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(move |entry| {
        entry.file_name().as_bytes().first().is_some_and(u8::is_ascii_digit)
            && entry.metadata().is_ok_and(|meta| meta.uid() == me)
    });
    let descriptors = processes.flat_map(|entry| fs::read_dir(entry.path().join("fd")).into_iter().flatten());
    descriptors
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| fs::read_link(path).is_ok_and(|link| OpenTable::is_named(link.as_os_str().as_bytes())))
}
