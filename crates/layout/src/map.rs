//! The table of nodes, servers, shards and generations, with its epoch.
//!
//! Only the controller changes it. Everybody else holds a copy, states its epoch in every request, and gets
//! the newer map when its own is out of date. So the controller is on no operation's path.

use crate::forwarding::{self, Forwarding};
use crate::groups::{Group, Lag, REPLICAS_MAX};
use crate::ids::{Epoch, GenerationId, NodeId, SERVERS_MAX, SHARDS, ServerId, ShardId};
use crate::moving::ShardMove;
use crate::placement::is_block_size;
use crate::restripe::Rebuild;
use crate::template::{First, Template};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// One machine of the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its name as the user gave it; compared whole, never by prefix or substring.
    pub host: String,
    /// Where its agent listens for other nodes.
    pub agent: SocketAddr,
    /// Its failure domain, for example its rack: copies go to different ones where these suffice.
    pub domain: u16,
}

/// Whether a server takes part.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum ServerState {
    /// It serves.
    Up,
    /// It was declared dead: requests to it fail with EIO at once.
    Down,
    /// It was down or started again, and answers. Servers and agents tell it what it missed; clients do not use it yet.
    Joining,
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
    /// How often it has begun to join. Each time it has forgotten what it was told before.
    pub joined: u32,
    /// Who had its number before, the first one first: processes with other storage, which never come back.
    pub former: Vec<Former>,
}

impl Server {
    /// How often its number has passed to another process, with new storage. A process that has the number of an earlier
    /// succession was replaced, and must not answer for anything.
    pub fn succession(&self) -> u32 {
        self.former.len() as u32
    }

    /// The node that counted as this server's when a generation was made, and still does for who holds its blocks: so
    /// a server that is replaced changes nobody else's blocks.
    pub(crate) fn node_in(&self, generation: GenerationId) -> NodeId {
        let at_that_time = self.former.iter().find(|former| generation < former.until);
        at_that_time.map_or(self.node, |former| former.node)
    }
}

/// A process that had a server's number before another one got it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Former {
    /// The machine that it ran on.
    pub node: NodeId,
    /// The first generation that it has nothing of. What had its only copy on it, in generations before, is lost.
    pub until: GenerationId,
}

/// A server that was given up, and came back. It gets what others have not enough servers for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct Spare {
    /// Which.
    pub server: ServerId,
    /// The first generation in which it is a server like others.
    pub since: GenerationId,
}

/// An ordered list of servers that files are striped over.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Generation {
    /// The order matters: blocks are dealt along it.
    pub servers: Vec<ServerId>,
}

/// Names no server: the answer for a shard that does not exist.
pub const NO_SERVER: ServerId = ServerId(u16::MAX);

/// The map. Its invariants, kept by [`Map::check`]: nodes and servers are sorted by their numbers, and servers
/// run on listed nodes; every shard and the newest generation name servers that are listed, none twice, and older
/// generations also name servers that have left; there is at least one generation; of every group one holder at least is in step; and the block size is one that a
/// file can have.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Map {
    /// Version.
    pub epoch: Epoch,
    /// Random number of the deployment: servers of two deployments never take each other's requests.
    pub deployment: u64,
    /// Where programs see the file system, an absolute path without trailing slash.
    pub mount: String,
    /// Block size of new files, bytes, where their directory does not say.
    pub block_size: u32,
    /// Over how many servers new files are striped, where their directory does not say; 0 means all.
    pub width: u16,
    /// Where new files begin, where their directory does not say.
    pub first: First,
    /// How many copies new files have, where their directory does not say.
    pub replicas: u8,
    /// Machines, sorted by number.
    pub nodes: Vec<Node>,
    /// Storage daemons, sorted by number.
    pub servers: Vec<Server>,
    /// For each shard the servers that hold it, primary first: `copies` entries a shard, shard after shard.
    pub shards: Vec<ServerId>,
    /// How many servers hold each shard. A file has no more copies than its inode.
    pub copies: u8,
    /// A change is refused where fewer copies than this would have it. (Where fewer are wanted, all have to.)
    pub min_copies: u8,
    /// A server that has been down for so many seconds is given up, where that is possible without a loss. 0: never.
    pub heal_after: u32,
    /// So many bytes per second each server gets at most of what it lacks of blocks; 0: as many as it can.
    pub heal_rate: u64,
    /// How long a server may answer for what has copies after it has answered the controller, milliseconds.
    pub lease: u32,
    /// All generations ever made; the last is the newest.
    pub generations: Vec<Generation>,
    /// Groups of which not all holders are in step, sorted.
    pub behind: Vec<Lag>,
    /// Servers that were given up, sorted: others hold what they held.
    pub lost: Vec<ServerId>,
    /// Servers that were given up and came back, in the order in which they did: none of them is in `lost`.
    pub spares: Vec<Spare>,
    /// Groups of blocks of which no copy is left, sorted: all who had any were given up. They are served by nobody, because
    /// what their holders do not have would look like holes.
    pub gone: Vec<Group>,
    /// Nodes that were declared away, sorted: nobody reaches their agents and servers. What their programs had locked and
    /// open, they have not any more ([`Map::is_away`]). Nodes whose agents died before they could leave
    /// ([`crate::vacating`]) stay here, although the map has no such nodes any more.
    pub away: Vec<NodeId>,
    /// Nodes whose last server has left, sorted: their agents end as soon as no program there uses the deployment
    /// ([`crate::vacating`]).
    pub vacated: Vec<NodeId>,
    /// Servers that were added and have not been up yet, sorted.
    pub arriving: Vec<ServerId>,
    /// Servers that are to leave, sorted: they get nothing new.
    pub departing: Vec<ServerId>,
    /// Shards that move, sorted.
    pub moving: Vec<ShardMove>,
    /// Servers have come, or are to leave, and not every server that stays has its share of the shards yet.
    pub balancing: bool,
    /// All numbers that servers have ever had in this deployment are below this: they are not used again.
    pub numbers: u16,
    /// The first map with the present primaries of all groups of blocks: who has had this one or a later one before, and
    /// is the primary of a group now as then, has been it all the time.
    pub primaries_since: Epoch,
    /// Generations some of whose servers leave, each with the one that has others in their place; sorted.
    pub successors: Vec<(GenerationId, GenerationId)>,
    /// Ranges of files that are going to other servers, in the background.
    pub rebuild: Option<Rebuild>,
    /// How many of these there have been.
    pub rebuilds: u32,
    /// Departing servers that no file has blocks on any more, sorted.
    pub emptied: Vec<ServerId>,
    /// The first map that says the same as this one of everything but who holds shards ([`Map::since`]).
    pub members_since: Epoch,
    /// Shards whose holders have changed since, each with the first map that has them as they are; sorted.
    pub shards_since: Vec<(ShardId, Epoch)>,
    /// The directory of the backend that is forwarded, and by whom.
    pub forwarding: Option<Forwarding>,
}

impl Map {
    /// The server that answers for a shard; [`NO_SERVER`] if there is no such shard, as a peer may claim.
    pub fn primary(&self, shard: ShardId) -> ServerId {
        match self.copies {
            1 => self.shards.get(usize::from(shard.0)).copied(),
            _ => self.primary_of(Group::Shard(shard)),
        }
        .unwrap_or(NO_SERVER)
    }

    /// The shards that `server` answers for.
    pub fn shards_of(&self, server: ServerId) -> impl Iterator<Item = ShardId> + '_ {
        (0..SHARDS).map(ShardId).filter(move |s| self.primary(*s) == server)
    }

    /// What the map says of a node.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok().map(|i| &self.nodes[i])
    }

    /// Whether a node is away. Servers end what its programs have there, and serve these programs again when the node is back:
    /// then its agent has learnt which locks they have lost.
    pub fn is_away(&self, node: NodeId) -> bool {
        self.away.binary_search(&node).is_ok()
    }

    /// The nodes that are not away.
    pub fn reachable(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().map(|node| node.id).filter(|node| !self.is_away(*node))
    }

    /// What the map says of a server.
    pub fn server(&self, id: ServerId) -> Option<&Server> {
        self.servers.binary_search_by_key(&id, |s| s.id).ok().map(|i| &self.servers[i])
    }

    /// A generation.
    #[inline]
    pub fn generation(&self, id: GenerationId) -> Option<&Generation> {
        self.generations.get(id.0 as usize).or_else(|| forwarding::generation(id))
    }

    /// How new files are spread where their directory does not say.
    pub fn defaults(&self) -> Template {
        Template {
            block_size: Some(self.block_size),
            width: Some(self.width),
            first: Some(self.first),
            replicas: Some(self.replicas),
        }
    }

    /// The generation of new files.
    pub fn newest_generation(&self) -> GenerationId {
        GenerationId(self.generations.len().saturating_sub(1) as u32)
    }

    /// Whether the invariants hold; says what does not. Maps come from peers and files: check before use.
    pub fn check(&self) -> Result<(), &'static str> {
        let known = |id: &ServerId| self.server(*id).is_some();
        if !self.nodes.windows(2).all(|w| w[0].id < w[1].id) {
            Err("nodes are not sorted by number")
        } else if !self.servers.windows(2).all(|w| w[0].id < w[1].id) {
            Err("servers are not sorted by number")
        } else if self.servers.last().is_some_and(|s| s.id.0 >= SERVERS_MAX) {
            Err("a server has a number that none can have")
        } else if self.numbers > SERVERS_MAX || self.servers.last().is_some_and(|s| s.id.0 >= self.numbers) {
            Err("a server has a number that was not given to it")
        } else if !self.servers.iter().all(|s| self.node(s.node).is_some()) {
            Err("a server runs on an unknown node")
        } else if self.copies == 0 || self.shards.len() != SHARDS as usize * self.copies as usize {
            Err("the shard table has the wrong size")
        } else if self.copies > REPLICAS_MAX
            || !(1..=self.copies).contains(&self.replicas)
            || !(1..=self.copies).contains(&self.min_copies)
        {
            Err("the number of copies is out of bounds")
        } else if !self.shards.iter().all(known) {
            Err("a shard is held by an unknown server")
        } else if self.copies > 1 && self.shards.chunks(self.copies.into()).any(has_twice) {
            Err("a shard is held twice by one server")
        } else if self.generations.is_empty() || self.generations.iter().any(|g| g.servers.is_empty()) {
            Err("a generation is missing or empty")
        } else if !self.generations.iter().flat_map(|g| &g.servers).all(|server| server.0 < self.numbers)
            || !self.generations.last().is_some_and(|newest| newest.servers.iter().all(known))
        {
            Err("a generation names an unknown server")
        } else if self.generations.last().is_some_and(|newest| has_twice(&newest.servers)) {
            Err("the newest generation names a server twice")
        } else if !self.lost.iter().all(known) || !self.lost.windows(2).all(|w| w[0] < w[1]) {
            Err("servers that were given up are unknown or not sorted")
        } else if !self.spares.windows(2).all(|w| w[0].since < w[1].since)
            || has_twice(&self.spares.iter().map(|spare| spare.server).collect::<Vec<_>>())
            || !self.spares.iter().all(|spare| known(&spare.server) && !self.lost.contains(&spare.server))
        {
            Err("servers that came back are unknown, given up, or not in order")
        } else if !self.servers.iter().all(|s| {
            let is_known = |until: GenerationId| until.0 as usize <= self.generations.len();
            s.former.iter().all(|former| self.node(former.node).is_some() && is_known(former.until))
                && s.former.windows(2).all(|w| w[0].until <= w[1].until)
        }) {
            Err("a server has had an unknown node, or its forerunners are not in order")
        } else if !self.arriving.windows(2).all(|w| w[0] < w[1])
            || !self.arriving.iter().all(|server| {
                let is_used = self.generations.iter().any(|generation| generation.servers.contains(server));
                known(server)
                    && !is_used
                    && !self.shards.contains(server)
                    && !self.lost.contains(server)
                    && !self.moving.iter().any(|entry| entry.to == *server)
            })
        {
            Err("servers that arrive are unknown, given up, not sorted, or hold something")
        } else if !self.departing.windows(2).all(|w| w[0] < w[1])
            || !self.departing.iter().all(|server| {
                let is_new = self.arriving.contains(server);
                let gets_files = self.generations.last().is_some_and(|g| g.servers.contains(server));
                known(server) && !is_new && !gets_files
            })
        {
            Err("servers that depart are unknown, arrive, are not sorted, or get new files")
        } else if let Err(what) = self.check_moves() {
            Err(what)
        } else if !self.behind.windows(2).all(|w| w[0].group < w[1].group) {
            Err("groups are not sorted")
        } else if !self.gone.windows(2).all(|w| w[0] < w[1])
            || self.gone.iter().any(|group| matches!(group, Group::Shard(_)) || self.lag_of(*group).is_some())
        {
            Err("groups that are gone are not sorted, not of blocks, or lag")
        } else if !self.away.windows(2).all(|w| w[0] < w[1]) {
            Err("nodes that are away are not sorted")
        } else if !self.vacated.windows(2).all(|w| w[0] < w[1])
            || !self.vacated.iter().all(|node| self.node(*node).is_some() && !self.has_servers(*node))
        {
            Err("nodes that servers have left are unknown, not sorted, or have servers")
        } else if !self.behind.iter().all(|lag| self.holders(lag.group).in_step().next().is_some()) {
            Err("no holder of a group is in step")
        } else if !self.successors.windows(2).all(|w| w[0].0 < w[1].0)
            || !self.successors.iter().all(|(from, to)| from < to && self.generation(*to).is_some())
        {
            Err("a generation's successor is unknown or older, or they are not sorted")
        } else if !self.emptied.windows(2).all(|w| w[0] < w[1])
            || !self.emptied.iter().all(|server| self.is_departing(*server))
        {
            Err("servers without files are not departing, or not sorted")
        } else if self.members_since > self.epoch
            || !self.shards_since.windows(2).all(|w| w[0].0 < w[1].0)
            || !self
                .shards_since
                .iter()
                .all(|(shard, since)| shard.0 < SHARDS && *since > self.members_since && *since <= self.epoch)
        {
            Err("something is as it is since a map that cannot be")
        } else if self.rebuild.is_some_and(|rebuild| rebuild.number != self.rebuilds) {
            Err("the rebuild that is under way is not the last one")
        } else if let Err(what) = self.check_forwarding() {
            Err(what)
        } else if !is_block_size(self.block_size) {
            Err("the block size is out of bounds")
        } else if !(self.mount.starts_with('/') && self.mount.len() > 1 && !self.mount.ends_with('/')) {
            Err("the mount point is not an absolute path below /")
        } else {
            Ok(())
        }
    }
}

fn has_twice(servers: &[ServerId]) -> bool {
    let mut sorted = servers.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|w| w[0] == w[1])
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Maps for tests.

    use super::*;
    use crate::founding::Founding;

    /// A map of `servers`, each on a node of its own, with `generations` over them, given by their numbers.
    pub(crate) fn map(servers: u16, generations: &[&[u16]]) -> Map {
        replicated(servers, 1, generations)
    }

    /// The same with so many copies of everything.
    pub(crate) fn replicated(servers: u16, copies: u8, generations: &[&[u16]]) -> Map {
        let ids: Vec<ServerId> = (0..servers).map(ServerId).collect();
        let server = |&id: &ServerId| Server {
            id,
            node: NodeId(id.0),
            address: SocketAddr::from(([127, 0, 0, 1], 1000 + id.0)),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let generation = |g: &&[u16]| Generation { servers: g.iter().copied().map(ServerId).collect() };
        let node = |id: &ServerId| Node {
            id: NodeId(id.0),
            host: format!("node{id}"),
            agent: SocketAddr::from(([127, 0, 0, 1], 10_000 + id.0)),
            domain: id.0,
        };
        let (nodes, servers) = (ids.iter().map(node).collect(), ids.iter().map(server).collect());
        let founding = Founding {
            replicas: copies,
            metadata_replicas: copies,
            ..Founding::new(7, "/bivouac", nodes, servers)
        };
        let first = founding.map().expect("a map");
        Map { generations: generations.iter().map(generation).collect(), ..first }
    }

    /// A map of `servers` with one generation of all of them.
    pub(crate) fn uniform(servers: u16) -> Map {
        let all: Vec<u16> = (0..servers).collect();
        map(servers, &[&all])
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::{map, uniform};
    use super::*;

    #[test]
    fn a_sound_map_is_accepted() {
        assert_eq!(map(3, &[&[0, 1], &[2, 1, 0]]).check(), Ok(()));
        assert_eq!(uniform(200).check(), Ok(()));
    }

    #[test]
    fn each_broken_invariant_is_named() {
        type Break = fn(&mut Map);
        fn lag(shard: u16, holders: u16) -> Lag {
            Lag { group: Group::Shard(ShardId(shard)), holders, since: Epoch(0) }
        }
        fn former(node: u16, until: u32) -> Former {
            Former { node: NodeId(node), until: GenerationId(until) }
        }
        fn spare(server: u16) -> Spare {
            Spare { server: ServerId(server), since: GenerationId(1) }
        }
        let cases: [(&str, Break); 32] = [
            ("away are not sorted", |m| m.away = vec![NodeId(1), NodeId(0)]),
            ("have left are unknown", |m| m.vacated = vec![NodeId(9)]),
            ("or have servers", |m| m.vacated = vec![NodeId(1)]),
            ("nodes are not sorted", |m| m.nodes.swap(0, 1)),
            ("copies is out of bounds", |m| m.replicas = 0),
            ("copies is out of bounds", |m| m.replicas = 2),
            ("held twice", |m| {
                m.copies = 2;
                m.shards = m.shards.iter().flat_map(|s| [*s; 2]).collect();
            }),
            ("given up", |m| m.lost = vec![ServerId(9)]),
            ("given up", |m| m.lost = vec![ServerId(1), ServerId(0)]),
            ("came back", |m| m.spares = vec![spare(9)]),
            ("came back", |m| m.spares = vec![spare(1), spare(2)]),
            ("came back", |m| (m.lost, m.spares) = (vec![ServerId(1)], vec![spare(1)])),
            ("forerunners", |m| m.servers[1].former = vec![former(9, 1)]),
            ("forerunners", |m| m.servers[1].former = vec![former(0, 1), former(0, 0)]),
            ("forerunners", |m| m.servers[1].former = vec![former(0, 2)]),
            ("groups are not sorted", |m| m.behind = [lag(3, 0), lag(2, 0)].to_vec()),
            ("in step", |m| m.behind = vec![lag(3, 1)]),
            ("in step", |m| m.behind = vec![lag(SHARDS, 0)]),
            ("sorted", |m| m.servers.swap(0, 1)),
            ("sorted", |m| m.servers[1].id = m.servers[0].id),
            ("none can have", |m| m.servers[2].id = NO_SERVER),
            ("unknown node", |m| m.nodes.truncate(1)),
            ("wrong size", |m| m.copies = 0),
            ("wrong size", |m| m.copies = 2),
            ("wrong size", |m| m.shards.truncate(4095)),
            ("unknown server", |m| m.shards[77] = ServerId(99)),
            ("missing or empty", |m| m.generations.clear()),
            ("missing or empty", |m| m.generations[0].servers.clear()),
            ("generation names an unknown", |m| m.generations[0].servers[0] = ServerId(9)),
            ("twice", |m| m.generations[0].servers[0] = ServerId(2)),
            ("block size", |m| m.block_size = 0),
            ("block size", |m| m.block_size = 5000),
        ];
        for (expected, break_it) in cases {
            let mut map = uniform(3);
            break_it(&mut map);
            let error = map.check().expect_err(expected);
            assert!(error.contains(expected), "{error}, expected {expected}");
        }
        for mount in ["", "/", "relative", "/a/"] {
            assert!(Map { mount: mount.into(), ..uniform(1) }.check().is_err(), "{mount:?}");
        }
    }

    #[test]
    fn a_shard_that_does_not_exist_has_no_server() {
        let map = uniform(3);
        assert_eq!(map.primary(ShardId(SHARDS)), NO_SERVER);
        assert_eq!(map.primary(ShardId(u16::MAX)), NO_SERVER);
        assert!(map.server(NO_SERVER).is_none());
    }

    #[test]
    fn every_shard_has_one_primary() {
        let map = uniform(5);
        let mut seen = vec![0; usize::from(SHARDS)];
        for server in &map.servers {
            for shard in map.shards_of(server.id) {
                assert_eq!(map.primary(shard), server.id);
                seen[usize::from(shard.0)] += 1;
            }
        }
        assert!(seen.iter().all(|&n| n == 1));
    }

    #[test]
    fn the_newest_generation_is_the_last() {
        let map = map(3, &[&[0], &[1], &[2, 0]]);
        let newest = map.newest_generation();
        assert_eq!(map.generation(newest).map(|g| g.servers.len()), Some(2));
        assert!(map.generation(GenerationId(3)).is_none());
        assert!(map.generation(GenerationId(u32::MAX - 1)).is_none());
    }
}
