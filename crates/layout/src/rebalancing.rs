//! Which shards are to move, so that every server that stays holds its share.
//!
//! Primaries come first: [`crate::balance::deal`] says where each is to be, with the fewest moves. Further copies follow:
//! those on servers that leave have to move, and of the others as many as are too many, to the servers that hold the
//! fewest of all. A copy does not move where copies of its shard would be on fewer nodes or failure domains for it.
//!
//! What is to be done follows from the map alone, and the shards that move already are counted as where they will be. So it
//! can be computed again after every change, and comes to an end. Shards move only after servers have come or are to leave
//! ([`Map::balancing`]): one that was given up and comes back gets nothing of what others hold in its place.

use crate::balance::deal;
use crate::ids::{SHARDS, ServerId, ShardId};
use crate::map::Map;
use crate::moving::{MoveStage, Relocation};
use std::collections::{BTreeMap, BTreeSet};

impl Map {
    /// The moves that are still to begin; one for each shard at most, so that there may be more when these are done.
    pub fn relocations(&self) -> Vec<Relocation> {
        let members: Vec<ServerId> =
            self.servers.iter().map(|s| s.id).filter(|server| self.takes_shards(*server)).collect();
        if members.len() < usize::from(self.copies) {
            return Vec::new();
        }
        let mut plan = Plan::new(self, &members);
        plan.move_primaries();
        if self.copies > 1 {
            plan.move_copies();
        }
        plan.moves.into_values().collect()
    }

    /// Whether no shard moves, or is to move.
    pub(crate) fn is_balanced(&self) -> bool {
        self.moving.is_empty() && self.relocations().is_empty()
    }

    /// How many shards a server holds, as their primary or not.
    pub fn held_by(&self, server: ServerId) -> usize {
        self.shards.iter().filter(|holder| **holder == server).count()
    }
}

struct Plan<'m> {
    map: &'m Map,
    members: &'m [ServerId],
    /// Who is to hold each shard, as far as is planned.
    rows: Vec<Vec<ServerId>>,
    /// How many shards each member holds then.
    loads: BTreeMap<ServerId, usize>,
    moves: BTreeMap<ShardId, Relocation>,
}

impl<'m> Plan<'m> {
    fn new(map: &'m Map, members: &'m [ServerId]) -> Plan<'m> {
        let rows: Vec<Vec<ServerId>> = (0..SHARDS).map(|shard| planned(map, ShardId(shard))).collect();
        let mut loads: BTreeMap<ServerId, usize> = members.iter().map(|server| (*server, 0)).collect();
        for server in rows.iter().flatten() {
            loads.entry(*server).and_modify(|load| *load += 1);
        }
        Plan { map, members, rows, loads, moves: BTreeMap::new() }
    }

    fn move_primaries(&mut self) {
        let primaries: Vec<ServerId> = self.rows.iter().map(|row| row[0]).collect();
        let dealt = deal(&primaries, self.members);
        for (shard, (from, to)) in primaries.into_iter().zip(dealt).enumerate() {
            if from != to {
                self.relocate(shard, from, to);
            }
        }
    }

    fn move_copies(&mut self) {
        for shard in 0..self.rows.len() {
            for from in self.rows[shard].clone() {
                if !self.members.contains(&from)
                    && let Some(to) = self.best_for(shard, from, |_, _| true)
                {
                    self.relocate(shard, from, to);
                }
            }
        }
        let share = self.rows.len() * usize::from(self.map.copies) / self.members.len();
        // Each round lets every shard give up one copy.
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for shard in 0..self.rows.len() {
                for at in 1..self.rows[shard].len() {
                    let from = self.rows[shard][at];
                    let load = self.load(from);
                    let is_better = |plan: &Plan<'_>, to: ServerId| plan.load(to) + 1 < load;
                    if load > share
                        && let Some(to) = self.best_for(shard, from, is_better)
                    {
                        self.relocate(shard, from, to);
                        has_moved = true;
                        break;
                    }
                }
            }
        }
    }

    fn load(&self, server: ServerId) -> usize {
        self.loads.get(&server).copied().unwrap_or_default()
    }

    /// The member that is to have a copy of a shard instead of another server: as far apart from the others as that one,
    /// where possible, and with the fewest shards.
    fn best_for(
        &self,
        shard: usize,
        from: ServerId,
        suits: impl Fn(&Plan<'_>, ServerId) -> bool,
    ) -> Option<ServerId> {
        let row = &self.rows[shard];
        let others: Vec<ServerId> = row.iter().copied().filter(|holder| *holder != from).collect();
        let apart = |server: ServerId| {
            let all = || others.iter().copied().chain([server]);
            let nodes: BTreeSet<_> = all().filter_map(|s| self.map.server(s).map(|s| s.node)).collect();
            let domains: BTreeSet<_> =
                nodes.iter().filter_map(|node| self.map.node(*node).map(|n| n.domain)).collect();
            (domains.len(), nodes.len())
        };
        let is_leaving = !self.members.contains(&from);
        let now = apart(from);
        let candidates = self.members.iter().copied().filter(|server| !row.contains(server));
        let candidates = candidates.filter(|server| is_leaving || apart(*server) >= now);
        let best = candidates
            .filter(|server| suits(self, *server))
            .map(|server| (std::cmp::Reverse(apart(server)), self.load(server), server));
        best.min().map(|(_, _, server)| server)
    }

    fn relocate(&mut self, shard: usize, from: ServerId, to: ServerId) {
        let row = &mut self.rows[shard];
        if let Some(other) = row.iter().position(|holder| *holder == to) {
            row[other] = from;
            row[0] = to;
        } else {
            row.iter_mut().filter(|holder| **holder == from).for_each(|holder| *holder = to);
            self.loads.entry(from).and_modify(|load| *load -= 1);
            self.loads.entry(to).and_modify(|load| *load += 1);
        }
        let id = ShardId(shard as u16);
        if self.map.move_of(id).is_none() {
            // A further one comes when this one is done.
            self.moves.entry(id).or_insert(Relocation { shard: id, from, to });
        }
    }
}

/// Who holds a shard when it has moved.
fn planned(map: &Map, shard: ShardId) -> Vec<ServerId> {
    let mut row = map.row(shard).to_vec();
    if let Some(entry) = map.move_of(shard).filter(|entry| entry.stage == MoveStage::CatchingUp) {
        row.iter_mut().filter(|holder| **holder == entry.from).for_each(|holder| *holder = entry.to);
    }
    row
}

#[cfg(test)]
mod tests;
