//! Reading through an open file description.

use super::Handle;
use bivouac_proto::Errno;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

impl Handle {
    /// Reads at the shared offset and moves it.
    pub fn read(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let slot = self.data().readable()?;
        let _guard = self.lock_offset(slot)?;
        let offset = slot.offset.load(Ordering::Relaxed);
        let count = self.data().read_at(offset, into)?;
        slot.offset.store(offset + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Reads at an offset.
    pub fn pread(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        self.data().readable()?;
        self.data().read_at(offset, into)
    }
}
