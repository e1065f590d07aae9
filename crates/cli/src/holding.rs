//! For whom files wait that cannot move: those that a kernel holds, because a program has mapped them, or has
//! them open in a mount that passes them through.
//!
//! The servers of the files' inodes know for which sessions, the agents of the sessions' nodes which programs
//! these are. Both are asked only when somebody wants to know.

use crate::home::Record;
use crate::verify;
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::{Ino, Map, NodeId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, HELD_MAX, HeldFile, Holder};
use bivouac_proto::verify::Finding;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// So many are named for a person.
const NAMED: usize = 10;

/// A program that keeps a file from moving.
#[derive(Serialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holding {
    /// `null`: nobody knows it.
    pub path: Option<String>,
    pub inode: u64,
    pub host: String,
    /// `null`: the host's agent does not know the process, or does not answer.
    pub pid: Option<u32>,
    pub command: Option<String>,
}

/// Who holds files that are to move.
pub fn find(record: &Record, key: &Key, map: &Map) -> Vec<Holding> {
    let ask = |address, request| {
        ControlLink::connect(&Endpoint::Tcp(address), key, record.deployment, control::LOOK)
            .and_then(|mut link| link.request(request))
    };
    let mut held: BTreeMap<NodeId, BTreeSet<HeldFile>> = BTreeMap::new();
    for server in map.servers.iter().filter(|server| server.state == ServerState::Up) {
        if let Ok(Some(ControlReply::Held(files))) = ask(server.address, ControlRequest::Held) {
            for file in files {
                held.entry(NodeId::of(file.session)).or_default().insert(file);
            }
        }
    }
    let files: Vec<Finding> = held.values().flatten().map(|file| Finding::Away { ino: file.ino }).collect();
    if files.is_empty() {
        return Vec::new();
    }
    let paths = verify::paths::find(map, record, key, &files);
    let mut found = Vec::new();
    for (node, files) in held {
        let Some(node) = map.node(node) else { continue };
        let request = ControlRequest::Programs { held: files.iter().copied().take(HELD_MAX).collect() };
        let known = match ask(node.agent, request) {
            Ok(Some(ControlReply::Programs(known))) => known,
            _ => Vec::new(),
        };
        let of = |ino: Ino, holder: Option<&Holder>| Holding {
            path: paths.get(&ino).cloned(),
            inode: ino.0,
            host: node.host.clone(),
            pid: holder.map(|holder| holder.pid),
            command: holder.map(|holder| holder.command.clone()),
        };
        found.extend(known.iter().map(|holder| of(holder.ino, Some(holder))));
        let is_known = |file: &&HeldFile| known.iter().any(|holder| holder.ino == file.ino);
        found.extend(files.iter().filter(|file| !is_known(file)).map(|file| of(file.ino, None)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The same for a person: a line for each.
pub fn lines(all: &[Holding]) -> Vec<String> {
    let line = |holding: &Holding| {
        let path = holding.path.clone().unwrap_or_else(|| format!("inode {}", holding.inode));
        let who = match (holding.pid, &holding.command) {
            (Some(pid), Some(command)) => format!("process {pid} ({command})"),
            _ => "a process that its agent does not know".into(),
        };
        format!("{path} is held by {who} on {}", holding.host)
    };
    let mut lines: Vec<String> = all.iter().take(NAMED).map(line).collect();
    if all.len() > NAMED {
        lines.push(format!("and {} more, which `bivouac status --json` names", all.len() - NAMED));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_what_is_said_in_a_line_for_each() {
        let holding = |pid: Option<u32>| Holding {
            path: pid.map(|_| "/bivouac/f".into()),
            inode: 7,
            host: "node1".into(),
            pid,
            command: pid.map(|_| "a.out".into()),
        };
        assert_eq!(
            lines(&[holding(Some(5)), holding(None)]),
            [
                "/bivouac/f is held by process 5 (a.out) on node1",
                "inode 7 is held by a process that its agent does not know on node1"
            ]
        );
        let many: Vec<Holding> = (0..30).map(|pid| holding(Some(pid))).collect();
        assert_eq!(lines(&many).len(), NAMED + 1);
    }
}
