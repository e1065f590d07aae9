//! Through which I/O nodes a description has written what was not synced since.
//!
//! What an I/O node has acknowledged is in the memory of its machine until it is synced there. So `fsync` asks each I/O node through
//! which was written, not only the one that serves the file by now; and where one of them is gone, nobody can say what became of
//! it: that is EIO, once, as NFS clients learn from the server's verifier (RFC 1813, WRITE and COMMIT). An I/O node whose process was
//! started again on the same machine can say it: the machine's memory has outlived the process.

use super::Data;
use crate::requests::To;
use bivouac_layout::{Map, NodeId, ServerId, ServerState, ShardId};
use bivouac_proto::Errno;
use bivouac_proto::data::DataRequest;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A server, and the machine that it ran on.
type Place = (ServerId, NodeId);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(Mutex<Vec<Place>>);

impl Unsynced {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        // Ignores poisoning: each change is a single insertion or assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, place: Place) {
        let mut places = self.places();
        if !places.contains(&place) {
            places.push(place);
        }
    }
}

fn place(map: &Map, server: ServerId) -> Option<Place> {
    map.server(server).map(|known| (server, known.node))
}

impl Data<'_> {
    /// The I/O node that serves the file by now, as it is to be noted when a write is acknowledged.
    fn io_node(self) -> Option<Place> {
        let map = self.session().map();
        place(&map, map.io_node(self.session().node(), self.file.ino))
    }

    /// Has the file written by `write`, and notes through which I/O node if it is forwarded.
    #[inline]
    pub(crate) fn noting_io_node<T>(self, write: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.file.ino.is_forwarded() { self.noting(write) } else { write() }
    }

    #[cold]
    fn noting<T>(self, write: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let before = self.io_node();
        let written = write();
        // If it has changed meanwhile, it may have been either; what has failed may have been done in part.
        for place in before.into_iter().chain(self.io_node()) {
            self.file.unsynced.note(place);
        }
        written
    }

    /// Puts a forwarded file on the backend's storage.
    ///
    /// # Errors
    /// What the backend says; EIO if something was written through an I/O node that cannot say what became of it.
    pub(crate) fn sync_forwarded(self) -> Result<(), Errno> {
        let written = std::mem::take(&mut *self.file.unsynced.places());
        let (serving, epoch) = (self.io_node(), self.session().map().epoch);
        let sync = |to| self.requests().data_at(to, DataRequest::Sync { ino: self.file.ino }).map(drop);
        sync(To::Forwarded(self.file.ino))?;
        for other in written {
            let map = self.session().map();
            // Where the map has changed meanwhile, another one may have answered.
            if Some(other) == serving && map.epoch == epoch {
                continue;
            }
            let is_there = place(&map, other.0) == Some(other)
                && map.server(other.0).is_some_and(|server| server.state == ServerState::Up);
            if !is_there || sync(To::Server(other.0, ShardId::FORWARDED)).is_err() {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }
}
