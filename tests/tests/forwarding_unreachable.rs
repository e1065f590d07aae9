//! An I/O node that hangs for ten seconds or is cut off from the programs that it serves: nothing that was acknowledged is lost, and
//! where there are copies, programs see no error.

use bivouac_tests::signalled::Signalled;
use bivouac_tests::{Cut, Network, Site, eventually, skipped_without_root};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of a deployment that keeps two of everything.
const COPIES: [&str; 4] = ["--replicas", "2", "--metadata-replicas", "2"];

/// Writes blocks of two files and checks all that was acknowledged, again and again. Says how many errors there were: a write that
/// has failed is repeated until it does not. `fsync` may say that something may be lost, once for each file and each I/O node.
const CHECKS: &str = r#"
import random
def block(number, turn): return (b"%07d %07d," % (number, turn)) * 256
size = len(block(0, 0)); errors = 0; doubts = 0; turn = 0
files = [os.open("checked%d" % number, os.O_RDWR | os.O_CREAT) for number in range(2)]
last = [{}, {}]
turns = os.open(os.path.join(sys.argv[2], "turn"), os.O_CREAT | os.O_WRONLY)
def stubborn(call):
    global errors
    while True:
        try: return call()
        except OSError as e:
            if e.errno != errno.EIO: raise
            errors += 1; time.sleep(0.05)
while not is_said("stop"):
    turn += 1
    for fd, known in zip(files, last):
        number = random.randrange(64)
        assert stubborn(lambda: os.pwrite(fd, block(number, turn), number * size)) == size
        known[number] = turn
        number = random.choice(list(known))
        read = stubborn(lambda: os.pread(fd, size, number * size))
        assert read == block(number, known[number]), (number, known[number], read[:20])
    stubborn(lambda: os.stat("checked0"))
    if turn % 50 == 0:
        for fd in files:
            try: os.fsync(fd)
            except OSError as e:
                if e.errno != errno.EIO: raise
                doubts += 1
        say("works")
    os.pwrite(turns, b"%010d" % turn, 0)
for fd, known in zip(files, last):
    for number, written in known.items():
        assert stubborn(lambda: os.pread(fd, size, number * size)) == block(number, written), number
print(errors, doubts)
"#;

fn backend(site: &Site) -> PathBuf {
    let directory = site.path("scratch");
    fs::create_dir_all(&directory).expect("a directory");
    directory.canonicalize().expect("a path")
}

/// How many turns the program has done.
fn turns(site: &Site) -> u64 {
    fs::read_to_string(site.path("checks.signals/turn")).ok().and_then(|said| said.parse().ok()).unwrap_or(0)
}

fn goes_on(program: &mut Signalled, site: &Site, when: &str) {
    let now = turns(site);
    program.does(&format!("goes on {when}"), || turns(site) > now + 100);
}

/// Ends the program: how often it got EIO, and how often an fsync said that something may be lost.
fn end(program: Signalled) -> (u64, u64) {
    program.say("stop");
    let said = program.ok();
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn an_io_node_that_is_stopped_for_ten_seconds_loses_nothing() {
    let site = Site::new("unreachable-stopped");
    let directory = backend(&site);
    let name = site.up_with(2, &["--forward", directory.to_str().expect("text"), "--io-nodes", "1"]);
    let mut program = Signalled::start_in(&site, &name, "checks", CHECKS, &directory);
    program.hears("works");
    let io_node = site.server_pid(&name, 0);
    Site::stop(io_node);
    std::thread::sleep(Duration::from_secs(10));
    Site::kill(io_node, Signal::CONT);
    goes_on(&mut program, &site, "afterwards");
    let (errors, doubts) = end(program);
    println!("{errors} errors, {doubts} doubts");
    assert_eq!(site.status(&name)["forwarding"]["io_nodes"][0]["server"], 0);
}

#[test]
fn where_there_are_copies_programs_see_no_error_of_an_io_node_that_is_stopped_for_ten_seconds() {
    let site = Site::new("unreachable-relieved");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = site.up_with(3, &[&COPIES[..], &["--forward", path, "--io-nodes", "1"]].concat());
    let mut program = Signalled::start_in(&site, &name, "checks", CHECKS, &directory);
    program.hears("works");
    let io_node = site.server_pid(&name, 0);
    Site::stop(io_node);
    let stopped = Instant::now();
    goes_on(&mut program, &site, "through another one");
    std::thread::sleep(Duration::from_secs(10).saturating_sub(stopped.elapsed()));
    Site::kill(io_node, Signal::CONT);
    eventually("it is a server again", || site.states(&name).iter().all(|state| state == "up"));
    goes_on(&mut program, &site, "afterwards");
    let (errors, doubts) = end(program);
    assert!(errors == 0 && doubts <= 2, "{errors} errors, {doubts} doubts");
}

#[test]
fn where_there_are_copies_programs_see_no_error_of_an_io_node_whose_link_is_cut() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::new("unreachable-cut");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let io_node = &net.names[2];
    let name = net.deploy(&site, &[&COPIES[..], &["--forward", path, "--io-nodes", io_node]].concat());
    let command = site.command_on(&net.names[0], ["exec", &name, "--"]);
    let mut program = Signalled::start(&site, command, "checks", CHECKS, &directory);
    program.hears("works");
    net.cut(2, Cut::Link, true);
    goes_on(&mut program, &site, "through another one");
    let serves = site.status(&name)["forwarding"]["io_nodes"][0]["server"].clone();
    assert_ne!(serves, 2);
    net.cut(2, Cut::Link, false);
    eventually("it is a server again", || site.states(&name).iter().all(|state| state == "up"));
    goes_on(&mut program, &site, "afterwards");
    let (errors, doubts) = end(program);
    assert!(errors == 0 && doubts <= 2, "{errors} errors, {doubts} doubts");
}

#[test]
fn programs_go_on_when_the_link_of_their_io_node_is_there_again() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::pair();
    let site = Site::new("unreachable-link");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = net.deploy(&site, &["--forward", path, "--io-nodes", &net.names[1]]);
    let command = site.command_on(&net.names[0], ["exec", &name, "--"]);
    let mut program = Signalled::start(&site, command, "checks", CHECKS, &directory);
    program.hears("works");
    net.cut(1, Cut::Link, true);
    eventually("it is down", || site.states(&name).iter().any(|state| state == "down"));
    let before = turns(&site);
    net.cut(1, Cut::Link, false);
    eventually("it is a server again", || site.states(&name).iter().all(|state| state == "up"));
    goes_on(&mut program, &site, "afterwards");
    assert!(turns(&site) > before);
    let (errors, doubts) = end(program);
    println!("{errors} errors, {doubts} doubts");
}
