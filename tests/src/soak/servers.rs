//! Servers die, are stopped and are cut off, one or, where there are three copies, two at once.

use super::{SERVERS, Scene};
use crate::kills::Random;
use crate::{Cut, Site, eventually};
use rustix::io::Errno;
use rustix::process::Signal;
use std::time::Duration;

/// How long a server is away, so that it misses something.
const AWAY: Duration = Duration::from_secs(2);

impl Scene<'_> {
    /// As many servers as may be away without an error: one less than there are copies, or fewer.
    fn some(&self, random: &mut Random) -> Vec<usize> {
        let (first, many) = (Scene::server(random), 1 + random.below(self.replicas as u64 - 1) as usize);
        (first..first + many).map(|server| server % SERVERS).collect()
    }

    pub(super) fn signal(&self, servers: &[usize], signal: Signal) {
        let pid = |server: &usize| self.site.server_pid(&self.name, *server as u64);
        servers.iter().for_each(|server| Site::kill(pid(server), signal));
    }

    pub(super) fn kill(&self, servers: &[usize]) {
        self.signal(servers, Signal::KILL);
    }

    pub(super) fn restart(&self, servers: &[usize]) {
        let numbers: Vec<String> = servers.iter().map(usize::to_string).collect();
        self.site.bivouac(["restart", &self.name].into_iter().chain(numbers.iter().map(|n| &**n))).ok();
    }

    pub(super) fn kill_some(&self, random: &mut Random) -> String {
        let servers = self.some(random);
        self.kill(&servers);
        self.await_down(&servers);
        self.restart(&servers);
        self.settle();
        format!("servers {servers:?}")
    }

    pub(super) fn restart_some(&self, random: &mut Random) -> String {
        let servers = self.some(random);
        self.kill(&servers);
        self.restart(&servers);
        self.settle();
        format!("servers {servers:?}")
    }

    pub(super) fn stop_some(&self, random: &mut Random) -> String {
        let servers = self.some(random);
        self.signal(&servers, Signal::STOP);
        self.await_down(&servers);
        self.signal(&servers, Signal::CONT);
        self.settle();
        format!("servers {servers:?}")
    }

    /// A program on a node that is cut off may wait for so long that it gets EIO.
    pub(super) fn cut_some(&self, random: &mut Random, what: Cut) -> String {
        let servers = self.some(random);
        let _excuse = servers.contains(&0).then(|| self.loads.excuse_far(Errno::IO));
        servers.iter().for_each(|server| self.net.cut(*server, what, true));
        self.await_down(&servers);
        std::thread::sleep(AWAY);
        servers.iter().for_each(|server| self.net.cut(*server, what, false));
        self.settle();
        format!("servers {servers:?}")
    }

    /// One of the two is left out until they reach each other again. A program on the node of one of them does not reach the
    /// other one, either, and may wait in vain.
    pub(super) fn cut_two_off_from_each_other(&self, random: &mut Random) -> String {
        let (one, distance) = (Scene::server(random), 1 + random.below(SERVERS as u64 - 1) as usize);
        let other = (one + distance) % SERVERS;
        let _excuse = (one == 0 || other == 0).then(|| self.loads.excuse_far(Errno::IO));
        self.net.cut_between(one, other, true);
        let left_out = || [one, other].into_iter().find(|server| self.is_down(*server));
        eventually("one of the two is left out", || left_out().is_some());
        let left_out = left_out();
        std::thread::sleep(AWAY);
        self.net.cut_between(one, other, false);
        self.settle();
        format!("servers {one} and {other}, {left_out:?} was left out")
    }

    /// The node is away, and back.
    pub(super) fn cut_a_node_off_for_long(&self, random: &mut Random) -> String {
        let server = Scene::server(random);
        let _excuse = (server == 0).then(|| self.loads.excuse_far(Errno::IO));
        self.net.cut(server, Cut::Link, true);
        eventually("the node is away", || self.is_some_node_away());
        self.net.cut(server, Cut::Link, false);
        self.settle();
        format!("server {server}")
    }

    /// It comes back as a spare.
    pub(super) fn give_up(&self, random: &mut Random) -> String {
        let server = Scene::server(random);
        self.kill(&[server]);
        self.await_down(&[server]);
        self.site.bivouac(["heal", &self.name]).ok();
        self.restart(&[server]);
        self.settle();
        format!("server {server}")
    }

    /// One server has missed something and is catching up; then it is killed again, or another one is. With two copies
    /// nobody but that other one had everything of what they share.
    pub(super) fn kill_catching_up(&self, random: &mut Random) -> String {
        let (first, other) = (Scene::server(random), 1 + random.below(SERVERS as u64 - 1) as usize);
        let second = if random.one_in(2) { first } else { (first + other) % SERVERS };
        self.kill(&[first]);
        self.await_down(&[first]);
        std::thread::sleep(AWAY);
        let _excuse = (second != first && self.replicas == 2).then(|| self.loads.excuse(Errno::IO));
        self.restart(&[first]);
        let lacked = self.status()["servers"][first]["behind"].clone();
        self.kill(&[second]);
        self.await_down(&[second]);
        self.restart(&[second]);
        self.settle();
        format!("server {second}, while server {first} lacked {lacked} pieces")
    }

    /// Nobody answers for anything until those are back that had everything.
    pub(super) fn kill_all_servers(&self) -> String {
        let all: Vec<usize> = (0..SERVERS).collect();
        let _excuse = self.loads.excuse(Errno::IO);
        self.kill(&all);
        self.restart(&all);
        self.settle();
        format!("servers {all:?}")
    }
}
