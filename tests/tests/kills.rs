//! Daemons are killed and stopped at random while programs work, and nothing that was acknowledged is lost.
//!
//! `BIVOUAC_KILL_ROUNDS=200 BIVOUAC_KILL_SEED=7 cargo test -p bivouac-tests --test kills -- --nocapture`
//! takes half an hour. `BIVOUAC_KILL_EVIDENCE` names a directory for the journals of rounds in which
//! something was wrong.

use bivouac_tests::Site;
use bivouac_tests::kills::Siege;
use std::path::Path;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn nothing_acknowledged_is_lost_when_daemons_are_killed_at_random() {
    let rounds = number("BIVOUAC_KILL_ROUNDS").unwrap_or(5) as u32;
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = number("BIVOUAC_KILL_SEED").unwrap_or_else(|| clock().map_or(1, |time| time.as_secs()));
    println!("seed {seed}, {rounds} rounds (BIVOUAC_KILL_SEED, BIVOUAC_KILL_ROUNDS)");
    let site = Site::in_memory("kills");
    let mut siege = Siege::new(&site, Path::new(env!("CARGO_BIN_EXE_kills_client")), seed);
    for round in 0..rounds {
        let known = siege.totals.wrong.len();
        siege.round(round);
        for what in &siege.totals.wrong[known..] {
            println!("{what}");
        }
        if (round + 1) % 20 == 0 {
            println!("{} rounds, {} operations acknowledged", round + 1, siege.totals.acknowledged);
        }
    }
    let totals = &siege.totals;
    println!("seed {seed}: {} operations acknowledged, {} unknown", totals.acknowledged, totals.unknown);
    for ((fault, programs), rounds) in &totals.rounds {
        println!("{rounds} rounds: {fault:?}, programs {programs:?}");
    }
    for (fault, (seconds, what)) in &totals.slowest {
        println!("slowest with {fault:?}: {seconds:.2} s: {what}");
    }
    assert!(totals.wrong.is_empty(), "seed {seed}: {} wrong, see above", totals.wrong.len());
    assert!(totals.acknowledged > 100 * u64::from(rounds), "too little was done to prove anything");
}
