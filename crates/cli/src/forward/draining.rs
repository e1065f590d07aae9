//! I/O nodes that have been replaced by others and still serve files: those that were removed, or moved out of the forwarded
//! directory, while programs had them open. Nobody else can open these.
//!
//! The I/O node knows by which sessions they were opened, and the agents of the sessions' nodes know the processes. Both are asked
//! only when somebody wants to know.

use crate::error::Error;
use crate::home::Record;
use crate::rebuild;
use crate::text::plural;
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::{Map, NodeId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, HELD_MAX, HeldFile};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// So many processes are named for a person.
const NAMED: usize = 5;

/// An I/O node of before that still serves files.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub struct Draining {
    server: u16,
    host: String,
    /// How many files only it has any more.
    files: usize,
    /// How often they are open.
    opens: usize,
    /// The processes that have opened them.
    programs: Vec<Program>,
}

/// A process that has opened such files.
#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Program {
    host: String,
    /// `null`: the host's agent does not know the process, or does not answer. Then another one may have the file from it.
    pid: Option<u32>,
    command: Option<String>,
    /// How many of the files.
    files: usize,
}

/// Those of a deployment.
pub fn find(record: &Record, key: &Key, map: &Map) -> Vec<Draining> {
    let ask = |address, request| {
        ControlLink::connect(&Endpoint::Tcp(address), key, record.deployment, control::LOOK)
            .and_then(|mut link| link.request(request))
    };
    let former = map.forwarding.iter().flat_map(|forwarding| &forwarding.former);
    let servers = former.filter_map(|server| map.server(*server));
    let mut found = Vec::new();
    for server in servers.filter(|server| server.state == ServerState::Up) {
        let Ok(Some(ControlReply::Held(opens))) = ask(server.address, ControlRequest::Kept) else { continue };
        let files: BTreeSet<_> = opens.iter().map(|file| file.ino).collect();
        if files.is_empty() {
            continue;
        }
        let mut of_nodes: BTreeMap<NodeId, BTreeSet<HeldFile>> = BTreeMap::new();
        for file in &opens {
            of_nodes.entry(NodeId::of(file.session)).or_default().insert(*file);
        }
        let mut programs: BTreeMap<(String, Option<u32>, Option<String>), usize> = BTreeMap::new();
        for (node, held) in of_nodes {
            let Some(node) = map.node(node) else { continue };
            let request = ControlRequest::Programs { held: held.iter().copied().take(HELD_MAX).collect() };
            let known = match ask(node.agent, request) {
                Ok(Some(ControlReply::Programs(known))) => known,
                _ => Vec::new(),
            };
            let unknown =
                held.iter().filter(|file| !known.iter().any(|holder| holder.ino == file.ino)).count();
            for holder in known {
                *programs.entry((node.host.clone(), Some(holder.pid), Some(holder.command))).or_default() +=
                    1;
            }
            if unknown > 0 {
                *programs.entry((node.host.clone(), None, None)).or_default() += unknown;
            }
        }
        let programs = programs.into_iter();
        found.push(Draining {
            server: server.id.0,
            host: map.node(server.node).map_or(String::new(), |node| node.host.clone()),
            files: files.len(),
            opens: opens.len(),
            programs: programs
                .map(|((host, pid, command), files)| Program { host, pid, command, files })
                .collect(),
        });
    }
    found
}

/// The same for a person: a line for each.
pub fn lines(all: &[Draining]) -> Vec<String> {
    let who = |program: &Program| match (program.pid, &program.command) {
        (Some(pid), Some(command)) => {
            format!("process {pid} ({command}) on {}: {}", program.host, program.files)
        }
        _ => format!("processes on {}: {}", program.host, program.files),
    };
    let line = |draining: &Draining| {
        let mut named: Vec<String> = draining.programs.iter().take(NAMED).map(who).collect();
        if draining.programs.len() > NAMED {
            named.push("and others".into());
        }
        format!(
            "server {} on {} still serves {} that no other can open, because they have no name any more ({})",
            draining.server,
            draining.host,
            plural(draining.files, "file"),
            named.join(", ")
        )
    };
    all.iter().map(line).collect()
}

/// Waits until none is left, so long at most. Says for whom.
pub fn wait(record: &Record, key: &Key, timeout: Duration) -> Result<(), Error> {
    let until = Instant::now() + timeout;
    let mut told = false;
    loop {
        let map = rebuild::look(record, key)?;
        let draining = find(record, key, &map);
        if draining.is_empty() || Instant::now() >= until {
            if told && draining.is_empty() {
                eprintln!("all of them are closed");
            } else if !draining.is_empty() {
                lines(&draining)
                    .iter()
                    .for_each(|line| eprintln!("{line}: it does so until they are closed"));
            }
            return Ok(());
        }
        if !told {
            lines(&draining)
                .iter()
                .for_each(|line| eprintln!("{line}: waiting up to {} s", timeout.as_secs()));
            told = true;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_whom_an_io_node_drains_is_said_in_a_line() {
        let program = |pid: Option<u32>| Program {
            host: "n2".into(),
            pid,
            command: pid.map(|_| "a.out".into()),
            files: 2,
        };
        let draining = |programs| Draining { server: 3, host: "n1".into(), files: 2, opens: 2, programs };
        assert_eq!(
            lines(&[draining(vec![program(Some(7)), program(None)])]),
            [
                "server 3 on n1 still serves 2 files that no other can open, because they have no name any more (process 7 (a.out) on n2: \
              2, processes on n2: 2)"
            ]
        );
        let line = &lines(&[draining((0..9).map(|pid| program(Some(pid))).collect())])[0];
        assert!(
            line.ends_with("on n2: 2, and others)") && line.matches("process ").count() == NAMED,
            "{line}"
        );
    }
}
