use super::*;
use crate::change::MapChange;
use crate::fair::assert_fair;
use crate::ids::ShardId;
use crate::map::ServerState;
use crate::map::fixture::{map, replicated, uniform};
use crate::template::First;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A map of several generations: the servers grow, shrink, change their order.
fn generations() -> Map {
    map(9, &[&[0, 1, 2, 3], &[3, 2, 1, 0, 4, 5, 6], &[8], &[5, 7]])
}

/// The rule in its plainest form, block by block.
fn owner(layout: &FileLayout, map: &Map, offset: u64) -> ServerId {
    let range = layout.ranges.iter().rev().find(|r| r.start <= offset).unwrap();
    let servers = &map.generations[range.generation.0 as usize].servers;
    let n = servers.len() as u128;
    let width = if layout.width == 0 { n } else { n.min(layout.width.into()) };
    let block = u128::from(offset) / u128::from(layout.block_size);
    servers[((u128::from(range.first) + block % width) % n) as usize]
}

fn valid_layout() -> impl Strategy<Value = FileLayout> {
    let block_size =
        prop_oneof![Just(1u32), Just(2), Just(3), 1u32..=32768].prop_map(|pages| pages * MIN_BLOCK);
    let ranges = prop::collection::btree_set(0u64..40, 0..4);
    let places = prop::collection::vec((0u32..4, any::<u32>()), 5);
    (block_size, prop_oneof![0u16..10, any::<u16>()], ranges, places).prop_map(
        |(block_size, width, starts, places)| {
            let starts = std::iter::once(0).chain(starts.into_iter().filter(|s| *s > 0));
            let range = |(start, (generation, first)): (u64, &(u32, u32))| LayoutRange {
                start: start * u64::from(block_size),
                generation: GenerationId(*generation),
                first: *first,
            };
            let ranges = starts.zip(&places).map(range).collect();
            FileLayout { block_size, width, replicas: 1, ranges, version: 0, placed: false }
        },
    )
}

fn any_layout() -> impl Strategy<Value = FileLayout> {
    let number = || prop_oneof![0u64..10_000, any::<u64>(), (u64::MAX - 10_000)..=u64::MAX];
    let range = (number(), prop_oneof![0u32..5, any::<u32>()], any::<u32>()).prop_map(
        |(start, generation, first)| LayoutRange { start, generation: GenerationId(generation), first },
    );
    let block_size = prop_oneof![0u32..3, any::<u32>(), Just(u32::MAX), Just(MIN_BLOCK)];
    (block_size, any::<u16>(), any::<u8>(), prop::collection::vec(range, 0..6)).prop_map(
        |(block_size, width, replicas, ranges)| FileLayout {
            block_size,
            width,
            replicas,
            ranges,
            version: 0,
            placed: false,
        },
    )
}

/// A start in blocks, near 0 or near the largest offset, and a length in bytes of up to some 30 blocks.
fn range_in_blocks() -> impl Strategy<Value = (bool, u64, u64, f64)> {
    (prop::bool::weighted(0.2), 0u64..60, any::<u64>(), 0.0..30.0)
}

fn to_bytes(layout: &FileLayout, (far, block, within, length): (bool, u64, u64, f64)) -> Range<u64> {
    let size = u64::from(layout.block_size);
    let near = block * size + within % size;
    let start = if far { u64::MAX - near } else { near };
    start..start.saturating_add((length * size as f64) as u64)
}

proptest! {
    #[test]
    fn pieces_cover_a_range_in_order_and_every_block_has_its_owner(
        layout in valid_layout(),
        range in range_in_blocks(),
    ) {
        let map = generations();
        prop_assert!(layout.is_valid(&map));
        let range = to_bytes(&layout, range);
        let size = u64::from(layout.block_size);
        let mut at = range.start;
        for piece in layout.pieces(&map, range.clone()) {
            prop_assert_eq!(piece.offset, at);
            prop_assert!(piece.len > 0 && piece.len <= range.end - at);
            prop_assert_eq!(layout.only_server(&map, at, at + piece.len), Some(piece.server));
            let all = (piece.len == range.end - at).then_some(piece.server);
            prop_assert_eq!(layout.only_server(&map, at, range.end), all);
            let end = at + piece.len;
            // The owner of each block that the piece touches, at its first and last byte within the piece.
            let mut byte = at;
            while byte < end {
                let last = (byte / size * size).saturating_add(size - 1).min(end - 1);
                prop_assert_eq!(owner(&layout, &map, byte), piece.server);
                prop_assert_eq!(owner(&layout, &map, last), piece.server);
                prop_assert_eq!(layout.server_at(&map, byte), Some(piece.server));
                let Some(next) = last.checked_add(1) else { break };
                byte = next;
            }
            at = end;
        }
        prop_assert_eq!(at, range.end);
    }

    #[test]
    fn turns_say_the_owner_of_every_block(layout in valid_layout(), at in range_in_blocks()) {
        let map = generations();
        let size = u64::from(layout.block_size);
        let start = to_bytes(&layout, at).start.min(u64::MAX - 1);
        let (turns, end) = layout.turns_at(&map, start).unwrap();
        prop_assert!(end > start);
        for step in 0..30 {
            let Some(offset) = start.checked_add(step * size).filter(|at| *at < end && *at < u64::MAX) else { break };
            let turn = (offset / size % turns.len() as u64) as usize;
            prop_assert_eq!(turns[turn], owner(&layout, &map, offset));
        }
    }

    #[test]
    fn servers_are_the_owners_of_the_pieces(layout in valid_layout(), blocks in 0u64..60, within: u64) {
        let map = generations();
        let size = u64::from(layout.block_size);
        let end = blocks * size + within % size;
        let servers = layout.servers(&map, end);
        let listed: BTreeSet<_> = servers.iter().copied().collect();
        prop_assert_eq!(listed.len(), servers.len(), "each once");
        let owners: BTreeSet<_> = layout.pieces(&map, 0..end).map(|piece| piece.server).collect();
        prop_assert_eq!(listed, owners);
    }

    #[test]
    fn hostile_layouts_do_not_panic(layout in any_layout(), start: u64, end: u64) {
        let map = generations();
        for range in [start..end, end..start, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
            let mut at = range.start;
            for piece in layout.pieces(&map, range.clone()).take(300) {
                prop_assert!(piece.offset == at && piece.len > 0 && piece.len <= range.end - at);
                at += piece.len;
            }
        }
        layout.server_at(&map, start);
        layout.server_at(&map, u64::MAX);
        layout.turns_at(&map, start);
        let servers = layout.servers(&map, end);
        prop_assert!(servers.len() <= map.servers.len());
        if layout.is_valid(&map) {
            prop_assert!(layout.server_at(&map, start.min(u64::MAX - 1)).is_some());
        }
    }
}

#[test]
fn each_bound_of_a_layout_is_checked() {
    let map = generations();
    let good = FileLayout::spread(Ino(5), MIN_BLOCK, GenerationId(1));
    assert!(good.is_valid(&map));
    let range = |start, generation| LayoutRange { start, generation: GenerationId(generation), first: 0 };
    let bad = |change: fn(&mut FileLayout)| {
        let mut layout = good.clone();
        change(&mut layout);
        !layout.is_valid(&map)
    };
    assert!(bad(|l| l.block_size = 0));
    assert!(bad(|l| l.block_size = MIN_BLOCK / 2));
    assert!(bad(|l| l.block_size = MIN_BLOCK + 1));
    assert!(bad(|l| l.block_size = MAX_BLOCK + MIN_BLOCK));
    assert!(bad(|l| l.replicas = 0));
    assert!(bad(|l| l.ranges.clear()));
    assert!(bad(|l| l.ranges[0].start = 4096));
    assert!(bad(|l| l.ranges[0].generation = GenerationId(4)));
    let with = |ranges: &[LayoutRange]| FileLayout { ranges: ranges.to_vec(), ..good.clone() }.is_valid(&map);
    assert!(with(&[range(0, 0), range(4096, 1), range(12288, 0)]));
    assert!(!with(&[range(0, 0), range(4096, 1), range(4096, 0)]), "twice the same start");
    assert!(!with(&[range(0, 0), range(8192, 1), range(4096, 0)]), "not ascending");
    assert!(!with(&[range(0, 0), range(4097, 1)]), "within a block");
    assert!(FileLayout { block_size: MAX_BLOCK, ..good }.is_valid(&map));
}

#[test]
fn the_blocks_of_one_file_are_dealt_exactly() {
    for servers in [1, 2, 3, 4, 7, 16, 128] {
        let map = uniform(servers);
        for (width, first, blocks) in
            [(0, 0, 1000), (0, u32::MAX, 999), (3, 5, 1001), (1, 9, 10), (500, 1, 640)]
        {
            let mut layout = FileLayout::spread(Ino(1), MIN_BLOCK, GenerationId(0));
            (layout.width, layout.ranges[0].first) = (width, first);
            let mut held = vec![0u64; usize::from(servers)];
            for piece in layout.pieces(&map, 0..blocks * u64::from(MIN_BLOCK)) {
                held[usize::from(piece.server.0)] += piece.len / u64::from(MIN_BLOCK);
            }
            assert_eq!(held.iter().sum::<u64>(), blocks);
            let used: Vec<u64> = held.into_iter().filter(|n| *n > 0).collect();
            let width = if width == 0 { servers } else { width.min(servers) };
            assert_eq!(used.len(), usize::from(width).min(blocks as usize));
            let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
            assert!(most - least <= 1, "{least} to {most} blocks on {servers} servers");
        }
    }
}

#[test]
fn first_blocks_of_10_000_files_are_dealt_fairly() {
    // Numbers as one shard counts them, and as many shards do.
    type Numbering = (&'static str, fn(u64) -> Ino);
    let counting: [Numbering; 2] = [
        ("one shard", |n| Ino::new(ShardId(77), n + 1)),
        ("many shards", |n| Ino::new(ShardId((n % 4096) as u16), n / 4096 + 1)),
    ];
    for servers in [1, 2, 3, 4, 5, 8, 16, 31, 64, 128] {
        let map = uniform(servers);
        for (what, ino) in counting {
            let mut held = vec![0u32; usize::from(servers)];
            for n in 0..10_000 {
                let layout = FileLayout::spread(ino(n), DEFAULT_BLOCK, map.newest_generation());
                held[usize::from(layout.server_at(&map, 0).unwrap().0)] += 1;
            }
            let shares = vec![1.0 / f64::from(servers); usize::from(servers)];
            assert_fair(what, &held, &shares);
        }
    }
}

#[test]
fn values_never_change() {
    let map = generations();
    let mut layout = FileLayout::spread(Ino::new(ShardId(3), 99), DEFAULT_BLOCK, GenerationId(1));
    assert_eq!(layout.ranges[0].first, 3_700_812_778);
    let at = |layout: &FileLayout, block: u64| {
        layout.server_at(&map, block * u64::from(DEFAULT_BLOCK)).map(|server| server.0)
    };
    assert_eq!(
        [0, 1, 6, 7, 1 << 40].map(|block| at(&layout, block)),
        [Some(5), Some(6), Some(4), Some(5), Some(3)]
    );
    layout.width = 3;
    layout.ranges.push(LayoutRange { start: 4 << 20, generation: GenerationId(3), first: 3_700_812_778 });
    assert_eq!(
        [0, 1, 6, 7, 8, 9, 1 << 40].map(|block| at(&layout, block)),
        [Some(5), Some(6), Some(5), Some(6), Some(5), Some(7), Some(5)]
    );
}

/// A map with copies, of which some servers are down.
fn with_copies() -> impl Strategy<Value = (Map, u8)> {
    (1u8..5, 1u8..5, prop::collection::vec(0u16..9, 0..4)).prop_map(|(copies, replicas, down)| {
        let mut map =
            replicated(9, copies, &[&[0, 1, 2, 3], &[3, 2, 1, 0, 4, 5, 6], &[8, 0, 3, 6], &[5, 7, 1, 2]]);
        for server in down {
            let change = MapChange::State { server: ServerId(server), state: ServerState::Down };
            map = change.apply(&map).unwrap();
        }
        (map, replicas.min(copies))
    })
}

/// The group of a block, by the rule in its plainest form.
fn group_of(layout: &FileLayout, map: &Map, block: u64) -> Group {
    let start = |r: &&LayoutRange| r.start / u64::from(layout.block_size) <= block;
    let range = layout.ranges.iter().rev().find(start).unwrap();
    let n = map.generations[range.generation.0 as usize].servers.len() as u64;
    let width = if layout.width == 0 { n } else { n.min(layout.width.into()) };
    let first = u64::from(range.first);
    let spread = if layout.replicas == 1 { 0 } else { (first / n + block / width) % (n - 1) };
    Group::Blocks {
        generation: range.generation,
        position: ((first + block % width) % n) as u16,
        spread: spread as u16,
        copies: layout.replicas,
    }
}

proptest! {
    #[test]
    fn with_copies_a_block_is_answered_for_by_its_primary_and_held_by_those_in_step(
        layout in valid_layout(),
        (map, replicas) in with_copies(),
        blocks in 1u64..100,
    ) {
        let layout = FileLayout { replicas, ..layout };
        prop_assert!(layout.is_valid(&map));
        let size = u64::from(layout.block_size);
        let mut holders = BTreeSet::new();
        let mut ends = std::collections::BTreeMap::new();
        for block in 0..blocks {
            let group = group_of(&layout, &map, block);
            let piece = layout.piece_at(&map, block * size, (block + 1) * size).unwrap();
            prop_assert_eq!((piece.group, piece.len), (group, size));
            prop_assert_eq!(Some(piece.server), map.primary_of(group));
            let (turns, end) = layout.turns_at(&map, block * size).unwrap();
            prop_assert!(end > block * size);
            prop_assert_eq!(turns[(block % turns.len() as u64) as usize], piece.server);
            holders.extend(map.holders(group).in_step());
            ends.extend(map.holders(group).all().iter().map(|server| (*server, (block + 1) * size)));
        }
        let listed: BTreeSet<_> = layout.servers(&map, blocks * size).into_iter().collect();
        prop_assert_eq!(listed, holders);
        for server in map.servers.iter().map(|s| s.id) {
            let end = ends.get(&server).copied().unwrap_or(0);
            prop_assert_eq!(layout.end_on(&map, server, blocks * size), end, "{}", server);
        }
    }
}

#[test]
fn who_is_behind_in_some_blocks_of_a_file_does_not_measure_it_unless_nobody_else_has_the_others() {
    let map = replicated(3, 2, &[&[0, 1, 2]]);
    let layout = Template::default().layout(Ino::new(ShardId(5), 1), &map);
    let servers = |map: &Map| layout.servers_to_measure(map, u64::MAX).into_iter().collect::<BTreeSet<_>>();
    let all: BTreeSet<ServerId> = map.servers.iter().map(|server| server.id).collect();
    assert_eq!(servers(&map), all);
    let groups: Vec<Group> = layout.groups(&map, u64::MAX).collect();
    let holders = |at: usize| <[ServerId; 2]>::try_from(map.holders(groups[at]).all()).expect("two copies");
    // The first group's second holder has other blocks in common with another server.
    let [first, mixed] = holders(0);
    let one_behind = MapChange::Behind { copies: vec![(groups[0], mixed)] }.apply(&map).expect("a change");
    assert!(layout.servers(&one_behind, u64::MAX).contains(&mixed), "it is in step in the others");
    assert_eq!(servers(&one_behind), all.iter().copied().filter(|server| *server != mixed).collect());
    // Now it is the only one who has those.
    let other = *all.iter().find(|server| ![first, mixed].contains(server)).expect("a third one");
    let alone =
        MapChange::State { server: other, state: ServerState::Down }.apply(&one_behind).expect("a server");
    assert!(servers(&alone).contains(&mixed));
}

#[test]
fn copies_of_small_files_of_one_server_are_spread_over_all_others() {
    let map = replicated(8, 2, &[&[0, 1, 2, 3, 4, 5, 6, 7]]);
    for first in [First::Hashed, First::Server(ServerId(3))] {
        let template = Template { first: Some(first), ..Template::default() };
        let mut seconds = [0; 8];
        for file in 0..8000 {
            let layout = template.layout(Ino::new(ShardId(5), file + 1), &map);
            let holders = map.holders(layout.piece_at(&map, 0, 1).unwrap().group);
            if holders.all()[0] == ServerId(3) {
                seconds[usize::from(holders.all()[1].0)] += 1;
            }
        }
        assert_spread(&seconds);
    }
}

fn assert_spread(seconds: &[u32; 8]) {
    let others: Vec<u32> = (0..8).filter(|s| *s != 3).map(|s| seconds[s]).collect();
    assert_fair("second copies", &others, &[1.0 / 7.0; 7]);
}
