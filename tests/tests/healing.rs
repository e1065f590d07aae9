//! Others get what a dead server held: at the rate that was asked for, and as far as there is room.

use bivouac_tests::{Mounted, Site, eventually, skipped_without_mount};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Kills a server, and waits until that is known.
fn kill(site: &Site, name: &str, server: u64) {
    Site::kill(site.server_pid(name, server), Signal::KILL);
    eventually("status shows the dead server", || {
        site.status(name)["servers"][server as usize]["state"] == "down"
    });
}

#[test]
fn what_is_lacking_is_fetched_at_the_rate_that_was_asked_for() {
    let site = Site::in_memory("rate");
    let options = ["--replicas", "2", "--heal-after", "never", "--heal-rate", "4M", "--block-size", "64K"];
    let name = site.up_with(3, &options);
    let sum = site.sh(&name, "head -c 40M /dev/urandom > /bivouac/f && md5sum < /bivouac/f").ok();
    kill(&site, &name, 1);
    let begun = Instant::now();
    let said = site.bivouac(["heal", &name]).ok();
    let took = begun.elapsed();
    assert_eq!(said, "server 1 given up: others get what it held\neverything has all its copies\n");
    let status = site.status(&name);
    let fetched = |server: usize| status["servers"][server]["fetched"].as_u64().expect("a number");
    let most = fetched(0).max(fetched(2));
    // Two thirds of what is there lay on the dead one, as the first copy or the second.
    assert!(fetched(0) + fetched(2) >= 26 << 20, "{} and {} bytes", fetched(0), fetched(2));
    let least = Duration::from_secs_f64(most as f64 / f64::from(4 << 20) * 0.8);
    assert!(took > least, "{most} bytes in {took:?}");
    assert_eq!(site.sh(&name, "md5sum < /bivouac/f").ok(), sum);
}

#[test]
fn what_there_is_no_room_for_is_said_and_the_rest_has_its_copies() {
    if skipped_without_mount() {
        return;
    }
    let site = Site::new("no-room");
    let small = Mounted::new(site.path("small"), "size=96m");
    let storage = small.path().to_string_lossy();
    // The servers share the room, and a dead one keeps its part.
    let options = ["--replicas", "2", "--heal-after", "never", "--block-size", "64K", "--storage", &storage];
    let name = site.up_with(3, &options);
    let make = "cd /bivouac && for i in $(seq 36); do head -c 1M /dev/urandom > $i || exit 1; done; cat $(seq 36) | md5sum";
    let sum = site.sh(&name, make).ok();
    kill(&site, &name, 1);
    let said = site.bivouac(["heal", &name]);
    assert_eq!(said.code, 65, "{}", said.err);
    assert!(said.err.contains("there is no room for more on server 0, 2"), "{}", said.err);
    assert!(said.err.contains("remove files that are not needed"), "{}", said.err);
    let status = site.status(&name);
    // Each of the two lacks something of all 36 files before. They have one disk, and the faster one gets most of its room.
    let without = [0, 2].map(|server| status["servers"][server]["without_room"].as_u64().unwrap_or(0));
    assert!((1..60).contains(&without.iter().sum::<u64>()), "{without:?} without room");
    assert!(status["problem"].as_str().is_some_and(|problem| problem.contains("has no room")), "{status}");
    assert_eq!(site.sh(&name, "cd /bivouac && cat $(seq 36) | md5sum").ok(), sum);
    // With room, everything gets its copies by itself.
    site.sh(&name, "cd /bivouac && rm $(seq 19 36) && cat $(seq 18) > /dev/null").ok();
    eventually("everything has its copies", || site.status(&name)["incomplete"] == 0);
}
