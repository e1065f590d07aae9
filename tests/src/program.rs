//! Programs that lock files and do what they are told, so that a test says when what happens.

use crate::Site;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// How many files the programs lock.
pub const FILES: usize = 12;

/// Makes the files that the programs lock.
pub fn make_files(site: &Site, name: &str) {
    let script =
        format!("cd /bivouac && for n in $(seq 0 {}); do mkdir $n && echo $n > $n/f; done", FILES - 1);
    site.sh(name, &script).ok();
}

/// A program that runs in a deployment and does what it is told, a line of Python at a time.
pub struct Program {
    child: Child,
    says: BufReader<ChildStdout>,
    told: ChildStdin,
}

/// Locks are asked for by kind (`lockf`, `ofd`, `flock`), file, mode, first byte and length. There are so many files that
/// each server has some.
pub const DRIVER: &str = "import errno, fcntl, os, struct, sys, time
EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB
FILES = range(12)
def ofd(f, mode, length, start):
    kind = {EX: fcntl.F_WRLCK, SH: fcntl.F_RDLCK, UN: fcntl.F_UNLCK}[mode & ~NB]
    fcntl.fcntl(f, 37 if mode & NB or mode == UN else 38, struct.pack('hhqqi4x', kind, 0, start, length, 0))
def flock(f, mode, length, start): fcntl.flock(f, mode)
KINDS = {'lockf': fcntl.lockf, 'ofd': ofd, 'flock': flock}
def opened(): return [open(f'/bivouac/{n}/f', 'r+b', buffering=0) for n in FILES]
def each(files, kind, mode, start=0, length=0):
    for f in files: KINDS[kind](f, mode, length, start)
def gives_up(files, kind, start, length):
    # While nobody starts the server this fails, and counts.
    for f in files:
        try: KINDS[kind](f, UN, length, start)
        except OSError as e: assert e.errno == errno.EIO, e
def tried(files, kind, mode, start=0, length=0):
    # How many of the files could be locked; the locks are given up again.
    got = []
    for f in files:
        try:
            KINDS[kind](f, mode | NB, length, start)
            got.append(f)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES): raise
    each(got, kind, UN, start, length)
    return len(got)
for line in sys.stdin:
    exec(line)
    print('done', flush=True)
";

impl Program {
    /// `node`: the namespace that it runs in, if not in the machine's own.
    pub fn start(site: &Site, name: &str, node: Option<&str>, access: &str) -> Program {
        let args = ["exec", name, "--access", access, "--", "python3", "-u", "-c", DRIVER];
        let mut command = node.map_or_else(|| site.command(args), |node| site.command_on(node, args));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe"));
        let told = child.stdin.take().expect("a pipe");
        Program { child, says, told }
    }

    /// Tells it a line.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.told, "{line}").expect("told");
    }

    /// What it says until it has done a line.
    #[track_caller]
    pub fn says(&mut self) -> String {
        let mut said = String::new();
        loop {
            let mut next = String::new();
            assert!(self.says.read_line(&mut next).expect("reads") > 0, "it has ended");
            if next == "done\n" {
                return said;
            }
            said += &next;
        }
    }

    /// Has it execute a line; what that printed.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> String {
        self.tell(line);
        self.says()
    }

    /// How many of the files it can lock.
    #[track_caller]
    pub fn can_lock(&mut self, what: &str) -> usize {
        self.run(&format!("print(tried(files, {what}))")).trim().parse().expect("a number")
    }

    /// The process that executes the lines. (It may be another than the one that was started.)
    pub fn pid(&mut self) -> i32 {
        self.run("print(os.getpid())").trim().parse().expect("a number")
    }

    /// Has it end.
    pub fn end(mut self) {
        drop(self.told);
        let mut rest = String::new();
        let _ = self.says.read_to_string(&mut rest);
        self.child.wait().expect("ends");
    }
}
