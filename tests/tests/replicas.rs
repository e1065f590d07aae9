//! Deployments with copies: servers die and come back, and programs do not notice.

use bivouac_tests::{Site, accesses, eventually};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

/// Makes, renames, links, lists, reads and removes small files, which lie in the metadata, until a file says stop.
/// Every operation has to succeed, and everything that was acknowledged has to be there; prints how many operations
/// there were, and how long the longest took.
const LOAD: &str = r#"
import os, sys, time
home, stop, worst, count = sys.argv[1], sys.argv[2], 0, 0
def timed(call, *args):
    global worst, count
    begun = time.monotonic()
    answer = call(*args)
    worst, count = max(worst, time.monotonic() - begun), count + 1
    return answer
def write(path, text):
    with open(path, 'w') as f: f.write(text)
def read(path):
    with open(path) as f: return f.read()
timed(os.mkdir, home)
there, turn = {}, 0
while not os.path.exists(stop):
    turn += 1
    name, directory = f'f{turn}', f'{home}/d{turn % 7}'
    if turn <= 7: timed(os.mkdir, directory)
    timed(write, f'{home}/{name}', name)
    timed(os.rename, f'{home}/{name}', f'{directory}/{name}')
    there[f'{directory}/{name}'] = name
    if turn % 3 == 0:
        timed(os.link, f'{directory}/{name}', f'{home}/link{turn}')
        there[f'{home}/link{turn}'] = name
    if turn % 5 == 0:
        gone = next(iter(there))
        timed(os.unlink, gone)
        del there[gone]
    some = list(there)[turn * 7919 % len(there)]
    assert timed(read, some) == there[some], some
    if turn == 20: open(stop + '.begun', 'w').close()
found = {os.path.join(base, name) for base, _, names in os.walk(home) for name in names}
assert found == set(there), found ^ set(there)
for path, text in there.items(): assert timed(read, path) == text, path
print(count, worst)
"#;

/// Writes, overwrites, extends, truncates and reads files of some blocks, until a file says stop; every operation has to
/// succeed, and every file has to have what was written last. Then it says so, and looks at all again each time that it
/// reads a line.
const BLOCKS: &str = r#"
import os, random, sys, time
home, stop, count, worst = sys.argv[1], sys.argv[2], 0, 0
random.seed(7)
os.mkdir(home)
files = {}
def timed(call, *args):
    global worst, count
    begun = time.monotonic()
    answer = call(*args)
    worst, count = max(worst, time.monotonic() - begun), count + 1
    return answer
def check(name):
    fd = timed(os.open, f'{home}/{name}', os.O_RDONLY)
    found = bytearray()
    while True:
        part = timed(os.pread, fd, 1 << 20, len(found))
        if not part: break
        found += part
    os.close(fd)
    content = files[name]
    if found != content:
        at = next((i for i, (a, b) in enumerate(zip(found, content)) if a != b), min(len(found), len(content)))
        raise AssertionError(f'{name}: {len(found)} of {len(content)} bytes, other from {at} on')
turn = 0
while not os.path.exists(stop):
    turn += 1
    name = f'f{turn % 12}'
    content = files.setdefault(name, bytearray())
    fd = timed(os.open, f'{home}/{name}', os.O_RDWR | os.O_CREAT)
    what = random.random()
    if what < 0.6:
        offset = random.randrange(0, len(content) + 50000)
        data = random.randbytes(random.choice([1, 100, 5000, 70000, 300000]))
        written = 0
        while written < len(data): written += timed(os.pwrite, fd, data[written:], offset + written)
        if len(content) < offset: content += bytes(offset - len(content))
        content[offset:offset + len(data)] = data
    elif what < 0.75:
        size = random.randrange(0, len(content) + 30000)
        timed(os.ftruncate, fd, size)
        content[size:] = bytes(max(0, size - len(content)))
    elif what < 0.85 and len(content) > 10:
        offset, length = random.randrange(0, len(content) - 1), random.randrange(1, 200000)
        end = min(offset + length, len(content))
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        done = timed(libc.fallocate, fd, 3, ctypes.c_long(offset), ctypes.c_long(end - offset))
        if done == 0: content[offset:end] = bytes(end - offset)
    else:
        timed(os.fsync, fd)
    os.close(fd)
    check(random.choice(list(files)))
    if turn == 30: open(stop + '.begun', 'w').close()
for name in files: check(name)
print('written', count, worst, flush=True)
for line in sys.stdin:
    for name in files: check(name)
    print('the same', flush=True)
"#;

/// Waits until no server has anything to catch up with.
fn all_in_step(site: &Site, name: &str) {
    eventually("all servers have caught up", || {
        let status = site.status(name);
        let servers = status["servers"].as_array().expect("servers");
        servers.iter().all(|server| server["state"] == "up" && server["behind"] == 0)
    });
}

#[test]
fn programs_do_not_notice_that_servers_die_and_come_back_while_the_metadata_has_copies() {
    let site = Site::in_memory("failover");
    let program = site.path("load.py");
    std::fs::write(&program, LOAD).expect("written");
    for access in accesses() {
        let name = site.up_with(3, &["--metadata-replicas", "2"]);
        let stop = site.path(&format!("stop-{access}"));
        let told = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let (program, stop) = (program.to_string_lossy(), stop.to_string_lossy());
                let arguments = ["exec", &name, "--access", access, "--", "python3", "-B"];
                let arguments = arguments.into_iter().chain([&*program, "/bivouac/load", &*stop]);
                site.bivouac(arguments.collect::<Vec<_>>()).ok()
            });
            eventually("the load has begun", || site.path(&format!("stop-{access}.begun")).exists());
            for server in [0, 1, 2, 0] {
                Site::kill(site.server_pid(&name, server), Signal::KILL);
                let state = || site.status(&name)["servers"][server as usize]["state"].clone();
                eventually("status shows the dead server", || state() == "down");
                std::thread::sleep(Duration::from_millis(300));
                site.bivouac(["restart", &name, &server.to_string()]).ok();
                all_in_step(&site, &name);
            }
            std::fs::write(&stop, "").expect("written");
            load.join().expect("the load")
        });
        let told: Vec<f64> = told.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [count, worst] = told[..] else { panic!("{told:?}") };
        assert!(count > 200.0, "{access}: only {count} operations");
        // Two seconds until it is certain that the server is dead, and a busy machine.
        assert!(worst < 10.0, "{access}: an operation took {worst} s");
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn every_copy_of_every_block_is_the_same_while_servers_die_and_come_back() {
    let site = Site::in_memory("blocks");
    let program = site.path("blocks.py");
    std::fs::write(&program, BLOCKS).expect("written");
    for (servers, replicas) in [(3, "2"), (4, "3")] {
        let name = site.up_with(servers, &["--replicas", replicas, "--block-size", "64K"]);
        let stop = site.path(&format!("stop-{replicas}"));
        let mut command = site.command(["exec", &name, "--", "python3", "-B"]);
        command.arg(&program).arg("/bivouac/load").arg(&stop).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut load = command.spawn().expect("starts");
        let mut says = BufReader::new(load.stdout.take().expect("a pipe")).lines();
        let mut told = load.stdin.take().expect("a pipe");
        let mut say = || says.next().expect("it has not ended").expect("a line");
        eventually("the load has begun", || site.path(&format!("stop-{replicas}.begun")).exists());
        let state = |server: usize| site.status(&name)["servers"][server]["state"].clone();
        let kill = |server: usize| {
            Site::kill(site.server_pid(&name, server as u64), Signal::KILL);
            eventually("status shows the dead server", || state(server) == "down");
        };
        let restart = |server: usize| {
            site.bivouac(["restart", &name, &server.to_string()]).ok();
            all_in_step(&site, &name);
        };
        for server in [0, 1, 2, 0] {
            kill(server);
            std::thread::sleep(Duration::from_millis(300));
            restart(server);
        }
        std::fs::write(&stop, "").expect("written");
        let written = say();
        let told_worst: f64 = written.split_whitespace().nth(2).and_then(|w| w.parse().ok()).expect(&written);
        assert!(told_worst < 10.0, "an operation took {told_worst} s");
        // Each server is away once: then others show their copies of what it holds.
        for server in 0..servers {
            kill(server);
            writeln!(told, "look").expect("told");
            assert_eq!(say(), "the same", "without server {server}");
            restart(server);
        }
        drop(told);
        assert!(load.wait().expect("ends").success());
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn locks_and_files_without_names_are_kept_over_a_failover() {
    let site = Site::in_memory("failover-state");
    let script = r#"
import errno, fcntl, os, sys, time
f = os.open('/bivouac/file', os.O_RDWR | os.O_CREAT)
os.write(f, b'content')
fcntl.lockf(f, fcntl.LOCK_EX)
os.rename('/bivouac/file', '/bivouac/gone')
os.unlink('/bivouac/gone')
g = os.open('/bivouac/kept', os.O_RDWR | os.O_CREAT)
fcntl.lockf(g, fcntl.LOCK_EX)
open(sys.argv[1] + '/holds', 'w').close()
while not os.path.exists(sys.argv[1] + '/killed'): time.sleep(0.01)
assert os.fstat(f).st_nlink == 0 and os.pread(f, 100, 0) == b'content'
pid = os.fork()
if pid == 0:
    h = os.open('/bivouac/kept', os.O_RDWR)
    try: fcntl.lockf(h, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e: os._exit(0 if e.errno in (errno.EAGAIN, errno.EACCES) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0, 'the lock is another one\'s'
os.write(g, b'more')
print('kept')
"#;
    let program = site.path("holder.py");
    std::fs::write(&program, script).expect("written");
    for victim in 0..3 {
        let name = site.up_with(3, &["--metadata-replicas", "2"]);
        let mark = |what: &str| site.path(what);
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                site.sh(&name, &format!("python3 -B {} {}", program.display(), site.path("").display())).ok()
            });
            eventually("it holds locks", || mark("holds").exists());
            Site::kill(site.server_pid(&name, victim), Signal::KILL);
            let state = || site.status(&name)["servers"][victim as usize]["state"].clone();
            eventually("status shows the dead server", || state() == "down");
            std::fs::write(mark("killed"), "").expect("written");
            assert_eq!(holder.join().expect("the holder"), "kept\n");
        });
        // Its process has ended, and with it its locks, whoever knows of them now.
        let after = "flock -w 20 /bivouac/kept true && python3 -c \"import fcntl; f = open('/bivouac/kept', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX)\" && cat /bivouac/kept";
        assert_eq!(site.sh(&name, after).ok(), "more");
        site.bivouac(["down", &name]).ok();
        for what in ["holds", "killed"] {
            std::fs::remove_file(mark(what)).expect("removed");
        }
    }
}

#[test]
fn all_servers_may_die_and_come_back_with_what_was_acknowledged() {
    let site = Site::in_memory("all-die");
    let name = site.up_with(3, &["--metadata-replicas", "3"]);
    site.sh(&name, "cd /bivouac && mkdir d && for i in $(seq 50); do echo $i > d/f$i; done").ok();
    site.daemons(&name).iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
    site.bivouac(["up", &name]).ok();
    let said = site.sh(&name, "cd /bivouac/d && ls | wc -l && cat f50 && echo new > f51 && cat f51").ok();
    assert_eq!(said, "50\n50\nnew\n");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn copies_that_cannot_be_are_refused_and_the_error_says_what_can() {
    let site = Site::new("copies-refused");
    let up = |options: &[&str]| {
        let name = site.name("x");
        site.bivouac(["up", &name, "--servers", "2"].iter().chain(options))
    };
    up(&["--metadata-replicas", "3"])
        .fails(65, &["3 copies need as many servers, and there are 2", "--servers"]);
    up(&["--metadata-replicas", "9"]).fails(2, &["--metadata-replicas", "1..=8"]);
    assert!(site.deployments().is_empty(), "nothing is left of what was refused");
}

#[test]
fn a_file_has_as_many_copies_as_its_directory_says_and_no_more_than_the_metadata() {
    let site = Site::in_memory("replicas-layout");
    let name = site.up_with(4, &["--metadata-replicas", "3"]);
    let layout = |args: &[&str]| site.bivouac(["layout", "-d", &name].iter().chain(args));
    site.sh(&name, "mkdir /bivouac/two /bivouac/three").ok();
    layout(&["--replicas", "2", "/two"]).ok();
    layout(&["--replicas", "3", "/three"]).ok();
    layout(&["--replicas", "4", "/two"]).fails(65, &["replicas=4", "--metadata-replicas"]);
    let write = "for d in . two three; do head -c 4M /dev/urandom > /bivouac/$d/f; done; du -sb --apparent-size /bivouac/f";
    site.sh(&name, write).ok();
    for (path, copies) in [("/f", 1), ("/two/f", 2), ("/three/f", 3)] {
        let shown = layout(&[path]).ok();
        assert_eq!(shown.contains(&format!("replicas={copies}")), copies > 1, "{shown}");
    }
    let stored = |server: &serde_json::Value| server["stored"].as_u64().expect("a number");
    let sum = || site.status(&name)["servers"].as_array().expect("servers").iter().map(stored).sum::<u64>();
    assert_eq!(sum(), (1 + 2 + 3) * (4 << 20));
    // What is there once is what a program is told, however often it is stored.
    let disk = site.sh(&name, "du -sk /bivouac/three | cut -f1").ok();
    assert_eq!(disk.trim(), "4096");
    Site::kill(site.server_pid(&name, 2), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][2]["state"] == "down");
    site.sh(&name, "cat /bivouac/two/f /bivouac/three/f > /dev/null && rm -r /bivouac/two /bivouac/three")
        .ok();
    assert_ne!(
        site.sh(&name, "cat /bivouac/f > /dev/null").code,
        0,
        "one copy is there only while its servers are"
    );
    site.bivouac(["restart", &name, "2"]).ok();
    all_in_step(&site, &name);
    site.sh(&name, "cat /bivouac/f > /dev/null").ok();
    eventually("what was removed meanwhile is gone from the server that was away", || sum() == 4 << 20);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_a_server_has_missed_it_gets_with_its_times_and_holes() {
    let site = Site::in_memory("missed");
    let name = site.up_with(2, &["--replicas", "2", "--block-size", "64K"]);
    let file = "/bivouac/f";
    site.sh(&name, &format!("head -c 1000000 /dev/urandom > {file}; cp {file} {file}2; cp {file} {file}3"))
        .ok();
    Site::kill(site.server_pid(&name, 0), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][0]["state"] == "down");
    // A hole, a file that ends in one, one that is shorter, and a new one.
    let change = "cd /bivouac && fallocate -p -o 65536 -l 400000 f && truncate -s 200000 f2 && truncate -s 900000 f2 && \
         truncate -s 3 f3 && head -c 300000 /dev/urandom > new";
    site.sh(&name, change).ok();
    let look = "cd /bivouac && stat -c '%n %s %Y' * && md5sum * && du -k f f2 f3 new";
    let before = site.sh(&name, look).ok();
    std::thread::sleep(Duration::from_millis(1100));
    site.bivouac(["restart", &name, "0"]).ok();
    all_in_step(&site, &name);
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    eventually("status shows the dead server", || site.status(&name)["servers"][1]["state"] == "down");
    assert_eq!(site.sh(&name, look).ok(), before);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_server_is_restarted_on_request_with_what_it_has() {
    let site = Site::in_memory("restart");
    let name = site.up(2);
    let make = "head -c 3000000 /dev/urandom > /bivouac/large; md5sum /bivouac/large | cut -c1-32";
    let before = site.sh(&name, make).ok();
    for (number, dies) in [(0, false), (1, true)] {
        let pid = site.server_pid(&name, number);
        if dies {
            Site::kill(pid, Signal::KILL);
        }
        assert_eq!(
            site.bivouac(["restart", &name, &number.to_string()]).ok(),
            format!("server {number} of {name} is back\n")
        );
        assert_ne!(site.server_pid(&name, number), pid);
        assert_eq!(site.sh(&name, "md5sum /bivouac/large | cut -c1-32").ok(), before);
    }
    site.bivouac(["restart", &name, "7"]).fails(65, &["no server 7", "2 servers"]);
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["restart", &name, "0"]).fails(65, &["does not run", "bivouac up"]);
    site.bivouac(["down", &name]).ok();
    site.bivouac(["restart", &name, "0"]).fails(64, &[&name]);
}
