//! Servers are replaced by others under their numbers, and old processes that come back answer nobody. Nodes are network
//! namespaces where several are needed.

use bivouac_tests::load::{BLOCKS, Load, NAMES, all_in_step};
use bivouac_tests::{Cut, Network, Site, bivouac, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::time::Duration;

/// Starts a deployment with a server on each of the first few nodes.
fn up(site: &Site, net: &Network, servers: usize, options: &[&str]) -> String {
    net.deploy_on(site, servers, &[&["--block-size", "64K", "--heal-after", "never"], options].concat())
}

fn server(site: &Site, name: &str, number: usize) -> serde_json::Value {
    site.status(name)["servers"][number].clone()
}

fn is_down(site: &Site, name: &str, number: usize) {
    eventually("status shows that the server is down", || server(site, name, number)["state"] == "down");
}

fn kill(site: &Site, name: &str, number: usize) {
    Site::kill(site.server_pid(name, number as u64), Signal::KILL);
    is_down(site, name, number);
}

#[test]
fn a_new_host_takes_the_place_of_a_dead_one_while_programs_check_everything() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory("replace-dead");
    let name = up(&site, &net, 3, &["--replicas", "2"]);
    let mut blocks = Load::start_on(&net.names[0], &site, &name, BLOCKS, "blocks");
    let mut names = Load::start_on(&net.names[0], &site, &name, NAMES, "names");
    // All of the node dies.
    Site::kill(site.agent_pid(&name, 1), Signal::KILL);
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    net.cut(1, Cut::Link, true);
    is_down(&site, &name, 1);
    let said = site.bivouac(["replace", &name, "1", &net.names[3]]).ok();
    let (first, last) = said.split_once('\n').expect("two lines");
    assert_eq!(first, format!("server 1 of {name} is on {} now, and gets what it lacks", net.names[3]));
    assert_eq!(last, "everything has all its copies\n");
    all_in_step(&site, &name);
    let new = server(&site, &name, 1);
    assert_eq!((&new["host"], &new["replaced"]), (&net.names[3].clone().into(), &1.into()), "{new}");
    assert!(new["fetched"].as_u64() > Some(0), "{new}");
    // Programs of the new host see everything.
    on_node(&net.names[3], &site, &name, "ls /bivouac/names /bivouac/blocks > /dev/null").ok();
    blocks.stop();
    names.stop();
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    // The new one has its part: without each of the others everything is there.
    for other in [2, 0] {
        kill(&site, &name, other);
        blocks.sees_the_same(&format!("without server {other}"));
        site.bivouac(["restart", &name, &other.to_string()]).ok();
        all_in_step(&site, &name);
    }
    blocks.succeeds();
    names.succeeds();
    site.bivouac(["down", &name, "--force"]);
}

#[test]
fn a_server_that_is_up_moves_to_a_new_host_and_back_while_programs_check_everything() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory("replace-up");
    let name = up(&site, &net, 3, &["--replicas", "2"]);
    let mut blocks = Load::start_on(&net.names[0], &site, &name, BLOCKS, "blocks");
    let mut names = Load::start_on(&net.names[1], &site, &name, NAMES, "names");
    for (turn, host) in [(1, &net.names[3]), (2, &net.names[0]), (3, &net.names[1])] {
        site.bivouac(["replace", &name, "0", host]).ok();
        let new = server(&site, &name, 0);
        assert_eq!((&new["host"], &new["replaced"]), (&host.as_str().into(), &turn.into()), "{new}");
        all_in_step(&site, &name);
    }
    blocks.stop();
    names.stop();
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    for other in [1, 2, 0] {
        kill(&site, &name, other);
        blocks.sees_the_same(&format!("without server {other}"));
        site.bivouac(["restart", &name, &other.to_string()]).ok();
        all_in_step(&site, &name);
    }
    blocks.succeeds();
    names.succeeds();
    // All daemons are started again where they are now, the added agent among them.
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    all_in_step(&site, &name);
    on_node(&net.names[3], &site, &name, "ls /bivouac/names > /dev/null").ok();
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

/// Reads a file again and again by path and by a descriptor, and notes when each look began and what it showed.
const WATCH: &str = r#"
import os, sys, time
path, out, stop = sys.argv[1:4]
log = open(out, 'w', buffering=1)
f = os.open(path, os.O_RDONLY)
while not os.path.exists(stop):
    for look in (lambda: os.pread(f, 4, 100000), lambda: b'%04d' % (os.stat(path).st_mode & 0o777)):
        begun = time.monotonic()
        try: log.write(f'{begun} {look().decode()}\n')
        except OSError: pass
    time.sleep(0.005)
"#;

/// A server is kept from everybody else, by `part`, replaced meanwhile, and then let go on.
fn the_old_process_answers_nobody(what: &str, part: impl Fn(&Network, i32, bool)) {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::in_memory(what);
    let name = up(&site, &net, 3, &["--replicas", "2"]);
    let (away, here) = (&net.names[1], &net.names[0]);
    let files: Vec<String> = (0..6).map(|n| format!("/bivouac/f{n}")).collect();
    let write = |word: &str, mode: &str| {
        let line = format!(
            "for f in {}; do head -c 100000 /dev/zero > $f.new && printf {word} >> $f.new && cat $f.new > $f && chmod {mode} $f \
             || exit 1; rm $f.new; done",
            files.join(" ")
        );
        on_node(here, &site, &name, &line).ok();
    };
    write("olds", "600");
    let old = site.server_pid(&name, 1);
    let stop = site.path("stop");
    let monotonic = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    std::fs::write(site.path("watch.py"), WATCH).expect("written");
    let seen = |number: usize| site.path(&format!("seen.{number}"));
    let changed = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let program = site.path("watch.py");
            let each = |(number, file): (usize, &String)| {
                format!(
                    "python3 -B {} {file} {} {} &",
                    program.display(),
                    seen(number).display(),
                    stop.display()
                )
            };
            let all: Vec<String> = files.iter().enumerate().map(each).collect();
            on_node(away, &site, &name, &format!("{} wait", all.join(" ")))
        });
        let sees = |word: &str| {
            (0..files.len()).all(|n| std::fs::read_to_string(seen(n)).is_ok_and(|text| text.contains(word)))
        };
        eventually("they look", || sees("olds"));
        part(&net, old, true);
        is_down(&site, &name, 1);
        // Onto a host that has a server already.
        site.bivouac(["replace", &name, "1", &net.names[2]]).ok();
        write("news", "640");
        let changed = monotonic();
        assert!(Site::is_alive(old), "it knows nothing");
        std::thread::sleep(Duration::from_secs(1));
        part(&net, old, false);
        eventually("the old process ends", || !Site::is_alive(old));
        eventually("they see what is new", || sees("news") && sees("416"));
        std::fs::write(&stop, "").expect("written");
        watch.join().expect("ends").ok();
        changed
    });
    for number in 0..files.len() {
        let text = std::fs::read_to_string(seen(number)).expect("a log");
        for (begun, word) in text.lines().filter_map(|line| line.split_once(' ')) {
            let late = begun.parse::<f64>().expect("a time") - changed;
            let is_new = word == "news" || word == "0416";
            assert!(
                is_new || late <= 0.0,
                "file {number}: {word:?} {late:.3} s after the change had returned"
            );
        }
    }
    let log = std::fs::read_to_string(site.home().join(&name).join("logs/server-1.log")).expect("a log");
    assert!(log.contains("another process has this server's number by now"), "{log}");
    all_in_step(&site, &name);
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    assert_eq!(server(&site, &name, 1)["state"], "up");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_process_that_was_stopped_and_goes_on_after_it_was_replaced_answers_nobody_and_ends() {
    the_old_process_answers_nobody("replace-stopped", |_, pid, is_parted| {
        Site::kill(pid, if is_parted { Signal::STOP } else { Signal::CONT });
    });
}

#[test]
fn a_process_that_was_cut_off_and_comes_back_after_it_was_replaced_answers_nobody_and_ends() {
    the_old_process_answers_nobody("replace-cut-off", |net, _, is_parted| net.cut(1, Cut::Link, is_parted));
}

#[test]
fn an_agent_does_not_start_a_server_again_that_was_replaced_and_starts_the_new_one() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let mut site = Site::in_memory("replace-agents");
    site.restarts_servers();
    let name = up(&site, &net, 3, &["--replicas", "2", "--restarts", "1"]);
    let sum =
        on_node(&net.names[0], &site, &name, "head -c 5M /dev/urandom > /bivouac/f && md5sum < /bivouac/f")
            .ok();
    site.bivouac(["replace", &name, "1", &net.names[3]]).ok();
    let first = site.server_pid(&name, 1);
    Site::kill(first, Signal::KILL);
    let pid = || server(&site, &name, 1)["pid"].as_i64();
    eventually("the agent of the new host has started it again", || {
        pid().is_some_and(|pid| pid != i64::from(first)) && server(&site, &name, 1)["restarts"] == 1
    });
    all_in_step(&site, &name);
    assert_eq!(server(&site, &name, 1)["host"], net.names[3].as_str());
    assert_eq!(on_node(&net.names[1], &site, &name, "md5sum < /bivouac/f").ok(), sum);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_cannot_be_replaced_is_refused_and_nothing_changes() {
    let site = Site::in_memory("replace-refused");
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let single = site.up(2);
    kill(&site, &single, 1);
    let replace = |name: &str, more: &[&str]| {
        let args = ["replace", name].into_iter().chain(more.iter().copied());
        site.bivouac(args.collect::<Vec<_>>())
    };
    replace(&single, &["1", &here, "--accept-loss"]).fails(65, &["has one copy of everything", "restart"]);
    site.bivouac(["down", &single]).ok();
    replace(&single, &["1", &here]).fails(64, &["no deployment"]);

    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    let before = site.status(&name)["epoch"].clone();
    replace(&name, &["7", &here]).fails(65, &["has no server 7", "3 servers"]);
    replace(&name, &["1", &here]).fails(65, &["is on", "already", "bivouac restart"]);
    replace(&name, &["1", "192.0.2.1"]).fails(65, &["would not reach each other", "--hosts"]);
    replace(&name, &["1", "no/such"]).fails(65, &["cannot read the host file"]);
    assert_eq!(site.status(&name)["epoch"], before, "nothing has changed");
    // 1 acknowledges alone, and dies; the others come back.
    kill(&site, &name, 0);
    kill(&site, &name, 2);
    site.sh(&name, "for i in 1 2 3 4 5 6 7 8; do echo $i > /bivouac/$i; done");
    kill(&site, &name, 1);
    let restart = |servers: &[&str]| {
        for server in servers {
            let _ = site.command(["restart", &name, server]).status();
        }
    };
    restart(&["0", "2"]);
    replace(&name, &["1", &here])
        .fails(65, &["only server 1 had what was acknowledged last", "--accept-loss"]);
    restart(&["1"]);
    all_in_step(&site, &name);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn no_server_is_replaced_while_most_of_those_who_keep_the_map_are_dead() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory("replace-voters");
    let name = up(&site, &net, 3, &["--replicas", "2"]);
    let unknown = site.bivouac(["replace", &name, "1", "bivouac-no-such"]);
    unknown.fails(65, &["there is no network namespace \"bivouac-no-such\""]);
    let voters = site.status(&name)["voters"].clone();
    let voters: Vec<u64> = voters.as_array().expect("a list").iter().filter_map(|v| v.as_u64()).collect();
    for voter in voters.iter().take(voters.len() / 2 + 1) {
        Site::kill(site.agent_pid(&name, *voter), Signal::KILL);
    }
    let refused = site.bivouac(["replace", &name, "1", &net.names[3]]);
    refused.fails(67, &["the controller of", "does not answer", "most of those agents live"]);
    assert!(site.daemons(&name).iter().filter(|(server, _)| *server == Some(1)).count() == 1);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn what_had_its_only_copy_on_the_old_server_is_named_and_then_gives_errors_instead_of_zeros() {
    let site = Site::in_memory("replace-single");
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    let make = "mkdir /bivouac/single && bivouac layout --replicas 1 --first 1 --width 1 /bivouac/single && \
                head -c 300000 /dev/urandom > /bivouac/single/lost && head -c 300000 /dev/urandom > /bivouac/kept && \
                md5sum < /bivouac/kept";
    let tool = bivouac().parent().expect("a directory").display().to_string();
    let sum = site.sh(&name, &format!("PATH={tool}:$PATH; {make}")).ok();
    let sum = sum.lines().last().expect("a line").to_owned();
    kill(&site, &name, 1);
    let told = ["1 file had blocks without a copy on server 1", "--accept-loss", "-inum"];
    site.bivouac(["replace", &name, "1", &here]).fails(65, &told);
    site.bivouac(["replace", &name, "1", &here, "--accept-loss"]).ok();
    all_in_step(&site, &name);
    assert_eq!(site.sh(&name, "md5sum < /bivouac/kept").ok().trim(), sum);
    for access in bivouac_tests::accesses() {
        let line = "cat /bivouac/single/lost > /dev/null";
        let read = site.bivouac(["exec", &name, "--access", access, "--", "bash", "-c", line]);
        assert!(read.code != 0 && read.err.contains("Input/output error"), "{access}: {read:?}");
    }
    // New files there are as good as any, and what is lost can be removed.
    let again = "cd /bivouac/single && head -c 300000 /dev/zero > new && cmp -n 300000 new /dev/zero && rm lost && ls";
    assert_eq!(site.sh(&name, again).ok(), "new\n");
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    site.bivouac(["down", &name]).ok();
}

/// Writes and reads a file, and another one when it is told to.
const WRITES_AGAIN: &str = r#"
import os, sys, time
begun, go = sys.argv[1:3]
def use(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    for at in range(16):
        assert os.pwrite(fd, b'x' * 65536, at * 65536) == 65536
        assert os.pread(fd, 65536, at * 65536) == b'x' * 65536
use('/bivouac/single/old')
open(begun, 'w').close()
while not os.path.exists(go): time.sleep(.1)
use('/bivouac/single/new')
"#;

#[test]
fn a_program_that_lives_on_accesses_the_new_server_on_its_node_directly_and_under_its_fences() {
    let site = Site::in_memory("replace-here");
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    let tool = bivouac().parent().expect("a directory").display().to_string();
    let make = "mkdir /bivouac/single && bivouac layout --replicas 1 --first 1 --width 1 /bivouac/single > /dev/null";
    site.sh(&name, &format!("PATH={tool}:$PATH; {make}")).ok();
    let (begun, go) = (site.path("begun"), site.path("go"));
    let program = site.path("program.py");
    std::fs::write(&program, WRITES_AGAIN).expect("written");
    let program = format!("exec python3 -B {} {} {}", program.display(), begun.display(), go.display());
    let (direct, said) = std::thread::scope(|scope| {
        let program = scope.spawn(|| site.sh(&name, &program));
        eventually("it has written something", || begun.exists());
        kill(&site, &name, 1);
        site.bivouac(["replace", &name, "1", &here, "--accept-loss"]).ok();
        all_in_step(&site, &name);
        let direct = |what: &str| server(&site, &name, 1)[what].as_u64().expect("a number");
        let before = (direct("direct_bytes_written"), direct("direct_bytes_read"));
        std::fs::write(&go, "").expect("written");
        let said = program.join().expect("ends");
        let after = (direct("direct_bytes_written"), direct("direct_bytes_read"));
        ((after.0 - before.0, after.1 - before.1), said)
    });
    said.ok();
    // What is read and written by the new server's page is counted there.
    assert!(direct.0 >= 900_000 && direct.1 >= 900_000, "{direct:?} bytes");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_server_that_was_given_up_and_comes_back_gets_new_files_and_copies_that_others_are_too_few_for() {
    let site = Site::in_memory("replace-spare");
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = site.up_with(3, &["--replicas", "2", "--block-size", "64K", "--heal-after", "never"]);
    let sum = site.sh(&name, "head -c 10M /dev/urandom > /bivouac/f && md5sum < /bivouac/f").ok();
    kill(&site, &name, 1);
    site.bivouac(["heal", &name]).ok();
    assert_eq!(server(&site, &name, 1)["given_up"], true);
    site.bivouac(["restart", &name, "1"]).ok();
    assert_eq!(server(&site, &name, 1)["given_up"], false);
    all_in_step(&site, &name);
    let stored = |number| server(&site, &name, number)["stored"].as_u64().expect("a number");
    let before = stored(1);
    let other = site.sh(&name, "head -c 10M /dev/urandom > /bivouac/g && md5sum < /bivouac/g").ok();
    assert!(stored(1) > before + (4 << 20), "{} after {before}", stored(1));
    // Without it there would be one server for two copies.
    kill(&site, &name, 2);
    site.bivouac(["heal", &name]).ok();
    assert_eq!(site.status(&name)["incomplete"], 0);
    kill(&site, &name, 0);
    let sums = format!("{sum}{other}");
    assert_eq!(site.sh(&name, "md5sum < /bivouac/f && md5sum < /bivouac/g").ok(), sums);
    site.bivouac(["restart", &name, "0"]).ok();
    // One that was given up, and is replaced, is taken back in the same way.
    site.bivouac(["replace", &name, "2", &here]).ok();
    let new = server(&site, &name, 2);
    assert_eq!((&new["given_up"], &new["replaced"], &new["state"]), (&false.into(), &1.into(), &"up".into()));
    all_in_step(&site, &name);
    assert_eq!(site.sh(&name, "md5sum < /bivouac/f && md5sum < /bivouac/g").ok(), sums);
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    site.bivouac(["down", &name]).ok();
}
