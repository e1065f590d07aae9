//! Servers leave before everything has left them: what is lost is said, and is never anything else afterwards.

use bivouac_tests::load::{BLOCKS, Load, NAMES, all_in_step, copies_agree};
use bivouac_tests::{Network, Site, eventually, skipped_without_root};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Reads all files in the mount block by block. What can be read is compared with what was written, which `sums` beside the mount
/// says; what cannot is EIO. Prints how many files are whole, how many are not, and how many bytes cannot be read; again for each
/// line of its input. Its first file stays open all the time.
const READER: &str = r"
import hashlib, os, sys
os.chdir('/bivouac')
sums = dict(reversed(line.split()) for line in open(sys.argv[1]))
held = os.open('big', os.O_RDWR)
def look(name, fd):
    size, lost, pieces = os.fstat(fd).st_size, 0, []
    for at in range(0, size, 65536):
        want = min(65536, size - at)
        try:
            piece = os.pread(fd, 65536, at)
            assert len(piece) == want and any(piece), (name, at, len(piece))
            pieces.append(piece)
        except OSError as e:
            assert e.errno == 5, (name, at, e)
            lost += want
    if lost == 0:
        assert hashlib.md5(b''.join(pieces)).hexdigest() == sums[name], name
    return lost
while True:
    losses = []
    for name in sums:
        fd = os.open(name, os.O_RDONLY)
        losses.append(look(name, fd))
        os.close(fd)
    assert look('big', held) == losses[list(sums).index('big')]
    print(losses.count(0), len(losses) - losses.count(0), sum(losses), flush=True)
    if not sys.stdin.readline():
        break
";

/// A program that looks at all files when it is told to.
struct Reader {
    child: Child,
    told: ChildStdin,
    says: std::io::Lines<BufReader<ChildStdout>>,
}

impl Reader {
    fn start(site: &Site, name: &str) -> Reader {
        let script = site.path("reader.py");
        std::fs::write(&script, READER).expect("written");
        let sums = site.path("sums");
        let words = ["exec", name, "--", "python3", "-B"].map(std::ffi::OsStr::new);
        let mut command = site.command(words.into_iter().chain([script.as_os_str(), sums.as_os_str()]));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let (told, says) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Reader { child, told, says: BufReader::new(says).lines() }
    }

    /// How many files are whole, how many are not, and how many bytes are lost.
    fn says(&mut self) -> [u64; 3] {
        let line = self.says.next().expect("it lives").expect("text");
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        numbers.try_into().expect("three numbers")
    }

    fn look(&mut self) -> [u64; 3] {
        writeln!(self.told).expect("it lives");
        self.says()
    }

    fn succeeds(mut self) {
        drop(self.told);
        assert!(self.child.wait().expect("ends").success(), "it has seen what it must not");
    }
}

/// A deployment with files, and a program that has read them.
fn begun(site: &Site, servers: &str, replicas: &str) -> (String, Reader) {
    let name = site.name("leaves");
    let usual = ["--block-size", "64K", "--heal-after", "never", "--replicas", replicas];
    let up = ["up", &name, "--servers", servers];
    site.bivouac(up.iter().chain(&usual)).ok();
    let files = "cd /bivouac && mkdir d && for i in $(seq 40); do head -c ${i}K /dev/urandom > d/$i; done; head -c 24M /dev/urandom > big; md5sum big d/*";
    std::fs::write(site.path("sums"), site.sh(&name, files).ok()).expect("written");
    let mut reader = Reader::start(site, &name);
    assert_eq!(reader.says(), [41, 0, 0]);
    (name, reader)
}

fn numbers(site: &Site, name: &str) -> Vec<u64> {
    let status = site.status(name);
    let all = status["servers"].as_array().expect("a list");
    all.iter().map(|server| server["id"].as_u64().expect("a number")).collect()
}

/// What `shrink --json` has listed as lost: how many files, and how many bytes.
fn told(said: &str) -> (u64, u64) {
    let said: serde_json::Value =
        serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let lost = said["lost"].as_array().expect("a list");
    let sum: u64 = lost.iter().map(|file| file["bytes"].as_u64().expect("a number")).sum();
    assert!(lost.iter().all(|file| file["path"].as_str().is_some_and(|path| path.starts_with("/bivouac/"))));
    assert_eq!(said["lost_bytes"].as_u64(), Some(sum));
    (lost.len() as u64, sum)
}

#[test]
fn what_has_one_copy_and_has_not_moved_is_listed_and_gives_eio_from_then_on() {
    let site = Site::in_memory("leaving-force");
    let (name, mut reader) = begun(&site, "4", "1");
    let pid = site.server_pid(&name, 1);
    let dry = site.bivouac(["shrink", &name, "--server", "1", "--force", "--dry-run", "--json"]);
    assert_eq!((dry.code, numbers(&site, &name).len()), (1, 4), "nothing has happened: {}", dry.err);
    assert_eq!(reader.look(), [41, 0, 0]);
    let said = site.bivouac(["shrink", &name, "--server", "1", "--force", "--json"]);
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    let (files, bytes) = told(&said.out);
    assert_eq!((files, bytes), told(&dry.out));
    assert!(files > 1 && bytes >= 6 << 20, "{said:?}");
    assert_eq!((numbers(&site, &name), Site::is_alive(pid)), (vec![0, 2, 3], false));
    let state = [41 - files, files, bytes];
    assert_eq!(reader.look(), state);
    // Wherever the rest goes, what is lost is not anything else.
    site.bivouac(["rebuild", &name]).ok();
    assert_eq!(reader.look(), state, "after a rebuild");
    site.bivouac(["shrink", &name, "--server", "0"]).ok();
    assert_eq!(reader.look(), state, "when another one has left");
    site.bivouac(["expand", &name, "--servers", "+1"]).ok();
    assert_eq!(reader.look(), state, "when another one has come");
    reader.succeeds();
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    let mut reader = Reader::start(&site, &name);
    assert_eq!(reader.says(), state, "after a restart");
    reader.succeeds();
    let verified = site.bivouac(["verify", &name]);
    assert_eq!(verified.code, 1, "{}", verified.out);
    site.sh(&name, "cd /bivouac && rm -r d big && ! ls d && head -c 1M /dev/urandom > new && md5sum new")
        .ok();
    let verified = site.bivouac(["verify", &name]).ok();
    assert!(verified.contains("everything that was checked is as it should be"), "{verified}");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_has_copies_has_fewer_and_then_as_many_as_before() {
    let site = Site::in_memory("leaving-copies");
    let (name, mut reader) = begun(&site, "4", "2");
    let said = site.bivouac(["shrink", &name, "--server", "2", "--force", "--json"]).ok();
    assert_eq!(told(&said), (0, 0), "{said}");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(said["fewer_copies"].as_array().is_some_and(|files| !files.is_empty()), "{said}");
    assert_eq!(numbers(&site, &name), [0, 1, 3]);
    assert_eq!(reader.look(), [41, 0, 0]);
    // Others get what they lack by themselves.
    all_in_step(&site, &name);
    Site::kill(site.server_pid(&name, 0), Signal::KILL);
    eventually("it is down", || site.states(&name).contains(&"down".to_owned()));
    assert_eq!(reader.look(), [41, 0, 0], "each server's copies are somewhere else, too");
    site.bivouac(["restart", &name, "0"]).ok();
    all_in_step(&site, &name);
    site.bivouac(["shrink", &name, "--server", "0,1", "--force"]).fails(65, &["2 servers at least"]);
    reader.succeeds();
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_deadline_takes_with_it_what_has_not_moved_and_a_command_that_is_killed_before_nothing() {
    let site = Site::in_memory("leaving-deadline");
    let (name, mut reader) = begun(&site, "4", "1");
    site.bivouac(["shrink", &name, "--server", "3", "--deadline", "soon"]).fails(2, &["10m"]);
    site.bivouac(["shrink", &name, "--server", "3", "--deadline", "1m", "--force"]).fails(2, &["--force"]);
    let said = site.bivouac(["shrink", &name, "--server", "3", "--deadline", "1m", "--json"]).ok();
    assert_eq!((told(&said), numbers(&site, &name)), ((0, 0), vec![0, 1, 2]), "it has had time");
    // A command that is killed leaves a server that goes on leaving as usual.
    let words = ["shrink", &name, "--server", "2", "--deadline", "1s", "--max-rate", "1M"];
    let mut child = site.command(words).stdout(Stdio::null()).spawn().expect("starts");
    eventually("it leaves", || site.status(&name)["rebuild"].is_object());
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(numbers(&site, &name), [0, 1, 2], "the deadline has ended with the command");
    assert_eq!(reader.look(), [41, 0, 0]);
    let begun = Instant::now();
    let words = ["shrink", &name, "--server", "2", "--deadline", "1s", "--max-rate", "1M", "--json"];
    let said = site.bivouac(words);
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    let ((files, bytes), took) = (told(&said.out), begun.elapsed());
    assert!(files > 0 && took >= Duration::from_secs(1), "{took:?} {}", said.err);
    assert!(bytes < 8 << 20, "something has moved: {bytes}");
    assert_eq!((reader.look(), numbers(&site, &name)), ([41 - files, files, bytes], vec![0, 1]));
    reader.succeeds();
    site.bivouac(["down", &name]).ok();
}

/// Until the last step everything can be had back, and the same command goes on.
#[test]
fn a_forced_leave_that_is_killed_in_the_middle_loses_nothing_and_can_be_repeated() {
    let site = Site::in_memory("leaving-killed");
    let (name, mut reader) = begun(&site, "3", "1");
    // The server does not end when it is told to: the command waits for it.
    Site::stop(site.server_pid(&name, 1));
    let words = ["shrink", &name, "--server", "1", "--force"];
    let mut child = site.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    std::thread::sleep(Duration::from_millis(700));
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    Site::kill(site.server_pid(&name, 1), Signal::CONT);
    assert_eq!(reader.look(), [41, 0, 0], "it stays, or is still about to leave");
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    eventually("it is down", || site.states(&name).contains(&"down".to_owned()));
    let repeated = site.bivouac(words);
    if repeated.code == 65 {
        // It has still had metadata, which is never lost.
        assert!(repeated.err.contains("bivouac restart"), "{}", repeated.err);
        site.bivouac(["restart", &name, "1"]).ok();
        eventually("it is up", || site.states(&name).iter().all(|state| state == "up"));
        assert_eq!(reader.look(), [41, 0, 0], "nothing was lost");
        assert_eq!(site.bivouac(words).code, 1);
    }
    let [whole, not, bytes] = reader.look();
    assert!(whole + not == 41 && not > 0 && bytes > 0);
    assert_eq!(numbers(&site, &name), [0, 2]);
    reader.succeeds();
    site.bivouac(["down", &name]).ok();
}

/// Who keeps a file from moving is named by the command and by `status`, and after the deadline.
#[test]
fn a_program_that_has_a_file_mapped_is_named_to_whoever_waits_for_it() {
    let site = Site::in_memory("leaving-held");
    let name = site.name("leaves");
    site.bivouac(["up", &name, "--servers", "2", "--width", "1", "--block-size", "64K"]).ok();
    site.sh(&name, "cd /bivouac && mkdir d && for i in $(seq 20); do head -c 100K /dev/urandom > d/$i; done")
        .ok();
    let script = "import mmap, sys; files = [open(f'/bivouac/d/{i}', 'r+b') for i in range(1, 21)]
maps = [mmap.mmap(f.fileno(), 0) for f in files]
print('mapped', flush=True); sys.stdin.readline()";
    let mut command = site.command(["exec", &name, "--", "python3", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut says = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(says.next().expect("it lives").expect("text"), "mapped");
    let words = ["shrink", &name, "--server", "1"];
    let mut shrinks =
        site.command(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut says = BufReader::new(shrinks.stderr.take().expect("a pipe")).lines();
    let told = says.next().expect("it waits").expect("text");
    let who = format!("is held by process {} (python3) on ", child.id());
    assert!(told.contains("/bivouac/d/") && told.contains(&who), "{told}");
    let status = site.status(&name);
    let held = status["rebuild"]["held_by"].as_array().expect("a list").clone();
    assert!(!held.is_empty() && status["rebuild"]["held"].as_u64() == Some(held.len() as u64), "{status}");
    assert!(held.iter().all(|one| one["pid"] == child.id() && one["command"] == "python3"), "{status}");
    let said = site.bivouac(["status", &name]).ok();
    assert!(said.contains(&who), "{said}");
    Site::kill(shrinks.id() as i32, Signal::KILL);
    shrinks.wait().expect("ends");
    // It goes on by itself when the program has ended.
    drop(child.stdin.take());
    assert!(child.wait().expect("ends").success());
    eventually("the server has left", || numbers(&site, &name) == [0]);
    site.sh(&name, "cd /bivouac/d && cat * | wc -c | grep -x 2048000").ok();
    site.bivouac(["down", &name]).ok();
}

/// Where there are copies nobody notices, also on the host that is about to be taken away, whose agent and programs go on.
#[test]
fn programs_of_a_host_whose_servers_leave_at_once_go_on_through_the_others() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory("leaving-host");
    let name = net.deploy(&site, &["--block-size", "64K", "--heal-after", "never", "--replicas", "2"]);
    let mut blocks = Load::start_on(&net.names[3], &site, &name, BLOCKS, "blocks");
    let mut names = Load::start_on(&net.names[0], &site, &name, NAMES, "names");
    let said = site.bivouac(["shrink", &name, "--hosts", &net.names[3], "--force", "--json"]).ok();
    assert_eq!(told(&said), (0, 0), "{said}");
    assert_eq!(numbers(&site, &name), [0, 1, 2]);
    std::thread::sleep(Duration::from_secs(1));
    for load in [&mut blocks, &mut names] {
        load.assert_alive();
        load.stop();
    }
    all_in_step(&site, &name);
    copies_agree(&site, &name);
    blocks.succeeds();
    names.succeeds();
    site.bivouac(["down", &name]).ok();
}
