//! Moving bytes from one file to another.
//!
//! A file with holes keeps them: its length is set first, and only its data is copied. Pieces are large, and
//! aligned so that the backend's can go past the page cache.

use super::Worker;
use crate::tree::{Open, Turns};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// Bytes copied at once.
const PIECE: usize = 4 << 20;
/// To what addresses buffers are aligned.
const ALIGNMENT: usize = 4096;

/// Times of change come from clocks that tick (a kernel's every 4 ms): a file that was changed a moment ago
/// can be changed once more without its times telling.
const TICK: Duration = Duration::from_millis(20);

/// A thread's buffers: for what it has read, and for what it compares that with. They are as long as the
/// longest piece so far.
#[derive(Default)]
pub(super) struct Buffers(Vec<u8>, Vec<u8>);

impl Buffers {
    fn of(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        (aligned(&mut self.0, len), aligned(&mut self.1, len))
    }

    fn one(&mut self, len: usize) -> &mut [u8] {
        aligned(&mut self.0, len)
    }
}

fn aligned(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len + ALIGNMENT {
        *buffer = vec![0; len + ALIGNMENT];
    }
    let start = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    &mut buffer[start..start + len]
}

/// Waits out the moment in which a change might not show, if a file was changed just now. Whether it has
/// waited.
pub(super) fn settle(mtime: i64, ctime: i64) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let changed = Duration::from_nanos(mtime.max(ctime).max(0) as u64);
    let fresh = now.saturating_sub(changed) < TICK && changed < now + TICK;
    if fresh {
        std::thread::sleep(TICK);
    }
    fresh
}

pub(super) fn changed() -> io::Error {
    io::Error::other("its size changed while it was copied")
}

impl Worker {
    /// Copies a range; where the source has holes, the target has them from the start. The bytes copied.
    pub(super) fn range(
        &self,
        source: &dyn Open,
        target: &dyn Open,
        range: Range<u64>,
        sparse: bool,
        buffers: &mut Buffers,
    ) -> io::Result<u64> {
        if !sparse {
            return self.data(source, target, range, buffers);
        }
        let mut bytes = 0;
        let mut at = range.start;
        while at < range.end {
            let data = source.next_data(at..range.end)?.unwrap_or(range.end..range.end);
            at = data.end;
            bytes += self.data(source, target, data, buffers)?;
        }
        Ok(bytes)
    }

    /// Copies the blocks of a range whose turn it is.
    pub(super) fn turn(
        &self,
        (source, target): (&dyn Open, &dyn Open),
        range: Range<u64>,
        sparse: bool,
        (turns, turn): (&Turns, u16),
        buffers: &mut Buffers,
    ) -> io::Result<u64> {
        let mut bytes = 0;
        for block in range.start / turns.block..range.end.div_ceil(turns.block) {
            if block % turns.nodes.len() as u64 != u64::from(turn) {
                continue;
            }
            let begin = (block * turns.block).max(range.start);
            let end = ((block + 1) * turns.block).min(range.end);
            bytes += self.range(source, target, begin..end, sparse, buffers)?;
        }
        Ok(bytes)
    }

    /// Copies data, piece by piece.
    fn data(
        &self,
        source: &dyn Open,
        target: &dyn Open,
        range: Range<u64>,
        buffers: &mut Buffers,
    ) -> io::Result<u64> {
        let mut at = range.start;
        while at < range.end {
            self.pulse.go_on()?;
            let len = (range.end - at).min(PIECE as u64) as usize;
            self.throttle.take(len as u64);
            let piece = buffers.one(len);
            if source.read(at, piece)? != len {
                return Err(changed());
            }
            target.write(at, piece)?;
            if self.setup.verify {
                let (piece, back) = buffers.of(len);
                if target.read(at, back)? != len || back != piece {
                    return Err(io::Error::other(format!(
                        "what was written at byte {at} does not read back the same"
                    )));
                }
            }
            at += len as u64;
            self.moved.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(range.end.saturating_sub(range.start))
    }

    /// Whether two files have the same content.
    pub(super) fn is_same(
        &self,
        source: &dyn Open,
        target: &dyn Open,
        size: u64,
        buffers: &mut Buffers,
    ) -> io::Result<bool> {
        let mut at = 0;
        while at < size {
            let len = (size - at).min(PIECE as u64) as usize;
            self.throttle.take(len as u64);
            let (one, other) = buffers.of(len);
            if source.read(at, one)? != len {
                return Err(changed());
            }
            if target.read(at, other)? != len || one != other {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }
}
