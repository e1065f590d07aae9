//! Connections to servers, in pools without locks.
//!
//! A thread takes a connection out of its server's pool, uses it alone, and puts it back; so requests of
//! different threads never wait for each other, and a fork never happens while a lock is held. Every
//! connection carries a request slot of the session: it has one request under way at most, which is what
//! gives requests their identity.

use crate::host::{Host, Number};
use bivouac_node::process;
use bivouac_transport::Connection;
use bivouac_transport::engine::Lane;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A connection with what belongs to it.
pub(crate) struct Link {
    pub(crate) lane: Lane,
    number: Number,
    /// Fork count of the process that made it: it must not be used after a fork.
    fork_count: u64,
    /// Which succession of its server it leads to: another process may have the server's number since.
    succession: u32,
    /// The process that made it, if that is another one than that whose memory this is: the descriptor exists only there.
    borrower: Option<u32>,
}

impl Link {
    pub(crate) fn new(
        host: &dyn Host,
        connection: Connection,
        fork_count: u64,
        slot: u32,
        succession: u32,
    ) -> Link {
        let number = Number::new(host, connection.fd());
        let borrower = host.borrower();
        Link { lane: Lane::new(connection, slot), number, fork_count, succession, borrower }
    }

    /// Whether it is as good as when it was taken.
    pub(crate) fn works(&self) -> bool {
        self.number.holds() && !self.lane.connection.is_broken()
    }

    /// Whether it can carry another request.
    fn usable(&self, fork_count: u64) -> bool {
        self.fork_count == fork_count && self.works()
    }

    /// Gets rid of it. A descriptor number that the program has taken over is left alone.
    pub(crate) fn discard(self) {
        let here = self.borrower.is_none_or(|process| process == process::real_pid());
        if !self.number.give_up() || !here {
            self.lane.connection.forget_descriptor();
        }
    }
}

/// How many idle connections are kept for each server.
const KEPT: usize = 16;

/// The idle connections to one server.
#[derive(Default)]
pub(crate) struct Pool([AtomicPtr<Link>; KEPT]);

impl Pool {
    /// An idle connection of this process's fork count, to this succession of the server, if there is one.
    pub(crate) fn take(&self, fork_count: u64, succession: u32) -> Option<Box<Link>> {
        for place in &self.0 {
            if place.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let taken = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if taken.is_null() {
                continue;
            }
            // SAFETY: pointers in the pool come from Box::into_raw in `give`, and the swap made this thread
            // the only one that has it.
            let link = unsafe { Box::from_raw(taken) };
            if link.usable(fork_count) && link.succession == succession {
                return Some(link);
            }
            link.discard();
        }
        None
    }

    /// Puts a connection back, or closes it when there are enough or it is broken.
    pub(crate) fn give(&self, link: Box<Link>, fork_count: u64) {
        if !link.usable(fork_count) {
            return link.discard();
        }
        let pointer = Box::into_raw(link);
        for place in &self.0 {
            if place
                .compare_exchange(std::ptr::null_mut(), pointer, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
        // SAFETY: no place took it, so it is still ours alone.
        unsafe { Box::from_raw(pointer) }.discard();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for place in &mut self.0 {
            let pointer = *place.get_mut();
            if !pointer.is_null() {
                // SAFETY: as in `take`; `&mut self` excludes everybody else.
                unsafe { Box::from_raw(pointer) }.discard();
            }
        }
    }
}
