//! The fence page of a server, by which it keeps processes of its node from reading and writing a file past
//! it.
//!
//! A process of the server's node has descriptors of its sub-files, and reads and writes them directly. Most
//! of the time that is as good as asking the server. While the server changes a file in several steps, or
//! must not serve it, direct accesses have to stop, and to have stopped, without asking every process. So
//! each direct access looks at memory that the server shares with the processes of its node:
//!
//! - **Fence words**, to which files are hashed. A word says whether direct reads and direct writes are
//!   *fenced*, and counts how often they have been. Who finds his access fenced asks the server instead. Two
//!   files that share a word only ask the server a little more often.
//! - **The lease**, for blocks that have copies: until when the server may show its copy, by the monotonic clock; and a
//!   word that the kernel changes when the server dies. What has one copy does not need it, because nobody else could
//!   show other data.
//! - **Lanes**, one for each thread that accesses directly, in which it *marks* the file that it is writing,
//!   and counts what it has transferred (a server does not see that otherwise).
//!
//! # Reads
//! A reader looks at the word, and where there are copies at the lease, reads, and looks at the word again. If its file is
//! fenced then, or has been fenced since the first look, it reads again through the server. It needs no mark, because nobody has to
//! wait for it: what it has read counts only if no fence was raised up to its second look, and so before
//! whatever the server does behind the fence. The order of memory that this needs is that of a sequence lock:
//! the server's raising comes before its changes (a full barrier), and the reader's copying of data comes
//! before its second look. On x86-64, loads are not reordered with loads. On aarch64 they are, and neither
//! entering nor leaving the kernel prevents that: an acquire fence before the second look does.
//!
//! # Writes
//! (Only what has one copy is written directly.) A writer marks its lane, looks at the word, writes, looks again, and takes
//! its mark off. The server
//! raises the word, and then waits until no lane has the file marked. Either the writer sees the fence, or
//! the server sees the mark: each stores first, and then loads what the other one stores. So a write that
//! has begun before the fence is complete when the server goes on, and counts. Only if the server does not
//! wait for it (see below) has the writer to repeat it through the server, which it sees at its second look.
//! Writing the same bytes twice is harmless: the call has not returned yet, so whatever another process does
//! meanwhile happens at the same time, and may come before.
//!
//! Store, then load, needs a full barrier on both sides: the server's is an atomic exchange, and so is the
//! writer's mark. `membarrier(2)` could take over the writer's side, but not for nothing. Its fast form is
//! for registered processes, and registering takes a process that has two threads 10 to 20 ms; the other form
//! takes the server 8 ms for each fence. The exchange takes some 12 ns of some 600 of a write of 4 KiB. In
//! return a transfer is counted without an atomic addition, because a lane is one thread's.
//!
//! # Those who do not come out
//! A thread that is stopped inside a write, or leaves it by `siglongjmp`, leaves its mark. The server does
//! not count marks of dead threads, and waits for others only so long ([`Fence::wait`]). Then it can make the
//! sub-file another local file, by copying it ([`Fence::retire`]): the late writer writes to the old one,
//! which nobody reads any more. Descriptors of the old file are told by another count of the word, `moved`,
//! under which each descriptor was passed: clients ask for a new one. What the kernel itself holds (mappings
//! of a sub-file, backing files of a kernel mount) does not look at this page; a file that is held in such a
//! way must not be made another one.
//!
//! A thread has several marks, because a signal handler may write while it interrupts a write. A thread that
//! finds neither a mark nor a lane writes through the server. A write takes off the mark that it has set,
//! whichever thread it ends in (a handler may switch contexts). Forked children have lanes of their own,
//! because their threads have other numbers; a `vfork` child has its parent's, who waits for it. A program
//! that is executed takes over its thread's lane, and with it clears marks of the program before it.
//!
//! # Life
//! The page is sealed memory (the module `memory`). Every process that uses it keeps its descriptor, and the
//! next server of the same storage finds it there and goes on with the page ([`Fences::adopt`]), so that
//! descriptors which were passed before are fenced, too. A page that is not found belonged to processes that
//! are gone, or that the server cannot look into (in another PID namespace, for example). No fence of the new
//! server reaches those for as long as they run. But the page says that its server has died, and its lease is not renewed:
//! there are no direct readers of copies of which the server does not know.
//!
//! If a program writes over the page, accesses may be fenced for nothing, or not fenced, or counted wrongly.
//! The server waits no longer than it wants to for what it finds there, and depends on nothing else in it.

mod access;
mod lane;
mod protocol;
mod server;
#[cfg(test)]
mod tests;

pub use access::{Reading, Under, Writing};
pub use server::{Against, Fence, Fences, Inside, Lasting};

use crate::error::NodeError;
use crate::fd::Fd;
use crate::memory::{Memory, Writers};
use crate::owner::{Here, NAMESPACES};
use crate::release::monotonic;
use bivouac_layout::{Ino, ServerId};
use lane::Lane;
use protocol::Word;
use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Fence words.
const WORDS: usize = 4096;
/// Lanes: so many threads of a node can write to a server's sub-files directly.
const LANES: usize = 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"BVWKFENC");
const VERSION: u32 = 2;
/// Set by the kernel in the word of a dead server.
const OWNER_DIED: u32 = 0x4000_0000;
/// Where the words begin, and the lanes.
pub(crate) const FIRST_WORD: usize = 4096;
const FIRST_LANE: usize = FIRST_WORD + WORDS * size_of::<Word<AtomicU64>>();
pub(crate) const LENGTH: usize = FIRST_LANE + LANES * size_of::<Lane>();

/// Whose page it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FencesOf {
    /// The deployment.
    pub deployment: u64,
    /// The server.
    pub server: ServerId,
}

/// All numbers are atomic: somebody's program may write anything here at any time.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    deployment: AtomicU64,
    server: AtomicU64,
    /// When it was made, by the monotonic clock.
    made: AtomicU64,
    /// Until when the server may show copies, by the monotonic clock; 0: not at all.
    lease: AtomicU64,
    /// A robust futex of a thread that lives as long as the server; 0: the server has no such thread.
    life: AtomicU32,
    /// PID namespaces of the processes that have used the page: see the module `owner`.
    namespaces: [AtomicU64; NAMESPACES],
    /// What threads without a lane have read, bytes. (They do not write directly.)
    read: AtomicU64,
}

const _: () = assert!(size_of::<Header>() <= FIRST_WORD && LENGTH.is_multiple_of(4096));

/// A server's fence page, as the processes of its node use it.
pub struct FencePage {
    pub(crate) memory: Memory,
    here: Here,
    /// Pages of a process are numbered, for threads to remember their lanes by.
    number: usize,
    /// Threads look for a lane among those of others only now and then after they have found none.
    patience: AtomicU32,
}

impl FencePage {
    /// Maps the page of a server of this node, by the descriptor that the server passed. Whoever keeps that
    /// descriptor keeps the page for the server's successor.
    pub fn attach(descriptor: BorrowedFd<'_>) -> Result<FencePage, NodeError> {
        let page = FencePage::new(Memory::attach(descriptor, LENGTH, true)?);
        let header = page.header();
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION;
        if ours { Ok(page) } else { Err(NodeError::Format) }
    }

    fn create(of: FencesOf) -> Result<(FencePage, Fd), NodeError> {
        let (memory, descriptor) = Memory::make(c"bivouac-fences", LENGTH, Writers::All)?;
        let page = FencePage::new(memory);
        let header = page.header();
        header.deployment.store(of.deployment, Ordering::Relaxed);
        header.server.store(of.server.0.into(), Ordering::Relaxed);
        header.made.store(monotonic(), Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((page, descriptor))
    }

    fn new(memory: Memory) -> FencePage {
        static PAGES: AtomicUsize = AtomicUsize::new(0);
        let number = PAGES.fetch_add(1, Ordering::Relaxed);
        FencePage { memory, here: Here::default(), number, patience: AtomicU32::new(0) }
    }

    /// Whether what a descriptor's entry in `/proc` says may be a fence page.
    pub fn is_named(link: &[u8]) -> bool {
        link.starts_with(b"/memfd:bivouac-fences")
    }

    /// Whether it is the page of this server.
    pub fn is_of(&self, of: FencesOf) -> bool {
        self.header().deployment.load(Ordering::Relaxed) == of.deployment
            && self.header().server.load(Ordering::Relaxed) == u64::from(of.server.0)
    }

    /// When it was made, by the monotonic clock.
    pub fn made(&self) -> u64 {
        self.header().made.load(Ordering::Relaxed)
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the memory begins with a header, and is page-aligned; any bytes are a valid one.
        unsafe { &*self.memory.base().cast::<Header>() }
    }

    #[inline]
    fn words(&self) -> &[Word<AtomicU64>] {
        // SAFETY: WORDS of them lie at FIRST_WORD, aligned because that is; any bytes are valid ones.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(FIRST_WORD).cast(), WORDS) }
    }

    #[inline]
    fn lanes(&self) -> &[Lane] {
        // SAFETY: LANES of them lie at FIRST_LANE, which is a multiple of their alignment; any bytes are
        // valid ones.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(FIRST_LANE).cast(), LANES) }
    }

    /// The word of a file.
    fn word(&self, ino: Ino) -> (usize, &Word<AtomicU64>) {
        let index = (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % WORDS;
        (index, &self.words()[index])
    }

    /// Whether the server lives, and may show its copies.
    #[inline]
    fn is_leased(&self) -> bool {
        let life = self.header().life.load(Ordering::Acquire);
        let until = self.header().lease.load(Ordering::Acquire);
        life != 0 && life & OWNER_DIED == 0 && until != 0 && monotonic() < until
    }

    /// For the server: the word of a robust futex, which is to hold the number of a thread that lives as long as the
    /// server.
    pub fn life(&self) -> &AtomicU32 {
        &self.header().life
    }
}
