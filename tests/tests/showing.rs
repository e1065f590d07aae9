//! Copies are read on every node, and nobody sees what is new there, and afterwards what was there before.

use bivouac_tests::load::{all_in_step, copies_agree};
use bivouac_tests::{Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::time::Duration;

/// Files are written as a whole with numbers that rise, and truncated in between; programs on all nodes read them. A file
/// that is empty has the odd numbers. A write is no single moment, so what counts is what a reader finds at certain
/// places, one in each block. Each process notes in memory that all of them share what it has seen there last, or
/// written: who begins to read later must not see less.
const PROGRAM: &str = r#"
import mmap, os, random, struct, sys, time
role, me, count, shared, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
FILES, PLACES, LENGTH = 12, [8, 96 * 1024 - 8], 96 << 10
fd = os.open(shared, os.O_RDWR)
seen = mmap.mmap(fd, 8 * 2 * FILES * count)
def slot(who, file, place): return 8 * ((who * FILES + file) * 2 + place)
def floor(file, place): return max(struct.unpack_from('<Q', seen, slot(who, file, place))[0] for who in range(count))
def note(file, place, number):
    at = slot(me, file, place)
    if struct.unpack_from('<Q', seen, at)[0] < number: struct.pack_into('<Q', seen, at, number)
path = lambda file: f'/bivouac/f{file}'
random.seed(me)
rounds = 0
if role == 'write':
    fds = [os.open(path(file), os.O_RDWR | os.O_CREAT) for file in range(FILES)]
    last = [1] * FILES
    open(stop + '.begun', 'w').close()
    while not os.path.exists(stop):
        file = random.randrange(FILES)
        if random.random() < .15:
            if last[file] % 2: continue
            os.ftruncate(fds[file], 0)
            last[file] += 1
        else:
            last[file] += 1 + (last[file] + 1) % 2
            assert os.pwrite(fds[file], struct.pack('<Q', last[file]) * (LENGTH // 8), 0) == LENGTH
        for place in range(2): note(file, place, last[file])
        rounds += 1
        if random.random() < .3: time.sleep(random.random() * .01)
else:
    while not os.path.exists(stop + '.begun'): time.sleep(.05)
    fds = [os.open(path(file), os.O_RDONLY) for file in range(FILES)]
    while not os.path.exists(stop):
        file, place = random.randrange(FILES), random.randrange(2)
        length = random.choice([8, 4096, 40000, LENGTH])
        at = min(max(0, PLACES[place] - random.randrange(0, length, 8)), LENGTH - length)
        least = floor(file, place)
        found = os.pread(fds[file], length, at)
        here = found[PLACES[place] - at:][:8]
        now = struct.unpack('<Q', here)[0] if len(here) == 8 else 0
        # A hole, or nothing: the file was truncated, and perhaps is being written.
        if now == 0: now = least | 1
        if now < least: sys.exit(f'process {me} read {now} in file {file} at {PLACES[place]} after {least} had been seen')
        note(file, place, now)
        rounds += 1
print(rounds)
"#;

/// The program on three nodes, while `faults` happen.
fn all_see_the_same(test: &str, replicas: &str, faults: impl Fn(&Network, &Site, &str)) {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::in_memory(test);
    let options = ["--block-size", "64K", "--heal-after", "never", "--replicas", replicas];
    let name = net.deploy(&site, &options);
    let (program, shared, stop) = (site.path("program.py"), site.path("seen"), site.path("stop"));
    std::fs::write(&program, PROGRAM).expect("written");
    // Who writes, and on which node; the others read.
    let processes = [("write", 0), ("read", 0), ("read", 1), ("read", 1), ("read", 2)];
    std::fs::write(&shared, vec![0; 8 * 2 * 12 * processes.len()]).expect("written");
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let start = |(number, (role, node)): (usize, &(&str, usize))| {
            let (net, site, name) = (&net, &site, &name);
            let arguments =
                format!("{role} {number} {} {} {}", processes.len(), shared.display(), stop.display());
            let line = format!("exec python3 -B {} {arguments}", program.display());
            let node = net.names[*node].clone();
            scope.spawn(move || on_node(&node, site, name, &line))
        };
        let loads: Vec<_> = processes.iter().enumerate().map(start).collect();
        eventually("the load has begun", || site.path("stop.begun").exists());
        faults(&net, &site, &name);
        std::fs::write(&stop, "").expect("written");
        loads
            .into_iter()
            .map(|load| load.join().expect("ends").ok().trim().parse().expect("a number"))
            .collect()
    });
    assert!(rounds.iter().all(|rounds| *rounds > 50), "{rounds:?}");
    copies_agree(&site, &name);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn nobody_reads_what_is_old_from_another_copy() {
    all_see_the_same("two", "2", |_, _, _| std::thread::sleep(Duration::from_secs(4)));
    // A change that one holder has made waits for another one that hangs.
    all_see_the_same("three", "3", |_, site, name| {
        for server in [0, 1, 2, 2, 1, 0, 1, 2] {
            let pid = site.server_pid(name, server);
            Site::stop(pid);
            std::thread::sleep(Duration::from_millis(300));
            Site::kill(pid, Signal::CONT);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

#[test]
fn nobody_reads_what_is_old_while_servers_die_and_hang_and_come_back() {
    all_see_the_same("faults", "2", |_, site, name| {
        for server in [0, 1, 2] {
            std::thread::sleep(Duration::from_secs(1));
            Site::kill(site.server_pid(name, server), Signal::KILL);
            let state = || site.status(name)["servers"][server as usize]["state"].clone();
            eventually("status shows the dead server", || state() == "down");
            std::thread::sleep(Duration::from_secs(1));
            site.bivouac(["restart", name, &server.to_string()]).ok();
            all_in_step(site, name);
        }
        for server in [1, 2] {
            let pid = site.server_pid(name, server);
            Site::stop(pid);
            std::thread::sleep(Duration::from_secs(4));
            Site::kill(pid, Signal::CONT);
            all_in_step(site, name);
        }
    });
}

#[test]
fn the_primary_dies_after_one_copy_has_a_write_and_before_another_one() {
    all_see_the_same("between", "3", |_, site, name| {
        // A change goes to the first and the second, and waits for the third. Who hangs for long is replaced, too, and ends
        // what it had begun when others have.
        for (dies, hangs, millis) in [(0, 2, 500), (1, 0, 500), (2, 1, 3000), (0, 1, 3000), (1, 2, 3000)] {
            let pid = site.server_pid(name, hangs);
            Site::stop(pid);
            std::thread::sleep(Duration::from_millis(500));
            Site::kill(site.server_pid(name, dies), Signal::KILL);
            std::thread::sleep(Duration::from_millis(millis));
            Site::kill(pid, Signal::CONT);
            let state = || site.status(name)["servers"][dies as usize]["state"].clone();
            eventually("status shows the dead server", || state() == "down");
            std::thread::sleep(Duration::from_secs(1));
            site.bivouac(["restart", name, &dies.to_string()]).ok();
            all_in_step(site, name);
        }
    });
}

/// A file becomes longer and longer; who reads where it ends finds what was written there.
const LONGER: &str = r#"
import os, sys, time
role, stop = sys.argv[1:3]
if role == 'write':
    fd = os.open('/bivouac/long', os.O_WRONLY | os.O_CREAT)
    for number in range(40):
        assert os.pwrite(fd, b'x' * 65536, number * 65536) == 65536
    open(stop, 'w').close()
else:
    while not os.path.exists('/bivouac/long'): time.sleep(.01)
    fd, sizes = os.open('/bivouac/long', os.O_RDONLY), set()
    while not os.path.exists(stop):
        size = os.fstat(fd).st_size
        if size == 0: continue
        found = os.pread(fd, 4096, size - 4096)
        assert found == b'x' * 4096, f'{len(found)} bytes, {found.count(0)} of them zeros, before the end at {size}'
        sizes.add(size)
    print(len(sizes))
"#;

#[test]
fn the_size_counts_only_what_all_copies_have() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::in_memory("longer");
    let name = net.deploy(&site, &["--block-size", "64K", "--replicas", "3"]);
    // For a tenth of a second one copy has a block and another one does not have it.
    net.slow_down(2, "5mbit");
    let (program, stop) = (site.path("program.py"), site.path("stop"));
    std::fs::write(&program, LONGER).expect("written");
    let run = |role: &str, node: usize| {
        let line = format!("exec python3 -B {} {role} {}", program.display(), stop.display());
        on_node(&net.names[node], &site, &name, &line).ok()
    };
    let sizes = std::thread::scope(|scope| {
        let writer = scope.spawn(|| run("write", 0));
        let run = &run;
        let readers = [0, 1].map(|node| scope.spawn(move || run("read", node)));
        writer.join().expect("ends");
        readers.map(|reader| reader.join().expect("ends").trim().parse::<usize>().expect("a number"))
    });
    assert!(sizes.iter().all(|sizes| *sizes > 10), "{sizes:?}");
    site.bivouac(["down", &name]).ok();
}

/// Bytes that processes of its node have read directly from a server.
fn direct(site: &Site, name: &str, server: usize) -> u64 {
    site.status(name)["servers"][server]["direct_bytes_read"].as_u64().expect("a number")
}

#[test]
fn a_copy_on_the_programs_own_node_is_read_there_directly() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(2);
    let site = Site::in_memory("direct");
    let name = net.deploy(&site, &["--replicas", "2"]);
    const SIZE: u64 = 8 << 20;
    on_node(
        &net.names[0],
        &site,
        &name,
        "head -c 8M /dev/urandom > /bivouac/f; md5sum < /bivouac/f > /bivouac/sum",
    )
    .ok();
    for node in [0, 1] {
        let before = direct(&site, &name, node);
        let read = "cat /bivouac/f > /dev/null; [ \"$(md5sum < /bivouac/f)\" = \"$(cat /bivouac/sum)\" ]";
        on_node(&net.names[node], &site, &name, read).ok();
        let read = direct(&site, &name, node) - before;
        // The first accesses find the marks of the last writes.
        assert!(read >= 2 * SIZE - (4 << 20), "node {node} has read {read} bytes directly");
    }
    // A program that lives on reads its copy directly again when the server has come back.
    let (go, done) = (site.path("go"), site.path("done"));
    let program = format!(
        "exec 3< /bivouac/f; cat <&3 | md5sum > /dev/null; while [ ! -e {go} ]; do sleep 0.1; done
        exec 3< /bivouac/f; [ \"$(cat <&3 | md5sum)\" = \"$(cat /bivouac/sum)\" ]; echo $? > {done}",
        go = go.display(),
        done = done.display()
    );
    std::thread::scope(|scope| {
        let load = scope.spawn(|| on_node(&net.names[1], &site, &name, &program));
        std::thread::sleep(Duration::from_secs(1));
        Site::kill(site.server_pid(&name, 1), Signal::KILL);
        let state = || site.status(&name)["servers"][1]["state"].clone();
        eventually("status shows the dead server", || state() == "down");
        on_node(
            &net.names[0],
            &site,
            &name,
            "head -c 8M /dev/urandom > /bivouac/f; md5sum < /bivouac/f > /bivouac/sum",
        )
        .ok();
        site.bivouac(["restart", &name, "1"]).ok();
        all_in_step(&site, &name);
        let before = direct(&site, &name, 1);
        std::fs::write(&go, "").expect("written");
        load.join().expect("ends").ok();
        assert_eq!(std::fs::read_to_string(&done).expect("there").trim(), "0");
        let read = direct(&site, &name, 1) - before;
        assert!(read >= SIZE - (4 << 20), "{read} bytes were read directly");
    });
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_was_written_a_moment_ago_is_read_directly_soon() {
    let site = Site::in_memory("soon");
    // All servers are on one node: each is the primary of some blocks, and has copies of others.
    let name = site.up_with(2, &["--replicas", "2"]);
    site.sh(&name, "head -c 8M /dev/urandom > /bivouac/f").ok();
    let all = || direct(&site, &name, 0) + direct(&site, &name, 1);
    eventually("all of it is read directly", || {
        let before = all();
        site.sh(&name, "cat /bivouac/f > /dev/null").ok();
        all() - before == 8 << 20
    });
    site.bivouac(["down", &name]).ok();
}
