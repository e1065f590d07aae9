//! A backend that is full, read-only, slow or gone, or fails in the middle of a merged request; and two deployments that forward
//! the same directory.

use bivouac_tests::failing::{FailingDir, Fault, On, Slow};
use bivouac_tests::signalled::Signalled;
use bivouac_tests::staging::Small;
use bivouac_tests::{Site, eventually, skipped_without_root};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A directory of the backend.
fn backend(site: &Site) -> PathBuf {
    let directory = site.path("scratch");
    fs::create_dir_all(&directory).expect("a directory");
    directory.canonicalize().expect("a path")
}

fn up(site: &Site, directory: &Path) -> String {
    site.up_with(1, &["--forward", directory.to_str().expect("text")])
}

/// A figure of the only I/O node.
fn figure(site: &Site, name: &str, what: &str) -> u64 {
    site.status(name)["forwarding"]["io_nodes"][0][what].as_u64().expect("a number")
}

/// Fills the backend, and uses a file that has its room beside that.
const FULL: &str = r#"
def block(n): return (b"%07d," % n) * 4096
kept = os.open("kept", os.O_RDWR | os.O_CREAT)
assert os.pwrite(kept, block(0), 0) == 32768
def pattern(begin, end): return bytes((at * 31 + at // 256) & 255 for at in range(begin, end))
full = os.open("full", os.O_CREAT | os.O_WRONLY)
whole = pattern(0, 8 << 20)
at = 0; parts = 0
while True:
    wanted = whole[at:at + 300007]
    try: count = os.write(full, wanted)
    except OSError as e: print(errno.errorcode[e.errno]); break
    assert 0 < count <= len(wanted)
    parts += count < len(wanted); at += count
print("in part", parts, "size", os.fstat(full).st_size == at, at > 3 << 20)
for n in range(50):
    assert os.pwrite(kept, block(n), 0) == 32768 and os.pread(kept, 32768, 0) == block(n)
appending = os.open("full", os.O_WRONLY | os.O_APPEND)
print("append", error(lambda: os.write(appending, b"x" * 5000)))
os.close(appending)
print("again", error(lambda: os.pwrite(full, b"x" * 5000, 8 << 20)), os.fstat(full).st_size == at)
os.fsync(full); os.close(full)
with open("full", "rb") as f: assert f.read() == whole[:at]
os.unlink("full")
new = os.open("new", os.O_CREAT | os.O_RDWR)
assert os.write(new, whole[:1 << 20]) == 1 << 20 and os.pread(new, 1 << 20, 0) == whole[:1 << 20]
"#;

#[test]
fn a_full_backend_says_how_much_of_a_write_it_took_and_works_again_when_there_is_room() {
    if skipped_without_root("mounting a small file system") {
        return;
    }
    let site = Site::new("faults-full");
    let directory = backend(&site);
    let small = Small::mount(&directory, 4);
    let name = up(&site, &directory);
    let said = Signalled::start_in(&site, &name, "full", FULL, &directory).ok();
    assert_eq!(said, "ENOSPC\nin part 1 size True True\nappend ENOSPC\nagain ENOSPC True\n");
    assert_eq!(fs::metadata(directory.join("new")).expect("there").len(), 1 << 20);
    drop(small);
}

/// Reads go on, changes are refused, and all works afterwards.
const READ_ONLY: &str = r#"
with open("file", "w") as f: f.write("content")
os.mkdir("dir")
reading = os.open("file", os.O_RDONLY)
say("ready"); wait("read-only")
calls = {
    "write": lambda: open("file", "r+"), "append": lambda: open("file", "a"), "create": lambda: open("new", "x"),
    "truncate": lambda: os.truncate("file", 1), "chmod": lambda: os.chmod("file", 0o600), "utime": lambda: os.utime("file", (1, 1)),
    "mkdir": lambda: os.mkdir("new"), "rmdir": lambda: os.rmdir("dir"), "unlink": lambda: os.unlink("file"),
    "rename": lambda: os.rename("file", "new"), "link": lambda: os.link("file", "new"), "symlink": lambda: os.symlink("file", "new"),
    "setxattr": lambda: os.setxattr("file", "user.a", b"b"), "mknod": lambda: os.mkfifo("new"),
}
for name, call in calls.items(): print(name, error(call))
print(os.pread(reading, 100, 0), open("file").read(), sorted(os.listdir(".")), os.stat("file").st_size)
say("looked"); wait("writable")
with open("file", "a") as f: f.write(" and more")
os.rename("file", "renamed"); print(open("renamed").read(), os.pread(reading, 100, 0))
"#;

#[test]
fn a_read_only_backend_refuses_each_change_and_can_be_read() {
    if skipped_without_root("mounting a small file system") {
        return;
    }
    let site = Site::new("faults-read-only");
    let directory = backend(&site);
    let small = Small::mount(&directory, 4);
    let name = up(&site, &directory);
    let remount = |how: &str| {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&directory).status();
        assert!(done.expect("runs").success(), "{how}");
    };
    let mut program = Signalled::start_in(&site, &name, "read-only", READ_ONLY, &directory);
    program.hears("ready");
    // The close of what was written is not waited for by the program.
    eventually("only what is read is open", || figure(&site, &name, "opens") == 1);
    remount("ro");
    program.say("read-only");
    program.hears("looked");
    remount("rw");
    program.say("writable");
    let said = program.ok();
    let (refused, others): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.ends_with(" EROFS"));
    assert_eq!(refused.len(), 14, "{said}");
    let seen = ["b'content' content ['dir', 'file'] 7", "content and more b'content and more'"];
    assert_eq!(others, seen);
    drop(small);
}

/// Three processes read a slow file, and one uses others.
const SLOW: &str = r#"
with open("slow", "wb") as f: f.write(b"s" * (12 << 20))
with open("quick", "wb") as f: f.write(b"q" * 100000)
say("written"); wait("slow")
readers = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        fd = os.open("slow", os.O_RDONLY)
        say("reading")
        assert os.pread(fd, 100, number * (4 << 20)) == b"s" * 100
        say("read")
        os._exit(0)
    readers.append(pid)
wait("hang")
fd = os.open("quick", os.O_RDWR)
for n in range(200):
    assert os.pwrite(fd, b"%05d" % n, n * 5) == 5 and os.pread(fd, 5, n * 5) == b"%05d" % n
    with open("new%d" % n, "x") as f: f.write("new")
    os.rename("new%d" % n, "renamed"); assert open("renamed").read() == "new"; os.unlink("renamed")
os.fsync(fd); os.listdir("."); os.stat("slow")
assert not is_said("read")
say("done")
for pid in readers: assert os.waitpid(pid, 0)[1] == 0
"#;

#[test]
fn a_slow_file_of_the_backend_does_not_stop_others() {
    if skipped_without_root("mounting a file system") {
        return;
    }
    let site = Site::new("faults-slow");
    let dir = FailingDir::new("faults-slow");
    let name = up(&site, &dir.path());
    let mut program = Signalled::start_in(&site, &name, "slow", SLOW, &dir.path());
    program.hears("written");
    // What the kernel has in memory would not be read: this has it forgotten.
    dir.fail(Fault { paths: vec!["nothing".into()], on: On::READ, error: Errno::IO });
    dir.slow_down(Slow { paths: vec!["slow".into()], on: On::READ, wait: Duration::from_secs(100) });
    program.say("slow");
    eventually("all three hang", || dir.waiting() >= 3);
    program.say("hang");
    program.hears("done");
    assert!(dir.waiting() >= 3);
    dir.hurry();
    program.ok();
    site.bivouac(["down", &name]).ok();
}

/// Uses a backend before it goes, while it is gone, and when it is there again, with a file that is open all the time.
const GONE: &str = r#"
os.mkdir("d")
fd = os.open("d/file", os.O_CREAT | os.O_RDWR)
assert os.write(fd, b"before") == 6
os.fsync(fd)
say("ready"); wait("gone")
calls = {
    "read": lambda: os.pread(fd, 6, 0), "write": lambda: os.pwrite(fd, b"lost", 0), "fsync": lambda: os.fsync(fd),
    "stat": lambda: os.stat("d/file"), "create": lambda: open("new", "x"), "list": lambda: os.listdir("."),
    "unlink": lambda: os.unlink("d/file"), "mkdir": lambda: os.mkdir("new"),
}
print({error(call) for call in calls.values()})
say("looked"); wait("back")
print(os.pread(fd, 6, 0), open("d/file").read(), os.listdir("."))
os.pwrite(fd, b"after!", 0); os.fsync(fd)
with open("new", "x") as f: f.write("new")
os.rename("d/file", "d/renamed"); print(open("d/renamed").read(), os.fstat(fd).st_size)
"#;

#[test]
fn a_backend_that_is_gone_is_an_error_and_used_again_when_it_is_there_again() {
    if skipped_without_root("mounting a file system") {
        return;
    }
    let site = Site::new("faults-gone");
    let mut dir = FailingDir::new("faults-gone");
    let name = up(&site, &dir.path());
    let mut program = Signalled::start_in(&site, &name, "gone", GONE, &dir.path());
    program.hears("ready");
    dir.die();
    program.say("gone");
    program.hears("looked");
    dir.revive();
    program.say("back");
    assert_eq!(program.ok(), "{'ENOTCONN'}\nb'before' before ['d']\nafter! 6\n");
    assert_eq!(fs::read_to_string(dir.behind().join("d/renamed")).expect("there"), "after!");
    site.bivouac(["down", &name]).ok();
}

/// Forty processes read or write neighbouring blocks of a file; each says what came of it.
const MERGED: &str = r#"
import json
writes = sys.argv[1:] and os.path.exists("writes")
def block(number): return (b"%03d" % number) * 1365 + b"\n"
fd = os.open("merged", os.O_RDWR)
said, say_it = os.pipe()
def start(numbers):
    for number in numbers:
        if os.fork(): continue
        try:
            if writes: outcome = os.pwrite(fd, block(number), number * 4096)
            else:
                read = os.pread(fd, 4096, number * 4096)
                assert read == block(number)[:len(read)], number
                outcome = len(read)
        except OSError as e: outcome = errno.errorcode[e.errno]
        os.write(say_it, b"%d %s\n" % (number, str(outcome).encode()))
        os._exit(0)
start(range(20)); wait("more"); start(range(20, 40))
for _ in range(40): assert os.wait()[1] == 0
outcomes = dict(line.split() for line in os.read(said, 10000).decode().splitlines())
assert len(outcomes) == 40
print([(number, outcome) for number, outcome in sorted(outcomes.items()) if outcome != "4096"])
"#;

#[test]
fn of_a_merged_request_that_fails_in_its_middle_only_those_fail_whose_bytes_those_are() {
    if skipped_without_root("mounting a file system") {
        return;
    }
    for on in [On::WRITE, On::READ] {
        let site = Site::new("faults-merged");
        let dir = FailingDir::new("faults-merged");
        let content = |number: usize| [format!("{number:03}").repeat(1365).as_bytes(), b"\n"].concat();
        let whole: Vec<u8> = (0..40).flat_map(content).collect();
        fs::write(dir.behind().join("merged"), if on == On::READ { &whole[..] } else { b"" })
            .expect("written");
        if on == On::WRITE {
            fs::write(dir.behind().join("writes"), "").expect("written");
        }
        let name = up(&site, &dir.path());
        let paths = vec!["merged".to_owned()];
        // In the middle of a block: it is whole or not.
        dir.fail_in(30 * 4096..31 * 4096, Fault { paths: paths.clone(), on, error: Errno::IO });
        dir.slow_down(Slow { paths, on, wait: Duration::from_secs(100) });
        let program = Signalled::start_in(&site, &name, "merged", MERGED, &dir.path());
        // So many are under way at most: the others wait, and are merged.
        eventually("there are more than can be carried out at once", || {
            figure(&site, &name, "requests_in") == 20
        });
        program.say("more");
        eventually("all have come", || figure(&site, &name, "requests_in") == 40);
        dir.hurry();
        let begun = Instant::now();
        assert_eq!(program.ok(), "[('30', 'EIO')]\n", "{on:?}");
        // An error of the backend is told, and not waited with.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert!(figure(&site, &name, "requests_out") < 30, "they were merged: {on:?}");
        if on == On::WRITE {
            let written = fs::read(dir.behind().join("merged")).expect("there");
            let is_right = |number: usize| written[number * 4096..][..4096] == whole[number * 4096..][..4096];
            assert!((0..40).filter(|number| *number != 30).all(is_right));
            assert!(written[30 * 4096..][..4096].iter().all(|byte| *byte == 0), "nothing of it is there");
        }
        site.bivouac(["down", &name]).ok();
    }
}

/// Two programs that write and lock the same file and files of their own, in two deployments. Each increments a number under a lock.
const BOTH: &str = r#"
me = os.path.basename(sys.argv[2]).split(".")[0]
other = {"first": "second", "second": "first"}[me]
own = open("own-" + me, "w+b", buffering=0)
number = os.open("number", os.O_RDWR | os.O_CREAT)
say("ready"); wait("go")
for turn in range(150):
    # Both kinds, always in this order: they do not see each other.
    fcntl.flock(number, fcntl.LOCK_EX); fcntl.lockf(number, fcntl.LOCK_EX, 100, 0)
    value = int(os.pread(number, 20, 0) or b"0"); os.pwrite(number, b"%020d" % (value + 1), 0)
    fcntl.lockf(number, fcntl.LOCK_UN, 100, 0); fcntl.flock(number, fcntl.LOCK_UN)
    assert os.pwrite(number, (b"%s" % me[:1].encode()) * 50, 1000 + turn * 100 + (50 if me == "second" else 0)) == 50
    own.write(b"%d\n" % turn)
    with open("appended", "ab", buffering=0) as f: assert f.write(b"%s %03d\n" % (me[:1].encode(), turn)) == 6
    os.rename("own-" + me, "own-" + me)
    # A lock of one kind, held by somebody else.
    with open("held-" + me, "w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX); fcntl.flock(held, fcntl.LOCK_EX)
        if os.path.exists("held-" + other):
            with open("held-" + other, "r+") as theirs:
                assert error(fcntl.flock, theirs, fcntl.LOCK_SH | fcntl.LOCK_NB) in ("fine", "EAGAIN")
own.flush(); say("done"); wait("look")
if me == "first":
    held = open("held", "w"); fcntl.lockf(held, fcntl.LOCK_EX, 10, 0); more = open("held", "r"); fcntl.flock(more, fcntl.LOCK_SH)
    say("holds"); wait("end")
else:
    held = open("held", "r+")
    print(error(fcntl.lockf, held, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5), error(fcntl.lockf, held, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 10))
    print(error(fcntl.flock, held, fcntl.LOCK_SH | fcntl.LOCK_NB), error(fcntl.flock, held, fcntl.LOCK_EX | fcntl.LOCK_NB))
    say("tried"); wait("free")
    print(error(fcntl.lockf, held, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5), error(fcntl.flock, held, fcntl.LOCK_EX | fcntl.LOCK_NB))
"#;

#[test]
fn two_deployments_forward_the_same_directory() {
    let site = Site::new("faults-both");
    let directory = backend(&site);
    let names = [up(&site, &directory), up(&site, &directory)];
    let mut programs: Vec<Signalled> = ["first", "second"]
        .iter()
        .zip(&names)
        .map(|(label, name)| Signalled::start_in(&site, name, label, BOTH, &directory))
        .collect();
    programs.iter_mut().for_each(|program| program.hears("ready"));
    programs.iter().for_each(|program| program.say("go"));
    programs.iter_mut().for_each(|program| program.hears("done"));
    // No increment is lost, and each sees and keeps what the other one has written.
    let number = fs::read(directory.join("number")).expect("there");
    assert_eq!(String::from_utf8_lossy(&number[..20]).parse(), Ok(300));
    assert_eq!(number.len(), 1000 + 150 * 100);
    let halves = [&b"f"[..], b"s"].map(|letter| letter.repeat(50)).concat();
    assert!(number[1000..].chunks(100).all(|turn| turn == halves), "neighbours of two deployments are whole");
    let appended = fs::read_to_string(directory.join("appended")).expect("there");
    for letter in ["f", "s"] {
        let lines: Vec<&str> = appended.lines().filter(|line| line.starts_with(letter)).collect();
        let expected: Vec<String> = (0..150).map(|turn| format!("{letter} {turn:03}")).collect();
        assert_eq!(lines, expected, "each once, in order");
    }
    assert_eq!(appended.lines().count(), 300);
    let list = |name: &str| site.sh(name, &format!("cd {}; ls; cat own-*", directory.display())).ok();
    assert_eq!(list(&names[0]), list(&names[1]));
    let mut second = programs.pop().expect("two");
    let mut first = programs.pop().expect("two");
    first.say("look");
    first.hears("holds");
    second.say("look");
    second.hears("tried");
    first.say("end");
    first.ok();
    second.say("free");
    let (meets, free) = ("EAGAIN fine\nfine EAGAIN\n", "fine fine\n");
    assert_eq!(second.ok(), [meets, free].concat());
    // One of them ends: the other one goes on.
    site.bivouac(["down", &names[0]]).ok();
    let script = format!("cd {}; echo x > after; cat after; wc -l < appended", directory.display());
    assert_eq!(site.sh(&names[1], &script).ok(), "x\n300\n");
}
