//! Deployments that grow and shrink by themselves. Nodes are network namespaces, and their servers share a small memory file
//! system: each server's part of what is used falls when there are more of them.

use bivouac_tests::{HANG, Mounted, Network, Site, eventually, skipped_without_root};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

/// Servers on some of the nodes, with little room.
struct Scene {
    // Unmounted first when a test fails: the directory that it is in goes with the site.
    _disk: Mounted,
    site: Site,
    net: Network,
    name: String,
}

/// Looks at everything every second, and waits for nothing.
const QUICK: [&str; 6] = ["--every", "1s", "--settle", "1s", "--idle-for", "2s"];
/// Two servers that have 144 MiB of 200 are fuller than that, and three are not.
const FILL: &str =
    "cd /bivouac && for i in $(seq 36); do head -c 4M /dev/urandom > f$i; done && md5sum f* | md5sum";
const SUM: &str = "cd /bivouac && md5sum f* | md5sum";

impl Scene {
    fn new(test: &str, nodes: usize) -> Scene {
        let net = Network::of(nodes);
        let site = Site::in_memory(test);
        let disk = Mounted::new(site.path("disk"), "size=200m");
        let storage = site.path("disk");
        let storage = storage.to_str().expect("a plain path");
        let name = net.deploy_on(&site, 2, &["--storage", storage, "--block-size", "64K"]);
        Scene { _disk: disk, site, net, name }
    }

    /// Switches the policy on: grows at 55 %, and shrinks below 20 %, if these hosts allow it.
    fn on(&self, spares: &str, options: &[&str]) {
        let thresholds = ["--grow-above", "55%", "--shrink-below", "20%", "--busy-above", "never"];
        let begin = ["policy", &self.name, "on", "--spares", spares];
        self.site.bivouac([&begin[..], &thresholds, &QUICK, options].concat()).ok();
    }

    fn policy(&self) -> serde_json::Value {
        let text = self.site.bivouac(["policy", &self.name, "--json"]).ok();
        serde_json::from_str(&text).expect("JSON")
    }

    fn pid(&self) -> i32 {
        self.policy()["pid"].as_i64().expect("it runs") as i32
    }

    /// What the log says of a kind of thing.
    fn log(&self, event: &str) -> Vec<String> {
        let policy = self.policy();
        let entries =
            policy["log"].as_array().expect("a list").iter().filter(|entry| entry["event"] == event);
        entries.map(|entry| format!("{} | {}", entry["text"].as_str().expect("text"), entry["saw"])).collect()
    }

    fn says(&self, event: &str, what: &str) -> bool {
        self.log(event).iter().any(|line| line.contains(what))
    }

    /// Numbers of the servers with their hosts.
    fn servers(&self) -> Vec<(u64, String)> {
        let status = self.site.status(&self.name);
        let all = status["servers"].as_array().expect("a list").iter();
        all.map(|one| (one["id"].as_u64().expect("a number"), one["host"].as_str().expect("a host").into()))
            .collect()
    }

    /// There are so many servers, and nothing is under way any more.
    fn has(&self, count: usize) -> bool {
        let state = std::fs::read(self.site.home().join(&self.name).join("policy-state.json"));
        let state: serde_json::Value = serde_json::from_slice(&state.unwrap_or_default()).unwrap_or_default();
        self.servers().len() == count && state["begun"].is_null() && state["state"].is_object()
    }

    fn ends(self, policy: i32) {
        let pids: Vec<i32> = self.site.daemons(&self.name).into_iter().map(|(_, pid)| pid).collect();
        self.site.bivouac(["down", &self.name]).ok();
        self.site.assert_nothing_left(&self.name, &pids);
        assert!(!Site::is_alive(policy), "the policy's process is left");
        assert_eq!(std::fs::read_dir(self.site.path("disk")).expect("listed").count(), 0);
    }
}

#[test]
fn it_grows_when_a_server_is_full_shrinks_when_it_is_not_and_uses_the_spare_again() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let scene = Scene::new("policy-grows", 3);
    let (site, name, third) = (&scene.site, &scene.name, scene.net.names[2].clone());
    assert!(site.bivouac(["policy", name]).ok().contains("the policy is off"));
    assert!(site.status(name)["policy"].is_null());
    // The first one is not there, and the second one has a server already.
    let spares = format!("{third}x,{},{third}", scene.net.names[0]);
    scene.on(&spares, &[]);
    let first = scene.pid();
    assert_eq!(site.status(name)["policy"]["pid"], first);
    let sums = site.sh(name, FILL).ok();
    eventually("it has grown", || scene.has(3));
    assert_eq!(scene.servers()[2], (2, third.clone()));
    assert!(
        scene.says("grow", "full (55% or more): adds 1 server | \"2 servers; fullest"),
        "{:?}",
        scene.log("grow")
    );
    assert!(scene.says("skip", &format!("{third}x cannot get a server: there is no network namespace")));
    assert!(scene.says("done", &format!("added server 2 on {third}")));
    assert_eq!(site.sh(name, SUM).ok(), sums);
    // It is killed: both commands say so, and the deployment does not mind.
    Site::kill(first, Signal::KILL);
    eventually("it is dead", || !Site::is_alive(first));
    for command in ["policy", "status"] {
        let said = site.bivouac([command, name]).ok();
        assert!(
            said.contains("does not run") && said.contains(&format!("bivouac policy {name} on")),
            "{said}"
        );
    }
    assert!(site.status(name)["policy"]["pid"].is_null());
    site.bivouac(["policy", name, "on"]).ok();
    assert_ne!(scene.pid(), first);
    assert_eq!(scene.policy()["settings"]["grow_above"], 55, "what was said stays");
    // A second one ends at once.
    site.bivouac(["policy-watch", name]).fails(65, &["runs already"]);
    let child = site.server_pid(name, 2);
    site.sh(name, "rm /bivouac/f*").ok();
    eventually("it has shrunk", || scene.has(2));
    assert!(scene.says("shrink", &format!("server 2 on {third} leaves")));
    assert!(!Site::is_alive(child), "the server that left has stopped");
    assert_eq!(
        site.daemons(name).iter().filter(|(server, _)| server.is_some()).count(),
        2,
        "it is forgotten"
    );
    // The host has left with its server, and is a spare again.
    let is_listed = || {
        site.status(name)["agents"].as_array().is_some_and(|all| all.iter().any(|one| one["host"] == third))
    };
    eventually("its host has left", || !is_listed());
    let sums = site.sh(name, FILL).ok();
    eventually("it has grown again", || scene.has(3));
    assert_eq!(scene.servers()[2], (3, third));
    assert_eq!(site.sh(name, SUM).ok(), sums);
    let policy = scene.pid();
    scene.ends(policy);
}

#[test]
fn while_a_server_is_down_nothing_is_done_and_what_a_killed_process_began_is_completed() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let scene = Scene::new("policy-killed", 3);
    let (site, name, third) = (&scene.site, &scene.name, scene.net.names[2].clone());
    let sums = site.sh(name, FILL).ok();
    let server = site.server_pid(name, 1);
    Site::kill(server, Signal::KILL);
    eventually("it is down", || site.states(name)[1] == "down");
    scene.on(&third, &["--max", "3"]);
    // Some looks later.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(scene.log("grow"), Vec::<String>::new(), "a server is down");
    assert!(scene.says("wait", "server 1 is down"), "{:?}", scene.log("wait"));
    assert_eq!(scene.servers().len(), 2);
    site.bivouac(["restart", name, "1"]).ok();
    // It is killed at once when it begins to grow, and another one goes on.
    let log = site.home().join(name).join("policy.log");
    let begun = Instant::now();
    while !std::fs::read_to_string(&log).expect("a log").contains(" grow | ") {
        assert!(begun.elapsed() < HANG, "it does not grow");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let first = scene.pid();
    Site::kill(first, Signal::KILL);
    // Until it is dead it has the deployment's lock.
    eventually("another one runs", || site.bivouac(["policy", name, "on"]).code == 0);
    eventually("it has grown", || scene.has(3));
    assert_eq!(scene.servers()[2].1, third);
    assert_eq!(site.sh(name, SUM).ok(), sums);
    let policy = scene.pid();
    scene.ends(policy);
}

#[test]
fn it_stops_with_the_deployment_and_comes_back_with_it_and_a_busy_server_counts() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let scene = Scene::new("policy-busy", 4);
    let (site, name, spares) = (&scene.site, &scene.name, scene.net.names[2..].join(","));
    let busy = ["--busy-above", "60%", "--link-speed", "16M", "--busy-for", "2s", "--shrink-below", "never"];
    let begin = ["policy", name, "on", "--spares", &spares, "--step", "2"];
    site.bivouac([&begin[..], &QUICK, &busy].concat()).ok();
    let first = scene.pid();
    site.bivouac(["down", "--keep", name]).ok();
    assert!(!Site::is_alive(first), "it has ended with the deployment");
    assert!(site.status(name)["policy"].is_null());
    let said = site.bivouac(["policy", name]).ok();
    assert!(said.contains(&format!("begins again with the deployment: `bivouac up {name}`")), "{said}");
    site.bivouac(["up", name]).ok();
    let second = scene.pid();
    assert!(second != first && Site::is_alive(second));
    // More than 1.2 MB/s for each of two servers, over their links.
    let write = "for i in $(seq 400); do dd if=/dev/zero of=/bivouac/f bs=256K count=4 conv=notrunc status=none; sleep 0.05; \
                 [ -e /bivouac/stop ] && exit 0; done; exit 1";
    let mut load = site.command(["exec", name, "--", "bash", "-c", write]).spawn().expect("starts");
    eventually("it has grown", || scene.has(4));
    assert_eq!(scene.log("grow").len(), 1, "by two at once");
    assert!(scene.says("grow", "60% or more of what it can for 2 s"), "{:?}", scene.log("grow"));
    site.sh(name, "touch /bivouac/stop").ok();
    assert!(load.wait().expect("ends").success());
    let said = site.bivouac(["policy", name, "off"]).ok();
    assert!(said.contains("is off") && !Site::is_alive(second), "{said}");
    assert_eq!(scene.servers().len(), 4, "the servers stay");
    site.bivouac(["policy", name, "off"]).fails(65, &["off already"]);
    site.bivouac(["down", "--keep", name]).ok();
    site.bivouac(["up", name]).ok();
    assert!(scene.policy()["pid"].is_null() && site.status(name)["policy"].is_null(), "it is off");
    scene.ends(second);
}

#[test]
fn with_a_run_that_is_killed_it_ends_too() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let net = Network::of(3);
    let site = Site::in_memory("policy-run");
    let name = site.name("run");
    let hosts = net.names[..2].join(",");
    let run = ["run", "--name", &name, "--hosts", &hosts, "--launcher", "netns", "--", "sleep", "30"];
    // The command outlives it, for a while.
    let mut child = site.command(run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    let on = || site.bivouac(["policy", &name, "on", "--spares", &net.names[2]]).code == 0;
    eventually("the deployment runs", on);
    let policy = site.status(&name)["policy"]["pid"].as_i64().expect("it runs") as i32;
    Site::kill(child.id() as i32, Signal::KILL);
    child.wait().expect("ends");
    eventually("nothing is left", || !site.home().join(&name).exists());
    assert!(!Site::is_alive(policy), "the policy's process is left");
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let scene = Scene::new("policy-refused", 3);
    let (site, name, third) = (&scene.site, &scene.name, scene.net.names[2].as_str());
    let refused = |options: &[&str], code: i32, words: &[&str]| {
        site.bivouac([&["policy", name, "on"][..], options].concat()).fails(code, words);
        assert_eq!(
            (&scene.policy()["on"], &scene.policy()["pid"]),
            (&false.into(), &serde_json::Value::Null)
        );
    };
    let missing: PathBuf = site.path("nothing");
    refused(&[], 65, &["no hosts to grow onto", "--spares"]);
    refused(&["--spares", missing.to_str().expect("plain")], 65, &["cannot read the host file"]);
    refused(&["--spares", "a;b"], 65, &["is no host name"]);
    refused(&["--spares", third, "--grow-above", "0%"], 2, &["from 1% to 99%"]);
    refused(&["--spares", third, "--busy-above", "much"], 2, &["never"]);
    refused(&["--spares", third, "--link-speed", "fast"], 2, &["10G"]);
    refused(&["--spares", third, "--every", "0s"], 2, &["a time from 1 s"]);
    refused(&["--spares", third, "--min", "0"], 2, &["--min"]);
    refused(&["--spares", third, "--shrink-below", "80%"], 65, &["too close", "10%"]);
    refused(&["--spares", third, "--min", "3", "--max", "2"], 65, &["3 servers at least and 2 at most"]);
    refused(&["--spares", third, "--max", "1", "--min", "1"], 65, &["has 2 servers", "expand"]);
    site.bivouac(["policy", "nobody", "on", "--spares", third]).fails(64, &["nobody"]);
    site.bivouac(["policy", "nobody"]).fails(64, &["nobody"]);
    site.bivouac(["policy-watch", name]).fails(65, &["has no policy"]);
    let alone = site.up(1);
    site.bivouac(["policy", &alone, "on", "--spares", third])
        .fails(65, &["their own machine only", "--hosts"]);
    site.bivouac(["down", &alone]).ok();
    site.bivouac(["down", "--keep", name]).ok();
    site.bivouac(["policy", name, "on", "--spares", third]).fails(65, &["does not run", "bivouac up"]);
    // A file that was damaged is no reason to panic.
    std::fs::write(site.home().join(name).join("policy.json"), "{\"on\":").expect("written");
    site.bivouac(["policy", name]).fails(65, &["damaged", "remove it"]);
    let said = site.bivouac(["up", name]);
    assert!(said.code == 0 && said.err.contains("damaged"), "{} {}", said.code, said.err);
    site.bivouac(["status", name]).ok();
}
