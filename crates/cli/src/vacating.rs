//! Hosts that leave a deployment because their last server has left.
//!
//! The controller does it: other agents take over the map if the host's agent keeps it, the agent ends when no program of the
//! host uses the deployment, and the host is taken off the map (`bivouac_layout::Map::vacated`). Commands wait until the
//! host can be switched off, or say for whom its agent stays, and forget in the deployment's record what has left.

use crate::error::Error;
use crate::home::{DaemonRecord, Record};
use crate::joining::{Place, clean};
use crate::launch::Leave;
use crate::status;
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::{Map, NodeId, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long others may take to take over the map: one that dies meanwhile is waited for for 30 s.
const ROLES: Duration = Duration::from_secs(60);
/// How long an agent that nobody needs any more may take to end.
const ENDING: Duration = Duration::from_secs(15);

/// The nodes that are without servers when these have left.
pub fn nodes_of(map: &Map, servers: &[ServerId]) -> Vec<NodeId> {
    let stays = |node: NodeId| map.servers.iter().any(|s| s.node == node && !servers.contains(&s.id));
    let nodes = map.nodes.iter().map(|node| node.id);
    nodes.filter(|node| map.has_servers(*node) && !stays(*node)).collect()
}

/// Waits until others keep the map and the nodes have left, or programs there keep their agents from ending: then says which.
pub fn wait(record: &Record, key: &Key, nodes: &[NodeId]) -> Result<(), Error> {
    let begun = Instant::now();
    // Since when nobody there has kept the map.
    let mut free: Option<Instant> = None;
    let mut told: Vec<NodeId> = Vec::new();
    loop {
        let status::Overview { map, voters, leader, .. } = overview(record, key)?;
        // Servers may have been added there again.
        let waits = |node: &&NodeId| map.is_vacated(**node) && !map.has_left(**node) && !told.contains(node);
        let left: Vec<NodeId> = nodes.iter().filter(waits).copied().collect();
        if left.is_empty() {
            return Ok(());
        }
        if let Some(node) = left.iter().find(|node| voters.contains(node) || **node == leader) {
            if begun.elapsed() >= ROLES {
                return Err(Error::Unanswered {
                    cause: format!(
                        "the servers have left, but no other agent has taken over the map from that on {}",
                        host(&map, *node)
                    ),
                    remedy: format!(
                        "keep that host until `bivouac status {}` lists node {node} neither among the voters nor as the leader: \
                         it is tried again and again, and needs another host's agent that answers",
                        record.name
                    ),
                });
            }
            (free, told) = (None, Vec::new());
            std::thread::sleep(LOOK);
            continue;
        }
        let since = *free.get_or_insert_with(Instant::now);
        for node in left {
            let stays = match programs(record, key, &map, node) {
                Some(programs) if !programs.is_empty() => Some(programs.join(", ")),
                _ if since.elapsed() < ENDING => None,
                Some(_) => Some("what programs there had open is given up".into()),
                None => Some("it answers".into()),
            };
            if let Some(until) = stays {
                eprintln!(
                    "bivouac: the servers have left {0}, and its agent stays for the programs there, until these end: {until}",
                    host(&map, node)
                );
                told.push(node);
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// The programs of a node that use the deployment, in words. `None`: its agent does not say.
fn programs(record: &Record, key: &Key, map: &Map, node: NodeId) -> Option<Vec<String>> {
    let endpoint = Endpoint::Tcp(map.node(node)?.agent);
    let mut link = ControlLink::connect(&endpoint, key, record.deployment, control::AGENT).ok()?;
    match link.request(ControlRequest::Leave { ask: true }) {
        Ok(Some(ControlReply::Leaving { programs, .. })) => {
            Some(programs.into_iter().map(|(pid, command)| format!("process {pid} ({command})")).collect())
        }
        _ => None,
    }
}

fn host(map: &Map, node: NodeId) -> String {
    map.node(node).map_or_else(|| format!("node {node}"), |node| node.host.clone())
}

fn overview(record: &Record, key: &Key) -> Result<status::Overview, Error> {
    status::overview(record, key).map_err(|error| Error::Unanswered {
        cause: format!("the controller of {:?} does not answer: {error}", record.name),
        remedy: format!("see `bivouac status {}`; keep the hosts until it answers", record.name),
    })
}

/// Forgets agents whose nodes have left, and removes what they have left. Says whether there were any.
pub fn forget(record: &mut Record, map: &Map) -> bool {
    let has_left = |daemon: &DaemonRecord| {
        daemon.agent && daemon.server.is_none() && map.epoch.0 > 0 && map.has_left(daemon.node)
    };
    let gone: Vec<DaemonRecord> = record.daemons.iter().filter(|daemon| has_left(daemon)).cloned().collect();
    let any = !gone.is_empty();
    for daemon in gone {
        record.daemons.retain(|other| other.label() != daemon.label());
        record.nodes = record.nodes.max(daemon.node.0.saturating_add(1));
        match clean(record, &daemon, Leave::Nothing) {
            Ok(()) => {}
            // It has removed what it made, unless it was killed; and the host may be switched off.
            Err(Error::Unreached { host, .. }) => {
                eprintln!(
                    "bivouac: {host} has left, and is not reached any more: nothing is looked for there"
                );
            }
            Err(error) => {
                error.show();
                // It is removed with the deployment.
                record.former.push(daemon);
            }
        }
    }
    any
}

/// Waits until those of these hosts have left that are just leaving: whose agents do not answer any more. Whether there were any.
pub fn wait_for_leaving(record: &Record, key: &Key, map: &Map, places: &[Place]) -> Result<bool, Error> {
    let is_ending = |place: &&Place| {
        let endpoint = map.node(place.node).map(|node| Endpoint::Tcp(node.agent));
        map.is_vacated(place.node)
            && endpoint.is_some_and(|endpoint| {
                ControlLink::connect(&endpoint, key, record.deployment, control::AGENT).is_err()
            })
    };
    let ending: Vec<&Place> = places.iter().filter(is_ending).collect();
    let begun = Instant::now();
    loop {
        let map = overview(record, key)?.map;
        let Some(place) = ending.iter().find(|place| !map.has_left(place.node)) else {
            return Ok(!ending.is_empty());
        };
        if begun.elapsed() >= ROLES {
            return Err(Error::Unanswered {
                cause: format!("the agent on {} does not answer", place.host.name),
                remedy: "see whether the host is reached, and repeat the command".into(),
            });
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::LauncherKind;
    use bivouac_layout::{Founding, MapChange, Node, Server, ServerState};

    fn map() -> Map {
        let address = |port: u16| ([127, 0, 0, 1], port).into();
        let node = |id| Node { id: NodeId(id), host: format!("n{id}"), agent: address(1 + id), domain: id };
        // Two servers on node 0, one on node 1, none on node 2.
        let server = |(id, node)| Server {
            id: ServerId(id),
            node: NodeId(node),
            address: address(100 + id),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let servers = [(0, 0), (1, 0), (2, 1)].map(server).to_vec();
        Founding::new(7, "/bivouac", (0..3).map(node).collect(), servers).map().expect("a map")
    }

    #[test]
    fn a_node_is_vacated_when_none_of_its_servers_stays() {
        let of = |servers: &[u16]| -> Vec<u16> {
            let servers: Vec<ServerId> = servers.iter().copied().map(ServerId).collect();
            nodes_of(&map(), &servers).into_iter().map(|node| node.0).collect()
        };
        assert_eq!((of(&[0]), of(&[0, 1]), of(&[1, 2]), of(&[])), (vec![], vec![0], vec![1], vec![]));
    }

    #[test]
    fn agents_of_nodes_that_have_left_are_forgotten_and_their_numbers_are_not_given_again() {
        let before = map();
        let agent = |node: u16| DaemonRecord {
            host: format!("n{node}"),
            node: NodeId(node),
            domain: node,
            launcher: LauncherKind::Netns,
            server: None,
            succession: 0,
            agent: true,
            first: node == 0,
            listen: ([127, 0, 0, 1], 0).into(),
            reach: None,
            process: None,
            address: Some(([127, 0, 0, 1], 1 + node).into()),
            log: "/no/such/log".into(),
            storage_in: Vec::new(),
            storage: Vec::new(),
        };
        let name = format!("vacating-test-{}", std::process::id());
        let mut record = Record::new(&name, 7, "/bivouac", 4096, "info");
        record.daemons = (0..3).map(agent).collect();
        assert!(!forget(&mut record, &before) && record.daemons.len() == 3);
        let mut after = before;
        let (nodes, servers) = (after.nodes.split_off(2), after.servers.split_off(2));
        (after.nodes, after.servers) = (nodes, servers);
        after.away = Vec::new();
        assert!(MapChange::Leave { node: NodeId(0), idle: true }.apply(&after).is_none(), "it has left");
        assert!(forget(&mut record, &after));
        assert_eq!(record.daemons.iter().map(|d| d.node.0).collect::<Vec<_>>(), [2]);
        assert_eq!((record.nodes, record.former.len()), (2, 0));
        assert!(!forget(&mut record, &after));
    }
}
