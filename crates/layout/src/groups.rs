//! What is replicated as one, and who holds it.
//!
//! A [`Group`] is a shard of the metadata, or those blocks of files that have the same holders. A group has
//! as many *holders* as copies, in a fixed order. The blocks of one server are many groups: their copies are
//! spread over all other servers, so that the readers and writers of a server that fails are spread, too. The
//! order of a group's candidates is computed from the group alone:
//!
//! 1. the server at the group's position in the generation (the *home*),
//! 2. the server `1 + spread` places further on,
//! 3. all others, at distances that grow by a stride that the hash of the spread chooses.
//!
//! The holders are the first candidates that lie in a failure domain, or else on a node, of their own; and
//! where nodes do not suffice, any. Servers that were given up ([`Map::lost`]) are passed over, which is the
//! rule of substitution (as are servers that have left the deployment): the holders that remain stay holders, in their order, and one more comes at the end.
//! Servers that were given up and came back ([`Map::spares`]) take part as others do in generations made since; in
//! older ones they come last of all, so that nothing moves only because one is there again.
//!
//! What counts as a server's node, for a generation, is the node that it was on when the generation was made: a server
//! that is replaced by a process on another node ([`Server::former`](crate::map::Server::former)) changes no holders.
//! Blocks that had their only copy on it are held by nobody any more ([`NO_SERVER`]).
//!
//! A holder is *in step* while it has everything that was acknowledged. The map lists the others
//! ([`Map::behind`]), and nothing is acknowledged without a holder before it is listed there. The *primary* of
//! a group is its first holder that is in step and up. If all holders that are in step are down, nobody may
//! serve the group, because nobody else has the last writes.

use crate::hash::{self, Use};
use crate::ids::{Epoch, GenerationId, NodeId, SHARDS, ServerId, ShardId};
use crate::map::{Map, NO_SERVER, ServerState};
use crate::moving::MoveStage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most copies.
pub const REPLICAS_MAX: u8 = 8;
/// The copies of one server's blocks are spread over so many other servers at most.
pub const SPREAD_MAX: u16 = 64;

/// By the number of servers: with which hashes of the spreads a server that is given up leaves about as much to each of
/// the others. Their links and disks take what it held, and the one that gets the most decides how long that lasts.
/// Each is the best of all seeds for two to four copies, which [`tests`] look at. With more servers chance is even
/// enough.
const SEEDS: [u16; 66] = [
    0, 0, 0, 0, 0, 12, 16, 300, 179, 478, 35886, 8663, 701, 65185, 3331, 51200, 19500, 37626, 3692, 35084,
    46528, 62160, 4938, 11427, 56571, 35431, 26577, 35554, 16238, 49377, 21360, 52636, 23403, 2053, 40993,
    25712, 133, 13552, 9549, 26761, 22490, 5527, 8545, 9482, 53331, 1089, 12517, 23407, 13818, 12138, 8560,
    51677, 61085, 25264, 6090, 40043, 42194, 23645, 17751, 61152, 17354, 46368, 4343, 52677, 33781, 10255,
];

/// What is replicated as one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Debug)]
pub enum Group {
    /// A partition of the metadata.
    Shard(ShardId),
    /// Blocks with the same holders.
    Blocks {
        /// Over whose servers they are spread.
        generation: GenerationId,
        /// The home's place in the generation.
        position: u16,
        /// Less than [`spreads`]: where the second copy is.
        spread: u16,
        /// How many copies there are: files of one deployment may differ in it.
        copies: u8,
    },
}

/// Into how many groups the blocks of each of `servers` servers are divided.
pub fn spreads(servers: usize) -> u16 {
    servers.saturating_sub(1).clamp(1, usize::from(SPREAD_MAX)) as u16
}

/// The holders of a group, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holders {
    /// One more than there are copies: a shard may be about to move.
    servers: [ServerId; REPLICAS_MAX as usize + 1],
    count: u8,
    /// A bit for each holder that is not in step, the lowest for the first.
    pub(crate) behind: u16,
}

impl FromIterator<ServerId> for Holders {
    fn from_iter<I: IntoIterator<Item = ServerId>>(servers: I) -> Holders {
        let mut holders = Holders::NONE;
        servers.into_iter().for_each(|server| holders.push(server));
        holders
    }
}

impl Holders {
    pub(crate) const NONE: Holders =
        Holders { servers: [ServerId(0); REPLICAS_MAX as usize + 1], count: 0, behind: 0 };

    fn push(&mut self, server: ServerId) {
        if let Some(place) = self.servers.get_mut(usize::from(self.count)) {
            *place = server;
            self.count += 1;
        }
    }

    /// All of them.
    pub fn all(&self) -> &[ServerId] {
        &self.servers[..usize::from(self.count)]
    }

    /// Those that have everything that was acknowledged.
    pub fn in_step(self) -> impl Iterator<Item = ServerId> {
        self.with(0)
    }

    /// Those that have to catch up before they may serve.
    pub fn behind(self) -> impl Iterator<Item = ServerId> {
        self.with(1)
    }

    fn with(self, bit: u16) -> impl Iterator<Item = ServerId> {
        let all = self.servers.into_iter().take(self.count.into()).enumerate();
        all.filter(move |(at, _)| self.behind >> at & 1 == bit).map(|(_, server)| server)
    }

    /// The bit of a holder; 0 if it is none.
    pub(crate) fn bit(&self, server: ServerId) -> u16 {
        self.all().iter().position(|s| *s == server).map_or(0, |at| 1 << at)
    }
}

/// A group of which not all holders are in step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct Lag {
    /// Which.
    pub group: Group,
    /// A bit for each holder that is behind, the lowest for the first.
    pub holders: u16,
    /// The map in which one of them fell behind last: who has caught up with what was missed before that has not
    /// caught up.
    pub since: Epoch,
}

impl Map {
    /// Who holds a group. Nobody, if the map knows nothing of it, as a peer may claim.
    pub fn holders(&self, group: Group) -> Holders {
        let mut holders = match group {
            Group::Shard(shard) => self.shard_holders(shard),
            Group::Blocks { generation, position, spread, copies } => {
                self.block_holders(generation, position, spread, copies)
            }
        };
        if !self.behind.is_empty() {
            holders.behind = self.lag_of(group).map_or(0, |lag| lag.holders);
        }
        holders
    }

    /// Who answers for a group: its first holder that is in step and up. While there is none, the first that
    /// is in step: it is waited for, or not, as the map says of it. [`NO_SERVER`] if nothing is left of the group.
    #[inline]
    pub fn primary_of(&self, group: Group) -> Option<ServerId> {
        if self.is_gone(group) {
            return Some(NO_SERVER);
        }
        match group {
            // Each access of a file with one copy asks this. The only holder of a group is in step.
            Group::Blocks { generation, position, copies: 0 | 1, .. } => {
                self.only_holder(generation, position)
            }
            _ => self.first_in_step(group),
        }
    }

    fn first_in_step(&self, group: Group) -> Option<ServerId> {
        let holders = self.holders(group);
        let mut in_step = holders.in_step();
        let first = in_step.next()?;
        if self.copies == 1 || self.is_up(first) {
            return Some(first);
        }
        Some(in_step.find(|server| self.is_up(*server)).unwrap_or(first))
    }

    /// Those who have everything of a group and take part: what is written goes to all of them. The first is
    /// the primary.
    pub fn serving(&self, group: Group) -> impl Iterator<Item = ServerId> + '_ {
        let is_gone = self.is_gone(group);
        self.holders(group).in_step().filter(move |server| !is_gone && self.is_up(*server))
    }

    /// Whether no copy of blocks is left.
    #[inline]
    pub fn is_gone(&self, group: Group) -> bool {
        !self.gone.is_empty() && self.is_among_gone(group)
    }

    #[cold]
    fn is_among_gone(&self, group: Group) -> bool {
        self.gone.binary_search(&group).is_ok()
    }

    /// Whom a process of a node asks for a group's blocks: of those who have everything, one on this node, or else each
    /// node another one.
    pub fn reader_of(&self, group: Group, node: NodeId) -> Option<ServerId> {
        if self.copies == 1 || self.is_gone(group) {
            return self.primary_of(group);
        }
        // Once, because each read asks this.
        let holders = self.holders(group);
        let mut serving = Holders::NONE;
        holders.in_step().filter(|server| self.is_up(*server)).for_each(|server| serving.push(server));
        let is_here = |server: &&ServerId| self.server(**server).is_some_and(|server| server.node == node);
        let all = serving.all();
        let other = || all.get(usize::from(node.0) % all.len().max(1));
        all.iter().find(is_here).or_else(other).copied().or_else(|| self.primary_of(group))
    }

    /// Whether a server lacks something of blocks that it holds.
    pub fn lacks_blocks(&self, server: ServerId) -> bool {
        let is_of_blocks = |lag: &&Lag| matches!(lag.group, Group::Blocks { .. });
        let mut lags = self.behind.iter().filter(is_of_blocks);
        lags.any(|lag| self.holders(lag.group).behind().any(|holder| holder == server))
    }

    /// Whether so few holders have everything of a group that changes of it are to be refused.
    pub fn has_too_few(&self, group: Group) -> bool {
        let wanted = usize::from(self.min_copies).min(self.holders(group).all().len());
        self.min_copies > 1 && self.serving(group).count() < wanted
    }

    /// Whether a server holds a group, and has to catch up before it may serve it.
    pub fn is_behind(&self, group: Group, server: ServerId) -> bool {
        self.holders(group).behind().any(|holder| holder == server)
    }

    /// Every group that has more than one copy, at this moment at least.
    pub fn replicated(&self) -> impl Iterator<Item = Group> + '_ {
        let has_copies = |shard: &ShardId| {
            self.copies > 1 || self.move_of(*shard).is_some_and(|entry| entry.stage == MoveStage::CatchingUp)
        };
        let shards = (0..SHARDS).map(ShardId).filter(has_copies).map(Group::Shard);
        let blocks = self.generations.iter().enumerate().flat_map(move |(number, generation)| {
            let generation_id = GenerationId(number as u32);
            let (positions, spreads) = (generation.servers.len() as u16, spreads(generation.servers.len()));
            (0..positions).flat_map(move |position| {
                (0..spreads).flat_map(move |spread| {
                    (2..=self.copies).map(move |copies| Group::Blocks {
                        generation: generation_id,
                        position,
                        spread,
                        copies,
                    })
                })
            })
        });
        shards.chain(blocks)
    }

    /// A server is down: from now on others acknowledge without it, and so it is behind in every group that
    /// another holder in step can serve.
    pub(crate) fn fall_behind(&mut self, server: ServerId) {
        let is_served =
            |holders: &Holders| holders.in_step().any(|other| other != server && self.is_up(other));
        let mut changed = Vec::new();
        for group in self.replicated() {
            let holders = self.holders(group);
            let bit = holders.bit(server);
            // One that has not caught up yet misses more from now on.
            if holders.behind & bit != 0 || bit != 0 && is_served(&holders) {
                changed.push((group, holders.behind | bit));
            }
        }
        self.set_behind(changed);
    }

    /// Copies cannot be relied on: one after the other, each is behind from now on, if another holder in step can serve
    /// its group.
    pub(crate) fn distrust(&mut self, copies: &[(Group, ServerId)]) {
        let mut changed: BTreeMap<Group, u16> = BTreeMap::new();
        for (group, server) in copies {
            let mut holders = self.holders(*group);
            holders.behind = changed.get(group).copied().unwrap_or(holders.behind);
            // One that is behind, and has perhaps just caught up, has to do so again.
            if holders.in_step().any(|other| other != *server && self.is_up(other)) {
                changed.insert(*group, holders.behind | holders.bit(*server));
            }
        }
        self.set_behind(changed.into_iter().collect());
    }

    /// In every group of blocks that is served, all holders but the primary have to be compared with it.
    pub(crate) fn doubt_copies(&mut self) {
        let groups: Vec<Group> = self.replicated().filter(|g| matches!(g, Group::Blocks { .. })).collect();
        let doubted = |group: Group| {
            let holders = self.holders(group);
            let primary = holders.bit(self.primary_of(group).filter(|primary| self.is_up(*primary))?);
            let all = (1u16 << holders.count) - 1;
            Some((group, all & !primary))
        };
        let changed = groups.into_iter().filter_map(doubted).collect();
        self.set_behind(changed);
    }

    /// A server has caught up with a shard that moves to it: then that is all.
    fn moves_on(&mut self, group: Group, server: ServerId) -> bool {
        match group {
            Group::Shard(shard) => self.move_on(shard, server),
            Group::Blocks { .. } => false,
        }
    }

    /// A server has caught up with these groups.
    pub(crate) fn catch_up(&mut self, server: ServerId, groups: &[Group]) {
        let mut groups = groups.to_vec();
        groups.retain(|group| !self.moves_on(*group, server));
        let caught_up = |group: &Group| {
            let holders = self.holders(*group);
            (*group, holders.behind & !holders.bit(server))
        };
        let changed: BTreeMap<Group, u16> = groups.iter().map(caught_up).collect();
        for lag in &mut self.behind {
            lag.holders = changed.get(&lag.group).copied().unwrap_or(lag.holders);
        }
        self.behind.retain(|lag| lag.holders != 0);
    }

    /// Where a holder that is in step is up, those that are not miss what it acknowledges from now on. They may have been
    /// in step until now, because nobody could serve the group without them: others have caught up with it, or have
    /// come back, since they went; or nothing was written there yet.
    pub(crate) fn leave_behind_who_is_away(&mut self) {
        let left = |group: Group| {
            let holders = self.holders(group);
            let away = holders.in_step().filter(|holder| !self.is_up(*holder));
            let away = away.fold(0, |bits, holder| bits | holders.bit(holder));
            let is_served = holders.in_step().any(|holder| self.is_up(holder));
            (is_served && away != 0).then_some((group, holders.behind | away))
        };
        let changed: Vec<(Group, u16)> = self.replicated().filter_map(left).collect();
        self.set_behind(changed);
    }

    /// Whether it counts by this map that a server has caught up with a group, as it could tell by the map of an earlier
    /// epoch. For a shard that has to be this map, because another primary does not know of it; of blocks nothing may
    /// have been missed since.
    pub fn counts_as_caught_up(&self, group: Group, server: ServerId, by: Epoch) -> bool {
        match group {
            Group::Shard(shard) => {
                let is_handed =
                    self.former_holder(shard).is_some() && self.answers_for(shard) == Some(server);
                self.epoch == by && (is_handed || self.is_behind(group, server))
            }
            Group::Blocks { .. } => self.behind_since(group, server).is_some_and(|since| since <= by),
        }
    }

    /// Whether a group of blocks has another primary than in the map before.
    pub(crate) fn has_other_primaries(&self, before: &Map) -> bool {
        let mut blocks = self.replicated().filter(|group| matches!(group, Group::Blocks { .. }));
        blocks.any(|group| self.primary_of(group) != before.primary_of(group))
    }

    /// These holders have fallen behind, by the map as it is.
    pub(crate) fn set_behind(&mut self, changed: Vec<(Group, u16)>) {
        let mut all: BTreeMap<Group, Lag> = self.behind.iter().map(|lag| (lag.group, *lag)).collect();
        let since = self.epoch;
        all.extend(changed.into_iter().map(|(group, holders)| (group, Lag { group, holders, since })));
        // With what is gone nobody can catch up.
        let lags = |lag: &Lag| lag.holders != 0 && !self.is_gone(lag.group);
        self.behind = all.into_values().filter(lags).collect();
    }

    /// How a group's holders lag; `None` if all are in step.
    pub fn lag_of(&self, group: Group) -> Option<&Lag> {
        self.behind.binary_search_by_key(&group, |lag| lag.group).ok().and_then(|at| self.behind.get(at))
    }

    /// Since which map a server is behind in a group; `None` if it is not.
    pub fn behind_since(&self, group: Group, server: ServerId) -> Option<Epoch> {
        let lag = self.lag_of(group)?;
        self.is_behind(group, server).then_some(lag.since)
    }

    /// Whether a server takes part.
    pub fn is_up(&self, server: ServerId) -> bool {
        self.server(server).is_some_and(|s| s.state == ServerState::Up)
    }

    fn shard_holders(&self, shard: ShardId) -> Holders {
        let mut holders = Holders::NONE;
        self.row(shard).iter().for_each(|server| holders.push(*server));
        if let Some(entry) = self.move_of(shard).filter(|entry| entry.stage == MoveStage::CatchingUp) {
            holders.push(entry.to);
        }
        holders
    }

    fn block_holders(&self, generation: GenerationId, position: u16, spread: u16, copies: u8) -> Holders {
        if copies <= 1 {
            let is_gone = self.is_gone(crate::abandoning::only_copy(generation, position));
            let holder = self.only_holder(generation, position);
            return holder.map(|holder| if is_gone { NO_SERVER } else { holder }).into_iter().collect();
        }
        let servers = self.generation(generation).map_or(&[][..], |g| &g.servers);
        let candidates = Candidates::new(servers, position, spread);
        if self.spares.is_empty() {
            return self.choose(Holders::NONE, candidates.iter(), copies, generation);
        }
        let is_spare = |server: &ServerId| {
            self.spares.iter().any(|spare| spare.server == *server && generation < spare.since)
        };
        let regular = candidates.iter().filter(|server| !is_spare(server));
        let mut holders = self.choose(Holders::NONE, regular, copies, generation);
        // Also those that were away when the generation was made. The latest is the last, and nodes do not matter: so one
        // that comes back takes nobody's place.
        for spare in self.spares.iter().filter(|spare| generation < spare.since) {
            if holders.count < copies {
                holders.push(spare.server);
            }
        }
        holders
    }

    /// Who holds blocks of which there is one copy.
    #[inline]
    fn only_holder(&self, generation: GenerationId, position: u16) -> Option<ServerId> {
        let home = *self.generation(generation)?.servers.get(usize::from(position))?;
        Some(if self.is_lost_with(home, generation) { NO_SERVER } else { home })
    }

    /// Whether the only copy of a block of this generation was lost with the process that had this server's number then.
    #[inline]
    fn is_lost_with(&self, home: ServerId, generation: GenerationId) -> bool {
        // Where nothing has copies no server is ever replaced.
        self.copies > 1 && self.is_replaced_since(home, generation)
    }

    fn is_replaced_since(&self, home: ServerId, generation: GenerationId) -> bool {
        let latest = self.server(home).and_then(|server| server.former.last());
        latest.is_some_and(|former| generation < former.until)
    }

    /// After these holders the first candidates that are not given up, with failure domains, or else nodes, of their
    /// own; and then any. What counts are the nodes of the time of this generation.
    fn choose(
        &self,
        mut holders: Holders,
        candidates: impl Iterator<Item = ServerId> + Clone,
        copies: u8,
        generation: GenerationId,
    ) -> Holders {
        let place = |server: ServerId| {
            let node = self.server(server).map(|s| s.node_in(generation));
            let domain = node.and_then(|node| self.node(node)).map(|node| node.domain);
            (domain, node)
        };
        type Place = (Option<u16>, Option<crate::ids::NodeId>);
        let apart: [fn(Place, Place) -> bool; 3] = [|a, b| a.0 != b.0, |a, b| a.1 != b.1, |_, _| true];
        for is_apart in apart {
            for candidate in candidates.clone() {
                if holders.count >= copies {
                    return holders;
                }
                let has_left = self.server(candidate).is_none();
                let known = has_left || holders.all().contains(&candidate) || self.lost.contains(&candidate);
                let here = place(candidate);
                if !known && holders.all().iter().all(|other| is_apart(here, place(*other))) {
                    holders.push(candidate);
                }
            }
        }
        holders
    }

    /// The holders of a shard with this home, for the map's table: first these, and then others.
    pub(crate) fn deal_copies(&self, shard: ShardId, home: ServerId, first: Holders) -> Holders {
        // One that leaves, or has not come yet, gets nothing; a home that leaves counts as one of them all the same.
        let deals =
            |server: &ServerId| *server == home || self.takes_shards(*server) || self.is_given_up(*server);
        let servers: Vec<ServerId> = self.servers.iter().map(|s| s.id).filter(deals).collect();
        let position = servers.iter().position(|s| *s == home).unwrap_or(0);
        // The shards of one primary are `servers` apart, after a first deal.
        let spread = usize::from(shard.0) / servers.len().max(1) % usize::from(spreads(servers.len()));
        let candidates = Candidates::new(&servers, position as u16, spread as u16);
        // By the nodes as they are now.
        self.choose(first, candidates.iter(), self.copies, GenerationId(u32::MAX))
    }
}

/// The servers of a generation, in the order in which they are to hold one group.
struct Candidates<'a> {
    servers: &'a [ServerId],
    position: usize,
    /// Distance of the second candidate from the first, less one.
    begin: usize,
    stride: usize,
}

impl<'a> Candidates<'a> {
    fn new(servers: &'a [ServerId], position: u16, spread: u16) -> Candidates<'a> {
        let others = servers.len().saturating_sub(1);
        // Not by the position: if all servers have their copies at the same distances, all hold as much.
        let seed = SEEDS.get(servers.len()).copied().unwrap_or_default();
        let hash = hash::number(Use::Copies, u64::from(seed) << 16 | u64::from(spread));
        let begin = match others {
            0 => 0,
            few if few <= usize::from(SPREAD_MAX) => usize::from(spread) % few,
            many => (hash >> 32) as usize % many,
        };
        // Distances are visited once each if stride and number have no common divisor.
        let coprime = |stride: &usize| gcd(*stride, others) == 1;
        let stride = match others {
            0..=2 => 1,
            _ => (1 + hash as usize % (others - 1)..).find(coprime).unwrap_or(1),
        };
        Candidates { servers, position: position.into(), begin, stride }
    }

    fn iter(&self) -> impl Iterator<Item = ServerId> + Clone + '_ {
        let (n, others) = (self.servers.len(), self.servers.len().saturating_sub(1));
        let distance = move |step: usize| 1 + (self.begin + step * self.stride) % others;
        let distances = std::iter::once(0).chain((0..others).map(distance));
        let known = self.position < n;
        distances.filter(move |_| known).map(move |distance| self.servers[(self.position + distance) % n])
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
