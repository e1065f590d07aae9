//! Rounds of faults in one deployment.

use super::attempt::record;
use super::judge::{BLOCK, Judged, Times};
use super::look::Look;
use super::random::Random;
use super::step::{Entry, now};
use super::tree::Tree;
use super::{RECORD, SHARED};
use crate::{HANG, Machine, Site, accesses, eventually};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Servers of the deployment.
const SERVERS: u64 = 5;

/// Longest time for programs to end when they are told to.
const ENDING: Duration = HANG;

/// What happens to the daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// One that is not the controller's is killed.
    One,
    /// That of the controller is killed.
    Controller,
    /// Two are killed.
    Two,
    /// All are killed at once.
    All,
    /// One is stopped, for some seconds or until it has been declared dead, and goes on.
    Stopped,
}

/// What happens to the programs before the daemons are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Programs {
    /// They go on.
    Survive,
    /// They close everything and end.
    End,
    /// They are killed.
    Die,
}

/// What was done and found in all rounds.
#[derive(Default)]
pub struct Totals {
    /// Rounds, by fault and fate of the programs.
    pub rounds: BTreeMap<(Fault, Programs), u32>,
    /// Operations that were acknowledged.
    pub acknowledged: u64,
    /// Operations whose outcome was not known.
    pub unknown: u64,
    /// The slowest operation of each kind of fault, seconds.
    pub slowest: BTreeMap<Fault, (f64, String)>,
    /// What was not as it should be.
    pub wrong: Vec<String>,
}

/// One program.
struct Program {
    who: String,
    access: &'static str,
    tree: Tree,
    running: Option<Child>,
}

/// A deployment under attack.
pub struct Siege<'a> {
    site: &'a Site,
    client: PathBuf,
    name: String,
    mount: String,
    random: Random,
    programs: Vec<Program>,
    machine: Machine,
    /// What was found so far.
    pub totals: Totals,
}

impl<'a> Siege<'a> {
    /// A new deployment. `client` is the program `kills_client`.
    pub fn new(site: &'a Site, client: &Path, seed: u64) -> Siege<'a> {
        let storage = site.path("storage");
        std::fs::create_dir(&storage).expect("made");
        // Nobody else's mount is in the way there, however often the deployment is started.
        let mount = site.path("mount/bivouac").to_string_lossy().into_owned();
        // The directory above is read-only for the programs.
        std::fs::create_dir(site.path("mount")).expect("made");
        let storage = storage.to_string_lossy();
        let block_size = BLOCK.to_string();
        let options = ["--block-size", &block_size, "--storage", &storage, "--mount", &mount];
        let name = site.up_with(SERVERS as usize, &options);
        let mut ways = vec!["preload", "preload"];
        ways.extend(accesses());
        let programs: Vec<Program> = ways
            .into_iter()
            .enumerate()
            .map(|(n, access)| Program { who: format!("w{n}"), access, tree: Tree::default(), running: None })
            .collect();
        let all: Vec<&str> = programs.iter().map(|program| program.who.as_str()).collect();
        site.sh(&name, &format!("cd {mount} && mkdir {} && touch {SHARED}", all.join(" "))).ok();
        for program in &programs {
            std::fs::create_dir(site.path(&program.who)).expect("made");
        }
        let random = Random::new(seed);
        let (client, machine, totals) = (client.to_owned(), Machine::watch(), Totals::default());
        Siege { site, client, name, mount, random, programs, machine, totals }
    }

    /// One round. What is found is added to the totals.
    pub fn round(&mut self, round: u32) {
        let fault = match self.random.below(10) {
            0..=2 => Fault::One,
            3 | 4 => Fault::Controller,
            5 => Fault::Two,
            6..=8 => Fault::All,
            _ => Fault::Stopped,
        };
        let fate = match self.random.below(4) {
            _ if fault == Fault::Stopped => Programs::Survive,
            0 | 1 => Programs::Survive,
            2 => Programs::End,
            _ => Programs::Die,
        };
        *self.totals.rounds.entry((fault, fate)).or_default() += 1;
        self.start();
        self.pause(300, 1500);
        let mut times = Times { fault: now(), stopped: fault == Fault::Stopped, ..Times::default() };
        times.agent_died = self.strike(fault);
        match fate {
            Programs::Survive => {}
            Programs::End => self.end(&times, round),
            Programs::Die => self.kill_programs(),
        }
        if fault != Fault::Stopped {
            times.restart = now();
            self.start_daemons_again();
        }
        let ready = || {
            let status = self.site.status(&self.name);
            let servers = status["servers"].as_array().expect("servers");
            status["state"] == "running" && servers.iter().all(|server| server["state"] == "up")
        };
        eventually("all servers are up", ready);
        times.recovered = now();
        if fate == Programs::Survive {
            // Beyond the time for which operations may still fail.
            let enough = 3_500_000_000 + self.random.below(1_000_000_000);
            while now() - times.recovered < enough + self.machine.lost().between(times.recovered, now()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.end(&times, round);
        }
        times.lost = self.machine.lost();
        self.judge(fault, &times, round);
    }

    fn pause(&mut self, least: u64, most: u64) {
        std::thread::sleep(Duration::from_millis(least + self.random.below(most - least)));
    }

    fn start(&mut self) {
        for program in &mut self.programs {
            let directory = self.site.path(&program.who);
            let _ = std::fs::remove_file(directory.join("journal"));
            let _ = std::fs::remove_file(directory.join("end"));
            let tree = serde_json::to_vec(&program.tree).expect("it has a form");
            std::fs::write(directory.join("tree"), tree).expect("written");
            let mut command = self.site.command(["exec", &self.name, "--access", program.access, "--"]);
            command.arg(&self.client).args(["work", &self.mount]).arg(directory);
            command.arg(self.random.number().to_string()).stderr(Stdio::inherit());
            program.running = Some(command.spawn().expect("it starts"));
        }
        let works = |program: &Program| {
            read_journal(&self.site.path(&program.who)).iter().any(|entry| matches!(entry, Entry::End(..)))
        };
        eventually("all programs work", || self.programs.iter().all(works));
    }

    /// What the daemons' record says.
    fn daemons(&self) -> Vec<i32> {
        self.site.daemons(&self.name).into_iter().map(|(_, pid)| pid).collect()
    }

    /// Says whether the agent has died of it. (It is the first daemon, and the controller.)
    fn strike(&mut self, fault: Fault) -> bool {
        let mut daemons = self.daemons();
        let victim = 1 + self.random.below(SERVERS - 1) as usize;
        let mut agent_died = matches!(fault, Fault::Controller | Fault::All);
        match fault {
            Fault::One => Site::kill(daemons[victim], Signal::KILL),
            Fault::Controller => Site::kill(daemons[0], Signal::KILL),
            Fault::Two => {
                Site::kill(daemons.remove(victim), Signal::KILL);
                let other = self.random.below(SERVERS - 1) as usize;
                agent_died = other == 0;
                Site::kill(daemons[other], Signal::KILL);
            }
            Fault::All => daemons.iter().for_each(|pid| Site::kill(*pid, Signal::KILL)),
            Fault::Stopped => {
                Site::stop(daemons[victim]);
                match self.random.one_in(4) {
                    true => self.pause(11_000, 13_000),
                    false => self.pause(500, 6_000),
                }
                Site::kill(daemons[victim], Signal::CONT);
            }
        }
        self.pause(100, 3000);
        agent_died
    }

    /// Kills what is left of the daemons, and starts all on their storage.
    fn start_daemons_again(&self) {
        let all = self.daemons();
        for pid in &all {
            let pid = Pid::from_raw(*pid).expect("a process number");
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        // A dead process is there until all its threads have ended, with its locks.
        let gone =
            |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |all| all.count()) <= 1;
        let gone = |pid: &i32| gone(pid) && !Site::is_alive(*pid);
        eventually("the daemons are dead", || all.iter().all(gone));
        self.site.bivouac(["up", &self.name]).ok();
    }

    fn kill_programs(&mut self) {
        for program in &mut self.programs {
            let journal = read_journal(&self.site.path(&program.who));
            if let Some(Entry::Process(pid)) = journal.first() {
                // Under `exec` in a mount it is not the process that was started here.
                let pid = Pid::from_raw(*pid).expect("a process number");
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            let mut running = program.running.take().expect("it runs");
            ended(&mut running, ENDING).expect("who was killed ends");
        }
    }

    /// Tells the programs to end, and waits for them.
    fn end(&mut self, times: &Times, round: u32) {
        for program in &self.programs {
            std::fs::write(self.site.path(&program.who).join("end"), "").expect("written");
        }
        for program in &mut self.programs {
            let mut running = program.running.take().expect("it runs");
            match ended(&mut running, ENDING) {
                Some(true) => {}
                Some(false) => self.totals.wrong.push(format!("round {round}: {} failed", program.who)),
                None => {
                    let journal = read_journal(&self.site.path(&program.who));
                    let since = times.fault;
                    let wrong = format!(
                        "round {round}: {} hangs ({since}): {:?}; its threads: {}",
                        program.who,
                        journal.last(),
                        threads(&journal)
                    );
                    self.totals.wrong.push(wrong);
                    running.kill().expect("it runs");
                    running.wait().expect("it ends");
                }
            }
        }
    }

    fn look(&mut self) -> Look {
        let into = self.site.path("look");
        let access = *self.random.of(accesses()).expect("there is a way");
        let mut command = self.site.command(["exec", &self.name, "--access", access, "--"]);
        command.arg(&self.client).args(["look", &self.mount]).arg(&into);
        crate::finish(command).ok();
        postcard::from_bytes(&std::fs::read(into).expect("written")).expect("a look")
    }

    fn judge(&mut self, fault: Fault, times: &Times, round: u32) {
        let mut look = self.look();
        let shared = look.remove(SHARED);
        let inos: std::collections::BTreeSet<u64> = look.values().map(|found| found.ino).collect();
        let mut expected: BTreeMap<Vec<u8>, (u32, u32)> = BTreeMap::new();
        let mut wrong = Vec::new();
        for program in &mut self.programs {
            let prefix = format!("{}/", program.who);
            let own: Look = look
                .iter()
                .filter_map(|(path, found)| Some((path.strip_prefix(&prefix)?.to_owned(), found.clone())))
                .collect();
            let journal = read_journal(&self.site.path(&program.who));
            let judged = Judged::of(std::mem::take(&mut program.tree), &journal, &own, times);
            let tell = |what: String| format!("{} ({}): {what}", program.who, program.access);
            wrong.extend(judged.wrong.into_iter().map(tell));
            let went_on = times.recovered > 0
                && journal.iter().any(|e| matches!(e, Entry::Begin(at, _) if *at > times.recovered));
            if went_on && judged.acknowledged.1 == 0 {
                wrong.push(tell("nothing succeeded after the recovery".to_owned()));
            }
            self.totals.acknowledged += judged.acknowledged.0;
            self.totals.unknown += judged.unknown;
            let slowest = self.totals.slowest.entry(fault).or_default();
            let took = judged.slowest.0 as f64 / 1e9;
            if took > slowest.0 {
                *slowest = (took, format!("round {round}, {}: {}", tell(String::new()), judged.slowest.1));
            }
            let records = judged.shared.iter();
            expected.extend(records.map(|(number, range)| (record(&program.who, *number).to_vec(), *range)));
            program.tree = judged.tree;
        }
        let shared = shared.map(|found| found.content).unwrap_or(Err(0));
        match shared {
            Ok(content) => wrong.extend(check_shared(&content, expected)),
            Err(error) => wrong.push(format!("{SHARED}: error {error}")),
        }
        wrong.extend(self.left_over(inos.len() as u64));
        if !wrong.is_empty() {
            self.keep_evidence(round);
        }
        let heading = format!("round {round}, {fault:?}");
        self.totals.wrong.extend(wrong.into_iter().map(|what| format!("{heading}: {what}")));
    }

    /// Copies the journals to the directory that `BIVOUAC_KILL_EVIDENCE` names, if it does.
    fn keep_evidence(&self, round: u32) {
        let Some(into) = std::env::var_os("BIVOUAC_KILL_EVIDENCE") else { return };
        for program in &self.programs {
            let journal = self.site.path(&program.who).join("journal");
            let copy = Path::new(&into).join(format!("round-{round}-{}", program.who));
            std::fs::copy(journal, copy).expect("copied");
        }
    }

    /// Opens, and inodes besides these, the root directory and the shared file, that stay.
    fn left_over(&self, inodes: u64) -> Option<String> {
        let begin = Instant::now();
        loop {
            let found = (self.site.total(&self.name, "opens"), self.site.total(&self.name, "inodes"));
            if found == (0, inodes + 2) {
                return None;
            }
            if begin.elapsed() > HANG {
                return Some(format!("{} opens; {} inodes, not {}", found.0, found.1, inodes + 2));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// In which system calls the threads of a program are that has begun this journal, with their arguments.
fn threads(journal: &[Entry]) -> String {
    let Some(Entry::Process(pid)) = journal.first() else { return "not known".into() };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let calls = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("syscall")).ok());
    calls.map(|call| call.trim().to_owned()).collect::<Vec<_>>().join("; ")
}

/// Waits for a process; whether it succeeded, or nothing if it has not ended by then.
fn ended(running: &mut Child, limit: Duration) -> Option<bool> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = running.try_wait().expect("asked") {
            return Some(status.success());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

fn read_journal(directory: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(directory.join("journal")).unwrap_or_default();
    // A last line may be half written.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What is wrong with the file to which all have appended.
fn check_shared(content: &[u8], mut expected: BTreeMap<Vec<u8>, (u32, u32)>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut counts: BTreeMap<&[u8], u32> = BTreeMap::new();
    for (index, record) in content.chunks(RECORD).enumerate() {
        *counts.entry(record).or_default() += 1;
        if !expected.contains_key(record) {
            let text = String::from_utf8_lossy(record);
            wrong.push(format!("{SHARED}: at {}: {text:?}", index * RECORD));
            expected.insert(record.to_vec(), (0, u32::MAX));
        }
    }
    for (record, (least, most)) in &expected {
        let count = counts.get(record.as_slice()).copied().unwrap_or(0);
        if count < *least || count > *most {
            let text = String::from_utf8_lossy(record);
            wrong.push(format!("{SHARED}: {text:?} is there {count} times, not {least} to {most}"));
        }
    }
    wrong.truncate(20);
    wrong
}

impl Drop for Siege<'_> {
    fn drop(&mut self) {
        for program in &mut self.programs {
            if let Some(mut running) = program.running.take() {
                let _ = running.kill();
                let _ = running.wait();
            }
        }
    }
}
