//! The agents that keep the map die, are cut off and come back, the one that leads among them. Nodes are network
//! namespaces; the machine itself is one node more, where the deployments are started from, and whose agent founds
//! them.

use bivouac_tests::agents::{leader, voters};
use bivouac_tests::load::{APPENDS, BLOCKS, Load, NAMES, all_in_step};
use bivouac_tests::{Cut, HANG, Network, Site, eventually, finish, on_node, run_dir, skipped_without_root};
use rustix::process::Signal;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn state(site: &Site, name: &str, server: usize) -> String {
    site.status(name)["servers"][server]["state"].as_str().expect("a word").to_owned()
}

fn kill(pid: i32) {
    Site::kill(pid, Signal::KILL);
}

/// Starts a deployment with a server in each namespace.
fn up(site: &Site, net: &Network, options: &[&str]) -> String {
    net.deploy(site, &[&["--block-size", "64K"], options].concat())
}

/// Ends a program, which must not have failed, nor waited for too long.
fn end(load: Load) {
    let (home, done) = (load.home.clone(), load.end());
    assert!(done.operations > 50.0 && done.worst < 15.0, "{home}: {done:?}");
}

#[test]
fn a_server_that_dies_after_the_leader_is_declared_down_and_programs_go_on() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("leaders"));
    let name = up(&site, &net, &["--replicas", "2", "--heal-after", "never"]);
    assert_eq!(
        (leader(&site, &name, &[]), voters(&site, &name)),
        (3, vec![0, 1, 3]),
        "the founder, and two more"
    );
    let names = Load::start_on(&net.names[2], &site, &name, NAMES, "names");
    let blocks = Load::start_on(&net.names[2], &site, &name, BLOCKS, "blocks");
    let mut dead = Vec::new();
    for server in [1, 0] {
        let old = leader(&site, &name, &dead);
        kill(site.agent_pid(&name, old));
        kill(site.server_pid(&name, server));
        dead.push(old);
        let begun = Instant::now();
        let next = leader(&site, &name, &dead);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(6), "another one led after {took:?}");
        eventually("the server is declared down", || state(&site, &name, server as usize) == "down");
        println!(
            "node {next} followed node {old} after {took:?}; the server was down after {:?}",
            begun.elapsed()
        );
        let told = site.bivouac(["status", &name]).ok();
        assert!(told.contains(&format!("controller: node {next}")), "{told}");
        site.bivouac(["restart", &name, &server.to_string()]).ok();
        all_in_step(&site, &name);
        // Another agent takes the dead one's place, so that the next one may die, too.
        if dead.len() == 1 {
            eventually("the dead voter is replaced", || voters(&site, &name) == [0, 1, 2]);
        }
    }
    end(names);
    end(blocks);
    let begun = Instant::now();
    site.bivouac(["down", &name]).ok();
    assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn the_first_node_dies_and_the_group_goes_on() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(5), Site::in_memory("first-node"));
    let name = up(&site, &net, &["--replicas", "2", "--heal-after", "never"]);
    assert_eq!(voters(&site, &name), [0, 1, 2, 3, 5]);
    let names = Load::start_on(&net.names[4], &site, &name, NAMES, "names");
    let blocks = Load::start_on(&net.names[4], &site, &name, BLOCKS, "blocks");
    // The one that it was started from, which leads, and the first that has a server.
    let pids = [site.agent_pid(&name, 5), site.agent_pid(&name, 0), site.server_pid(&name, 0)];
    pids.iter().for_each(|pid| kill(*pid));
    leader(&site, &name, &[0, 5]);
    eventually("its server is declared down", || state(&site, &name, 0) == "down");
    std::thread::sleep(Duration::from_secs(1));
    end(names);
    end(blocks);
    // Programs begin on the nodes that are left.
    finish(site.command_on(&net.names[1], ["exec", &name, "--", "ls", "/bivouac/names"])).ok();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn three_of_eight_servers_and_three_of_seven_voters_die_at_once_and_four_copies_lose_nothing() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(8), Site::in_memory("three-of-eight"));
    let name = up(&site, &net, &["--replicas", "4", "--heal-after", "never"]);
    let voters = voters(&site, &name);
    assert_eq!(voters.len(), 7, "{voters:?}");
    let roles = |role: &str| {
        let status = site.status(&name);
        let agents = status["agents"].as_array().expect("a list").clone();
        agents.into_iter().filter(|agent| agent["role"] == role).count()
    };
    assert_eq!((roles("controller"), roles("voter"), roles("follower")), (1, 6, 2));
    // The one that leads, and two more that keep the map; and three servers.
    let leads = leader(&site, &name, &[]);
    let agents = [&[leads][..], &voters].concat();
    let agents: Vec<u64> = agents.into_iter().filter(|node| [leads, 1, 3].contains(node)).take(3).collect();
    let mut pids: Vec<i32> = agents.iter().map(|node| site.agent_pid(&name, *node)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.extend([1, 3, 4].map(|server| site.server_pid(&name, server)));
    let mut loads = [(5, NAMES, "names"), (6, BLOCKS, "blocks"), (7, APPENDS, "appends")]
        .map(|(node, program, home)| Load::start_on(&net.names[node], &site, &name, program, home));
    pids.into_iter().for_each(kill);
    leader(&site, &name, &agents);
    eventually("they are declared down", || [1, 3, 4].iter().all(|id| state(&site, &name, *id) == "down"));
    std::thread::sleep(Duration::from_secs(1));
    loads.iter_mut().for_each(Load::assert_alive);
    loads.into_iter().for_each(end);
    // A program that begins now, on another node, finds everything.
    let finds = on_node(&net.names[0], &site, &name, "cat /bivouac/blocks/* | wc -c && ls /bivouac");
    assert!(finds.ok().ends_with("appends\nblocks\nnames\n"));
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_follows_when_its_link_is_back() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(5), Site::in_memory("cut-leader"));
    let name = up(&site, &net, &["--replicas", "2", "--heal-after", "never"]);
    // The founder's link is the bridge: another one has to lead.
    kill(site.agent_pid(&name, 5));
    let old = leader(&site, &name, &[5]);
    let before = site.status(&name)["epoch"].as_u64().expect("an epoch");
    net.cut(old as usize, Cut::Link, true);
    let next = leader(&site, &name, &[5, old]);
    eventually("the server there is declared down", || state(&site, &name, old as usize) == "down");
    let ask = |node: u64| -> serde_json::Value {
        let command = site.command_on(&net.names[node as usize], ["status", &name, "--json"]);
        let mut all: serde_json::Value = serde_json::from_str(&finish(command).ok()).expect("JSON");
        all["deployments"][0].take()
    };
    let alone = ask(old);
    assert!(alone["leader"].is_null(), "who is cut off does not lead: {alone}");
    assert!(alone["problem"].as_str().expect("said").contains("no controller"), "{alone}");
    assert_eq!(alone["epoch"].as_u64(), Some(before), "it has changed nothing");
    net.cut(old as usize, Cut::Link, false);
    all_in_step(&site, &name);
    let mut views = Vec::new();
    eventually("all see one leader and one map", || {
        views =
            [old, next, 4].map(|node| (ask(node)["leader"].as_u64(), ask(node)["epoch"].as_u64())).to_vec();
        views[0].0.is_some() && views.iter().all(|view| *view == views[0])
    });
    assert!(views[0].1 > Some(before), "{views:?}");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn all_daemons_die_and_up_brings_them_back_with_the_newest_map() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("all-leaders"));
    let name = up(&site, &net, &["--replicas", "2", "--heal-after", "1"]);
    let write = "cd /bivouac && for i in $(seq 50); do echo $i > f$i; done; ls | wc -l";
    assert_eq!(site.sh(&name, write).ok(), "50\n");
    for round in 0..2 {
        // The newest map is not the first one: a server was given up by another controller than the first.
        if round == 0 {
            kill(site.agent_pid(&name, leader(&site, &name, &[])));
            kill(site.server_pid(&name, 2));
            eventually("it is given up", || site.status(&name)["servers"][2]["given_up"] == true);
            eventually("all copies are there", || site.status(&name)["incomplete"] == 0);
        }
        let epoch = site.status(&name)["epoch"].as_u64().expect("an epoch");
        for pid in site.daemons(&name).into_iter().map(|(_, pid)| pid) {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid).expect("a process number"),
                Signal::KILL,
            );
        }
        eventually("status says so", || site.status(&name)["state"] == "crashed");
        site.bivouac(["up", &name]).ok();
        let status = site.status(&name);
        assert!(status["epoch"].as_u64() > Some(epoch), "{status}");
        // The one that was given up has been started, too, and is there for others to give it copies.
        eventually("all take part", || {
            let status = site.status(&name);
            status["servers"][2]["given_up"] == false && status["incomplete"] == 0
        });
        assert_eq!(site.sh(&name, "ls /bivouac | wc -l; cat /bivouac/f50").ok(), "50\n50\n");
    }
    // And likewise after `down --keep`.
    let epoch = site.status(&name)["epoch"].as_u64();
    site.bivouac(["down", "--keep", &name]).ok();
    // Two of three voters are enough; one alone is not.
    let directory = |node: u64| site.home().join(&name).join(format!("controller-{node}"));
    let kept: Vec<u64> = (0..4).filter(|node| directory(*node).join("journal").exists()).collect();
    assert!(kept.len() >= 3, "{kept:?}");
    let aside = |node: u64| site.path(&format!("aside-{node}"));
    for node in &kept[1..] {
        std::fs::rename(directory(*node), aside(*node)).expect("moved");
    }
    site.bivouac(["up", &name]).fails(65, &["1 of the 3 agents", "controller-N"]);
    for node in &kept[1..] {
        let _ = std::fs::remove_dir_all(directory(*node));
        std::fs::rename(aside(*node), directory(*node)).expect("moved back");
    }
    std::fs::remove_dir_all(directory(kept[0])).expect("removed");
    site.bivouac(["up", &name]).ok();
    assert!(site.status(&name)["epoch"].as_u64() > epoch);
    assert_eq!(site.sh(&name, "cat /bivouac/f50").ok(), "50\n");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn a_voter_that_has_lost_its_files_is_taken_in_again() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(2), Site::in_memory("lost-files"));
    let name = up(&site, &net, &["--replicas", "2"]);
    assert_eq!(voters(&site, &name), [0, 1, 2]);
    site.bivouac(["down", "--keep", &name]).ok();
    let directory = site.home().join(&name).join("controller-1");
    std::fs::remove_dir_all(&directory).expect("removed");
    site.bivouac(["up", &name]).ok();
    assert!(!directory.exists(), "it does not vote as if it never had");
    eventually("it keeps the map again", || {
        directory.join("journal").exists() && voters(&site, &name) == [0, 1, 2]
    });
    // It counts: another one may die.
    kill(site.agent_pid(&name, 0));
    leader(&site, &name, &[0]);
    site.bivouac(["restart", &name, "1"]).ok();
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn without_most_voters_what_has_one_copy_goes_on_and_down_takes_everything_down() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    for replicas in ["1", "2"] {
        let site = Site::in_memory("no-majority");
        let name = up(&site, &net, &["--replicas", replicas]);
        let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
        for node in [0, 3] {
            kill(site.agent_pid(&name, node));
        }
        let mut status = serde_json::Value::Null;
        eventually("there is no controller", || {
            status = site.status(&name);
            status["leader"].is_null()
        });
        assert_eq!(
            (&status["state"], &status["voters"]),
            (&"degraded".into(), &serde_json::json!([0, 1, 3]))
        );
        let problem = status["problem"].as_str().expect("said");
        assert!(problem.contains("1 of the 3 agents") && problem.contains(&net.names[0]), "{problem}");
        assert!(
            status["servers"].as_array().expect("servers").iter().all(|s| s["state"] == "up"),
            "{status}"
        );
        let begun = Instant::now();
        let changed = on_node(&net.names[1], &site, &name, "echo text > /bivouac/file && cat /bivouac/file");
        if replicas == "1" {
            assert_eq!(changed.ok(), "text\n");
        } else {
            // Nobody grants leases: the servers do not know whether others have taken their place.
            assert_ne!(changed.code, 0, "{changed:?}");
            assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
        }
        let refused = site.bivouac(["heal", &name]);
        assert_ne!(refused.code, 0, "{refused:?}");
        let begun = Instant::now();
        site.bivouac(["down", &name]).ok();
        assert!(begun.elapsed() < HANG / 2, "{:?}", begun.elapsed());
        site.assert_nothing_left(&name, &pids);
    }
}

#[test]
fn a_run_ends_with_everything_whoever_led_when_it_began() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    for killed in [false, true] {
        let site = Site::in_memory("run-leaders");
        let name = site.name("r");
        let (started, go) = (site.path("started"), site.path("go"));
        let script = format!(
            ": > /bivouac/first; echo $$ > {}; while ! test -e {}; do sleep 0.1; done; echo text > /bivouac/file",
            started.display(),
            go.display()
        );
        let hosts = net.names.join(",");
        let run =
            ["run", "--name", &name, "--hosts", &hosts, "--launcher", "netns", "--", "sh", "-c", &script];
        let mut run = site.command(run).stderr(Stdio::null()).spawn().expect("starts");
        eventually("the command runs", || {
            std::fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n'))
        });
        let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
        kill(site.agent_pid(&name, leader(&site, &name, &[])));
        if killed {
            // Nobody leads in this moment.
            kill(run.id() as i32);
            let command = std::fs::read_to_string(&started).expect("reads").trim().parse().expect("a number");
            kill(command);
        } else {
            std::fs::write(&go, "").expect("written");
        }
        let status = run.wait().expect("ends");
        assert_eq!(status.success(), !killed);
        let begun = Instant::now();
        eventually("all is removed", || !site.home().join(&name).exists() && !run_dir(&name).exists());
        println!("everything had ended {:?} after `run`", begun.elapsed());
        site.assert_nothing_left(&name, &pids);
    }
}

/// Daemons that come while the command runs end with `run`, too.
#[test]
fn a_run_whose_first_hosts_have_left_leaves_nothing_when_it_is_killed() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(4), Site::in_memory("run-grows"));
    let name = site.name("r");
    let started = site.path("started");
    let script = format!("echo text > /bivouac/file; echo $$ > {}; exec sleep 60", started.display());
    let (first, more) = (net.names[..2].join(","), net.names[2..].join(","));
    let run = ["run", "--name", &name, "--hosts", &first, "--launcher", "netns", "--", "sh", "-c", &script];
    let mut run = site.command(run).stderr(Stdio::null()).spawn().expect("starts");
    eventually("the command runs", || {
        std::fs::read_to_string(&started).is_ok_and(|text| text.ends_with('\n'))
    });
    let founder = leader(&site, &name, &[]);
    site.bivouac(["expand", &name, "--hosts", &more]).ok();
    site.bivouac(["shrink", &name, "--hosts", &first]).ok();
    let new: Vec<u64> = voters(&site, &name).into_iter().filter(|node| *node != founder).collect();
    assert_eq!(new.len(), 2, "the hosts that were added keep the map: {new:?}");
    // Each agent that was there when `run` began is dead or has left. One that came later leads.
    kill(site.agent_pid(&name, founder));
    assert!(new.contains(&leader(&site, &name, &[founder])));
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    kill(run.id() as i32);
    kill(std::fs::read_to_string(&started).expect("reads").trim().parse().expect("a number"));
    run.wait().expect("ends");
    eventually("all is removed", || !site.home().join(&name).exists() && !run_dir(&name).exists());
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn on_one_node_its_agent_is_the_only_voter() {
    let site = Site::in_memory("one-voter");
    let name = site.up(2);
    let status = site.status(&name);
    assert_eq!((&status["leader"], &status["voters"]), (&0.into(), &serde_json::json!([0])));
    assert!(!site.bivouac(["status", &name]).ok().contains("controller:"), "there is nothing to tell");
    kill(site.server_pid(&name, 1));
    eventually("the server is declared down", || state(&site, &name, 1) == "down");
    site.bivouac(["restart", &name, "1"]).ok();
    kill(site.agent_pid(&name, 0));
    let status = site.status(&name);
    assert!(status["leader"].is_null());
    assert!(status["problem"].as_str().expect("said").contains("no controller"), "{status}");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}
