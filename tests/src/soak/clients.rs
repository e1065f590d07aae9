//! Programs are killed in the middle of opens, locks and writes: their locks are free, and each of their writes is there or is not.

use super::Scene;
use crate::kills::Random;
use crate::{eventually, finish};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// So many are killed at once.
const PROGRAMS: usize = 3;

/// Opens, locks, fills a file with one byte, a block at a time, cuts it and writes again; makes and removes others while they are
/// open. Until it is killed.
const WORKS: &str = "import fcntl, os, sys
me, begun = int(sys.argv[1]), sys.argv[2]
os.makedirs('/bivouac/killed', exist_ok=True)
turn = 0
while True:
    turn += 1
    f = os.open(f'/bivouac/killed/{turn % 3}', os.O_CREAT | os.O_RDWR)
    fcntl.lockf(f, fcntl.LOCK_EX)
    if turn % 5 == 0: os.ftruncate(f, 65536)
    for block in range(4): os.pwrite(f, bytes([1 + (me + turn) % 250]) * 65536, block * 65536)
    fcntl.lockf(f, fcntl.LOCK_UN)
    g = os.open(f'/bivouac/killed/own.{me}', os.O_CREAT | os.O_RDWR | os.O_APPEND)
    fcntl.flock(g, fcntl.LOCK_EX)
    os.write(g, b'x' * 5000)
    os.unlink(f'/bivouac/killed/own.{me}')
    os.close(f); os.close(g)
    if turn == 1: open(begun, 'w').close()
";

/// Gets every lock at once, or fails; and sees whole blocks.
const LOOKS: &str = "import errno, fcntl, os, time
for name in os.listdir('/bivouac/killed'):
    f = os.open(f'/bivouac/killed/{name}', os.O_RDWR)
    until = time.time() + 10
    while True:
        try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); break
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES) or time.time() > until: raise
            time.sleep(0.1)
    if name.startswith('own'): os.unlink(f'/bivouac/killed/{name}'); continue
    for block in range(4):
        found = set(os.pread(f, 65536, block * 65536))
        assert len(found) <= 1, (name, block, found)
";

impl Scene<'_> {
    pub(super) fn kill_clients(&self, random: &mut Random) -> String {
        let begin = |number: usize| {
            let (me, begun) = (number.to_string(), self.begun(number));
            let arguments = ["exec", &self.name, "--", "python3", "-c", WORKS, &me, &begun.to_string_lossy()];
            let place = random.below(2) as usize;
            let mut command = match place {
                0 => self.site.command(arguments),
                _ => self.site.command_on(&self.net.names[place], arguments),
            };
            command.stdin(Stdio::null()).spawn().expect("starts")
        };
        let mut children: Vec<_> = (0..PROGRAMS).map(begin).collect();
        let has_begun = |number: &usize| std::fs::remove_file(self.begun(*number)).is_ok();
        let mut waited_for: Vec<_> = (0..PROGRAMS).collect();
        eventually("the programs have begun", || {
            waited_for.retain(|number| !has_begun(number));
            waited_for.is_empty()
        });
        for child in &mut children {
            std::thread::sleep(Duration::from_millis(random.below(400)));
            assert!(child.try_wait().expect("a child").is_none(), "a program has failed");
            child.kill().expect("killed");
            child.wait().expect("ends");
        }
        finish(self.site.command(["exec", &self.name, "--", "python3", "-c", LOOKS])).ok();
        format!("{PROGRAMS} programs")
    }

    /// What one of them makes when it has done everything once.
    fn begun(&self, number: usize) -> PathBuf {
        self.site.path(&format!("killed.{number}"))
    }
}
