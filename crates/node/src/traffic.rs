//! What the processes of a node read and write directly, past the servers.
//!
//! A server does not see who accesses its sub-files on its own node, and would tell its user that nothing is read or
//! written. So the processes count what they move in a page of the server that they all map. The counters lie there and
//! not in the processes: what a process has counted stays when it dies.
//!
//! Counting has to cost next to nothing beside a read of some bytes. There are many counters ([`LANES`]), each in a cache
//! line of its own, and a thread takes one by its process's number and the place of its stack, which cost less to know
//! than its own number: an addition that nobody else makes at that place takes some nanoseconds. Two threads that meet on one
//! counter by chance are a little slower, and lose nothing.
//!
//! The page is made by the first who needs it and stays until the node's directory goes: a server that starts anew, and the
//! processes that it outlived, go on with the same one.

use crate::error::{NodeError, doing};
use crate::fd::Fd;
use crate::process;
use bivouac_layout::ServerId;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of each kind.
const LANES: usize = 64;
const LENGTH: usize = LANES * size_of::<Lane>();

/// Bytes moved by the threads that share a lane.
#[repr(C, align(64))]
struct Lane {
    read: AtomicU64,
    written: AtomicU64,
}

/// The page of a server.
pub struct TrafficPage {
    base: *const Lane,
}

// SAFETY: the mapping lives as long as the value, and all that lies in it is atomic.
unsafe impl Send for TrafficPage {}
// SAFETY: as above.
unsafe impl Sync for TrafficPage {}

impl TrafficPage {
    /// Maps the page of a server of this node, which is made if it is not there.
    pub fn attach(node_dir: &[u8], server: ServerId) -> Result<TrafficPage, NodeError> {
        let path = [node_dir, format!("/traffic-{server}").as_bytes()].concat();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map(Fd::from)
            .map_err(doing("opening a page of counters"))?;
        // In full, so that counting never meets a full /dev/shm. Again is nothing: all of it is there.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64)
            .map_err(doing("allocating a page of counters"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the file is at least LENGTH bytes long and never cut.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, &file, 0)
                .map_err(doing("mapping a page of counters"))?
        };
        Ok(TrafficPage { base: base.cast() })
    }

    fn lanes(&self) -> &[Lane] {
        // SAFETY: the mapping holds LANES of them, is page-aligned, and any bytes are valid ones.
        unsafe { std::slice::from_raw_parts(self.base, LANES) }
    }

    /// The lane of this thread.
    fn own(&self) -> Option<&Lane> {
        let on_stack = 0u8;
        // Stacks of threads are megabytes apart, and a fork's child has its parent's; numbers of processes are often
        // neighbours.
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

impl Drop for TrafficPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `attach` with this length; nothing borrowed from it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast_mut().cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_counted_is_summed_and_stays_when_they_and_their_mappings_are_gone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().as_os_str().as_encoded_bytes();
        let server = TrafficPage::attach(path, ServerId(3)).expect("made");
        // More threads than lanes, each with a mapping of its own, as processes have.
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let page = TrafficPage::attach(path, ServerId(3)).expect("there");
                    for _ in 0..1000 {
                        page.read(3);
                        page.written(5);
                    }
                });
            }
        });
        assert_eq!(server.totals(), (300_000, 500_000));
        assert_eq!(TrafficPage::attach(path, ServerId(4)).expect("another").totals(), (0, 0));
        drop(server);
        assert_eq!(TrafficPage::attach(path, ServerId(3)).expect("there").totals(), (300_000, 500_000));
    }
}
