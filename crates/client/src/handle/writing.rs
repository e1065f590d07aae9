//! Writing and appending through an open file description.

use super::Handle;
use bivouac_proto::Errno;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

impl Handle {
    /// Writes at the shared offset (at the end, when it appends) and moves it.
    pub fn write(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let slot = self.data().writable()?;
        let _guard = self.lock_offset(slot)?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND != 0 {
            let (end, count) = self.data().append(slot, from)?;
            slot.offset.store(end, Ordering::Relaxed);
            return Ok(count);
        }
        let offset = slot.offset.load(Ordering::Relaxed);
        let count = self.data().write_at(slot, offset, from)?;
        slot.offset.store(offset + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Writes at an offset. (As Linux does, at the end when the description appends.)
    pub fn pwrite(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let slot = self.data().writable()?;
        if slot.flags.load(Ordering::Relaxed) as i32 & libc::O_APPEND != 0 {
            return self.data().append(slot, from).map(|(_, count)| count);
        }
        self.data().write_at(slot, offset, from)
    }

    /// Appends, whatever the description's flags say (`RWF_APPEND`); with `follow` the shared offset goes
    /// along.
    pub fn append_once(&self, from: &[IoSlice<'_>], follow: bool) -> Result<usize, Errno> {
        let slot = self.data().writable()?;
        let _guard = self.lock_offset(slot)?;
        let (end, count) = self.data().append(slot, from)?;
        if follow {
            slot.offset.store(end, Ordering::Relaxed);
        }
        Ok(count)
    }
}
