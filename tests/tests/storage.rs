//! Storage that fails under servers while programs use a deployment with copies: the programs do not notice, nothing that
//! was acknowledged is lost, and when the storage works again all copies are the same.

use bivouac_tests::failing::{FailingDir, Fault, On, Slow, own_mounts};
use bivouac_tests::load::{BLOCKS, LENGTHS, Load, NAMES, SYNCS, all_in_step};
use bivouac_tests::{Mounted, Site, eventually, run_dir, skipped_without_mount};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Longest time that an operation may take while storage fails, seconds: the controller has to hear of it, a server has to
/// take over, and the machine is busy.
const WORST: f64 = 10.0;

/// Three servers with two copies of everything, on storage that can fail. (Fields are dropped in this order.)
struct Scene {
    site: Site,
    name: String,
    dir: FailingDir,
}

impl Scene {
    fn new(test: &str) -> Scene {
        let dir = FailingDir::new(test);
        let site = Site::in_memory(test);
        let options = ["--replicas", "2", "--block-size", "64K", "--heal-after", "never", "--storage"];
        let name = site.up_with(3, &[&options[..], &[&dir.path().to_string_lossy()]].concat());
        Scene { site, name, dir }
    }

    /// From now on, operations of a kind fail in these directories of a server's storage.
    fn fail(&self, server: u64, directories: &[&str], on: On, error: Errno) {
        let path = |directory: &&str| format!("-{server}/{directory}");
        self.dir.fail(Fault { paths: directories.iter().map(path).collect(), on, error });
    }

    /// In how many groups and shards a server is behind.
    fn behind(&self, server: usize) -> u64 {
        self.site.status(&self.name)["servers"][server]["behind"].as_u64().expect("a number")
    }

    /// Everything is the same everywhere, as `verify` says.
    fn verify(&self) {
        verify(&self.site, &self.name);
    }
}

/// `verify` finds nothing.
fn verify(site: &Site, name: &str) {
    let found = site.bivouac(["verify", name, "--rate", "0", "--json"]);
    let told: serde_json::Value =
        serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{} {}", found.out, found.err));
    assert_eq!((found.code, &told["findings"]), (0, &serde_json::json!([])), "{}", found.err);
}

/// Starts programs that check everything that they do.
fn start<const N: usize>(site: &Site, name: &str, programs: [&str; N]) -> Vec<Load> {
    let each = programs.into_iter().enumerate();
    each.map(|(number, program)| Load::start(site, name, program, &format!("load{number}"))).collect()
}

/// Ends them: none may have failed, nor waited for too long.
fn end(loads: Vec<Load>) {
    let worst = loads.into_iter().map(|load| load.end().worst).fold(0.0, f64::max);
    assert!(worst < WORST, "an operation took {worst} s");
}

/// Loads run while `fault` is set for a while on server 1; then it is healed, and everything has to be whole again.
fn under_load(test: &str, directories: &[&str], on: On, error: Errno) {
    if skipped_without_mount() {
        return;
    }
    let scene = Scene::new(test);
    let loads = start(&scene.site, &scene.name, [BLOCKS, NAMES, SYNCS]);
    for _ in 0..2 {
        scene.fail(1, directories, on, error);
        eventually("the fault is met", || scene.dir.hits() > 0);
        eventually("the server is left out", || scene.behind(1) > 0);
        std::thread::sleep(Duration::from_secs(2));
        assert!(scene.behind(1) > 0, "it must not be relied on while its storage fails");
        scene.dir.heal();
        all_in_step(&scene.site, &scene.name);
    }
    end(loads);
    scene.verify();
    // Others show their copies of what server 0 holds, which are server 1's among others.
    look_without(&scene.site, &scene.name, &[0, 2]);
    scene.site.bivouac(["down", &scene.name]).ok();
}

const LOOK: &str = "cd /bivouac && find . -type f | sort | xargs md5sum";

/// Everything looks the same without each of these servers.
fn look_without(site: &Site, name: &str, servers: &[u64]) {
    let sums = site.sh(name, LOOK).ok();
    for server in servers {
        kill(site, name, *server);
        assert_eq!(site.sh(name, LOOK).ok(), sums, "without server {server}");
        site.bivouac(["restart", name, &server.to_string()]).ok();
        all_in_step(site, name);
    }
}

fn kill(site: &Site, name: &str, server: u64) {
    Site::kill(site.server_pid(name, server), Signal::KILL);
    let state = || site.status(name)["servers"][server as usize]["state"].clone();
    eventually("status shows the dead server", || state() == "down");
}

#[test]
fn eio_when_blocks_are_written() {
    under_load("eio-write", &["sub/", "crc/"], On::WRITE, Errno::IO);
}

#[test]
fn eio_when_blocks_are_read() {
    under_load("eio-read", &["sub/"], On::READ, Errno::IO);
}

/// The first read that fails may be of any length: answers to short ones are put together in another way.
#[test]
fn eio_when_little_is_read() {
    if skipped_without_mount() {
        return;
    }
    let scene = Scene::new("eio-little");
    let write =
        "for i in 1 2 3 4 5 6; do head -c 300000 /dev/urandom > /bivouac/f$i; done; cat /bivouac/f* | md5sum";
    let sum = scene.site.sh(&scene.name, write).ok();
    for len in ["4k", "32k", "33k"] {
        scene.fail(1, &["sub/"], On::READ, Errno::IO);
        let read = format!(
            "for i in 1 2 3 4 5 6; do dd bs={len} if=/bivouac/f$i status=none || exit; done | md5sum"
        );
        assert_eq!(scene.site.sh(&scene.name, &read).ok(), sum, "{len}");
        assert!(scene.dir.hits() > 0, "the fault is met");
        eventually("the server is left out", || scene.behind(1) > 0);
        scene.dir.heal();
        all_in_step(&scene.site, &scene.name);
    }
}

#[test]
fn eio_when_blocks_are_synced() {
    under_load("eio-sync", &["sub/"], On::SYNC, Errno::IO);
}

#[test]
fn eio_when_the_log_is_written() {
    under_load("eio-log", &["meta/"], On::WRITE, Errno::IO);
}

#[test]
fn eio_when_the_log_is_synced() {
    under_load("eio-log-sync", &["meta/"], On::SYNC, Errno::IO);
}

#[test]
fn eio_everywhere() {
    under_load("eio-all", &[""], On::READ.and(On::WRITE).and(On::SYNC), Errno::IO);
}

#[test]
fn erofs_everywhere() {
    under_load("erofs", &[""], On::WRITE.and(On::OPEN_TO_WRITE), Errno::ROFS);
}

/// A truncation reaches one server long before the others, while that one takes back what it has missed.
#[test]
fn truncations_that_are_slow_on_others_while_a_server_catches_up() {
    if skipped_without_mount() {
        return;
    }
    let scene = Scene::new("slow-cuts");
    let others = vec!["-0/sub/".into(), "-2/sub/".into()];
    scene.dir.slow_down(Slow { paths: others, on: On::TRUNCATE, wait: Duration::from_millis(50) });
    let loads = start(&scene.site, &scene.name, [LENGTHS; 3]);
    for _ in 0..6 {
        scene.fail(1, &["sub/"], On::WRITE.and(On::OPEN_TO_WRITE), Errno::ROFS);
        eventually("the server is left out", || scene.behind(1) > 0);
        std::thread::sleep(Duration::from_millis(300));
        scene.dir.heal();
        all_in_step(&scene.site, &scene.name);
    }
    std::thread::sleep(Duration::from_secs(2));
    end(loads);
    scene.verify();
    scene.site.bivouac(["down", &scene.name]).ok();
}

/// With one copy, and with the last one of several, the error is the program's: nobody else has what is asked for. What
/// does not lie on that server works, and everything does when the storage works again.
#[test]
fn where_nobody_else_has_it_the_error_is_the_programs_and_nothing_else_is_lost() {
    if skipped_without_mount() {
        return;
    }
    let scene = Scene::new("eio-last");
    let (site, name) = (&scene.site, &*scene.name);
    site.bivouac(["layout", "-d", name, "--replicas", "1", "/"]).ok();
    site.sh(name, "cd /bivouac && head -c 2M /dev/urandom > one && mkdir d").ok();
    site.bivouac(["layout", "-d", name, "--replicas", "2", "/d"]).ok();
    site.sh(name, "head -c 2M /dev/urandom > /bivouac/d/two").ok();
    let sums = site.sh(name, LOOK).ok();
    scene.fail(1, &["sub/"], On::READ.and(On::WRITE), Errno::IO);
    // Of each file, in pieces of a block: how many cannot be read.
    let count = |path: &str| {
        let script = format!(
            "for i in $(seq 0 31); do dd if=/bivouac/{path} of=/dev/null bs=64K count=1 skip=$i status=none || echo bad; done \
             2>&1 | grep -c 'Input/output error'; true"
        );
        site.sh(name, &script).ok().trim().parse::<u32>().expect("a number")
    };
    assert_eq!(count("d/two"), 0, "others have it");
    let bad = count("one");
    assert!((8..=14).contains(&bad), "{bad} of 32 blocks are on that server");
    // Now the only one that has everything of some groups is the one whose storage fails.
    scene.dir.heal();
    all_in_step(site, name);
    kill(site, name, 0);
    scene.fail(1, &["sub/"], On::READ.and(On::WRITE), Errno::IO);
    let bad = count("d/two");
    assert!((4..=20).contains(&bad), "{bad} of 32 blocks are on these two servers only");
    let write = "dd if=/dev/zero of=/bivouac/d/two bs=64K count=32 conv=notrunc,fsync 2>&1 | grep -o 'Input/output error'";
    assert_eq!(site.sh(name, write).ok().trim(), "Input/output error");
    scene.dir.heal();
    site.bivouac(["restart", name, "0"]).ok();
    all_in_step(site, name);
    assert_eq!(count("d/two"), 0);
    // The last one could not even read what to write into the checksums of what it could not write.
    let said = site.bivouac(["verify", name, "--rate", "0"]).ok();
    assert!(!said.contains("not what was written"), "{said}");
    let one = |sums: &str| sums.lines().find(|line| line.ends_with("/one")).map(str::to_owned);
    assert_eq!(one(&site.sh(name, LOOK).ok()), one(&sums));
    scene.verify();
    site.bivouac(["down", name]).ok();
}

/// Writes large files until there is no room, then small ones, which lie in the metadata; only ENOSPC may come. Then it
/// waits for a line, removes the large ones, and finds everything else as it was acknowledged.
const FULL: &str = r#"
import errno, os, random, sys
random.seed(3)
there = {}
def attempt(call, *args):
    try: return call(*args)
    except OSError as error:
        if error.errno != errno.ENOSPC: raise
        return None
def check(path, data):
    with open(path, 'rb') as f: found = f.read()
    at = next((i for i, (a, b) in enumerate(zip(found, data)) if a != b), min(len(found), len(data)))
    assert found == data, f'{path}: {len(found)} of {len(data)} bytes, other from {at} on'
# Where and what was tried to be written: what lies behind a gap may be left of it, also of a write that was cut short.
tried = {}
def check_large(path, data):
    with open(path, 'rb') as f: found = f.read()
    assert found.startswith(data), f'{path}: {len(found)} bytes, not the {len(data)} that were acknowledged'
    for i in range(len(data), len(found)):
        may_be = [more[i - at] for at, more in tried[path] if at <= i < at + len(more)]
        assert found[i] in [0] + may_be, f'{path}: {found[i]} at {i}, not {may_be}'
large, refused = {}, 0
for number in range(200):
    path = f'/bivouac/large{number}'
    fd = attempt(os.open, path, os.O_RDWR | os.O_CREAT)
    if fd is None: break
    large[path] = b''
    while len(large[path]) < 1 << 20:
        data = random.randbytes(150000)
        tried.setdefault(path, []).append((len(large[path]), data))
        count = attempt(os.pwrite, fd, data, len(large[path]))
        if count is None: refused += 1; break
        large[path] += data[:count]
    os.close(fd)
    if refused > 3: break
assert refused > 3, 'it was never full'
for path, data in large.items(): check_large(path, data)
made = 0
for number in range(4000):
    path, data = f'/bivouac/small{number % 3000}', random.randbytes(3500)
    fd = attempt(os.open, path, os.O_RDWR | os.O_CREAT)
    if fd is None: continue
    there.setdefault(path, b'')
    count = attempt(os.pwrite, fd, data, 0)
    if count is not None: there[path], made = data[:count] + there[path][count:], made + 1
    os.close(fd)
for path, data in there.items(): check(path, data)
print('full', made, flush=True)
sys.stdin.readline()
for path in large: os.unlink(path)
for path, data in there.items(): check(path, data)
print('room', flush=True)
"#;

#[test]
fn a_full_disk_is_enospc_for_who_writes_there_and_never_makes_copies_differ() {
    if skipped_without_mount() {
        return;
    }
    own_mounts();
    let site = Site::in_memory("full");
    let storage = site.path("storage");
    std::fs::create_dir(&storage).expect("made");
    let options = ["--replicas", "2", "--block-size", "64K", "--heal-after", "never", "--storage"];
    let name = site.up_with(3, &[&options[..], &[&storage.to_string_lossy()]].concat());
    kill(&site, &name, 1);
    // Its storage moves to a small file system.
    let own = storage.join(format!("bivouac-{name}-1"));
    let _small = Mounted::instead_of(&own, "size=24m,mode=0700");
    site.bivouac(["restart", &name, "1"]).ok();
    all_in_step(&site, &name);
    let program = site.path("full.py");
    std::fs::write(&program, FULL).expect("written");
    let mut command = site.command(["exec", &name, "--", "python3", "-B"]);
    let mut running =
        command.arg(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut says = BufReader::new(running.stdout.take().expect("a pipe")).lines();
    let mut say = || says.next().expect("it has not failed").expect("a line");
    let full = say();
    let made: u32 = full.strip_prefix("full ").and_then(|made| made.parse().ok()).expect(&full);
    // Those of whose shards the server is no holder, or a copy only: copies that have no room are left out.
    assert!(made > 2000, "only {made} small files could be written");
    assert!(site.status(&name)["servers"][1]["behind"].as_u64() > Some(0), "its logs are full");
    writeln!(running.stdin.as_mut().expect("a pipe"), "go on").expect("told");
    assert_eq!(say(), "room");
    assert!(running.wait().expect("ends").success());
    all_in_step(&site, &name);
    verify(&site, &name);
    look_without(&site, &name, &[0, 1, 2]);
    // Nothing can be removed that is a mount point.
    site.bivouac(["down", "--keep", &name]).ok();
}

/// The files of a server's storage with this ending, longest first.
fn stored(storage: &Path, tree: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![storage.join(tree)];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("is there").flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path if path.to_string_lossy().ends_with(ending) => found.push(path),
                _ => {}
            }
        }
    }
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().expect("is there").len()));
    found
}

/// A server that has lost acknowledged records says so and does not start, and the others go on. Without the log and its
/// mark it starts, and gets from them what was in it.
#[test]
fn a_log_that_lost_acknowledged_records_is_refused_and_its_content_comes_back_from_the_copies() {
    let site = Site::in_memory("cut");
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    site.sh(
        &name,
        "cd /bivouac && for i in $(seq 300); do mkdir -p d$((i % 20)); echo $i > d$((i % 20))/f$i; done",
    )
    .ok();
    let sums = site.sh(&name, LOOK).ok();
    let storage = run_dir(&name).join("storage-1");
    kill(&site, &name, 1);
    let mut logs = stored(&storage, "meta", ".log");
    logs.truncate(3);
    logs.push(storage.join("meta/partition-00.log"));
    for log in &logs {
        let length = log.metadata().expect("is there").len();
        std::fs::File::options().write(true).open(log).expect("opens").set_len(length / 2).expect("cut");
    }
    site.bivouac(["restart", &name, "1"]).fails(66, &["ends at byte"]);
    assert_eq!(site.sh(&name, LOOK).ok(), sums);
    for log in logs {
        std::fs::remove_file(&log).expect("removed");
        let _ = std::fs::remove_file(log.with_extension("mark"));
    }
    site.bivouac(["restart", &name, "1"]).ok();
    all_in_step(&site, &name);
    verify(&site, &name);
    look_without(&site, &name, &[0, 2]);
    site.sh(&name, "cd /bivouac && mv d1 d2/moved && ls d2/moved > /dev/null && rm -r d2").ok();
    verify(&site, &name);
    site.bivouac(["down", &name]).ok();
}

/// The end of a log that a killed server was about to write, and sub-files that are lost while it is away: it comes back
/// with what the others have, and nobody sees anything else meanwhile.
#[test]
fn a_torn_record_and_lost_sub_files_come_back_from_the_copies() {
    let site = Site::in_memory("torn");
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    let loads = start(&site, &name, [BLOCKS, NAMES]);
    let storage = run_dir(&name).join("storage-1");
    for round in 0..3u64 {
        kill(&site, &name, 1);
        for log in stored(&storage, "meta", ".log") {
            // What a killed server leaves of a record: its length, and a part of it.
            let file = std::fs::File::options().write(true).open(&log).expect("opens");
            let end = file.metadata().expect("is there").len();
            file.write_all_at(&[200, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8][..6 + 3 * round as usize], end)
                .expect("writes");
        }
        let lost = stored(&storage, "sub", "");
        for path in lost.iter().step_by(3) {
            std::fs::remove_file(path).expect("removed");
        }
        // Others are only damaged: what differs from the primary's is fetched.
        if let Some(path) = lost.get(1).filter(|path| path.metadata().is_ok_and(|m| m.len() > 10)) {
            let file = std::fs::File::options().write(true).open(path).expect("opens");
            file.write_all_at(b"damaged", 0).expect("writes");
        }
        site.bivouac(["restart", &name, "1"]).ok();
        all_in_step(&site, &name);
    }
    end(loads);
    verify(&site, &name);
    assert_eq!(site.total(&name, "damaged"), 0);
    look_without(&site, &name, &[0, 2]);
    site.bivouac(["down", &name]).ok();
}

/// The storage of server 1 fails, and files are changed that then go to other servers: it fails wholly, or for every second file when
/// there are new groups already. Files that need nothing of it get there, all can be read meanwhile, and in the end all copies are
/// the same. (That a copy which stays where it is does not count as whole by its new group is tested in `meta/tests/restriping.rs`.)
fn misses_changes_of_files_that_move(test: &str, wholly: bool) {
    if skipped_without_mount() {
        return;
    }
    let scene = Scene::new(test);
    let (site, name) = (&scene.site, &scene.name);
    let write = "cd /bivouac && for i in $(seq 120); do
        head -c 60000 /dev/urandom | dd of=f$i bs=60000 iflag=fullblock conv=notrunc status=none || exit; done";
    site.sh(name, write).ok();
    if wholly {
        scene.fail(1, &["sub/", "crc/"], On::WRITE, Errno::IO);
    } else {
        // Files stay where they are until the storage has failed.
        site.bivouac(["expand", name, "--servers", "+1", "--rebuild", "metadata"]).ok();
        let mut files = sub_files(&scene.dir.behind(), "-1");
        files.sort_unstable();
        let paths: Vec<String> = files.into_iter().step_by(2).collect();
        assert!(paths.len() > 5, "{paths:?}");
        scene.dir.fail(Fault { paths, on: On::WRITE, error: Errno::IO });
    }
    site.sh(name, write).ok();
    eventually("the server is left out", || scene.behind(1) > 0);
    let sums = site.sh(name, LOOK).ok();
    match wholly {
        true => site.bivouac(["expand", name, "--servers", "+1", "--background"]).ok(),
        false => site.bivouac(["rebuild", name, "--background"]).ok(),
    };
    let fourth = || site.status(name)["servers"][3]["stored"].as_u64().unwrap_or(0);
    eventually("files go to the new server", || fourth() > 1_000_000);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(site.sh(name, LOOK).ok(), sums, "while its storage fails");
    scene.dir.heal();
    site.bivouac(["rebuild", name]).ok();
    all_in_step(site, name);
    assert_eq!(site.sh(name, LOOK).ok(), sums);
    scene.verify();
    look_without(site, name, &[0]);
    site.bivouac(["down", name]).ok();
}

/// A server's sub-files, below where its storage is.
fn sub_files(below: &Path, server: &str) -> Vec<String> {
    let list = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let storage =
        list(below).into_iter().find(|path| path.to_string_lossy().ends_with(server)).expect("its storage");
    let files = list(&storage.join("sub")).into_iter().flat_map(|directory| list(&directory));
    files
        .filter_map(|path| {
            path.strip_prefix(&storage).ok().map(|path| format!("{server}/{}", path.display()))
        })
        .collect()
}

#[test]
fn storage_that_fails_before_files_go_to_other_servers() {
    misses_changes_of_files_that_move("storage-before-moves", true);
}

#[test]
fn storage_that_fails_for_some_files_while_they_go_to_other_servers() {
    misses_changes_of_files_that_move("storage-in-moves", false);
}
