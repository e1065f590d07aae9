//! Whom a request goes to.

use crate::memory::Reached;
use bivouac_layout::map::NO_SERVER;
use bivouac_layout::{Group, Ino, Map, ServerId, ShardId, namespace};
use bivouac_transport::engine::Target;

/// Where a request goes.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// The server that holds a shard.
    Shard(ShardId),
    /// The same, for a name in a directory that was reached in some way.
    Entry(ShardId, Reached),
    /// The primary of a group of blocks; by which version of the file's layout.
    Group(Group, u32),
    /// A certain holder of a group of blocks, as long as it has everything; then the primary.
    Holder(ServerId, Group, u32),
    /// A certain server of a file's blocks.
    Blocks(ServerId, u32),
    /// The same, which is the only one that has them.
    Only(ServerId, u32),
    /// A certain server; the shard is one of its own.
    Server(ServerId, ShardId),
    /// The I/O node that serves this process's node for a file or directory of the backend.
    Forwarded(Ino),
}

impl To {
    /// Who answers for an inode.
    pub(crate) fn inode(ino: Ino) -> To {
        if ino.is_forwarded() { To::Forwarded(ino) } else { To::Shard(ino.shard()) }
    }

    /// Who answers for a name in a directory that was reached in some way.
    pub(crate) fn entry(dir: Ino, split: bool, name: &[u8], reached: Reached) -> To {
        match dir.is_forwarded() {
            true => To::Forwarded(dir),
            false => To::Entry(namespace::entry_shard(dir, split, name), reached),
        }
    }

    /// The only one who has blocks of a file, by a version of its layout.
    pub(crate) fn only(server: ServerId, layout: u32, file: Option<Ino>) -> To {
        match file {
            Some(file) if file.is_forwarded() => To::Forwarded(file),
            _ => To::Only(server, layout),
        }
    }

    /// Who has blocks of a file, by a version of its layout.
    pub(crate) fn blocks(server: ServerId, layout: u32, file: Option<Ino>) -> To {
        match file {
            Some(file) if file.is_forwarded() => To::Forwarded(file),
            _ => To::Blocks(server, layout),
        }
    }
}

impl Target for To {
    fn server(&self, map: &Map) -> ServerId {
        match self {
            To::Shard(shard) | To::Entry(shard, _) => map.primary(*shard),
            To::Group(group, _) => map.primary_of(*group).unwrap_or(NO_SERVER),
            To::Holder(server, group, _) if map.serving(*group).any(|holder| holder == *server) => *server,
            To::Holder(_, group, _) => map.primary_of(*group).unwrap_or(NO_SERVER),
            To::Server(server, _) | To::Blocks(server, _) | To::Only(server, _) => *server,
            // Which one depends on who asks: see `Asking`.
            To::Forwarded(_) => NO_SERVER,
        }
    }

    fn shard(&self) -> ShardId {
        match self {
            To::Shard(shard) | To::Entry(shard, _) | To::Server(_, shard) => *shard,
            To::Group(..) | To::Holder(..) | To::Blocks(..) | To::Only(..) => ShardId(0),
            To::Forwarded(_) => ShardId::FORWARDED,
        }
    }

    fn layout(&self) -> u32 {
        match self {
            To::Group(_, layout) | To::Holder(_, _, layout) | To::Blocks(_, layout) | To::Only(_, layout) => {
                *layout
            }
            To::Shard(_) | To::Entry(..) | To::Server(..) | To::Forwarded(_) => 0,
        }
    }

    fn names_who_is_up(&self) -> bool {
        match self {
            To::Shard(_) | To::Entry(..) | To::Group(..) | To::Holder(..) | To::Only(..) => true,
            To::Blocks(..) | To::Server(..) | To::Forwarded(_) => false,
        }
    }
}
