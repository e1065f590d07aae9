//! The numbers that name things. Each is its own type, so that one cannot stand in for another.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How many partitions the metadata has, in every deployment (12 bits of an inode number).
pub const SHARDS: u16 = 4096;

/// Most servers of a deployment: their numbers are below it. Clients keep a table by number.
pub const SERVERS_MAX: u16 = 4096;

/// Bits below the node's of a number that an agent gives out.
const NODE_SHIFT: u32 = 48;

/// Bits of an inode number below the shard's.
const SHARD_SHIFT: u32 = 52;

/// The bit by which inode numbers of the backend are told apart, and its place: no shard ever makes so many inodes.
const FORWARDED_SHIFT: u32 = 51;
const FORWARDED_BIT: u64 = 1 << FORWARDED_SHIFT;

/// A partition of the metadata: less than [`SHARDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug)]
pub struct ShardId(pub u16);

impl ShardId {
    /// Of what is the backend's: no shard. Requests that state it go to I/O nodes.
    pub const FORWARDED: ShardId = ShardId(SHARDS);
}

/// The number of a file, directory or symbolic link. It is never reused within a deployment, and its upper
/// 12 bits say which shard holds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct Ino(pub u64);

impl Ino {
    /// The directory that the mount point shows.
    pub const ROOT: Ino = Ino(1);

    /// The directory of the backend that is forwarded.
    pub const FORWARDED: Ino = Ino(FORWARDED_BIT);

    /// A file or directory of the backend, by a number below 2^63 (its inode number there, other than 0).
    pub fn forwarded(number: u64) -> Ino {
        let (upper, lower) = (number >> FORWARDED_SHIFT, number & (FORWARDED_BIT - 1));
        Ino(upper << SHARD_SHIFT | FORWARDED_BIT | lower)
    }

    /// Whether it is the backend's: see [`crate::forwarding`].
    pub fn is_forwarded(self) -> bool {
        self.0 & FORWARDED_BIT != 0
    }

    /// The `counter`-th inode of `shard`; `counter` starts at 1 (2 in the root's shard) and stays below 2^51.
    pub fn new(shard: ShardId, counter: u64) -> Ino {
        debug_assert!(shard.0 < SHARDS && counter < 1 << SHARD_SHIFT);
        Ino((shard.0 as u64) << SHARD_SHIFT | counter)
    }

    /// The shard that holds this inode; [`ShardId::FORWARDED`] if it is the backend's.
    pub fn shard(self) -> ShardId {
        if self.is_forwarded() { ShardId::FORWARDED } else { ShardId((self.0 >> SHARD_SHIFT) as u16) }
    }

    /// The number within its shard.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << SHARD_SHIFT) - 1)
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ino({}:{})", self.shard().0, self.counter())
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

macro_rules! plain_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

plain_id! {
    /// One storage daemon. Numbers are given out once and never reused.
    ServerId(u16)
}
plain_id! {
    /// One machine (or, in tests, network namespace) of the job.
    NodeId(u16)
}
impl GenerationId {
    /// Of what is the backend's: all of a file's bytes are asked for at its I/O node. No list of the map has this number.
    pub const FORWARDED: GenerationId = GenerationId(u32::MAX);
}
impl NodeId {
    /// No node: for a process whose node is not known, or does not matter.
    pub const NONE: NodeId = NodeId(u16::MAX);

    /// A number that the agent of this node gives out, to itself or to a session: the node's number and 48 other bits. So
    /// everybody knows whose it is, also when that agent is not there any more.
    pub fn number(self, other: u64) -> u64 {
        u64::from(self.0) << NODE_SHIFT | other & ((1 << NODE_SHIFT) - 1)
    }

    /// The node whose agent has given out a number.
    pub fn of(number: u64) -> NodeId {
        NodeId((number >> NODE_SHIFT) as u16)
    }
}

plain_id! {
    /// The version of the map. It only grows.
    Epoch(u64)
}
plain_id! {
    /// One ordered list of servers that files are striped over; index into [`crate::Map::generations`].
    GenerationId(u32)
}
