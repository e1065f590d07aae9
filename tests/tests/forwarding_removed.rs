//! Files that were removed while programs have them open stay with the I/O node that has them, also when others forward by then:
//! programs go on with them, and the command says for whom that I/O node drains.

use bivouac_tests::signalled::Signalled;
use bivouac_tests::{Site, eventually};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Opens files that have no name afterwards, for one or another reason, and uses them through whoever forwards by then.
const REMOVED: &str = r#"
import mmap
page, seen = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
files = []
for number in range(24):
    name = "f%d" % number
    files.append(os.open(name, os.O_CREAT | os.O_RDWR))
    assert os.write(files[-1], b"still there %02d" % number) == 14
    if number % 3 == 0: os.unlink(name)
    # It has another name.
    elif number % 3 == 1: os.link(name, "other%d" % number); os.unlink(name)
    # Another file takes its name.
    else:
        with open("new%d" % number, "w") as f: f.write("new")
        os.rename("new%d" % number, name)
temporary = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(temporary, b"temporary")
locked = os.open("locked", os.O_CREAT | os.O_RDWR); fcntl.lockf(locked, fcntl.LOCK_EX); os.unlink("locked")
say("ready"); wait("use")
for number, file in enumerate(files):
    assert os.pread(file, 100, 0) == b"still there %02d" % number, number
    found = os.fstat(file)
    assert found.st_size == 14 and found.st_nlink == (number % 3 == 1), (number, found)
    assert os.pwrite(file, b"more" * 100000, 14) == 400000 and os.lseek(file, 0, os.SEEK_END) == 400014
    direct = os.open("/proc/self/fd/%d" % file, os.O_RDWR | os.O_DIRECT)
    page[:] = (b"direct%02d" % number) * 512
    assert os.pwrite(direct, page, 1 << 20) == 4096 and os.preadv(direct, [seen], 1 << 20) == 4096 and seen[:] == page[:]
    assert os.pread(file, 8, 1 << 20) == b"direct%02d" % number
    os.close(direct)
    os.fsync(file); os.ftruncate(file, 20); os.fchmod(file, 0o600); os.utime(file, (7, 8))
    found = os.fstat(file); assert (found.st_size, found.st_mode & 0o777, found.st_mtime) == (20, 0o600, 8)
    os.setxattr(file, "user.a", b"value"); assert os.getxattr(file, "user.a") == b"value" and os.listxattr(file) == ["user.a"]
    again = os.open("/proc/self/fd/%d" % file, os.O_WRONLY | os.O_APPEND)
    assert os.write(again, b"appended") == 8 and os.pread(file, 100, 12) == b"%02dmoremoappended" % number, os.pread(file, 100, 12)
    os.close(again)
    fcntl.flock(file, fcntl.LOCK_EX); fcntl.flock(file, fcntl.LOCK_UN)
assert os.pread(temporary, 100, 0) == b"temporary"
fcntl.lockf(locked, fcntl.LOCK_UN); fcntl.lockf(locked, fcntl.LOCK_SH)
for number in range(2, 24, 3): assert open("f%d" % number).read() == "new"
say("used"); wait("close")
for file in files[:-1]: os.close(file)
os.close(temporary); os.close(locked)
# Others get their numbers, where the backend gives these again.
for number in range(200):
    with open("again%d" % number, "w+") as f: f.write("again"); f.flush(); f.seek(0); assert f.read() == "again", number
say("closed"); wait("end")
"#;

fn backend(site: &Site) -> PathBuf {
    let directory = site.path("scratch");
    fs::create_dir_all(&directory).expect("a directory");
    directory.canonicalize().expect("a path")
}

/// Two servers forward by file, so that each has some of a program's files.
fn up(site: &Site, directory: &Path) -> String {
    let path = directory.to_str().expect("text");
    site.up_with(3, &["--forward", path, "--io-nodes", "2", "--assign", "file"])
}

fn shown(site: &Site, name: &str) -> Value {
    serde_json::from_str(&site.bivouac(["forward", name, "--json"]).ok()).expect("JSON")
}

#[test]
fn an_io_node_drains_until_removed_files_are_closed_and_programs_notice_nothing() {
    let site = Site::new("removed");
    let directory = backend(&site);
    let name = up(&site, &directory);
    let mut program = Signalled::start_in(&site, &name, "removed", REMOVED, &directory);
    program.hears("ready");
    let drains = site.bivouac(["forward", &name, "--io-nodes", "1", "--timeout", "1"]);
    assert_eq!(drains.code, 0);
    let said: Vec<&str> = drains.err.lines().collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("server 1 on ") && said[0].ends_with(": waiting up to 1 s"), "{said:?}");
    assert!(said[1].ends_with(": it does so until they are closed"), "{said:?}");
    let draining = shown(&site, &name)["draining"].clone();
    let files = draining[0]["files"].as_u64().expect("a number");
    assert!((1..=26).contains(&files) && draining[0]["server"] == 1, "{draining}");
    assert_eq!(draining[0]["programs"][0]["command"], "python3", "{draining}");
    let pid = draining[0]["programs"][0]["pid"].as_u64().expect("a process");
    assert!(said[0].contains(&format!("still serves {files} files ")), "{said:?}");
    assert!(said[0].contains(&format!("process {pid} (python3) on ")), "{said:?}");
    let table = site.bivouac(["forward", &name]).ok();
    assert!(table.contains("server 1 on ") && table.contains(&format!("process {pid} ")), "{table}");
    program.say("use");
    program.hears("used");
    // More changes: those that keep files stay the same.
    site.bivouac(["forward", &name, "--io-nodes", "3", "--timeout", "0"]).ok();
    site.bivouac(["forward", &name, "--io-nodes", "1", "--timeout", "0"]).ok();
    let mut waiting = site.command(["forward", &name, "--io-nodes", "1", "--timeout", "200"]);
    let mut waiting = waiting.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
    let mut says = BufReader::new(waiting.stderr.take().expect("piped"));
    let mut line = String::new();
    says.read_line(&mut line).expect("read");
    assert!(line.ends_with(": waiting up to 200 s\n"), "{line}");
    // Closed by the program, and by its end.
    program.say("close");
    program.hears("closed");
    program.kill();
    line.clear();
    says.read_to_string(&mut line).expect("read");
    assert_eq!(line, "all of them are closed\n");
    assert!(waiting.wait().expect("ends").success());
    assert_eq!(shown(&site, &name)["draining"], Value::Array(Vec::new()));
    let opens = || shown(&site, &name)["io_nodes"][0]["opens"].as_u64();
    eventually("nothing stays open", || opens() == Some(0));
}

/// Reads files that were removed, after the only one that had some of them has died.
const LOST: &str = r#"
files = []
for number in range(16):
    files.append(os.open("f%d" % number, os.O_CREAT | os.O_RDWR))
    os.write(files[-1], b"still there")
    os.unlink("f%d" % number)
say("ready"); wait("look")
for file in files:
    try: print(os.pread(file, 100, 0).decode())
    except OSError as e: print(errno.errorcode[e.errno])
"#;

#[test]
fn what_cannot_be_read_any_more_is_an_error_and_not_an_end_of_the_file() {
    let site = Site::new("removed-lost");
    let directory = backend(&site);
    let name = up(&site, &directory);
    let mut program = Signalled::start_in(&site, &name, "lost", LOST, &directory);
    program.hears("ready");
    site.bivouac(["forward", &name, "--io-nodes", "1", "--timeout", "0"]).ok();
    assert!(shown(&site, &name)["draining"][0]["files"].as_u64() > Some(0));
    Site::kill(site.server_pid(&name, 1), rustix::process::Signal::KILL);
    eventually("it is down", || site.states(&name)[1] == "down");
    program.say("look");
    let said = program.ok();
    let count = |what: &str| said.lines().filter(|line| *line == what).count();
    // Some are written by way of the other one, which has them open for that.
    let (kept, lost) = (count("still there"), count("ESTALE") + count("EIO"));
    assert!(lost > 0 && kept + lost == 16, "{said}");
}

/// In a directory with room for 8 MiB, needs the room of each file soon after it is removed and closed: nobody waits for a close.
const ROOM: &str = r#"
whole = b"x" * (5 << 20)
waited = 0
def fill(file, size):
    global waited
    until, done = time.time() + 10, 0
    while done < size:
        try: done += os.pwrite(file, whole[done:size], done)
        except OSError as e:
            if e.errno != errno.ENOSPC or time.time() > until: raise
            time.sleep(0.01); waited += 0.01
def write(name, size):
    file = os.open(name, os.O_CREAT | os.O_RDWR)
    fill(file, size)
    os.close(file)
# Removed while it is open, and looked at by name before.
for turn in range(4):
    file = os.open("open", os.O_CREAT | os.O_RDWR)
    fill(file, len(whole))
    assert os.stat("open").st_size == len(whole)
    os.unlink("open")
    os.close(file)
# As editors save: another file takes its name.
for turn in range(6):
    write("saved.new", 3 << 20)
    if turn > 0: assert os.stat("saved").st_size == 3 << 20
    os.rename("saved.new", "saved")
os.unlink("saved")
# What is removed by another process while this one has it open.
file = os.open("other", os.O_CREAT | os.O_RDWR); os.write(file, whole)
say("ready"); wait("removed")
os.close(file)
write("other", 5 << 20)
# What an I/O node keeps for nobody goes after one or two seconds. That would have to be waited for ten times.
assert waited < 3, waited
say("done"); wait("end")
"#;

#[test]
fn what_was_removed_and_closed_gives_its_room_back() {
    if bivouac_tests::skipped_without_root("mounting a small file system") {
        return;
    }
    let site = Site::new("removed-room");
    let directory = site.path("small");
    let _small = bivouac_tests::staging::Small::mount(&directory, 8);
    let name = up(&site, &directory);
    let mut program = Signalled::start_in(&site, &name, "room", ROOM, &directory);
    program.hears("ready");
    let remove =
        format!("cd {} && stat other > /dev/null && rm other && ! stat other 2>&1", directory.display());
    site.sh(&name, &remove).ok();
    program.say("removed");
    program.hears("done");
    // What is removed at the backend itself is not kept for long.
    fs::remove_file(directory.join("other")).expect("removed");
    let used = || {
        let figures = rustix::fs::statvfs(&directory).expect("there");
        figures.f_blocks - figures.f_bfree
    };
    eventually("the room is given back", || used() < 16);
    program.say("end");
    program.ok();
}
