use super::*;
use crate::change::MapChange;
use crate::fair::assert_fair;
use crate::ids::NodeId;
use crate::map::Node;
use crate::map::fixture::{map, replicated};
use crate::replacing::Replacement;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn blocks(position: u16, spread: u16, copies: u8) -> Group {
    Group::Blocks { generation: GenerationId(0), position, spread, copies }
}

fn all_of(servers: u16, copies: u8) -> Map {
    let all: Vec<u16> = (0..servers).collect();
    replicated(servers, copies, &[&all])
}

fn state(map: &Map, server: ServerId, state: ServerState) -> Map {
    MapChange::State { server, state }.apply(map).expect("a server of the map")
}

#[test]
fn without_copies_the_home_alone_holds_a_group() {
    let map = map(5, &[&[3, 1, 4]]);
    assert_eq!(map.holders(blocks(2, 0, 1)).all(), [ServerId(4)]);
    assert_eq!(map.primary_of(blocks(0, 1, 1)), Some(ServerId(3)));
    assert_eq!(map.replicated().count(), 0);
    for position in 0..4 {
        let first = map.holders(blocks(position, 0, 1)).in_step().next();
        assert_eq!(map.primary_of(blocks(position, 0, 1)), first);
    }
    assert_eq!(map.primary_of(blocks(3, 0, 1)), None, "a place that the generation does not have");
    let unknown = Group::Blocks { generation: GenerationId(7), position: 0, spread: 0, copies: 2 };
    assert_eq!(map.primary_of(unknown), None);
    assert_eq!(map.primary_of(Group::Shard(ShardId(SHARDS))), None);
}

#[test]
fn a_group_has_as_many_holders_as_copies_and_the_home_is_the_first() {
    for (servers, copies) in [(2, 2), (3, 2), (5, 4), (8, 8), (100, 3)] {
        let map = all_of(servers, copies);
        for group in map.replicated() {
            let holders = map.holders(group);
            let distinct: BTreeSet<_> = holders.all().iter().collect();
            let expected = match group {
                Group::Shard(_) => copies,
                Group::Blocks { position, copies, .. } => {
                    assert_eq!(holders.all()[0], ServerId(position));
                    copies
                }
            };
            assert_eq!(
                (distinct.len(), holders.all().len()),
                (expected.into(), expected.into()),
                "{group:?}"
            );
        }
    }
}

#[test]
fn the_second_copies_of_one_server_are_spread_evenly_over_all_others() {
    let map = all_of(8, 2);
    for position in 0..8 {
        let seconds: BTreeSet<_> =
            (0..spreads(8)).map(|spread| map.holders(blocks(position, spread, 2)).all()[1]).collect();
        assert_eq!(seconds.len(), 7, "each of the others once");
    }
    // The readers of three servers that have failed are spread over the other five.
    let mut map = all_of(8, 4);
    for dead in [1, 4, 6] {
        map = state(&map, ServerId(dead), ServerState::Down);
    }
    let mut taken = [0u32; 8];
    let groups = map.replicated().filter(|group| matches!(group, Group::Blocks { copies: 4, .. }));
    for group in groups.collect::<Vec<_>>() {
        taken[usize::from(map.primary_of(group).expect("one lives").0)] += 1;
    }
    let living: Vec<u32> = [0, 2, 3, 5, 7].map(|server: usize| taken[server]).to_vec();
    assert_eq!(living.iter().sum::<u32>(), 56);
    assert_fair("groups of the dead", &living.iter().map(|n| n - 7).collect::<Vec<_>>(), &[0.2; 5]);
}

#[test]
fn shards_and_their_copies_are_even() {
    let map = all_of(8, 3);
    for copy in 0..3 {
        let mut held = [0u32; 8];
        for shard in 0..SHARDS {
            held[usize::from(map.holders(Group::Shard(ShardId(shard))).all()[copy].0)] += 1;
        }
        assert_fair("shards", &held, &[0.125; 8]);
    }
}

#[test]
fn copies_lie_on_different_nodes_and_in_different_domains_where_these_suffice() {
    // Twelve servers, two on each of six nodes, two nodes in each of three racks.
    let mut map = all_of(12, 4);
    map.nodes.truncate(6);
    for (number, server) in map.servers.iter_mut().enumerate() {
        server.node = NodeId(number as u16 % 6);
    }
    map.nodes.iter_mut().for_each(|node| node.domain = node.id.0 / 2);
    let node = |server: &ServerId| map.server(*server).map(|s| s.node.0).expect("listed");
    for group in map.replicated().filter(|group| matches!(group, Group::Blocks { .. })).collect::<Vec<_>>() {
        let holders = map.holders(group);
        let nodes: BTreeSet<_> = holders.all().iter().map(node).collect();
        let racks: BTreeSet<_> = nodes.iter().map(|node| node / 2).collect();
        assert_eq!(nodes.len(), holders.all().len(), "{group:?}");
        assert_eq!(racks.len(), holders.all().len().min(3), "{group:?}");
    }
}

#[test]
fn who_is_down_is_behind_until_it_has_caught_up_and_the_last_one_never_is() {
    let map = all_of(3, 2);
    let group = Group::Shard(ShardId(0));
    let holders = map.holders(group);
    let [a, b] = holders.all() else { panic!("two copies") };
    assert_eq!(map.primary_of(group), Some(*a));
    let one_down = state(&map, *a, ServerState::Down);
    assert_eq!(one_down.primary_of(group), Some(*b));
    assert_eq!(one_down.holders(group).behind().collect::<Vec<_>>(), [*a]);
    let both_down = state(&one_down, *b, ServerState::Down);
    assert_eq!(both_down.holders(group).in_step().collect::<Vec<_>>(), [*b], "the last writer");
    // The first one comes back: it must not serve, because the other may have acknowledged more.
    let back = state(&both_down, *a, ServerState::Up);
    assert_eq!(back.behind_since(group, *a), Some(one_down.epoch));
    // What it catches up with from now on is nothing that it had before.
    let again = state(&back, *a, ServerState::Down);
    assert_eq!(again.behind_since(group, *a), Some(again.epoch));
    assert_eq!(again.behind_since(group, *b), None);
    assert_eq!(back.primary_of(group), Some(*b));
    assert_eq!(back.check(), Ok(()));
    let all_back = state(&back, *b, ServerState::Up);
    let in_step = MapChange::InStep { servers: vec![(*a, vec![group])] }.apply(&all_back).expect("listed");
    assert_eq!(in_step.primary_of(group), Some(*a));
    assert_eq!(in_step.holders(group).behind().count(), 0);
}

#[test]
fn a_node_reads_its_own_copy_or_else_one_of_those_in_step_and_each_node_another() {
    let map = all_of(6, 3);
    for group in map.replicated().filter(|group| matches!(group, Group::Blocks { .. })) {
        let holders = map.holders(group);
        let readers: Vec<ServerId> =
            (0..6).map(|node| map.reader_of(group, NodeId(node)).expect("a reader")).collect();
        // Each server of this map is on the node of its number.
        for node in 0..6 {
            let reader = readers[usize::from(node)];
            assert!(holders.all().contains(&reader));
            assert!(reader == ServerId(node) || !holders.all().contains(&ServerId(node)), "{group:?}");
        }
        let elsewhere = (0..6).filter(|node| !holders.all().contains(&ServerId(*node)));
        let distinct: BTreeSet<ServerId> = elsewhere.map(|node| readers[usize::from(node)]).collect();
        assert!(distinct.len() > 1, "{group:?}: {distinct:?}");
    }
    let group = blocks(2, 1, 3);
    let first = map.primary_of(group).expect("a primary");
    let down = state(&map, first, ServerState::Down);
    let back = state(&down, first, ServerState::Up);
    for map in [&down, &back] {
        assert!((0..6).all(|node| map.reader_of(group, NodeId(node)).is_some_and(|reader| reader != first)));
        assert!(map.lacks_blocks(first));
        assert!(
            (0..6).map(ServerId).filter(|server| *server != first).all(|server| !map.lacks_blocks(server))
        );
    }
    assert!(!all_of(6, 1).lacks_blocks(ServerId(0)));
    assert_eq!(all_of(6, 1).reader_of(blocks(2, 0, 1), NodeId(5)), Some(ServerId(2)));
}

#[test]
fn a_server_that_was_given_up_is_substituted_and_the_others_stay() {
    let map = all_of(8, 3);
    let without = Map { lost: vec![ServerId(5)], ..map.clone() };
    for group in map.replicated().filter(|group| matches!(group, Group::Blocks { .. })).collect::<Vec<_>>() {
        let (before, after) = (map.holders(group), without.holders(group));
        assert_eq!(before.all().len(), after.all().len());
        let remain: Vec<_> = before.all().iter().filter(|server| **server != ServerId(5)).collect();
        assert!(after.all().iter().all(|server| *server != ServerId(5)));
        assert_eq!(after.all().iter().take(remain.len()).collect::<Vec<_>>(), remain, "{group:?}");
    }
}

#[test]
fn a_copy_that_cannot_be_relied_on_is_behind_unless_nobody_else_can_serve() {
    let map = all_of(3, 2);
    let group = Group::Shard(ShardId(0));
    let [first, second] = *map.holders(group).all() else { panic!("two copies") };
    let distrust =
        |map: &Map, server| MapChange::Behind { copies: vec![(group, server)] }.apply(map).expect("a change");
    let without_first = distrust(&map, first);
    assert!(without_first.is_behind(group, first));
    assert_eq!(without_first.primary_of(group), Some(second));
    assert!(!distrust(&without_first, second).is_behind(group, second), "the last one");
    let both =
        MapChange::Behind { copies: vec![(group, first), (group, second)] }.apply(&map).expect("a change");
    assert_eq!((both.check(), both.primary_of(group)), (Ok(()), Some(second)), "not all at once either");
}

/// What happens to servers.
fn events() -> impl Strategy<Value = Vec<(u16, u8)>> {
    prop::collection::vec((0u16..6, 0u8..11), 0..40)
}

/// What each holder of each group has: the number of the last write. And what servers have said and nobody has committed.
#[derive(Default)]
struct Writes {
    acknowledged: Vec<u32>,
    has: Vec<[u32; 6]>,
    told: Vec<(ServerId, Epoch, Vec<Group>)>,
}

impl Writes {
    /// A server that is up catches up with whatever a primary can give it, and tells.
    fn catch_up(&mut self, map: &Map, groups: &[Group], server: ServerId) {
        let mut caught_up = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let source = map.primary_of(*group).filter(|primary| map.is_up(*primary));
            if let (Some(source), true, true) = (source, map.is_behind(*group, server), map.is_up(server)) {
                self.has[index][usize::from(server.0)] = self.has[index][usize::from(source.0)];
                caught_up.push(*group);
            }
        }
        self.told.push((server, map.epoch, caught_up));
    }

    /// What was told, as far as it still counts.
    fn commit(&mut self, map: &Map) -> MapChange {
        let counts = |(server, by, groups): (ServerId, Epoch, Vec<Group>)| {
            let groups = groups.into_iter().filter(|group| map.counts_as_caught_up(*group, server, by));
            (server, groups.collect())
        };
        MapChange::InStep { servers: self.told.drain(..).map(counts).collect() }
    }

    /// A write of a group: all holders that are up make it, those that are in step have to. Who is behind and has caught
    /// up meanwhile makes it, too.
    fn write(&mut self, map: &Map, index: usize, group: Group) {
        let next = self.acknowledged[index] + 1;
        for holder in map.holders(group).all().iter().filter(|holder| map.is_up(**holder)) {
            let has = &mut self.has[index][usize::from(holder.0)];
            if *has == self.acknowledged[index] {
                *has = next;
            }
        }
        self.acknowledged[index] = next;
    }
}

proptest! {
    /// Whatever happens, a group is served only by a holder that has seen all that was acknowledged: here each
    /// group counts its writes, and each holder what it has of them.
    #[test]
    fn nobody_serves_without_the_last_writes(servers in 3u16..7, copies in 2u8..5, events in events()) {
        let mut map = all_of(servers, copies.min(servers as u8));
        let mut writes = Writes::default();
        for (server, event) in events {
            let server = ServerId(server % servers);
            // Generations are added; their groups come at the end.
            let groups: Vec<Group> = map.replicated().filter(|g| !matches!(g, Group::Shard(s) if s.0 > 50)).collect();
            writes.acknowledged.resize(groups.len(), 0);
            writes.has.resize(groups.len(), [0; 6]);
            map = match event {
                0 | 1 => state(&map, server, ServerState::Down),
                2 | 3 => state(&map, server, ServerState::Up),
                4 => {
                    let given_up = MapChange::GiveUp { servers: vec![server], accept_loss: false };
                    given_up.apply(&map).unwrap_or(map)
                }
                7 | 8 => {
                    let succession = map.server(server).expect("listed").succession() + 1;
                    let id = NodeId(u16::from(event) + server.0 % 2);
                    let agent = ([127, 0, 0, 1], 1).into();
                    let node = Node { id, host: format!("node{id}"), agent, domain: 0 };
                    let address = ([127, 0, 0, 2], 100 * succession as u16 + server.0).into();
                    let replacement =
                        Replacement { server, succession, node, address, accept_loss: false };
                    let replaced = MapChange::Replace(replacement);
                    match replaced.apply(&map) {
                        Some(replaced) => {
                            writes.has.iter_mut().for_each(|has| has[usize::from(server.0)] = 0);
                            writes.told.retain(|(told, ..)| *told != server);
                            replaced
                        }
                        None => map,
                    }
                }
                5 | 9 => {
                    writes.catch_up(&map, &groups, server);
                    map
                }
                10 => {
                    // All have died, and one or two are not back with the others.
                    writes.told.clear();
                    let back = map.servers.iter().filter(|s| s.id != server && s.id.0 != server.0 / 2);
                    let servers = back.map(|server| (server.id, server.address)).collect();
                    MapChange::Resumed { agents: Vec::new(), servers }.apply(&map).expect("listed")
                }
                _ => writes.commit(&map).apply(&map).expect("listed"),
            };
            prop_assert_eq!(map.check(), Ok(()));
            for (index, group) in groups.iter().enumerate() {
                let Some(primary) = map.primary_of(*group).filter(|p| map.is_up(*p)) else { continue };
                let has = writes.has[index][usize::from(primary.0)];
                prop_assert_eq!(has, writes.acknowledged[index], "{:?} at {}", group, primary);
                writes.write(&map, index, *group);
            }
        }
    }

    /// Who is the primary of a group by two maps has been it by all maps between them, unless the later one says that
    /// others have been primaries since.
    #[test]
    fn a_primary_that_has_stayed_is_known_over_maps_that_were_missed(events in events()) {
        let mut maps = vec![all_of(4, 2)];
        for (server, event) in events {
            let map = maps.last().expect("one");
            let server = ServerId(server % 4);
            let next = match event {
                0..=2 => state(map, server, ServerState::Down),
                3..=5 => state(map, server, ServerState::Up),
                6 => match (MapChange::GiveUp { servers: vec![server], accept_loss: false }).apply(map) {
                    Some(next) => next,
                    None => continue,
                },
                _ => {
                    let groups = map.replicated().filter(|group| map.is_behind(*group, server)).collect();
                    MapChange::InStep { servers: vec![(server, groups)] }.apply(map).expect("listed")
                }
            };
            maps.push(next);
        }
        let last = maps.last().expect("one");
        let blocks = |group: &Group| matches!(group, Group::Blocks { .. });
        for (number, before) in maps.iter().enumerate() {
            let has_stayed = |group: Group| {
                maps[number..].iter().all(|map| map.primary_of(group) == last.primary_of(group))
            };
            prop_assert_eq!(
                before.epoch >= last.primaries_since,
                last.replicated().filter(blocks).all(has_stayed)
            );
        }
    }
}

#[test]
fn who_takes_a_dead_servers_place_gets_about_as_much_as_the_others() {
    // In the deal of one seed for all numbers of servers, one of eight gets 1.5 times the mean.
    for (servers, copies, most) in
        [(4, 2, 1.5), (8, 2, 1.0), (8, 3, 1.4), (8, 4, 1.3), (16, 2, 1.5), (64, 3, 2.4)]
    {
        let map = all_of(servers, copies);
        let dead = ServerId(servers / 2);
        let down = state(&map, dead, ServerState::Down);
        let healed = MapChange::GiveUp { servers: vec![dead], accept_loss: false }
            .apply(&down)
            .expect("others hold what it held");
        let mut taken = vec![0u32; servers.into()];
        for group in map.replicated().filter(|g| matches!(g, Group::Blocks { copies: c, .. } if *c == copies))
        {
            let before = map.holders(group);
            let new = healed.holders(group);
            new.all().iter().filter(|server| !before.all().contains(server)).for_each(|server| {
                taken[usize::from(server.0)] += 1;
            });
        }
        let mean = f64::from(taken.iter().sum::<u32>()) / f64::from(servers - 1);
        let share = f64::from(*taken.iter().max().expect("servers")) / mean;
        assert!(share <= most, "{servers} servers, {copies} copies: one of them gets {share} times the mean");
    }
}
