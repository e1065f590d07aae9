//! The version page of a server, by which processes of its node see whether what they know of its metadata is
//! still true.
//!
//! A server counts the changes of each of its shards in a page that every process of the node maps. It raises
//! the count under the shard's lock, before anybody can see the change. So if a process has read something of
//! a shard, and the shard's count is still what it was before, what it has read is still true. To find that
//! out takes one load from memory, where asking the server takes a round trip. The page also contains the
//! namespace version, which the server raises before a directory's move is visible, and the latest of those
//! moves; the sum of all changes, for requests whose answer may come from a shard that the client cannot know
//! in advance; and whether the page is still valid. Processes of other nodes have no page, and ask the server
//! each time.
//!
//! A page is sealed memory (the module `memory`), which the server passes to processes of its node. Once the
//! server has ended, nobody may rely on the page any more. The server cannot say so itself if it is killed by
//! SIGKILL. So the page contains a *robust futex*: a word with the number of one of the server's threads, in
//! which the kernel notes that thread's death ([`VersionPage::life`]). A server that is alive may have been replaced
//! without knowing it, where its shards have copies: so the page is believed no longer than the server's lease lasts
//! ([`VersionPage::believe_until`]).
//!
//! A process first reads the count, then asks the server, and then keeps the answer together with the count
//! ([`VersionPage::shard`]). If it did not know before from which shard the answer would come, it may keep
//! the answer only if [`VersionPage::total`] did not change between the time before the request and the time
//! when it read that shard's count.

mod ring;

use crate::error::NodeError;
use crate::fd::Fd;
use crate::memory::{Memory, Writers};
use crate::release::monotonic;
use bivouac_layout::namespace::MOVES_REMEMBERED;
use bivouac_layout::{Ino, SHARDS, ShardId};
use ring::Ring;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"BVWKVERS");
const VERSION: u32 = 3;
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
    /// Not 0: the server has retired the page.
    retired: AtomicU32,
    /// The server's thread with whose death the page becomes invalid.
    life: AtomicU32,
    /// Until when the page may be believed, nanoseconds of the node's monotonic clock.
    lease: AtomicU64,
    namespace: Line,
    total: Line,
}

/// In [`VersionPage::life`]: the kernel has noted that the thread has died.
const OWNER_DIED: u32 = 0x4000_0000;

/// A server's page: written by the server, read by everybody else on its node.
pub struct VersionPage {
    pub(crate) memory: Memory,
    /// Only at the server: the descriptor by which others map the page. The page is retired when this is
    /// dropped.
    own: Option<Fd>,
}

impl VersionPage {
    /// A lease without an end: of a server that nobody can replace.
    pub const FOR_EVER: u64 = u64::MAX;

    /// Makes a server's page. It counts as live once [`VersionPage::life`] names a thread and there is a lease.
    pub fn create() -> Result<VersionPage, NodeError> {
        let (memory, descriptor) = Memory::make(c"bivouac-versions", LENGTH, Writers::Maker)?;
        let page = VersionPage { memory, own: Some(descriptor) };
        let header = page.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// Maps the page of a server of this node for reading, by the descriptor that the server passed.
    pub fn attach(descriptor: BorrowedFd<'_>) -> Result<VersionPage, NodeError> {
        let page = VersionPage { memory: Memory::attach(descriptor, LENGTH, false)?, own: None };
        let header = page.header();
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION;
        if ours { Ok(page) } else { Err(NodeError::Format) }
    }

    /// For the server: the descriptor by which others map the page.
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

    /// Raises the namespace version to at least this, without saying which directories have moved.
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

    /// The page may be believed until then (nanoseconds of [`crate::release::monotonic`]), or
    /// [`VersionPage::FOR_EVER`].
    pub fn believe_until(&self, until: u64) {
        self.header().lease.store(until, Ordering::Release);
    }

    /// Whether the page is valid: its server is alive, has not retired it, and has a lease.
    pub fn is_live(&self) -> bool {
        let header = self.header();
        let life = header.life.load(Ordering::Acquire);
        let lease = header.lease.load(Ordering::Acquire);
        life != 0
            && life & OWNER_DIED == 0
            && header.retired.load(Ordering::Acquire) == 0
            && (lease == VersionPage::FOR_EVER || monotonic() < lease)
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
        assert!(!reader.is_live(), "there is no lease");
        server.believe_until(monotonic() + 60_000_000_000);
        assert!(reader.is_live());
        server.believe_until(monotonic() - 1);
        assert!(!reader.is_live(), "the lease has run out");
        server.believe_until(VersionPage::FOR_EVER);
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
