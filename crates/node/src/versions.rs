//! The version page of a server: what lets the processes of its node believe what they already know.
//!
//! A server counts the changes of each of its shards in a page that every process of the node maps. It counts under the
//! shard's lock, before the change can be seen by anybody; so whoever read something of a shard under one count, and finds
//! the same count now, knows that what it read is true now: at the price of a load, where asking costs a round
//! trip. Three more words complete the picture: the namespace version (raised before a directory's move is visible, with the latest
//! of those moves beside it), the sum of all changes (for reads that touch a shard that the reader could not name in advance), and whether the page
//! still speaks for the server. Readers of other nodes have no page, and ask.
//!
//! Who reads: count first, then ask, then keep the answer with the count ([`VersionPage::shard`]). An answer that came out
//! of a shard that was unknown before counts only if [`VersionPage::total`] did not move from before the question until
//! that shard's count was read.

use crate::error::{NodeError, doing};
use crate::fd::Fd;
use bivouac_layout::namespace::MOVES_REMEMBERED;
use bivouac_layout::{Ino, SHARDS, ServerId, ShardId};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"BVWKVERS");
const VERSION: u32 = 2;
const HEADER: usize = 4096;
/// Where the latest moves are, by version.
const MOVES: usize = HEADER + SHARDS as usize * size_of::<AtomicU64>();
const LENGTH: usize = MOVES + MOVES_REMEMBERED as usize * size_of::<AtomicU64>();

#[repr(C, align(64))]
struct Line(AtomicU64);

#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    /// Not 0: the server is gone, or has a newer page.
    retired: AtomicU32,
    namespace: Line,
    total: Line,
}

/// A server's page: written by the server, read by everybody else on its node.
pub struct VersionPage {
    base: *mut u8,
    /// The server's own: retired when it is dropped.
    own: bool,
}

// SAFETY: the mapping lives as long as the value; what lies in it is atomic, or written before the page is published.
unsafe impl Send for VersionPage {}
// SAFETY: as above.
unsafe impl Sync for VersionPage {}

impl VersionPage {
    /// Makes a server's page in its node's directory. An older one of that server is retired first.
    pub fn create(node_dir: &[u8], server: ServerId) -> Result<VersionPage, NodeError> {
        VersionPage::retire_at(node_dir, server);
        let path = path_of(node_dir, server);
        let fresh = [&path[..], b".new"].concat();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&fresh, flags, Mode::from_raw_mode(0o600))
            .map(Fd::from)
            .map_err(doing("making a version page"))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64)
            .map_err(doing("allocating a version page"))?;
        let mut page = VersionPage::map(&file, true)?;
        page.own = true;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            retired: AtomicU32::new(0),
            namespace: Line(AtomicU64::new(0)),
            total: Line(AtomicU64::new(0)),
        };
        // SAFETY: the mapping is writable, page-aligned, at least as long as a header, and nobody else knows it yet.
        unsafe { page.base.cast::<Header>().write(header) };
        rustix::fs::rename(&fresh, &path).map_err(doing("publishing a version page"))?;
        Ok(page)
    }

    /// Maps the page of a server of this node, to read.
    pub fn attach(node_dir: &[u8], server: ServerId) -> Result<VersionPage, NodeError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        VersionPage::open(node_dir, server, flags, false)
    }

    /// Makes sure that nobody believes a page of that server any more, if there is one: the server is down.
    pub fn retire_at(node_dir: &[u8], server: ServerId) {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Ok(page) = VersionPage::open(node_dir, server, flags, true) {
            page.header().retired.store(1, Ordering::SeqCst);
        }
    }

    fn open(node_dir: &[u8], server: ServerId, flags: OFlags, write: bool) -> Result<VersionPage, NodeError> {
        let file = rustix::fs::open(path_of(node_dir, server), flags, Mode::empty())
            .map_err(doing("opening a version page"))?;
        VersionPage::checked(&Fd::from(file), write)
    }

    fn checked(file: &Fd, write: bool) -> Result<VersionPage, NodeError> {
        let stat = rustix::fs::fstat(file).map_err(doing("looking at a version page"))?;
        if usize::try_from(stat.st_size) != Ok(LENGTH) {
            return Err(NodeError::Format);
        }
        let page = VersionPage::map(file, write)?;
        let header = page.header();
        if header.magic == MAGIC && header.version == VERSION { Ok(page) } else { Err(NodeError::Format) }
    }

    fn map(file: &Fd, write: bool) -> Result<VersionPage, NodeError> {
        let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice; the file is LENGTH bytes long and never cut.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, file, 0)
                .map_err(doing("mapping a version page"))?
        };
        Ok(VersionPage { base: base.cast(), own: false })
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, and is page-aligned; any bytes are a valid one.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn count(&self, shard: ShardId) -> &AtomicU64 {
        let index = usize::from(shard.0) % SHARDS as usize;
        // SAFETY: the counts lie behind the header, SHARDS of them, aligned because HEADER is.
        unsafe { &*self.base.add(HEADER).cast::<AtomicU64>().add(index) }
    }

    /// Counts a change of a shard. By the server, under the shard's lock, before the change is visible.
    pub fn changed(&self, shard: ShardId) {
        self.header().total.0.fetch_add(1, Ordering::SeqCst);
        self.count(shard).fetch_add(1, Ordering::SeqCst);
    }

    /// The namespace has at least this version, and which directories moved before is not known.
    pub fn raise_namespace(&self, version: u64) {
        self.header().namespace.0.fetch_max(version, Ordering::SeqCst);
    }

    /// A directory moves, and with that the namespace has this version, one more than before. By the server, one move after
    /// the other, before the move is visible.
    pub fn moved(&self, directory: Ino, version: u64) {
        self.moved_at(version).store(directory.0, Ordering::SeqCst);
        self.raise_namespace(version);
    }

    fn moved_at(&self, version: u64) -> &AtomicU64 {
        let index = (version % MOVES_REMEMBERED) as usize;
        // SAFETY: the moves lie behind the counts, MOVES_REMEMBERED of them, aligned because MOVES is.
        unsafe { &*self.base.add(MOVES).cast::<AtomicU64>().add(index) }
    }

    /// The directories that moved after the namespace had the version `after` and until it had `until`. `None`: so many that
    /// it is not known any more.
    pub fn moves(&self, after: u64, until: u64) -> Option<Vec<Ino>> {
        if until.checked_sub(after)? >= MOVES_REMEMBERED {
            return None;
        }
        let moved = (after + 1..=until).map(|v| Ino(self.moved_at(v).load(Ordering::SeqCst))).collect();
        // The place of a move is written again before the version that needs it is shown.
        (self.namespace() - after < MOVES_REMEMBERED).then_some(moved)
    }

    /// Whether the page speaks for its server.
    pub fn is_live(&self) -> bool {
        self.header().retired.load(Ordering::Acquire) == 0
    }

    /// Changes of a shard so far.
    pub fn shard(&self, shard: ShardId) -> u64 {
        self.count(shard).load(Ordering::SeqCst)
    }

    /// Changes of all shards so far.
    pub fn total(&self) -> u64 {
        self.header().total.0.load(Ordering::SeqCst)
    }

    /// The namespace version.
    pub fn namespace(&self) -> u64 {
        self.header().namespace.0.load(Ordering::SeqCst)
    }
}

impl Drop for VersionPage {
    fn drop(&mut self) {
        if self.own {
            self.header().retired.store(1, Ordering::SeqCst);
        }
        // SAFETY: mapped by `map` with this length; nothing borrowed from it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), LENGTH) };
    }
}

fn path_of(node_dir: &[u8], server: ServerId) -> Vec<u8> {
    [node_dir, format!("/versions-{server}").as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Vec<u8>) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().as_os_str().as_encoded_bytes().to_vec();
        (directory, path)
    }

    #[test]
    fn readers_see_each_shards_changes_and_no_others() {
        let (_keep, path) = directory();
        let server = VersionPage::create(&path, ServerId(3)).expect("made");
        let reader = VersionPage::attach(&path, ServerId(3)).expect("there");
        let (seen, other, total) = (reader.shard(ShardId(7)), reader.shard(ShardId(8)), reader.total());
        server.changed(ShardId(7));
        assert_ne!(reader.shard(ShardId(7)), seen);
        assert_ne!(reader.total(), total);
        assert_eq!(reader.shard(ShardId(8)), other);
        server.raise_namespace(5);
        server.raise_namespace(4);
        assert_eq!(reader.namespace(), 5);
    }

    #[test]
    fn readers_see_which_directories_moved_as_long_as_the_page_remembers() {
        let (_keep, path) = directory();
        let server = VersionPage::create(&path, ServerId(3)).expect("made");
        let reader = VersionPage::attach(&path, ServerId(3)).expect("there");
        server.raise_namespace(1000);
        server.moved(Ino(7), 1001);
        server.moved(Ino(8), 1002);
        assert_eq!(reader.moves(1000, 1002), Some(vec![Ino(7), Ino(8)]));
        assert_eq!(reader.moves(1001, 1002), Some(vec![Ino(8)]));
        assert_eq!(reader.moves(0, 1002), None);
        (1003..1003 + MOVES_REMEMBERED).for_each(|version| server.moved(Ino(version), version));
        assert_eq!(reader.moves(1000, 1002), None, "their places were written again");
        assert_eq!(reader.moves(reader.namespace() - 1, reader.namespace()).map(|m| m.len()), Some(1));
    }

    #[test]
    fn a_page_that_was_replaced_or_given_up_is_not_believed() {
        let (_keep, path) = directory();
        let first = VersionPage::create(&path, ServerId(0)).expect("made");
        let old = VersionPage::attach(&path, ServerId(0)).expect("there");
        assert!(old.is_live());
        // The first server was killed: nothing of it ran.
        std::mem::forget(first);
        let second = VersionPage::create(&path, ServerId(0)).expect("made");
        assert!(!old.is_live());
        let new = VersionPage::attach(&path, ServerId(0)).expect("there");
        assert!(new.is_live());
        drop(second);
        assert!(!new.is_live());
    }

    #[test]
    fn a_page_of_another_kind_is_refused() {
        let (_keep, path) = directory();
        std::fs::write(format!("{}/versions-1", String::from_utf8_lossy(&path)), vec![7; LENGTH])
            .expect("written");
        assert!(matches!(VersionPage::attach(&path, ServerId(1)), Err(NodeError::Format)));
        std::fs::write(format!("{}/versions-1", String::from_utf8_lossy(&path)), b"short").expect("written");
        assert!(matches!(VersionPage::attach(&path, ServerId(1)), Err(NodeError::Format)));
    }
}
