//! Machines that die, or are cut off, while their programs have files locked and open: others do not wait for them, and
//! who comes back is told what it has lost.

use bivouac_tests::program::{FILES, Program, make_files};
use bivouac_tests::{Cut, Network, Site, eventually, skipped_without_root};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// From the moment in which a node is not reached any more: after 5 s it is away, and 5 s later its locks have ended.
const ENDED: Duration = Duration::from_secs(10);

/// A file of 8 MiB that has lost its name is open.
const NAMELESS: &str =
    "o = open('/bivouac/o', 'w+b', buffering=0); o.write(bytes(8 << 20)); os.unlink('/bivouac/o')";
/// Locks what can be reached as soon as it is free, and says how much that is.
const TAKES: &str = "
def takes():
    got, left, until = 0, list(files), time.time() + 60
    while left and time.time() < until:
        for f in list(left):
            try: fcntl.lockf(f, EX | NB, 10, 0)
            except OSError as e:
                if e.errno == errno.EIO: left.remove(f)
                else: assert e.errno in (errno.EAGAIN, errno.EACCES), e
            else:
                got += 1
                left.remove(f)
        time.sleep(0.1)
    return got, len(left)
def told():
    lost = 0
    for f in files:
        try: fcntl.lockf(f, UN, 10, 0)
        except OSError as e:
            assert e.errno == errno.EIO, e
            lost += 1
    return lost
";

/// Three nodes with a server each; a program on the first one, and one on the last, which has locked all files.
fn deploy(test: &str, copies: &str) -> (Network, Site, String, [Program; 2]) {
    let (net, site) = (Network::of(3), Site::in_memory(test));
    let name = net.deploy(&site, &["--replicas", copies, "--heal-after", "never"]);
    make_files(&site, &name);
    let source = site.path("takes.py");
    std::fs::write(&source, TAKES).expect("written");
    let programs = [0, 2].map(|node| {
        let mut program = Program::start(&site, &name, Some(&net.names[node]), "preload");
        program.run(&format!("exec(open('{}').read())", source.display()));
        program.run("files = opened()");
        program
    });
    let [other, mut program] = programs;
    program.run("each(files, 'lockf', EX, 0, 10); more = opened(); each(more, 'flock', EX)");
    program.run(NAMELESS);
    (net, site, name, [other, program])
}

/// How many locks it gets, and how long that takes.
fn takes(program: &mut Program) -> (usize, Duration) {
    let begun = Instant::now();
    let said = program.run("print(*takes())");
    let mut counts = said.split_whitespace().map(|n| n.parse::<usize>().expect("a number"));
    let (got, left) = (counts.next().expect("said"), counts.next().expect("said"));
    assert_eq!(left, 0, "locks were waited for in vain");
    (got, begun.elapsed())
}

fn away(site: &Site, name: &str) -> Vec<u64> {
    let status = site.status(name);
    let agents = status["agents"].as_array().expect("a list").iter();
    agents.filter(|agent| agent["away"] == true).filter_map(|agent| agent["node"].as_u64()).collect()
}

#[test]
fn what_a_dead_machine_had_locked_and_open_is_free_within_seconds() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    for copies in ["1", "2"] {
        let (net, site, name, [mut other, mut program]) = deploy("dead-machine", copies);
        let (opens, stored) = (site.total(&name, "opens"), site.total(&name, "stored"));
        let pids = [program.pid(), site.agent_pid(&name, 2), site.server_pid(&name, 2)];
        net.cut(2, Cut::Link, true);
        pids.into_iter().for_each(|pid| Site::kill(pid, Signal::KILL));
        let (got, took) = takes(&mut other);
        println!("{copies} copies: {got} locks were had after {took:?}");
        assert!(took < ENDED, "{took:?}");
        let reached = if copies == "1" { FILES / 3..FILES } else { FILES..FILES + 1 };
        assert!(reached.contains(&got), "{got} of {FILES}");
        eventually("what was open there is not", || site.total(&name, "opens") <= opens - 2 * got as u64);
        if copies == "2" {
            eventually("the room is free again", || site.total(&name, "stored") + (8 << 20) <= stored);
        }
        assert_eq!(away(&site, &name), [2]);
        assert!(site.bivouac(["status", &name]).ok().contains("is not reached"));
        // Nobody waits for that node's agent when servers are started again.
        let begun = Instant::now();
        site.bivouac(["restart", &name, "1"]).ok();
        takes(&mut other);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        other.end();
        site.bivouac(["down", &name]).ok();
    }
}

#[test]
fn who_was_cut_off_is_told_which_locks_it_has_lost_and_goes_on() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site, name, [mut other, mut program]) = deploy("cut-off", "2");
    net.cut(2, Cut::Link, true);
    let (got, took) = takes(&mut other);
    println!("{got} locks were had after {took:?}");
    assert!(took < ENDED && got == FILES, "{got} after {took:?}");
    other.run("files[0].write(b'other')");
    net.cut(2, Cut::Link, false);
    eventually("the node is back", || away(&site, &name).is_empty());
    assert_eq!(program.run("print(told())").trim(), FILES.to_string());
    assert_eq!(program.can_lock("'lockf', EX, 0, 10"), 0);
    assert_eq!(program.run("print(os.pread(files[0].fileno(), 5, 0))").trim(), "b'other'");
    // `flock` locks are lost, too, and nobody else has taken them: the program has to ask for them again.
    assert_eq!(other.can_lock("'flock', EX"), FILES);
    other.run("each(files, 'lockf', UN)");
    assert_eq!(program.can_lock("'lockf', EX, 0, 10"), FILES);
    // What it has open is known again: a name that goes now leaves the file.
    other.run("os.unlink('/bivouac/3/f')");
    program.run("files[3].write(b'kept'); assert os.pread(files[3].fileno(), 4, 0) == b'kept'");
    let nameless = program.run("exec(\"try: print(len(os.pread(o.fileno(), 100, 0)))\\nexcept OSError as e: print(errno.errorcode[e.errno])\")");
    assert_eq!(nameless.trim(), "ENOENT", "it was given up with its room");
    [other, program].into_iter().for_each(Program::end);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn programs_keep_their_locks_when_only_the_daemons_of_their_node_die() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (_net, site, name, [mut other, mut program]) = deploy("daemons", "2");
    [site.agent_pid(&name, 2), site.server_pid(&name, 2)]
        .into_iter()
        .for_each(|pid| Site::kill(pid, Signal::KILL));
    let begun = Instant::now();
    while begun.elapsed() < ENDED {
        assert_eq!(other.can_lock("'lockf', EX, 0, 10"), 0);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(away(&site, &name).is_empty());
    assert_eq!(program.run("print(told())").trim(), "0");
    assert_eq!(other.can_lock("'lockf', EX, 0, 10"), FILES);
    [other, program].into_iter().for_each(Program::end);
    site.bivouac(["down", &name]).ok();
}
