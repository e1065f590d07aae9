//! Writing and appending, and what the description's slot is to know of that.

use super::Data;
use super::gather::gather;
use super::inline::Outcome;
use super::reading::check_range;
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

impl Data<'_> {
    #[inline(always)]
    pub(crate) fn write_at(self, slot: &Slot, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match from {
            [only] if !only.is_empty() => {
                check_range(offset, only.len())?;
                self.write_one(slot, offset, self.session().size_limit().clipped(offset, only)?)
            }
            _ => self.write_buffers(slot, offset, from),
        }
    }

    #[inline(never)]
    fn write_buffers(self, slot: &Slot, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
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
        self.write_one(slot, offset, self.session().size_limit().clipped(offset, data)?)
    }

    /// Writes from one buffer. (Inlined: see the module `blocks`.)
    #[inline(always)]
    fn write_one(self, slot: &Slot, offset: u64, data: &[u8]) -> Result<usize, Errno> {
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
                    self.file.size_seen.fetch_max(offset + count as u64, Ordering::Relaxed);
                    if sync {
                        self.requests().meta_on(self.file.ino, &MetaRequest::Sync { ino: self.file.ino })?;
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
    pub(super) fn leaves_holes(self, slot: &Slot) {
        if !self.file.uneven.swap(true, Ordering::Relaxed) {
            Writing::begin(slot).failed();
        }
    }

    /// Appends; returns the file's end behind it and the count.
    pub(crate) fn append(self, slot: &Slot, from: &[IoSlice<'_>]) -> Result<(u64, usize), Errno> {
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
        let data = match self.session().size_limit().get() {
            Some(_) if !data.is_empty() => self.session().size_limit().clipped(self.attr()?.size, data)?,
            _ => data,
        };
        for piece in data.chunks(MAX_PAYLOAD as usize) {
            let request = MetaRequest::Append { ino: self.file.ino };
            let appended = self.noting_io_node(|| {
                self.requests().meta_with(self.file.ino, &request, &[IoSlice::new(piece)], &mut [])
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
    pub(super) fn take_privileges(self) -> Result<(), Errno> {
        if self.file.privileged.load(Ordering::Relaxed) && self.session().credentials().uid != 0 {
            match self.namespace().set_attr_of(self.file.ino, CHOWN_AS_IT_IS) {
                Ok(_) | Err(Errno::PERM) => self.file.privileged.store(false, Ordering::Relaxed),
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
