//! Servers that leave a deployment.
//!
//! That takes two changes of the map, with much work in between. First the servers are listed as *departing*
//! ([`Map::departing`]): a generation begins without them, so that they get no new files, and they get no shards any more;
//! they serve what they have. Other generations that name them get *successors*. Then others see to it that everything leaves them: the controller moves their shards
//! ([`crate::rebalancing`]), and the files' servers move their blocks. When nothing is left, they are taken off the map
//! ([`MapChange::Remove`](crate::MapChange::Remove)). Until then they can stay after all: another generation has them again.
//!
//! The numbers of servers that have left are not used again, and old generations go on naming them. In groups of blocks
//! that they held, the next candidates take their place, as with servers that were given up. Nothing is in these groups any
//! more, but the new holders have to compare themselves all the same.

use crate::groups::Lag;
use crate::ids::{GenerationId, NodeId, ServerId};
use crate::map::Map;

/// Most places of a generation that is longer than it has servers.
const PLACES: usize = 1024;

impl Map {
    /// Whether a server is to leave.
    pub fn is_departing(&self, server: ServerId) -> bool {
        self.departing.binary_search(&server).is_ok()
    }

    /// Whether these servers may be asked to leave; or why not.
    pub fn may_depart(&self, servers: &[ServerId]) -> Result<(), &'static str> {
        if servers.is_empty() || !servers.iter().all(|server| self.server(*server).is_some()) {
            return Err("there is no such server");
        }
        if servers.iter().any(|server| self.arriving.contains(server)) {
            return Err("a server has not arrived yet: `Dismiss` takes it off the map");
        }
        let stays = |server: &ServerId| self.takes_shards(*server) && !servers.contains(server);
        let left = self.servers.iter().filter(|server| stays(&server.id)).count();
        if left < usize::from(self.copies) {
            return Err("fewer servers than copies would be left");
        }
        Ok(())
    }

    /// Lists servers as departing.
    pub(crate) fn with_departing(&self, servers: &[ServerId]) -> Option<Map> {
        self.may_depart(servers).ok()?;
        let mut map = self.clone();
        map.departing.extend(servers);
        map.departing.sort_unstable();
        map.departing.dedup();
        map.cancel_moves(|entry| servers.contains(&entry.to));
        map.succeed();
        let mut newest = self.generations.last().map_or(Vec::new(), |newest| newest.servers.clone());
        newest.retain(|server| !servers.contains(server));
        if newest.is_empty() {
            // Those that are left are down, or were given up when the generation was made.
            newest = map.servers.iter().map(|s| s.id).filter(|s| map.takes_shards(*s)).collect();
        }
        map.begin_generation(newest);
        map.balancing = true;
        Some(map)
    }

    /// Servers that were to leave stay after all. `None` if one of them was not.
    pub(crate) fn with_staying(&self, servers: &[ServerId]) -> Option<Map> {
        if servers.is_empty() || !servers.iter().all(|server| self.is_departing(*server)) {
            return None;
        }
        let mut map = self.clone();
        map.departing.retain(|server| !servers.contains(server));
        map.emptied.retain(|server| !servers.contains(server));
        // Files of these generations may stay where they are again. Those that have moved stay in the successors.
        let is_whole = |id: &GenerationId| {
            let generation = map.generation(*id).map_or(&[][..], |generation| &generation.servers);
            generation.iter().all(|server| map.server(*server).is_some() && !map.is_departing(*server))
        };
        let successors = map.successors.iter().filter(|(from, _)| !is_whole(from)).copied().collect();
        map.successors = successors;
        let mut newest = map.generations.last().map_or(Vec::new(), |newest| newest.servers.clone());
        newest.extend(servers.iter().filter(|server| !map.is_given_up(**server)));
        map.begin_generation(newest);
        map.balancing = true;
        Some(map)
    }

    /// Takes servers off the map that were to leave, and nodes. `None` if one of them was not, or holds a shard, or has
    /// the only complete copy of a group of blocks; or if a node is used by another server.
    pub(crate) fn without_departed(&self, servers: &[ServerId], nodes: &[NodeId]) -> Option<Map> {
        let is_rid = |server: &ServerId| {
            self.is_departing(*server)
                && self.emptied.contains(server)
                && !self.shards.contains(server)
                && self.moving.iter().all(|entry| entry.from != *server && entry.to != *server)
        };
        if servers.is_empty() || !servers.iter().all(is_rid) {
            return None;
        }
        let mut map = self.clone();
        map.servers.retain(|server| !servers.contains(&server.id));
        map.departing.retain(|server| !servers.contains(server));
        map.emptied.retain(|server| !servers.contains(server));
        map.lost.retain(|server| !servers.contains(server));
        map.spares.retain(|spare| !servers.contains(&spare.server));
        map.nodes.retain(|node| !nodes.contains(&node.id));
        map.away.retain(|node| !nodes.contains(node));
        map.vacated.retain(|node| !nodes.contains(node));
        map.behind = self.lags_in(&map)?;
        map.check().is_ok().then_some(map)
    }

    /// Generations that name departing servers get successors, in which others have the places of those: so only what is on
    /// departing servers moves. A place is another server's where that has the fewest places already. What is lost stays where it
    /// is, and lost.
    pub(crate) fn succeed(&mut self) {
        let staying: Vec<ServerId> =
            self.servers.iter().map(|server| server.id).filter(|server| self.takes_shards(*server)).collect();
        for number in 0..self.generations.len() as u32 {
            let id = GenerationId(number);
            let servers = self.generation(id).map_or(Vec::new(), |generation| generation.servers.clone());
            let lost: Vec<bool> = (0..servers.len()).map(|at| self.is_lost_place(id, at as u16)).collect();
            let is_lost = |at: usize| lost.get(at % lost.len().max(1)) == Some(&true);
            let leaves = |map: &Map, at: usize, server: &ServerId| {
                map.is_departing(*server) || map.server(*server).is_none() && !is_lost(at)
            };
            let Err(place) = self.successors.binary_search_by_key(&id, |(from, _)| *from) else { continue };
            let leaving = servers.iter().enumerate().filter(|(at, server)| leaves(self, *at, server)).count();
            if leaving == 0 {
                continue;
            }
            let mut places = servers.repeat(self.repetitions(servers.len(), leaving, staying.len()));
            for at in 0..places.len() {
                if leaves(self, at, &places[at]) {
                    let used = |server: &ServerId| places.iter().filter(|place| *place == server).count();
                    // From another one on in each generation.
                    let order = staying.iter().cycle().skip(number as usize + at).take(staying.len());
                    let Some(substitute) = order.min_by_key(|server| used(server)).copied() else { return };
                    places[at] = substitute;
                }
            }
            let count = places.len();
            self.begin_generation(places);
            let successor = GenerationId(self.generations.len() as u32 - 1);
            self.lose_places(successor, (0..count).filter(|at| is_lost(*at)).map(|at| at as u16));
            self.successors.insert(place, (id, successor));
        }
    }

    /// How often a successor names the servers of its generation one after the other, so that those that stay get the same share
    /// of the places of those that leave. With copies once: another number of places would change who holds copies.
    fn repetitions(&self, servers: usize, leaving: usize, staying: usize) -> usize {
        let (mut divisor, mut rest) = (staying, leaving);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let wanted = staying / divisor.max(1);
        if self.copies > 1 { 1 } else { wanted.clamp(1, (PLACES / servers.max(1)).max(1)) }
    }

    /// Who is behind in another map, in which servers that are empty have left: those who are behind now, and those who were no
    /// holders. If none of those who held a group is left, there is nothing in it. `None` if there is a group of which nobody
    /// is complete then.
    fn lags_in(&self, map: &Map) -> Option<Vec<Lag>> {
        let mut lags = Vec::new();
        for group in self.replicated().filter(|group| !self.is_gone(*group)) {
            let (before, after) = (self.holders(group), map.holders(group));
            if before.all() == after.all() {
                lags.extend(self.lag_of(group));
                continue;
            }
            let complete: Vec<ServerId> = before.in_step().filter(|server| after.bit(*server) != 0).collect();
            if complete.is_empty() {
                if before.all().iter().any(|server| map.server(*server).is_some()) {
                    return None;
                }
                continue;
            }
            let is_behind = |server: &&ServerId| !complete.contains(server);
            let holders =
                after.all().iter().filter(is_behind).fold(0, |bits, server| bits | after.bit(*server));
            lags.extend((holders != 0).then_some(Lag { group, holders, since: map.epoch }));
        }
        lags.sort_unstable();
        Some(lags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::groups::Group;
    use crate::ids::{GenerationId, SHARDS, ShardId};
    use crate::map::ServerState;
    use crate::map::fixture::replicated;
    use crate::moving::Relocation;

    /// Every file is where it is to be.
    fn emptied(map: &Map) -> Map {
        let begun = applied(map, MapChange::Rebuild { rule: crate::Rule::Metadata, rate: 0 });
        applied(&begun, MapChange::Rebuilt { number: begun.rebuilds, complete: true })
    }

    /// All have what they are to hold.
    fn caught_up(map: Map) -> Map {
        let servers = map.servers.iter().map(|server| {
            let lacks =
                map.behind.iter().map(|lag| lag.group).filter(|group| map.is_behind(*group, server.id));
            (server.id, lacks.collect())
        });
        applied(&map, MapChange::InStep { servers: servers.collect() })
    }

    fn ids(numbers: &[u16]) -> Vec<ServerId> {
        numbers.iter().copied().map(ServerId).collect()
    }

    fn applied(map: &Map, change: MapChange) -> Map {
        let next = change.apply(map).expect("a change");
        assert_eq!(next.check(), Ok(()));
        next
    }

    fn depart(map: &Map, servers: &[u16]) -> Map {
        applied(map, MapChange::Depart { servers: ids(servers) })
    }

    /// All shards move to where they are to be, at once.
    fn rebalanced(mut map: Map) -> Map {
        while !(map.moving.is_empty() && map.relocations().is_empty()) {
            let moves: Vec<Relocation> = map.relocations();
            if !moves.is_empty() {
                map = applied(&map, MapChange::MoveShards { moves });
            }
            for _ in 0..2 {
                let on = |entry: &crate::ShardMove| (entry.to, vec![Group::Shard(entry.shard)]);
                let servers = map.moving.iter().map(on).collect();
                map = applied(&map, MapChange::InStep { servers });
            }
        }
        map
    }

    #[test]
    fn servers_that_depart_get_no_new_files_and_can_stay_after_all() {
        for copies in [1, 2] {
            let map = replicated(4, copies, &[&[0, 1, 2, 3]]);
            let departing = depart(&map, &[1, 3]);
            assert_eq!(departing.generations.last().map(|newest| &newest.servers), Some(&ids(&[0, 2])));
            // What is not on them stays: the others have their places in the old generation's successor.
            assert_eq!(departing.successors, [(GenerationId(0), GenerationId(1))]);
            assert_eq!(departing.generations[1].servers, ids(&[0, 2, 2, 0]), "{copies}");
            assert!(MapChange::Remove { servers: ids(&[1]), nodes: Vec::new() }.apply(&departing).is_none());
            let stays = applied(&departing, MapChange::Stay { servers: ids(&[3]) });
            assert_eq!((&stays.departing, &stays.generations[3].servers), (&ids(&[1]), &ids(&[0, 2, 3])));
            assert_eq!(stays.successors.len(), 1, "server 1 is still to leave");
            let all = applied(&stays, MapChange::Stay { servers: ids(&[1]) });
            assert_eq!(all.successors, []);
            assert!(MapChange::Stay { servers: ids(&[3]) }.apply(&stays).is_none(), "it stays already");
        }
    }

    #[test]
    fn those_that_stay_share_what_leaves_and_nothing_else_moves() {
        use crate::placement::FileLayout;
        use crate::{Ino, Rule};
        use std::collections::BTreeMap;
        let map = replicated(4, 1, &[&[0, 1, 2, 3]]);
        let departing = depart(&map, &[1]);
        for (width, placed) in [(0, false), (1, false), (2, false), (1, true)] {
            let mut got: BTreeMap<u16, u32> = BTreeMap::new();
            for ino in 0..600 {
                let mut file =
                    FileLayout { width, placed, ..FileLayout::spread(Ino(ino), 4096, GenerationId(0)) };
                if placed {
                    file.ranges[0].first = 1;
                }
                let after = file.restriped(&departing, Ino(ino), Rule::Metadata, &(0..u64::MAX));
                for block in 0..12 {
                    let at =
                        |layout: &FileLayout| layout.server_at(&departing, block * 4096).expect("a server").0;
                    match (at(&file), at(&after)) {
                        (1, now) => *got.entry(now).or_default() += 1,
                        (before, now) => assert_eq!(before, now),
                    }
                }
            }
            let all: u32 = got.values().sum();
            let fair = |count: &u32| (all / 4..all / 2).contains(count);
            assert!(got.keys().eq(&[0, 2, 3]) && got.values().all(fair), "width {width}: {got:?}");
        }
    }

    #[test]
    fn all_who_held_a_group_leave_at_once() {
        let map = emptied(&rebalanced(depart(&replicated(5, 2, &[&[0, 1, 2, 3, 4]]), &[3, 4])));
        let gone = applied(&map, MapChange::Remove { servers: ids(&[3, 4]), nodes: Vec::new() });
        let stay = |group: Group| gone.holders(group).all().iter().all(|s| gone.server(*s).is_some());
        assert!(gone.replicated().all(|group| stay(group) && gone.serving(group).next().is_some()));
    }

    #[test]
    fn in_whatever_order_servers_leave_every_map_is_a_good_one() {
        let generations: [&[u16]; 4] = [&[0, 1], &[0, 1, 2, 3], &[2, 3, 4, 5, 6], &[0, 1, 2, 3, 4, 5, 6]];
        for seed in 0..8_u64 {
            let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut roll = |sides: usize| {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                (dice % sides as u64) as usize
            };
            let mut map = replicated(7, 1 + (seed % 2) as u8, &generations);
            for _ in 0..9 {
                let server = map.servers[roll(map.servers.len())].id;
                match roll(3) {
                    0 if map.is_departing(server) => {
                        map = applied(&map, MapChange::Stay { servers: vec![server] });
                    }
                    1 if !map.departing.is_empty() => {
                        map = emptied(&rebalanced(map));
                        let servers = map.departing.clone();
                        map = applied(&map, MapChange::Remove { servers, nodes: Vec::new() });
                        map = caught_up(map);
                    }
                    _ if map.may_depart(&[server]).is_ok() => {
                        map = applied(&map, MapChange::Depart { servers: vec![server] });
                    }
                    _ => {}
                }
                let leaves = |server: &ServerId| map.is_departing(*server) || map.server(*server).is_none();
                for (number, generation) in map.generations.iter().enumerate() {
                    let has = map.successors.iter().any(|(from, _)| from.0 as usize == number);
                    assert!(has || !generation.servers.iter().any(leaves), "{seed}: {number}");
                }
            }
        }
    }

    #[test]
    fn as_many_servers_stay_as_there_are_copies() {
        let map = replicated(3, 2, &[&[0, 1, 2]]);
        assert_eq!(map.may_depart(&ids(&[0, 1])), Err("fewer servers than copies would be left"));
        assert!(MapChange::Depart { servers: ids(&[0, 1]) }.apply(&map).is_none());
        assert_eq!(map.may_depart(&ids(&[7])), Err("there is no such server"));
        assert!(depart(&map, &[0]).may_depart(&ids(&[1])).is_err());
    }

    #[test]
    fn a_server_that_holds_nothing_any_more_is_taken_off_and_its_number_never_used_again() {
        for copies in [1, 2] {
            let map = rebalanced(depart(&replicated(4, copies, &[&[0, 1, 2, 3]]), &[3]));
            assert!(!map.shards.contains(&ServerId(3)));
            let remove = MapChange::Remove { servers: ids(&[3]), nodes: Vec::new() };
            assert!(remove.apply(&map).is_none(), "files may have blocks there");
            let map = emptied(&map);
            assert_eq!(map.emptied, ids(&[3]));
            let gone = applied(&map, MapChange::Remove { servers: ids(&[3]), nodes: vec![NodeId(3)] });
            assert_eq!((gone.servers.len(), gone.nodes.len(), gone.numbers), (3, 3, 4));
            assert!(!gone.is_up(ServerId(3)));
            for group in gone.replicated() {
                let holders = gone.holders(group);
                assert!(!holders.all().contains(&ServerId(3)), "{group:?}");
                assert!(gone.serving(group).next().is_some(), "{group:?}");
            }
            let old = Group::Blocks { generation: GenerationId(0), position: 3, spread: 0, copies: 1 };
            assert_eq!(gone.primary_of(old), Some(ServerId(3)), "who asks for it learns that it is gone");
            let balance = |server| gone.shards_of(server).count();
            let counts: Vec<usize> = gone.servers.iter().map(|server| balance(server.id)).collect();
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            // What others have of old generations goes on being served when one of them is down.
            let down = applied(&gone, MapChange::State { server: ServerId(0), state: ServerState::Down });
            assert!(copies == 1 || (0..SHARDS).all(|s| down.answers_for(ShardId(s)).is_some()));
        }
    }
}
