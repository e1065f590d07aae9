//! Random faults of every kind while programs work that check everything that they do.
//!
//! A [`Scene`] is a deployment on four network namespaces and the machine itself, with storage that can
//! [fail](crate::failing), some [programs](loads), and [files that nobody touches](damage). [`Scene::inflict`] lets one
//! [`Fault`] happen, and returns when all servers have everything again. What programs may see meanwhile stands with each
//! fault: no error, unless it says `excuse`.
//!
//! A [`Deck`] deals the kinds of faults: all of them, shuffled, then all of them again. So a short run has each kind about
//! as often as a long one.

mod agents;
mod clients;
mod damage;
mod deck;
mod loads;
mod servers;
mod storage;

pub use deck::Deck;

use crate::failing::FailingDir;
use crate::kills::Random;
use crate::load::all_in_step;
use crate::{Cut, Network, Site, eventually};
use damage::Kept;
use loads::Loads;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Servers, each on a node of its own: node 0 has server 0. One node more is the machine itself, which has no server.
pub const SERVERS: usize = 4;

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// Servers are killed, which is noticed, and started again.
    Killed,
    /// Servers are killed, and started again before anybody can notice.
    Restarted,
    /// Servers are stopped for longer than it takes to notice that.
    Stopped,
    /// Servers' nodes can be reached by nobody for some seconds.
    CutOff,
    /// Two servers' nodes do not reach each other, and reach all others.
    Severed,
    /// Servers' nodes cannot receive.
    Deaf,
    /// Servers' nodes cannot send.
    Mute,
    /// A server is killed while it, or another one, catches up.
    KilledCatchingUp,
    /// All servers are killed at once, and started again.
    AllServersKilled,
    /// All servers and agents are killed at once, and `up` starts them again.
    AllDaemonsKilled,
    /// The controller, which is an agent, is killed, and started again.
    LeaderKilled,
    /// The controller is stopped until another one leads.
    LeaderStopped,
    /// The controller's node can be reached by nobody for some seconds, nor can the server there.
    LeaderCutOff,
    /// An agent is killed, and started again.
    AgentKilled,
    /// A server's storage gives EIO for some seconds: of writes, reads, syncs or all of them; of blocks, of logs or of both.
    StorageFails,
    /// A server's storage has no room for some seconds.
    StorageFull,
    /// A server's storage is read-only for some seconds.
    StorageReadOnly,
    /// A byte of a block changes in one copy.
    ByteFlipped,
    /// A sub-file of one copy is removed.
    SubFileGone,
    /// Programs are killed in the middle of what they do.
    ClientsKilled,
    /// A server's node can be reached by nobody for so long that its programs' locks and open files are given up.
    NodeAway,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 21] = [
        Fault::Killed,
        Fault::Restarted,
        Fault::Stopped,
        Fault::CutOff,
        Fault::Severed,
        Fault::Deaf,
        Fault::Mute,
        Fault::KilledCatchingUp,
        Fault::AllServersKilled,
        Fault::AllDaemonsKilled,
        Fault::LeaderKilled,
        Fault::LeaderStopped,
        Fault::LeaderCutOff,
        Fault::AgentKilled,
        Fault::StorageFails,
        Fault::StorageFull,
        Fault::StorageReadOnly,
        Fault::ByteFlipped,
        Fault::SubFileGone,
        Fault::ClientsKilled,
        Fault::NodeAway,
    ];
}

/// A deployment, and what works in it. (Fields are dropped in this order.)
pub struct Scene<'a> {
    loads: Loads,
    kept: Kept,
    site: Site,
    name: String,
    dir: FailingDir,
    net: &'a Network,
    replicas: usize,
}

impl<'a> Scene<'a> {
    /// Starts it with so many copies of everything.
    pub fn new(net: &'a Network, replicas: usize) -> Scene<'a> {
        let (dir, site) = (FailingDir::new("soak"), Site::in_memory("soak"));
        let name = site.name(&replicas.to_string());
        let (hosts, copies, storage) = (net.names.join(","), replicas.to_string(), dir.path());
        let up = ["up", &name, "--hosts", &hosts, "--launcher", "netns", "--replicas", &copies, "--storage"];
        let options = ["--block-size", "64K", "--heal-after", "never", "--log-level", "debug"];
        let storage = storage.to_string_lossy();
        site.bivouac(up.iter().chain(&[&*storage]).chain(&options)).ok();
        let kept = Kept::new(&site, &name);
        let loads = Loads::start(&site, &name, &net.names[0]);
        Scene { loads, kept, site, name, dir, net, replicas }
    }

    /// Lets a fault happen, and waits until all servers have everything again. To whom it happened.
    pub fn inflict(&self, fault: Fault, random: &mut Random) -> String {
        match fault {
            Fault::Killed => self.kill_some(random),
            Fault::Restarted => self.restart_some(random),
            Fault::Stopped => self.stop_some(random),
            Fault::CutOff => self.cut_some(random, Cut::Link),
            Fault::Severed => self.cut_two_off_from_each_other(random),
            Fault::Deaf => self.cut_some(random, Cut::Receiving),
            Fault::Mute => self.cut_some(random, Cut::Sending),
            Fault::KilledCatchingUp => self.kill_catching_up(random),
            Fault::AllServersKilled => self.kill_all_servers(),
            Fault::AllDaemonsKilled => self.kill_all_daemons(),
            Fault::LeaderKilled => self.kill_leader(),
            Fault::LeaderStopped => self.stop_leader(),
            Fault::LeaderCutOff => self.cut_leader(),
            Fault::AgentKilled => self.kill_agent(random),
            Fault::StorageFails => self.fail_storage(random),
            Fault::StorageFull => self.fill_storage(random),
            Fault::StorageReadOnly => self.storage_takes_no_changes(random),
            Fault::ByteFlipped => self.flip_a_byte(random),
            Fault::SubFileGone => self.remove_a_sub_file(random),
            Fault::ClientsKilled => self.kill_clients(random),
            Fault::NodeAway => self.cut_a_node_off_for_long(random),
        }
    }

    /// Panics if a program has failed already.
    pub fn assert_alive(&mut self) {
        self.loads.assert_alive();
    }

    /// Has others take a server's place, ends the programs, and looks at every copy of everything. Panics if anything failed, is
    /// lost, wrong or different. (A server that was given up and comes back is a spare: hardly anything happens to it any
    /// more. So that is the last thing.)
    pub fn end(mut self, random: &mut Random) {
        let given_up = self.give_up(random);
        println!("{} copies: all faults are over; {given_up} was given up, and is back", self.replicas);
        self.assert_alive();
        self.loads.stop();
        let done = self.site.bivouac(["verify", &self.name, "--rate", "0", "--json"]);
        let told: Value =
            serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{} {}", done.out, done.err));
        assert_eq!((&told["findings"], done.code), (&serde_json::json!([]), 0), "{}", done.err);
        // Each server is away once: then others show their copies of what it holds.
        for server in 0..SERVERS {
            self.kill(&[server]);
            self.await_down(&[server]);
            let begun = Instant::now();
            self.loads.look(&format!("without server {server}"));
            self.kept.look(&self.site, &self.name);
            let looked = begun.elapsed().as_secs_f32();
            self.restart(&[server]);
            self.settle();
            let took = begun.elapsed().as_secs_f32() - looked;
            println!("without server {server}: compared in {looked:.1} s; back and in step in {took:.1} s");
        }
        self.loads.end();
        self.site.bivouac(["down", &self.name]).ok();
    }

    /// Waits until no server has anything to catch up with, and no node is away.
    fn settle(&self) {
        eventually("no node is away", || !self.is_some_node_away());
        all_in_step(&self.site, &self.name);
    }

    fn is_some_node_away(&self) -> bool {
        let status = self.status();
        status["agents"].as_array().expect("a list").iter().any(|agent| agent["away"] == true)
    }

    fn status(&self) -> Value {
        self.site.status(&self.name)
    }

    fn is_down(&self, server: usize) -> bool {
        self.status()["servers"][server]["state"] == "down"
    }

    fn await_down(&self, servers: &[usize]) {
        servers.iter().for_each(|server| _ = eventually("it is declared down", || self.is_down(*server)));
    }

    /// A random server.
    fn server(random: &mut Random) -> usize {
        random.below(SERVERS as u64) as usize
    }

    /// For how long something lasts that nobody has to notice.
    fn a_while(random: &mut Random) -> Duration {
        Duration::from_millis(2000 + random.below(2000))
    }
}
