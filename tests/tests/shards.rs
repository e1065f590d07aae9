//! Shards of the metadata move to servers that are added, while programs work that check everything. Nodes are network
//! namespaces.

use bivouac_tests::load::{APPENDS, BLOCKS, Load, NAMES, all_in_step, clock, copies_agree};
use bivouac_tests::{Killed, Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// All shards.
const SHARDS: u64 = 4096;

/// How many shards each server holds, and answers for; and how many are still to move.
fn shares(site: &Site, name: &str) -> (Vec<(u64, u64)>, u64) {
    let status = site.status(name);
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let servers = status["servers"].as_array().expect("a list");
    let shares = servers.iter().map(|server| (number(&server["shards"]), number(&server["primary_shards"])));
    (shares.collect(), number(&status["moving_shards"]))
}

/// Whether nothing moves any more.
fn is_balanced(site: &Site, name: &str, (servers, copies): (u64, u64)) -> bool {
    let (shares, moving) = shares(site, name);
    let is_share = |(held, primary): &(u64, u64)| {
        held.abs_diff(SHARDS * copies / servers) <= 2 && primary.abs_diff(SHARDS / servers) <= 1
    };
    shares.len() as u64 == servers && moving == 0 && shares.iter().all(is_share)
}

/// Waits until that is so; how long it took.
fn balanced(site: &Site, name: &str, all: (u64, u64)) -> Duration {
    let begun = Instant::now();
    eventually("every server has its share", || is_balanced(site, name, all));
    begun.elapsed()
}

fn is_moving(site: &Site, name: &str) -> bool {
    shares(site, name).1 > 0
}

const SUMS: &str = "cd /bivouac && find . -type f | sort | xargs md5sum | md5sum";

fn shards_move_while_programs_check_everything(test: &str, copies: u64) {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(4);
    let site = Site::in_memory(test);
    let options = ["--block-size", "64K", "--heal-after", "never", "--replicas", &copies.to_string()];
    let name = net.deploy_on(&site, 2, &options);
    let start =
        |node: usize, program, home: &str| Load::start_on(&net.names[node], &site, &name, program, home);
    let mut loads = vec![start(0, NAMES, "names"), start(1, APPENDS, "appends"), start(1, BLOCKS, "blocks")];
    site.bivouac(["expand", &name, "--hosts", &net.names[2..].join(",")]).ok();
    let took = balanced(&site, &name, (4, copies));
    loads.push(start(3, NAMES, "later"));
    let epoch = site.status(&name)["epoch"].as_u64();
    eprintln!("{copies} copies: all shards are where they are to be after {took:?}, at epoch {epoch:?}");
    std::thread::sleep(Duration::from_secs(1));
    for load in &mut loads {
        let done = load.stop();
        eprintln!("{}: {done:?}", load.home);
    }
    all_in_step(&site, &name);
    if copies > 1 {
        copies_agree(&site, &name);
    }
    let sums = on_node(&net.names[3], &site, &name, SUMS).ok();
    for load in loads {
        load.succeeds();
    }
    // What has moved is in the logs of those who have it, and in no others.
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    all_in_step(&site, &name);
    assert_eq!(on_node(&net.names[2], &site, &name, SUMS).ok(), sums);
    balanced(&site, &name, (4, copies));
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn shards_without_copies_move_while_programs_check_everything() {
    shards_move_while_programs_check_everything("shards-one", 1);
}

#[test]
fn shards_with_two_copies_move_while_programs_check_everything() {
    shards_move_while_programs_check_everything("shards-two", 2);
}

/// Servers that shards move from and to die in the middle, and the controller.
fn moves_go_on_whoever_dies(test: &str, copies: u64) {
    if skipped_without_root("making network namespaces") {
        return;
    }
    // Copies are on different nodes, so that a server for each node can have its share.
    let net = Network::of(6);
    let mut site = Site::in_memory(test);
    site.restarts_servers();
    let options = ["--block-size", "64K", "--heal-after", "never", "--replicas", &copies.to_string()];
    let name = net.deploy_on(&site, 2, &options);
    let start =
        |node: usize, program, home: &str| Load::start_on(&net.names[node], &site, &name, program, home);
    let mut loads = vec![start(0, NAMES, "names"), start(1, APPENDS, "appends")];
    let mut servers = 2;
    for victim in ["source", "target", "both", "leader"] {
        // Until somebody is killed, the new server receives slowly: on a fast machine all shards would have moved before `status`
        // shows that any do.
        net.slow_down(servers as usize, "5mbit");
        let mut command = site.command(["expand", &name, "--hosts", &net.names[servers as usize]]);
        let mut expand = command.stdout(std::process::Stdio::null()).spawn().expect("starts");
        let (source, target) = (0, servers as usize);
        eventually("shards move", || is_moving(&site, &name));
        let victims: &[usize] = match victim {
            "source" => &[source],
            "target" => &[target],
            "both" => &[source, target],
            _ => &[],
        };
        let leader = site.status(&name)["leader"].as_u64().expect("a leader");
        assert!(is_moving(&site, &name), "{victim}");
        net.speed_up(target);
        eprintln!("{}: kills {victim}", clock());
        let killed: Vec<Killed> =
            victims.iter().map(|server| Killed::server(&site, &name, *server)).collect();
        if victim == "leader" {
            Site::kill(site.agent_pid(&name, leader), Signal::KILL);
            eventually("another one leads", || {
                site.status(&name)["leader"].as_u64().is_some_and(|other| other != leader)
            });
        }
        servers += 1;
        expand.wait().expect("ends");
        loads.iter_mut().for_each(Load::assert_alive);
        let took = balanced(&site, &name, (servers, copies));
        for killed in killed {
            killed.is_back(&site, &name);
        }
        all_in_step(&site, &name);
        eprintln!(
            "{}: {copies} copies, {victim}: balanced {took:?} later, at epoch {:?}",
            clock(),
            site.status(&name)["epoch"]
        );
    }
    std::thread::sleep(Duration::from_secs(1));
    for load in &mut loads {
        let done = load.stop();
        eprintln!("{}: {done:?}", load.home);
    }
    all_in_step(&site, &name);
    if copies > 1 {
        copies_agree(&site, &name);
    }
    for load in loads {
        load.succeeds();
    }
    site.bivouac(["down", &name]).ok();
}

#[test]
fn moves_without_copies_go_on_whoever_dies() {
    moves_go_on_whoever_dies("shards-die-one", 1);
}

#[test]
fn moves_with_two_copies_go_on_whoever_dies() {
    moves_go_on_whoever_dies("shards-die-two", 2);
}
