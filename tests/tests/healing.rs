//! Others get what a dead server held: at the rate that was asked for, as far as there is room, and whatever programs write
//! meanwhile.

use bivouac_tests::load::{all_in_step, copies_agree};
use bivouac_tests::{Mounted, Site, eventually, skipped_without_mount};
use rustix::process::Signal;
use std::process::Stdio;
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

/// Makes files, and makes them longer later by a block, in the deployment and beside it: only the servers of that block hear of it.
const GROWS: &str = r#"
import os, random, sys
what, beside = sys.argv[1:]
random.seed(what)
def each(name, change):
    for directory in (beside, "/bivouac"):
        with open(f"{directory}/{name}", "r+b" if what == "grow" else "xb") as f: change(f)
if what == "make":
    long = random.randbytes(16 << 20)
    each("long", lambda f: f.write(long))
for number in range(80):
    data = random.randbytes(random.randrange(1, 65536))
    skipped = random.choice((0, 0, 1, 5))
    def make(f): f.write(data * (1 + 400_000 // len(data))); f.truncate(random.Random(number).randrange(65536, 400_000))
    def grow(f):
        blocks = -(-f.seek(0, 2) // 65536) + skipped
        f.seek(blocks * 65536); f.write(data)
    each(f"f{number}", make if what == "make" else grow)
"#;

#[test]
fn what_files_grow_by_while_others_get_what_a_dead_server_held_is_kept() {
    let site = Site::in_memory("heal-grow");
    let options = ["--replicas", "2", "--heal-after", "never", "--heal-rate", "4M", "--block-size", "64K"];
    let name = site.up_with(4, &options);
    let (program, beside) = (site.path("grows.py"), site.path("beside"));
    std::fs::write(&program, GROWS).expect("written");
    std::fs::create_dir(&beside).expect("made");
    let run = |what: &str| {
        let program = [program.to_str().expect("text"), what, beside.to_str().expect("text")];
        site.bivouac([&["exec", &name, "--", "python3"], &program[..]].concat()).ok()
    };
    run("make");
    kill(&site, &name, 3);
    let mut heal = site.command(["heal", &name]);
    let mut heal = heal.stdout(Stdio::null()).spawn().expect("runs");
    eventually("it is given up", || site.status(&name)["servers"][3]["given_up"] == true);
    // The others have listed the files, and fetch the long one.
    std::thread::sleep(Duration::from_millis(500));
    run("grow");
    let behind = |server: usize| site.status(&name)["servers"][server]["behind"].as_u64();
    assert!((0..3).any(|server| behind(server) > Some(0)), "it was over too soon to prove anything");
    assert!(heal.wait().expect("ends").success());
    let survivors_are_in_step = || (0..3).all(|server| behind(server) == Some(0));
    eventually("all that are left have everything", survivors_are_in_step);
    let compare = format!(
        "cd {} && bad=0; for f in *; do cmp $f /bivouac/$f || bad=1; done; exit $bad",
        beside.display()
    );
    site.sh(&name, &compare).ok();
    site.bivouac(["restart", &name, "3"]).ok();
    all_in_step(&site, &name);
    copies_agree(&site, &name);
    site.sh(&name, &compare).ok();
}
