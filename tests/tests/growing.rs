//! Servers come and leave while programs check everything that they do; and whatever dies meanwhile, in the end everything is where it
//! is to be.

use bivouac_tests::load::{APPENDS, BLOCKS, LENGTHS, Load, NAMES, all_in_step};
use bivouac_tests::{Site, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

const SUMS: &str = "set -o pipefail; cd /bivouac/old && md5sum * | md5sum && stat -c '%n %s %Y' * | md5sum";

/// A deployment with files of many sizes, and what they are.
fn begun(site: &Site, servers: &str, replicas: &str, options: &[&str]) -> (String, String) {
    let name = site.name("grows");
    let usual = ["--block-size", "64K", "--heal-after", "never", "--replicas", replicas];
    let up = ["up", &name, "--servers", servers];
    site.bivouac(up.iter().chain(&usual).chain(options)).ok();
    let files = "mkdir /bivouac/old && cd /bivouac/old && for i in $(seq 200); do head -c ${i}K /dev/urandom > $i; done";
    site.sh(&name, files).ok();
    site.sh(&name, "head -c 30M /dev/urandom > /bivouac/old/big && truncate -s 90M /bivouac/old/sparse").ok();
    let before = site.sh(&name, SUMS).ok();
    (name, before)
}

fn numbers(site: &Site, name: &str) -> Vec<u64> {
    let status = site.status(name);
    let all = status["servers"].as_array().expect("a list");
    all.iter().map(|server| server["id"].as_u64().expect("a number")).collect()
}

fn everything_is_right(site: &Site, name: &str, before: &str, when: &str) {
    assert_eq!(site.sh(name, SUMS).ok(), before, "{when}");
    let said = site.bivouac(["verify", name]).ok();
    assert!(said.contains("everything that was checked is as it should be"), "{when}: {said}");
}

fn servers_leave_under_loads(test: &str, replicas: &str) {
    let site = Site::in_memory(test);
    let (name, before) = begun(&site, "5", replicas, &[]);
    let mut loads: Vec<Load> =
        [(BLOCKS, "blocks"), (LENGTHS, "lengths"), (APPENDS, "appends"), (NAMES, "names")]
            .into_iter()
            .map(|(program, home)| Load::start(&site, &name, program, home))
            .collect();
    let pids: Vec<i32> = [3, 4, 0].map(|server| site.server_pid(&name, server)).to_vec();
    site.bivouac(["shrink", &name, "--servers", "-2"]).ok();
    assert_eq!(numbers(&site, &name), [0, 1, 2]);
    // Also the first one; and all files are spread anew.
    site.bivouac(["shrink", &name, "--server", "0", "--rebuild", "direct"]).ok();
    assert_eq!(numbers(&site, &name), [1, 2]);
    assert!(pids.iter().all(|pid| !Site::is_alive(*pid)), "those that left have stopped");
    loads.iter_mut().for_each(Load::assert_alive);
    // New ones get other numbers.
    site.bivouac(["expand", &name, "--servers", "+1"]).ok();
    assert_eq!(numbers(&site, &name), [1, 2, 5]);
    for load in &mut loads {
        load.stop();
    }
    everything_is_right(&site, &name, &before, "after servers have left");
    loads.into_iter().for_each(Load::succeeds);
    site.bivouac(["down", "--keep", &name]).ok();
    site.bivouac(["up", &name]).ok();
    if replicas != "1" {
        all_in_step(&site, &name);
    }
    everything_is_right(&site, &name, &before, "after a restart");
    let pids: Vec<i32> = site.daemons(&name).into_iter().map(|(_, pid)| pid).collect();
    assert_eq!(pids.len(), 4, "three servers and the agent");
    site.bivouac(["down", &name]).ok();
    site.assert_nothing_left(&name, &pids);
}

#[test]
fn servers_leave_a_deployment_with_one_copy() {
    servers_leave_under_loads("leave-one", "1");
}

#[test]
fn servers_leave_a_deployment_with_two_copies() {
    servers_leave_under_loads("leave-two", "2");
}

#[test]
fn what_cannot_be_is_refused_and_those_that_were_to_leave_can_stay() {
    let site = Site::in_memory("leave-refused");
    let (name, before) = begun(&site, "3", "2", &[]);
    site.bivouac(["shrink", &name]).fails(2, &["--hosts", "--servers"]);
    site.bivouac(["shrink", &name, "--servers", "-2"]).fails(65, &["copies", "2 servers at least"]);
    site.bivouac(["shrink", &name, "--server", "9"]).fails(65, &["9"]);
    site.bivouac(["shrink", &name, "--hosts", "nowhere"]).fails(65, &["nowhere", "bivouac status"]);
    site.bivouac(["shrink", &name, "--cancel"]).fails(65, &["nothing to cancel"]);
    site.bivouac(["rebuild", &name, "--cancel"]).fails(65, &["nothing to cancel"]);
    site.bivouac(["shrink", &name, "--server", "1", "--max-rate", "1M", "--background"]).ok();
    let said = site.bivouac(["status", &name]).ok();
    assert!(said.contains("up, to leave") && said.contains("files go to where they are to be"), "{said}");
    let status = site.status(&name);
    assert_eq!(
        (&status["rebuild"]["rule"], &status["servers"][1]["departing"]),
        (&"metadata".into(), &true.into())
    );
    let said = site.bivouac(["shrink", &name, "--cancel"]).ok();
    assert!(said.contains("1 server of") && said.contains("stay"), "{said}");
    site.bivouac(["rebuild", &name]).ok();
    assert_eq!(numbers(&site, &name), [0, 1, 2]);
    everything_is_right(&site, &name, &before, "when it stays");
    site.bivouac(["down", &name]).ok();
}

/// A small generator of numbers, so that a seed repeats a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Expansions and shrinkages one after the other, in each of which a server or the command is killed at some moment. Some in CI;
/// `BIVOUAC_GROWTH_ROUNDS=200 BIVOUAC_GROWTH_SEED=7` for more.
fn interrupted(test: &str, replicas: &str) {
    let number =
        |name: &str, usual: u64| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (rounds, seed) = (number("BIVOUAC_GROWTH_ROUNDS", 4), number("BIVOUAC_GROWTH_SEED", 1));
    let mut site = Site::in_memory(test);
    site.restarts_servers();
    let (name, before) = begun(&site, "3", replicas, &["--restarts", "1000"]);
    let mut dice = Dice(seed);
    let (mut servers_killed, mut commands_killed) = (0, 0);
    for round in 0..rounds {
        let there = numbers(&site, &name);
        let grows = there.len() <= 3 || there.len() < 6 && dice.roll(2) == 0;
        let leaves = there[dice.roll(there.len() as u64) as usize].to_string();
        let rule = if dice.roll(2) == 0 { "direct" } else { "metadata" };
        let words: Vec<&str> = match grows {
            true => vec!["expand", &name, "--servers", "+1", "--rebuild", rule],
            false => vec!["shrink", &name, "--server", &leaves, "--rebuild", rule],
        };
        let what = format!("round {round} of seed {seed}: {}", words.join(" "));
        let mut child = site.command(&words).stdout(std::process::Stdio::null()).spawn().expect("starts");
        std::thread::sleep(Duration::from_millis(dice.roll(1500)));
        let killed_command = dice.roll(4) == 0;
        let mut killed = None;
        if killed_command {
            Site::kill(child.id() as i32, Signal::KILL);
            commands_killed += 1;
        } else {
            let victim = there[dice.roll(there.len() as u64) as usize];
            let status = site.status(&name);
            let all = status["servers"].as_array().expect("a list");
            let pid =
                all.iter().find(|server| server["id"] == victim).and_then(|server| server["pid"].as_i64());
            // One that leaves may have ended by itself.
            let process = pid.and_then(|pid| Pid::from_raw(pid as i32));
            if process.is_some_and(|process| kill_process(process, Signal::KILL).is_ok()) {
                servers_killed += 1;
                killed = Some((victim, pid));
            }
        }
        let begun = Instant::now();
        let ended = child.wait().expect("ends");
        // One that dies often is started again after growing pauses. When it is down, what it has gives EIO.
        let all_up = || {
            let status = site.status(&name);
            let all = status["servers"].as_array().expect("a list");
            let is_dead = |server: &serde_json::Value| {
                killed.is_some_and(|(victim, pid)| server["id"] == victim && server["pid"].as_i64() == pid)
            };
            all.iter().all(|server| server["state"] == "up" && !is_dead(server))
        };
        eventually("all servers are up again", all_up);
        // One that was killed, or has given up, is repeated: it goes on.
        if killed_command || !ended.success() {
            let left = numbers(&site, &name).contains(&leaves.parse().expect("a number"));
            if grows || left {
                let again: Vec<&str> = if grows { vec!["rebuild", &name] } else { words.clone() };
                let said = site.bivouac(again);
                // It may just have left.
                if grows || numbers(&site, &name).contains(&leaves.parse().expect("a number")) {
                    said.ok();
                }
            }
        }
        if replicas != "1" {
            all_in_step(&site, &name);
        }
        assert_eq!(site.sh(&name, SUMS).ok(), before, "{what}");
        println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    everything_is_right(&site, &name, &before, "in the end");
    println!("{servers_killed} times a server was killed, {commands_killed} times the command");
    site.bivouac(["down", &name]).ok();
}

#[test]
fn whatever_dies_while_servers_come_and_leave_everything_is_there() {
    interrupted("grow-killed-one", "1");
}

#[test]
fn whatever_dies_while_servers_come_and_leave_everything_is_there_with_two_copies() {
    interrupted("grow-killed-two", "2");
}

/// Who asks all servers must not wait for, or fail with, those that have just left.
#[test]
fn what_all_servers_are_asked_for_is_answered_while_they_leave() {
    let site = Site::new("asked-all");
    let name = site.up(4);
    let script = "import os, sys
os.mkdir(f'/bivouac/{os.getpid()}')
fd = os.open(f'/bivouac/{os.getpid()}/f', os.O_CREAT | os.O_RDWR)
print('begun', flush=True)
while not os.path.exists('/bivouac/stop'):
    assert os.statvfs('/bivouac').f_blocks > 0
    os.pwrite(fd, b'x', 3000000)
    os.fsync(fd)
    assert os.fstat(fd).st_size == 3000001 and os.lseek(fd, 0, os.SEEK_DATA) > 0
    assert 'f' in os.listdir(f'/bivouac/{os.getpid()}')";
    let start = || {
        let mut command = site.command(["exec", &name, "--", "python3", "-B", "-c", script]);
        command.stdout(std::process::Stdio::piped()).spawn().expect("python3 starts")
    };
    let mut programs: Vec<_> = (0..3).map(|_| start()).collect();
    for program in &mut programs {
        let mut line = [0; 6];
        std::io::Read::read_exact(program.stdout.as_mut().expect("a pipe"), &mut line).expect("it has begun");
    }
    for _ in 0..2 {
        site.bivouac(["shrink", &name, "--servers", "-2"]).ok();
        site.bivouac(["expand", &name, "--servers", "+2"]).ok();
    }
    site.sh(&name, "touch /bivouac/stop").ok();
    for mut program in programs {
        assert!(program.wait().expect("it ends").success());
    }
}
