//! Network namespaces as nodes.

use crate::site::{Finished, Site, finish};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Namespaces on a bridge, which stand for nodes. They go when it is dropped. Needs root.
pub struct Network {
    bridge: String,
    /// The namespaces.
    pub names: Vec<String>,
    subnet: String,
}

/// What of a node's link is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// All of it.
    Link,
    /// What the node sends.
    Sending,
    /// What the node receives.
    Receiving,
}

impl Network {
    /// Two namespaces.
    pub fn pair() -> Network {
        Network::of(2)
    }

    /// So many namespaces.
    pub fn of(nodes: usize) -> Network {
        let id = claimed();
        let subnet = format!("10.{}.{}", 64 + id / 250 % 64, id % 250);
        let names = ('a'..).take(nodes).map(|letter| format!("bvt{id}{letter}")).collect();
        let network = Network { bridge: bridge(id), names, subnet: subnet.clone() };
        let bridge = &network.bridge;
        ip(format!("addr add {subnet}.1/24 dev {bridge}"));
        ip(format!("link set {bridge} up"));
        for (i, name) in network.names.iter().enumerate() {
            ip(format!("netns add {name}"));
            ip(format!("link add {name} type veth peer name eth0 netns {name}"));
            ip(format!("link set {name} master {bridge} up"));
            ip(format!("-n {name} addr add {subnet}.{}/24 dev eth0", i + 2));
            ip(format!("-n {name} link set eth0 up"));
            ip(format!("-n {name} link set lo up"));
        }
        network
    }

    /// Cuts a node off, or connects it again.
    pub fn cut(&self, node: usize, what: Cut, is_cut: bool) {
        let verb = if is_cut { "add" } else { "del" };
        let subnet = &self.subnet;
        let address = |node: usize| format!("{subnet}.{}/32", node + 2);
        match what {
            Cut::Link => self.link(node, !is_cut),
            // Of two routes the narrower one counts.
            Cut::Sending => {
                for half in ["0", "128"] {
                    ip(format!("-n {} route {verb} blackhole {subnet}.{half}/25", self.names[node]));
                }
            }
            Cut::Receiving => {
                ip(format!("route {verb} blackhole {}", address(node)));
                for other in (0..self.names.len()).filter(|other| *other != node) {
                    ip(format!("-n {} route {verb} blackhole {}", self.names[other], address(node)));
                }
            }
        }
    }

    /// Cuts two nodes off from each other, or connects them again: one cannot send to the other any more, also no answers.
    /// They reach all others, and are reached.
    pub fn cut_between(&self, node: usize, other: usize, is_cut: bool) {
        let verb = if is_cut { "add" } else { "del" };
        ip(format!("-n {} route {verb} blackhole {}.{}/32", self.names[node], self.subnet, other + 2));
    }

    /// A node receives so many bits in a second at most.
    pub fn slow_down(&self, node: usize, rate: &str) {
        tc(format!("qdisc add dev {} root tbf rate {rate} burst 16k latency 2s", self.names[node]));
    }

    /// Ends what [`Network::slow_down`] has begun: the node receives at full speed again.
    pub fn speed_up(&self, node: usize) {
        tc(format!("qdisc del dev {} root", self.names[node]));
    }

    /// The address at which nodes reach the machine itself.
    pub fn host_address(&self) -> String {
        format!("{}.1", self.subnet)
    }

    /// A deployment with a server on each node.
    pub fn deploy(&self, site: &Site, options: &[&str]) -> String {
        self.deploy_on(site, self.names.len(), options)
    }

    /// The same on the first few nodes.
    pub fn deploy_on(&self, site: &Site, nodes: usize, options: &[&str]) -> String {
        let name = site.name(&format!("d{}", site.deployments().len()));
        let hosts = self.names[..nodes].join(",");
        site.bivouac([&["up", &name, "--hosts", &hosts, "--launcher", "netns"][..], options].concat()).ok();
        name
    }

    /// The host's end of a node's link, off or on.
    pub fn link(&self, node: usize, on: bool) {
        ip(format!("link set {} {}", self.names[node], if on { "up" } else { "down" }));
    }
}

/// Runs a shell script on a node, inside a deployment.
pub fn on_node(node: &str, site: &Site, name: &str, script: &str) -> Finished {
    on_node_by("auto", node, site, name, script)
}

/// The same in a certain way of access.
pub fn on_node_by(access: &str, node: &str, site: &Site, name: &str, script: &str) -> Finished {
    finish(site.command_on(node, ["exec", name, "--access", access, "--", "sh", "-c", script]))
}

/// How many networks there can be at once: each has a subnet of its own.
const NETWORKS: u32 = 64 * 250;

fn bridge(id: u32) -> String {
    format!("bvb{id}")
}

/// Makes a bridge, if there is none of this name.
fn make_bridge(id: u32) -> Output {
    let mut command = Command::new("ip");
    command.args(["link", "add", &bridge(id), "type", "bridge"]).output().expect("the program starts")
}

/// The number of a network that nobody else has: that of a bridge that was made just now. Test programs run at the same time, and one may
/// have left something behind. (None that this process has just given up: the kernel takes its time to remove a namespace's links.)
fn claimed() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let first = 8 * std::process::id() + COUNT.fetch_add(1, Ordering::Relaxed);
    for id in (0..NETWORKS).map(|n| (first + n) % NETWORKS) {
        let made = make_bridge(id);
        if made.status.success() {
            return id;
        }
        let why = String::from_utf8_lossy(&made.stderr);
        assert!(why.contains("File exists"), "ip link add {}: {why}", bridge(id));
    }
    panic!("there are {NETWORKS} networks already");
}

fn ip(line: String) {
    succeeds("ip", &line);
}

fn tc(line: String) {
    succeeds("tc", &line);
}

fn succeeds(program: &str, line: &str) {
    let status = Command::new(program).args(line.split(' ')).status().expect("the program starts");
    assert!(status.success(), "{program} {line}");
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_testing::skipped_without_root;

    #[test]
    fn a_number_that_somebody_has_is_passed_over() {
        if skipped_without_root("making bridges") {
            return;
        }
        let first = claimed();
        let taken = [1, 2, 3].map(|n| (first + n) % NETWORKS);
        // Unless another test program has it already.
        let made: Vec<u32> = taken.into_iter().filter(|id| make_bridge(*id).status.success()).collect();
        let next = claimed();
        for id in made.into_iter().chain([first, next]) {
            ip(format!("link del {}", bridge(id)));
        }
        assert!(next != first && !taken.contains(&next), "{next} after {first}");
    }
}
