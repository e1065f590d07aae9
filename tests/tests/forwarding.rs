//! A directory of the site's storage that is forwarded: unmodified programs use it through I/O nodes, also where their node does
//! not see it, and find there what the backend keeps.

use bivouac_layout::{Assign, Forwarding, Ino, NodeId, ServerId};
use bivouac_tests::forwarding::{CHECKS, LOOK, TOOLS, WORK, backend, local};
use bivouac_tests::paused::Paused;
use bivouac_tests::{Finished, Network, Site, eventually, hiding, ranks, skipped_without_root};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn up(site: &Site, directory: &Path, options: &[&str]) -> String {
    site.up_with(2, &[&["--forward", directory.to_str().expect("text")], options].concat())
}

/// Runs a script where the node does not see the backend.
fn without_backend(site: &Site, name: &str, directory: &Path, script: &str) -> Finished {
    let inner = site.command(["exec", name, "--", "bash", "-c", script]);
    bivouac_tests::finish(hiding(directory, &inner))
}

#[test]
fn programs_find_what_they_would_find_in_a_directory_of_their_own() {
    let site = Site::new("forwarding");
    let directory = backend(&site);
    let own = site.path("own");
    fs::create_dir(&own).expect("a directory");
    let expected = local(&own, WORK);
    let name = up(&site, &directory, &[]);
    let cd = format!("cd {}; ", directory.display());
    assert_eq!(site.sh(&name, &format!("{cd}{WORK}")).ok(), expected);
    // The backend has it, and nothing else.
    assert_eq!(local(&directory, LOOK), local(&own, LOOK));
    let shown: serde_json::Value =
        serde_json::from_str(&site.bivouac(["forward", &name, "--json"]).ok()).expect("JSON");
    assert!(shown["io_nodes"][0]["requests_in"].as_u64() > Some(100), "{shown}");
    assert_eq!(shown["io_nodes"][0]["opens"], 0, "{shown}");
    assert_eq!(site.status(&name)["forwarding"]["io_nodes"], shown["io_nodes"]);
    let status = site.bivouac(["status", &name]).ok();
    let line = format!("{} is forwarded by 1 I/O node: ", directory.display());
    assert!(status.contains(&line) && status.contains(" each came, "), "{status}");
    site.bivouac(["down", &name]).ok();
    assert_eq!(local(&directory, LOOK), local(&own, LOOK));
}

#[test]
fn the_nodes_of_programs_need_not_see_the_backend() {
    if skipped_without_root("hiding a directory") {
        return;
    }
    let site = Site::new("forwarding-unseen");
    let directory = backend(&site);
    let own = site.path("own");
    fs::create_dir(&own).expect("a directory");
    let expected = local(&own, WORK);
    for assign in ["node", "file"] {
        let name = up(&site, &directory, &["--io-nodes", "2", "--assign", assign]);
        let cd = format!("cd {}; ", directory.display());
        assert_eq!(
            without_backend(&site, &name, &directory, &format!("{cd}{WORK}")).ok(),
            expected,
            "{assign}"
        );
        assert_eq!(local(&directory, LOOK), local(&own, LOOK), "{assign}");
        site.bivouac(["down", &name]).ok();
        fs::remove_dir_all(&directory).expect("removed");
        fs::create_dir(&directory).expect("a directory");
    }
}

#[test]
fn links_and_paths_that_lead_out_are_followed_by_the_node_and_never_by_the_io_node() {
    if skipped_without_root("hiding a directory") {
        return;
    }
    let site = Site::new("forwarding-out");
    let directory = backend(&site);
    let outside = site.path("outside");
    fs::write(&outside, "of the node\n").expect("a file");
    std::os::unix::fs::symlink(&outside, directory.join("absolute")).expect("a link");
    std::os::unix::fs::symlink("../../outside", directory.join("relative")).expect("a link");
    let name = up(&site, &directory, &[]);
    let scratch = directory.parent().expect("one");
    let script = format!(
        "cd {0}; cat absolute relative; cat ../../outside; ls -1 ..; echo in > inside; cat {1}/./me/inside; cd ..; cat me/inside",
        directory.display(),
        scratch.display()
    );
    let said = without_backend(&site, &name, &directory, &script).ok();
    assert_eq!(said, "of the node\nof the node\nof the node\nme\nin\nin\n");
    assert_eq!(fs::read_to_string(directory.join("inside")).expect("written"), "in\n");
}

#[test]
fn what_the_backend_refuses_programs_are_told() {
    if skipped_without_root("mounting a small file system") {
        return;
    }
    let site = Site::new("forwarding-refused");
    let directory = backend(&site);
    let small = bivouac_tests::staging::Small::mount(&directory, 4);
    let name = up(&site, &directory, &[]);
    let cd = format!("cd {}; ", directory.display());
    let figures = local(&directory, "df --output=size . | tail -n 1");
    assert_eq!(site.sh(&name, &format!("{cd}df --output=size . | tail -n 1")).ok(), figures);
    let script = "head -c 8000000 /dev/zero > full; echo $?; rm full; head -c 1000000 /dev/zero > fits; stat -c %s fits";
    let told = site.sh(&name, &format!("{cd}{script}"));
    assert!(told.err.contains("No space left on device"), "{}", told.err);
    assert_eq!(told.ok(), "1\n1000000\n");
    let remount = |how: &str| {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&directory).status();
        assert!(done.expect("runs").success());
    };
    remount("ro");
    let told = site.sh(&name, &format!("{cd}cat fits | wc -c; echo x > new; mkdir d; rm fits; true"));
    assert_eq!(told.err.matches("Read-only file system").count(), 3, "{}", told.err);
    assert_eq!(told.ok(), "1000000\n");
    remount("rw");
    site.sh(&name, &format!("{cd}rm fits; echo x > new")).ok();
    drop(small);
}

#[test]
fn who_cannot_be_forwarded_is_told_why() {
    let site = Site::new("forwarding-bad");
    let directory = backend(&site);
    let here = directory.to_str().expect("text");
    let name = site.up(2);
    let forward = |arguments: &[&str]| site.bivouac(["forward", &name].iter().chain(arguments));
    forward(&["--io-nodes", "2"]).fails(65, &["no directory is forwarded yet"]);
    forward(&[&format!("{here}/none")]).fails(65, &["cannot forward", "No such file or directory"]);
    forward(&["/bivouac/x"]).fails(65, &["cannot"]);
    forward(&[here, "--io-nodes", "3"]).fails(65, &["3 servers cannot forward: there are 2"]);
    forward(&[here, "--io-nodes", "nobody"]).fails(65, &["no server that is up runs on \"nobody\""]);
    forward(&[here, "--scheduler", "best"]).fails(2, &["fifo, to, sjf"]);
    site.bivouac(["up", "x", "--io-nodes", "2"]).fails(65, &["--forward DIR"]);
    assert!(forward(&[]).ok().contains("no directory is forwarded"));
    assert!(
        forward(&[here, "--io-nodes", "2", "--scheduler", "aioli"])
            .ok()
            .contains("2 I/O nodes, scheduler aioli")
    );
    // Without I/O nodes programs use it themselves.
    assert!(forward(&["--io-nodes", "0"]).ok().contains("programs use it themselves"));
    assert_eq!(
        site.sh(&name, &format!("echo x > {here}/x; cat {here}/x; env | grep -c FORWARDED")).out,
        "x\n0\n"
    );
}

#[test]
fn what_programs_of_the_site_change_is_seen_and_the_other_way_round() {
    let site = Site::new("forwarding-both");
    let directory = backend(&site);
    let name = up(&site, &directory, &[]);
    let cd = format!("cd {}; ", directory.display());
    fs::create_dir(directory.join("d")).expect("made");
    fs::write(directory.join("d/f"), "before").expect("written");
    assert_eq!(site.sh(&name, &format!("{cd}cat d/f; echo more > d/f")).ok(), "before");
    assert_eq!(fs::read_to_string(directory.join("d/f")).expect("read"), "more\n");
    // Another directory gets the name.
    fs::rename(directory.join("d"), directory.join("e")).expect("renamed");
    fs::create_dir(directory.join("d")).expect("made");
    fs::write(directory.join("d/f"), "another").expect("written");
    fs::set_permissions(directory.join("e"), fs::Permissions::from_mode(0o700)).expect("a mode");
    assert_eq!(site.sh(&name, &format!("{cd}cat d/f e/f; stat -c %a e")).ok(), "anothermore\n700\n");
    let inode = fs::metadata(directory.join("d/f")).expect("there").ino();
    fs::remove_dir_all(directory.join("d")).expect("removed");
    let across = "import os\nfor call in (os.rename, os.link):\n try: call('e/f', '/bivouac/f')\n except OSError as e: print(e.errno)";
    assert_eq!(
        site.sh(
            &name,
            &format!("{cd}python3 -c \"{across}\"; mv e/f /bivouac/f; cat /bivouac/f; mv /bivouac/f e/f")
        )
        .ok(),
        "18\n18\nmore\n"
    );
    let gone = site.sh(&name, &format!("{cd}cat d/f; ls -1; stat -c %h e/f"));
    assert!(gone.err.contains("No such file"), "{inode}: {}", gone.err);
    assert_eq!(gone.ok(), "e\n1\n");
}

#[test]
fn the_number_of_io_nodes_changes_while_programs_run() {
    let site = Site::new("forwarding-changes");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    for assign in ["node", "file"] {
        let name = site.up_with(4, &["--forward", path, "--assign", assign]);
        fs::write(directory.join("program.py"), CHECKS).expect("written");
        let script = format!("cd {path}; python3 program.py names");
        let mut command = site.command(["exec", &name, "--", "bash", "-c", &script]);
        let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        eventually("the program works", || directory.join("own3").exists());
        for round in 0..20 {
            for io_nodes in ["4", "2", "0", "1", "3"] {
                let shown = site.bivouac(["forward", &name, "--io-nodes", io_nodes]).ok();
                assert!(
                    io_nodes == "0" || shown.contains(&format!("{io_nodes} I/O node")),
                    "{round}: {shown}"
                );
                // The others have the time to use them; or the next ones come while not everybody has heard of these.
                std::thread::sleep(Duration::from_millis(if round % 2 == 0 { 30 } else { 0 }));
            }
        }
        fs::write(directory.join("stop"), "").expect("written");
        let ended = program.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{assign}: {}", String::from_utf8_lossy(&ended.stderr));
        let rounds: Vec<u32> = said.lines().map(|line| line.parse().expect("a number")).collect();
        assert!(rounds.len() == 4 && rounds.iter().all(|rounds| *rounds > 2), "{assign}: {rounds:?}");
        // Nothing stays open anywhere.
        let opens = || {
            site.bivouac(["forward", &name, "--io-nodes", "4"]).ok();
            let shown: serde_json::Value =
                serde_json::from_str(&site.bivouac(["forward", &name, "--json"]).ok()).expect("JSON");
            let nodes = shown["io_nodes"].as_array().expect("I/O nodes").clone();
            nodes.iter().filter_map(|node| node["opens"].as_u64()).sum::<u64>()
        };
        eventually("everything is closed", || opens() == 0);
        site.bivouac(["down", &name]).ok();
        fs::remove_dir_all(&directory).expect("removed");
        fs::create_dir(&directory).expect("made");
    }
}

#[test]
fn an_io_node_that_is_killed_is_replaced_by_others_and_nothing_acknowledged_is_lost() {
    let site = Site::new("forwarding-killed");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = site.up_with(2, &["--forward", path, "--io-nodes", "1"]);
    let script = format!(
        "cd {path}; exec 5>> log; for i in $(seq 1000000); do echo $i >&5 && [ ! -e {1} ] || break; echo $i > {0}; done 2> /dev/null; echo ended",
        site.path("acknowledged").display(),
        site.path("stop").display()
    );
    let mut command = site.command(["exec", &name, "--", "bash", "-c", &script]);
    let mut program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let acknowledged = || -> u64 {
        let said = fs::read_to_string(site.path("acknowledged")).unwrap_or_default();
        said.trim().parse().unwrap_or(0)
    };
    eventually("the program writes", || acknowledged() > 100);
    Site::kill(site.server_pid(&name, 0), rustix::process::Signal::KILL);
    // What was under way just then has failed, because nobody knows whether it was done; or nothing was, and the program goes on.
    let until = acknowledged() + 100;
    eventually("it ends or goes on", || {
        program.try_wait().expect("ours").is_some() || acknowledged() > until
    });
    fs::write(site.path("stop"), "").expect("written");
    let ended = program.wait_with_output().expect("ends");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "ended\n");
    let lines = fs::read_to_string(directory.join("log")).expect("there");
    let last: u64 = lines.lines().last().expect("lines").parse().expect("a whole line");
    assert!(last >= acknowledged(), "{last} of {}", acknowledged());
    assert_eq!(lines.lines().count() as u64, last, "each line once");
    site.bivouac(["forward", &name, "--io-nodes", "1"]).ok();
    assert_eq!(
        site.sh(&name, &format!("tail -n 1 {path}/log; echo x > {path}/x; cat {path}/x")).ok(),
        format!("{last}\nx\n")
    );
}

/// Syncs a file. Whether something that was written to it before may be lost, which is said once.
const TOLD: &str = r#"import errno
def told(fd):
    try: os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EIO: raise
        os.fsync(fd); return True
    return False
def block"#;

/// Makes a file that one of two I/O nodes serves, where that goes by the file.
fn make_at(directory: &Path, name: &str, server: ServerId) {
    let forwarding = Forwarding {
        directory: String::new(),
        io_nodes: vec![ServerId(0), ServerId(1)],
        former: Vec::new(),
        assign: Assign::File,
        scheduler: String::new(),
    };
    // Those that are not it stay, so that the next one gets another number.
    for turn in 0..64 {
        let tried = directory.join(format!("{name}-{turn}"));
        fs::write(&tried, "").expect("written");
        let ino = Ino::forwarded(fs::metadata(&tried).expect("there").ino());
        if forwarding.io_node(NodeId::NONE, ino) == server {
            return fs::rename(tried, directory.join(name)).expect("renamed");
        }
    }
    panic!("64 files belong to the other I/O node");
}

fn another_server_forwards(test: &str, copies: &str) {
    let site = Site::new(test);
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    // By file: both have something to do.
    let options = ["--replicas", copies, "--forward", path, "--io-nodes", "2", "--assign", "file"];
    let name = site.up_with(3, &options);
    // Files stay open. That an I/O node is gone through which they have written, programs hear by the next fsync, and only by that.
    let source = CHECKS
        .replacen("def block", TOLD, 1)
        .replace("rounds = 0", "rounds = 0; lost = 0")
        .replace("os.fsync(own)", "lost += told(own) + told(shared)")
        .replace("b\"%d\\n\" % rounds", "b\"%d\\n\" % lost");
    fs::write(directory.join("program.py"), source).expect("written");
    for number in 0..2 {
        make_at(&directory, &format!("own{number}"), ServerId(number));
    }
    let script = format!("cd {path}; python3 program.py");
    let mut command = site.command(["exec", &name, "--", "bash", "-c", &script]);
    let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    eventually("the program works", || directory.join("own3").exists());
    let io_nodes = || -> Vec<u64> {
        let shown = site.status(&name)["forwarding"]["io_nodes"].clone();
        shown.as_array().expect("a list").iter().filter_map(|node| node["server"].as_u64()).collect()
    };
    assert_eq!(io_nodes(), [0, 1]);
    let has_served = |number: usize| {
        site.status(&name)["forwarding"]["io_nodes"][number]["requests_in"].as_u64() > Some(100)
    };
    eventually("both have served it", || has_served(0) && has_served(1));
    // It hangs until others have taken its place, and goes on then with whatever it had begun.
    let hangs = site.server_pid(&name, 1);
    Site::stop(hangs);
    eventually("the other one forwards alone", || io_nodes() == [0]);
    std::thread::sleep(Duration::from_millis(500));
    Site::kill(hangs, rustix::process::Signal::CONT);
    std::thread::sleep(Duration::from_millis(500));
    // The last one dies.
    Site::kill(site.server_pid(&name, 0), rustix::process::Signal::KILL);
    eventually("another server forwards", || io_nodes().iter().all(|server| *server != 0));
    eventually("it has served it", || has_served(0));
    std::thread::sleep(Duration::from_millis(500));
    fs::write(directory.join("stop"), "").expect("written");
    let ended = program.wait_with_output().expect("ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let lost: Vec<u32> =
        String::from_utf8_lossy(&ended.stdout).lines().map(|line| line.parse().expect("a number")).collect();
    // Of two files and two I/O nodes that have gone. One that is there again by then can sync what it has written.
    assert!(
        lost.len() == 4 && lost.iter().all(|lost| *lost <= 4) && lost.iter().any(|lost| *lost > 0),
        "{lost:?}"
    );
}

#[test]
fn another_server_forwards_for_one_that_dies_or_hangs() {
    another_server_forwards("forwarding-relieved", "1");
}

#[test]
fn another_server_forwards_for_one_that_dies_or_hangs_where_there_are_copies() {
    another_server_forwards("forwarding-relieved-copies", "2");
}

#[test]
fn mpi_io_tar_sqlite_and_fio_verify_everything_while_one_io_node_becomes_four_and_none_and_two() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::new("forwarding-tools");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = net.deploy(&site, &["--forward", path, "--assign", "file"]);
    let stop = site.path("stop");
    fs::create_dir(directory.join("mpi")).expect("made");
    fs::create_dir(directory.join("tools")).expect("made");
    let mut ranks = ranks::start(&net, &site, &name, &format!("{path}/mpi"), &stop);
    let script = format!("cd {path}/tools; {}", TOOLS.replace("$1", &stop.to_string_lossy()));
    let mut command = site.command_on(&net.names[1], ["exec", &name, "--", "bash", "-c", &script]);
    let tools = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let rounds = || -> u32 {
        let said = fs::read_to_string(directory.join("mpi/rounds")).unwrap_or_default();
        said.trim().parse().unwrap_or(0)
    };
    let goes_on = |what: &str| {
        let now = rounds();
        eventually(&format!("all ranks have done two rounds more {what}"), || rounds() >= now + 2);
    };
    for io_nodes in ["1", "4", "0", "2", "3", "1"] {
        site.bivouac(["forward", &name, "--io-nodes", io_nodes]).ok();
        goes_on(&format!("through {io_nodes}"));
        std::thread::sleep(Duration::from_secs(1));
    }
    fs::write(&stop, "").expect("written");
    println!("{}", ranks::verified(&mut ranks));
    let ended = tools.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    let numbers: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == 500 * numbers[1] && numbers[1] > 0, "{said}");
    println!("{said}");
}

#[test]
fn locks_follow_their_owners_from_io_node_to_io_node() {
    let site = Site::new("forwarding-locks");
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = site.up_with(4, &["--forward", path, "--io-nodes", "1"]);
    let script = format!(
        r#"cd {path}; exec python3 -u - <<'PY'
import fcntl, os, sys, time
def can(kind, f, start=0, length=0):
    try: fcntl.lockf(f, kind | fcntl.LOCK_NB, length, start); fcntl.lockf(f, fcntl.LOCK_UN, length, start); return "free"
    except OSError: return "taken"
def other(f):
    pid = os.fork()
    if pid == 0:
        with open("locked", "r+") as g: print(can(fcntl.LOCK_EX, g, 0, 10), can(fcntl.LOCK_SH, g, 20, 10), can(fcntl.LOCK_EX, g, 20, 10), can(fcntl.LOCK_EX, g, 50, 10))
        os._exit(0)
    os.waitpid(pid, 0)
def change(number):
    open("want", "w").write(str(number))
    while not os.path.exists("done%d" % number): time.sleep(0.01)
f = open("locked", "w+")
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0); fcntl.lockf(f, fcntl.LOCK_SH, 10, 20); other(f)
change(4); other(f)
fcntl.lockf(f, fcntl.LOCK_UN, 5, 0); other(f)
change(2); fcntl.lockf(f, fcntl.LOCK_EX, 10, 0); other(f)
change(3); fcntl.lockf(f, fcntl.LOCK_UN); other(f)
change(1); fcntl.lockf(f, fcntl.LOCK_EX); other(f)
change(5); f.close(); f = open("locked", "r+"); other(f)
PY"#
    );
    let mut command = site.command(["exec", &name, "--", "bash", "-c", &script]);
    let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    for number in ["4", "2", "3", "1", "5"] {
        eventually("the program wants other I/O nodes", || {
            fs::read_to_string(directory.join("want")).is_ok_and(|wanted| wanted == number)
        });
        // 5: one again, another one.
        let io_nodes = if number == "5" { "2" } else { number };
        site.bivouac(["forward", &name, "--io-nodes", io_nodes]).ok();
        fs::write(directory.join(format!("done{number}")), "").expect("written");
    }
    let ended = program.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let held = "taken free taken free\n";
    let none = "free free free free\n";
    let all = "taken taken taken taken\n";
    let expected = [held, held, held, held, none, all, none].concat();
    assert_eq!(said, expected, "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn programs_go_on_with_what_they_have_open_when_the_io_node_is_killed_and_started_again() {
    let mut site = Site::new("forwarding-restarted");
    site.restarts_servers();
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = site.up_with(2, &["--forward", path, "--io-nodes", "1"]);
    fs::write(directory.join("program.py"), CHECKS).expect("written");
    let script = format!("cd {path}; python3 program.py");
    let mut command = site.command(["exec", &name, "--", "bash", "-c", &script]);
    let program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    eventually("the program works", || directory.join("own3").exists());
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(300));
        let serving = || {
            let server = site.status(&name)["servers"][0].clone();
            server["pid"].as_i64().filter(|_| server["capacity"].is_u64())
        };
        let killed = serving().expect("it serves");
        Site::kill(killed as i32, rustix::process::Signal::KILL);
        eventually("it is started again", || serving().is_some_and(|pid| pid != killed));
    }
    std::thread::sleep(Duration::from_millis(300));
    fs::write(directory.join("stop"), "").expect("written");
    let ended = program.wait_with_output().expect("ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Has each call made by a process of its own, which has a connection already. Prints when they are ready, and what each said. The
/// I/O node is stopped in between, and dies with the first requests.
const UNKNOWN: &str = r#"
import os, sys, time
os.chdir(sys.argv[1])
for name in ("to-remove", "to-rename", "data", "appended"):
    open(name, "w").write("before")
data = os.open("data", os.O_RDWR)
appended = os.open("appended", os.O_WRONLY | os.O_APPEND)
calls = {
    "mkdir": lambda: os.mkdir("made"),
    "exclusive": lambda: os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "unlink": lambda: os.unlink("to-remove"),
    "rename": lambda: os.rename("to-rename", "renamed"),
    "append": lambda: os.write(appended, b"more"),
    "pwrite": lambda: os.pwrite(data, b"after ", 0),
    "stat": lambda: os.stat("data").st_size,
    "pread": lambda: os.pread(data, 6, 0) in (b"before", b"after "),
    "create": lambda: os.open("shared", os.O_CREAT | os.O_WRONLY) > 0,
    "fsync": lambda: os.fsync(data),
}
ready, is_ready = os.pipe()
go, goes = os.pipe()
said, say = os.pipe()
children = []
for name, call in calls.items():
    children.append(os.fork())
    if children[-1] == 0:
        os.close(goes)
        os.stat("data")
        os.write(is_ready, b"r")
        os.read(go, 1)
        os.write(is_ready, b"c")
        try: answer = repr(call())
        except OSError as error: answer = os.strerror(error.errno)
        os.write(say, ("%s %s\n" % (name, answer)).encode())
        os._exit(0)
for _ in calls: assert os.read(ready, 1) == b"r"
print("ready", flush=True)
sys.stdin.readline()
os.close(goes)
for _ in calls: assert os.read(ready, 1) == b"c"
# All have sent their requests: they have been seen to wait for something else than the pipe. Their sockets are there already.
def waits(pid):
    state = open("/proc/%d/stat" % pid).read().rpartition(") ")[2].split()[0]
    call = open("/proc/%d/syscall" % pid).read().split()
    return state == "S" and len(call) > 2 and int(call[1], 16) != go
until = time.monotonic() + 4
waiting = set(children)
while waiting and time.monotonic() < until:
    waiting = {pid for pid in waiting if not waits(pid)}
    time.sleep(0.01)
assert not waiting, "not all have sent their requests: %s" % [list(calls)[children.index(pid)] for pid in waiting]
print("calling", flush=True)
for _ in calls: os.wait()
print(os.read(said, 10000).decode(), end="")
print("afterwards", sorted(os.listdir(".")), open("appended").read())
"#;

#[test]
fn what_a_killed_io_node_may_have_done_is_an_error_and_never_a_guess() {
    let mut site = Site::new("forwarding-unknown");
    site.restarts_servers();
    let directory = backend(&site);
    let path = directory.to_str().expect("text");
    let name = site.up_with(2, &["--forward", path, "--io-nodes", "1"]);
    let mut program = Paused::start(site.command(["exec", &name, "--", "python3", "-c", UNKNOWN, path]));
    let io_node = site.status(&name)["servers"][0]["pid"].as_i64().expect("a process") as i32;
    // What is sent to a stopped process is lost with it, and whoever sent it cannot know that.
    Site::stop(io_node);
    program.go_on();
    assert_eq!(program.next_line(), "calling\n");
    Site::kill(io_node, rustix::process::Signal::KILL);
    let said = program.end();
    let said: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    for call in ["append", "exclusive", "mkdir"] {
        assert_eq!(said[call], "Input/output error", "{call}");
    }
    let well = [("create", "True"), ("fsync", "None"), ("pread", "True"), ("pwrite", "6"), ("stat", "6")];
    for (call, answer) in well {
        assert_eq!(said[call], answer, "{call}");
    }
    // These begin with a look, which can be repeated: then they were not sent before.
    let removed = said["unlink"] == "None";
    let renamed = said["rename"] == "None";
    assert!(removed || said["unlink"] == "Input/output error", "{said:?}");
    assert!(renamed || said["rename"] == "Input/output error", "{said:?}");
    let mut names =
        vec!["'appended'", "'data'", if renamed { "'renamed'" } else { "'to-rename'" }, "'shared'"];
    names.extend((!removed).then_some("'to-remove'"));
    names.sort();
    assert_eq!(said["afterwards"], format!("[{}] before", names.join(", ")));
}

/// Writes and reads a file past the page cache, and says what was wrong.
const DIRECT: &str = r#"
import fcntl, mmap, os, sys
memory = mmap.mmap(-1, 1 << 20)
memory.write(bytes(i % 251 for i in range(1 << 20)))
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
for i in range(8): assert os.pwritev(fd, [memory], i << 20) == 1 << 20
back = mmap.mmap(-1, 1 << 20)
for i in range(8):
    assert os.preadv(fd, [back], i << 20) == 1 << 20
    assert back[:] == memory[:], i
assert os.preadv(fd, [back], 8 << 20) == 0
# Not aligned, and appended.
assert os.pwrite(fd, b"odd", 12345) == 3 and os.pread(fd, 3, 12345) == b"odd"
"#;

#[test]
fn with_o_direct_data_goes_past_the_page_cache_of_the_io_node_in_the_library_and_in_a_mount() {
    let site = Site::new("forwarding-direct");
    let directory = backend(&site);
    let name = up(&site, &directory, &["--io-nodes", "1"]);
    let program = site.path("direct.py");
    fs::write(&program, DIRECT).expect("written");
    let program = program.to_str().expect("text");
    let mut ways = vec![("library", vec![])];
    if !skipped_without_root("mounting") {
        ways.push(("mount", vec!["--fuse"]));
    }
    for (way, options) in ways {
        let file = directory.join(way);
        let path = file.to_str().expect("text");
        let command = [&["exec", &name], &options[..], &["--", "python3", program, path]].concat();
        site.bivouac(&command).ok();
        assert_eq!(fs::metadata(&file).expect("there").len(), 8 << 20, "{way}");
        // All but the page of what was not aligned.
        let pages = local(&directory, &format!("fincore --bytes --noheadings --output PAGES {way}"));
        assert!(pages.trim().parse::<u32>().is_ok_and(|pages| pages <= 64), "{way}: {pages} pages");
    }
    let shown: serde_json::Value =
        serde_json::from_str(&site.bivouac(["forward", &name, "--json"]).ok()).expect("JSON");
    assert!(shown["io_nodes"][0]["bytes_in"].as_u64() >= Some(16 << 20), "{shown}");
}
