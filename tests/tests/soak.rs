//! Faults of every kind at random while programs work: no operation fails but where `docs/failures.md` says so, nothing
//! that was acknowledged is lost, and in the end all copies are the same. The faults are in `tests/src/soak`.
//!
//! `BIVOUAC_SOAK_SECONDS=3600 BIVOUAC_SOAK_SEED=7 cargo test -p bivouac-tests --test soak -- --nocapture`
//!
//! To look for one thing: `BIVOUAC_SOAK_FAULTS=Deaf,Restarted BIVOUAC_SOAK_COPIES=3`.

use bivouac_tests::failing::own_mounts;
use bivouac_tests::kills::Random;
use bivouac_tests::soak::{Deck, Fault, SERVERS, Scene};
use bivouac_tests::{Network, skipped_without_mount};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The kinds that are asked for.
fn kinds() -> Vec<Fault> {
    let wanted = std::env::var("BIVOUAC_SOAK_FAULTS").ok();
    let is_wanted = |kind: &Fault| match &wanted {
        Some(wanted) => wanted.split(',').any(|name| name == format!("{kind:?}")),
        None => true,
    };
    Fault::ALL.into_iter().filter(is_wanted).collect()
}

/// What is said if the test fails while this lives, where the rest of what was said may be cut off.
struct Said(String);

impl Drop for Said {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0);
        }
    }
}

#[test]
fn no_operation_fails_and_all_copies_are_the_same_after_random_faults() {
    if skipped_without_mount() {
        return;
    }
    let seconds = number("BIVOUAC_SOAK_SECONDS").unwrap_or(60);
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = number("BIVOUAC_SOAK_SEED").unwrap_or_else(|| clock().map_or(1, |time| time.as_secs()));
    println!("seed {seed}, {seconds} s (BIVOUAC_SOAK_SEED, BIVOUAC_SOAK_SECONDS)");
    let (mut random, mut deck) = (Random::new(seed), Deck::new(kinds()));
    let mut counts: BTreeMap<Fault, u32> = BTreeMap::new();
    own_mounts();
    let net = Network::of(SERVERS);
    let copies = number("BIVOUAC_SOAK_COPIES").map_or(vec![2, 3], |copies| vec![copies as usize]);
    let each = Duration::from_secs(seconds) / copies.len() as u32;
    for replicas in copies {
        let mut scene = Scene::new(&net, replicas);
        let until = Instant::now() + each;
        while Instant::now() < until {
            let fault = deck.draw(&mut random);
            println!("{replicas} copies: {fault:?}");
            let begun = Instant::now();
            let _said = Said(format!("seed {seed}, {replicas} copies, during {fault:?}"));
            let whom = scene.inflict(fault, &mut random);
            let took = begun.elapsed().as_secs_f32();
            println!("{replicas} copies: {fault:?}, {whom}: all in step again after {took:.1} s");
            *counts.entry(fault).or_default() += 1;
            scene.assert_alive();
        }
        scene.end(&mut random);
    }
    println!("seed {seed}: {counts:?}");
}
