//! Processes that die in the middle of a request: what they had begun is ended, and what of it comes late is
//! not carried out.

use bivouac_tests::{Site, eventually};

#[test]
fn what_killed_programs_had_begun_to_open_does_not_stay_open() {
    let site = Site::new("straggling-opens");
    let name = site.up(2);
    let before = site.total(&name, "inodes");
    let script = r#"python3 -B - <<'END'
import os, random, signal, time
random.seed(7)
os.mkdir('/bivouac/d')
def work():
    n = 0
    while True:
        n += 1
        # Made, opened again, truncated, without a name, and in a directory whose entries lie elsewhere.
        for flags in (os.O_CREAT | os.O_WRONLY, os.O_RDONLY, os.O_WRONLY | os.O_TRUNC):
            os.close(os.open(f'/bivouac/d/{os.getpid()}-{n % 7}', flags, 0o644))
        os.close(os.open('/bivouac/d', os.O_TMPFILE | os.O_RDWR, 0o600))
        os.link(f'/bivouac/d/{os.getpid()}-{n % 7}', f'/bivouac/{os.getpid()}') if n == 1 else os.close(os.open(f'/bivouac/{os.getpid()}', os.O_RDONLY))
for i in range(60):
    pid = os.fork()
    if pid == 0:
        try: work()
        finally: os._exit(1)
    time.sleep(random.uniform(0.02, 0.06))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
END
rm -r /bivouac/*"#;
    site.sh(&name, script).ok();
    let left = || (site.total(&name, "opens"), site.total(&name, "inodes"));
    eventually("nothing is open, and nothing is left", || left() == (0, before));
}

#[test]
fn a_lock_is_not_granted_to_a_process_that_died_while_its_request_was_in_the_server() {
    let site = Site::new("straggling-locks");
    let name = site.up(2);
    let server = site.server_pid(&name, 1);
    // Of the files about half have their inodes at this server; the other one, with the agent, sees the
    // deaths.
    let script = format!(
        r#"python3 -B - <<'END'
import fcntl, os, signal, struct, subprocess, time
server = {server}
kinds = ['process', 'description', 'flock']
def take(f, kind):
    if kind == 'process': fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif kind == 'flock': fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else: fcntl.fcntl(f, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
kept = []
for n in range(12):
    kind = kinds[n % 3]
    path = f'/bivouac/f{{n}}'
    open(path, 'w').close()
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        f = open(path, 'w')
        os.kill(server, signal.SIGSTOP)
        os.write(told, b'!')
        take(f, kind)
        os._exit(0)
    os.read(ready, 1)
    time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # The agent has heard of the death, and cannot tell the server yet.
    time.sleep(0.05)
    os.kill(server, signal.SIGCONT)
    f = open(path, 'w')
    for _ in range(500):
        try:
            take(f, kind)
            break
        except OSError:
            time.sleep(0.01)
    else:
        kept.append((n, kind))
print(kept)
END"#
    );
    assert_eq!(site.sh(&name, &script).ok(), "[]\n");
}
