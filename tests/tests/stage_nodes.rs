//! Preload and flush with several nodes: all take part, and one that dies does not stop the rest.

use bivouac_tests::staging::{contents, make_tree, workers};
use bivouac_tests::{Finished, HANG, Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

fn nodes(count: usize) -> Option<Network> {
    (!skipped_without_root("making network namespaces")).then(|| Network::of(count))
}

/// Bytes that nodes have sent so far.
fn sent(net: &Network) -> u64 {
    let received = |name: &String| {
        let count = fs::read_to_string(format!("/sys/class/net/{name}/statistics/rx_bytes"));
        count.ok().and_then(|count| count.trim().parse::<u64>().ok()).expect("a number")
    };
    net.names.iter().map(received).sum()
}

/// A preload that takes some seconds, with its workers.
fn slow_preload(site: &Site, name: &str, from: &Path, nodes: usize) -> (Child, Vec<i32>) {
    let from = from.display().to_string();
    let words = ["preload", name, &from, "/in", "--max-rate", "6M"];
    let child = site.command(words).stderr(Stdio::piped()).spawn().expect("starts");
    // Which are not those that are left out: they copy.
    let copied = || site.sh(name, "find /bivouac/in -type f | wc -l").out.trim().parse::<u32>();
    eventually("it copies", || copied().is_ok_and(|files| files > 9));
    let copying = workers(site);
    assert_eq!(copying.len(), nodes);
    (child, copying)
}

#[test]
fn all_nodes_copy_and_the_blocks_of_large_files_do_not_cross_the_network() {
    let Some(net) = nodes(3) else { return };
    let site = Site::new("stage-all-nodes");
    let name = net.deploy(&site, &[]);
    let (from, to) = (site.path("from"), site.path("to"));
    make_tree(&from, 10, 30, 20_000);
    let large: Vec<u8> = (0..96 << 20).map(|at: u32| (at / 4099) as u8).collect();
    for number in 0..2 {
        fs::write(from.join(format!("large {number}")), &large).expect("a file");
    }
    let (from_text, to_text) = (from.display().to_string(), to.display().to_string());
    let again = || {
        site.sh(&name, "rm -r /bivouac/in").ok();
    };
    let again_back = || fs::remove_dir_all(&to).expect("removed");
    let copies: [(_, &dyn Fn()); 2] =
        [(["preload", &name, &from_text, "/in"], &again), (["flush", &name, "/in", &to_text], &again_back)];
    for (words, remove) in copies {
        let copy = || {
            let before = sent(&net);
            let done = site.bivouac(words);
            assert_eq!(done.code, 0, "{}", done.err);
            assert!(done.err.contains("by 3 nodes"), "{}", done.err);
            sent(&net) - before
        };
        // Two thirds of all bytes would cross, if blocks were given to any worker. A node without work takes over from one that the
        // machine holds up: such a copy says nothing, and is made again.
        let mut crossed = copy();
        for _ in 0..2 {
            if crossed >= 40 << 20 {
                eprintln!("{crossed} bytes crossed the network: once more");
                remove();
                crossed = copy();
            }
        }
        assert!(crossed < 40 << 20, "{words:?}: {crossed} bytes crossed the network");
    }
    assert_eq!(contents(&to), contents(&from));
    // Each node has seen all of it, wherever it was written.
    for node in &net.names {
        let sum = on_node(node, &site, &name, "cat /bivouac/in/large* | cksum").ok();
        assert_eq!(
            sum,
            on_node(&net.names[0], &site, &name, &format!("cat '{from_text}'/large* | cksum")).ok()
        );
    }
}

#[test]
fn a_worker_that_is_killed_or_stopped_does_not_keep_the_copy_from_being_complete() {
    let Some(net) = nodes(3) else { return };
    let site = Site::new("stage-lost");
    let name = net.deploy(&site, &[]);
    let from = site.path("from");
    make_tree(&from, 12, 20, 200_000);
    fs::write(from.join("large"), vec![9; 40 << 20]).expect("a file");
    for signal in [Signal::KILL, Signal::STOP] {
        let (child, copying) = slow_preload(&site, &name, &from, 3);
        Site::kill(copying[1], signal);
        let begun = Instant::now();
        let done = Finished::of(child.wait_with_output().expect("ends"));
        assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
        assert_eq!(done.code, 0, "{}", done.err);
        assert!(done.err.contains("was lost on the way"), "{}", done.err);
        eventually("the workers have ended", || workers(&site).is_empty());
        let to = site.path("to");
        site.bivouac(["flush", &name, "/in", &to.display().to_string()]).ok();
        assert_eq!(contents(&to), contents(&from));
        fs::remove_dir_all(&to).expect("removed");
        site.sh(&name, "rm -r /bivouac/in").ok();
    }
}

#[test]
fn with_a_dead_command_the_workers_of_all_nodes_end() {
    let Some(net) = nodes(2) else { return };
    let site = Site::new("stage-orphans");
    let name = net.deploy(&site, &[]);
    let from = site.path("from");
    make_tree(&from, 12, 20, 200_000);
    let (mut child, _) = slow_preload(&site, &name, &from, 2);
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ended");
    eventually("the workers have ended", || workers(&site).is_empty());
    site.bivouac(["preload", &name, &from.display().to_string(), "/in"]).ok();
    let to = site.path("to");
    site.bivouac(["flush", &name, "/in", &to.display().to_string()]).ok();
    assert_eq!(contents(&to), contents(&from));
}

#[test]
fn a_server_that_dies_costs_its_files_and_a_repetition_copies_them() {
    let Some(net) = nodes(3) else { return };
    let site = Site::new("stage-server");
    let name = net.deploy(&site, &[]);
    let from = site.path("from");
    make_tree(&from, 12, 20, 200_000);
    let (child, _) = slow_preload(&site, &name, &from, 3);
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    let done = Finished::of(child.wait_with_output().expect("ends"));
    // What it holds fails, by name; the rest goes on.
    assert_eq!(done.code, 68, "{}", done.err);
    assert!(done.err.contains("Input/output error"), "{}", done.err);
    site.bivouac(["restart", &name, "1"]).ok();
    eventually("all servers are up", || site.states(&name).iter().all(|state| state == "up"));
    let again = site.bivouac(["preload", &name, &from.display().to_string(), "/in"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.contains("there already"), "{}", again.err);
    let to = site.path("to");
    site.bivouac(["flush", &name, "/in", &to.display().to_string()]).ok();
    assert_eq!(contents(&to), contents(&from));
}

#[test]
fn with_copies_a_server_that_dies_costs_nothing() {
    let Some(net) = nodes(3) else { return };
    let site = Site::new("stage-copies");
    let name = net.deploy(&site, &["--replicas", "2"]);
    let from = site.path("from");
    make_tree(&from, 12, 20, 200_000);
    let (child, _) = slow_preload(&site, &name, &from, 3);
    Site::kill(site.server_pid(&name, 1), Signal::KILL);
    let done = Finished::of(child.wait_with_output().expect("ends"));
    assert_eq!(done.code, 0, "{}", done.err);
    let to = site.path("to");
    site.bivouac(["flush", &name, "/in", &to.display().to_string()]).ok();
    assert_eq!(contents(&to), contents(&from));
}

/// Below /etc: there a network namespace can have files of its own. They go when it is dropped.
struct Apart {
    shared: PathBuf,
    nodes: Vec<PathBuf>,
}

impl Apart {
    /// A directory that all have; `nodes` have another one under its name.
    fn new(site: &Site, nodes: &[String]) -> Apart {
        let name = site.name("backend");
        let shared = Path::new("/etc").join(&name);
        fs::create_dir(&shared).expect("a directory");
        let own = |node: &String| {
            let own = Path::new("/etc/netns").join(node);
            fs::create_dir_all(own.join(&name)).expect("a directory");
            own
        };
        Apart { shared, nodes: nodes.iter().map(own).collect() }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        for directory in self.nodes.iter().chain([&self.shared]) {
            let _ = fs::remove_dir_all(directory);
        }
        let _ = fs::remove_dir("/etc/netns");
    }
}

#[test]
fn nodes_that_do_not_see_the_backend_are_left_out() {
    let Some(net) = nodes(2) else { return };
    let site = Site::new("stage-apart");
    // The first node sees the same as this machine, the second does not.
    let apart = Apart::new(&site, &net.names[1..]);
    let name = net.deploy(&site, &[]);
    let (from, to) = (apart.shared.join("from"), apart.shared.join("to"));
    make_tree(&from, 3, 5, 9000);
    let (from_text, to_text) = (from.display().to_string(), to.display().to_string());
    let left_out = |done: &Finished, nodes: &[String], by: &str| {
        assert_eq!(done.code, 0, "{}", done.err);
        for node in nodes {
            assert!(done.err.contains(&format!("{node} takes no part: it does not see")), "{}", done.err);
        }
        assert!(done.err.contains(by), "{}", done.err);
    };
    left_out(&site.bivouac(["preload", &name, &from_text, "/in"]), &net.names[1..], "by 1 node");
    left_out(&site.bivouac(["flush", &name, "/in", &to_text]), &net.names[1..], "by 1 node");
    assert_eq!(contents(&to), contents(&from));
    // Each server would have to read its part.
    let lazily = site.bivouac(["preload", &name, &from_text, "/lazily", "--lazy"]);
    lazily.fails(68, &["not all servers see it", &net.names[1], "preload it without --lazy"]);
    assert_eq!(site.sh(&name, "ls /bivouac").ok(), "in\n", "nothing was made");
    drop(apart);
    // Where no node with a server sees it, this machine does all, which has an agent.
    let apart = Apart::new(&site, &net.names);
    let from = apart.shared.join("from");
    make_tree(&from, 3, 5, 9000);
    let done = site.bivouac(["preload", &name, &from.display().to_string(), "/again"]);
    left_out(&done, &net.names, "by 1 node");
    // A command on a node sees only what the node sees.
    let other = site.command_on(&net.names[0], ["preload", &name, &from.display().to_string(), "/x"]);
    bivouac_tests::finish(other).fails(68, &["No such file"]);
}
