//! Programs that live on when all daemons are killed and `up` starts them again.

use bivouac_tests::{Site, accesses, eventually};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

/// A program that runs in the deployment and does what it is told, a line of Python at a time.
struct Program {
    child: Child,
    says: BufReader<ChildStdout>,
    told: ChildStdin,
}

const DRIVER: &str = "import errno, fcntl, os, subprocess, sys, time
def kept_trying(call):
    # While the servers are away, operations fail with EIO.
    until = time.monotonic() + 30
    while True:
        try: return call()
        except OSError as e:
            if e.errno != errno.EIO or time.monotonic() > until: raise
            time.sleep(0.01)
for line in sys.stdin:
    exec(line)
    print('done', flush=True)
";

impl Program {
    fn start(site: &Site, name: &str, access: &str) -> Program {
        let mut command =
            site.command(["exec", name, "--access", access, "--", "python3", "-u", "-c", DRIVER]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe"));
        let told = child.stdin.take().expect("a pipe");
        Program { child, says, told }
    }

    /// Has it execute a line; what that printed.
    #[track_caller]
    fn run(&mut self, line: &str) -> String {
        writeln!(self.told, "{line}").expect("told");
        let mut said = String::new();
        loop {
            let mut next = String::new();
            assert!(self.says.read_line(&mut next).expect("reads") > 0, "it ended at {line}");
            if next == "done\n" {
                return said;
            }
            said += &next;
        }
    }

    /// Has it end, with everything that it has open.
    fn end(mut self) {
        drop(self.told);
        let mut rest = String::new();
        let _ = self.says.read_to_string(&mut rest);
        self.child.wait().expect("ends");
    }
}

fn kill_all(site: &Site, name: &str) {
    let all = site.daemons(name);
    all.iter().for_each(|(_, pid)| Site::kill(*pid, Signal::KILL));
}

#[test]
fn what_a_survivor_has_written_is_there_for_all_before_it_closes_the_file_and_after() {
    let site = Site::new("survivor-writes");
    // Over the wire and directly: the second writes while nobody is there.
    for access in accesses() {
        let name = site.up(3);
        let mut writer = Program::start(&site, &name, access);
        writer.run("f = os.open('/bivouac/log', os.O_RDWR | os.O_CREAT)");
        writer.run("assert os.pwrite(f, b'a' * 1000000, 0) == 1000000");
        kill_all(&site, &name);
        site.bivouac(["up", &name]).ok();
        writer.run("assert kept_trying(lambda: os.pwrite(f, b'b' * 1000000, 1000000)) == 1000000");
        let size = || site.sh(&name, "stat -c %s /bivouac/log; wc -c < /bivouac/log").ok();
        assert_eq!(size(), "2000000\n2000000\n", "{access}");
        // Longer than a server waits for those who may have something open.
        std::thread::sleep(Duration::from_secs(1));
        writer.run("assert os.pwrite(f, b'c' * 1000000, 2000000) == 1000000");
        assert_eq!(size(), "3000000\n3000000\n", "{access}");
        site.sh(&name, "printf d >> /bivouac/log").ok();
        writer.run("assert os.fstat(f).st_size == 3000001 and os.pread(f, 2, 2999999) == b'cd'");
        writer.run("os.close(f)");
        let content = "head -c 1000000 /bivouac/log | tr -d a; tail -c +1000001 /bivouac/log | head -c 1000000 | tr -d b; \
                       tail -c 2 /bivouac/log; stat -c ' %s' /bivouac/log";
        assert_eq!(site.sh(&name, content).ok(), "cd 3000001\n", "{access}");
        writer.end();
        eventually("nothing is open", || site.total(&name, "opens") == 0);
        site.bivouac(["down", &name]).ok();
    }
}

/// The fence pages that a process has descriptors of, by their inode numbers.
fn fence_pages(pid: i32) -> BTreeSet<u64> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").flatten();
    let is_page = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:bivouac-fences"))
    };
    let pages = descriptors.map(|entry| entry.path()).filter(is_page);
    pages.map(|path| std::fs::metadata(path).expect("a page").ino()).collect()
}

#[test]
fn servers_that_are_started_again_can_fence_what_was_passed_before() {
    let site = Site::new("survivor-fences");
    let name = site.up(2);
    let mut writer = Program::start(&site, &name, "preload");
    writer.run("f = os.open('/bivouac/f', os.O_RDWR | os.O_CREAT)");
    writer.run("assert os.pwrite(f, b'a' * 3000000, 0) == 3000000");
    let pid = writer.run("print(os.getpid())").trim().parse().expect("a number");
    let its = fence_pages(pid);
    assert!(!its.is_empty(), "it writes directly");
    kill_all(&site, &name);
    site.bivouac(["up", &name]).ok();
    let pages: BTreeSet<u64> = site.daemons(&name).iter().flat_map(|(_, pid)| fence_pages(*pid)).collect();
    assert_eq!(pages, its, "the servers have the page that the program looks at");
    writer.run("assert kept_trying(lambda: os.pwrite(f, b'b' * 3000000, 0)) == 3000000");
    assert_eq!(site.sh(&name, "tr -d b < /bivouac/f | wc -c").ok(), "0\n");
    assert_eq!(fence_pages(pid), its);
    writer.end();
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_survivor_opens_hands_on_and_unlinks_files_as_before() {
    let site = Site::new("survivor-opens");
    let name = site.up(3);
    let mut program = Program::start(&site, &name, "preload");
    program.run(
        "held = open('/bivouac/held', 'w+'); held.write('held'); held.flush(); os.unlink('/bivouac/held')",
    );
    program.run("lock = open('/bivouac/lock', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)");
    program.run("out = open('/bivouac/out', 'w')");
    kill_all(&site, &name);
    site.bivouac(["up", &name]).ok();
    // Children know descriptors from before and from after.
    program.run("new = kept_trying(lambda: open('/bivouac/new', 'w'))");
    program.run("subprocess.run(['echo', 'old'], stdout=out, check=True); subprocess.run(['echo', 'new'], stdout=new, check=True)");
    assert_eq!(site.sh(&name, "cat /bivouac/out /bivouac/new").ok(), "old\nnew\n");
    program.run("held.seek(0); assert held.read() == 'held'");
    // Its agent has told the server what it has locked.
    let try_lock = "import fcntl; fcntl.lockf(open('/bivouac/lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let locked = || site.sh(&name, &format!("python3 -c \"{try_lock}\" 2> /dev/null")).code != 0;
    assert!(locked());
    let inodes = site.total(&name, "inodes");
    program.run("held.close()");
    eventually("the unlinked file is freed", || site.total(&name, "inodes") == inodes - 1);
    Site::kill(program.child.id() as i32, Signal::KILL);
    program.end();
    eventually("what it had open is closed", || site.total(&name, "opens") == 0);
    assert!(!locked());
}

#[test]
fn what_died_together_with_the_daemons_is_closed_and_freed() {
    let site = Site::new("survivor-none");
    let name = site.up(3);
    let mut program = Program::start(&site, &name, "preload");
    program
        .run("f = open('/bivouac/f', 'wb', buffering=0); f.write(b'x' * 1000000); os.unlink('/bivouac/f')");
    program.run("g = open('/bivouac/g', 'wb', buffering=0); g.write(b'x' * 1000000)");
    let inodes = site.total(&name, "inodes");
    kill_all(&site, &name);
    Site::kill(program.child.id() as i32, Signal::KILL);
    program.end();
    site.bivouac(["up", &name]).ok();
    // Nobody is waited for who is known to hold nothing.
    eventually("the unlinked file is freed", || site.total(&name, "inodes") == inodes - 1);
    assert_eq!(site.total(&name, "opens"), 0);
    assert_eq!(site.sh(&name, "stat -c %s /bivouac/g").ok(), "1000000\n");
}

#[test]
fn a_program_that_first_asks_while_nobody_answers_gets_on_when_the_daemons_are_back() {
    let site = Site::new("survivor-begins");
    for access in accesses() {
        let name = site.up(2);
        site.sh(&name, "echo content > /bivouac/file").ok();
        let mut program = Program::start(&site, &name, access);
        program.run("pass");
        kill_all(&site, &name);
        program.run("assert not os.path.exists('/bivouac/file')");
        site.bivouac(["up", &name]).ok();
        program.run("assert kept_trying(lambda: open('/bivouac/file').read()) == 'content\\n'");
        program.run("assert kept_trying(lambda: open('/bivouac/other', 'w').write('more')) == 4");
        program.end();
    }
}
