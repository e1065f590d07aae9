//! A descriptor that comes with the answer to an open.
//!
//! A program of this node that opens a file for reading mostly asks for its bytes next, and so for a descriptor of the sub-file.
//! Where the server of the inode has all of the bytes, too, that descriptor goes with the answer to the open: a small file is read
//! with one request instead of two. It is passed by the same rules as one that is asked for ([`super::blocks`]); where any of
//! them says no, the answer goes without.

use super::Storage;
use crate::restriping::Access;
use bivouac_layout::Ino;
use bivouac_proto::Reply;
use bivouac_proto::attr::{FileKind, Store};
use bivouac_proto::data::{Access as Pass, SubFile};
use bivouac_proto::meta::{MetaReply, MetaRequest};
use std::os::fd::OwnedFd;

impl Storage {
    /// The descriptor to go with the answer to a request of a program of this node, if one does.
    pub(super) fn with_opened(&self, request: &MetaRequest<'_>, reply: &Reply) -> Option<(SubFile, OwnedFd)> {
        let (MetaRequest::Open { how, .. } | MetaRequest::OpenInode { how, .. }) = request else {
            return None;
        };
        let Reply::Meta(MetaReply::Opened { attr, .. }) = reply else { return None };
        // What somebody is writing may be longer than it is known to be.
        let is_settled = attr.kind == FileKind::File && attr.store == Store::Blocks { settled: true };
        let layout = attr.layout.as_ref().filter(|layout| is_settled && how.pass && layout.replicas == 1)?;
        let map = self.links.map();
        if layout.only_server(&map, 0, attr.size) != Some(self.me) {
            return None;
        }
        let succession = map.server(self.me)?.succession();
        let (moved, descriptor) = self.sub_file_to_read(attr.ino, layout.version)?;
        Some((SubFile { server: self.me, succession, moved }, descriptor))
    }

    fn sub_file_to_read(&self, ino: Ino, layout: u32) -> Option<(u64, OwnedFd)> {
        // In this order: the descriptor is at least as new.
        let moved = self.fences()?.page().moved(ino);
        let _flight = self.restriping.enter(ino, layout, &Access::Reads).ok()?;
        Some((moved, self.data.pass(ino, Pass::Read).ok()?))
    }
}
