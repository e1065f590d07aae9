//! How long programs wait for what has failed.

use bivouac_tests::{Lost, Machine, Site, finish, skipped_without_root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Does many operations on 16 directories after it has killed a process; prints when each began and ended,
/// seconds, what it was, and its error if that was another one than EIO.
const OPERATIONS: &str = r#"
import errno, json, os, signal, sys, time
def attempt(what, f, *args):
    begun, wrong = time.monotonic(), None
    try: f(*args)
    except OSError as e: wrong = None if e.errno == errno.EIO else str(e)
    print(json.dumps((begun, time.monotonic(), what, wrong)))
def append(p):
    with open(p, 'ab', buffering=0) as f: f.write(b'x' * 100)
def write(p):
    with open(p, 'r+b', buffering=0) as f: f.write(b'x' * 300000)
for i in range(16): os.listdir(f'/bivouac/d{i}')
os.kill(int(sys.argv[1]), signal.SIGKILL)
for i in range(16):
    d = f'/bivouac/d{i}'
    attempt('append', append, f'{d}/large')
    attempt('write', write, f'{d}/large')
    attempt('truncate', os.truncate, f'{d}/large', 1000)
    attempt('mkdir', os.mkdir, f'{d}/new')
    attempt('rename', os.rename, f'{d}/in', f'{d}/out')
    attempt('link', os.link, f'{d}/large', f'{d}/linked')
    attempt('stat', os.stat, f'{d}/large')
    attempt('list', os.listdir, d)
    attempt('chmod', os.chmod, d, 0o700)
"#;

/// Kills processes, waits as many seconds as its first argument says, does each operation on each of 16
/// directories in a process of its own, as the first one that meets the deaths, and prints the same. Half of the
/// processes have sent requests before, half have only been forked by one that has.
const FIRSTS: &str = r#"
import errno, json, os, signal, sys, time
m = '/bivouac/all/of/them'
def open_append(p): os.write(os.open(p, os.O_WRONLY | os.O_APPEND), b'x' * 70000)
def write(p): os.pwrite(os.open(p, os.O_RDWR), b'x' * 300000, 0)
def read(p): os.pread(os.open(p, os.O_RDONLY), 1000000, 0)
def copy(p, q):
    a, b = os.open(p, os.O_RDONLY), os.open(q, os.O_RDWR | os.O_CREAT)
    os.copy_file_range(a, b, 1000000)
def allocate(p): os.posix_fallocate(os.open(p, os.O_RDWR), 0, 2000000)
def emptied(p): os.close(os.open(p, os.O_WRONLY | os.O_TRUNC))
operations = {
    'create': lambda d, e: os.open(f'{d}/new', os.O_CREAT | os.O_EXCL | os.O_RDWR),
    'append': lambda d, e: open_append(f'{d}/large'),
    'grow': lambda d, e: open_append(f'{d}/small'),
    'write': lambda d, e: write(f'{d}/large'),
    'read': lambda d, e: read(f'{d}/large'),
    'copy': lambda d, e: copy(f'{d}/large', f'{e}/copied'),
    'allocate': lambda d, e: allocate(f'{d}/large'),
    'empty': lambda d, e: emptied(f'{d}/large'),
    'truncate': lambda d, e: os.truncate(f'{d}/large', 1000),
    'mkdir': lambda d, e: os.mkdir(f'{d}/made'),
    'rmdir': lambda d, e: os.rmdir(f'{d}/in'),
    'symlink': lambda d, e: os.symlink('x', f'{d}/symlink'),
    'link': lambda d, e: os.link(f'{d}/small', f'{e}/linked'),
    'unlink': lambda d, e: os.unlink(f'{d}/small'),
    'rename': lambda d, e: os.rename(f'{d}/small', f'{e}/moved'),
    'replace': lambda d, e: os.rename(f'{d}/small', f'{e}/large'),
    'move': lambda d, e: os.rename(f'{d}/in', f'{e}/in'),
    'chmod': lambda d, e: os.chmod(f'{d}/large', 0o600),
    'setxattr': lambda d, e: os.setxattr(f'{d}/large', 'user.x', b'y'),
    'stat': lambda d, e: os.stat(f'{d}/large'),
    'list': lambda d, e: [os.stat(f'{d}/{name}') for name in os.listdir(d)],
}
for operation in operations:
    for i in range(16):
        os.makedirs(f'{m}/{operation}{i}/in')
        for name, size in (('small', 9), ('large', 200000)):
            with open(f'{m}/{operation}{i}/{name}', 'wb') as f: f.write(b'x' * size)
go, hold = os.pipe()
out, tell = os.pipe()
ready, warm = os.pipe()
for operation in operations:
    for i in range(16):
        d, e = f'{m}/{operation}{i}', f'{m}/{operation}{(i + 1) % 16}'
        for x in (d, e): os.stat(f'{x}/small')
        if os.fork() == 0:
            os.close(hold)
            for x in (d, e): os.stat(f'{x}/small')
            if i % 2: [os.utime(f'{x}/small') for x in (d, e, d, e)]
            os.write(warm, b'.')
            os.read(go, 1)
            begun, wrong = time.monotonic(), None
            try: operations[operation](d, e)
            except OSError as error: wrong = None if error.errno == errno.EIO else str(error)
            os.write(tell, (json.dumps((begun, time.monotonic(), operation, wrong)) + '\n').encode())
            os._exit(0)
os.close(tell)
for _ in range(16 * len(operations)): os.read(ready, 1)
for pid in sys.argv[2:]: os.kill(int(pid), signal.SIGKILL)
time.sleep(float(sys.argv[1]))
os.close(hold)
said = os.fdopen(out).readlines()
assert len(said) == 16 * len(operations), len(said)
print(*said, sep='', end='')
"#;

/// The slowest operation when this server dies.
#[track_caller]
fn slowest(site: &Site, name: &str, server: u64) -> f64 {
    let make = "cd /bivouac || exit 1; rm -rf d*; for i in $(seq 0 15); do mkdir d$i d$i/in; head -c 1000000 /dev/zero > d$i/large; done";
    site.sh(name, make).ok();
    slowest_of(site, name, &[server], OPERATIONS, &[])
}

/// The same by another program.
#[track_caller]
fn slowest_of(site: &Site, name: &str, servers: &[u64], program: &str, more: &[&str]) -> f64 {
    let script = site.path("operations.py");
    std::fs::write(&script, program).expect("written");
    let victims = servers.iter().map(|server| site.server_pid(name, *server).to_string());
    let mut command = site.command(["exec", name, "--", "python3", "-B"]);
    command.arg(script).args(more).args(victims);
    let machine = Machine::watch();
    let said = finish(command).ok();
    took(&said, &machine.lost())
}

/// The longest of the operations that a program has told of, seconds, without what the machine lost meanwhile.
#[track_caller]
fn took(said: &str, lost: &Lost) -> f64 {
    let mut longest = 0.0;
    for line in said.lines() {
        let (begun, ended, what, wrong): (f64, f64, String, Option<String>) =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(wrong, None, "{what}");
        let lost = lost.between((begun * 1e9) as u64, (ended * 1e9) as u64);
        longest = f64::max(longest, ended - begun - lost as f64 / 1e9);
    }
    assert!(longest > 0.0, "no operations");
    longest
}

#[test]
fn no_operation_takes_long_when_a_server_dies_with_the_controller_or_without() {
    let site = Site::in_memory("waits-dead");
    // The first daemon is the controller, which nobody replaces.
    for server in [3, 0] {
        let name = site.up_with(4, &["--block-size", "64K"]);
        let worst = slowest(&site, &name, server);
        assert!(worst < 4.0, "an operation took {worst} s after server {server} died");
    }
}

#[test]
fn no_operation_that_is_the_first_to_meet_dead_servers_waits_twice() {
    let site = Site::in_memory("waits-first");
    // With the controller, so that nobody declares them dead.
    for servers in [&[0][..], &[0, 2], &[0, 1, 3]] {
        let name = site.up_with(4, &["--block-size", "64K"]);
        let worst = slowest_of(&site, &name, servers, FIRSTS, &["0"]);
        assert!(worst < 4.5, "an operation took {worst} s after servers {servers:?} died");
    }
}

#[test]
fn nobody_waits_for_servers_that_have_been_dead_for_some_time() {
    let site = Site::in_memory("waits-later");
    for servers in [&[0][..], &[0, 2]] {
        let name = site.up_with(4, &["--block-size", "64K"]);
        let worst = slowest_of(&site, &name, servers, FIRSTS, &["3.5"]);
        assert!(worst < 1.5, "an operation took {worst} s when servers {servers:?} had long been dead");
    }
}

#[test]
fn an_operation_that_needs_several_dead_servers_does_not_wait_for_each_of_them() {
    let site = Site::in_memory("waits-all");
    let name = site.up_with(4, &["--block-size", "64K"]);
    site.sh(
        &name,
        "cd /bivouac || exit 1; for i in $(seq 8); do mkdir d$i; head -c 1000000 /dev/zero > d$i/f; done",
    )
    .ok();
    let pids: Vec<String> = site.daemons(&name).iter().map(|(_, pid)| pid.to_string()).collect();
    let script = "import errno, json, os, signal, sys, time
files = [os.open(f'/bivouac/d{i}/f', os.O_RDWR) for i in range(1, 9)]
for pid in sys.argv[1:]: os.kill(int(pid), signal.SIGKILL)
for f in files:
    for call in (lambda: os.pread(f, 1000000, 0), lambda: os.pwrite(f, b'x' * 300000, 0), lambda: os.fstat(f), lambda: os.ftruncate(f, 5), lambda: os.fsync(f)):
        begun = time.monotonic()
        try: call()
        except OSError as e: assert e.errno == errno.EIO, e
        print(json.dumps((begun, time.monotonic(), 'a call', None)))";
    let mut command = site.command(["exec", &name, "--", "python3", "-c", script]);
    // All through the servers, as from another node.
    command.args(pids).env("BIVOUAC_LOCAL", "0");
    let machine = Machine::watch();
    let worst = took(&finish(command).ok(), &machine.lost());
    assert!(worst < 4.0, "an operation took {worst} s");
}

/// A storage directory on a disk that can be made to fail; unmounted when dropped.
struct Disk {
    at: PathBuf,
    image: PathBuf,
}

impl Disk {
    fn new(site: &Site) -> Disk {
        let disk = Disk { at: site.path("disk"), image: site.path("image") };
        std::fs::create_dir(&disk.at).expect("made");
        std::fs::File::create(&disk.image).and_then(|image| image.set_len(256 << 20)).expect("made");
        run("mkfs.ext4", &["-q", "-F", "-m", "0"], &[&disk.image]);
        run("mount", &["-o", "loop"], &[&disk.image, &disk.at]);
        disk
    }

    /// From now on nothing that lies behind its first eighth can be read.
    fn fail(&self) {
        run("sync", &["--file-system"], &[&self.at]);
        forget(&self.at);
        let image = std::fs::File::options().write(true).open(&self.image).expect("opens");
        image.set_len(32 << 20).expect("truncated");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Drops what the kernel keeps in memory of the files below a directory.
fn forget(directory: &Path) {
    for entry in std::fs::read_dir(directory).expect("lists").flatten() {
        if entry.file_type().expect("a type").is_dir() {
            forget(&entry.path());
        } else if let Ok(file) = std::fs::File::open(entry.path()) {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
        }
    }
}

#[track_caller]
fn run(program: &str, options: &[&str], paths: &[&Path]) {
    let done = Command::new(program).args(options).args(paths).output().expect("it starts");
    assert!(done.status.success(), "{program}: {done:?}");
}

#[test]
fn a_read_error_of_the_storage_comes_through_at_once() {
    if skipped_without_root("making a disk that fails") {
        return;
    }
    let site = Site::new("waits-disk");
    let disk = Disk::new(&site);
    let storage = [site.path("sound"), disk.at.join("failing")];
    storage.iter().for_each(|path| std::fs::create_dir(path).expect("made"));
    let storage = storage.map(|path| path.to_string_lossy().into_owned());
    let name = site.up_with(1, &["--storage", &storage[0], "--storage", &storage[1]]);
    site.sh(&name, "cd /bivouac || exit 1; for i in $(seq 40); do head -c 4000000 /dev/urandom > f$i; done")
        .ok();
    disk.fail();
    // Through the server, as from another node.
    let script = "import errno, time
begun, failed = time.monotonic(), 0
for i in range(1, 41):
    try:
        with open(f'/bivouac/f{i}', 'rb') as f: assert len(f.read()) == 4000000
    except OSError as e:
        assert e.errno == errno.EIO, e
        failed += 1
print(failed, time.monotonic() - begun)";
    let mut command = site.command(["exec", &name, "--", "python3", "-c", script]);
    command.env("BIVOUAC_LOCAL", "0");
    let said = finish(command).ok();
    let numbers: Vec<f64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert!(numbers[0] >= 5.0 && numbers[0] < 40.0, "some of the files lie on the disk that fails: {said}");
    assert!(numbers[1] < 15.0, "all that took {} s", numbers[1]);
}
