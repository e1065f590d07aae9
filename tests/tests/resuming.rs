//! Deployments whose daemons are all gone come back without a host, or a storage, that is gone for good, where others
//! have copies; and do not, where nobody has.

use bivouac_tests::load::all_in_step;
use bivouac_tests::{Network, Site, eventually, on_node, skipped_without_root};
use rustix::process::Signal;
use std::process::Command;

/// Files in blocks and small ones, and what they are.
const WRITE: &str = "cd /bivouac && mkdir d && for i in $(seq 40); do head -c $((i * 7001)) /dev/urandom > d/f$i; echo $i > d/s$i; done";
const SUMS: &str = "cd /bivouac && find . -type f | sort | xargs sha1sum";

fn kill_all(site: &Site, name: &str) {
    site.daemons(name).into_iter().for_each(|(_, pid)| Site::kill(pid, Signal::KILL));
    eventually("status says so", || site.status(name)["state"] == "crashed");
}

fn storage(site: &Site, name: &str, server: usize) -> Vec<String> {
    let paths = site.status(name)["servers"][server]["storage"].clone();
    serde_json::from_value(paths).expect("paths")
}

#[test]
fn a_deployment_with_copies_is_back_without_a_storage_that_is_gone_and_another_host_takes_its_place() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(4), Site::in_memory("resume-storage"));
    let name = net.deploy_on(&site, 3, &["--replicas", "2", "--heal-after", "never", "--block-size", "64K"]);
    let sums = on_node(&net.names[0], &site, &name, &format!("{WRITE} && {SUMS}")).ok();
    let lost = storage(&site, &name, 1);
    kill_all(&site, &name);
    lost.iter().for_each(|path| std::fs::remove_dir_all(path).expect("removed"));
    let back = site.bivouac(["up", &name]);
    assert!(back.err.contains("server-1 of") && back.err.contains("bivouac replace"), "{}", back.err);
    back.ok();
    assert_eq!(site.states(&name), ["up", "down", "up"]);
    assert_eq!(on_node(&net.names[2], &site, &name, SUMS).ok(), sums);
    on_node(&net.names[2], &site, &name, "echo more > /bivouac/d/more").ok();
    site.bivouac(["replace", &name, "1", &net.names[3], "--launcher", "netns"]).ok();
    all_in_step(&site, &name);
    let sums = on_node(&net.names[2], &site, &name, SUMS).ok();
    // And now the others may die.
    Site::kill(site.server_pid(&name, 0), Signal::KILL);
    eventually("it is down", || site.states(&name)[0] == "down");
    assert_eq!(on_node(&net.names[2], &site, &name, SUMS).ok(), sums);
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

#[test]
fn a_deployment_with_copies_is_back_without_a_host_and_takes_it_in_when_that_is_back_too() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let (net, site) = (Network::of(3), Site::in_memory("resume-host"));
    let name = net.deploy(&site, &["--replicas", "2", "--heal-after", "never", "--block-size", "64K"]);
    on_node(&net.names[0], &site, &name, WRITE).ok();
    site.bivouac(["down", "--keep", &name]).ok();
    // Nobody gets there: a namespace of another name.
    let (host, aside) = (&net.names[2], format!("{}x", net.names[2]));
    let path = |name: &str| format!("/run/netns/{name}");
    also_called(host, &aside);
    assert!(Command::new("umount").arg(path(host)).status().expect("runs").success());
    std::fs::remove_file(path(host)).expect("removed");
    let back = site.bivouac(["up", &name]);
    assert!(back.err.contains("server-2 of") && back.err.contains("agent-2 of"), "{}", back.err);
    back.ok();
    assert_eq!(site.states(&name), ["up", "up", "down"]);
    on_node(
        &net.names[1],
        &site,
        &name,
        "cd /bivouac/d && rm f1 && mv f2 g2 && echo new > f3 && echo x >> s4",
    )
    .ok();
    let sums = on_node(&net.names[1], &site, &name, SUMS).ok();
    also_called(&aside, host);
    ip(&format!("netns del {aside}"));
    site.bivouac(["restart", &name, "2"]).ok();
    all_in_step(&site, &name);
    // What it missed it has by now: it is the only one of the two that is left of each piece, for some.
    Site::kill(site.server_pid(&name, 0), Signal::KILL);
    eventually("it is down", || site.states(&name)[0] == "down");
    // Its agent is there again, too.
    assert_eq!(on_node(host, &site, &name, SUMS).ok(), sums);
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}

/// Gives a namespace another name as well.
fn also_called(name: &str, other: &str) {
    let mut holder = Command::new("ip").args(["netns", "exec", name, "sleep", "60"]).spawn().expect("starts");
    // It is `sleep` itself by then.
    std::thread::sleep(std::time::Duration::from_millis(300));
    ip(&format!("netns attach {other} {}", holder.id()));
    holder.kill().expect("ends");
    holder.wait().expect("ends");
}

fn ip(line: &str) {
    assert!(Command::new("ip").args(line.split(' ')).status().expect("runs").success(), "{line}");
}

#[test]
fn a_deployment_without_copies_is_not_back_without_a_server_and_loses_nothing_by_the_attempt() {
    let site = Site::in_memory("resume-alone");
    let name = site.up(3);
    let sums = site.sh(&name, &format!("{WRITE} && {SUMS}")).ok();
    let place = storage(&site, &name, 1).remove(0);
    kill_all(&site, &name);
    let aside = format!("{place}-aside");
    std::fs::rename(&place, &aside).expect("moved");
    let failed = site.bivouac(["up", &name]);
    assert!(failed.err.contains("server-1") || failed.err.contains(&place), "{}", failed.err);
    std::fs::rename(&aside, &place).expect("moved back");
    site.bivouac(["up", &name]).ok();
    assert_eq!(site.sh(&name, SUMS).ok(), sums);
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &[]);
}
