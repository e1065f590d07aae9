//! Reading and writing inline data: one request each, to the inode's server.
//!
//! A file's data moves to blocks once, when the file grows beyond [`INLINE_MAX`]. A client that has not
//! noticed it is refused with `NotInline`, learns the layout, and goes on with blocks.

use super::Data;
use crate::requests::To;
use bivouac_layout::FileLayout;
use bivouac_proto::attr::{Attr, INLINE_MAX};
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use std::io::{IoSlice, IoSliceMut};

/// The result of reading or writing inline data.
pub(crate) enum Outcome {
    /// So many bytes.
    Done(usize),
    /// The file's data is not inline any more, or must move to blocks first.
    Moved,
}

impl Data<'_> {
    pub(crate) fn read_inline(self, offset: u64, buffer: &mut [u8]) -> Result<Outcome, Errno> {
        if let Some(contents) = &self.file.contents
            && let Some(all) = self.requests().still(contents)
        {
            let from = usize::try_from(offset).map_or(all.len(), |o| o.min(all.len()));
            let rest = &all[from..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            return Ok(Outcome::Done(count));
        }
        let len = buffer.len().min(INLINE_MAX);
        let request = MetaRequest::ReadInline { ino: self.file.ino, offset, len: len as u32 };
        match self.requests().meta(To::inode(self.file.ino), &request, &[], &mut one(&mut buffer[..len])) {
            Ok((_, count)) => Ok(Outcome::Done(count)),
            Err(failure) => moved(failure),
        }
    }

    pub(crate) fn write_inline(self, offset: u64, data: &[u8]) -> Result<Outcome, Errno> {
        if offset.saturating_add(data.len() as u64) > INLINE_MAX as u64 {
            return Ok(Outcome::Moved);
        }
        let request = MetaRequest::WriteInline { ino: self.file.ino, offset };
        match self.requests().meta(To::inode(self.file.ino), &request, &[IoSlice::new(data)], &mut []) {
            Ok(_) => Ok(Outcome::Done(data.len())),
            Err(failure) => moved(failure),
        }
    }

    /// Learns the layout of a file whose data has moved to blocks.
    pub(crate) fn learn_layout(self) -> Result<Box<FileLayout>, Errno> {
        layout_in(*self.namespace().attr_of(self.file.ino)?)
    }

    /// Moves the file's inline data to blocks.
    pub(crate) fn spill(self) -> Result<Box<FileLayout>, Errno> {
        match self.requests().meta_on(self.file.ino, &MetaRequest::Spill { ino: self.file.ino })? {
            MetaReply::Attr(attr) => layout_in(*attr),
            _ => Err(Errno::PROTO),
        }
    }
}

fn layout_in(attr: Attr) -> Result<Box<FileLayout>, Errno> {
    attr.layout.ok_or(Errno::IO)
}

fn moved(failure: Failure) -> Result<Outcome, Errno> {
    match failure {
        Failure::Refused(Refusal::NotInline) => Ok(Outcome::Moved),
        Failure::Refused(_) => Err(Errno::STALE),
        Failure::Errno(errno) => Err(errno),
    }
}

/// A reader's view of `IoSliceMut` for one buffer.
pub(crate) fn one(buffer: &mut [u8]) -> [IoSliceMut<'_>; 1] {
    [IoSliceMut::new(buffer)]
}
