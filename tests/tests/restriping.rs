//! Files go to other servers while programs read, write and cut them.

use bivouac_tests::load::{APPENDS, BLOCKS, LENGTHS, Load, NAMES, all_in_step};
use bivouac_tests::{Site, eventually};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// Bytes of a file that each server has.
fn held(site: &Site, name: &str, file: &str) -> BTreeMap<u64, u64> {
    let said = site.bivouac(["layout", "-d", name, file]).ok();
    let rows = said.lines().filter_map(|line| line.trim_start().strip_prefix("server "));
    let number =
        |row: &str| row.split_whitespace().next().and_then(|word| word.trim_end_matches(':').parse().ok());
    rows.filter_map(|row| Some((number(row)?, 1))).collect()
}

fn restriped_under_loads(test: &str, replicas: &str) {
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
    for (more, then) in [("+2", 4), ("+1", 5), ("+3", 8)] {
        let said = site.bivouac(["expand", &name, "--servers", more]).ok();
        assert!(said.contains(" moved in "), "{said}");
        assert_eq!(held(&site, &name, "/old/big").len(), then);
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
    restriped_under_loads("restriped-one", "1");
}

#[test]
fn files_with_two_copies_go_to_more_servers_while_programs_check_everything() {
    restriped_under_loads("restriped-two", "2");
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
