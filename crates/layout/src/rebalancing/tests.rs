use crate::change::MapChange;
use crate::groups::Group;
use crate::growing::Growth;
use crate::ids::{NodeId, SHARDS, ServerId, ShardId};
use crate::map::fixture::replicated;
use crate::map::{Map, Node, Server, ServerState};
use crate::moving::MoveStage;
use proptest::prelude::*;

fn growth(map: &Map, count: u16) -> Growth {
    let numbers = map.numbers..map.numbers + count;
    let node = |n: u16| Node {
        id: NodeId(n),
        host: format!("node{n}"),
        agent: ([127, 0, 0, 2], 10_000 + n).into(),
        domain: n,
    };
    let server = |n: u16| Server {
        id: ServerId(n),
        node: NodeId(n),
        address: ([127, 0, 0, 2], 1000 + n).into(),
        state: ServerState::Down,
        joined: 0,
        former: Vec::new(),
    };
    Growth { nodes: numbers.clone().map(node).collect(), servers: numbers.map(server).collect() }
}

fn applied(map: &Map, change: MapChange) -> Map {
    let next = change.apply(map).expect("a change");
    assert_eq!(next.check(), Ok(()));
    next
}

fn grown(map: &Map, count: u16) -> Map {
    let growth = growth(map, count);
    let servers: Vec<ServerId> = growth.servers.iter().map(|server| server.id).collect();
    let listed = applied(map, MapChange::Add(growth));
    assert!(listed.relocations().is_empty(), "nothing moves to who has not arrived");
    assert!(!listed.balancing);
    let up = |map, server: ServerId| applied(&map, MapChange::State { server, state: ServerState::Up });
    let all = servers.into_iter().fold(listed, up);
    assert!(all.balancing);
    all
}

/// Begins what is due, so many at a time, and has it all happen. How many shards got a new holder.
fn settled(mut map: Map, at_once: usize) -> (Map, usize) {
    let mut moved = 0;
    for _ in 0..200 {
        let mut moves = map.relocations();
        if map.moving.is_empty() && moves.is_empty() {
            assert!(!map.balancing, "that is the end of it");
            return (map, moved);
        }
        moves.truncate(at_once);
        if !moves.is_empty() {
            map = applied(&map, MapChange::MoveShards { moves });
        }
        moved += map.moving.iter().filter(|entry| entry.stage == MoveStage::CatchingUp).count();
        for _ in 0..2 {
            // Another holder may answer for a shard that was handed over, because the new one has been down.
            let by = |entry: &crate::ShardMove| match entry.stage {
                MoveStage::CatchingUp => entry.to,
                MoveStage::HandingOver => map.answers_for(entry.shard).expect("all are up"),
            };
            let servers =
                map.moving.iter().map(|entry| (by(entry), vec![Group::Shard(entry.shard)])).collect();
            map = applied(&map, MapChange::InStep { servers });
        }
    }
    panic!("it comes to no end");
}

fn check_balance(map: &Map) {
    let stay: Vec<ServerId> = map.servers.iter().map(|s| s.id).filter(|s| map.takes_shards(*s)).collect();
    let primaries: Vec<usize> = stay.iter().map(|server| map.shards_of(*server).count()).collect();
    let held: Vec<usize> = stay.iter().map(|server| map.held_by(*server)).collect();
    let range = |counts: &[usize]| counts.iter().max().unwrap() - counts.iter().min().unwrap();
    assert!(range(&primaries) <= 1, "{primaries:?}");
    assert_eq!(held.iter().sum::<usize>(), map.shards.len(), "nobody else has any");
    assert!(range(&held) <= 2, "{held:?}");
}

#[test]
fn a_deployment_that_grows_is_balanced_by_the_fewest_moves() {
    for copies in [1, 2, 3] {
        let (map, moved) = settled(grown(&replicated(4, copies, &[&[0, 1, 2, 3]]), 2), 300);
        check_balance(&map);
        let share = usize::from(SHARDS) * usize::from(copies) / 6;
        assert!(moved <= 2 * share + 2, "{moved} of {share} each, with {copies} copies");
    }
}

#[test]
fn what_is_balanced_does_not_move() {
    for (servers, copies) in [(1, 1), (2, 2), (4, 1), (5, 2), (6, 3)] {
        let all: Vec<u16> = (0..servers).collect();
        let map = replicated(servers, copies, &[&all]);
        let primaries = map.relocations().iter().filter(|r| map.primary(r.shard) == r.from).count();
        assert_eq!(primaries, 0);
        let (settled, _) = settled(map, 1000);
        assert!(settled.relocations().is_empty());
    }
}

#[test]
fn nothing_is_left_on_servers_that_depart() {
    for copies in [1, 2, 3] {
        let map = replicated(6, copies, &[&[0, 1, 2, 3, 4, 5]]);
        let departing = applied(&map, MapChange::Depart { servers: vec![ServerId(0), ServerId(4)] });
        let (map, _) = settled(departing, 500);
        check_balance(&map);
        assert_eq!(map.held_by(ServerId(0)) + map.held_by(ServerId(4)), 0);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    State(u16, ServerState),
    Grow,
    Depart(u16),
    Stay(u16),
    Remove(u16),
    GiveUp(u16),
    Begin(usize),
    InStep(u16),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let state = prop_oneof![
        Just(ServerState::Up),
        Just(ServerState::Up),
        Just(ServerState::Down),
        Just(ServerState::Joining)
    ];
    let event = prop_oneof![
        (0u16..8, state).prop_map(|(server, state)| Event::State(server, state)),
        Just(Event::Grow),
        (0u16..8).prop_map(Event::Depart),
        (0u16..8).prop_map(Event::Stay),
        (0u16..8).prop_map(Event::Remove),
        (0u16..8).prop_map(Event::GiveUp),
        (1usize..2000).prop_map(Event::Begin),
        (0u16..8).prop_map(Event::InStep),
    ];
    prop::collection::vec(event, 0..40)
}

/// What a change that can be made does to who has everything of a shard: of each shard that somebody had everything of,
/// somebody who had it, or has got it just now, has it still.
fn nothing_is_lost(before: &Map, after: &Map, caught_up: Option<ServerId>) {
    for shard in (0..SHARDS).step_by(7).map(ShardId) {
        let group = Group::Shard(shard);
        let had: Vec<ServerId> = before.holders(group).in_step().collect();
        let mut has = after.holders(group).in_step();
        assert!(has.any(|server| had.contains(&server) || Some(server) == caught_up), "{shard:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_while_shards_move_the_map_is_sound_and_nothing_is_lost(
        copies in 1u8..4,
        events in events(),
    ) {
        let mut map = replicated(4, copies, &[&[0, 1, 2, 3]]);
        for event in events {
            let id = ServerId;
            let mut caught_up = None;
            let change = match event {
                Event::State(server, state) => MapChange::State { server: id(server), state },
                Event::Grow if map.servers.len() < 8 => MapChange::Add(growth(&map, 1)),
                Event::Grow => continue,
                Event::Depart(server) => MapChange::Depart { servers: vec![id(server)] },
                Event::Stay(server) => MapChange::Stay { servers: vec![id(server)] },
                Event::Remove(server) => {
                    // As if all files had left.
                    map.emptied = map.departing.clone();
                    MapChange::Remove { servers: vec![id(server)], nodes: Vec::new() }
                }
                // (Without copies nobody gives a server up.)
                Event::GiveUp(_) if copies == 1 => continue,
                Event::GiveUp(server) => MapChange::GiveUp { servers: vec![id(server)], accept_loss: false },
                Event::Begin(some) => {
                    let can = |r: &crate::Relocation| map.is_up(r.from) && map.is_up(r.to);
                    let moves = map.relocations().into_iter().filter(can).take(some).collect();
                    MapChange::MoveShards { moves }
                }
                Event::InStep(server) => {
                    let server = id(server);
                    // Who is behind catches up where somebody serves the group.
                    let groups: Vec<Group> = (0..SHARDS)
                        .map(|shard| Group::Shard(ShardId(shard)))
                        .filter(|group| map.is_up(server) && map.serving(*group).next().is_some())
                        .filter(|group| {
                            let Group::Shard(shard) = *group else { return false };
                            map.is_behind(*group, server) || map.handed_to(server).any(|s| s == shard)
                        })
                        .collect();
                    caught_up = Some(server);
                    MapChange::InStep { servers: vec![(server, groups)] }
                }
            };
            let Some(next) = change.apply(&map) else { continue };
            prop_assert_eq!(next.check(), Ok(()), "after {:?}", event);
            nothing_is_lost(&map, &next, caught_up);
            let newest = &next.generations[next.generations.len() - 1];
            prop_assert!(newest.servers.iter().all(|server| !next.is_departing(*server)));
            map = next;
        }
        // When everybody is back, what has begun comes to its end.
        let down: Vec<ServerId> = map.servers.iter().map(|s| s.id).collect();
        for server in down {
            map = applied(&map, MapChange::State { server, state: ServerState::Up });
        }
        let behind: Vec<(ServerId, Vec<Group>)> = map
            .servers
            .iter()
            .map(|s| (s.id, map.replicated().filter(|g| map.is_behind(*g, s.id)).collect()))
            .collect();
        map = applied(&map, MapChange::InStep { servers: behind });
        let (map, _) = settled(map, 4096);
        prop_assert!(map.departing.iter().all(|server| map.held_by(*server) == 0));
    }
}
