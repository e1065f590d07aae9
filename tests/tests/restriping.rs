//! Files go to other servers while programs read, write and cut them.

use bivouac_tests::load::{APPENDS, BLOCKS, LENGTHS, Load, NAMES, all_in_step};
use bivouac_tests::{Network, Site, bivouac, eventually, finish, on_node, skipped_without_root};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a file that each server has.
fn held(site: &Site, name: &str, file: &str) -> BTreeMap<u64, u64> {
    let said = site.bivouac(["layout", "-d", name, file]).ok();
    let rows = said.lines().filter_map(|line| line.trim_start().strip_prefix("server "));
    let number =
        |row: &str| row.split_whitespace().next().and_then(|word| word.trim_end_matches(':').parse().ok());
    rows.filter_map(|row| Some((number(row)?, 1))).collect()
}

fn restriped_under_loads(test: &str, replicas: &str, steps: &[(&str, usize)]) {
    let site = Site::in_memory(test);
    let name = site.name("grows");
    site.bivouac([
        "up",
        &name,
        "--servers",
        "2",
        "--block-size",
        "64K",
        "--replicas",
        replicas,
        "--heal-after",
        "never",
    ])
    .ok();
    site.sh(&name, "mkdir /bivouac/old && cd /bivouac/old && for i in $(seq 200); do head -c ${i}K /dev/urandom > $i; done").ok();
    site.sh(&name, "head -c 40M /dev/urandom > /bivouac/old/big && truncate -s 100M /bivouac/old/sparse")
        .ok();
    let sums = "cd /bivouac/old && md5sum * | md5sum && stat -c '%n %s %Y' * | md5sum";
    let before = site.sh(&name, sums).ok();
    let mut loads: Vec<Load> =
        [(BLOCKS, "blocks"), (LENGTHS, "lengths"), (APPENDS, "appends"), (NAMES, "names")]
            .into_iter()
            .map(|(program, home)| Load::start(&site, &name, program, home))
            .collect();
    assert_eq!(held(&site, &name, "/old/big").len(), 2);
    for (more, then) in steps {
        let said = site.bivouac(["expand", &name, "--servers", more]).ok();
        assert!(said.contains(" moved in "), "{said}");
        assert_eq!(held(&site, &name, "/old/big").len(), *then);
        assert_eq!(site.sh(&name, sums).ok(), before, "with {then} servers");
        loads.iter_mut().for_each(Load::assert_alive);
    }
    for load in &mut loads {
        load.stop();
    }
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    loads.into_iter().for_each(Load::succeeds);
    // Who has been restarted knows it still.
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    if replicas != "1" {
        all_in_step(&site, &name);
    }
    assert_eq!(site.sh(&name, sums).ok(), before, "after a restart");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn files_with_one_copy_go_to_more_servers_while_programs_check_everything() {
    restriped_under_loads("restriped-one", "1", &[("+2", 4), ("+3", 7)]);
}

#[test]
fn files_with_two_copies_go_to_more_servers_while_programs_check_everything() {
    restriped_under_loads("restriped-two", "2", &[("+2", 4)]);
}

/// Sources, targets, the servers that drive it, and the controller die, at any step.
#[test]
fn servers_that_are_killed_meanwhile_finish_or_undo_what_was_begun() {
    let mut site = Site::in_memory("restriped-killed");
    site.restarts_servers();
    let name = site.name("grows");
    site.bivouac(["up", &name, "--servers", "2", "--block-size", "64K"]).ok();
    site.sh(&name, "mkdir /bivouac/old && cd /bivouac/old && for i in $(seq 300); do head -c ${i}K /dev/urandom > $i; done").ok();
    site.sh(&name, "head -c 60M /dev/urandom > /bivouac/old/big").ok();
    let sums = "cd /bivouac/old && md5sum * | md5sum";
    let before = site.sh(&name, sums).ok();
    let mut blocks = Load::start(&site, &name, BLOCKS, "blocks");
    site.bivouac(["expand", &name, "--servers", "+2", "--max-rate", "20M", "--background"]).ok();
    for round in 0..8 {
        let victim = round % 4;
        let before = site.server_pid(&name, victim);
        Site::kill(before, Signal::KILL);
        let serves = || {
            let server = &site.status(&name)["servers"][victim as usize];
            server["state"] == "up" && server["pid"].as_i64().is_some_and(|pid| pid != i64::from(before))
        };
        eventually("it serves again", serves);
    }
    site.bivouac(["rebuild", &name, "--max-rate", "max"]).ok();
    assert_eq!(held(&site, &name, "/old/big").len(), 4);
    assert_eq!(site.sh(&name, sums).ok(), before);
    blocks.stop();
    blocks.succeeds();
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn files_that_stay_where_they_are_grow_onto_new_servers() {
    let site = Site::in_memory("restriped-growth");
    let name = site.up_with(2, &["--block-size", "64K"]);
    let sum = "head -c 1M /bivouac/closed | md5sum";
    let before = site.sh(&name, &format!("head -c 1M /dev/urandom > /bivouac/closed && {sum}")).ok();
    // One program has its file open meanwhile.
    let program = "import sys
with open('/bivouac/open', 'wb', buffering=0) as file:
    file.write(b'a' * (1 << 20))
    print('written', flush=True)
    sys.stdin.readline()
    file.write(b'b' * (4 << 20))";
    let mut command = site.command(["exec", &name, "--", "python3", "-c", program]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    said.read_line(&mut String::new()).expect("it writes");
    site.bivouac(["expand", &name, "--servers", "+2", "--rebuild", "metadata"]).ok();
    eventually("no rebuild is under way", || site.status(&name)["rebuild"].is_null());
    assert_eq!(held(&site, &name, "/closed").keys().copied().collect::<Vec<_>>(), [0, 1], "it stays");
    site.sh(&name, "head -c 4M /dev/zero >> /bivouac/closed").ok();
    child.stdin.take().expect("piped").write_all(b"go\n").expect("it listens");
    assert!(child.wait().expect("it ends").success());
    for file in ["/closed", "/open"] {
        assert_eq!(held(&site, &name, file).len(), 4, "{file} has grown onto the new servers");
    }
    let same = "cd /bivouac && test $(stat -c %s open) = 5242880 && test $(tr -d b < open | wc -c) = 1048576 && test $(stat -c %s closed) = 5242880";
    site.sh(&name, same).ok();
    assert_eq!(site.sh(&name, sum).ok(), before);
    site.bivouac(["down", &name]).ok();
}

/// Overwrites and reads anywhere in the files of a directory for some seconds, and says how long the longest call took.
const LATECOMER: &str = "import os, random, sys, time
home, seconds = sys.argv[1], float(sys.argv[2])
random.seed(5)
worst, begun = (0, ''), time.monotonic()
def timed(what, *words):
    global worst
    before = time.monotonic()
    result = what(*words)
    worst = max(worst, (time.monotonic() - before, what.__name__))
    return result
files = [timed(os.open, f'{home}/{name}', os.O_RDWR) for name in sorted(os.listdir(home))]
while time.monotonic() - begun < seconds:
    fd, at = random.choice(files), random.randrange(32 << 20 >> 12) << 12
    timed(os.pwrite, fd, b'w' * 4096, at)
    timed(os.pread, fd, 65536, at)
print(*worst)";

/// Ranges that are on their way when a program comes were begun while nobody was there, and arrive beside it. Links that are slow
/// make that long.
#[test]
fn a_program_that_comes_while_files_move_over_slow_links_does_not_wait_for_all_of_them() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory("restriped-latecomer");
    let name = net.deploy_on(&site, 2, &["--block-size", "64K"]);
    let files =
        "mkdir /bivouac/old && for i in $(seq 8); do head -c 32M /dev/urandom > /bivouac/old/$i; done";
    on_node(&net.names[0], &site, &name, files).ok();
    for node in [2, 3] {
        net.slow_down(node, "30mbit");
    }
    site.bivouac(["expand", &name, "--hosts", &net.names[2..].join(","), "--background"]).ok();
    std::thread::sleep(Duration::from_secs(1));
    let words = ["exec", &name, "--", "python3", "-c", LATECOMER, "/bivouac/old", "8"];
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &net.names[0]])
        .arg(bivouac())
        .args(words)
        .env("BIVOUAC_HOME", site.home());
    let said = finish(command).ok();
    println!("the longest call: {said}");
    let worst: f64 = said.split_whitespace().next().and_then(|word| word.parse().ok()).expect("seconds");
    assert!(worst < 5.0, "a call took {said} s");
    // What the program had open waits for what is on its way, and that for servers that have stopped.
    let begun = Instant::now();
    site.bivouac(["down", &name]).ok();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
