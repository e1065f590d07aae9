//! Writing and appending through an open file description, and what the description's slot is to know of that.

use super::{Handle, check_range};
use crate::gather::gather;
use crate::inline::Outcome;
use bivouac_node::Slot;
use bivouac_node::release::monotonic;
use bivouac_proto::Errno;
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::meta::{CHOWN_AS_IT_IS, MetaReply, MetaRequest};
use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts a write as under way for as long as it lives. So if the process dies during the write, the agent
/// knows that the end of the writes is not known.
pub(super) struct Writing<'a>(&'a AtomicU32);

impl<'a> Writing<'a> {
    pub(super) fn begin(slot: &'a Slot) -> Writing<'a> {
        slot.writing.fetch_add(1, Ordering::AcqRel);
        Writing(&slot.writing)
    }

    /// The write failed, and parts of it may have been written: at its close the description reports that it
    /// does not know how far.
    pub(super) fn failed(self) {
        std::mem::forget(self);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handle {
    /// Writes at the shared offset (at the end, when it appends) and moves it.
    pub fn write(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let slot = self.writable()?;
        let _guard = self.lock_offset(slot)?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND != 0 {
            let (end, count) = self.append(slot, from)?;
            slot.offset.store(end, Ordering::Relaxed);
            return Ok(count);
        }
        let offset = slot.offset.load(Ordering::Relaxed);
        let count = self.write_at(slot, offset, from)?;
        slot.offset.store(offset + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Writes at an offset. (As Linux does, at the end when the description appends.)
    pub fn pwrite(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let slot = self.writable()?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND != 0 {
            return self.append(slot, from).map(|(_, count)| count);
        }
        self.write_at(slot, offset, from)
    }

    #[inline(always)]
    fn write_at(&self, slot: &Slot, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match from {
            [only] if !only.is_empty() => {
                check_range(offset, only.len())?;
                self.write_one(slot, offset, self.client.size_limit().clipped(offset, only)?)
            }
            _ => self.write_buffers(slot, offset, from),
        }
    }

    #[inline(never)]
    fn write_buffers(&self, slot: &Slot, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        check_range(offset, from.iter().map(|d| d.len()).sum())?;
        let mut slices = from.iter().filter(|d| !d.is_empty());
        let gathered;
        let data = match (slices.next(), slices.next()) {
            (None, _) => return Ok(0),
            (Some(only), None) => only,
            // One request, as one write.
            _ => {
                gathered = gather(from);
                &gathered[..]
            }
        };
        self.write_one(slot, offset, self.client.size_limit().clipped(offset, data)?)
    }

    /// Writes from one buffer. (Inlined: see the module `blocks`.)
    #[inline(always)]
    fn write_one(&self, slot: &Slot, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let sync = slot.flags.load(Ordering::Relaxed) as i32 & libc::O_DSYNC != 0;
        loop {
            if let Some(blocks) = self.in_blocks() {
                self.take_privileges()?;
                if offset > self.size_seen_by(slot) {
                    self.leaves_holes(slot);
                }
                let writing = Writing::begin(slot);
                let count = match self.noting_io_node(|| blocks.write(offset, data, sync)) {
                    _ if blocks.known.is_outdated() => {
                        // The same bytes are written again: the file is as long as this call will make it.
                        if let Err(errno) = self.renew_layout(blocks.known) {
                            writing.failed();
                            return Err(errno);
                        }
                        continue;
                    }
                    Ok(count) => count,
                    Err(errno) => {
                        writing.failed();
                        return Err(errno);
                    }
                };
                wrote(slot, offset + count as u64);
                if count < data.len() {
                    writing.failed();
                }
                if sync {
                    self.sync()?;
                }
                return Ok(count);
            }
            match self.write_inline(offset, data)? {
                Outcome::Done(count) => {
                    self.size_seen.fetch_max(offset + count as u64, Ordering::Relaxed);
                    if sync {
                        self.client.meta_on(self.ino, &MetaRequest::Sync { ino: self.ino })?;
                    }
                    return Ok(count);
                }
                Outcome::Moved => self.moved(self.spill()?)?,
            }
        }
    }

    /// The file's storage will not follow from how far it was written, so at the close its data servers have
    /// to be asked. (This counts a write that never ends, so that the report at the close says that it is
    /// incomplete.)
    pub(super) fn leaves_holes(&self, slot: &Slot) {
        if !self.uneven.swap(true, Ordering::Relaxed) {
            Writing::begin(slot).failed();
        }
    }

    /// Appends, whatever the description's flags say (`RWF_APPEND`); with `follow` the shared offset goes
    /// along.
    pub fn append_once(&self, from: &[IoSlice<'_>], follow: bool) -> Result<usize, Errno> {
        let slot = self.writable()?;
        let _guard = self.lock_offset(slot)?;
        let (end, count) = self.append(slot, from)?;
        if follow {
            slot.offset.store(end, Ordering::Relaxed);
        }
        Ok(count)
    }

    /// Appends; returns the file's end behind it and the count.
    pub(crate) fn append(&self, slot: &Slot, from: &[IoSlice<'_>]) -> Result<(u64, usize), Errno> {
        let mut end = slot.offset.load(Ordering::Relaxed);
        let mut count = 0;
        // One request, and so atomic, up to what a message carries.
        let gathered;
        let data: &[u8] = match from {
            [only] => only,
            _ => {
                gathered = gather(from);
                &gathered
            }
        };
        let data = match self.client.size_limit().get() {
            Some(_) if !data.is_empty() => self.client.size_limit().clipped(self.attr()?.size, data)?,
            _ => data,
        };
        for piece in data.chunks(MAX_PAYLOAD as usize) {
            let request = MetaRequest::Append { ino: self.ino };
            let appended = self.noting_io_node(|| {
                self.client.meta_with(self.ino, &request, &[IoSlice::new(piece)], &mut [])
            });
            match appended {
                // The server keeps size and times of what is appended.
                Ok((MetaReply::Appended { offset, written, .. }, _)) => {
                    count += written as usize;
                    end = offset + u64::from(written);
                    if (written as usize) < piece.len() {
                        break;
                    }
                }
                Ok(_) => return Err(Errno::PROTO),
                Err(_) if count > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_DSYNC != 0 {
            self.sync()?;
        }
        Ok((end, count))
    }

    /// To be called before blocks change: clears set-user-ID and set-group-ID bits, unless the superuser
    /// writes. (In a mount, the kernel knows who writes and says when to clear them.) For a write to inline
    /// data the server does this.
    pub(super) fn take_privileges(&self) -> Result<(), Errno> {
        if self.privileged.load(Ordering::Relaxed) && self.client.credentials().uid != 0 {
            match self.client.set_attr_of(self.ino, CHOWN_AS_IT_IS) {
                Ok(()) | Err(Errno::PERM) => self.privileged.store(false, Ordering::Relaxed),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Notes in the description's slot how far it wrote, and when.
pub(super) fn wrote(slot: &Slot, end: u64) {
    // This only grows, so mostly a look is enough. (What it is to be seen with comes by `slot.writing`, which is counted
    // down behind this.)
    if slot.end.load(Ordering::Relaxed) < end {
        slot.end.fetch_max(end, Ordering::AcqRel);
    }
    slot.wrote_at.store(monotonic(), Ordering::Relaxed);
}
