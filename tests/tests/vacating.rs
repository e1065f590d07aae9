//! Hosts leave a deployment with their last server, and can be switched off: others keep the map, and their agents end. Nodes
//! are network namespaces; the machine itself is one node more, where the deployments are started from.

use bivouac_tests::agents::{leader, voters};
use bivouac_tests::load::{BLOCKS, Load, NAMES};
use bivouac_tests::{Cut, Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Locks a file, and waits.
const LOCKS: &str = "import fcntl, sys, time\nf = open(sys.argv[1], 'w')\nfcntl.lockf(f, fcntl.LOCK_EX)\nopen(sys.argv[2] + '.begun', 'w')\ntime.sleep(60)\n";

/// The nodes of the agents that `status` lists.
fn nodes(site: &Site, name: &str) -> Vec<u64> {
    let status = site.status(name);
    let all = status["agents"].as_array().expect("a list");
    all.iter().map(|agent| agent["node"].as_u64().expect("a number")).collect()
}

/// The nodes that the deployment's record names.
fn recorded(site: &Site, name: &str) -> Vec<u64> {
    let text = std::fs::read(site.home().join(name).join("daemons.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let lists = ["daemons", "former"].map(|list| record[list].as_array().expect("a list").clone());
    let mut nodes: Vec<u64> = lists.concat().iter().map(|d| d["node"].as_u64().expect("a number")).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Nothing of a node is left: not its agent, nor what it kept of the map.
fn assert_has_left(site: &Site, name: &str, node: u64, agent: i32) {
    assert!(!Site::is_alive(agent), "the agent of node {node} has ended");
    assert!(!nodes(site, name).contains(&node) && !voters(site, name).contains(&node));
    let home = site.home().join(name);
    for left in [format!("controller-{node}"), format!("logs/agent-{node}.log")] {
        assert!(!home.join(&left).exists(), "{left} is left");
    }
    assert!(!bivouac_tests::run_dir(name).join(format!("node-{node}")).exists());
    assert!(!recorded(site, name).contains(&node), "{:?}", recorded(site, name));
}

/// Has all servers of a host leave. What was said, and how long it took.
fn shrink(site: &Site, name: &str, host: &str) -> (String, Duration) {
    let begun = Instant::now();
    let said = site.bivouac(["shrink", name, "--hosts", host]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    (said.err, begun.elapsed())
}

#[test]
fn the_nodes_that_keep_the_map_and_lead_leave_one_after_the_other_and_everything_goes_on() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("vacating"));
    let name = net.deploy(&site, &["--block-size", "64K"]);
    assert_eq!(voters(&site, &name), [0, 1, 3]);
    // The one that it was started from does not come back: those that are left have to do.
    Site::kill(site.agent_pid(&name, 3), Signal::KILL);
    let first = leader(&site, &name, &[3]);
    let mut load = Load::start_on(&net.names[2], &site, &name, NAMES, "names");
    on_node(
        &net.names[2],
        &site,
        &name,
        "head -c 8M /dev/urandom > /bivouac/f && md5sum /bivouac/f > /bivouac/s",
    )
    .ok();
    let agent = site.agent_pid(&name, first);
    let (said, took) = shrink(&site, &name, &net.names[first as usize]);
    println!("the leader, node {first}, had left after {took:?} {said}");
    assert_has_left(&site, &name, first, agent);
    net.cut(first as usize, Cut::Link, true);
    let begun = Instant::now();
    let second = 1 - first;
    assert_eq!(voters(&site, &name), [second, 2, 3], "another node that stays has its place");
    leader(&site, &name, &[first, 3]);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Two of these three live, and now one of them leaves: one is left.
    let agent = site.agent_pid(&name, second);
    let (said, took) = shrink(&site, &name, &net.names[second as usize]);
    println!("node {second} had left after {took:?} {said}");
    assert_has_left(&site, &name, second, agent);
    net.cut(second as usize, Cut::Link, true);
    assert_eq!((leader(&site, &name, &[]), voters(&site, &name)), (2, vec![2]));
    load.assert_alive();
    // The host that has left first comes again, as a new node; and the only one that keeps the map leaves.
    net.cut(first as usize, Cut::Link, false);
    site.bivouac(["expand", &name, "--hosts", &net.names[first as usize]]).ok();
    assert_eq!((nodes(&site, &name), voters(&site, &name)), (vec![2, 3, 4], vec![2]));
    let agent = site.agent_pid(&name, 2);
    let (said, took) = shrink(&site, &name, &net.names[2]);
    println!("node 2 had no servers after {took:?}: {said}");
    assert!(said.contains("its agent stays for the programs there, until these end: process "), "{said}");
    assert!(said.contains("python3"), "{said}");
    assert_eq!((leader(&site, &name, &[]), voters(&site, &name)), (4, vec![4]));
    let status = site.status(&name);
    let leaving: Vec<u64> = status["agents"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|a| a["leaving"] == true)
        .filter_map(|a| a["node"].as_u64())
        .collect();
    assert_eq!(leaving, [2]);
    load.assert_alive();
    on_node(&net.names[2], &site, &name, "md5sum -c /bivouac/s").ok();
    load.end();
    eventually("the agent ends with the last program", || !Site::is_alive(agent));
    eventually("the node is off the map", || nodes(&site, &name) == [3, 4]);
    net.cut(2, Cut::Link, true);
    // The machine itself still has the commands, and the rest is as it was.
    site.bivouac(["expand", &name, "--servers", "+1"]).ok();
    assert_eq!(recorded(&site, &name), [3, 4]);
    let check = "md5sum -c /bivouac/s";
    on_node(&net.names[first as usize], &site, &name, check).ok();
    site.bivouac(["shrink", &name, "--servers", "-1"]).ok();
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    on_node(&net.names[first as usize], &site, &name, check).ok();
    let all: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &all);
}

#[test]
fn the_command_and_the_leader_are_killed_and_the_node_leaves_all_the_same() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("vacating-killed"));
    let name = net.deploy(&site, &["--block-size", "64K", "--replicas", "2", "--heal-after", "never"]);
    let all: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    let load = Load::start_on(&net.names[1], &site, &name, BLOCKS, "blocks");
    let (agent, leads) = (site.agent_pid(&name, 0), leader(&site, &name, &[]));
    let mut child = site.command(["shrink", &name, "--hosts", &net.names[0]]).spawn().expect("starts");
    eventually("it is to leave", || {
        let status = site.status(&name);
        status["servers"].as_array().expect("a list").iter().any(|server| server["departing"] == true)
    });
    Site::kill(site.agent_pid(&name, leads), Signal::KILL);
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    leader(&site, &name, &[leads]);
    // Without the command nobody has files move: it is given again.
    shrink(&site, &name, &net.names[0]);
    assert_has_left(&site, &name, 0, agent);
    net.cut(0, Cut::Link, true);
    assert_eq!(voters(&site, &name), [1, 2, 3]);
    load.end();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &all);
}

#[test]
fn servers_come_again_to_a_host_whose_programs_have_kept_its_agent_and_one_whose_agent_dies_leaves() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("vacating-again"));
    let name = net.deploy_on(&site, 2, &["--block-size", "64K"]);
    let (agent, host) = (site.agent_pid(&name, 0), &net.names[0]);
    let mut load = Load::start_on(host, &site, &name, BLOCKS, "blocks");
    let (said, _) = shrink(&site, &name, host);
    assert!(said.contains("until these end: process "), "{said}");
    assert_eq!(voters(&site, &name), [2], "of two nodes that stay, one");
    site.bivouac(["expand", &name, "--hosts", host]).ok();
    assert!(Site::is_alive(agent) && nodes(&site, &name) == [0, 1, 2]);
    eventually("three of three keep the map", || voters(&site, &name) == [0, 1, 2]);
    std::thread::sleep(Duration::from_secs(1));
    load.assert_alive();
    shrink(&site, &name, host);
    // A process that has something locked goes on, and its agent is killed: nobody else waits for ever.
    let locks = Load::start_on(host, &site, &name, LOCKS, "lock");
    let try_lock = "python3 -c 'import fcntl; fcntl.lockf(open(\"/bivouac/lock\", \"w\"), fcntl.LOCK_EX | fcntl.LOCK_NB)'";
    assert!(on_node(&net.names[1], &site, &name, try_lock).code != 0, "it has the lock");
    Site::kill(agent, Signal::KILL);
    eventually("the node is off the map", || nodes(&site, &name) == [1, 2]);
    eventually("its locks end", || on_node(&net.names[1], &site, &name, try_lock).code == 0);
    locks.kill();
    load.kill();
    let all: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &all);
}
