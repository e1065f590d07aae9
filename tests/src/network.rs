//! Network namespaces as nodes.

use crate::site::{Finished, Site, bivouac, finish};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Namespaces on a bridge, which stand for nodes. They go when it is dropped. Needs root.
pub struct Network {
    bridge: String,
    /// The namespaces.
    pub names: Vec<String>,
}

impl Network {
    /// Two namespaces.
    pub fn pair() -> Network {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Of a process's eight tests, no two have the same; nor those of processes that run at once, most
        // likely.
        let id = (8 * std::process::id() + COUNT.fetch_add(1, Ordering::Relaxed) % 8) % 16_000;
        let subnet = format!("10.{}.{}", 64 + id / 250 % 64, id % 250);
        let network =
            Network { bridge: format!("bvb{id}"), names: vec![format!("bvt{id}a"), format!("bvt{id}b")] };
        let bridge = &network.bridge;
        ip(format!("link add {bridge} type bridge"));
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
    let mut command = Command::new("ip");
    command.args(["netns", "exec", node]).arg(bivouac());
    command.args(["exec", name, "--access", access, "--", "sh", "-c", script]);
    command.env("BIVOUAC_HOME", site.home());
    finish(command)
}

fn ip(line: String) {
    let status = Command::new("ip").args(line.split(' ')).status().expect("ip starts");
    assert!(status.success(), "ip {line}");
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).status();
    }
}
