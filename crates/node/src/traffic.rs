//! What the processes of a node read and write directly, past the servers.
//!
//! A server does not see the direct accesses to its sub-files, and `status` would show that nothing is read
//! or written. So the processes count what they transfer in a page of shared memory of the server. The
//! counters are there and not in the processes, so that what a process has counted stays when it dies.
//!
//! Counting has to cost next to nothing beside a read of some bytes. There are many counters ([`LANES`]),
//! each in a cache line of its own. A thread chooses one by its process's number and the address of its
//! stack, which cost less to find out than its own number. If no other thread uses that counter, an addition
//! takes some nanoseconds. Two threads that use the same counter by chance are a little slower, but no count
//! is lost.
//!
//! The page is sealed memory (the module `memory`), which the server passes to the processes of its node. If
//! a program overwrites counters, the counts are wrong; nothing else depends on them.

use crate::error::NodeError;
use crate::fd::Fd;
use crate::memory::{Memory, Writers};
use crate::process;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of each kind.
const LANES: usize = 64;
pub(crate) const LENGTH: usize = LANES * size_of::<Lane>();

/// Bytes moved by the threads that share a lane.
#[repr(C, align(64))]
struct Lane {
    read: AtomicU64,
    written: AtomicU64,
}

/// The page of a server.
pub struct TrafficPage {
    pub(crate) memory: Memory,
    /// Only at the server: the descriptor by which others map the page.
    own: Option<Fd>,
}

impl TrafficPage {
    /// Makes a server's page.
    pub fn create() -> Result<TrafficPage, NodeError> {
        let (memory, descriptor) = Memory::make(c"bivouac-traffic", LENGTH, Writers::All)?;
        Ok(TrafficPage { memory, own: Some(descriptor) })
    }

    /// Maps the page of a server of this node, by the descriptor that the server passed.
    pub fn attach(descriptor: BorrowedFd<'_>) -> Result<TrafficPage, NodeError> {
        Ok(TrafficPage { memory: Memory::attach(descriptor, LENGTH, true)?, own: None })
    }

    /// For the server: the descriptor by which others map the page.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.own.as_ref().map(AsFd::as_fd)
    }

    fn lanes(&self) -> &[Lane] {
        // SAFETY: the memory holds LANES of them, is page-aligned, and any bytes are valid ones.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast::<Lane>(), LANES) }
    }

    /// The lane of this thread.
    fn own(&self) -> Option<&Lane> {
        let on_stack = 0u8;
        // Stacks of threads are megabytes apart, and a fork's child has its parent's; numbers of processes
        // are often neighbours.
        let stack = std::ptr::from_ref(&on_stack) as usize >> 20;
        self.lanes().get((stack ^ stack >> 6).wrapping_add(process::pid() as usize) % LANES)
    }

    /// This thread has read so many bytes.
    pub fn read(&self, bytes: usize) {
        if let Some(lane) = self.own() {
            lane.read.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// This thread has written so many bytes.
    pub fn written(&self, bytes: usize) {
        if let Some(lane) = self.own() {
            lane.written.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Bytes read and written by all threads so far.
    pub fn totals(&self) -> (u64, u64) {
        self.lanes().iter().fold((0, 0), |(read, written), lane| {
            let more = (lane.read.load(Ordering::Relaxed), lane.written.load(Ordering::Relaxed));
            (read.wrapping_add(more.0), written.wrapping_add(more.1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_counted_is_summed_and_stays_when_they_and_their_mappings_are_gone() {
        let server = TrafficPage::create().expect("made");
        let descriptor = server.descriptor().expect("its own");
        // More threads than lanes, each with a mapping of its own, as processes have.
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let page = TrafficPage::attach(descriptor).expect("attached");
                    for _ in 0..1000 {
                        page.read(3);
                        page.written(5);
                    }
                });
            }
        });
        assert_eq!(server.totals(), (300_000, 500_000));
    }
}
