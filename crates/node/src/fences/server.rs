//! A server's side of its fence page: raising and lowering fences, the lease, the counts.

use super::protocol::{Number, READS, WRITES};
use super::{FencePage, FencesOf, WORDS};
use crate::error::NodeError;
use crate::fd::Fd;
use crate::owner::{Fate, number_of};
use bivouac_layout::Ino;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a fence looks again at once whether writers have ended; then it sleeps in between.
const LOOKS: u32 = 20;
const NAP: Duration = Duration::from_micros(100);

/// What a fence stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Against {
    /// Direct reads.
    Readers,
    /// Direct writes.
    Writers,
    /// Both.
    All,
}

impl Against {
    fn flags(self) -> u64 {
        match self {
            Against::Readers => READS,
            Against::Writers => WRITES,
            Against::All => READS | WRITES,
        }
    }
}

/// How many fences of a word are up. (The page has only flags, so that a damaged page cannot hold a fence up
/// for ever.)
#[derive(Clone, Copy, Default)]
struct Up {
    reads: u32,
    writes: u32,
}

/// A server's fence page.
pub struct Fences {
    page: FencePage,
    descriptor: Fd,
    up: Box<[Mutex<Up>]>,
    /// What had been read and written before this server's start.
    before: (u64, u64),
}

/// A fence that is up until this is dropped, however long that takes. Nobody waits behind it.
pub struct Lasting {
    fences: Arc<Fences>,
    ino: Ino,
    flags: u64,
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.fences.lower(self.ino, self.flags);
    }
}

/// A fence that is up until this is dropped.
pub struct Fence<'f> {
    fences: &'f Fences,
    ino: Ino,
    flags: u64,
}

/// Threads that have not come out of a direct write in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inside {
    /// Their numbers, each in its own PID namespace.
    pub threads: Vec<u32>,
}

impl Fences {
    /// Makes a server's page.
    pub fn create(of: FencesOf) -> Result<Fences, NodeError> {
        let (page, descriptor) = FencePage::create(of)?;
        Ok(Fences::new(page, descriptor))
    }

    /// For a restarted server: takes over the page that the server before it made, by a descriptor that a
    /// process of the node has kept. Fails for a page that is not this server's. Fences that were up are
    /// down, and there is no lease.
    pub fn adopt(of: FencesOf, descriptor: Fd) -> Result<Fences, NodeError> {
        let page = FencePage::attach(descriptor.as_fd())?;
        if !page.is_of(of) {
            return Err(NodeError::Format);
        }
        page.words().iter().for_each(|word| word.lower(READS | WRITES));
        page.header().lease.store(0, Ordering::SeqCst);
        Ok(Fences::new(page, descriptor))
    }

    fn new(page: FencePage, descriptor: Fd) -> Fences {
        let before = page.totals();
        Fences { page, descriptor, up: (0..WORDS).map(|_| Mutex::default()).collect(), before }
    }

    /// What others map the page by.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The page as the processes of the node use it.
    pub fn page(&self) -> &FencePage {
        &self.page
    }

    /// Bytes that processes of the node have read and written directly since this server's start.
    pub fn totals(&self) -> (u64, u64) {
        let (read, written) = self.page.totals();
        (read.wrapping_sub(self.before.0), written.wrapping_sub(self.before.1))
    }

    /// Copies may be read directly until this time ([`crate::release::monotonic`]); 0: not at all.
    pub fn show_copies_until(&self, until: u64) {
        self.page.header().lease.store(until, Ordering::SeqCst);
    }

    /// Makes all descriptors stale that were passed up to now for reading a file, because its sub-file is about to become
    /// another local file.
    pub fn renounce(&self, ino: Ino) {
        self.page.word(ino).1.move_on();
    }

    /// The same for all files.
    pub fn renounce_all(&self) {
        self.page.words().iter().for_each(|word| word.move_on());
    }

    /// Raises the fence of a file: direct accesses that begin from here on go through the server, and reads
    /// that are under way do not count. Writes may be under way still: see [`Fence::wait`]. This takes a
    /// lock and three atomic operations, and waits for nobody.
    pub fn raise(&self, ino: Ino, against: Against) -> Fence<'_> {
        let flags = against.flags();
        self.raise_flags(ino, flags);
        Fence { fences: self, ino, flags }
    }

    /// The same for as long as its caller wants.
    pub fn keep_up(self: &Arc<Fences>, ino: Ino, against: Against) -> Lasting {
        let flags = against.flags();
        self.raise_flags(ino, flags);
        Lasting { fences: self.clone(), ino, flags }
    }

    fn raise_flags(&self, ino: Ino, flags: u64) {
        let (index, word) = self.page.word(ino);
        let mut up = self.up[index].lock().unwrap_or_else(PoisonError::into_inner);
        up.reads += u32::from(flags & READS != 0);
        up.writes += u32::from(flags & WRITES != 0);
        word.raise(flags);
        drop(up);
        // Before whatever the server does behind the fence.
        fence(Ordering::SeqCst);
    }

    fn lower(&self, ino: Ino, flags: u64) {
        let (index, word) = self.page.word(ino);
        let mut up = self.up[index].lock().unwrap_or_else(PoisonError::into_inner);
        let up = &mut *up;
        let mut last = 0;
        for (flag, count) in [(READS, &mut up.reads), (WRITES, &mut up.writes)] {
            if flags & flag != 0 {
                *count = count.saturating_sub(1);
                last |= if *count == 0 { flag } else { 0 };
            }
        }
        word.lower(last);
    }
}

impl Fence<'_> {
    /// Waits until no direct write of the file is under way that began before the fence, but not for longer
    /// than `limit`. For a fence against writers.
    pub fn wait(&self, limit: Duration) -> Result<(), Inside> {
        let begin = Instant::now();
        let mut looks = 0;
        loop {
            let inside = self.inside();
            if inside.threads.is_empty() {
                return Ok(());
            }
            if begin.elapsed() >= limit {
                return Err(inside);
            }
            looks += 1;
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP.min(limit));
            }
        }
    }

    /// Who is writing the file directly. Marks of dead threads are taken off.
    fn inside(&self) -> Inside {
        let mut threads = Vec::new();
        for lane in self.fences.page.lanes() {
            for mark in lane.marks_of(self.ino) {
                let owner = lane.owner();
                // Should the lane have got another owner meanwhile, a mark of his is not needed, because he
                // has found the fence.
                if self.fences.page.fate(owner) == Fate::Dead {
                    mark.replace(self.ino.0, 0);
                } else {
                    threads.push(number_of(owner));
                }
            }
        }
        Inside { threads }
    }

    /// Makes all descriptors stale that were passed of the file's sub-file up to now: writes by them that
    /// have not ended yet do not count, so that the sub-file can be copied.
    pub fn retire(&self) {
        self.fences.page.word(self.ino).1.move_on();
        // A writer's second look may come before its data are seen here, as far as its processor is
        // concerned. This makes all processors of the machine pass a barrier. (Where it is refused, the locks
        // that the kernel takes for a write are the barrier.)
        let _ = membarrier(MembarrierCommand::Global);
    }

    /// Takes off the marks of those who are still inside: the sub-file is another local file now, and what
    /// they write does not reach it.
    pub fn forget_late(&self) {
        for lane in self.fences.page.lanes() {
            lane.marks_of(self.ino).for_each(|mark| _ = mark.replace(self.ino.0, 0));
        }
    }
}

impl Drop for Fence<'_> {
    fn drop(&mut self) {
        self.fences.lower(self.ino, self.flags);
    }
}
