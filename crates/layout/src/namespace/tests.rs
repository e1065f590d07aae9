use super::*;
use crate::fair::assert_fair;
use crate::map::{Map, fixture::uniform};
use proptest::prelude::*;

/// For each server, the share of the shards that it answers for.
fn shares(map: &Map) -> Vec<f64> {
    let share = |s: &crate::Server| map.shards_of(s.id).count() as f64 / f64::from(SHARDS);
    map.servers.iter().map(share).collect()
}

fn count(map: &Map, shards: impl Iterator<Item = ShardId>) -> Vec<u32> {
    let mut held = vec![0; map.servers.len()];
    shards.for_each(|shard| held[usize::from(map.primary(shard).0)] += 1);
    held
}

proptest! {
    #[test]
    fn cookies_are_positive_and_beyond_the_dots(dir: u64, name: Vec<u8>) {
        let cookie = cookie(Ino(dir), &name);
        prop_assert!(cookie >= FIRST_COOKIE);
        prop_assert!(i64::try_from(cookie).is_ok());
        prop_assert!(part_of(cookie) < PARTS);
    }

    #[test]
    fn the_parts_in_order_hold_the_listing_in_order(a in 0..=i64::MAX as u64, b in 0..=i64::MAX as u64) {
        let (low, high) = (a.min(b), a.max(b));
        prop_assert!(part_of(low) <= part_of(high));
    }

    #[test]
    fn a_split_keeps_the_order_of_the_listing(dir: u64, names in prop::collection::hash_set("[a-z]{1,8}", 1..200)) {
        let dir = Ino(dir);
        let mut packed: Vec<_> = names.iter().map(|name| (cookie(dir, name.as_bytes()), name)).collect();
        packed.sort();
        // Split: part after part, each in the order of its cookies.
        let mut split = packed.clone();
        split.sort_by_key(|(cookie, name)| (part_of(*cookie), *cookie, *name));
        prop_assert_eq!(packed, split);
    }

    #[test]
    fn an_entry_is_in_its_directorys_shard_or_its_parts(dir: u64, name: Vec<u8>) {
        let dir = Ino(dir);
        prop_assert_eq!(entry_shard(dir, false, &name), dir.shard());
        let part = part_of(cookie(dir, &name));
        prop_assert_eq!(entry_shard(dir, true, &name), part_shard(dir, part));
    }

    #[test]
    fn every_shard_named_exists(dir: u64, part: u16, name: Vec<u8>) {
        prop_assert!(part_shard(Ino(dir), part).0 < SHARDS);
        prop_assert!(directory_shard(Ino(dir), &name).0 < SHARDS);
        prop_assert!(entry_shard(Ino(dir), true, &name).0 < SHARDS);
        match Ino(dir).is_forwarded() {
            true => prop_assert_eq!(Ino(dir).shard(), ShardId::FORWARDED),
            false => {
                prop_assert!(Ino(dir).shard().0 < SHARDS);
                prop_assert_eq!(Ino::new(Ino(dir).shard(), Ino(dir).counter()), Ino(dir));
            }
        }
    }
}

#[test]
fn the_scaled_hash_reaches_the_first_and_the_last_shard() {
    assert_eq!(to_shard(0), ShardId(0));
    assert_eq!(to_shard(u64::MAX), ShardId(SHARDS - 1));
}

#[test]
fn the_first_part_begins_and_the_last_part_ends_the_listing() {
    assert_eq!(part_of(FIRST_COOKIE), 0);
    assert_eq!(part_of(i64::MAX as u64), PARTS - 1);
}

#[test]
fn directories_are_dealt_fairly() {
    let numbered = |n: u32| directory_shard(Ino::ROOT, format!("dir.{n:05}").as_bytes());
    // The same name in every rank's directory must not meet on one server.
    let same =
        |n: u32| directory_shard(Ino::new(ShardId((n % 4096) as u16), u64::from(n) / 4096 + 2), b"output");
    for servers in [1, 2, 3, 4, 5, 8, 16, 31, 64, 128] {
        let map = uniform(servers);
        let shares = shares(&map);
        assert_fair("numbered names", &count(&map, (0..10_000).map(numbered)), &shares);
        assert_fair("one name, many parents", &count(&map, (0..10_000).map(same)), &shares);
    }
}

#[test]
fn entries_and_parts_of_a_split_directory_are_dealt_fairly() {
    let dir = Ino::new(ShardId(9), 1234);
    let in_part = |n: u32| {
        let name = format!("rank{n}.dat");
        usize::from(part_of(cookie(dir, name.as_bytes())))
    };
    let mut entries = vec![0; usize::from(PARTS)];
    (0..100_000).for_each(|n| entries[in_part(n)] += 1);
    assert_fair("entries over parts", &entries, &vec![1.0 / f64::from(PARTS); usize::from(PARTS)]);
    for servers in [2, 4, 7, 16, 64] {
        let map = uniform(servers);
        // Of many directories, whose numbers differ in their lowest bits only.
        let parts = (1..40).flat_map(|n| (0..PARTS).map(move |part| part_shard(Ino(n), part)));
        assert_fair("parts over servers", &count(&map, parts), &shares(&map));
    }
}

#[test]
fn the_same_parts_of_two_directories_are_dealt_independently() {
    // Numbers that differ in bits that the part number might be mixed into.
    for bit in 0..64 {
        let (a, b) = (Ino(0x0050_0000_0000_1234), Ino(0x0050_0000_0000_1234 ^ 1 << bit));
        let shards = |dir| (0..PARTS).map(move |part| part_shard(dir, part));
        let mut common: Vec<ShardId> =
            shards(a).filter(|shard| shards(b).any(|other| other == *shard)).collect();
        common.sort();
        common.dedup();
        // By chance about 15 (256 * 256 / 4096, less those that coincide within a directory).
        assert!(common.len() < 40, "{} shards in common for bit {bit}", common.len());
    }
}

#[test]
fn values_never_change() {
    let dir = Ino::new(ShardId(3), 99);
    assert_eq!(cookie(dir, b"a"), 8_652_942_586_033_451_236);
    assert_eq!(cookie(Ino::ROOT, b"results.h5"), 988_937_012_321_730_519);
    assert_eq!(part_of(cookie(dir, b"a")), 240);
    assert_eq!([0, 1, 255].map(|part| part_shard(dir, part).0), [1462, 3957, 3487]);
    assert_eq!([&b"a"[..], b"b", b"out"].map(|name| directory_shard(Ino::ROOT, name).0), [3036, 3070, 4029]);
    assert_eq!(entry_shard(dir, true, b"a").0, 3609);
}
