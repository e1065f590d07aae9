//! Attributes of an open file, its length and its space, and putting it on stable storage.

use super::writing::{Writing, wrote};
use super::{Handle, SET_ID};
use crate::blocks::Blocks;
use crate::host;
use crate::names::removed;
use crate::rpc::{DataJob, data_done, data_job, piece_job};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FILE_MAX};
use bivouac_proto::data::{DataRequest, Fallocate};
use bivouac_proto::meta::{MetaRequest, SetAttr};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Handle {
    /// Its attributes, exact.
    pub fn attr(&self) -> Result<Attr, Errno> {
        // Who writes knows that nothing is settled yet.
        let writing = self.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let record = writing.then(|| self.client.known_record(self.ino)).flatten();
        let attr = match record.map_or_else(|| self.client.attr_of(self.ino), |(attr, _)| Ok(attr)) {
            Err(Errno::NOENT) if self.directory => return Ok(*removed(self.ino)),
            // An I/O node has died, and the one in its place has not seen the file yet.
            Err(Errno::NOENT) if self.ino.is_forwarded() => return Err(Errno::STALE),
            found => found?,
        };
        self.learn(&attr);
        let attr = self.client.exact(*attr)?;
        self.size_seen.store(attr.size, Ordering::Relaxed);
        Ok(attr)
    }

    /// Sets attributes.
    pub fn set_attr(&self, set: SetAttr) -> Result<(), Errno> {
        if set.mtime.is_some() {
            // Earlier writes no longer count for mtime, so the close must not report them.
            self.slot()?.wrote_at.store(0, Ordering::Relaxed);
        }
        if let Some(mode) = set.mode {
            self.privileged.store(mode & SET_ID != 0, Ordering::Relaxed);
        }
        self.client.set_attr_of(self.ino, set)
    }

    /// Writes through this description until now do not count for mtime any more, because it is about to be
    /// set explicitly.
    pub fn forget_write_time(&self) {
        if let Ok(slot) = self.slot() {
            slot.wrote_at.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the size (`ftruncate`).
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.usable()?;
        self.writable().map_err(|_| Errno::INVAL)?;
        // The description keeps its older size version: what it wrote before must not count at its close.
        let attr = self.client.truncate_of(self.ino, size)?;
        self.learn(&attr);
        Ok(())
    }

    /// Allocates, punches or zeroes a range; `mode` as for `fallocate(2)`.
    pub fn fallocate(&self, mode: i32, offset: i64, len: i64) -> Result<(), Errno> {
        self.usable()?;
        let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else {
            return Err(Errno::INVAL);
        };
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if keep => Fallocate::KeepSize,
            0 => Fallocate::Extend,
            libc::FALLOC_FL_PUNCH_HOLE if keep => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::Zero,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let slot = self.writable()?;
        let end = offset.checked_add(len).filter(|&end| end <= FILE_MAX).ok_or(Errno::FBIG)?;
        let size = self.attr()?.size;
        // Within the present size nothing grows, whatever the mode.
        let grow = !keep && end > size;
        if grow && self.client.size_limit().get().is_some_and(|limit| end > limit) {
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

    fn fallocate_pieces(&self, blocks: &Blocks<'_>, range: Range<u64>, mode: Fallocate) -> Result<(), Errno> {
        let map = self.client.map();
        let request = |offset, len| DataRequest::Fallocate { ino: self.ino, offset, len, mode };
        let mut jobs: Vec<DataJob<'_>> = blocks
            .layout
            .pieces(&map, range)
            .map(|piece| {
                let by = (&piece, blocks.layout.version);
                piece_job(by, request(piece.offset, piece.len), &[], &mut [])
            })
            .collect();
        self.client.data_jobs(&mut jobs);
        jobs.iter_mut().try_for_each(|job| data_done(job).map(drop).map_err(|errno| blocks.noted(errno)))
    }

    /// Puts data and attributes on stable storage, on all servers that hold any. (This also serves
    /// `fdatasync`: the times, which it need not write, are in the same log as the size and the layout, which
    /// it must.)
    pub fn sync(&self) -> Result<(), Errno> {
        self.usable()?;
        if self.ino.is_forwarded() && !self.directory {
            return self.sync_forwarded();
        }
        if !self.directory {
            if self.in_blocks().is_none() {
                // Its data may have moved to blocks without this process noticing.
                self.learn(&*self.client.attr_of(self.ino)?);
            }
            let request = DataRequest::Sync { ino: self.ino };
            self.by_newest_layout(|blocks| {
                self.client.by_newest_map(|map| {
                    let version = blocks.layout.version;
                    let servers = blocks.layout.servers(map, u64::MAX).into_iter();
                    let mut jobs: Vec<_> =
                        servers.map(|s| data_job((s, version), request, &[], &mut [])).collect();
                    self.client.data_jobs(&mut jobs);
                    let done = |job| data_done(job).map(drop).map_err(|errno| blocks.noted(errno));
                    jobs.iter_mut().try_for_each(done)
                })
            })?;
        }
        self.client.meta_on(self.ino, &MetaRequest::Sync { ino: self.ino }).map(|_| ())
    }

    /// An extended attribute's value.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.client.get_xattr_of(self.ino, name)
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr(&self) -> Result<Vec<u8>, Errno> {
        self.client.list_xattr_of(self.ino)
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
        self.client.set_xattr_of(self.ino, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.client.remove_xattr_of(self.ino, name)
    }
}
