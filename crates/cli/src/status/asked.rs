//! What the controller, the servers and the agents of a deployment say of themselves.

use super::report::{AgentRole, AgentStatus, Counters, ServerStatus};
use crate::daemon::traces;
use crate::home::{DaemonRecord, Record};
use crate::leader;
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::map::{Server, ServerState};
use bivouac_layout::{Group, Map, NodeId, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, ServerHealth, Stats, Ward};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;

/// What the controller knows.
pub struct Overview {
    /// The node whose agent it is.
    pub leader: NodeId,
    /// The nodes whose agents keep the map.
    pub voters: Vec<NodeId>,
    /// The map.
    pub map: Map,
    /// How each server fares.
    pub health: Vec<ServerHealth>,
    /// Servers that were declared down although they lived.
    pub false_failovers: u64,
}

/// Asks the controller what it knows.
pub fn overview(record: &Record, key: &Key) -> Result<Overview, LinkError> {
    match leader::ask(record, key, &ControlRequest::Overview, control::LOOK, control::ELECTION)? {
        Some(ControlReply::Overview { leader, voters, map, health, false_failovers }) => {
            Ok(Overview { leader, voters, map: *map, health, false_failovers })
        }
        _ => Err(LinkError::Unexpected),
    }
}

/// What agents know of the servers of their nodes.
fn wards(record: &Record, key: &Key) -> Vec<Ward> {
    if record.restarts == 0 {
        return Vec::new();
    }
    let of_agent = |daemon: &DaemonRecord| {
        let endpoint = daemon.endpoint(&record.name, key);
        let mut link = ControlLink::connect(&endpoint, key, record.deployment, control::LOOK).ok()?;
        match link.request(ControlRequest::Wards) {
            Ok(Some(ControlReply::Wards(wards))) => Some(wards),
            _ => None,
        }
    };
    leader::of_all(record, of_agent).into_iter().flatten().collect()
}

/// Asks all servers and agents at once.
pub(super) fn servers(record: &Record, map: &Map, health: &[ServerHealth], key: &Key) -> Vec<ServerStatus> {
    std::thread::scope(|scope| {
        let wards = scope.spawn(|| wards(record, key));
        let threads: Vec<_> = map
            .servers
            .iter()
            .map(|server| scope.spawn(move || (server, counted(server, record.deployment, key))))
            .collect();
        let answers: Vec<_> = threads.into_iter().filter_map(|t| t.join().ok()).collect();
        let wards = wards.join().unwrap_or_default();
        answers
            .into_iter()
            .map(|(server, stats)| {
                let ward = wards.iter().find(|ward| ward.server == server.id);
                let recorded = record.daemons.iter().find(|d| d.server == Some(server.id));
                let health = health.iter().find(|h| h.server == server.id);
                ServerStatus {
                    id: server.id.0,
                    node: server.node.0,
                    host: map
                        .nodes
                        .iter()
                        .find(|n| n.id == server.node)
                        .map(|n| n.host.clone())
                        .unwrap_or_default(),
                    address: Some(server.address.to_string()),
                    state: match server.state {
                        ServerState::Up => "up",
                        ServerState::Joining => "joining",
                        ServerState::Down => "down",
                    },
                    pid: pid(record, recorded, ward),
                    restarts: ward.map(|ward| ward.restarts),
                    // A server that answers has none any more, even if its agent has not looked since.
                    trouble: ward.and_then(|ward| ward.trouble.clone()).filter(|_| stats.is_none()),
                    behind: map.replicated().filter(|group| is_missed(map, *group, server.id)).count(),
                    given_up: map.is_given_up(server.id),
                    departing: map.is_departing(server.id),
                    shards: map.held_by(server.id),
                    primary_shards: map.shards_of(server.id).count(),
                    replaced: server.succession(),
                    silent_ms: health.map(|h| h.silent_ms),
                    storage: recorded.map(|d| d.storage.clone()).unwrap_or_default(),
                    log: recorded.map(|d| d.log.clone()).unwrap_or_default(),
                    lease_ms: stats.and_then(|stats| stats.lease_ms),
                    progress: stats.map(|stats| stats.rebuild),
                    counters: stats.map(Counters::from),
                }
            })
            .collect()
    })
}

/// Whether a server lacks something that it has to have: not of a shard that is just moving to it.
fn is_missed(map: &Map, group: Group, server: ServerId) -> bool {
    let moves_here = |shard| map.move_of(shard).is_some_and(|entry| entry.to == server);
    map.is_behind(group, server) && !matches!(group, Group::Shard(shard) if moves_here(shard))
}

/// The agents that the record names, and what they are by what the controller knows.
pub(super) fn agents(record: &Record, overview: Option<&Overview>) -> Vec<AgentStatus> {
    let role = |node: NodeId, overview: &Overview| match node {
        node if node == overview.leader => AgentRole::Controller,
        node if overview.voters.contains(&node) => AgentRole::Voter,
        _ => AgentRole::Follower,
    };
    let has_left = |node: NodeId| overview.is_some_and(|overview| overview.map.has_left(node));
    let agents = record.daemons.iter().filter(|daemon| daemon.agent && !has_left(daemon.node));
    let shown = agents.map(|daemon| AgentStatus {
        node: daemon.node.0,
        host: daemon.host.clone(),
        pid: pid(record, Some(daemon), None),
        role: overview.map(|overview| role(daemon.node, overview)),
        away: overview.is_some_and(|overview| overview.map.is_away(daemon.node)),
        leaving: overview.is_some_and(|overview| overview.map.is_vacated(daemon.node)),
        log: daemon.log.clone(),
    });
    let mut agents: Vec<AgentStatus> = shown.collect();
    agents.sort_by_key(|agent| agent.node);
    agents
}

/// The number of a daemon's process. Of a server, its agent knows it best.
fn pid(record: &Record, recorded: Option<&DaemonRecord>, ward: Option<&Ward>) -> Option<u32> {
    let known = || recorded.and_then(|daemon| traces::process(record, daemon)).map(|process| process.pid);
    ward.and_then(|ward| ward.pid).or_else(known)
}

/// What a server says of itself, if it is up and answers.
pub fn counted(server: &Server, deployment: u64, key: &Key) -> Option<Stats> {
    if server.state == ServerState::Down {
        return None;
    }
    let mut link =
        ControlLink::connect(&Endpoint::Tcp(server.address), key, deployment, control::LOOK).ok()?;
    match link.request(ControlRequest::Stats) {
        Ok(Some(ControlReply::Stats(stats))) => Some(*stats),
        _ => None,
    }
}

/// What the record says, if no daemon answers.
pub(super) fn recorded_servers(record: &Record) -> Vec<ServerStatus> {
    let mut servers: Vec<ServerStatus> = record
        .daemons
        .iter()
        .filter_map(|d| {
            Some(ServerStatus {
                id: d.server?.0,
                node: d.node.0,
                host: d.host.clone(),
                address: d.address.map(|a| a.to_string()),
                pid: pid(record, Some(d), None),
                restarts: None,
                trouble: None,
                state: "down",
                behind: 0,
                given_up: false,
                departing: false,
                shards: 0,
                primary_shards: 0,
                replaced: d.succession,
                silent_ms: None,
                lease_ms: None,
                storage: d.storage.clone(),
                log: d.log.clone(),
                progress: None,
                counters: None,
            })
        })
        .collect();
    servers.sort_by_key(|s| s.id);
    servers
}
