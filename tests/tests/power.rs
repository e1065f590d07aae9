//! What was synced survives a loss of power, also while it moves to other servers. Power cannot be cut here. What can be seen is
//! in which order servers sync and give up: whatever the kernel has written to disks by itself, what a file has is on one of them
//! at each moment.

use bivouac_tests::failing::{FailingDir, On};
use bivouac_tests::{Site, eventually, skipped_without_mount};
use std::path::Path;

/// The server whose storage has a file, and the file's path there.
fn place(path: &Path) -> Option<(u64, String)> {
    let text = path.to_string_lossy();
    let (directory, file) = text.trim_start_matches('/').split_once('/')?;
    Some((directory.rsplit('-').next()?.parse().ok()?, file.to_owned()))
}

/// What servers do, by when: to a sub-file, to a log of the metadata, to the journal of what has moved.
struct Done {
    on: On,
    server: u64,
    file: String,
}

fn done(dir: &FailingDir) -> Vec<Done> {
    let known = |(on, path): (On, std::path::PathBuf)| {
        let (server, file) = place(&path)?;
        Some(Done { on, server, file })
    };
    dir.seen().into_iter().filter_map(known).collect()
}

/// Before one of these servers, which take nothing, gives up anything of the file, those that were given it have synced it, the log says so on stable storage, and
/// so does that server's own journal.
fn nothing_is_given_up_before_it_is_safe(all: &[Done], ino: u64, givers: &[u64], when: &str) -> usize {
    let name = format!("{ino:016x}");
    let is_part = |done: &Done| done.file.starts_with("sub/") && done.file.ends_with(&name);
    let (mut unsynced, mut freed) = (std::collections::BTreeSet::new(), 0);
    // Since something was written to the file that may not be on stable storage.
    let (mut taken, mut log, mut journals) = (false, false, std::collections::BTreeSet::new());
    for (at, done) in all.iter().enumerate() {
        let step =
            format!("{when}: operation {at}, {:?} of {} on server {}", done.on, done.file, done.server);
        if is_part(done) && done.on.meets(On::FILL) {
            unsynced.insert(done.server);
            (taken, log) = (true, false);
            journals.clear();
        } else if is_part(done) && done.on == On::SYNC {
            unsynced.remove(&done.server);
        } else if done.file.starts_with("meta/") && done.on == On::SYNC {
            log |= unsynced.is_empty();
        } else if done.file.starts_with("bivouac-stripes") && done.on == On::SYNC && log {
            journals.insert(done.server);
        } else if is_part(done) && done.on.meets(On::FREE.and(On::TRUNCATE)) && givers.contains(&done.server)
        {
            assert!(taken, "{step}, and nobody has taken anything");
            assert!(unsynced.is_empty(), "{step}, and servers {unsynced:?} have not synced what they took");
            assert!(log, "{step}, and no log was synced since");
            assert!(journals.contains(&done.server), "{step}, and its own journal was not");
            freed += 1;
        }
    }
    freed
}

#[test]
fn synced_data_that_moves_is_synced_where_it_goes_and_decided_before_it_is_given_up() {
    if skipped_without_mount() {
        return;
    }
    for (replicas, servers, givers) in [("1", "1", &[0][..]), ("2", "2", &[0, 1])] {
        let dir = FailingDir::new("power");
        let site = Site::in_memory("power-data");
        let name = site.name("moves");
        let storage = dir.path().to_string_lossy().into_owned();
        let options =
            ["--block-size", "64K", "--replicas", replicas, "--heal-after", "never", "--storage", &storage];
        site.bivouac(["up", &name, "--servers", servers].iter().chain(&options)).ok();
        let make = "cd /bivouac && dd if=/dev/urandom of=f bs=1M count=3 conv=fsync 2> /dev/null && stat -c %i f && md5sum < f";
        let made = site.sh(&name, make).ok();
        let ino: u64 = made.lines().next().and_then(|line| line.parse().ok()).expect("a number");
        let sum = made.lines().last().expect("a sum").to_owned();
        let changes =
            [(["expand", &name, "--servers", "+2"], givers), (["shrink", &name, "--server", "0"], &[0])];
        for (words, givers) in changes {
            dir.watch();
            site.bivouac(words).ok();
            let when = format!("{} with {replicas} copies", words[0]);
            let freed = nothing_is_given_up_before_it_is_safe(&done(&dir), ino, givers, &when);
            assert!(freed > 0, "{when}: something has moved");
            println!("{when}: {freed} times something was given up");
            assert_eq!(site.sh(&name, "md5sum < /bivouac/f").ok().trim(), sum);
        }
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn synced_metadata_that_moves_is_synced_where_it_goes() {
    if skipped_without_mount() {
        return;
    }
    let dir = FailingDir::new("power");
    let site = Site::in_memory("power-names");
    let name = site.name("moves");
    let storage = dir.path().to_string_lossy().into_owned();
    site.bivouac(["up", &name, "--servers", "1", "--storage", &storage]).ok();
    let make = "cd /bivouac && for i in $(seq 100); do mkdir d$i && echo $i > d$i/f; done && sync -f . && cat d*/f | md5sum";
    let sum = site.sh(&name, make).ok();
    dir.watch();
    site.bivouac(["expand", &name, "--servers", "+1"]).ok();
    eventually("no shard moves any more", || site.status(&name)["moving_shards"] == 0);
    let all = done(&dir);
    let logs = || (0..64).map(|number| format!("meta/partition-{number:02}.log"));
    for log in logs() {
        let last =
            |on: On| all.iter().rposition(|done| done.server == 1 && done.file == log && done.on.meets(on));
        let (written, synced) = (last(On::FILL), last(On::SYNC));
        assert!(written.is_some(), "shards have come to {log}");
        // What the former server has is removed after that only.
        assert!(synced > written, "{log}: written last at {written:?}, synced last at {synced:?}");
    }
    assert_eq!(site.sh(&name, "cd /bivouac && cat d*/f | md5sum").ok(), sum);
    site.bivouac(["down", &name]).ok();
}
