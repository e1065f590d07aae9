//! Which server holds which byte of a file.
//!
//! Block `b` of a file belongs to the [group](crate::groups) at position `(first + b mod width) mod n` of the `n`
//! servers of its generation, with the spread number `(first / n + b / width) mod spreads(n)`: so from one
//! round of blocks to the next, and from one small file to the next, the copies of a server's blocks go to
//! other servers. A file may have several generations, each for a range of it and with a `first` of the range's own:
//! servers that come or go give new ranges a new generation, and what is already written stays where it is.

use crate::groups::{Group, spreads};
use crate::hash::{self, Use};
use crate::ids::{GenerationId, Ino, ServerId};
use crate::map::{Map, NO_SERVER};
use crate::template::{First, Template};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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
    /// Copies of each block, from 1 to [`Map::copies`].
    pub replicas: u8,
    /// The file's generations by range, ascending by `start`, the first starting at 0.
    pub ranges: Vec<LayoutRange>,
    /// How often ranges of the file have gone to other servers ([`crate::restripe`]). Servers that blocks have left refuse
    /// who goes by an older version.
    pub version: u32,
    /// The first block was put on a certain server on purpose: it stays there as long as that server does.
    pub placed: bool,
}

/// From `start` (bytes, a multiple of the block size) to the next range's start, blocks lie on `generation`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LayoutRange {
    /// First byte.
    pub start: u64,
    /// The servers.
    pub generation: GenerationId,
    /// Position in the generation's list of the server that holds block 0, or would hold it, modulo the list's length.
    /// What exceeds the length chooses where copies begin.
    pub first: u32,
}

/// A stretch of a file that lies on one server, and its copies on others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Who answers for it: the primary of its group.
    pub server: ServerId,
    /// What it is replicated with.
    pub group: Group,
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
            replicas: 1,
            ranges: vec![LayoutRange {
                start: 0,
                generation: newest,
                first: hash::number(Use::FirstServer, ino.0) as u32,
            }],
            version: 0,
            placed: false,
        }
    }

    /// Whether the values are within their bounds and every generation is in `map`. Layouts come from peers:
    /// check before use; the other functions answer `None` or nothing for a layout that fails this.
    pub fn is_valid(&self, map: &Map) -> bool {
        is_block_size(self.block_size)
            && (1..=map.copies).contains(&self.replicas)
            && self.ranges.first().is_some_and(|r| r.start == 0)
            && self.ranges.windows(2).all(|w| w[0].start < w[1].start)
            && self.ranges.iter().all(|r| {
                r.start.is_multiple_of(u64::from(self.block_size))
                    && map.generation(r.generation).is_some_and(|g| !g.servers.is_empty())
            })
    }

    /// Whether it names servers that have left the deployment: then the file has another layout by now, because nothing of any
    /// file was left on them; or else what was left there is lost.
    pub fn names_servers_that_left(&self, map: &Map) -> bool {
        let generations = self.ranges.iter().filter_map(|range| map.generation(range.generation));
        generations.flat_map(|generation| &generation.servers).any(|server| map.server(*server).is_none())
    }

    /// The server that answers for the block that holds `offset`; no file goes as far as `u64::MAX`.
    pub fn server_at(&self, map: &Map, offset: u64) -> Option<ServerId> {
        self.piece_at(map, offset, u64::MAX).map(|p| p.server)
    }

    /// The stretch from `offset` that lies on one server, not beyond `end`.
    pub fn piece_at(&self, map: &Map, offset: u64, end: u64) -> Option<Piece> {
        self.piece_in(map, offset, end)
    }

    /// The server that answers for all of a range, if that is one. (Each access asks this: the answer is small.)
    pub fn only_server(&self, map: &Map, offset: u64, end: u64) -> Option<ServerId> {
        self.piece_in(map, offset, end).filter(|piece| piece.len == end - offset).map(|piece| piece.server)
    }

    #[inline(always)]
    fn piece_in(&self, map: &Map, offset: u64, end: u64) -> Option<Piece> {
        let stripe = self.stripe_at(map, offset)?;
        let end = end.min(stripe.end);
        if offset >= end {
            return None;
        }
        let block = offset / u64::from(self.block_size);
        // With one server all blocks of the range are one stretch.
        let stretch_end = match stripe.period() {
            1 => end,
            _ => (block + 1).saturating_mul(u64::from(self.block_size)).min(end),
        };
        let group = stripe.group(block);
        Some(Piece { server: map.primary_of(group)?, group, offset, len: stretch_end - offset })
    }

    /// The servers that answer for the blocks from `offset` on, in such an order that block `b` is on the one
    /// at index `b mod` their number; and the offset where this ends, because another generation begins.
    pub fn turns_at(&self, map: &Map, offset: u64) -> Option<(Vec<ServerId>, u64)> {
        let stripe = self.stripe_at(map, offset)?;
        let mut turns: Vec<ServerId> =
            (0..stripe.period()).map(|block| map.primary_of(stripe.group(block))).collect::<Option<_>>()?;
        // While no server is down, every round of blocks has the same servers.
        let (first, others) = turns.split_at(stripe.width as usize);
        if others.chunks(first.len().max(1)).all(|round| round == first) {
            turns.truncate(stripe.width as usize);
        }
        Some((turns, stripe.end))
    }

    /// How many servers hold each block.
    #[inline]
    pub fn copies(&self, map: &Map) -> u8 {
        self.replicas.min(map.copies)
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

    /// Every server that may serve a byte of `0..end`, each once: the holders in step.
    pub fn servers(&self, map: &Map, end: u64) -> Vec<ServerId> {
        self.holders(map, end, |_, _| false)
    }

    /// Every server whose sub-file says how long the file is, each once: the holders in step. The sub-file of one that is
    /// behind in other blocks of the file has any length while it catches up: it is left out, if others have what it has.
    pub fn servers_to_measure(&self, map: &Map, end: u64) -> Vec<ServerId> {
        let mut servers = self.servers(map, end);
        // What was lost with servers that have left did not reach further than the inode says: that was noted when they left.
        if servers.contains(&NO_SERVER) && !self.groups(map, end).any(|group| map.is_lost_otherwise(group)) {
            servers.retain(|server| *server != NO_SERVER);
        }
        if map.behind.is_empty() {
            return servers;
        }
        let behind: BTreeSet<ServerId> =
            self.groups(map, end).flat_map(|group| map.holders(group).behind()).collect();
        let is_whole = |server: &ServerId| !behind.contains(server);
        servers.retain(|server| {
            let has = |group: &Group| map.holders(*group).in_step().any(|holder| holder == *server);
            let has_others = |group| map.serving(group).any(|other| is_whole(&other));
            is_whole(server) || !self.groups(map, end).filter(has).all(has_others)
        });
        servers
    }

    /// Every server that has to make a change of all of `0..end`, each once: the holders in step, and those that are
    /// catching up.
    pub fn servers_to_change(&self, map: &Map, end: u64) -> Vec<ServerId> {
        self.holders(map, end, |map, server| map.is_up(server))
    }

    /// Every server that may have stored a byte of `0..end`, each once, whether it is there or not.
    pub fn servers_to_clear(&self, map: &Map, end: u64) -> Vec<ServerId> {
        let mut servers = self.holders(map, end, |_, _| true);
        servers.retain(|server| *server != NO_SERVER);
        servers
    }

    /// The holders in step, and others if `also` says so. [`NO_SERVER`] is among them where no copy of some blocks is left:
    /// nobody can tell how far these reached, or change them.
    fn holders(&self, map: &Map, end: u64, also: impl Fn(&Map, ServerId) -> bool) -> Vec<ServerId> {
        let mut found: Vec<ServerId> = Vec::new();
        for group in self.groups(map, end) {
            let holders = map.holders(group);
            let behind = holders.behind().filter(|server| also(map, *server));
            let nobody = map.is_gone(group).then_some(NO_SERVER);
            for server in holders.in_step().chain(behind).chain(nobody) {
                if !found.contains(&server) {
                    found.push(server);
                }
            }
        }
        found
    }

    /// The groups of the blocks of `0..end`.
    pub fn groups<'a>(&'a self, map: &'a Map, end: u64) -> impl Iterator<Item = Group> + 'a {
        self.groups_in(map, 0..end)
    }

    /// The groups of the blocks of a range.
    pub fn groups_in<'a>(&'a self, map: &'a Map, bytes: Range<u64>) -> impl Iterator<Item = Group> + 'a {
        self.ranges.iter().filter_map(move |range| Some((range, self.stripe_at(map, range.start)?))).flat_map(
            move |(range, stripe)| {
                let (start, end) = (range.start.max(bytes.start), stripe.end.min(bytes.end));
                let block_size = u64::from(self.block_size);
                let blocks = start / block_size..end.div_ceil(block_size);
                // Then the groups repeat.
                let period = stripe.period() as usize;
                let is_empty = start >= end;
                blocks.take(if is_empty { 0 } else { period }).map(move |block| stripe.group(block))
            },
        )
    }

    /// How many of the first `size` bytes are in each group.
    pub(crate) fn bytes_by_group<'a>(
        &'a self,
        map: &'a Map,
        size: u64,
    ) -> impl Iterator<Item = (Group, u64)> + 'a {
        let block_size = u64::from(self.block_size.max(1));
        self.ranges
            .iter()
            .filter_map(move |range| Some((range.start, self.stripe_at(map, range.start)?)))
            .flat_map(move |(start, stripe)| {
                let end = stripe.end.min(size).max(start);
                let (first, last, period) = (start / block_size, end.div_ceil(block_size), stripe.period());
                (first..last).take(period as usize).map(move |block| {
                    let blocks = (last - block).div_ceil(period);
                    let has_last = (last - 1 - block).is_multiple_of(period);
                    let beyond = if has_last { last.saturating_mul(block_size) - end } else { 0 };
                    (stripe.group(block), blocks.saturating_mul(block_size) - beyond)
                })
            })
    }

    /// Every server that may have stored a byte of a range, each once, whether it is there or not.
    pub fn holders_in(&self, map: &Map, range: Range<u64>) -> Vec<ServerId> {
        let mut found: Vec<ServerId> = Vec::new();
        for group in self.groups_in(map, range) {
            for server in map.holders(group).all() {
                if *server != NO_SERVER && !found.contains(server) {
                    found.push(*server);
                }
            }
        }
        found
    }

    /// How long the sub-file of a server is at most if the file has `size` bytes: the end of its last block
    /// below `size`, or `size` if that lies in the block. 0 if the server has no block there.
    pub fn end_on(&self, map: &Map, server: ServerId, size: u64) -> u64 {
        for range in self.ranges.iter().rev() {
            let Some(stripe) = self.stripe_at(map, range.start) else {
                continue;
            };
            let end = stripe.end.min(size);
            if range.start >= end {
                continue;
            }
            let block_size = u64::from(self.block_size);
            let (first, last) = (range.start / block_size, (end - 1) / block_size);
            // Before that the servers repeat.
            for block in (first..=last).rev().take(stripe.period() as usize) {
                if map.holders(stripe.group(block)).all().contains(&server) {
                    return (block + 1).saturating_mul(block_size).min(end);
                }
            }
        }
        0
    }

    /// How the range that holds `offset` is striped.
    #[inline]
    fn stripe_at(&self, map: &Map, offset: u64) -> Option<Stripe> {
        let index = self.ranges.partition_point(|r| r.start <= offset).checked_sub(1)?;
        let LayoutRange { generation, first, .. } = self.ranges[index];
        let servers = map.generation(generation)?.servers.len() as u64;
        let width = if self.width == 0 { servers } else { servers.min(self.width.into()) };
        if width == 0 || self.block_size == 0 {
            return None;
        }
        Some(Stripe {
            generation,
            first: first.into(),
            servers,
            width,
            copies: self.copies(map),
            end: self.ranges.get(index + 1).map_or(u64::MAX, |r| r.start),
        })
    }

    /// The resulting layout, for people: block size, servers, and which of them has the first block.
    pub fn described(&self, map: &Map) -> Template {
        let width = self.stripe_at(map, 0).map_or(0, |stripe| stripe.width.min(u16::MAX.into()) as u16);
        Template {
            block_size: Some(self.block_size),
            width: Some(width),
            first: self.server_at(map, 0).map(First::Server),
            replicas: (self.replicas != 1).then_some(self.replicas),
        }
    }
}

/// How the blocks of one range are dealt.
struct Stripe {
    generation: GenerationId,
    first: u64,
    /// Servers of the generation, at least 1.
    servers: u64,
    /// Over how many of them, at least 1.
    width: u64,
    copies: u8,
    /// Where the range ends.
    end: u64,
}

impl Stripe {
    /// After so many blocks the groups repeat.
    #[inline]
    fn period(&self) -> u64 {
        match self.copies {
            0 | 1 => self.width,
            _ => self.width * u64::from(spreads(self.servers as usize)),
        }
    }

    /// The group of a block.
    #[inline]
    fn group(&self, block: u64) -> Group {
        // Divisions take long: these two do not wait for each other.
        let position = self.first % self.servers + block % self.width;
        let position = if position < self.servers { position } else { position - self.servers };
        let round = match self.copies {
            0 | 1 => 0,
            _ => (self.first / self.servers + block / self.width) % u64::from(spreads(self.servers as usize)),
        };
        Group::Blocks {
            generation: self.generation,
            position: position as u16,
            spread: round as u16,
            copies: self.copies.max(1),
        }
    }
}

#[cfg(test)]
mod tests;
