//! Agents: who keeps the map, and who leads; and starting one again after having killed it.

use crate::{Finished, Site, bivouac, eventually};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Who leads, as `status` says; waits until somebody does, and it is none of these.
pub fn leader(site: &Site, name: &str, not: &[u64]) -> u64 {
    let mut found = None;
    eventually("somebody leads", || {
        found = site.status(name)["leader"].as_u64().filter(|leader| !not.contains(leader));
        found.is_some()
    });
    found.expect("found")
}

/// The nodes whose agents keep the map.
pub fn voters(site: &Site, name: &str) -> Vec<u64> {
    let status = site.status(name);
    status["voters"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect()
}

/// What the command line has noted of a deployment.
fn record_file(site: &Site, name: &str) -> PathBuf {
    site.home().join(name).join("daemons.json")
}

/// Starts the agent of a node again as a launcher does: where it was, with what it had been told. `namespace`: of a node
/// that is one. What the command line has noted of its process is brought up to date.
pub fn start_agent(site: &Site, name: &str, node: u64, namespace: Option<&str>) {
    let (file, home) = (record_file(site, name), site.home().join(name));
    let mut record: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a record")).expect("it is JSON");
    let mut config = serde_json::Map::new();
    for field in ["name", "deployment", "mount", "block_size", "ephemeral", "restarts", "log_level"] {
        config.insert(field.into(), record[field].clone());
    }
    let daemons = record["daemons"].as_array_mut().expect("a list");
    let agent = daemons
        .iter_mut()
        .find(|d| d["agent"] == true && d["node"].as_u64() == Some(node))
        .expect("the node has an agent");
    for field in ["node", "host", "agent", "server"] {
        config.insert(field.into(), agent[field].clone());
    }
    let key = std::fs::read_to_string(home.join("key")).expect("a key");
    config.insert("key".into(), key.trim().into());
    config.insert("uid".into(), rustix::process::geteuid().as_raw().into());
    config.insert("listen".into(), agent["address"].clone());
    config.insert("deployment_dir".into(), home.to_str().into());
    config.insert("log_file".into(), agent["log"].clone());
    let order = serde_json::json!({ "config": config, "storage": { "existing": [] } });
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(bivouac());
            command
        }
        None => Command::new(bivouac()),
    };
    let mut child =
        command.arg("daemon").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    writeln!(child.stdin.take().expect("a pipe"), "{order}").expect("told");
    let said = Finished::of(child.wait_with_output().expect("ends")).ok();
    let told: Value = serde_json::from_str(&said).expect("it answers in JSON");
    let ready = &told["ready"];
    assert!(ready["pid"].is_u64(), "the agent of node {node} is not ready: {said}");
    agent["process"] = serde_json::json!({ "pid": ready["pid"], "start": ready["start"] });
    std::fs::write(&file, serde_json::to_vec(&record).expect("encodes")).expect("written");
}
