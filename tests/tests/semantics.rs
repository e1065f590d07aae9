//! What the semantics page says is relaxed, or is Bivouac's own choice, each in every way of access: the
//! tests bear the names of its lines. What is as on a local file system is compared with one elsewhere.

use bivouac_layout::Ino;
use bivouac_layout::namespace::directory_shard;
use bivouac_tests::{Site, eventually, python_in_each_access, python_says};

#[test]
fn atime_changes_only_when_it_is_set() {
    let script = "
for size in (100, 100000):
    with open('f', 'wb') as f: f.write(b'x' * size)
    made = os.stat('f').st_atime_ns
    time.sleep(0.05)
    open('f', 'rb').read()
    with open('f', 'ab') as f: f.write(b'y')
    same = os.stat('f').st_atime_ns == made
    os.utime('f', ns=(5, 6))
    open('f', 'rb').read()
    print(same, os.stat('f').st_atime_ns)
";
    python_says("atime", script, "True 5\nTrue 5\n");
}

#[test]
fn a_directorys_size_is_its_number_of_entries() {
    let script = "
os.mkdir('d')
for i in range(7): open(f'd/{i}', 'w').close()
os.mkdir('d/e'); os.unlink('d/0')
print(os.stat('d').st_size, os.stat('d').st_nlink)
";
    python_says("sizes", script, "7 3\n");
}

#[test]
fn the_storage_that_a_file_takes_is_what_is_allocated_and_its_holes_are_not() {
    let script = "
K = 1024
def show(what, f):
    # While it is open for writing; when it is closed, which nobody waits for; and by its name.
    open_ = os.fstat(f).st_blocks * 512
    os.close(f)
    deadline = time.monotonic() + 10
    while os.stat('f').st_blocks * 512 != open_ and time.monotonic() < deadline: time.sleep(0.01)
    print(what, open_ // K, os.stat('f').st_blocks * 512 // K, os.stat('f').st_size // K)
def again(*flags):
    return os.open('f', os.O_RDWR | os.O_CREAT | sum(flags), 0o644)
f = again(); os.write(f, b'x' * 100 * K); show('written', f)
f = again(os.O_TRUNC)
for i in range(100): os.write(f, b'x' * K)
show('in small pieces', f)
f = again(os.O_TRUNC); os.ftruncate(f, 100 * K); show('all of it a hole', f)
f = again(); os.pwrite(f, b'x' * 64 * K, 16 * K); show('partly filled', f)
f = again(); os.pwrite(f, b'x' * 4 * K, 1000 * K); show('behind a hole', f)
os.truncate('f', 2000 * K); f = again(); show('lengthened', f)
os.truncate('f', 40 * K); f = again(); show('cut', f)
f = again(); os.pwrite(f, b'x' * 40 * K, 0); show('filled', f)
os.truncate('f', 20 * K); f = again(); show('cut again', f)
f = again(); os.posix_fallocate(f, 0, 200 * K); show('allocated', f)
os.unlink('f')
";
    let shown = "\
written 100 100 100
in small pieces 100 100 100
all of it a hole 0 0 100
partly filled 64 64 100
behind a hole 68 68 1004
lengthened 68 68 2000
cut 24 24 40
filled 40 40 40
cut again 20 20 20
allocated 200 200 200
";
    python_says("allocated", script, shown);
}

#[test]
fn acls_are_not_offered_and_attributes_are_up_to_64_kib() {
    let script = "
open('f', 'w').close()
print(attempt(os.setxattr, 'f', 'system.posix_acl_access', b'x' * 28))
print(attempt(os.setxattr, 'f', 'user.largest', b'x' * 65536), len(os.getxattr('f', 'user.largest')))
print(attempt(os.setxattr, 'f', 'user.larger', b'x' * 65537))
print(attempt(os.setxattr, 'f', 'nobody.knows', b'x'))
";
    python_says("acls", script, "ENOTSUP\nNone 65536\nE2BIG\nENOTSUP\n");
}

#[test]
fn pipes_and_sockets_can_be_made_but_not_opened_except_in_a_mount() {
    let script = "
os.mkfifo('p')
os.mknod('s', 0o600 | stat.S_IFSOCK)
print(stat.S_ISFIFO(os.stat('p').st_mode), stat.S_ISSOCK(os.stat('s').st_mode))
print(attempt(os.open, 's', os.O_RDWR))
opened = attempt(os.open, 'p', os.O_RDWR | os.O_NONBLOCK)
print(opened if opened == 'ENXIO' else 'open')
";
    for (access, said) in python_in_each_access("pipes", script) {
        let expected = if access == "preload" { "ENXIO" } else { "open" };
        assert_eq!(said, format!("True True\nENXIO\n{expected}\n"), "{access}");
    }
}

#[test]
fn who_opens_what_is_no_file_leaves_nothing_open() {
    let site = Site::new("no-files");
    let name = site.up(4);
    let held = || ["opens", "inodes"].map(|what| site.total(&name, what));
    let before = held();
    let script = "
import os, stat
os.chdir(os.environ['BIVOUAC_MOUNT'])
os.mkfifo('p')
os.mknod('s', stat.S_IFSOCK | 0o600)
for name in ('p', 's'):
    for _ in range(3):
        try:
            os.open(name, os.O_RDWR | os.O_NONBLOCK)
            print('open')
        except OSError as e:
            print(e.strerror)
os.mkdir(os.environ['NAME'])
";
    // A directory that is in the shard of its name.
    let here = |name: &String| directory_shard(Ino::ROOT, name.as_bytes()) == Ino::ROOT.shard();
    let directory = (0..).map(|i| format!("d{i}")).find(here).expect("one of many");
    let out = site.sh(&name, &format!("NAME={directory} python3 -B - <<'END'{script}END")).ok();
    assert_eq!(out, "No such device or address\n".repeat(6));
    // By another process, which does not know of the bits.
    site.sh(&name, &format!("exec 3< $BIVOUAC_MOUNT/{directory}; exec 3<&-")).ok();
    site.sh(&name, "rm -r $BIVOUAC_MOUNT/*").ok();
    eventually("all is released", || held() == before);
}

#[test]
fn a_circle_of_waits_for_locks_of_one_file_is_edeadlk() {
    let script = "
open('f', 'w').write('xx')
a, b = os.pipe(), os.pipe()
child = os.fork()
mine, other, done, told = (1, 0, a[1], b[0]) if child == 0 else (0, 1, b[1], a[0])
f = open('f', 'r+')
fcntl.lockf(f, fcntl.LOCK_EX, 1, mine)
os.write(done, b'x'); os.read(told, 1)
signal.alarm(60)
outcome = attempt(fcntl.lockf, f, fcntl.LOCK_EX, 1, other)
fcntl.lockf(f, fcntl.LOCK_UN)
if child == 0: os._exit(str(outcome).startswith('EDEAD'))
found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(found + str(outcome).startswith('EDEAD'))
";
    python_says("deadlock", script, "1\n");
}

#[test]
fn locks_of_a_killed_process_are_free_for_whoever_waits() {
    let script = "
open('f', 'w').close()
ready = os.pipe()
child = os.fork()
if child == 0:
    f = open('f', 'r+'); g = open('f', 'r+')
    fcntl.lockf(f, fcntl.LOCK_EX); fcntl.flock(g, fcntl.LOCK_EX)
    os.write(ready[1], b'x')
    time.sleep(60)
os.read(ready[0], 1)
f = open('f', 'r+')
print(attempt(fcntl.lockf, f, fcntl.LOCK_EX | fcntl.LOCK_NB), attempt(fcntl.flock, f, fcntl.LOCK_EX | fcntl.LOCK_NB))
waiter = os.fork()
if waiter == 0:
    g = open('f', 'r+')
    signal.alarm(60)
    fcntl.lockf(g, fcntl.LOCK_EX); fcntl.flock(g, fcntl.LOCK_EX)
    os._exit(0)
time.sleep(0.2)
os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(os.waitpid(waiter, 0)[1]))
";
    python_says("killed", script, "EAGAIN EAGAIN\n0\n");
}

#[test]
fn open_flags_do_what_they_say() {
    let script = "
open('f', 'w').write('text'); os.mkdir('d'); os.symlink('f', 'l'); os.symlink('d', 'dl')
r = os.O_RDONLY
print(attempt(os.open, 'l', r | os.O_NOFOLLOW), attempt(os.open, 'f', r | os.O_DIRECTORY), attempt(os.open, 'dl', r | os.O_DIRECTORY | os.O_NOFOLLOW))
print(attempt(os.open, 'f', os.O_CREAT | os.O_EXCL), attempt(os.open, 'l', os.O_CREAT | os.O_EXCL), attempt(os.open, 'd', os.O_WRONLY))
p = os.open('f', os.O_PATH)
print(attempt(os.read, p, 1), os.fstat(p).st_size, attempt(os.fchmod, p, 0o600), attempt(os.ftruncate, p, 0))
link = os.open('l', os.O_PATH | os.O_NOFOLLOW)
print(stat.S_ISLNK(os.fstat(link).st_mode))
for flag in (os.O_SYNC, os.O_DSYNC, os.O_DIRECT):
    fd = os.open('f', os.O_RDWR | flag)
    os.write(fd, b'TEXT'); print(os.pread(fd, 9, 0)); os.close(fd)
t = os.open('d', os.O_TMPFILE | os.O_RDWR, 0o600)
print(os.write(t, b'x' * 9000), os.fstat(t).st_nlink, os.listdir('d'))
os.link(f'/proc/self/fd/{t}', 'd/now', src_dir_fd=os.open('/', r), follow_symlinks=True)
print(os.fstat(t).st_nlink, os.listdir('d'), os.stat('d/now').st_size)
";
    let expected = "ELOOP ENOTDIR ENOTDIR\nEEXIST EEXIST EISDIR\nEBADF 4 EBADF EBADF\nTrue\nb'TEXT'\nb'TEXT'\nb'TEXT'\n\
                    9000 0 []\n1 ['now'] 9000\n";
    python_says("flags", script, expected);
}
