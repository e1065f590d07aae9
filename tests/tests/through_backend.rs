//! A deployment is rebuilt through the site's file system: everything is kept, whenever the command is killed.

use bivouac_tests::paused::Paused;
use bivouac_tests::{Site, eventually};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

/// Files of all kinds.
const FILES: &str = r"
cd /bivouac && mkdir -p a/b wide 'odd name' empty && bivouac layout --block-size 128K --width 1 /bivouac/wide > /dev/null
for i in $(seq 60); do head -c ${i}K /dev/urandom > a/$i; head -c 100 /dev/urandom > a/b/$i; done
head -c 5M /dev/urandom > wide/big; bivouac layout --block-size 1M /bivouac/a/own > /dev/null; head -c 3M /dev/urandom > a/own
truncate -s 20M sparse; echo end >> sparse; ln -s a/1 link; ln a/2 'odd name/second'; mkfifo pipe; : > nothing
chmod 640 a/3; chmod 1750 a/b; touch -d '2001-02-03 04:05:06' a/4 a/b empty; chown 7:8 a/5
setfattr -n user.colour -v blue a/6; setfattr -n user.kind -v dir empty
";

/// All that can be seen of them.
const LOOK: &str = r"
cd /bivouac && find . -printf '%P %y %m %U %G %s %n %l %T@\n' | sort && find . -type f -exec md5sum {} + | sort -k 2
find . -exec getfattr -h -d -m '^user' {} + 2> /dev/null | sort; stat -c '%b' sparse | awk '{ print ($1 < 2000) }'
for f in wide wide/big; do bivouac layout /bivouac/$f | sed -e 's/first=[0-9]*//' | grep -v ' server '; done
for f in a/own a/60 sparse; do bivouac layout /bivouac/$f | grep ' layout ' | sed -e 's/ width=.*//'; done
stat -c %i a/2 'odd name/second' | uniq | wc -l
";

fn begun(site: &Site, servers: &str, options: &[&str]) -> (String, PathBuf, String) {
    let (name, backend) = (site.name("moves"), site.path("backend"));
    std::fs::create_dir(&backend).expect("made");
    let up = ["up", &name, "--servers", servers, "--block-size", "64K"];
    site.bivouac(up.iter().chain(options)).ok();
    let path = bivouac_tests::bivouac().parent().expect("a directory").display().to_string();
    site.sh(&name, &format!("set -e; PATH={path}:$PATH; {FILES}")).ok();
    let before = looked(site, &name);
    assert!(before.contains("user.colour") && before.lines().count() > 250, "{before}");
    (name, backend, before)
}

fn looked(site: &Site, name: &str) -> String {
    let path = bivouac_tests::bivouac().parent().expect("a directory").display().to_string();
    site.sh(name, &format!("set -e; PATH={path}:$PATH; {LOOK}")).ok()
}

#[track_caller]
fn is_the_same(site: &Site, name: &str, before: &str, when: &str) {
    let now = looked(site, name);
    let differs: Vec<(&str, &str)> =
        before.lines().zip(now.lines()).filter(|(a, b)| a != b).take(9).collect();
    assert!(now == before, "{when}: {differs:?}");
}

fn servers(site: &Site, name: &str) -> usize {
    site.status(name)["servers"].as_array().expect("a list").len()
}

/// Nothing of the rebuild is left.
fn is_clean(site: &Site, backend: &PathBuf) {
    let left: Vec<_> = std::fs::read_dir(backend).expect("listed").flatten().map(|e| e.path()).collect();
    assert!(left.is_empty() && !site.home().join(".rebuilding").exists(), "{left:?}");
}

#[test]
fn everything_is_kept_when_a_deployment_grows_and_shrinks_through_the_backend() {
    let site = Site::in_memory("backend-kept");
    let (name, backend, before) = begun(&site, "2", &["--mount", "/bivouac", "--heal-after", "77"]);
    let backend_text = backend.display().to_string();
    let key = || std::fs::read(site.home().join(&name).join("key")).expect("a key");
    let (first_key, pids) = (key(), site.daemons(&name));
    let grow = ["expand", &name, "--servers", "+2", "--rebuild", "backend", "--backend", &backend_text];
    site.bivouac(&grow[..6]).fails(65, &["--backend DIR"]);
    site.bivouac(["rebuild", &name, "--rebuild", "backend"]).fails(65, &["bivouac expand"]);
    // A program is in the way: it is named, and may go on.
    let script = "exec 3< /bivouac/a/1; echo open; sleep 2; cat <&3 | wc -c";
    let mut command = site.command(["exec", &name, "--", "sh", "-c", script]);
    let mut program = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut says = BufReader::new(program.stdout.take().expect("a pipe")).lines();
    assert_eq!(says.next().expect("it lives").expect("text"), "open");
    let who = format!("process {} (sh)", program.id());
    site.bivouac(grow).fails(65, &[&who, "--wait-for-programs"]);
    let waits = site.bivouac(grow.iter().chain(&["--wait-for-programs"]));
    assert!(waits.err.contains(&format!("waits until {who}")), "{}", waits.err);
    assert_eq!(says.next().expect("it has lived").expect("text"), "1024");
    let said = waits.out.clone();
    assert!(waits.code == 0 && program.wait().expect("ends").success(), "{} {}", waits.out, waits.err);
    for phase in ["flush: ", "restart: ", "preload: "] {
        let line = said.lines().find_map(|line| line.strip_prefix(phase)).expect("a line for each phase");
        assert!(line.trim_end_matches(" s").parse::<f64>().is_ok_and(|seconds| seconds > 0.0), "{line}");
    }
    assert!(said.contains("4 servers now"), "{said}");
    is_the_same(&site, &name, &before, "with four servers");
    is_clean(&site, &backend);
    assert!(servers(&site, &name) == 4 && key() != first_key);
    assert!(pids.iter().all(|(_, pid)| !Site::is_alive(*pid)), "all were started anew");
    let record = std::fs::read_to_string(site.home().join(&name).join("daemons.json")).expect("a record");
    assert!(record.contains("\"heal_after\": 77"), "options are kept");
    site.bivouac(["shrink", &name, "--server", "1,2", "--rebuild", "backend", "--backend", &backend_text])
        .ok();
    is_the_same(&site, &name, &before, "with two servers");
    is_clean(&site, &backend);
    // It is one like others.
    site.bivouac(["expand", &name, "--servers", "+1"]).ok();
    is_the_same(&site, &name, &before, "with three servers");
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

/// A program whose first thread has ended is in the way, too.
#[test]
fn a_program_without_its_first_thread_is_not_taken_for_one_that_ends() {
    let site = Site::in_memory("backend-thread");
    let (name, backend) = (site.name("moves"), site.path("backend").display().to_string());
    std::fs::create_dir(&backend).expect("made");
    site.bivouac(["up", &name, "--servers", "1"]).ok();
    let script = r#"
import ctypes, os, sys, threading
def late():
    while open('/proc/self/stat').read().split()[2] != 'Z': pass
    print('ready', flush=True)
    sys.stdin.readline()
    os.write(file, b'late')
    os._exit(0)
file = os.open('/bivouac/file', os.O_CREAT | os.O_WRONLY)
threading.Thread(target=late).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"#;
    let mut program = Paused::start(site.command(["exec", &name, "--", "python3", "-c", script]));
    let grow = ["expand", &name, "--servers", "+1", "--rebuild", "backend", "--backend", &backend];
    site.bivouac(grow).fails(65, &[&format!("process {} (python3)", program.id())]);
    program.go_on();
    program.end();
    site.bivouac(grow).ok();
    assert_eq!(site.sh(&name, "cat /bivouac/file").ok(), "late");
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

/// A command that is killed at any moment leaves what the next one completes; nobody else comes in between.
#[test]
fn a_rebuild_through_the_backend_that_is_killed_again_and_again_completes() {
    let site = Site::in_memory("backend-killed");
    let (name, backend, before) = begun(&site, "3", &[]);
    let backend_text = backend.display().to_string();
    let words = ["shrink", &name, "--servers", "-1", "--rebuild", "backend", "--backend", &backend_text];
    let (mut kills, mut phases) = (0, std::collections::BTreeSet::new());
    let journal = site.home().join(".rebuilding").join(&name);
    let mut last = serde_json::Value::Null;
    for round in 0.. {
        let (said, errors) = (site.path("said"), std::fs::File::create(site.path("said")));
        let errors = errors.expect("a file");
        let mut child = site.command(words).stdout(Stdio::null()).stderr(errors).spawn().expect("starts");
        // Each one is given a little longer, so that the whole is interrupted everywhere.
        std::thread::sleep(Duration::from_millis(30 + 15 * round));
        if let Some(ended) = child.try_wait().expect("known") {
            let said = std::fs::read_to_string(said).expect("text");
            assert!(ended.success(), "after {kills} kills, in {phases:?}: {said}");
            break;
        }
        Site::kill(child.id() as i32, Signal::KILL);
        child.wait().expect("ends");
        kills += 1;
        let Ok(text) = std::fs::read(&journal) else {
            // Before it began, or when it had just ended: the next one would begin anew.
            if servers(&site, &name) == 2 {
                break;
            }
            continue;
        };
        let now: serde_json::Value = serde_json::from_slice(&text).expect("whole");
        phases.insert(now["phase"].as_str().expect("a word").to_owned());
        site.bivouac(["up", &name]).fails(65, &["bivouac rebuild", "--rebuild backend"]);
        let record = std::fs::read(site.home().join(&name).join("daemons.json")).ok();
        let record = record.map(|text| serde_json::from_slice::<serde_json::Value>(&text).expect("whole"));
        let is_closed = record.is_some_and(|record| record["closed"] == true);
        match now["phase"].as_str() {
            Some("restart") => {
                let runs = site.home().join(&name).exists();
                assert!(is_closed || !runs, "from here on nobody uses what is taken down");
            }
            Some("preload" | "remove") if is_closed => {
                let early = site.sh(&name, "ls /bivouac");
                assert!(early.code != 0, "nobody sees half of it: {}", early.out);
                // The copy is all that there is for certain: the new servers may die, too.
                for (_, pid) in site.daemons(&name) {
                    if round % 2 == 0 && Site::is_alive(pid) {
                        Site::kill(pid, Signal::KILL);
                    }
                }
            }
            Some("preload") => {
                panic!("programs are let in only when all is there, and that was written down")
            }
            _ => {}
        }
        last = now;
    }
    println!("killed {kills} times, in {phases:?}");
    assert!(kills >= 4 && phases.len() >= 2, "{kills} {phases:?}");
    assert_eq!(servers(&site, &name), 2);
    is_the_same(&site, &name, &before, "in the end");
    is_clean(&site, &backend);
    // Killed when programs had just been let in: what they do from then on stays.
    site.sh(&name, "echo early > /bivouac/early").ok();
    let all = looked(&site, &name);
    last["phase"] = "remove".into();
    std::fs::create_dir_all(journal.parent().expect("a directory")).expect("made");
    std::fs::create_dir(last["copy"].as_str().expect("a path")).expect("made");
    std::fs::write(&journal, last.to_string()).expect("written");
    site.bivouac(["rebuild", &name, "--rebuild", "backend"]).ok();
    is_the_same(&site, &name, &all, "after the last step");
    is_clean(&site, &backend);
    site.bivouac(["down", &name]).ok();
}

#[test]
fn a_rebuild_through_the_backend_is_given_up_or_refused_and_nothing_has_happened() {
    let site = Site::in_memory("backend-refused");
    let (name, backend, before) = begun(&site, "2", &[]);
    let missing = site.path("no").join("such").display().to_string();
    let grow = |to: &str| {
        site.bivouac(["expand", &name, "--rebuild", "backend", "--servers", "+1", "--backend", to])
    };
    grow(&missing).fails(70, &["no/such"]);
    let shrink = ["shrink", &name, "--servers", "-2", "--rebuild", "backend", "--backend", "/tmp"];
    site.bivouac(shrink).fails(65, &["cannot leave"]);
    site.bivouac(shrink.iter().chain(&["--force"])).fails(65, &["--rebuild backend"]);
    // Killed while it copies: it can be given up.
    let backend_text = backend.display().to_string();
    let words = ["expand", &name, "--servers", "+1", "--rebuild", "backend", "--backend", &backend_text];
    let mut command = site.command(words);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let said = BufReader::new(child.stderr.take().expect("a pipe"));
    eventually("the copy is begun", || site.home().join(".rebuilding").join(&name).exists());
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    drop(said.lines());
    site.bivouac(["expand", &name, "--servers", "+1"]).fails(65, &["bivouac rebuild"]);
    site.bivouac(["rebuild", &name, "--cancel"]).ok();
    is_the_same(&site, &name, &before, "it is as it was");
    is_clean(&site, &backend);
    site.bivouac(["down", &name]).ok();
}
