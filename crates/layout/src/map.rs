//! The table of nodes, servers, shards and generations, with its epoch.
//!
//! The controller alone changes it; everybody else holds a copy, states its epoch in every request, and is given
//! the newer one when its own is stale. It is on no operation's path.

use crate::ids::{Epoch, GenerationId, NodeId, SHARDS, ServerId, ShardId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// One machine of the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its name as the user gave it; compared whole, never by prefix or substring.
    pub host: String,
}

/// Whether a server takes part.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum ServerState {
    /// It serves.
    Up,
    /// It was declared dead: requests to it fail with EIO at once.
    Down,
}

/// One storage daemon.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Server {
    /// Its number.
    pub id: ServerId,
    /// The machine that it runs on.
    pub node: NodeId,
    /// Where it listens for clients of other nodes.
    pub address: SocketAddr,
    /// Whether it takes part.
    pub state: ServerState,
}

/// An ordered list of servers that files are striped over.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Generation {
    /// The order matters: blocks are dealt along it.
    pub servers: Vec<ServerId>,
}

/// The map. Its invariants, kept by [`Map::check`]: servers are sorted by their numbers, every shard and every
/// generation names servers that are listed, and there is at least one generation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Map {
    /// Version.
    pub epoch: Epoch,
    /// Random number of the deployment: servers of two deployments never take each other's requests.
    pub deployment: u64,
    /// Where programs see the file system, an absolute path without trailing slash.
    pub mount: String,
    /// Block size of new files, bytes.
    pub block_size: u32,
    /// Machines.
    pub nodes: Vec<Node>,
    /// Storage daemons, sorted by number.
    pub servers: Vec<Server>,
    /// For each shard the servers that hold it, primary first: `copies` entries a shard, shard after shard.
    pub shards: Vec<ServerId>,
    /// How many servers hold each shard.
    pub copies: u8,
    /// All generations ever made; the last is the newest.
    pub generations: Vec<Generation>,
}

impl Map {
    /// The server that answers for a shard.
    pub fn primary(&self, shard: ShardId) -> ServerId {
        self.shards[shard.0 as usize * self.copies as usize]
    }

    /// The shards that `server` answers for.
    pub fn shards_of(&self, server: ServerId) -> impl Iterator<Item = ShardId> + '_ {
        (0..SHARDS).map(ShardId).filter(move |s| self.primary(*s) == server)
    }

    /// The entry of a server.
    pub fn server(&self, id: ServerId) -> Option<&Server> {
        self.servers.binary_search_by_key(&id, |s| s.id).ok().map(|i| &self.servers[i])
    }

    /// A generation.
    pub fn generation(&self, id: GenerationId) -> Option<&Generation> {
        self.generations.get(id.0 as usize)
    }

    /// The generation of new files.
    pub fn newest_generation(&self) -> GenerationId {
        GenerationId(self.generations.len().saturating_sub(1) as u32)
    }

    /// Whether the invariants hold; says what does not. Maps come from peers and files: check before use.
    pub fn check(&self) -> Result<(), &'static str> {
        let known = |id: &ServerId| self.server(*id).is_some();
        if !self.servers.windows(2).all(|w| w[0].id < w[1].id) {
            Err("servers are not sorted by number")
        } else if self.copies == 0 || self.shards.len() != SHARDS as usize * self.copies as usize {
            Err("the shard table has the wrong size")
        } else if !self.shards.iter().all(known) {
            Err("a shard is held by an unknown server")
        } else if self.generations.is_empty() || self.generations.iter().any(|g| g.servers.is_empty()) {
            Err("a generation is missing or empty")
        } else if !self.generations.iter().flat_map(|g| &g.servers).all(known) {
            Err("a generation names an unknown server")
        } else if !(self.mount.starts_with('/') && self.mount.len() > 1 && !self.mount.ends_with('/')) {
            Err("the mount point is not an absolute path below /")
        } else {
            Ok(())
        }
    }
}
