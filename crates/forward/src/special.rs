//! Reads and writes that programs want carried out otherwise than through the page cache alone: O_DIRECT, and O_SYNC or O_DSYNC.
//!
//! What goes past the page cache has to be aligned: its place in the file, its length, and the memory. The first two are the
//! program's; for the third it is copied through memory of this module's. Where a place or a length is not aligned, or the backend
//! cannot do without the page cache, it goes through that, as with those file systems that never refuse O_DIRECT. Requests that are
//! merged go the way of the first of them, unless they are not aligned together.

use crate::backend::File;
use crate::files::Open;
use crate::kernel;
use bivouac_proto::Errno;
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// To what the places and lengths of requests have to be aligned to go past the page cache, bytes: what every file system and
/// disk takes.
const ALIGNED: u64 = 4096;

/// Bytes in a block of a thread's memory; with so many, the longest batch fits into one system call.
const BLOCK: usize = 64 << 10;
/// Blocks that a thread keeps from one request to the next.
const KEPT: usize = 16;

/// How a request is carried out. The default is through the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Way {
    /// Past the page cache.
    pub(crate) direct: bool,
    /// A write is on stable storage when it returns.
    pub(crate) sync: bool,
}

/// Whether a request may go past the page cache.
pub(crate) fn is_aligned(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(ALIGNED) && len.is_multiple_of(ALIGNED)
}

/// A file's descriptors that go past the page cache. `None` in them: the backend cannot do that.
#[derive(Default)]
pub(crate) struct Direct {
    reader: OnceLock<Option<OwnedFd>>,
    writer: OnceLock<Option<OwnedFd>>,
}

impl Direct {
    fn get<'d>(of: &'d OnceLock<Option<OwnedFd>>, file: &OwnedFd, mode: OFlags) -> Option<&'d OwnedFd> {
        of.get_or_init(|| kernel::reopen(file, mode | OFlags::DIRECT).ok()).as_ref()
    }
}

#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

thread_local! {
    static MEMORY: RefCell<Vec<Box<Block>>> = const { RefCell::new(Vec::new()) };
}

/// Does something with so many bytes of aligned memory, which has anything in it.
fn with_memory<T>(len: usize, act: impl FnOnce(&mut [Box<Block>]) -> T) -> T {
    MEMORY.with_borrow_mut(|memory| {
        let count = len.div_ceil(BLOCK);
        while memory.len() < count {
            memory.push(Box::new(Block([0; BLOCK])));
        }
        let done = act(memory.get_mut(..count).unwrap_or_default());
        memory.truncate(KEPT);
        done
    })
}

/// The first bytes of memory, block by block.
fn pieces(memory: &mut [Box<Block>], len: usize) -> impl Iterator<Item = &mut [u8]> {
    let mut left = len;
    memory.iter_mut().map(move |block| {
        let now = left.min(BLOCK);
        left -= now;
        &mut block.0[..now]
    })
}

/// A file that is accessed in another way than usual.
pub(crate) struct Special(pub(crate) Arc<Open>, pub(crate) Way);

impl Special {
    fn flags(&self) -> ReadWriteFlags {
        if self.1.sync { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() }
    }

    /// Reads past the page cache. `None`: that cannot be done.
    fn read_direct(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Option<Result<usize, Errno>> {
        let len = into.iter().map(|slice| slice.len()).sum();
        if !self.1.direct || !is_aligned(offset, len as u64) {
            return None;
        }
        let fd = Direct::get(&self.0.direct.reader, self.0.reader().ok()?, OFlags::RDONLY)?;
        with_memory(len, |memory| {
            let mut slices: Vec<_> = pieces(memory, len).map(IoSliceMut::new).collect();
            let count = match rustix::io::preadv(fd, &mut slices, offset) {
                Err(rustix::io::Errno::INVAL) => return None,
                Err(error) => return Some(Err(kernel::errno(error))),
                Ok(count) => count,
            };
            let mut from = slices.iter().map(|slice| &**slice);
            let mut piece: &[u8] = &[];
            let mut left = count;
            for slice in into {
                let mut to = &mut **slice;
                while left > 0 && !to.is_empty() {
                    if piece.is_empty() {
                        piece = from.next().unwrap_or_default();
                    }
                    let now = to.len().min(piece.len()).min(left);
                    let (filled, rest) = std::mem::take(&mut to).split_at_mut(now);
                    filled.copy_from_slice(&piece[..now]);
                    (to, piece, left) = (rest, &piece[now..], left - now);
                }
            }
            Some(Ok(count))
        })
    }

    /// Writes past the page cache. `None`: that cannot be done.
    fn write_direct(&self, offset: u64, from: &[IoSlice<'_>]) -> Option<Result<usize, Errno>> {
        let len = from.iter().map(|slice| slice.len()).sum();
        if !self.1.direct || !is_aligned(offset, len as u64) {
            return None;
        }
        let fd = Direct::get(&self.0.direct.writer, self.0.writer().ok()?, OFlags::WRONLY)?;
        with_memory(len, |memory| {
            let mut to = pieces(memory, len);
            let mut room: &mut [u8] = &mut [];
            for slice in from {
                let mut piece = &**slice;
                while !piece.is_empty() {
                    if room.is_empty() {
                        room = to.next()?;
                    }
                    let now = piece.len().min(room.len());
                    let (filled, rest) = std::mem::take(&mut room).split_at_mut(now);
                    filled.copy_from_slice(&piece[..now]);
                    (room, piece) = (rest, &piece[now..]);
                }
            }
            drop(to);
            let slices: Vec<_> = pieces(memory, len).map(|piece| IoSlice::new(piece)).collect();
            match rustix::io::pwritev2(fd, &slices, offset, self.flags()) {
                Err(rustix::io::Errno::INVAL) => None,
                done => Some(done.map_err(kernel::errno)),
            }
        })
    }
}

impl File for Special {
    fn read_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        self.read_direct(offset, into).unwrap_or_else(|| self.0.read_at(offset, into))
    }

    fn write_at(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.write_direct(offset, from).unwrap_or_else(|| {
            rustix::io::pwritev2(self.0.writer()?, from, offset, self.flags()).map_err(kernel::errno)
        })
    }
}
