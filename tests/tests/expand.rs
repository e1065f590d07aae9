//! Servers are added while programs work. Nodes are network namespaces where several are needed.

use bivouac_tests::load::{BLOCKS, Load, NAMES, all_in_step};
use bivouac_tests::{Cut, HANG, Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Numbers and states of all servers.
fn servers(site: &Site, name: &str) -> Vec<(u64, String)> {
    let status = site.status(name);
    let all = status["servers"].as_array().expect("a list");
    let number = |server: &serde_json::Value| server["id"].as_u64().expect("a number");
    all.iter().map(|server| (number(server), server["state"].as_str().expect("a state").into())).collect()
}

fn are_up(site: &Site, name: &str, numbers: &[u64]) -> bool {
    servers(site, name) == numbers.iter().map(|number| (*number, "up".into())).collect::<Vec<_>>()
}

/// On how many servers a new file of many blocks is.
fn width_of_a_new_file(site: &Site, name: &str) -> usize {
    static FILES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let file = format!("new{}", FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    site.sh(name, &format!("head -c 3M /dev/urandom > /bivouac/{file}")).ok();
    let said = site.bivouac(["layout", "-d", name, &format!("/{file}")]).ok();
    said.lines().filter(|line| line.trim_start().starts_with("server ")).count()
}

fn hosts_and_servers_are_added_while_programs_check_everything(test: &str, replicas: &str) {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory(test);
    let options = ["--block-size", "64K", "--heal-after", "never", "--replicas", replicas];
    let name = net.deploy_on(&site, 2, &options);
    let mut blocks = Load::start_on(&net.names[0], &site, &name, BLOCKS, "blocks");
    let mut names = Load::start_on(&net.names[1], &site, &name, NAMES, "names");
    assert_eq!(width_of_a_new_file(&site, &name), 2);
    let said = site.bivouac(["expand", &name, "--hosts", &net.names[2..].join(",")]).ok();
    let first = format!("2 servers more: new files of {name} are spread over 4 servers now\n");
    assert!(said.starts_with(&first) && said.contains(" moved in "), "{said}");
    assert!(are_up(&site, &name, &[0, 1, 2, 3]));
    assert_eq!(width_of_a_new_file(&site, &name), 4);
    // Programs of the new hosts work like others, on what is old and new.
    let mut later = Load::start_on(&net.names[3], &site, &name, BLOCKS, "later");
    site.bivouac(["expand", &name, "--servers", "+3"]).ok();
    assert!(are_up(&site, &name, &[0, 1, 2, 3, 4, 5, 6]));
    assert_eq!(width_of_a_new_file(&site, &name), 7);
    let on: Vec<String> = site.status(&name)["servers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|server| server["host"].as_str().expect("a host").to_owned())
        .collect();
    assert_eq!(on[4..].iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "on a host each: {on:?}");
    std::thread::sleep(Duration::from_secs(1));
    for load in [&mut blocks, &mut names, &mut later] {
        load.stop();
    }
    if replicas != "1" {
        for other in [4, 0, 2] {
            Site::kill(site.server_pid(&name, other), Signal::KILL);
            eventually("it is down", || servers(&site, &name)[other as usize].1 == "down");
            later.sees_the_same(&format!("without server {other}"));
            site.bivouac(["restart", &name, &other.to_string()]).ok();
            all_in_step(&site, &name);
        }
    }
    let said = site.bivouac(["verify", &name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{said}");
    // All of them are started again, the added agents among them.
    let sums = "cd /bivouac && find . -type f | sort | xargs md5sum | md5sum";
    let before = on_node(&net.names[3], &site, &name, sums).ok();
    for load in [blocks, names, later] {
        load.succeeds();
    }
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    all_in_step(&site, &name);
    assert_eq!(on_node(&net.names[2], &site, &name, sums).ok(), before);
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    assert_eq!(pids.len(), 12, "7 servers, and agents of 4 nodes and of this machine");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn servers_are_added_to_a_deployment_with_one_copy() {
    hosts_and_servers_are_added_while_programs_check_everything("expand-one", "1");
}

#[test]
fn servers_are_added_to_a_deployment_with_two_copies() {
    hosts_and_servers_are_added_while_programs_check_everything("expand-two", "2");
}

/// A command that fails, or is killed, leaves everything as it was, or completed; and a number is not used twice.
#[test]
fn an_expansion_is_whole_or_has_not_been() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::in_memory("expand-fails");
    let name = net.deploy_on(&site, 2, &["--block-size", "64K"]);
    site.bivouac(["expand", &name]).fails(2, &["--hosts", "--servers"]);
    site.bivouac(["expand", &name, "--servers", "+0"]).fails(2, &["how many more"]);
    site.bivouac(["expand", &name, "--servers", "+5000"]).fails(65, &["too many"]);
    site.bivouac(["expand", &name, "--servers", "+2", "--storage", "/no/such/place"])
        .fails(65, &["/no/such/place"]);
    assert!(are_up(&site, &name, &[0, 1]));
    assert_eq!(site.daemons(&name).len(), 5, "nothing that was started is left");
    // The new host reaches nobody; the command dies. When the host is reached, its server arrives by itself.
    net.cut(2, Cut::Link, true);
    let mut child = begun_on(&site, &name, &net.names[2], 3);
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    assert_eq!(width_of_a_new_file(&site, &name), 2);
    net.cut(2, Cut::Link, false);
    eventually("it arrives", || are_up(&site, &name, &[0, 1, 2]));
    assert_eq!(width_of_a_new_file(&site, &name), 3);
    // Another one never arrives: the next command takes it back, and its number is not given again.
    net.cut(2, Cut::Link, true);
    eventually("it is down", || servers(&site, &name)[2].1 == "down");
    let mut child = begun_on(&site, &name, &net.names[2], 4);
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    let late = started(&site, &name, 3);
    site.bivouac(["expand", &name, "--hosts", &net.names[0], "--rebuild", "metadata"]).ok();
    net.cut(2, Cut::Link, false);
    eventually("all are there", || are_up(&site, &name, &[0, 1, 2, 4]));
    assert_eq!(width_of_a_new_file(&site, &name), 4);
    assert!(!Site::is_alive(late), "the one that was taken back has ended");
    let all: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &all);
}

/// The command is killed when it has started the host's agent, and then when it has started the server, too: neither counts yet.
#[test]
fn a_host_can_be_added_after_a_command_that_was_killed_when_it_had_started_something_there() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(2);
    let site = Site::in_memory("expand-killed");
    let name = net.deploy_on(&site, 1, &[]);
    let mut left = Vec::new();
    for daemons in [1, 2] {
        let mut command = site.command(["expand", &name, "--hosts", &net.names[1]]);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("starts");
        let begun = Instant::now();
        loop {
            let started = former(&site, &name);
            if started.len() >= daemons {
                Site::kill(child.id() as i32, Signal::KILL);
                left.extend(started);
                break;
            }
            assert!(begun.elapsed() < HANG, "nothing is started");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("ends");
    }
    // The second one may have been counted in that moment; or it has been, and does not come: then its number is not given again.
    let is_there = || {
        let servers = servers(&site, &name);
        servers.len() >= 2 && servers.iter().all(|(_, state)| state == "up")
    };
    if !is_there() {
        site.bivouac(["expand", &name, "--hosts", &net.names[1], "--rebuild", "metadata"]).ok();
    }
    eventually("it has arrived", is_there);
    let all: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    for pid in left {
        assert!(all.contains(&pid) || !Site::is_alive(pid), "{pid} was started for nothing, and lives");
    }
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &all);
}

/// The processes of daemons that were started and do not count yet.
fn former(site: &Site, name: &str) -> Vec<i32> {
    let text = std::fs::read(site.home().join(name).join("daemons.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let all = record["former"].as_array().into_iter().flatten();
    all.filter_map(|daemon| daemon["process"]["pid"].as_i64()).map(|pid| pid as i32).collect()
}

fn begun_on(site: &Site, name: &str, host: &str, servers_then: usize) -> std::process::Child {
    let mut command = site.command(["expand", name, "--hosts", host]);
    let child = command.stdout(std::process::Stdio::null()).spawn().expect("starts");
    eventually("the new server is listed", || servers(site, name).len() == servers_then);
    child
}

/// The process of a server that was started, whether it counts or not.
fn started(site: &Site, name: &str, server: u64) -> i32 {
    let text = std::fs::read(site.home().join(name).join("daemons.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let all =
        ["daemons", "former"].into_iter().flat_map(|list| record[list].as_array().into_iter().flatten());
    let mut found = all.filter(|daemon| daemon["server"] == server);
    found.next().and_then(|daemon| daemon["process"]["pid"].as_i64()).expect("it is on record") as i32
}
