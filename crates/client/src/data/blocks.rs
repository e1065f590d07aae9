//! Reading and writing files that live in blocks.
//!
//! The layout divides a range into pieces. Pieces on this node are read and written directly in their
//! sub-files; the others go out in one exchange with all servers concerned. What has copies is written by its primary,
//! and read from any copy, one on this node first; where that cannot be shown at the moment, from the primary. No write touches the inode: a
//! file's size is the greatest length of its sub-files while somebody writes it.
//!
//! A read that comes back short finds out how long the file is, and reads again what lies before that end and
//! was missing: what was written meanwhile is there now, and only what is still missing is a hole, which
//! reads as zeros.
//!
//! An access of one piece on this node costs hardly more than the system call in it. So what leads there is inlined, and
//! the rest is apart: behind a system call each return to a caller is predicted wrongly where the kernel defends itself
//! against speculation, which takes some 7 ns each time.

mod reading;
mod writing;

use super::layouts::Known;
use super::local::{Direct, SubFile, SubFiles};
use crate::namespace::Namespace;
use crate::requests::OUTDATED;
use bivouac_layout::{FileLayout, Ino, Map, Piece, ServerId};
use bivouac_node::SlotId;
use bivouac_proto::Errno;
use bivouac_proto::attr::{FILE_MAX, Store, TRANSFER_MAX};
use bivouac_proto::data::DataRequest;
use bivouac_proto::header::MAX_PAYLOAD;
use std::sync::atomic::Ordering;

/// The longest piece that goes to an I/O node, bytes. (With 1 MiB, a message costs little for what it carries.)
const FORWARDED: u32 = 1 << 20;

/// A file in blocks, for the length of a call.
pub(crate) struct Blocks<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) ino: Ino,
    /// The open description's slot in the node's table.
    pub(crate) id: SlotId,
    pub(crate) known: &'a Known,
    pub(crate) layout: &'a FileLayout,
    pub(crate) local: &'a SubFiles,
}

impl Blocks<'_> {
    /// A request as the description's flags want it: O_DIRECT means something at an I/O node only.
    fn in_its_way(&self, request: DataRequest) -> DataRequest {
        let slot = self.ino.is_forwarded().then(|| self.namespace.session().table().slot(self.id)).flatten();
        let is_direct =
            slot.is_some_and(|slot| slot.flags.load(Ordering::Relaxed) as i32 & libc::O_DIRECT != 0);
        if is_direct { request.direct() } else { request }
    }

    /// The file's size. Sub-files that are all at hand tell it; then the inode's server, if nobody writes the
    /// file; then the servers of the file.
    fn length(&self) -> Result<u64, Errno> {
        let map = self.namespace.session().map();
        let mut length = Some(0);
        for server in self.layout.servers(&map, u64::MAX) {
            length = match self.local.known(&map, server).map(|sub_file| sub_file.length()) {
                Some(Direct::Done(there)) => length.map(|length| u64::max(length, there)),
                Some(Direct::ThroughServer) | None => None,
            };
        }
        if let Some(length) = length {
            return Ok(length);
        }
        let attr = self.namespace.attr_of(self.ino)?;
        if attr.layout.is_some_and(|layout| layout.version > self.layout.version) {
            // What was added since may be on other servers.
            return Err(self.noted(OUTDATED));
        }
        if attr.store == (Store::Blocks { settled: true }) {
            return Ok(attr.size);
        }
        let extents = self.namespace.extents(self.ino, self.layout).map_err(|errno| self.noted(errno))?;
        // What of it is lost with servers that have left, nobody of these has.
        Ok(extents.length.max(attr.size))
    }

    /// An error, which says perhaps that the layout is outdated: then the access is done again, whatever came of it.
    pub(crate) fn noted(&self, errno: Errno) -> Errno {
        // A server that has left cannot say so any more.
        let has_left = || errno == Errno::IO && self.namespace.is_outdated(self.ino, self.layout);
        if errno == OUTDATED || has_left() {
            self.known.outdate();
            return OUTDATED;
        }
        errno
    }

    /// The sub-file of a server of this node, for reading directly.
    #[inline]
    fn readable(&self, map: &Map, server: ServerId) -> Option<SubFile<'_>> {
        self.local.get((self.namespace.requests(), map), server, (self.ino, self.known), false)
    }

    /// The same for writing. Blocks that have copies are not written directly: their primary orders what is done to them.
    #[inline]
    fn writable(&self, map: &Map, server: ServerId) -> Option<SubFile<'_>> {
        match self.layout.replicas {
            1 => self.local.get((self.namespace.requests(), map), server, (self.ino, self.known), true),
            _ => None,
        }
    }

    /// Which server to read a piece from.
    fn reader(&self, map: &Map, piece: &Piece) -> ServerId {
        match self.layout.replicas {
            1 => piece.server,
            _ => map.reader_of(piece.group, self.namespace.session().node()).unwrap_or(piece.server),
        }
    }

    /// The pieces of a range, none longer than one message carries. An I/O node passes each piece on when it has all of it: so that
    /// both ways are used at once, what is long goes to it in pieces.
    fn transfers<'m>(&'m self, map: &'m Map, offset: u64, end: u64) -> impl Iterator<Item = Piece> + 'm {
        let most = if self.ino.is_forwarded() { FORWARDED } else { MAX_PAYLOAD };
        let mut at = offset;
        std::iter::from_fn(move || {
            let mut piece = self.layout.piece_at(map, at, end)?;
            piece.len = piece.len.min(u64::from(most));
            at += piece.len;
            Some(piece)
        })
    }

    /// The servers that can hold a part of the file.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.layout.servers(&self.namespace.session().map(), u64::MAX)
    }
}

/// The end of an access, clipped to the largest file and to what one call may transfer.
pub(super) fn end_of(offset: u64, len: usize) -> Result<u64, Errno> {
    let len = len.min(TRANSFER_MAX) as u64;
    let end = offset.saturating_add(len).min(FILE_MAX);
    if offset > end || (offset == end && len > 0) { Err(Errno::FBIG) } else { Ok(end) }
}
