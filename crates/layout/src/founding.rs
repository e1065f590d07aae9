//! What a deployment begins with, and the first map, which follows from it.

use crate::balance;
use crate::forwarding::Forwarding;
use crate::groups::{Holders, REPLICAS_MAX};
use crate::ids::{Epoch, SHARDS, ServerId, ShardId};
use crate::map::{Generation, Map, Node, Server};
use crate::placement::DEFAULT_BLOCK;
use crate::template::First;
use serde::{Deserialize, Serialize};

/// The usual lease, milliseconds.
pub const LEASE: u32 = 2000;
/// The shortest lease, milliseconds: two pings may get lost.
pub const LEASE_MIN: u32 = 400;

/// What a deployment begins with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Founding {
    /// Its random number.
    pub deployment: u64,
    /// Where programs see the file system.
    pub mount: String,
    /// Block size of new files, bytes.
    pub block_size: u32,
    /// Over how many servers new files are striped; 0 means all.
    pub width: u16,
    /// Where new files begin.
    pub first: First,
    /// Copies of new files' blocks.
    pub replicas: u8,
    /// Copies of the metadata, at least as many: a file must not outlive its inode.
    pub metadata_replicas: u8,
    /// A change is refused where fewer copies than this would have it.
    pub min_copies: u8,
    /// After so many seconds a server that is down is given up, where there are copies; 0: never.
    pub heal_after: u32,
    /// So many bytes per second each server gets at most of what it lacks of blocks; 0: as many as it can.
    pub heal_rate: u64,
    /// How long a server may answer for what has copies after it has answered the controller, milliseconds.
    pub lease: u32,
    /// The directory of the backend that is forwarded.
    pub forwarding: Option<Forwarding>,
    /// Its machines, in any order.
    pub nodes: Vec<Node>,
    /// Its servers, in any order.
    pub servers: Vec<Server>,
}

impl Founding {
    /// A deployment without copies and with the usual layout.
    pub fn new(deployment: u64, mount: &str, nodes: Vec<Node>, servers: Vec<Server>) -> Founding {
        Founding {
            deployment,
            mount: mount.into(),
            block_size: DEFAULT_BLOCK,
            width: 0,
            first: First::Hashed,
            replicas: 1,
            metadata_replicas: 1,
            min_copies: 1,
            heal_after: 0,
            heal_rate: 0,
            lease: LEASE,
            forwarding: None,
            nodes,
            servers,
        }
    }

    /// The map at epoch 1; or what is wrong.
    pub fn map(mut self) -> Result<Map, &'static str> {
        if self.servers.len() < usize::from(self.metadata_replicas) {
            return Err("there are fewer servers than copies");
        }
        if !(1..=REPLICAS_MAX).contains(&self.metadata_replicas) {
            return Err("the number of copies is out of bounds");
        }
        if self.lease < LEASE_MIN {
            return Err("the lease is too short");
        }
        self.nodes.sort_by_key(|n| n.id);
        self.servers.sort_by_key(|s| s.id);
        let servers: Vec<ServerId> = self.servers.iter().map(|s| s.id).collect();
        let mut map = Map {
            epoch: Epoch(1),
            deployment: self.deployment,
            mount: self.mount,
            block_size: self.block_size,
            width: self.width,
            first: self.first,
            replicas: self.replicas,
            nodes: self.nodes,
            shards: Vec::new(),
            copies: self.metadata_replicas,
            min_copies: self.min_copies,
            heal_after: self.heal_after,
            heal_rate: self.heal_rate,
            lease: self.lease,
            generations: vec![Generation { servers: servers.clone() }],
            servers: self.servers,
            behind: Vec::new(),
            lost: Vec::new(),
            spares: Vec::new(),
            gone: Vec::new(),
            away: Vec::new(),
            vacated: Vec::new(),
            arriving: Vec::new(),
            departing: Vec::new(),
            moving: Vec::new(),
            balancing: false,
            numbers: servers.last().map_or(0, |last| last.0.saturating_add(1)),
            primaries_since: Epoch(1),
            successors: Vec::new(),
            rebuild: None,
            rebuilds: 0,
            emptied: Vec::new(),
            members_since: Epoch(1),
            shards_since: Vec::new(),
            forwarding: self.forwarding,
        };
        let primaries = balance::deal(&[], &servers);
        let copies = (0..SHARDS).map(ShardId).zip(primaries);
        map.shards = copies
            .flat_map(|(shard, primary)| map.deal_copies(shard, primary, Holders::NONE).all().to_vec())
            .collect();
        map.check().map(|()| map)
    }
}

impl Map {
    /// The map before the first map: epoch 0, without nodes and servers.
    pub fn before_the_first(deployment: u64) -> Map {
        Map {
            epoch: Epoch(0),
            deployment,
            mount: String::new(),
            block_size: DEFAULT_BLOCK,
            width: 0,
            first: First::Hashed,
            replicas: 1,
            nodes: Vec::new(),
            servers: Vec::new(),
            shards: Vec::new(),
            copies: 1,
            min_copies: 1,
            heal_after: 0,
            heal_rate: 0,
            lease: LEASE,
            generations: Vec::new(),
            behind: Vec::new(),
            lost: Vec::new(),
            spares: Vec::new(),
            gone: Vec::new(),
            away: Vec::new(),
            vacated: Vec::new(),
            arriving: Vec::new(),
            departing: Vec::new(),
            moving: Vec::new(),
            balancing: false,
            numbers: 0,
            primaries_since: Epoch(1),
            successors: Vec::new(),
            rebuild: None,
            rebuilds: 0,
            emptied: Vec::new(),
            members_since: Epoch(0),
            shards_since: Vec::new(),
            forwarding: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::map::ServerState;

    fn founding(servers: u16, copies: u8) -> Founding {
        let server = |n: u16| Server {
            id: ServerId(n),
            node: NodeId(n),
            address: ([127, 0, 0, 1], 1000 + n).into(),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let agent = ([127, 0, 0, 1], 1).into();
        let node = |n: u16| Node { id: NodeId(n), host: format!("node{n}"), agent, domain: n };
        let (nodes, servers) =
            ((0..servers).rev().map(node).collect(), (0..servers).rev().map(server).collect());
        Founding { replicas: copies, metadata_replicas: copies, ..Founding::new(7, "/m", nodes, servers) }
    }

    #[test]
    fn the_first_map_keeps_the_rules_of_maps() {
        for (servers, copies) in [(1, 1), (5, 1), (2, 2), (8, 4), (8, 8), (200, 3)] {
            let map = founding(servers, copies).map().expect("a map");
            assert_eq!((map.epoch, map.servers.len(), map.copies), (Epoch(1), usize::from(servers), copies));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(founding(0, 1).map().is_err());
        assert!(founding(2, 3).map().is_err(), "more copies than servers");
        assert!(founding(9, 9).map().is_err() && founding(9, 0).map().is_err());
        assert!(Founding { replicas: 3, ..founding(4, 2) }.map().is_err(), "a file would outlive its inode");
        assert!(Founding { block_size: 5000, ..founding(1, 1) }.map().is_err());
    }
}
