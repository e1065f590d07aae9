//! What a daemon takes over from the one before it, which was killed: an agent the table of open descriptions
//! of its node, a server its fence page.
//!
//! Both are memory without a name, which lasts as long as anybody has it. Each process that uses the file
//! system keeps the descriptors (the preload library out of the program's sight), and `/proc` shows a daemon
//! the descriptors of its user's processes. The agent's number goes with the table: servers know descriptions
//! by it.
//!
//! A fence page that is not found belongs to nobody whom this daemon can see: what that means is said in
//! [`bivouac_node::fences`]. A server with new storage does not look, because nobody can have descriptors of
//! its sub-files.

use bivouac_node::FencesOf;
use bivouac_node::{Fd, FencePage, Fences, NodeError, OpenTable, TableOf};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
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
    let table = kept_descriptors(OpenTable::is_named)
        .find_map(|path| OpenTable::adopt(node_dir, of, open(&path)?).ok())?;
    tracing::info!(
        open = table.in_use().count(),
        "processes of this node have lived on: their open files are taken over"
    );
    Some(table)
}

/// A server's fence page: the one that processes of this node have, or a new one. `resumes`: the server's
/// storage was there before.
pub(crate) fn fences(of: FencesOf, resumes: bool) -> Result<Fences, NodeError> {
    let known = resumes.then(|| kept_fences(of)).flatten();
    match known.map(|descriptor| Fences::adopt(of, descriptor)) {
        Some(Ok(fences)) => {
            tracing::info!("processes of this node have lived on: their fence page is taken over");
            Ok(fences)
        }
        _ => Fences::create(of),
    }
}

/// The page of the server's latest start that left one to somebody who lives. Most of its processes have the
/// same.
fn kept_fences(of: FencesOf) -> Option<Fd> {
    let mut seen = HashSet::new();
    let pages = kept_descriptors(FencePage::is_named).filter_map(|path| {
        if !seen.insert(fs::metadata(&path).ok()?.ino()) {
            return None;
        }
        let descriptor = open(&path)?;
        let page = FencePage::attach(descriptor.as_fd()).ok()?;
        page.is_of(of).then(|| (page.made(), descriptor))
    });
    pages.max_by_key(|(made, _)| *made).map(|(_, descriptor)| descriptor)
}

fn open(path: &Path) -> Option<Fd> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok().map(Fd::from)
}

/// Descriptors, in the user's processes, of what has such a name, of whatever deployment.
fn kept_descriptors(is_named: fn(&[u8]) -> bool) -> impl Iterator<Item = PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(move |entry| {
        entry.file_name().as_bytes().first().is_some_and(u8::is_ascii_digit)
            && entry.metadata().is_ok_and(|meta| meta.uid() == me)
    });
    let descriptors = processes.flat_map(|entry| fs::read_dir(entry.path().join("fd")).into_iter().flatten());
    descriptors
        .flatten()
        .map(|entry| entry.path())
        .filter(move |path| fs::read_link(path).is_ok_and(|link| is_named(link.as_os_str().as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::ServerId;

    fn inode(descriptor: impl AsFd) -> u64 {
        rustix::fs::fstat(descriptor).expect("a descriptor").st_ino
    }

    #[test]
    fn a_server_takes_over_the_latest_page_that_somebody_has_kept() {
        // Numbers that no other test uses.
        let of = FencesOf { deployment: u64::from(std::process::id()) << 20, server: ServerId(7) };
        let keep = |fences: Fences| rustix::io::fcntl_dupfd_cloexec(fences.descriptor(), 0).expect("kept");
        let other = keep(Fences::create(FencesOf { server: ServerId(8), ..of }).expect("made"));
        let fresh = fences(of, true).expect("made");
        assert_ne!(inode(fresh.descriptor()), inode(&other));
        let (older, newer) = (keep(fresh), keep(Fences::create(of).expect("made")));
        assert_ne!(inode(&older), inode(&newer));
        assert_eq!(inode(fences(of, true).expect("adopted").descriptor()), inode(&newer));
        // New storage: nobody has descriptors of it.
        assert_ne!(inode(fences(of, false).expect("made").descriptor()), inode(&newer));
        drop(newer);
        assert_eq!(inode(fences(of, true).expect("adopted").descriptor()), inode(&older));
    }
}
