//! The bytes of long writes go from copy to copy, and whatever happens to one of the copies meanwhile: no
//! write fails, and all copies have what was acknowledged.

use bivouac_tests::failing::own_mounts;
use bivouac_tests::load::{all_in_step, copies_agree};
use bivouac_tests::{
    Mounted, Network, Site, eventually, on_node, skipped_without_mount, skipped_without_root,
};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// Writes blocks of 512 KiB of a file anew, several at a time, until a file says stop. Every write has to
/// succeed; every block has to be what was written last. Prints how many there were, and how long the longest
/// took.
const LONG: &str = r#"
import os, random, struct, sys, time
path, stop, BLOCK, worst, count = sys.argv[1], sys.argv[2], 512 << 10, 0, 0
random.seed(7)
fd = os.open(path, os.O_RDWR | os.O_CREAT)
last = [0] * 24
def content(block): return struct.pack('<QQ', block, last[block]) * (BLOCK // 16) if last[block] else bytes(BLOCK)
def check(block):
    found = os.pread(fd, BLOCK, block * BLOCK)
    if found != content(block)[:len(found)] or len(found) < BLOCK and any(last[block:]):
        sys.exit(f'block {block} is not what was written the {last[block]}th time: {len(found)} bytes, {found[:16]}')
while not os.path.exists(stop):
    first = random.randrange(len(last))
    blocks = range(first, min(first + random.choice([1, 1, 2, 3]), len(last)))
    count += 1
    for block in blocks: last[block] = count
    data = b''.join(content(block) for block in blocks)
    begun = time.monotonic()
    written = 0
    while written < len(data): written += os.pwrite(fd, data[written:], first * BLOCK + written)
    worst = max(worst, time.monotonic() - begun)
    check(random.randrange(len(last)))
    if count == 10: open(stop + '.begun', 'w').close()
for block in range(len(last)): check(block)
print(count, worst)
"#;

/// So long an operation may take: the controller has to find out that a server is dead, hangs, or does not reach another
/// one, and the machine is busy. (It is less than servers are patient with each other, and than the kernel takes to
/// repeat what a link lost that was cut for eight seconds.)
const WORST: f64 = 12.0;

/// Four nodes, and four copies of everything.
fn four_copies(test: &str) -> Option<(Network, Site, String)> {
    if skipped_without_root("making network namespaces") {
        return None;
    }
    let (net, site) = (Network::of(4), Site::in_memory(test));
    let (name, hosts) = (site.name("deployment"), net.names.join(","));
    let options = ["--launcher", "netns", "--heal-after", "never", "--replicas", "4"];
    site.bivouac([&["up", &name, "--hosts", &hosts][..], &options].concat()).ok();
    Some((net, site, name))
}

/// Bytes that a node has sent.
fn sent(node: &str) -> u64 {
    let told =
        Command::new("ip").args(["-n", node, "-s", "-j", "link", "show", "eth0"]).output().expect("starts");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    told[0]["stats64"]["tx"]["bytes"].as_u64().expect("a number")
}

#[test]
fn the_bytes_of_long_writes_leave_each_node_once_and_come_to_no_copy_on_the_programs_node() {
    let Some((net, site, name)) = four_copies("once") else { return };
    let all_sent = || net.names.iter().map(|node| sent(node)).collect::<Vec<u64>>();
    let before = all_sent();
    let size = 64 << 20;
    let script = "dd if=/dev/zero of=/bivouac/file bs=1M count=64 2>&1";
    on_node(&net.names[0], &site, &name, script).ok();
    let sent: Vec<u64> = all_sent().iter().zip(before).map(|(after, before)| after - before).collect();
    // Each node has a copy of each block, and is the primary of a quarter of them: that would send them to
    // three copies.
    assert!(sent.iter().all(|sent| *sent < size * 5 / 4), "{sent:?} bytes for {size}");
    // The other three copies come over links.
    let all: u64 = sent.iter().sum();
    assert!((size * 3..size * 33 / 10).contains(&all), "{sent:?} bytes for {size}");
    copies_agree(&site, &name);
    site.bivouac(["down", &name]).ok();
}

/// Long writes while something happens to copies in the middle of chains.
fn long_writes(test: &str, faults: impl Fn(&Network, &Site, &str)) {
    let Some((net, site, name)) = four_copies(test) else { return };
    let (program, stop) = (site.path("long.py"), site.path("stop"));
    std::fs::write(&program, LONG).expect("written");
    let told = std::thread::scope(|scope| {
        let line = format!("exec python3 -B {} /bivouac/file {}", program.display(), stop.display());
        let (net, site, name) = (&net, &site, &name);
        let load = scope.spawn(move || on_node(&net.names[0], site, name, &line));
        eventually("the load has begun", || site.path("stop.begun").exists() || load.is_finished());
        faults(net, site, name);
        std::fs::write(&stop, "").expect("written");
        load.join().expect("the load").ok()
    });
    let told: Vec<f64> = told.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [count, worst] = told[..] else { panic!("{told:?}") };
    println!("{test}: {count} writes, the longest {worst:.1} s");
    assert!(count > 30.0, "only {count} writes");
    assert!(worst < WORST, "a write took {worst} s");
    all_in_step(&site, &name);
    copies_agree(&site, &name);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn long_writes_go_on_while_copies_in_the_middle_die_and_come_back() {
    // Each time the map changes, too: a copy that knows the newer one refuses what is sent by the older one.
    long_writes("die", |_, site, name| {
        for server in [1, 2, 3, 1] {
            std::thread::sleep(Duration::from_millis(500));
            Site::kill(site.server_pid(name, server), Signal::KILL);
            let state = || site.status(name)["servers"][server as usize]["state"].clone();
            eventually("status shows the dead server", || state() == "down");
            std::thread::sleep(Duration::from_millis(500));
            site.bivouac(["restart", name, &server.to_string()]).ok();
            all_in_step(site, name);
        }
    });
}

#[test]
fn long_writes_go_on_while_copies_in_the_middle_are_stopped() {
    long_writes("stop", |_, site, name| {
        // Some for less than a lease, and for longer than bytes are waited for; one for longer than a lease.
        for (server, pause) in [(1, 100), (2, 1300), (3, 300), (2, 100), (1, 1300), (3, 4000)] {
            std::thread::sleep(Duration::from_millis(300));
            let pid = site.server_pid(name, server);
            Site::stop(pid);
            std::thread::sleep(Duration::from_millis(pause));
            Site::kill(pid, Signal::CONT);
            all_in_step(site, name);
        }
    });
}

#[test]
fn long_writes_go_on_while_two_copies_do_not_reach_each_other() {
    // For so short a time that none of them is left out for that, and for longer.
    long_writes("between", |net, site, name| {
        for (node, other, pause) in [(1, 2, 2000), (2, 3, 8000), (3, 1, 2000)] {
            std::thread::sleep(Duration::from_millis(300));
            for is_cut in [true, false] {
                net.cut_between(node, other, is_cut);
                std::thread::sleep(Duration::from_millis(pause));
            }
            all_in_step(site, name);
        }
    });
}

/// Fills the deployment with files of long writes until there is no room; each has to be there up to where
/// the writes have succeeded. Then makes room, and writes all of one file.
const FULL: &str = r#"
import errno, os, sys
BLOCK, lengths = 512 << 10, []
def content(file, block): return bytes([1 + (file * 7 + block) % 250]) * BLOCK
full = 0
for file in range(8):
    fd, length = os.open(f'/bivouac/f{file}', os.O_RDWR | os.O_CREAT), 0
    for block in range(24):
        try: written = os.pwrite(fd, content(file, block), block * BLOCK)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            full += 1
            break
        length += written
        if written < BLOCK: break
    lengths.append(length)
    os.close(fd)
    if full == 2: break
assert full == 2, full
def check(file):
    with open(f'/bivouac/f{file}', 'rb') as f: found = f.read()
    whole = b''.join(content(file, block) for block in range(24))[:lengths[file]]
    assert found == whole, (file, len(found), lengths[file])
for file in range(len(lengths)): check(file)
for file in range(1, len(lengths)): os.unlink(f'/bivouac/f{file}')
fd = os.open('/bivouac/f0', os.O_RDWR)
lengths[0] = 12 * BLOCK
os.ftruncate(fd, 0)
for block in range(12): assert os.pwrite(fd, content(0, block), block * BLOCK) == BLOCK
check(0)
print('whole')
"#;

#[test]
fn a_full_disk_of_a_copy_in_the_middle_is_enospc_and_copies_stay_the_same() {
    if skipped_without_mount() {
        return;
    }
    own_mounts();
    let site = Site::in_memory("full");
    let storage = site.path("storage");
    std::fs::create_dir(&storage).expect("made");
    let options = ["--replicas", "4", "--heal-after", "never", "--storage"];
    let name = site.up_with(4, &[&options[..], &[&storage.to_string_lossy()]].concat());
    Site::kill(site.server_pid(&name, 2), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][2]["state"] == "down");
    // Its storage moves to a small file system.
    let own = storage.join(format!("bivouac-{name}-2"));
    let _small = Mounted::instead_of(&own, "size=32m,mode=0700");
    site.bivouac(["restart", &name, "2"]).ok();
    all_in_step(&site, &name);
    let program = site.path("full.py");
    std::fs::write(&program, FULL).expect("written");
    assert_eq!(site.sh(&name, &format!("python3 -B {}", program.display())).ok(), "whole\n");
    all_in_step(&site, &name);
    copies_agree(&site, &name);
    // Nothing can be removed that is a mount point.
    site.bivouac(["down", "--keep", &name]).ok();
}
