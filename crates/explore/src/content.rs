//! What stands in the files: each 512 bytes of a request begin with a stamp that tells the run, the phase, the writer
//! and the place, so that bytes of another run, process or place are noticed, as well as wrong ones. What follows the
//! stamp is the same in the whole run. So a request is made by writing its stamps, and checked by one comparison.

use crate::random::mix;

/// How far stamps are apart, bytes.
pub const BLOCK: usize = 512;
/// Bytes of a stamp.
const STAMP: usize = 40;
/// Where buffers begin in memory: what O_DIRECT needs.
const ALIGNED: usize = 4096;

/// Who has written something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Author {
    /// A number of the run, which no other run has.
    pub run: u64,
    /// The phase.
    pub phase: u64,
    /// The process.
    pub rank: u32,
    /// Whether it was written in the measured part of the phase, and not before.
    pub measured: bool,
}

impl Author {
    fn stamp(&self, offset: u64) -> [u8; STAMP] {
        let words = [self.run, self.phase, u64::from(self.rank) << 1 | u64::from(self.measured), offset];
        // First what depends on everything: a short block has only the beginning of its stamp.
        let all = words.iter().fold(0, |all, word| mix(all ^ word));
        let mut stamp = [0; STAMP];
        for (room, word) in stamp.chunks_exact_mut(8).zip([all].iter().chain(&words)) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        stamp
    }
}

/// A request's bytes in memory.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// With what stands between stamps in a run.
    pub fn new(len: usize, run: u64) -> Buffer {
        let mut bytes = vec![0u8; len + ALIGNED];
        let start = bytes.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        let mut word = mix(run);
        for room in bytes[start..start + len].chunks_mut(8) {
            word = mix(word);
            room.copy_from_slice(&word.to_le_bytes()[..room.len()]);
        }
        Buffer { bytes, start, len }
    }

    /// The same, but what stands between stamps is the same in each [`BLOCK`]: so what was written by requests of one length can
    /// be read by requests of another, if both are multiples of it.
    pub fn periodic(len: usize, run: u64) -> Buffer {
        let mut buffer = Buffer::new(len, run);
        let block = buffer.bytes()[..len.min(BLOCK)].to_vec();
        for room in buffer.room().chunks_mut(BLOCK) {
            room.copy_from_slice(&block[..room.len()]);
        }
        buffer
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// All of it, to be read into.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Becomes what an author has at an offset.
    pub fn stamp(&mut self, author: &Author, offset: u64) {
        for (at, block) in (offset..).step_by(BLOCK).zip(self.room().chunks_mut(BLOCK)) {
            let stamp = author.stamp(at);
            let len = block.len().min(STAMP);
            block[..len].copy_from_slice(&stamp[..len]);
        }
    }

    /// Where the first byte is that another buffer of this length has differently.
    pub fn differs(&self, other: &Buffer) -> Option<usize> {
        if self.bytes() == other.bytes() {
            return None;
        }
        self.bytes().iter().zip(other.bytes()).position(|(one, other)| one != other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AUTHOR: Author = Author { run: 99, phase: 1, rank: 3, measured: true };

    fn made(author: &Author, offset: u64, len: usize) -> Buffer {
        let mut buffer = Buffer::new(len, author.run);
        buffer.stamp(author, offset);
        buffer
    }

    proptest! {
        #[test]
        fn every_wrong_byte_is_found(len in 1usize..5000, at: usize, flip in 1u8..=255) {
            let expected = made(&AUTHOR, 4096, len);
            let mut found = made(&AUTHOR, 4096, len);
            prop_assert_eq!(found.differs(&expected), None);
            found.room()[at % len] ^= flip;
            prop_assert_eq!(found.differs(&expected), Some(at % len));
        }
    }

    #[test]
    fn another_run_phase_writer_or_place_is_no_right_content() {
        for len in [16, 700, 4096] {
            let expected = made(&AUTHOR, 8192, len);
            for other in [
                Author { run: 98, ..AUTHOR },
                Author { phase: 0, ..AUTHOR },
                Author { rank: 4, ..AUTHOR },
                Author { measured: false, ..AUTHOR },
            ] {
                assert!(expected.differs(&made(&other, 8192, len)).is_some(), "{other:?}");
            }
            assert!(expected.differs(&made(&AUTHOR, 0, len)).is_some());
        }
    }

    #[test]
    fn what_long_requests_have_written_is_right_for_short_ones() {
        let mut long = Buffer::periodic(8192, 99);
        long.stamp(&AUTHOR, 16384);
        for at in (0..8192).step_by(1536).take(5) {
            let mut short = Buffer::periodic(1536, 99);
            short.stamp(&AUTHOR, 16384 + at as u64);
            assert_eq!(short.bytes(), &long.bytes()[at..at + 1536], "{at}");
        }
    }

    #[test]
    fn buffers_are_where_o_direct_needs_them() {
        for len in [1, 512, 1 << 20] {
            let buffer = Buffer::new(len, 1);
            assert_eq!((buffer.bytes().as_ptr() as usize % ALIGNED, buffer.bytes().len()), (0, len));
        }
    }
}
