//! Direct access to sub-files on this node.
//!
//! A server on the client's node passes the descriptor of its sub-file of a file over its Unix socket; from
//! then on blocks that lie there are read and written without the server. One descriptor for each server,
//! taken at the first access that needs it, kept for as long as the open file.

use crate::hidden::Hidden;
use crate::session::Client;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::data::DataRequest;
use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The sub-files of one file that were passed so far, by server number.
pub(crate) struct SubFiles(Box<[Place]>);

#[derive(Default)]
struct Place {
    passed: AtomicPtr<Hidden>,
    /// There was no sub-file when one was needed for reading: from then on the server is asked.
    missing: AtomicBool,
}

impl SubFiles {
    pub(crate) fn new(servers: usize) -> SubFiles {
        SubFiles((0..servers).map(|_| Place::default()).collect())
    }

    /// The sub-file on `server`, if it was passed already.
    pub(crate) fn known(&self, server: ServerId) -> Option<BorrowedFd<'_>> {
        let known = self.0.get(usize::from(server.0))?.passed.load(Ordering::Acquire);
        if known.is_null() {
            return None;
        }
        // SAFETY: installed from Box::into_raw, freed only when `self` is dropped.
        unsafe { &*known }.get()
    }

    /// The sub-file on `server`, if the server is on this node and passes it. With `create` a missing one is
    /// made; otherwise a missing one (a hole) is `None`, too, and the server is asked each time.
    pub(crate) fn get(
        &self,
        client: &Client,
        server: ServerId,
        ino: Ino,
        create: bool,
    ) -> Option<BorrowedFd<'_>> {
        let place = self.0.get(usize::from(server.0))?;
        if !place.passed.load(Ordering::Acquire).is_null() {
            return self.known(server);
        }
        if !create && place.missing.load(Ordering::Relaxed) {
            return None;
        }
        place.fetch(client, server, ino, create)
    }

    /// To be called when the kernel answers EBADF: the program has closed the descriptor without the library
    /// noticing. From now on the server reads and writes.
    pub(crate) fn lost(&self, server: ServerId) {
        if let Some(place) = self.0.get(usize::from(server.0)) {
            let known = place.passed.load(Ordering::Acquire);
            if !known.is_null() {
                // SAFETY: as in `known`.
                unsafe { &*known }.lost();
            }
        }
    }
}

impl Place {
    #[cold]
    fn fetch(&self, client: &Client, server: ServerId, ino: Ino, create: bool) -> Option<BorrowedFd<'_>> {
        let map = client.map();
        if !client.local_access || map.server(server)?.node != client.node() {
            return None;
        }
        let fd = match client.data(server, DataRequest::Pass { ino, create }, &[], &mut []) {
            Ok((_, _, fd)) => fd?,
            Err(errno) => {
                self.missing.store(errno == Errno::NOENT, Ordering::Relaxed);
                return None;
            }
        };
        client.fetch_traffic(server);
        let passed = Box::into_raw(Box::new(Hidden::new(fd)));
        let installed = match self.passed.compare_exchange(
            std::ptr::null_mut(),
            passed,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => passed,
            Err(other) => {
                // SAFETY: another thread was first; ours is still ours alone.
                drop(unsafe { Box::from_raw(passed) });
                other
            }
        };
        // SAFETY: as in `SubFiles::known`.
        unsafe { &*installed }.get()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let pointer = *self.passed.get_mut();
        if !pointer.is_null() {
            // SAFETY: installed from Box::into_raw; `&mut self` excludes users.
            drop(unsafe { Box::from_raw(pointer) });
        }
    }
}

/// A system call's error as the program sees it.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error() as u16)
}
