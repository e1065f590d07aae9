//! Attributes of an open file, its length and its space, and putting it on stable storage.

use super::blocks::Blocks;
use super::writing::{Writing, wrote};
use super::{Data, SET_ID};
use crate::host;
use crate::namespace::removed;
use crate::requests::{DataJob, data_done, data_job, piece_job};
use bivouac_node::Slot;
use bivouac_proto::Errno;
use bivouac_proto::attr::Attr;
use bivouac_proto::data::{DataRequest, Fallocate};
use bivouac_proto::meta::{MetaRequest, SetAttr};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Data<'_> {
    /// Its attributes, exact.
    pub(crate) fn attr(self) -> Result<Attr, Errno> {
        // Who writes knows that nothing is settled yet.
        let writing = self.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let record = writing.then(|| self.requests().known_record(self.file.ino)).flatten();
        let attr = match record.map_or_else(|| self.namespace().attr_of(self.file.ino), |(attr, _)| Ok(attr))
        {
            Err(Errno::NOENT) if self.file.directory => return Ok(*removed(self.file.ino)),
            // An I/O node has died, and the one in its place has not seen the file yet.
            Err(Errno::NOENT) if self.file.ino.is_forwarded() => return Err(Errno::STALE),
            found => found?,
        };
        self.learn(&attr);
        let attr = self.namespace().exact(*attr)?;
        self.file.size_seen.store(attr.size, Ordering::Relaxed);
        Ok(attr)
    }

    /// Sets attributes.
    pub(crate) fn set_attr(self, set: SetAttr) -> Result<(), Errno> {
        if set.mtime.is_some() {
            // Earlier writes no longer count for mtime, so the close must not report them.
            self.slot()?.wrote_at.store(0, Ordering::Relaxed);
        }
        if let Some(mode) = set.mode {
            self.file.privileged.store(mode & SET_ID != 0, Ordering::Relaxed);
        }
        self.namespace().set_attr_of(self.file.ino, set).map(drop)
    }

    /// Sets the size (`ftruncate`).
    pub(crate) fn truncate(self, size: u64) -> Result<(), Errno> {
        // The description keeps its older size version: what it wrote before must not count at its close.
        let attr = self.namespace().truncate_of(self.file.ino, size)?;
        self.learn(&attr);
        Ok(())
    }

    /// Allocates, punches or zeroes a range that ends where a file may. `keep`: its size stays.
    pub(crate) fn fallocate(
        self,
        slot: &Slot,
        range: Range<u64>,
        what: Fallocate,
        keep: bool,
    ) -> Result<(), Errno> {
        let Range { start: offset, end } = range;
        let size = self.attr()?.size;
        // Within the present size nothing grows, whatever the mode.
        let grow = !keep && end > size;
        if grow && self.session().size_limit().get().is_some_and(|limit| end > limit) {
            return Err(host::exceeded());
        }
        let end =
            if matches!(what, Fallocate::Zero | Fallocate::PunchHole) && !grow { end.min(size) } else { end };
        self.take_privileges()?;
        if offset >= end && !grow {
            return Ok(());
        }
        self.leave_inline()?;
        self.no_more_appending(slot)?;
        self.leaves_holes(slot);
        let mode = if keep && what == Fallocate::Extend { Fallocate::KeepSize } else { what };
        let writing = Writing::begin(slot);
        let allocated = self.by_newest_layout(|blocks| self.fallocate_pieces(blocks, offset..end, mode));
        let allocated = allocated.and_then(|done| done.ok_or(Errno::IO));
        wrote(slot, if grow && allocated.is_ok() { end } else { 0 });
        if allocated.is_err() {
            writing.failed();
        }
        allocated
    }

    fn fallocate_pieces(self, blocks: &Blocks<'_>, range: Range<u64>, mode: Fallocate) -> Result<(), Errno> {
        let map = self.session().map();
        let request = |offset, len| DataRequest::Fallocate { ino: self.file.ino, offset, len, mode };
        let mut jobs: Vec<DataJob<'_>> = blocks
            .layout
            .pieces(&map, range)
            .map(|piece| {
                let by = (&piece, blocks.layout.version);
                piece_job(by, request(piece.offset, piece.len), &[], &mut [])
            })
            .collect();
        self.requests().data_jobs(&mut jobs);
        jobs.iter_mut().try_for_each(|job| data_done(job).map(drop).map_err(|errno| blocks.noted(errno)))
    }

    /// Puts data and attributes on stable storage, on all servers that hold any. (This also serves
    /// `fdatasync`: the times, which it need not write, are in the same log as the size and the layout, which
    /// it must.)
    pub(crate) fn sync(self) -> Result<(), Errno> {
        if self.file.ino.is_forwarded() && !self.file.directory {
            return self.sync_forwarded();
        }
        if !self.file.directory {
            if self.in_blocks().is_none() {
                // Its data may have moved to blocks without this process noticing.
                self.learn(&*self.namespace().attr_of(self.file.ino)?);
            }
            let request = DataRequest::Sync { ino: self.file.ino };
            self.by_newest_layout(|blocks| {
                self.requests().by_newest_map(
                    |map| blocks.layout.servers(map, u64::MAX),
                    |_, servers| {
                        let job = |server| data_job((server, blocks.layout.version), request, &[], &mut []);
                        let mut jobs: Vec<_> = servers.iter().copied().map(job).collect();
                        self.requests().data_jobs(&mut jobs);
                        let done = |job| data_done(job).map(drop).map_err(|errno| blocks.noted(errno));
                        jobs.iter_mut().try_for_each(done)
                    },
                )
            })?;
        }
        self.requests().meta_on(self.file.ino, &MetaRequest::Sync { ino: self.file.ino }).map(|_| ())
    }
}
