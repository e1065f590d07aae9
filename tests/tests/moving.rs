//! What goes wrong most easily when files move to other servers: a file that is never at rest, what stays behind where blocks
//! have left, programs that know nothing of it, and servers that come back to files that have changed and moved meanwhile.

use bivouac_tests::load::{Load, all_in_step, copies_agree};
use bivouac_tests::{Site, eventually};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// One block of the deployments here, bytes.
const BLOCK: u64 = 64 << 10;

/// Keeps one large file open, writes and reads anywhere in it, and makes it longer, without a pause, until a file says stop. How
/// much it has done stands in a file beside that one.
const LARGE: &str = r"
import os, random, sys, time
home, stop = sys.argv[1:3]
random.seed(3)
os.mkdir(home)
content, worst, count = bytearray(), 0, 0
fd = os.open(f'{home}/large', os.O_RDWR | os.O_CREAT)
def put(data, at):
    global worst, count
    begun = time.monotonic()
    assert os.pwrite(fd, data, at) == len(data)
    worst, count = max(worst, time.monotonic() - begun), count + 1
    content[at:at + len(data)] = data
for at in range(0, 192 << 20, 4 << 20): put(random.randbytes(4 << 20), at)
turn = 0
while not os.path.exists(stop):
    turn += 1
    put(random.randbytes(20000), random.randrange(len(content)))
    if turn % 10 == 0: put(random.randbytes(3000), len(content))
    at = random.randrange(len(content))
    assert os.pread(fd, 20000, at) == content[at:at + 20000], at
    if turn % 20 == 0:
        assert os.fstat(fd).st_size == len(content)
        with open(stop + '.new', 'w') as f: f.write(f'{count} {worst}')
        os.rename(stop + '.new', stop + '.count')
    if turn == 60: open(stop + '.begun', 'w').close()
again = os.open(f'{home}/large', os.O_RDONLY)
for other in (fd, again):
    for at in range(0, len(content) + 1, 1 << 20):
        assert os.pread(other, 1 << 20, at) == content[at:at + (1 << 20)], at
print(count, worst)
";

fn verify(site: &Site, name: &str) {
    let said = site.bivouac(["verify", name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
}

/// The servers that hold blocks of a file, as `layout -d` says.
fn holders(site: &Site, name: &str, file: &str) -> usize {
    let said = site.bivouac(["layout", "-d", name, file]).ok();
    said.lines().filter(|line| line.trim_start().starts_with("server ")).count()
}

#[test]
fn a_large_file_that_a_program_writes_all_the_time_moves_too_range_by_range() {
    let site = Site::in_memory("moving-large");
    let name = site.name("moves");
    site.bivouac(["up", &name, "--servers", "2", "--block-size", "256K"]).ok();
    let mut load = Load::start(&site, &name, LARGE, "large");
    let count = || -> u64 {
        let said = std::fs::read_to_string(site.path("large.stop.count")).expect("it works");
        said.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
    };
    let mut change = |words: &[&str], then: usize| {
        let (begun, before) = (Instant::now(), count());
        let mut child = site.command(words).stdout(Stdio::null()).spawn().expect("starts");
        let (mut parts, mut seen) = (BTreeSet::new(), Vec::new());
        let ended = loop {
            if let Some(ended) = child.try_wait().expect("a child") {
                break ended;
            }
            // While it moves, one part of the file is here and another part there.
            let said = site.bivouac(["layout", "-d", &name, "/large/large"]).ok();
            parts.extend(said.lines().find(|line| line.contains("server 2 ")).map(str::to_owned));
            seen.push(count());
            assert!(begun.elapsed() < Duration::from_secs(100), "it does not end: {said}");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert!(ended.success(), "{words:?}");
        let (took, done) = (begun.elapsed(), count() - before);
        seen.dedup();
        println!(
            "{}: {took:?}, {done} writes meanwhile, seen at {} moments; {parts:?}",
            words[0],
            seen.len()
        );
        assert!(parts.len() > 4, "it goes range by range: {parts:?}");
        assert!(took > Duration::from_secs(1) && done > 100 && seen.len() > 5, "it has written all the time");
        assert_eq!(holders(&site, &name, "/large/large"), then);
        load.assert_alive();
    };
    // Each of the two new servers takes in some 50 MiB; later, each of the three that stay takes in 16 MiB. At these rates, either
    // takes two seconds or more, so that this sees it on its way.
    change(&["expand", &name, "--servers", "+2", "--max-rate", "20M"], 4);
    change(&["shrink", &name, "--server", "0", "--max-rate", "8M"], 3);
    let done = load.end();
    assert!(done.worst < 10.0, "a write has waited for {} s", done.worst);
    verify(&site, &name);
    site.bivouac(["down", &name]).ok();
}

/// The sub-files of an inode on this machine, by their servers.
fn sub_files(storage: &Path, ino: u64) -> BTreeMap<u64, PathBuf> {
    let mut found = BTreeMap::new();
    let hex = format!("{ino:016x}");
    let mut left = vec![storage.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).expect("readable").flatten() {
            if entry.file_type().expect("a type").is_dir() {
                left.push(entry.path());
            } else if entry.file_name().to_string_lossy() == hex {
                // Its checksums have the same name.
                let path = entry.path();
                let mut parts = path.strip_prefix(storage).expect("below").iter();
                let place = parts.next().expect("a directory");
                if parts.next().is_none_or(|part| part != "sub") {
                    continue;
                }
                let server = place.to_string_lossy().rsplit('-').next().and_then(|word| word.parse().ok());
                found.insert(server.expect("directories are named after servers"), path);
            }
        }
    }
    found
}

/// Which blocks a sub-file has data in, and how long it is.
fn blocks_in(path: &Path) -> (Vec<u64>, u64) {
    let file = File::open(path).expect("opens");
    let length = file.metadata().expect("a status").len();
    let (mut blocks, mut at) = (Vec::new(), 0);
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        blocks.push(data / BLOCK);
        at = (data / BLOCK + 1) * BLOCK;
    }
    (blocks, length)
}

/// Each block of these files is on as many servers as it is to be and nowhere else, and no sub-file is longer than its last
/// block: a longer one would be taken for the file's length where nobody knows that better.
fn nothing_is_left_behind(storage: &Path, files: &[(u64, u64)], copies: usize, when: &str) {
    for (ino, size) in files {
        let mut holders: BTreeMap<u64, usize> = BTreeMap::new();
        for (server, path) in sub_files(storage, *ino) {
            let (blocks, length) = blocks_in(&path);
            let end = blocks.last().map_or(0, |last| ((last + 1) * BLOCK).min(*size));
            assert_eq!(
                length, end,
                "{when}: the sub-file of {ino:x} on server {server}, with blocks {blocks:?}"
            );
            blocks.iter().for_each(|block| *holders.entry(*block).or_default() += 1);
        }
        let expected: BTreeMap<u64, usize> = (0..size.div_ceil(BLOCK)).map(|block| (block, copies)).collect();
        assert_eq!(holders, expected, "{when}: file {ino:x} of {size} bytes");
    }
}

fn holes_and_lengths(test: &str, copies: usize) {
    let site = Site::in_memory(test);
    let (name, storage) = (site.name("moves"), site.path("storage"));
    std::fs::create_dir(&storage).expect("made");
    let (text, replicas) = (storage.to_string_lossy().into_owned(), copies.to_string());
    let options =
        ["--block-size", "64K", "--heal-after", "never", "--replicas", &replicas, "--storage", &text];
    site.bivouac(["up", &name, "--servers", "3"].iter().chain(&options)).ok();
    // All lengths up to some blocks, so that every server has some last block that leaves it.
    let make = "cd /bivouac && for i in $(seq 24); do head -c $((i * 65536 - i * 100)) /dev/urandom > $i; done; stat -c '%i %s' $(seq 24)";
    let said = site.sh(&name, make).ok();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let files: Vec<(u64, u64)> =
        said.lines().filter_map(|line| line.split_once(' ')).map(|(a, b)| (number(a), number(b))).collect();
    assert_eq!(files.len(), 24);
    // The size of one that is open for writing is what the servers say.
    let look = "import os, hashlib, sys
files = [os.open(f'/bivouac/{i}', os.O_RDWR) for i in range(1, 25)]
while True:
    print(*[os.fstat(fd).st_size for fd in files], *[hashlib.md5(os.pread(fd, 9 << 20, 0)).hexdigest() for fd in files], flush=True)
    if not sys.stdin.readline(): break";
    let mut command = site.command(["exec", &name, "--", "python3", "-B", "-c", look]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let (mut told, says) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut says = BufReader::new(says).lines();
    let first = says.next().expect("it lives").expect("text");
    let sizes: Vec<u64> = first.split(' ').take(24).map(number).collect();
    assert_eq!(sizes, files.iter().map(|(_, size)| *size).collect::<Vec<_>>());
    nothing_is_left_behind(&storage, &files, copies, "before");
    let changes: [&[&str]; 3] = [
        &["expand", &name, "--servers", "+2"],
        &["shrink", &name, "--server", "1"],
        &["shrink", &name, "--server", "0", "--rebuild", "direct"],
    ];
    for words in changes {
        site.bivouac(words).ok();
        if copies > 1 {
            all_in_step(&site, &name);
        }
        let when = words.join(" ");
        nothing_is_left_behind(&storage, &files, copies, &when);
        writeln!(told).expect("it lives");
        assert_eq!(says.next().expect("it lives").expect("text"), first, "{when}");
        let again = site.sh(&name, "cd /bivouac && stat -c '%i %s' $(seq 24)").ok();
        assert_eq!(again, said, "{when}");
    }
    drop(told);
    assert!(child.wait().expect("ends").success());
    verify(&site, &name);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_block_that_moved_away_leaves_a_hole_and_a_trimmed_local_length() {
    holes_and_lengths("moving-holes-one", 1);
}

#[test]
fn a_block_with_two_copies_that_moved_away_leaves_a_hole_and_a_trimmed_local_length() {
    holes_and_lengths("moving-holes-two", 2);
}

/// Opens everything that a program can have open, and works with it each time that it is told to. What others have done
/// meanwhile is in the line that tells it.
const OLD: &str = r"
import errno, fcntl, hashlib, os, sys
os.chdir('/bivouac/old')
fd = {name: os.open(name, os.O_RDWR) for name in ('kept', 'changed', 'cut', 'gone', 'locked', 'small', 'moved/f')}
log = os.open('log', os.O_WRONLY | os.O_APPEND)
directory = os.open('moved', os.O_RDONLY)
kept = bytearray(os.pread(fd['kept'], 9 << 20, 0))
gone = os.pread(fd['gone'], 9 << 20, 0)
fcntl.lockf(fd['locked'], fcntl.LOCK_EX)
def fails(number, call, *args, **more):
    try: call(*args, **more)
    except OSError as e: assert e.errno == number, e
    else: raise AssertionError(f'{call} {args} succeeds')
turn = 0
print('ready', flush=True)
for line in sys.stdin:
    turn += 1
    changed, where = line.split()
    assert os.pread(fd['kept'], 9 << 20, 0) == kept
    assert os.fstat(fd['kept']).st_size == len(kept)
    assert os.pread(fd['changed'], 9 << 20, 0) == b''.join(b'%07d\n' % (int(changed) + i) for i in range(100000))
    assert os.fstat(fd['cut']).st_size == 1000 + int(changed) and os.pread(fd['cut'], 5000, 1000 + int(changed)) == b''
    assert os.pread(fd['gone'], 9 << 20, 0) == gone and os.fstat(fd['gone']).st_nlink == 0
    fails(errno.ENOENT, os.stat, 'gone')
    fails(errno.ENOENT, os.stat, 'moved')
    assert os.listdir(directory) == ['f'] and os.pread(fd['moved/f'], 100, 0) == b'inside'
    with open(f'{where}/f', 'rb') as f: assert f.read() == b'inside'
    with open('f', 'rb', opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as f: assert f.read() == b'inside'
    # It writes over the whole file, and behind its end.
    for at in range(turn * 50, len(kept), 130000):
        data = os.urandom(2000)
        assert os.pwrite(fd['kept'], data, at) == 2000
        kept[at:at + 2000] = data
    os.fsync(fd['kept'])
    with open('kept', 'rb') as f: assert f.read() == kept
    os.ftruncate(fd['cut'], 1000 + int(changed))
    os.write(log, b'turn %d\n' % turn)
    os.pwrite(fd['small'], b'%d' % turn, 0)
    with open(f'new{turn}', 'wb') as f: f.write(bytes(kept))
    print(hashlib.md5(kept).hexdigest(), flush=True)
";

/// It sleeps while everything changes: every server that it knows has gone, its map is many versions old, and so are the
/// layouts and descriptors that it has.
fn old_programs(test: &str, replicas: &str, access: &str) {
    let site = Site::in_memory(test);
    let name = site.name("moves");
    let options = ["--block-size", "64K", "--heal-after", "never", "--replicas", replicas];
    site.bivouac(["up", &name, "--servers", "2"].iter().chain(&options)).ok();
    let make = "mkdir -p /bivouac/old/moved && cd /bivouac/old && for f in kept changed cut gone; do head -c 3000000 /dev/urandom > $f; done; touch log; echo x > locked; echo 0 > small; printf inside > moved/f";
    site.sh(&name, make).ok();
    let mut command = site.command(["exec", &name, "--access", access, "--", "python3", "-B", "-c", OLD]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let (mut told, says) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut says = BufReader::new(says).lines();
    let mut answer = || says.next().expect("it has failed").expect("text");
    assert_eq!(answer(), "ready");
    let program = child.id() as i32;
    let rounds: [&[&[&str]]; 3] = [
        // Nobody is left of those that it knows.
        &[&["expand", "--servers", "+3"], &["shrink", "--server", "0"], &["shrink", "--server", "1"]],
        &[&["shrink", "--servers", "-1", "--rebuild", "direct"], &["expand", "--servers", "+1"]],
        &[
            &["expand", "--servers", "+2", "--rebuild", "metadata"],
            &["rebuild"],
            &["shrink", "--servers", "-2"],
        ],
    ];
    let mut moved = "moved".to_owned();
    for (round, changes) in rounds.iter().enumerate() {
        Site::stop(program);
        for (at, words) in changes.iter().enumerate() {
            let words: Vec<&str> = [&words[..1], &[name.as_str()], &words[1..]].concat();
            site.bivouac(words).ok();
            let (number, now) = (10 * round + at, format!("moved{round}{at}"));
            let work = format!(
                "cd /bivouac/old && seq -f %07.0f {number} $(({number} + 99999)) > changed && truncate -s $((1000 + {number})) cut \
                 && mv {moved} {now} && rm -f gone"
            );
            site.sh(&name, &work).ok();
            let try_lock = "import fcntl; f = open('/bivouac/old/locked', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)";
            let locked = site.bivouac(["exec", &name, "--", "python3", "-B", "-c", try_lock]);
            assert!(locked.err.contains("BlockingIOError"), "its lock is kept: {}", locked.err);
            moved = now;
        }
        Site::kill(program, Signal::CONT);
        writeln!(told, "{} {moved}", 10 * round + changes.len() - 1).expect("it lives");
        let sum = answer();
        let seen = format!("cd /bivouac/old && md5sum < kept && md5sum < new{} && cat log small", round + 1);
        let seen = site.sh(&name, &seen).ok();
        let turns: String = (1..=round + 1).map(|turn| format!("turn {turn}\n")).collect();
        assert_eq!(seen, format!("{sum}  -\n{sum}  -\n{turns}{}\n", round + 1));
    }
    drop(told);
    assert!(child.wait().expect("ends").success());
    if replicas != "1" {
        all_in_step(&site, &name);
        copies_agree(&site, &name);
    }
    verify(&site, &name);
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn old_programs_with_old_maps_and_cached_descriptors_go_on_after_expansions_and_shrinkages() {
    old_programs("moving-old-one", "1", "preload");
}

#[test]
fn old_programs_go_on_after_expansions_and_shrinkages_with_two_copies() {
    old_programs("moving-old-two", "2", "preload");
}

/// Changes files while a server is away that had parts of them and was given up; or makes them longer when it is back, and says
/// what is in them then.
const GROWN: &str = r"
import hashlib, os, sys
what, where = sys.argv[1:3]
os.chdir('/bivouac')
names = ('cut', 'emptied', 'overwritten', 'replaced', 'left')
expected = {'cut': b'x' * 70001, 'emptied': b'', 'overwritten': b'y' * 2000000, 'replaced': b'z' * 5000, 'left': b'x' * 2000000}
if what == 'make':
    for name in names:
        with open(name, 'wb') as f: f.write(b'x' * 2000000)
elif what == 'change':
    os.truncate('cut', 70001)
    os.truncate('emptied', 0)
    with open('overwritten', 'r+b') as f: f.write(b'y' * 2000000)
    os.unlink('replaced')
    with open('replaced', 'wb') as f: f.write(b'z' * 5000)
elif what == 'grow':
    # By a hole, and by something behind it.
    for name in names:
        fd = os.open(name, os.O_RDWR)
        size, content = int(where), expected[name]
        assert os.fstat(fd).st_size == len(content), name
        os.ftruncate(fd, size)
        assert os.pwrite(fd, b'new', size + 300000) == 3
        want = content + bytes(size + 300000 - len(content)) + b'new'
        for other in (fd, os.open(name, os.O_RDONLY)):
            found = os.pread(other, 9 << 20, 0)
            wrong = [at for at in range(0, len(want), 4096) if found[at:at + 4096] != want[at:at + 4096]]
            assert len(found) == len(want) and not wrong, (name, len(found), len(want), wrong[:3], found[wrong[0]:wrong[0] + 9])
        assert os.fstat(fd).st_size == len(want)
elif what == 'cut':
    for name in names: os.truncate(name, len(expected[name]))
print(*[hashlib.md5(open(name, 'rb').read()).hexdigest() for name in names])
";

/// What a given-up server still has of files is never seen again, neither in what they grow by nor after they have moved.
#[test]
fn a_server_that_was_given_up_and_comes_back_shows_no_old_bytes_in_files_that_grow() {
    let site = Site::in_memory("moving-given-up");
    let name = site.name("moves");
    let options = ["--block-size", "64K", "--heal-after", "never", "--replicas", "2"];
    site.bivouac(["up", &name, "--servers", "4"].iter().chain(&options)).ok();
    let run = |what: &str, size: &str| {
        site.bivouac(["exec", &name, "--", "python3", "-B", "-c", GROWN, what, size]).ok()
    };
    let is_down = |server: usize| site.states(&name)[server] == "down";
    let die = |server: u64| {
        Site::kill(site.server_pid(&name, server), Signal::KILL);
        eventually("it is down", || is_down(server as usize));
    };
    run("make", "0");
    die(1);
    site.bivouac(["heal", &name]).ok();
    run("change", "0");
    site.bivouac(["restart", &name, "1"]).ok();
    all_in_step(&site, &name);
    let grown = run("grow", "2500000");
    // Whoever is asked.
    for server in 0..4 {
        die(server);
        assert_eq!(run("look", "0"), grown, "without server {server}");
        site.bivouac(["restart", &name, &server.to_string()]).ok();
        all_in_step(&site, &name);
    }
    copies_agree(&site, &name);
    // It gets blocks again, where it has had others before.
    site.bivouac(["rebuild", &name]).ok();
    assert_eq!(run("look", "0"), grown, "when they are spread over all again");
    run("cut", "0");
    site.bivouac(["expand", &name, "--servers", "+1"]).ok();
    run("grow", "2500000");
    site.bivouac(["shrink", &name, "--server", "0"]).ok();
    assert_eq!(run("look", "0"), grown);
    copies_agree(&site, &name);
    verify(&site, &name);
    site.bivouac(["down", &name]).ok();
}
