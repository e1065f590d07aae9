//! What a daemon is told when it starts: one JSON line, written by whoever launches it.
//!
//! The configuration is complete: a daemon takes nothing from its environment, so that it behaves the same
//! whether it was started by fork, by ssh or inside a network namespace. All paths are absolute and on the
//! daemon's own machine. The line holds the deployment's key, so it travels over standard input and never
//! over a command line.

use bivouac_layout::{NodeId, ServerId};
use bivouac_proto::auth::Key;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The whole configuration of one daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonConfig {
    /// Name of the deployment: `[A-Za-z0-9._-]{1,64}`, starting with neither `.` nor `-`.
    pub name: String,
    /// The user who owns the deployment, for the names of run directory and sockets.
    pub uid: u32,
    /// Random number of the deployment.
    pub deployment: u64,
    /// Its key; 64 hexadecimal digits in JSON.
    #[serde(with = "hex_key")]
    pub key: Key,
    /// The machine that the daemon runs on.
    pub node: NodeId,
    /// That machine's name, as the user gave it.
    pub host: String,
    /// Where to listen for other nodes; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The storage role, if it has it.
    pub server: Option<ServerConfig>,
    /// Whether it is its node's agent.
    pub agent: bool,
    /// Where programs see the file system: absolute, without trailing slash.
    pub mount: String,
    /// Block size of new files, bytes.
    pub block_size: u32,
    /// Whether the deployment ends with the `run` that made it.
    #[serde(default)]
    pub ephemeral: bool,
    /// As an agent: no program may use the deployment yet.
    #[serde(default)]
    pub closed: bool,
    /// How often an agent starts a server of its node again that died, within ten minutes; 0: never.
    #[serde(default)]
    pub restarts: u32,
    /// The deployment's directory. An agent keeps there what it needs as a voter, in a directory that is named
    /// after its node: the nodes may share this directory, or each have their own of this name.
    pub deployment_dir: PathBuf,
    /// File that the daemon's log goes to.
    pub log_file: PathBuf,
    /// Which messages are logged, as a filter of tracing-subscriber, for example `info`.
    pub log_level: String,
}

impl DaemonConfig {
    /// Where the agent of a node keeps what it needs as a voter.
    pub fn voter_dir(deployment_dir: &Path, node: NodeId) -> PathBuf {
        deployment_dir.join(format!("controller-{node}"))
    }
}

/// The storage role of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Its number.
    pub id: ServerId,
    /// How often that number was given to another process with new storage: see
    /// [`Server::succession`](bivouac_layout::Server::succession).
    #[serde(default)]
    pub succession: u32,
    /// Where it stores, one directory for each disk. They exist, belong to this server alone, and are empty
    /// at the server's first start.
    pub storage: Vec<PathBuf>,
    /// Whether Bivouac made the storage directories (and so removes them); always true today.
    pub created_storage: bool,
}

/// The key as hexadecimal digits.
pub mod hex_key {
    use super::Key;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// 64 lower-case digits.
    pub fn to_hex(key: &Key) -> String {
        key.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`to_hex`] wrote; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Key> {
        Key::from_hex(text.as_bytes())
    }

    pub(super) fn serialize<S: Serializer>(key: &Key, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&to_hex(key))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Key, D::Error> {
        let text = String::deserialize(from)?;
        // The message must not show the invalid text, which may be most of a key.
        from_hex(&text).ok_or_else(|| D::Error::custom("the key is not 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_proto::auth::KEY_LEN;

    #[test]
    fn configuration_survives_json_and_hides_its_key() {
        let config = DaemonConfig {
            name: "job".into(),
            uid: 1000,
            deployment: u64::MAX,
            key: Key([0xab; KEY_LEN]),
            node: NodeId(3),
            host: "node3".into(),
            listen: "0.0.0.0:0".parse().expect("an address"),
            server: Some(ServerConfig {
                id: ServerId(7),
                succession: 2,
                storage: vec!["/dev/shm/a".into(), "/scratch/b".into()],
                created_storage: true,
            }),
            agent: true,
            mount: "/bivouac".into(),
            block_size: 512 << 10,
            ephemeral: true,
            closed: false,
            restarts: 3,
            deployment_dir: "/home/u/.bivouac/job".into(),
            log_file: "/home/u/.bivouac/job/logs/server-7.log".into(),
            log_level: "info".into(),
        };
        let json = serde_json::to_string(&config).expect("encodes");
        assert!(!json.contains('\n'), "one line");
        let back: DaemonConfig = serde_json::from_str(&json).expect("decodes");
        assert_eq!(back.key.0, config.key.0);
        assert_eq!(back.deployment, u64::MAX, "no detour through floating point");
        assert_eq!(serde_json::to_string(&back).expect("encodes"), json);
        assert!(!format!("{config:?}").contains("abab"), "Debug shows no key");
    }

    #[test]
    fn only_64_hexadecimal_digits_are_a_key() {
        let good = "0123456789abcdef".repeat(4);
        assert_eq!(hex_key::to_hex(&hex_key::from_hex(&good).expect("a key")), good);
        for bad in
            ["", "00", &good[1..], &format!("{good}0"), &good.replace('a', "g"), &good.replace('a', "é")]
        {
            assert!(hex_key::from_hex(bad).is_none(), "{bad:?}");
        }
    }
}
