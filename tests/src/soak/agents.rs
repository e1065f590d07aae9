//! The controller, which is one of the agents, and other agents die, are stopped and are cut off.

use super::{SERVERS, Scene};
use crate::agents::start_agent;
use crate::kills::Random;
use crate::{Cut, Site, eventually};
use rustix::io::Errno;
use rustix::process::Signal;
use std::time::Duration;

/// How long it goes on without the old controller.
const AWAY: Duration = Duration::from_secs(2);
/// How long the group's members may differ from what they were and will be.
const TAKING_IN: Duration = Duration::from_secs(1);

impl Scene<'_> {
    /// The node whose agent is the controller.
    fn leader(&self) -> u64 {
        let mut leader = None;
        eventually("somebody leads", || {
            leader = self.status()["leader"].as_u64();
            leader.is_some()
        });
        leader.expect("found")
    }

    fn await_leader_but(&self, old: u64) {
        eventually("another one leads", || self.status()["leader"].as_u64().is_some_and(|new| new != old));
    }

    fn signal_agent(&self, node: u64, signal: Signal) {
        Site::kill(self.site.agent_pid(&self.name, node), signal);
    }

    /// Starts a killed agent again, and waits until it keeps the map again: alone it does not, and the others take it in
    /// when it has been away for half a minute. (With two that do not, and a third one cut off, there would be no controller.)
    fn restart_agent(&self, node: u64) {
        let before = self.times_taken_in(node);
        let namespace = self.net.names.get(node as usize);
        start_agent(&self.site, &self.name, node, namespace.map(String::as_str));
        eventually("the agent is taken in again", || self.times_taken_in(node) > before);
        std::thread::sleep(TAKING_IN);
        let is_voter = || {
            let status = self.status();
            status["voters"].as_array().is_some_and(|voters| voters.contains(&node.into()))
        };
        eventually("the agent keeps the map", is_voter);
    }

    /// How often controllers have begun to take an agent in anew, as their logs say.
    fn times_taken_in(&self, node: u64) -> usize {
        let logs = std::fs::read_dir(self.site.home().join(&self.name).join("logs")).expect("is there");
        let texts = logs.flatten().map(|log| std::fs::read(log.path()).unwrap_or_default());
        let words = format!("takes its place dead={node} spare={node}");
        texts.map(|text| String::from_utf8_lossy(&text).matches(&words).count()).sum()
    }

    pub(super) fn kill_leader(&self) -> String {
        let leader = self.leader();
        self.signal_agent(leader, Signal::KILL);
        self.await_leader_but(leader);
        std::thread::sleep(AWAY);
        self.restart_agent(leader);
        self.settle();
        format!("the agent of node {leader}")
    }

    pub(super) fn stop_leader(&self) -> String {
        let leader = self.leader();
        self.signal_agent(leader, Signal::STOP);
        self.await_leader_but(leader);
        std::thread::sleep(AWAY);
        self.signal_agent(leader, Signal::CONT);
        self.settle();
        format!("the agent of node {leader}")
    }

    /// The machine's own link is everybody's: then another one has to lead first.
    pub(super) fn cut_leader(&self) -> String {
        let machine = SERVERS as u64;
        while self.leader() == machine {
            self.signal_agent(machine, Signal::STOP);
            self.await_leader_but(machine);
            self.signal_agent(machine, Signal::CONT);
        }
        let leader = self.leader();
        let node = leader as usize;
        let _excuse = (node == 0).then(|| self.loads.excuse_far(Errno::IO));
        self.net.cut(node, Cut::Link, true);
        self.await_leader_but(leader);
        self.await_down(&[node]);
        std::thread::sleep(AWAY);
        self.net.cut(node, Cut::Link, false);
        self.settle();
        format!("node {node}")
    }

    pub(super) fn kill_agent(&self, random: &mut Random) -> String {
        let node = random.below(SERVERS as u64 + 1);
        self.signal_agent(node, Signal::KILL);
        std::thread::sleep(Duration::from_millis(random.below(3000)));
        self.restart_agent(node);
        self.leader();
        self.settle();
        format!("the agent of node {node}")
    }

    pub(super) fn kill_all_daemons(&self) -> String {
        let _excuse = self.loads.excuse(Errno::IO);
        self.site.daemons(&self.name).into_iter().for_each(|(_, pid)| Site::kill(pid, Signal::KILL));
        self.site.bivouac(["up", &self.name]).ok();
        self.settle();
        "all".into()
    }
}
