//! Looking for data and holes in those blocks of a file that are on this server.
//!
//! A sub-file has holes where other servers' blocks are, and they say nothing about the file. So the search
//! goes through the server's own blocks only, one after the other, and asks the local file system within
//! each. Behind the sub-file's end everything is a hole, up to the bound that the client gives.
//!
//! A hole that is reported is one. Data that is reported may be zeros: the local file system knows holes only
//! in units of its own blocks, and a search that would take too long reports data.

use crate::error::DataError;
use crate::store::DataStore;
use bivouac_layout::Ino;
use bivouac_proto::data::Share;
use rustix::io::Errno;
use std::ops::Range;

/// Most questions to the local file system in one search: some 50 ms.
const STEPS: u32 = 1 << 16;

impl DataStore {
    /// The first byte of `range` that is in this server's `share`, and is data (or, with `hole`, in a hole).
    /// ENXIO if there is none, EINVAL if the share makes no sense.
    pub fn seek_share(
        &self,
        ino: Ino,
        range: Range<u64>,
        share: Share,
        hole: bool,
    ) -> Result<u64, DataError> {
        let own = Blocks::new(share).ok_or(Errno::INVAL)?;
        let local = |offset| match self.seek(ino, offset, hole) {
            Ok(found) => Ok(Some(found)),
            Err(DataError::Io(errno)) if errno == bivouac_proto::Errno::NXIO => Ok(None),
            Err(other) => Err(other),
        };
        let found = if hole { own.find_hole(range, local) } else { own.find_data(range, local) };
        found?.ok_or(DataError::from(Errno::NXIO))
    }
}

/// The server's own blocks.
#[derive(Clone, Copy)]
struct Blocks {
    size: u64,
    width: u64,
    turn: u64,
}

impl Blocks {
    fn new(share: Share) -> Option<Blocks> {
        let (size, width, turn) = (share.block_size.into(), share.width.into(), share.turn.into());
        (size > 0 && turn < width).then_some(Blocks { size, width, turn })
    }

    /// The next contiguous bytes at or behind `offset` that are on this server.
    fn from(self, offset: u64) -> Option<Range<u64>> {
        if self.width == 1 {
            return Some(offset..u64::MAX);
        }
        let block = offset / self.size;
        let ahead = (self.turn + self.width - block % self.width) % self.width;
        let start = if ahead == 0 { offset } else { (block + ahead).checked_mul(self.size)? };
        Some(start..(block + ahead + 1).saturating_mul(self.size))
    }

    /// `local`: the next hole in the sub-file at or after an offset, its end included; `None` behind that.
    fn find_hole<E>(
        self,
        range: Range<u64>,
        local: impl Fn(u64) -> Result<Option<u64>, E>,
    ) -> Result<Option<u64>, E> {
        let mut at = range.start;
        for _ in 0..STEPS {
            let Some(own) = self.from(at).filter(|own| own.start < range.end) else { break };
            match local(own.start)? {
                None => return Ok(Some(own.start)),
                Some(hole) if hole < own.end => return Ok(Some(hole).filter(|hole| *hole < range.end)),
                Some(_) => at = own.end,
            }
        }
        Ok(None)
    }

    /// `local`: the next data in the sub-file at or after an offset; `None` if there is none.
    fn find_data<E>(
        self,
        range: Range<u64>,
        local: impl Fn(u64) -> Result<Option<u64>, E>,
    ) -> Result<Option<u64>, E> {
        let mut at = range.start;
        for _ in 0..STEPS {
            let Some(own) = self.from(at).filter(|own| own.start < range.end) else { return Ok(None) };
            match local(own.start)? {
                None => return Ok(None),
                Some(data) if data >= range.end => return Ok(None),
                Some(data) if data < own.end => return Ok(Some(data)),
                // Local blocks can be larger than ours, and reach into others'.
                Some(data) => at = data,
            }
        }
        Ok(Some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// A sub-file as a list of cells, each data or not, of `CELL` bytes.
    const CELL: u64 = 4;

    fn next(cells: &[bool], offset: u64, hole: bool) -> Result<Option<u64>, Infallible> {
        let len = cells.len() as u64 * CELL;
        if offset >= len {
            return Ok(None);
        }
        let at = |i: u64| cells[(i / CELL) as usize] != hole;
        Ok((offset..len).find(|i| at(*i)).or(hole.then_some(len)))
    }

    proptest! {
        #[test]
        fn what_is_found_is_the_first_own_byte_of_its_kind(
            cells in prop::collection::vec(any::<bool>(), 0..60),
            size in 1u32..20, width in 1u32..5, turn in 0u32..5, start in 0u64..260, len in 0u64..260,
        ) {
            prop_assume!(turn < width);
            let own = Blocks::new(Share { block_size: size, width, turn }).unwrap();
            let range = start..start + len;
            let is_own = |i: u64| i / u64::from(size) % u64::from(width) == u64::from(turn);
            let is_data = |i: u64| cells.get((i / CELL) as usize).copied().unwrap_or(false);
            let expected = |hole: bool| range.clone().find(|i| is_own(*i) && is_data(*i) != hole);
            prop_assert_eq!(own.find_hole(range.clone(), |at| next(&cells, at, true)), Ok(expected(true)));
            prop_assert_eq!(own.find_data(range.clone(), |at| next(&cells, at, false)), Ok(expected(false)));
        }

        #[test]
        fn no_offset_overflows(size in 1u32.., width in 1u32.., turn: u32, start: u64, end: u64) {
            prop_assume!(turn < width);
            let own = Blocks::new(Share { block_size: size, width, turn }).unwrap();
            let none = |_| Ok::<_, Infallible>(None);
            let hole = own.find_hole(start..end, none).unwrap();
            prop_assert!(hole.is_none_or(|at| (start..end).contains(&at)));
            own.find_data(start..end, none).unwrap();
        }
    }

    #[test]
    fn shares_that_are_none_are_refused() {
        for (block_size, width, turn) in [(0, 1, 0), (4096, 0, 0), (4096, 2, 2)] {
            assert!(Blocks::new(Share { block_size, width, turn }).is_none());
        }
    }

    #[test]
    fn a_search_that_takes_too_long_ends_with_data() {
        let own = Blocks::new(Share { block_size: 1, width: 2, turn: 0 }).unwrap();
        let full = |at: u64| Ok::<_, Infallible>(Some(at + 1));
        assert_eq!(own.find_hole(0..u64::MAX, full), Ok(None));
        assert!(own.find_data(0..u64::MAX, full).unwrap().is_some());
    }
}
