//! Reading, wherever the data is.

use super::Data;
use super::inline::Outcome;
use bivouac_proto::Errno;
use bivouac_proto::attr::{FILE_MAX, TRANSFER_MAX};
use std::io::IoSliceMut;

impl Data<'_> {
    #[inline(always)]
    pub(crate) fn read_at(self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match into {
            [only] if !only.is_empty() => {
                check_range(offset, only.len())?;
                self.read_one(offset, only)
            }
            _ => self.read_buffers(offset, into),
        }
    }

    #[inline(never)]
    fn read_buffers(self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        check_range(offset, into.iter().map(|b| b.len()).sum())?;
        let mut buffers = into.iter_mut().filter(|b| !b.is_empty());
        match (buffers.next(), buffers.next()) {
            (None, _) => Ok(0),
            (Some(only), None) => self.read_one(offset, only),
            _ => self.read_several(offset, into),
        }
    }

    /// Reads into one buffer. (Inlined: see the module `blocks`.)
    #[inline(always)]
    pub(crate) fn read_one(self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        if offset >= FILE_MAX {
            return Ok(0);
        }
        loop {
            if let Some(blocks) = self.in_blocks() {
                let count = blocks.read(offset, buffer);
                if !blocks.known.is_outdated() {
                    return count;
                }
                self.renew_layout(blocks.known)?;
                continue;
            }
            match self.read_inline(offset, buffer)? {
                Outcome::Done(count) => return Ok(count),
                Outcome::Moved => self.moved(self.learn_layout()?)?,
            }
        }
    }
}

/// Refuses a transfer whose end no offset could name, as the kernel does.
pub(super) fn check_range(offset: u64, len: usize) -> Result<(), Errno> {
    let end = offset.checked_add(len.min(TRANSFER_MAX) as u64);
    if end.is_some_and(|end| end <= FILE_MAX) { Ok(()) } else { Err(Errno::INVAL) }
}
