//! Which shard holds a directory, an entry, an inode.
//!
//! A directory starts *packed*: its inode and all its entries live in one shard, chosen by hashing its
//! parent's number and its name. Past [`SPLIT_AT`] entries it is *split*: its entries are spread over
//! [`PARTS`] parts by the hash of their names, and the parts over the shards by the hash of directory and
//! part. A split moves entries and never inodes.
//!
//! Entries are listed in the order of their name hash, in packed and in split directories alike, so that a
//! position in a listing (a cookie) means the same before, during and after a split.

use crate::hash::{self, Use};
use crate::ids::{Ino, SHARDS, ShardId};

/// A directory with more entries than this is split.
pub const SPLIT_AT: usize = 2000;

/// So many of the latest moves of directories a server remembers, to tell who has not heard of them.
pub const MOVES_REMEMBERED: u64 = 256;

/// Into how many parts a directory is split.
pub const PARTS: u16 = 256;

/// Cookies below this are reserved for `.` and `..`; no name hashes to them.
pub const FIRST_COOKIE: u64 = 3;

/// The position of a name in its directory's listing: a 63-bit hash (`d_off` is signed), at least
/// [`FIRST_COOKIE`]. Two names may share it; a listing never stops between them.
pub fn cookie(dir: Ino, name: &[u8]) -> u64 {
    (hash::name(Use::Entry, dir, name) >> 1).max(FIRST_COOKIE)
}

/// The part of a split directory that holds the names with this [`cookie`]: its upper 8 bits, so that the
/// parts in their order hold the listing in its order.
pub fn part_of(cookie: u64) -> u16 {
    (cookie >> (63 - PARTS.trailing_zeros())) as u16
}

/// The shard that holds one part of a split directory.
pub fn part_shard(dir: Ino, part: u16) -> ShardId {
    // Seeded by the directory: the parts of two directories are dealt independently.
    to_shard(hash::name(Use::PartShard, dir, &part.to_le_bytes()))
}

/// The shard in which a new directory's inode is made.
pub fn directory_shard(parent: Ino, name: &[u8]) -> ShardId {
    to_shard(hash::name(Use::DirectoryShard, parent, name))
}

/// The shard that holds the entry `name` of `dir`.
pub fn entry_shard(dir: Ino, split: bool, name: &[u8]) -> ShardId {
    if split { part_shard(dir, part_of(cookie(dir, name))) } else { dir.shard() }
}

fn to_shard(hash: u64) -> ShardId {
    // The upper bits, scaled: unbiased for any number of shards.
    ShardId(((u128::from(hash) * u128::from(SHARDS)) >> 64) as u16)
}

#[cfg(test)]
mod tests;
