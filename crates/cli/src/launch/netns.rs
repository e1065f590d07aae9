//! In a network namespace of this machine, which stands for a node in tests: `ip netns add NAME`.

use super::{Launcher, own_path};
use crate::error::Error;
use serde::Deserialize;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// `ip netns exec NAME bivouac daemon`.
pub(super) struct Netns;

impl Launcher for Netns {
    fn command(&self, host: &str, arguments: &[&str]) -> Result<Command, Error> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host]).arg(own_path()?).arg("daemon").args(arguments);
        for variable in ["LD_PRELOAD", "BIVOUAC_DEPLOYMENT", "BIVOUAC_MOUNT", "BIVOUAC_KEY"] {
            command.env_remove(variable);
        }
        Ok(command)
    }

    fn hint(&self, host: &str) -> String {
        format!("`ip netns exec {host} true` must work, which needs root")
    }
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    scope: String,
    local: IpAddr,
}

/// The address of a namespace: the first that is not only for itself.
pub fn address(name: &str) -> Result<IpAddr, Error> {
    if name.contains('/') || !Path::new("/run/netns").join(name).exists() {
        return Err(Error::refused(
            format!("there is no network namespace {name:?}"),
            format!("`ip netns add {name}`, and give it an address"),
        ));
    }
    let output = Command::new("ip").args(["-n", name, "-j", "addr"]).output();
    let output = output.map_err(|cause| Error::System { what: "cannot run `ip`".into(), cause })?;
    first_address(&output.stdout).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        Error::refused(
            format!("the network namespace {name:?} has no address {}", said.trim()),
            "give it one that the others can reach",
        )
    })
}

fn first_address(json: &[u8]) -> Option<IpAddr> {
    let links: Vec<Link> = serde_json::from_slice(json).ok()?;
    let mut global: Vec<IpAddr> = links
        .into_iter()
        .flat_map(|l| l.addr_info)
        .filter(|a| a.scope == "global")
        .map(|a| a.local)
        .collect();
    global.sort_by_key(IpAddr::is_ipv6);
    global.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_global_address_counts_and_ipv4_comes_first() {
        let json = br#"[{"ifname":"lo","addr_info":[{"family":"inet","local":"127.0.0.1","scope":"host"}]},
            {"ifname":"v","mtu":1500,"addr_info":[{"local":"fe80::1","scope":"link"},{"local":"fd00::2","scope":"global"},
            {"local":"10.9.0.2","prefixlen":24,"scope":"global"}]},{"ifname":"x"}]"#;
        assert_eq!(first_address(json), Some("10.9.0.2".parse().expect("address")));
        assert_eq!(first_address(b"[]"), None);
        assert_eq!(first_address(b"junk"), None);
    }

    #[test]
    fn an_unknown_namespace_is_refused() {
        assert!(matches!(address("bivouac-no-such-namespace"), Err(Error::Refused { .. })));
        assert!(matches!(address("../../etc"), Err(Error::Refused { .. })));
    }
}
