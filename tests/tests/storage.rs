//! Storage that fails under servers while programs use a deployment with copies: the programs do not notice, nothing that
//! was acknowledged is lost, and when the storage works again all copies are the same.

use bivouac_tests::failing::{FailingDir, Fault, On};
use bivouac_tests::load::{BLOCKS, NAMES, all_in_step};
use bivouac_tests::{Site, eventually, skipped_without_mount};
use rustix::io::Errno;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Longest time that an operation may take while storage fails, seconds: the controller has to hear of it, a server has to
/// take over, and the machine is busy.
const WORST: f64 = 10.0;

/// Three servers with two copies of everything, on storage that can fail. (Fields are dropped in this order.)
struct Scene {
    site: Site,
    name: String,
    dir: FailingDir,
}

impl Scene {
    fn new(test: &str) -> Scene {
        let dir = FailingDir::new(test);
        let site = Site::in_memory(test);
        let options = ["--replicas", "2", "--block-size", "64K", "--heal-after", "never", "--storage"];
        let name = site.up_with(3, &[&options[..], &[&dir.path().to_string_lossy()]].concat());
        Scene { site, name, dir }
    }

    /// From now on, operations of a kind fail in these directories of a server's storage.
    fn fail(&self, server: u64, directories: &[&str], on: On, error: Errno) {
        let path = |directory: &&str| format!("-{server}/{directory}");
        self.dir.fail(Fault { paths: directories.iter().map(path).collect(), on, error });
    }

    /// In how many groups and shards a server is behind.
    fn behind(&self, server: usize) -> u64 {
        self.site.status(&self.name)["servers"][server]["behind"].as_u64().expect("a number")
    }

    /// Everything is the same everywhere, as `verify` says.
    fn verify(&self) {
        verify(&self.site, &self.name);
    }
}

/// `verify` finds nothing.
fn verify(site: &Site, name: &str) {
    let found = site.bivouac(["verify", name, "--rate", "0", "--json"]);
    let told: serde_json::Value =
        serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{} {}", found.out, found.err));
    assert_eq!((found.code, &told["findings"]), (0, &serde_json::json!([])), "{}", found.err);
}

/// A program that checks everything that it does.
struct Load {
    child: Child,
    stop: PathBuf,
    says: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Load {
    fn start(site: &Site, name: &str, program: &str, number: usize) -> Load {
        let (path, stop) = (site.path(&format!("load{number}.py")), site.path(&format!("stop{number}")));
        std::fs::write(&path, program).expect("written");
        let mut command = site.command(["exec", name, "--", "python3", "-B"]);
        command.arg(&path).arg(format!("/bivouac/load{number}")).arg(&stop);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let load = Load { child, stop, says };
        let begun = PathBuf::from(format!("{}.begun", load.stop.display()));
        eventually("the load has begun", || begun.exists());
        load
    }

    /// Ends it; how long its longest operation took, seconds.
    fn end(mut self) -> f64 {
        std::fs::write(&self.stop, "").expect("written");
        let told = self.says.next().expect("it has not failed").expect("a line");
        if let Some(input) = &mut self.child.stdin {
            // The one that looks at all again on demand.
            let _ = writeln!(input, "look");
        }
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("ends").success(), "the load has failed");
        told.split_whitespace().last().and_then(|worst| worst.parse().ok()).expect(&told)
    }
}

/// Both loads run while `fault` is set for a while on server 1; then it is healed, and everything has to be whole again.
fn under_load(test: &str, directories: &[&str], on: On, error: Errno) {
    if skipped_without_mount() {
        return;
    }
    let scene = Scene::new(test);
    let loads = [BLOCKS, NAMES].into_iter().enumerate();
    let loads: Vec<Load> =
        loads.map(|(number, program)| Load::start(&scene.site, &scene.name, program, number)).collect();
    for _ in 0..2 {
        scene.fail(1, directories, on, error);
        eventually("the fault is met", || scene.dir.hits() > 0);
        eventually("the server is left out", || scene.behind(1) > 0);
        std::thread::sleep(Duration::from_secs(2));
        assert!(scene.behind(1) > 0, "it must not be relied on while its storage fails");
        scene.dir.heal();
        all_in_step(&scene.site, &scene.name);
    }
    let worst = loads.into_iter().map(Load::end).fold(0.0, f64::max);
    assert!(worst < WORST, "an operation took {worst} s");
    scene.verify();
    // Others show their copies of what server 0 holds, which are server 1's among others.
    look_without(&scene.site, &scene.name, &[0, 2]);
    scene.site.bivouac(["down", &scene.name]).ok();
}

const LOOK: &str = "cd /bivouac && find . -type f | sort | xargs md5sum";

/// Everything looks the same without each of these servers.
fn look_without(site: &Site, name: &str, servers: &[u64]) {
    let sums = site.sh(name, LOOK).ok();
    for server in servers {
        kill(site, name, *server);
        assert_eq!(site.sh(name, LOOK).ok(), sums, "without server {server}");
        site.bivouac(["restart", name, &server.to_string()]).ok();
        all_in_step(site, name);
    }
}

fn kill(site: &Site, name: &str, server: u64) {
    Site::kill(site.server_pid(name, server), Signal::KILL);
    let state = || site.status(name)["servers"][server as usize]["state"].clone();
    eventually("status shows the dead server", || state() == "down");
}

#[test]
fn eio_when_blocks_are_written() {
    under_load("eio-write", &["sub/", "crc/"], On::WRITE, Errno::IO);
}

#[test]
fn eio_when_blocks_are_read() {
    under_load("eio-read", &["sub/"], On::READ, Errno::IO);
}

#[test]
fn eio_when_blocks_are_synced() {
    under_load("eio-sync", &["sub/"], On::SYNC, Errno::IO);
}

#[test]
fn eio_when_the_log_is_written() {
    under_load("eio-log", &["meta/"], On::WRITE, Errno::IO);
}

#[test]
fn eio_everywhere() {
    under_load("eio-all", &[""], On::READ.and(On::WRITE).and(On::SYNC), Errno::IO);
}

#[test]
fn erofs_everywhere() {
    under_load("erofs", &[""], On::WRITE.and(On::OPEN_TO_WRITE), Errno::ROFS);
}
