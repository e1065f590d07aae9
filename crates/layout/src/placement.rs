//! Which server holds which byte of a file.
//!
//! Block `b` of a file lies on server `(first + b mod width) mod n` of the `n` servers of its generation.
//! There are no copies yet: the format has a field for their number (`replicas`), but no rule says where they
//! go. A file may have several generations, each for a range of it: servers that come or go give new ranges a
//! new generation, and what is already written stays where it is.

use crate::hash::{self, Use};
use crate::ids::{GenerationId, Ino, ServerId};
use crate::map::Map;
use crate::template::{First, Template};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Smallest block, bytes.
pub const MIN_BLOCK: u32 = 4 << 10;
/// Largest block, bytes.
pub const MAX_BLOCK: u32 = 128 << 20;
/// Block size unless said otherwise, bytes.
pub const DEFAULT_BLOCK: u32 = 512 << 10;

/// Whether a file can have blocks of so many bytes.
pub fn is_block_size(bytes: u32) -> bool {
    (MIN_BLOCK..=MAX_BLOCK).contains(&bytes) && bytes.is_multiple_of(MIN_BLOCK)
}

/// How one file is spread.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct FileLayout {
    /// Unit of striping, bytes: a multiple of 4 KiB from [`MIN_BLOCK`] to [`MAX_BLOCK`].
    pub block_size: u32,
    /// Over how many servers of its generation the file is striped; 0 means all of them.
    pub width: u16,
    /// Position in the generation's list of the server that holds block 0, modulo the list's length.
    pub first: u32,
    /// Copies of each block, at least 1.
    pub replicas: u8,
    /// The file's generations by range, ascending by `start`, the first starting at 0.
    pub ranges: Vec<LayoutRange>,
}

/// From `start` (bytes, a multiple of the block size) to the next range's start, blocks lie on `generation`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LayoutRange {
    /// First byte.
    pub start: u64,
    /// The servers.
    pub generation: GenerationId,
}

/// A stretch of a file that lies on one server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Who holds it.
    pub server: ServerId,
    /// Where it starts in the file, bytes; the sub-file has it at the same offset.
    pub offset: u64,
    /// Its length, bytes; never 0.
    pub len: u64,
}

impl FileLayout {
    /// The layout of a new file: spread over all servers of the newest generation, starting at a hashed one.
    pub fn spread(ino: Ino, block_size: u32, newest: GenerationId) -> FileLayout {
        FileLayout {
            block_size,
            width: 0,
            first: hash::number(Use::FirstServer, ino.0) as u32,
            replicas: 1,
            ranges: vec![LayoutRange { start: 0, generation: newest }],
        }
    }

    /// Whether the values are within their bounds and every generation is in `map`. Layouts come from peers:
    /// check before use; the other functions answer `None` or nothing for a layout that fails this.
    pub fn is_valid(&self, map: &Map) -> bool {
        is_block_size(self.block_size)
            && self.replicas >= 1
            && self.ranges.first().is_some_and(|r| r.start == 0)
            && self.ranges.windows(2).all(|w| w[0].start < w[1].start)
            && self.ranges.iter().all(|r| {
                r.start.is_multiple_of(u64::from(self.block_size))
                    && map.generation(r.generation).is_some_and(|g| !g.servers.is_empty())
            })
    }

    /// The server of the block that holds `offset`; no file goes as far as `u64::MAX`.
    pub fn server_at(&self, map: &Map, offset: u64) -> Option<ServerId> {
        self.piece_at(map, offset, u64::MAX).map(|p| p.server)
    }

    /// The stretch from `offset` that lies on one server, not beyond `end`.
    pub fn piece_at(&self, map: &Map, offset: u64, end: u64) -> Option<Piece> {
        let index = self.ranges.partition_point(|r| r.start <= offset).checked_sub(1)?;
        let servers = &map.generation(self.ranges[index].generation)?.servers;
        let range_end = self.ranges.get(index + 1).map_or(u64::MAX, |r| r.start);
        let width = self.effective_width(servers.len());
        let end = end.min(range_end);
        if width == 0 || self.block_size == 0 || offset >= end {
            return None;
        }
        let block = offset / u64::from(self.block_size);
        let slot = (u64::from(self.first) + block % width) % servers.len() as u64;
        // With one server all blocks of the range are one stretch.
        let stretch_end =
            if width == 1 { end } else { (block + 1).saturating_mul(u64::from(self.block_size)).min(end) };
        Some(Piece { server: servers[slot as usize], offset, len: stretch_end - offset })
    }

    /// The servers over which the blocks from `offset` on are striped, in such an order that block `b` is on
    /// the one at index `b mod` their number; and the offset where this ends, because another generation
    /// begins.
    pub fn turns_at(&self, map: &Map, offset: u64) -> Option<(Vec<ServerId>, u64)> {
        let index = self.ranges.partition_point(|r| r.start <= offset).checked_sub(1)?;
        let servers = &map.generation(self.ranges[index].generation)?.servers;
        let end = self.ranges.get(index + 1).map_or(u64::MAX, |r| r.start);
        let n = servers.len() as u64;
        let turns = (0..self.effective_width(servers.len()))
            .map(|turn| servers[((u64::from(self.first) + turn) % n) as usize])
            .collect();
        Some((turns, end))
    }

    /// The stretches of `range` in ascending order.
    pub fn pieces<'a>(&'a self, map: &'a Map, range: Range<u64>) -> impl Iterator<Item = Piece> + 'a {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let piece = self.piece_at(map, at, range.end)?;
            at += piece.len;
            Some(piece)
        })
    }

    /// Every server that can hold a byte of `0..end`, each once.
    pub fn servers(&self, map: &Map, end: u64) -> Vec<ServerId> {
        let mut found: Vec<ServerId> = Vec::new();
        for (i, range) in self.ranges.iter().enumerate() {
            let range_end = self.ranges.get(i + 1).map_or(u64::MAX, |r| r.start).min(end);
            let Some(generation) = map.generation(range.generation) else {
                continue;
            };
            let n = generation.servers.len() as u64;
            let width = self.effective_width(generation.servers.len());
            if range.start >= range_end || width == 0 || self.block_size == 0 {
                continue;
            }
            let first_block = range.start / u64::from(self.block_size);
            let last_block = (range_end - 1) / u64::from(self.block_size);
            // After `width` blocks the servers repeat.
            for block in first_block..=last_block.min(first_block.saturating_add(width - 1)) {
                let server = generation.servers[((u64::from(self.first) + block % width) % n) as usize];
                if !found.contains(&server) {
                    found.push(server);
                }
            }
        }
        found
    }

    /// How long the sub-file of a server is at most if the file has `size` bytes: the end of its last block
    /// below `size`, or `size` if that lies in the block. 0 if the server has no block there.
    pub fn end_on(&self, map: &Map, server: ServerId, size: u64) -> u64 {
        for (i, range) in self.ranges.iter().enumerate().rev() {
            let end = self.ranges.get(i + 1).map_or(u64::MAX, |r| r.start).min(size);
            let Some(generation) = map.generation(range.generation).filter(|_| range.start < end) else {
                continue;
            };
            let n = generation.servers.len() as u64;
            let width = self.effective_width(generation.servers.len());
            if width == 0 || self.block_size == 0 {
                continue;
            }
            let block_size = u64::from(self.block_size);
            let (first, last) = (range.start / block_size, (end - 1) / block_size);
            // Before `width` blocks the servers repeat.
            for block in (first..=last).rev().take(width as usize) {
                if generation.servers[((u64::from(self.first) + block % width) % n) as usize] == server {
                    return (block + 1).saturating_mul(block_size).min(end);
                }
            }
        }
        0
    }

    /// The resulting layout, for people: block size, servers, and which of them has the first block.
    pub fn described(&self, map: &Map) -> Template {
        let servers = self.ranges.first().and_then(|r| map.generation(r.generation)).map(|g| g.servers.len());
        let width = self.effective_width(servers.unwrap_or(0)).min(u64::from(u16::MAX)) as u16;
        Template {
            block_size: Some(self.block_size),
            width: Some(width),
            first: self.server_at(map, 0).map(First::Server),
            replicas: (self.replicas != 1).then_some(self.replicas),
        }
    }

    fn effective_width(&self, servers: usize) -> u64 {
        let width = if self.width == 0 { servers } else { (self.width as usize).min(servers) };
        width as u64
    }
}

#[cfg(test)]
mod tests;
