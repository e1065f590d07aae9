//! Servers that die in the middle of a write, hang and come back, or take the controller along.

use bivouac_layout::map::{Node, Server};
use bivouac_layout::{Founding, Ino, NodeId, ServerId, ServerState};
use bivouac_tests::{HANG, Site, eventually};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Reads 40 files and prints how many could be read and how many failed with EIO. Anything else is told.
const READ_ALL: &str = r#"ok=0; io=0; for i in $(seq 1 40); do
if out=$(cat /bivouac/d$i/f 2>&1); then [ "$out" = "content $i" ] && ok=$((ok + 1)) || echo "wrong: $out"
else case $out in *'Input/output error'*) io=$((io + 1));; *) echo "other: $out";; esac; fi; done; echo $ok $io"#;

fn with_files(site: &Site) -> String {
    let name = site.up(4);
    site.sh(&name, "for i in $(seq 1 40); do mkdir /bivouac/d$i; echo content $i > /bivouac/d$i/f; done")
        .ok();
    assert_eq!(site.sh(&name, READ_ALL).ok(), "40 0\n");
    name
}

fn server_is(site: &Site, name: &str, server: usize, state: &str) -> bool {
    site.status(name)["servers"][server]["state"] == state
}

/// A server that does not hold the root directory, without which no path can be walked.
fn dispensable(site: &Site, name: &str) -> usize {
    let address = "127.0.0.1:1".parse().expect("an address");
    let nodes = vec![Node { id: NodeId(0), host: "here".into(), agent: address, domain: 0 }];
    let count = site.status(name)["servers"].as_array().expect("servers").len() as u16;
    let server = |id| Server {
        id: ServerId(id),
        node: NodeId(0),
        address,
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    };
    let map = Founding::new(1, "/bivouac", nodes, (0..count).map(server).collect()).map().expect("a map");
    let root = map.primary(Ino::ROOT.shard());
    // Every deployment of so many servers begins with the same shards.
    if root == ServerId(1) { 2 } else { 1 }
}

#[test]
fn a_writer_at_work_when_a_server_dies_gets_eio_and_no_signal() {
    let site = Site::new("midst");
    let name = site.up(4);
    let script = "import errno, time
f = open('/bivouac/big', 'wb', buffering=0)
print('ready', flush=True)
end = time.time() + 60
try:
    n = 0
    while time.time() < end:
        # A new file now and then: what is open already may stay writable on the server's own node.
        n += 1
        g = open(f'/bivouac/g{n % 50}', 'wb', buffering=0)
        for h in (f, g):
            h.seek(0)
            for _ in range(8):
                h.write(b'x' * 524288)
        g.close()
    print('never failed')
except OSError as e:
    print(errno.errorcode[e.errno], flush=True)
";
    let mut child = site
        .command(["exec", &name, "--", "python3", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("reads");
    assert_eq!(line, "ready\n");
    std::thread::sleep(Duration::from_millis(200));
    Site::kill(site.server_pid(&name, dispensable(&site, &name) as u64), Signal::KILL);
    let killed = Instant::now();
    line.clear();
    out.read_to_string(&mut line).expect("reads");
    assert_eq!((line.as_str(), child.wait().expect("ends").code()), ("EIO\n", Some(0)));
    assert!(killed.elapsed() < HANG / 2, "{:?}", killed.elapsed());
}

#[test]
fn a_server_that_hangs_is_down_and_comes_back_with_its_files() {
    let site = Site::new("hang");
    let name = with_files(&site);
    let victim = dispensable(&site, &name);
    let pid = site.server_pid(&name, victim as u64);
    // A program that knows the way into every directory, and goes there by the old names once the server is
    // back.
    let knows = r#"
import fcntl, os, time
paths = [f'{k}/m{i}/in' for k in range(8) for i in range(8)]
for p in paths: os.makedirs(f'/bivouac/old{p}'); open(f'/bivouac/old{p}/f', 'w').close()
for p in paths: os.stat(f'/bivouac/old{p}/f')
# One that holds locks and files without names, and dies while the server is away.
pid = os.fork()
if pid == 0:
    held = [open(f'/bivouac/old{p}/f', 'r+') for p in paths]
    for f in held: fcntl.lockf(f, fcntl.LOCK_EX)
    nameless = [os.open(f'/bivouac/old{p}', os.O_TMPFILE | os.O_RDWR) for p in paths]
    open('/bivouac-ready', 'w').close()
    time.sleep(100)
while not os.path.exists('/bivouac-ready'): time.sleep(0.01)
print('ready', flush=True)
input()
os.kill(pid, 9); os.waitpid(pid, 0)
print('killed', flush=True)
input()
moved = [p for p in paths if os.path.exists(f'/bivouac/new{p}')]
assert len(moved) > 8, moved
reached = []
for p in moved:
    for call in (lambda p: os.stat(p + '/f'), os.listdir, lambda p: open(p + '/new', 'w').close(), lambda p: os.mkdir(p + '/d')):
        try: call(f'/bivouac/old{p}'); reached.append(p)
        except FileNotFoundError: pass
print('reached', reached, flush=True)
end = time.time() + 60
locked = set(moved)
while locked and time.time() < end:
    for p in list(locked):
        try:
            with open(f'/bivouac/new{p}/f', 'r+') as f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.remove(p)
        except BlockingIOError: pass
    time.sleep(0.05)
print('locked', sorted(locked), flush=True)
"#;
    let knows = knows.replace("/bivouac-ready", &site.path("ready").to_string_lossy());
    std::fs::write(site.path("knows.py"), knows).expect("written");
    let mut program = site.command(["exec", &name, "--", "python3", "-B"]);
    let program = program.arg(site.path("knows.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("started");
    let mut input = program.stdin.take().expect("a pipe");
    let mut said = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    let mut says = || said.next().expect("it goes on").expect("text");
    assert_eq!(says(), "ready");
    let stopped = Instant::now();
    Site::stop(pid);
    eventually("shown as down", || server_is(&site, &name, victim, "down"));
    // Its process is there, and its machine answers for it: it may just be waiting for a processor.
    assert!(stopped.elapsed() > Duration::from_secs(8), "{:?}", stopped.elapsed());
    let start = Instant::now();
    let read = site.sh(&name, READ_ALL).ok();
    assert!(!read.starts_with("40") && read.lines().count() == 1, "{read}");
    assert!(start.elapsed() < HANG / 2, "{:?}", start.elapsed());
    // Those whose own inodes are at the server stay where they are.
    site.sh(&name, "cd /bivouac || exit 1; for k in $(seq 0 7); do mv old$k new$k; done 2> /dev/null; true")
        .ok();
    input.write_all(b"\n").expect("told");
    assert_eq!(says(), "killed");
    Site::kill(pid, Signal::CONT);
    eventually("up again", || server_is(&site, &name, victim, "up"));
    input.write_all(b"\n").expect("told");
    assert_eq!(says(), "reached []", "old paths lead nowhere");
    assert_eq!(says(), "locked []", "locks of the dead are gone");
    assert!(program.wait().expect("it ends").success());
    eventually("nothing is open", || site.total(&name, "opens") == 0);
    eventually("all files are back", || site.sh(&name, READ_ALL).ok() == "40 0\n");
}

#[test]
fn nothing_hangs_when_the_controller_is_gone() {
    let site = Site::new("headless");
    let name = with_files(&site);
    // The first daemon is the controller, and this machine's agent.
    Site::kill(site.daemons(&name)[0].1, Signal::KILL);
    let status = site.status(&name);
    assert_eq!(status["state"], "degraded");
    assert!(status["problem"].as_str().expect("said").contains("controller"));
    site.bivouac(["exec", &name, "--", "true"]).fails(64, &["died"]);
    let start = Instant::now();
    site.bivouac(["down", &name]).ok();
    assert!(start.elapsed() < HANG / 2, "{:?}", start.elapsed());
    site.assert_nothing_left(&name, &[]);
}
