//! The version page of a server: what lets the processes of its node believe what they already know.
//!
//! A server counts the changes of each of its shards in a page that every process of the node maps. It counts
//! under the shard's lock, before the change can be seen by anybody; so whoever read something of a shard
//! under one count, and finds the same count now, knows that what it read is true now: at the price of a
//! load, where asking costs a round trip. More words complete the picture: the namespace version (raised
//! before a directory's move is visible, with the latest of those moves beside it), the sum of all changes
//! (for reads that touch a shard that the reader could not name in advance), and whether the page still
//! speaks for the server. Readers of other nodes have no page, and ask.
//!
//! A page is memory without a name (the module `memory`), which the server hands to processes of its node. It
//! must not be believed any more once the server has ended, also by SIGKILL, when nobody is there to say so.
//! So its life is a *robust futex*: a word with the number of one of the server's threads, in which the
//! kernel itself notes that thread's death ([`VersionPage::life`]).
//!
//! Who reads: count first, then ask, then keep the answer with the count ([`VersionPage::shard`]). An answer
//! that came out of a shard that was unknown before counts only if [`VersionPage::total`] did not move from
//! before the question until that shard's count was read.

mod ring;

use crate::error::NodeError;
use crate::fd::Fd;
use crate::memory::{Memory, Writers};
use bivouac_layout::namespace::MOVES_REMEMBERED;
use bivouac_layout::{Ino, SHARDS, ShardId};
use ring::Ring;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"BVWKVERS");
const VERSION: u32 = 2;
const HEADER: usize = 4096;
/// Where the latest moves are, by version.
const MOVES: usize = HEADER + SHARDS as usize * size_of::<AtomicU64>();
pub(crate) const LENGTH: usize = MOVES + MOVES_REMEMBERED as usize * size_of::<AtomicU64>();

#[repr(C, align(64))]
struct Line(AtomicU64);

#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    /// Not 0: the server has given the page up.
    retired: AtomicU32,
    /// The thread of the server's with which the page ends.
    life: AtomicU32,
    namespace: Line,
    total: Line,
}

/// In [`VersionPage::life`]: the kernel says that the thread has died.
const OWNER_DIED: u32 = 0x4000_0000;

/// A server's page: written by the server, read by everybody else on its node.
pub struct VersionPage {
    pub(crate) memory: Memory,
    /// The server's own, by which others map it: retired when it is dropped.
    own: Option<Fd>,
}

impl VersionPage {
    /// Makes a server's page. It counts as live once [`VersionPage::life`] names a thread.
    pub fn create() -> Result<VersionPage, NodeError> {
        let (memory, descriptor) = Memory::make(c"bivouac-versions", LENGTH, Writers::Maker)?;
        let page = VersionPage { memory, own: Some(descriptor) };
        let header = page.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// Maps the page of a server of this node, to read, by the descriptor that the server handed over.
    pub fn attach(descriptor: BorrowedFd<'_>) -> Result<VersionPage, NodeError> {
        let page = VersionPage { memory: Memory::attach(descriptor, LENGTH, false)?, own: None };
        let header = page.header();
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION;
        if ours { Ok(page) } else { Err(NodeError::Format) }
    }

    /// For the server: what others map it by.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.own.as_ref().map(AsFd::as_fd)
    }

    /// For the server: the word of a robust futex, which is to hold the number of a thread that lives as long
    /// as the server.
    pub fn life(&self) -> &AtomicU32 {
        &self.header().life
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory begins with a header, and is page-aligned; any bytes are a valid one.
        unsafe { &*self.memory.base().cast::<Header>() }
    }

    fn count(&self, shard: ShardId) -> &AtomicU64 {
        let index = usize::from(shard.0) % SHARDS as usize;
        // SAFETY: the counts lie behind the header, SHARDS of them, aligned because HEADER is.
        unsafe { &*self.memory.base().add(HEADER).cast::<AtomicU64>().add(index) }
    }

    /// Counts a change of a shard. By the server, under the shard's lock, before the change is visible. Its
    /// number: [`VersionPage::shard`] from now on.
    pub fn changed(&self, shard: ShardId) -> u64 {
        self.header().total.0.fetch_add(1, Ordering::SeqCst);
        self.count(shard).fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    }

    /// The namespace has at least this version, and which directories moved before is not known.
    pub fn raise_namespace(&self, version: u64) {
        self.header().namespace.0.fetch_max(version, Ordering::SeqCst);
    }

    /// A directory moves, and with that the namespace has this version, one more than before. By the server,
    /// one move after the other, before the move is visible.
    pub fn moved(&self, directory: Ino, version: u64) {
        self.ring().moved(directory.0, version);
    }

    fn ring(&self) -> Ring<'_, AtomicU64> {
        // SAFETY: the moves lie behind the counts, MOVES_REMEMBERED of them, aligned because MOVES is; any
        // bytes are valid numbers.
        let places = unsafe {
            let first = self.memory.base().add(MOVES).cast::<AtomicU64>();
            std::slice::from_raw_parts(first, MOVES_REMEMBERED as usize)
        };
        Ring { version: &self.header().namespace.0, places }
    }

    /// The directories that moved after the namespace had the version `after` and until it had `until`.
    /// `None`: so many that it is not known any more.
    pub fn moves(&self, after: u64, until: u64) -> Option<Vec<Ino>> {
        Some(self.ring().between(after, until)?.into_iter().map(Ino).collect())
    }

    /// Whether the page speaks for its server.
    pub fn is_live(&self) -> bool {
        let header = self.header();
        let life = header.life.load(Ordering::Acquire);
        life != 0 && life & OWNER_DIED == 0 && header.retired.load(Ordering::Acquire) == 0
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
        if self.own.is_some() {
            self.header().retired.store(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page and a reader's view of it.
    fn pair() -> (VersionPage, VersionPage) {
        let server = VersionPage::create().expect("made");
        let reader = VersionPage::attach(server.descriptor().expect("its own")).expect("attached");
        (server, reader)
    }

    #[test]
    fn readers_see_each_shards_changes_and_no_others() {
        let (server, reader) = pair();
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
        let (server, reader) = pair();
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
    fn a_version_that_something_has_written_over_the_page_names_no_moves() {
        let (server, reader) = pair();
        server.moved(Ino(7), u64::MAX);
        assert_eq!(reader.moves(u64::MAX, reader.namespace()), Some(Vec::new()));
        server.header().namespace.0.store(3, Ordering::SeqCst);
        assert_eq!(reader.moves(5, 6), None);
    }

    #[test]
    fn a_page_is_believed_from_the_servers_beginning_to_its_end() {
        let (server, reader) = pair();
        assert!(!reader.is_live());
        server.life().store(4711, Ordering::Release);
        assert!(reader.is_live());
        // As the kernel does when the thread dies while somebody waits.
        server.life().store(4711 | OWNER_DIED | 1 << 31, Ordering::Release);
        assert!(!reader.is_live());
        server.life().store(4711, Ordering::Release);
        drop(server);
        assert!(!reader.is_live());
    }

    #[test]
    fn memory_of_another_kind_is_refused() {
        let (_memory, other) = Memory::make(c"test", LENGTH, Writers::All).expect("made");
        assert!(matches!(VersionPage::attach(other.as_fd()), Err(NodeError::Format)));
    }
}
