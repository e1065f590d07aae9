//! Others on the same machine, and what they may have put where we look: neither keeps a deployment from
//! working.

use bivouac_tests::{
    Finished, HANG, Site, bivouac, eventually, finish, is_quick, run_dir, skipped_without_root,
};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The abstract sockets of a deployment that are in use on this machine.
fn sockets(name: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").expect("reads");
    let within = format!("/{name}/");
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_once(" @").map(|(_, name)| name.to_owned()))
        .filter(|socket| socket.starts_with("bivouac/") && socket.contains(&within))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// A Python script of another user, which says a line when it is ready and is ended with this value.
struct Stranger(Child);

impl Stranger {
    fn new(script: &str, arguments: &[String]) -> Stranger {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1001", "--regid=1001", "--clear-groups", "python3", "-B", "-c", script]);
        let mut child = command
            .args(arguments)
            .env("PATH", "/usr/bin:/bin")
            .current_dir("/")
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let mut line = String::new();
        let said = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        assert!(said.is_ok_and(|n| n > 0), "the stranger's script failed");
        Stranger(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn thousands_of_a_strangers_connections_keep_neither_writes_nor_new_programs_out() {
    if skipped_without_root("being another user") {
        return;
    }
    let site = Site::new("crowd");
    let name = site.name("d");
    // So few descriptors as old systems allow.
    let mut up = Command::new("prlimit");
    up.arg("--nofile=1024:1024").arg(bivouac()).args(["up", &name, "--servers", "1"]);
    up.env("BIVOUAC_HOME", site.home());
    finish(up).ok();
    let status = site.status(&name);
    let address = status["servers"][0]["address"].as_str().expect("an address").to_owned();
    let script = "
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
host, port = sys.argv[1].rsplit(':', 1)
kept = []
for i in range(1500):
    for make in [lambda: socket.create_connection((host, int(port)), 5)] + [lambda n=n: (lambda s: (s.setblocking(False), s.connect(chr(0) + n), s)[2])(socket.socket(socket.AF_UNIX)) for n in sys.argv[2:]]:
        try: kept.append(make())
        except OSError: pass
print(len(kept), flush=True)
time.sleep(600)";
    let names = sockets(&name);
    assert_eq!(names.len(), 2, "{names:?}");
    let _crowd = Stranger::new(script, &[vec![address], names].concat());
    for round in 0..3 {
        let script = format!(
            "cd /bivouac || exit 1; for i in $(seq 50); do dd if=/dev/zero of=f{round}-$i bs=20000 count=1 status=none || exit 1; done; ls | wc -l"
        );
        assert_eq!(site.sh(&name, &script).ok(), format!("{}\n", 50 * (round + 1)));
    }
    assert_eq!(site.status(&name)["state"], "running");
}

/// A deployment's owner who is neither root nor anybody whose directories other tests use.
fn as_owner(site: &Site, args: &[&str]) -> Finished {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1002", "--regid=1002", "--clear-groups"]).arg(bivouac()).args(args);
    command.env("BIVOUAC_HOME", site.home()).current_dir("/");
    finish(command)
}

#[test]
fn a_directory_that_a_stranger_has_taken_is_passed_over() {
    if skipped_without_root("being another user") {
        return;
    }
    let site = Site::new("squat");
    std::os::unix::fs::chown(site.path(""), Some(1002), Some(1002)).expect("root may");
    let base = Path::new("/dev/shm/bivouac-1002");
    std::fs::create_dir(base).expect("nobody else uses it");
    std::os::unix::fs::chown(base, Some(1003), Some(1003)).expect("root may");
    let name = site.name("d");
    let up = as_owner(&site, &["up", &name, "--servers", "2"]);
    let script = "echo here > /bivouac/f; cat /bivouac/f; sh -c 'cat /bivouac/f'";
    let seen = as_owner(&site, &["exec", &name, "--", "sh", "-c", script]);
    // The environment of another node, where the directory has its usual name.
    let moved = "BIVOUAC_KEY=/dev/shm/bivouac-1002/none/key cat /bivouac/f";
    let elsewhere = as_owner(&site, &["exec", &name, "--", "sh", "-c", moved]);
    let kept = as_owner(&site, &["down", &name, "--keep"]);
    let back = as_owner(&site, &["up", &name]);
    let again = as_owner(&site, &["exec", &name, "--", "cat", "/bivouac/f"]);
    let down = as_owner(&site, &["down", &name]);
    let left: Vec<_> =
        std::fs::read_dir("/dev/shm").expect("reads").flatten().map(|e| e.file_name()).collect();
    std::fs::remove_dir(base).expect("is empty");
    up.ok();
    assert_eq!(seen.ok(), "here\nhere\n");
    assert_eq!(elsewhere.ok(), "here\n");
    kept.ok();
    back.ok();
    assert_eq!(again.ok(), "here\n");
    down.ok();
    let left = left.iter().filter(|name| name.to_string_lossy().starts_with("bivouac-1002.")).count();
    assert_eq!(left, 0, "directories are left in /dev/shm");
}

#[test]
fn a_stranger_on_a_dead_daemons_socket_is_not_taken_for_it_and_does_not_keep_it_from_coming_back() {
    if skipped_without_root("being another user") {
        return;
    }
    let site = Site::new("names");
    let name = site.up(1);
    site.sh(&name, "echo here > /bivouac/f").ok();
    let (names, pids) = (sockets(&name), site.daemons(&name));
    for (_, pid) in &pids {
        Site::kill(*pid, Signal::KILL);
    }
    eventually("the names are free", || sockets(&name).is_empty());
    let script = "
import socket, sys, time
kept = []
for n in sys.argv[1:]:
    s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + n); s.listen(0); kept.append(s)
print('ready', flush=True)
while True: time.sleep(1)";
    let _squatter = Stranger::new(script, &names);
    let status = site.status(&name);
    assert_eq!(status["state"], "crashed", "{status}");
    assert_ne!(site.sh(&name, "true").code, 0);
    site.bivouac(["up", &name]).ok();
    // No wait for an answer of the stranger's, which takes five seconds.
    assert!(is_quick(Duration::from_secs(4), || {
        let begun = Instant::now();
        assert_eq!(site.sh(&name, "cat /bivouac/f").ok(), "here\n");
        begun.elapsed()
    }));
    assert_eq!(site.status(&name)["state"], "running");
}

#[test]
fn a_fifo_where_a_file_should_be_is_not_waited_for() {
    let site = Site::new("fifo");
    let name = site.up(1);
    let fifo = site.path("fifo");
    finish({
        let mut make = Command::new("mkfifo");
        make.arg(&fifo);
        make
    })
    .ok();
    let fifo = fifo.to_str().expect("plain");
    let begun = Instant::now();
    let refused = site.sh(&name, &format!("BIVOUAC_KEY={fifo} cat /bivouac/f; echo $?"));
    // What is asked for by the key's path alone cannot be had; the deployment's own key is found by its name.
    assert!(!refused.out.is_empty(), "{refused:?}");
    let unknown = format!("BIVOUAC_DEPLOYMENT=none BIVOUAC_KEY={fifo} cat /bivouac/f");
    assert_ne!(site.sh(&name, &unknown).code, 0);
    site.bivouac(["up", "never", "--hosts", fifo]).fails(65, &["names no host"]);
    assert_ne!(site.bivouac(["exec", &name, "--", fifo]).code, 0);
    assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
    // A shell's list of hosts is one that somebody writes to, only later.
    let command = format!(
        "{} up {name}-h --hosts <(sleep 1; echo localhost) && {} down {name}-h",
        bivouac().display(),
        bivouac().display()
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &command]).env("BIVOUAC_HOME", site.home());
    finish(shell).ok();
}

#[test]
fn no_daemon_outlives_a_run_that_was_killed_after_its_controller() {
    let site = Site::new("deserted");
    let name = site.name("r");
    let started = site.path("started");
    let script = format!("echo $$ > {}; exec sleep 200", started.display());
    let mut run = site.command(["run", "--name", &name, "--servers", "3", "--", "sh", "-c", &script]);
    let mut run = run.stderr(Stdio::null()).spawn().expect("starts");
    eventually("the command runs", || {
        std::fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n'))
    });
    let daemons = site.daemons(&name);
    let pids: Vec<i32> = daemons.iter().map(|(_, pid)| *pid).collect();
    let lives = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("daemon"))
    };
    // The agent of this machine is the controller, too.
    let (_, agent) = *daemons.iter().find(|(server, _)| server.is_none()).expect("an agent");
    Site::kill(agent, Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(pids.iter().filter(|pid| lives(**pid)).count(), 3, "the others go on");
    Site::kill(run.id() as i32, Signal::KILL);
    run.wait().expect("killed");
    let command = std::fs::read_to_string(&started).expect("reads").trim().parse().expect("a number");
    let took = eventually("all daemons end", || !pids.iter().any(|pid| lives(*pid)));
    eprintln!("the daemons ended {took:?} after `run`");
    Site::kill(command, Signal::KILL);
    eventually("all is removed", || !site.home().join(&name).exists() && !run_dir(&name).exists());
    site.assert_nothing_left(&name, &pids);
}

/// A program that makes all kinds of calls for some seconds; any error number will do.
const WORKER: &str = "
import fcntl, os, random, sys, time
os.chdir('/bivouac')
end = time.time() + 8
def attempt(call, *arguments):
    try: return call(*arguments)
    except (OSError, ValueError): return None
names = ['f%d' % i for i in range(8)]
held = []
while time.time() < end:
    name = random.choice(names)
    fd = attempt(os.open, name, random.choice([os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND | os.O_CREAT]))
    if fd is not None: held.append(fd)
    for fd in random.sample(held, min(3, len(held))):
        attempt(os.write, fd, b'x' * random.choice([1, 5000]))
        attempt(os.lseek, fd, random.choice([0, 100, 1 << 40]), random.choice([0, 1, 2]))
        attempt(os.read, fd, 4096)
        attempt(os.fstat, fd)
        how = random.choice([fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN]) | fcntl.LOCK_NB
        attempt(random.choice([fcntl.flock, lambda fd, how: fcntl.lockf(fd, how, 10, random.randrange(100))]), fd, how)
        other = attempt(os.dup, fd)
        if other is not None: held.append(other)
    attempt(os.listdir, '.')
    attempt(os.stat, name)
    if random.random() < 0.05:
        child = os.fork()
        if child == 0:
            for fd in held: attempt(os.pread, fd, 10, 0)
            os._exit(0)
        os.waitpid(child, 0)
    while len(held) > 20: attempt(os.close, held.pop(random.randrange(len(held))))
os.write(1, b'done\\n')
os._exit(0)
";

/// A program that writes over the table, from an offset on, while it uses it itself.
const SPOILER: &str = "
import ctypes, os, random, sys, time
os.stat('/bivouac')
begin = int(sys.argv[1])
[line] = [line for line in open('/proc/self/maps') if 'bivouac-opens' in line]
start, end = (int(part, 16) for part in line.split()[0].split('-'))
until = time.time() + 5
rounds = 0
while time.time() < until or rounds < 4:
    for at in range(start + begin, end, 1 << 16):
        piece = min(1 << 16, end - at)
        ctypes.memmove(at, random.choice([os.urandom(piece), b'\\0' * piece, b'\\xff' * piece, b'\\1' * piece]), piece)
    rounds += 1
    try: os.close(os.open('/bivouac/f0', os.O_RDWR))
    except OSError: pass
print('spoilt', flush=True)
os._exit(0)
";

#[test]
fn noise_in_what_a_nodes_processes_share_ends_no_program_and_makes_none_wait() {
    let site = Site::new("noise");
    std::fs::write(site.path("worker.py"), WORKER).expect("written");
    std::fs::write(site.path("spoiler.py"), SPOILER).expect("written");
    // Everything but the table's beginning, and everything.
    for begin in [4096, 0] {
        let name = site.up(2);
        let script = format!(
            "cd {}; for i in 1 2 3; do timeout -s KILL 100 python3 -B worker.py & pids=\"$pids $!\"; done; sleep 2
            timeout -s KILL 100 python3 -B spoiler.py {begin}; for p in $pids; do wait $p; echo $?; done",
            site.path("").display()
        );
        let out = std::thread::scope(|scope| {
            // What the agent tells a server that is restarted, it finds there, too.
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(4));
                Site::kill(site.server_pid(&name, 0), Signal::KILL);
                site.bivouac(["restart", &name, "0"]).ok();
            });
            site.sh(&name, &script).ok()
        });
        let mut lines: Vec<&str> = out.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["0", "0", "0", "done", "done", "done", "spoilt"], "{out}");
        // What the agent tells a server that was restarted, it finds there, too.
        site.bivouac(["restart", &name, "0"]).ok();
        assert_eq!(site.status(&name)["state"], "running");
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn nothing_that_a_nodes_processes_have_mapped_can_be_truncated() {
    let site = Site::new("cut");
    let name = site.up(2);
    let script = r#"
import os, subprocess, sys
held = open('/bivouac/f', 'w+'); held.write('here'); held.flush(); os.stat('/bivouac/f')
tried = 0
def truncate(path):
    global tried
    tried += 1
    try: os.truncate(path, 0)
    except OSError: pass
for pid in sys.argv[2:]:
    for fd in os.listdir('/proc/%s/fd' % pid):
        if 'memfd:bivouac-' in os.readlink('/proc/%s/fd/%s' % (pid, fd)): truncate('/proc/%s/fd/%s' % (pid, fd))
for directory, _, files in os.walk(sys.argv[1]):
    for name in files:
        if 'node-' in directory: truncate(os.path.join(directory, name))
print(tried, os.pread(held.fileno(), 9, 0), os.stat('/bivouac/f').st_size, len(os.listdir('/bivouac')))
print(subprocess.run(['cat', '/bivouac/f'], capture_output=True).stdout)
"#;
    let daemons: Vec<String> = site.daemons(&name).iter().map(|(_, pid)| pid.to_string()).collect();
    let run = run_dir(&name);
    let command = format!("python3 -B - {} {} <<'END'{script}END", run.display(), daemons.join(" "));
    // The table, two version pages and two pages of counters.
    assert_eq!(site.sh(&name, &command).ok(), "5 b'here' 4 1\nb'here'\n");
}
