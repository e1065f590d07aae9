//! Servers with copies die, are stopped and are cut off at random while programs work: no operation fails, nothing that
//! was acknowledged is lost, and in the end all copies are the same.
//!
//! `BIVOUAC_SOAK_SECONDS=3600 BIVOUAC_SOAK_SEED=7 cargo test -p bivouac-tests --test soak -- --nocapture`

use bivouac_tests::kills::Random;
use bivouac_tests::load::{APPENDS, BLOCKS, NAMES, all_in_step};
use bivouac_tests::{Cut, Network, Site, eventually, skipped_without_root};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// What happens to a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    /// Killed, noticed, and started again.
    Killed,
    /// Killed, and started again before anybody can notice.
    Restarted,
    /// Stopped for longer than it takes to notice that.
    Stopped,
    /// Its node can be reached by nobody for some seconds.
    CutOff,
    /// Its node cannot send.
    Deaf,
    /// Its node cannot receive.
    Mute,
}

const FAULTS: [Fault; 6] =
    [Fault::Killed, Fault::Restarted, Fault::Stopped, Fault::CutOff, Fault::Deaf, Fault::Mute];

/// A program that works meanwhile.
struct Load {
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
    told: ChildStdin,
}

impl Load {
    fn start(site: &Site, name: &str, program: &str, home: &str) -> Load {
        let path = site.path(&format!("{home}.py"));
        std::fs::write(&path, program).expect("written");
        let mut command = site.command(["exec", name, "--", "python3", "-B"]);
        command.arg(path).arg(format!("/bivouac/{home}")).arg(site.path(&format!("{home}.stop")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let says = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let told = child.stdin.take().expect("a pipe");
        eventually("it has begun", || site.path(&format!("{home}.stop.begun")).exists());
        Load { child, says, told }
    }

    fn say(&mut self) -> String {
        self.says.next().expect("it has not ended").expect("a line")
    }

    /// Ends the work. How many operations there were, and how long the longest took, seconds.
    fn end(&mut self, site: &Site, home: &str) -> (f64, f64) {
        std::fs::write(site.path(&format!("{home}.stop")), "").expect("written");
        let said = self.say();
        let words: Vec<f64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [count, worst] = words[..] else { panic!("{said:?}") };
        (count, worst)
    }
}

fn state(site: &Site, name: &str, server: usize) -> String {
    site.status(name)["servers"][server]["state"].as_str().expect("a word").to_owned()
}

/// Lets something happen to servers, each on the node of its number, and waits until all have caught up.
fn inflict(site: &Site, net: &Network, name: &str, fault: Fault, servers: &[usize]) {
    let pid = |server: usize| site.server_pid(name, server as u64);
    let down = |server: usize| _ = eventually("it is down", || state(site, name, server) == "down");
    let restart = || {
        for server in servers {
            site.bivouac(["restart", name, &server.to_string()]).ok();
        }
    };
    let cut = |what: Cut| {
        servers.iter().for_each(|server| net.cut(*server, what, true));
        servers.iter().for_each(|server| down(*server));
        std::thread::sleep(Duration::from_secs(2));
        servers.iter().for_each(|server| net.cut(*server, what, false));
    };
    match fault {
        Fault::Killed => {
            servers.iter().for_each(|server| Site::kill(pid(*server), Signal::KILL));
            servers.iter().for_each(|server| down(*server));
            restart();
        }
        Fault::Restarted => {
            servers.iter().for_each(|server| Site::kill(pid(*server), Signal::KILL));
            restart();
        }
        Fault::Stopped => {
            servers.iter().for_each(|server| Site::kill(pid(*server), Signal::STOP));
            servers.iter().for_each(|server| down(*server));
            servers.iter().for_each(|server| Site::kill(pid(*server), Signal::CONT));
        }
        Fault::CutOff => cut(Cut::Link),
        Fault::Mute => cut(Cut::Sending),
        Fault::Deaf => cut(Cut::Receiving),
    }
    all_in_step(site, name);
}

#[test]
fn no_operation_fails_and_all_copies_are_the_same_after_random_faults() {
    if skipped_without_root("making network namespaces") {
        return;
    }
    let seconds = number("BIVOUAC_SOAK_SECONDS").unwrap_or(180);
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = number("BIVOUAC_SOAK_SEED").unwrap_or_else(|| clock().map_or(1, |time| time.as_secs()));
    println!("seed {seed}, {seconds} s (BIVOUAC_SOAK_SEED, BIVOUAC_SOAK_SECONDS)");
    let mut random = Random::new(seed);
    let mut counts: BTreeMap<Fault, u32> = BTreeMap::new();
    let net = Network::of(4);
    for (replicas, at_once) in [("2", 1), ("3", 2)] {
        let site = Site::in_memory("soak");
        let name = site.name(replicas);
        let hosts = net.names.join(",");
        let up = ["up", &name, "--hosts", &hosts, "--launcher", "netns", "--replicas", replicas];
        site.bivouac(up.iter().chain(&[
            "--block-size",
            "64K",
            "--heal-after",
            "never",
            "--log-level",
            "debug",
        ]))
        .ok();
        let mut names = Load::start(&site, &name, NAMES, "names");
        let mut blocks = Load::start(&site, &name, BLOCKS, "blocks");
        let mut appends = Load::start(&site, &name, APPENDS, "appends");
        let until = Instant::now() + Duration::from_secs(seconds) / 2;
        while Instant::now() < until {
            let fault = FAULTS[random.below(FAULTS.len() as u64) as usize];
            let (first, many) = (random.below(4) as usize, 1 + random.below(at_once) as usize);
            let servers: Vec<usize> = (first..first + many).map(|s| s % 4).collect();
            let begun = Instant::now();
            inflict(&site, &net, &name, fault, &servers);
            let took = begun.elapsed().as_secs_f32();
            println!("{replicas} copies: {servers:?} {fault:?}, all in step again after {took:.1} s");
            *counts.entry(fault).or_default() += servers.len() as u32;
        }
        for (load, home) in [(&mut names, "names"), (&mut blocks, "blocks"), (&mut appends, "appends")] {
            let (operations, worst) = load.end(&site, home);
            println!("{replicas} copies: {operations} operations on {home}, the longest took {worst:.1} s");
            assert!(operations > 100.0, "too little was done to prove anything");
            assert!(worst < 30.0, "seed {seed}: an operation took {worst} s");
        }
        assert!(names.child.wait().expect("ends").success(), "seed {seed}");
        assert!(appends.child.wait().expect("ends").success(), "seed {seed}");
        let verified: serde_json::Value =
            serde_json::from_str(&site.bivouac(["verify", &name, "--json"]).ok()).expect("JSON");
        assert_eq!(verified["findings"], serde_json::json!([]), "seed {seed}");
        // Each server is away once: then others show their copies of what it holds.
        for server in 0..4 {
            Site::kill(site.server_pid(&name, server as u64), Signal::KILL);
            eventually("it is down", || state(&site, &name, server) == "down");
            let begun = Instant::now();
            writeln!(blocks.told, "look").expect("told");
            assert_eq!(blocks.say(), "the same", "seed {seed}: without server {server}");
            let looked = begun.elapsed().as_secs_f32();
            site.bivouac(["restart", &name, &server.to_string()]).ok();
            all_in_step(&site, &name);
            let took = begun.elapsed().as_secs_f32() - looked;
            println!("without server {server}: compared in {looked:.1} s; back and in step in {took:.1} s");
        }
        drop(blocks.told);
        assert!(blocks.child.wait().expect("ends").success(), "seed {seed}");
        site.bivouac(["down", &name]).ok();
    }
    println!("seed {seed}: {counts:?}");
}
