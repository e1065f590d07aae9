//! `bivouac verify`: what storage has changed or lost behind a server's back is found, and repaired from copies.

use bivouac_tests::load::{BLOCKS, Load, NAMES, all_in_step};
use bivouac_tests::{Finished, Site, eventually, run_dir};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const BLOCK: u64 = 64 << 10;
/// Bytes that have a checksum of their own.
const CHUNK: u64 = 4096;

fn storage(name: &str, server: u64) -> PathBuf {
    run_dir(name).join(format!("storage-{server}"))
}

/// The files of a tree of a server's storage.
fn files(tree: &Path) -> Vec<PathBuf> {
    let directories = std::fs::read_dir(tree).expect("is there").flatten();
    directories
        .flat_map(|d| std::fs::read_dir(d.path()).expect("is there").flatten())
        .map(|f| f.path())
        .collect()
}

/// The server's sub-file of this length.
fn sub_file(name: &str, server: u64, length: u64) -> PathBuf {
    let mut found = files(&storage(name, server).join("sub"));
    found.retain(|path| path.metadata().expect("is there").len() == length);
    assert_eq!(found.len(), 1, "sub-files of {length} bytes on server {server}");
    found.remove(0)
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[byte[0] ^ 4], at).expect("writes");
}

/// The longest metadata log of a server.
fn log(name: &str, server: u64) -> PathBuf {
    let files = std::fs::read_dir(storage(name, server).join("meta")).expect("is there").flatten();
    let logs = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
    logs.max_by_key(|path| path.metadata().expect("is there").len()).expect("a log")
}

fn verify(site: &Site, name: &str, options: &[&str]) -> Finished {
    site.bivouac(["verify", name, "--rate", "0"].iter().chain(options))
}

/// What `verify` finds, as (kind, path or number, server, outcome), and its exit code.
fn found(site: &Site, name: &str, options: &[&str]) -> (Vec<(String, String, u64, String)>, i32) {
    let done = verify(site, name, &[&["--json"], options].concat());
    let told: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{} {}", done.out, done.err));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |entry: &Value| {
        let which = entry["path"].as_str().map_or_else(|| entry["number"].to_string(), str::to_owned);
        let server = entry["server"].as_u64().unwrap_or(u64::MAX);
        (text(&entry["kind"]), which, server, text(&entry["outcome"]))
    };
    let mut all: Vec<_> = told["findings"].as_array().expect("a list").iter().map(entry).collect();
    all.sort();
    (all, done.code)
}

fn finding(kind: &str, path: &str, server: u64, outcome: &str) -> (String, String, u64, String) {
    (kind.into(), path.into(), server, outcome.into())
}

fn nothing(site: &Site, name: &str) {
    assert_eq!(found(site, name, &[]), (vec![], 0));
}

fn kill(site: &Site, name: &str, server: u64) {
    Site::kill(site.server_pid(name, server), Signal::KILL);
    let state = || site.status(name)["servers"][server as usize]["state"].clone();
    eventually("status shows the dead server", || state() == "down");
}

/// Two servers that both hold all of `/bivouac/d/f`, of 20 blocks, and other files. What `look` prints of them.
fn with_copies(site: &Site) -> (String, String) {
    let name = site.up_with(2, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    site.sh(
        &name,
        "cd /bivouac && mkdir d && head -c 1310720 /dev/urandom > d/f && head -c 777777 /dev/urandom > g && \
         for i in $(seq 50); do echo $i > d/small$i; done",
    )
    .ok();
    let sums = site.sh(&name, LOOK).ok();
    (name, sums)
}

const LENGTH: u64 = 20 * BLOCK;
const LOOK: &str = "cd /bivouac && find . -type f | sort | xargs md5sum && stat -c '%n %s %Y' d/f g";

/// Each server shows all there is when the other one is away.
fn both_show(site: &Site, name: &str, sums: &str) {
    for server in 0..2 {
        kill(site, name, server);
        assert_eq!(site.sh(name, LOOK).ok(), sums, "without server {server}");
        site.bivouac(["restart", name, &server.to_string()]).ok();
        all_in_step(site, name);
    }
}

#[test]
fn bytes_that_changed_by_themselves_are_repaired_from_the_copy_that_is_right() {
    let site = Site::in_memory("flipped");
    let (name, sums) = with_copies(&site);
    nothing(&site, &name);
    // Of two neighbouring blocks a server is the primary of one and has a copy of the other; the last is a part of one.
    for block in 0..4 {
        flip(&sub_file(&name, 0, LENGTH), block * BLOCK + 77);
        flip(&sub_file(&name, 1, LENGTH), block * BLOCK + 5 * CHUNK + 77);
    }
    flip(&sub_file(&name, 1, 777_777), 777_776);
    assert_ne!(site.sh(&name, LOOK).ok(), sums, "reads do not look at checksums");
    let all = |outcome| {
        let f = |server| finding("bytes", "/bivouac/d/f", server, outcome);
        (vec![f(0), f(1), finding("bytes", "/bivouac/g", 1, outcome)], i32::from(outcome == "seen"))
    };
    assert_eq!(found(&site, &name, &["--dry-run"]), all("seen"));
    let said = verify(&site, &name, &[]).ok();
    for words in [
        "/bivouac/d/f: 16 KiB on server 0, from 0 B on, are not what was written: repaired",
        "3 findings: everything was repaired",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    nothing(&site, &name);
    assert_eq!(site.sh(&name, LOOK).ok(), sums);
    both_show(&site, &name, &sums);
    nothing(&site, &name);
}

#[test]
fn damage_does_not_spread_to_a_server_that_catches_up() {
    let site = Site::in_memory("flipped-away");
    let (name, sums) = with_copies(&site);
    let damage = || {
        for block in 0..2 {
            flip(&sub_file(&name, 0, LENGTH), block * BLOCK + 77);
        }
    };
    kill(&site, &name, 1);
    damage();
    site.bivouac(["restart", &name, "1"]).ok();
    all_in_step(&site, &name);
    assert_eq!(found(&site, &name, &[]), (vec![finding("bytes", "/bivouac/d/f", 0, "repaired")], 0));
    assert_eq!(site.sh(&name, LOOK).ok(), sums);
    site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
    damage();
    site.bivouac(["up", &name]).ok();
    all_in_step(&site, &name);
    // Of the block of which server 1 is the primary, server 0 has been given the right bytes already.
    assert_eq!(found(&site, &name, &[]), (vec![finding("bytes", "/bivouac/d/f", 0, "repaired")], 0));
    both_show(&site, &name, &sums);
}

#[test]
fn what_is_written_into_a_damaged_chunk_does_not_hide_the_damage() {
    let site = Site::in_memory("flipped-written");
    let (name, _) = with_copies(&site);
    flip(&sub_file(&name, 0, LENGTH), 77);
    flip(&sub_file(&name, 1, LENGTH), BLOCK + 77);
    let write =
        "for at in 100 65636; do printf x | dd of=/bivouac/d/f bs=1 seek=$at conv=notrunc status=none; done";
    site.sh(&name, write).ok();
    let repaired = |server| finding("bytes", "/bivouac/d/f", server, "repaired");
    assert_eq!(found(&site, &name, &[]), (vec![repaired(0), repaired(1)], 0));
    let sums = site.sh(&name, LOOK).ok();
    both_show(&site, &name, &sums);
}

#[test]
fn where_no_copy_fits_its_checksum_nothing_is_changed_and_the_file_is_named() {
    let site = Site::in_memory("flipped-all");
    let (name, _) = with_copies(&site);
    flip(&sub_file(&name, 0, LENGTH), 3 * CHUNK);
    flip(&sub_file(&name, 1, LENGTH), 3 * CHUNK + 1);
    let before: Vec<Vec<u8>> =
        (0..2).map(|s| std::fs::read(sub_file(&name, s, LENGTH)).expect("reads")).collect();
    let damaged = |server| finding("bytes", "/bivouac/d/f", server, "damaged");
    for _ in 0..2 {
        assert_eq!(found(&site, &name, &[]), (vec![damaged(0), damaged(1)], 1));
    }
    for server in 0..2 {
        assert_eq!(std::fs::read(sub_file(&name, server, LENGTH)).expect("reads"), before[server as usize]);
    }
    // Who writes all of it anew has repaired it.
    site.sh(&name, "dd if=/dev/zero of=/bivouac/d/f bs=64K count=1 conv=notrunc status=none").ok();
    nothing(&site, &name);
}

#[test]
fn checksums_that_changed_or_are_gone_are_written_anew() {
    let site = Site::in_memory("sums-damaged");
    let (name, sums) = with_copies(&site);
    let of = sub_file(&name, 0, LENGTH);
    let (directory, file) =
        (of.parent().and_then(Path::file_name).expect("one"), of.file_name().expect("one"));
    flip(&storage(&name, 0).join("crc").join(directory).join(file), 12);
    let renewed = |server| finding("checksum", "/bivouac/d/f", server, "repaired");
    assert_eq!(found(&site, &name, &[]), (vec![renewed(0)], 0));
    nothing(&site, &name);
    let sums_file = storage(&name, 1).join("crc").join(directory).join(file);
    std::fs::File::options().write(true).open(&sums_file).expect("opens").set_len(0).expect("cut");
    assert_eq!(found(&site, &name, &[]), (vec![renewed(1)], 0));
    nothing(&site, &name);
    assert_eq!(site.sh(&name, LOOK).ok(), sums);
}

#[test]
fn a_sub_file_that_is_gone_or_cut_is_fetched_from_the_others() {
    let site = Site::in_memory("sub-file-gone");
    let (name, sums) = with_copies(&site);
    let first = sub_file(&name, 0, LENGTH);
    std::fs::remove_file(&first).expect("removed");
    assert_eq!(found(&site, &name, &["--dry-run"]), (vec![finding("missing", "/bivouac/d/f", 0, "seen")], 1));
    assert_eq!(found(&site, &name, &[]), (vec![finding("missing", "/bivouac/d/f", 0, "repaired")], 0));
    assert_eq!(site.status(&name)["servers"][0]["behind"], 0);
    assert_eq!(
        std::fs::read(&first).expect("is there"),
        std::fs::read(sub_file(&name, 1, LENGTH)).expect("reads")
    );
    nothing(&site, &name);
    let second = sub_file(&name, 1, LENGTH);
    std::fs::File::options().write(true).open(&second).expect("opens").set_len(9 * BLOCK + 5).expect("cut");
    assert_eq!(found(&site, &name, &[]), (vec![finding("bytes", "/bivouac/d/f", 1, "repaired")], 0));
    nothing(&site, &name);
    both_show(&site, &name, &sums);
}

#[test]
fn a_sub_file_that_was_lost_while_its_server_was_away_is_fetched_when_it_comes_back() {
    let site = Site::in_memory("gone-away");
    let (name, sums) = with_copies(&site);
    let lost = sub_file(&name, 0, LENGTH);
    kill(&site, &name, 0);
    std::fs::remove_file(&lost).expect("removed");
    site.bivouac(["restart", &name, "0"]).ok();
    all_in_step(&site, &name);
    nothing(&site, &name);
    assert_eq!(site.total(&name, "damaged"), 0);
    both_show(&site, &name, &sums);
}

#[test]
fn holes_take_no_time() {
    let site = Site::in_memory("verify-holes");
    let (name, _) = with_copies(&site);
    let far = (4u64 << 40) + 12_345;
    let make = format!(
        "cd /bivouac && truncate -s 4T hole && printf data | dd of=hole bs=1 seek={far} conv=notrunc status=none && truncate -s 8T hole"
    );
    site.sh(&name, &make).ok();
    let begun = std::time::Instant::now();
    nothing(&site, &name);
    flip(&sub_file(&name, 1, 8 << 40), far + 1);
    assert_eq!(found(&site, &name, &[]), (vec![finding("bytes", "/bivouac/hole", 1, "repaired")], 0));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // Bytes where nothing was ever written, on one server.
    flip(&sub_file(&name, 0, 8 << 40), 1 << 40);
    flip(&sub_file(&name, 0, 8 << 40), (1 << 40) + BLOCK);
    assert_eq!(found(&site, &name, &[]), (vec![finding("bytes", "/bivouac/hole", 0, "repaired")], 0));
    nothing(&site, &name);
}

#[test]
fn a_damaged_log_or_snapshot_is_written_anew_from_memory() {
    let site = Site::in_memory("log-damaged");
    let (name, sums) = with_copies(&site);
    // The second time it is a snapshot; the third time its mark.
    for what in ["log", "log", "mark"] {
        let path = log(&name, 1).with_extension(what);
        let middle = path.metadata().expect("is there").len() / 2;
        flip(&path, middle);
        let number: u32 =
            path.file_stem().and_then(|s| s.to_str()?.strip_prefix("partition-")?.parse().ok()).expect("one");
        let log = |outcome| vec![finding("metadata-log", &number.to_string(), 1, outcome)];
        assert_eq!(found(&site, &name, &["--dry-run"]), (log("seen"), 1));
        assert_eq!(found(&site, &name, &[]), (log("repaired"), 0));
        nothing(&site, &name);
    }
    std::fs::remove_file(log(&name, 0)).expect("removed");
    let (all, code) = found(&site, &name, &[]);
    assert_eq!((all.len(), &*all[0].3, code), (1, "repaired", 0), "{all:?}");
    site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
    site.bivouac(["up", &name]).ok();
    all_in_step(&site, &name);
    assert_eq!(site.sh(&name, LOOK).ok(), sums);
}

#[test]
fn nothing_is_found_while_programs_write() {
    let site = Site::in_memory("verify-busy");
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K"]);
    let stop = site.path("stop");
    let loads = [(BLOCKS, "blocks"), (NAMES, "names")];
    let loads = loads.map(|(program, home)| Load::start(&site, &name, program, home));
    // Many small writes to the same chunks.
    let append = format!("while [ ! -e {} ]; do echo line >> /bivouac/log; done", stop.display());
    let mut command = site.command(["exec", &name, "--", "bash", "-c", &append]);
    let mut appender = command.spawn().expect("starts");
    for _ in 0..6 {
        nothing(&site, &name);
        std::thread::sleep(Duration::from_millis(300));
    }
    for load in loads {
        load.end();
    }
    std::fs::write(stop, "").expect("written");
    assert!(appender.wait().expect("ends").success());
    nothing(&site, &name);
}

#[test]
fn servers_that_were_killed_in_the_middle_of_writes_have_no_damage() {
    let site = Site::in_memory("verify-killed");
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K"]);
    let load = Load::start(&site, &name, BLOCKS, "blocks");
    for server in [0, 1, 2] {
        kill(&site, &name, server);
        site.bivouac(["restart", &name, &server.to_string()]).ok();
        all_in_step(&site, &name);
        nothing(&site, &name);
    }
    // All at once: nobody has a copy of which it is certain that it is whole.
    site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
    load.kill();
    site.bivouac(["up", &name]).ok();
    all_in_step(&site, &name);
    nothing(&site, &name);
}

#[test]
fn without_copies_presence_and_lengths_are_checked_and_it_says_so() {
    let site = Site::in_memory("verify-single");
    let name = site.up_with(2, &["--block-size", "64K"]);
    site.sh(
        &name,
        "cd /bivouac && for i in 3 5; do head -c ${i}00000 /dev/urandom > f$i; done; truncate -s 9M hole",
    )
    .ok();
    let said = verify(&site, &name, &[]).ok();
    assert!(
        said.contains("there are no copies: of blocks, only presence and lengths were checked"),
        "{said}"
    );
    assert!(!storage(&name, 0).join("crc").exists(), "without copies there are no checksums");
    // One of the two servers has the last block: how long the other sub-file should be, nobody knows.
    let all: Vec<PathBuf> = (0..2).flat_map(|s| files(&storage(&name, s).join("sub"))).collect();
    let cut =
        all.iter().find(|path| path.metadata().expect("is there").len() == 500_000).expect("the last block");
    let server = u64::from(cut.starts_with(storage(&name, 1)));
    std::fs::File::options().write(true).open(cut).expect("opens").set_len(400_000).expect("cut");
    let short = finding("length", "/bivouac/f5", server, "damaged");
    assert_eq!(found(&site, &name, &[]), (vec![short.clone()], 1));
    let gone =
        all.iter().find(|path| path.metadata().expect("is there").len() == 300_000).expect("the last block");
    let server = u64::from(gone.starts_with(storage(&name, 1)));
    std::fs::remove_file(gone).expect("removed");
    let lost = finding("missing", "/bivouac/f3", server, "damaged");
    assert_eq!(found(&site, &name, &[]), (vec![short, lost], 1));
    flip(&log(&name, 0), 200);
    assert!(verify(&site, &name, &[]).out.contains("is damaged: repaired"));
}

#[test]
fn what_lies_on_servers_that_are_away_is_listed_by_file() {
    let site = Site::in_memory("verify-away");
    let name = site.up_with(3, &["--metadata-replicas", "2", "--heal-after", "never"]);
    let make =
        "cd /bivouac && mkdir one two && for i in 1 2 3 4 5 6; do head -c 100000 /dev/urandom > one/$i; done";
    site.sh(&name, make).ok();
    site.bivouac(["layout", "-d", &name, "--replicas", "2", "/two"]).ok();
    site.sh(&name, "cd /bivouac && for i in 1 2 3; do head -c 2M /dev/urandom > two/$i; done").ok();
    nothing(&site, &name);
    kill(&site, &name, 1);
    // Those of which no program can read all.
    let lost = site
        .sh(&name, "cd /bivouac && for f in */*; do cat $f > /dev/null 2>&1 || echo /bivouac/$f; done")
        .ok();
    let lost: Vec<_> = lost.lines().map(|path| finding("away", path, u64::MAX, "damaged")).collect();
    assert!(
        !lost.is_empty() && lost.iter().all(|(_, path, ..)| path.starts_with("/bivouac/one/")),
        "{lost:?}"
    );
    assert_eq!(found(&site, &name, &[]), (lost, 1));
    let said = verify(&site, &name, &[]).out;
    assert!(said.contains("server 1 is not up, or did not answer"), "{said}");
}

#[test]
fn who_is_interrupted_leaves_nothing_running_and_who_does_not_run_says_so() {
    let site = Site::in_memory("verify-stop");
    let (name, _) = with_copies(&site);
    // At a pace at which it takes half a minute.
    site.sh(&name, "head -c 60M /dev/urandom > /bivouac/large").ok();
    let mut command = site.command(["verify", &name, "--rate", "1"]);
    let mut running = command.stdout(Stdio::null()).spawn().expect("starts");
    let reads = || {
        let threads = |server| format!("/proc/{}/task", site.server_pid(&name, server));
        let names = |server| {
            std::fs::read_dir(threads(server))
                .expect("runs")
                .flatten()
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        };
        (0..2).flat_map(names).filter(|name| name.trim() == "verify").count()
    };
    eventually("servers verify", || reads() == 2);
    Site::kill(running.id() as i32, Signal::INT);
    assert_eq!(running.wait().expect("ends").code(), Some(130));
    eventually("nobody verifies", || reads() == 0);
    site.bivouac(["down", "--keep", &name]).ok();
    verify(&site, &name, &[]).fails(65, &["does not run", "bivouac up"]);
}
