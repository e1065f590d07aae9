//! Shows deployments and the state of their servers, for people and (in a stable form) for programs.

mod asked;
mod report;
mod tables;

use crate::daemon::traces;
use crate::error::Error;
use crate::forward;
use crate::home::{DaemonRecord, Directory, Home, LauncherKind, Record, State, uid};
use crate::leader;
use crate::mounts;
use crate::policy;
use crate::text::plural;
pub use asked::{Overview, counted, overview};
use asked::{agents, recorded_servers, servers};
use bivouac_layout::{Group, Map, SHARDS, ShardId};
use bivouac_proto::auth::Key;
use report::{
    AgentStatus, Condition, Counters, Deployment, Rebuilding, ServerStatus, Status, Totals, VERSION,
};
use std::path::Path;
use tables::{evenness, list, one, servers_table};

/// Prints the status of one deployment, or of all.
pub fn status(home: &Home, name: Option<&str>, json: bool) -> Result<(), Error> {
    mounts::sweep(uid());
    let deployments = match name {
        Some(name) => {
            let directory = home.deployment(name);
            let record = directory.load()?;
            vec![examine(&directory, &record)]
        }
        None => home
            .list()?
            .iter()
            .filter_map(|directory| match directory.load() {
                Ok(record) => Some(examine(directory, &record)),
                // Taken down meanwhile.
                Err(Error::Unknown(_)) => None,
                Err(error) => {
                    error.show();
                    None
                }
            })
            .collect(),
    };
    let text = if json {
        let status = Status { version: VERSION, deployments };
        let mut text = serde_json::to_string_pretty(&status)
            .map_err(|e| Error::System { what: "cannot write JSON".into(), cause: e.into() })?;
        text.push('\n');
        text
    } else if let (Some(_), [deployment]) = (name, &deployments[..]) {
        one(deployment)
    } else {
        list(&deployments)
    };
    print!("{text}");
    Ok(())
}

/// What the servers have done, as `run --stats` prints it.
pub fn stats(directory: &Directory, record: &Record) -> String {
    let deployment = examine(directory, record);
    let mut text = servers_table(&deployment);
    text.push_str(&evenness(&deployment));
    text
}

fn examine(directory: &Directory, record: &Record) -> Deployment {
    let overview = directory.key().map_err(|e| e.to_string()).and_then(|key| {
        let overview = overview(record, &key).map_err(|e| e.to_string())?;
        Ok((overview, key))
    });
    let mut deployment = Deployment {
        name: record.name.clone(),
        state: Condition::Running,
        problem: None,
        mount: record.mount.clone(),
        block_size: record.block_size,
        replicas: record.replicas,
        metadata_replicas: record.metadata_replicas,
        incomplete: 0,
        moving_shards: 0,
        rebuild: None,
        policy: policy::shown(directory).filter(|_| record.state != State::Stopped),
        forwarding: None,
        epoch: None,
        leader: None,
        voters: Vec::new(),
        false_failovers: None,
        created: record.created,
        directory: directory.path.clone(),
        agents: agents(record, overview.as_ref().ok().map(|(overview, _)| overview)),
        servers: Vec::new(),
        totals: Totals::default(),
    };
    match (record.state, overview) {
        (State::Stopped, _) => {
            deployment.state = Condition::Stopped;
            deployment.problem = Some(format!(
                "its storage was kept: `bivouac up {0}` brings it back, `bivouac down {0}` removes it",
                record.name
            ));
        }
        (_, Ok((Overview { leader, voters, map, health, false_failovers }, key))) => {
            deployment.epoch = Some(map.epoch.0);
            deployment.moving_shards = moving_shards(&map);
            deployment.false_failovers = Some(false_failovers);
            deployment.leader = Some(leader.0);
            deployment.voters = voters.iter().map(|node| node.0).collect();
            deployment.servers = servers(record, &map, &health, &key);
            deployment.rebuild = map.rebuild.map(|rebuild| {
                let all = deployment.servers.iter().filter_map(|server| server.progress.as_ref());
                let sum = crate::rebuild::sum(rebuild.number, all);
                let held_by =
                    if sum.held > 0 { crate::holding::find(record, &key, &map) } else { Vec::new() };
                Rebuilding::new(&rebuild, &sum, held_by)
            });
            deployment.forwarding = forward::Shown::of(record, &key, &map);
            deployment.incomplete = incomplete(&map).0;
            // What has one copy cannot be held by others.
            let is_missed = |s: &&ServerStatus| s.state == "down" && (!s.given_up || map.replicas == 1);
            let down: Vec<String> =
                deployment.servers.iter().filter(is_missed).map(|s| s.id.to_string()).collect();
            if !down.is_empty() {
                deployment.state = Condition::Degraded;
                deployment.problem = Some(format!(
                    "server {} is down: {}{}; `bivouac restart {} {}` starts it again{}; log: {}",
                    down.join(", "),
                    what_is_lost(&map),
                    troubles(&deployment.servers),
                    record.name,
                    down.join(" "),
                    if map.copies > 1 { ", `bivouac replace` has another host take its place" } else { "" },
                    deployment
                        .servers
                        .iter()
                        .find(|s| s.state == "down")
                        .map_or(String::new(), |s| s.log.display().to_string())
                ));
            } else if let Some(server) = deployment.servers.iter().find(|s| s.behind > 0) {
                let is_full =
                    |s: &&ServerStatus| s.counters.is_some_and(|counters| counters.without_room > 0);
                deployment.problem = Some(match deployment.servers.iter().find(is_full) {
                    Some(full) => format!(
                        "{} of everything has too few copies: server {} has no room for what it lacks of {}; remove files that \
                         are not needed",
                        plural(deployment.incomplete, "piece"),
                        full.id,
                        plural(full.counters.map_or(0, |counters| counters.without_room as usize), "file"),
                    ),
                    None => format!(
                        "{} of everything has too few copies: server {} gets what it lacks",
                        plural(deployment.incomplete, "piece"),
                        server.id
                    ),
                });
            } else {
                deployment.problem = damage(&deployment.servers);
            }
            if let Some(away) = nodes_away(&deployment.agents) {
                deployment.state = Condition::Degraded;
                deployment.problem =
                    Some(deployment.problem.take().map_or(away.clone(), |other| format!("{away}; {other}")));
            }
        }
        (State::Starting, Err(_)) if directory.lock().is_err() => deployment.state = Condition::Starting,
        (_, Err(why)) => {
            let key = directory.key().ok();
            match key.and_then(|key| Some((leader::known(record, &key)?, key))) {
                Some((known, key)) => without_majority(&mut deployment, record, &known, &key),
                None => {
                    let (state, problem) = without_controller(record, &why);
                    deployment.state = state;
                    deployment.problem = Some(problem);
                }
            }
        }
    }
    if deployment.servers.is_empty() {
        deployment.servers = recorded_servers(record);
    }
    deployment.totals.servers = deployment.servers.len();
    deployment.totals.servers_up = deployment.servers.iter().filter(|s| s.state == "up").count();
    deployment.totals.counters = sum(&deployment.servers);
    deployment
}

/// How many shards and groups of blocks have fewer copies than they should, and how many there are.
pub fn incomplete(map: &Map) -> (usize, usize) {
    let has_too_few = |group: &Group| {
        let holders = map.holders(*group);
        // A shard that moves has one holder more for a while.
        let wanted = match group {
            Group::Shard(_) => usize::from(map.copies),
            Group::Blocks { .. } => holders.all().len(),
        };
        holders.in_step().filter(|server| map.is_up(*server)).count() < wanted
    };
    (map.replicated().filter(has_too_few).count(), map.replicated().count())
}

/// How many shards move, or are to.
fn moving_shards(map: &Map) -> usize {
    let to_begin = if map.balancing { map.relocations().len() } else { 0 };
    map.moving.len() + to_begin
}

/// What nobody serves while servers are down, in words.
fn what_is_lost(map: &Map) -> &'static str {
    let is_served = |group| map.serving(group).next().is_some();
    let shards = (0..SHARDS).map(|shard| Group::Shard(ShardId(shard)));
    match (map.copies > 1 && shards.into_iter().all(is_served), map.replicas > 1) {
        (true, true) if map.replicated().all(is_served) => "others serve what it holds",
        (true, false) => "others serve its metadata, but the blocks that it holds cannot be reached",
        _ => "what it holds cannot be reached",
    }
}

/// The nodes that nobody reaches, in words.
fn nodes_away(agents: &[AgentStatus]) -> Option<String> {
    let hosts: Vec<&str> =
        agents.iter().filter(|agent| agent.away).map(|agent| agent.host.as_str()).collect();
    let is_or_are = if hosts.len() == 1 { "is" } else { "are" };
    let said = format!(
        "{} {is_or_are} not reached: what the programs there had locked and open is given up",
        hosts.join(", ")
    );
    (!hosts.is_empty()).then_some(said)
}

/// Why servers are down, as their agents say, in words.
fn troubles(servers: &[ServerStatus]) -> String {
    let down = servers.iter().filter(|server| server.state == "down");
    let troubles =
        down.filter_map(|server| Some(format!("; server {}: {}", server.id, server.trouble.as_ref()?)));
    troubles.collect()
}

/// The sub-files that servers have lost, in words.
fn damage(servers: &[ServerStatus]) -> Option<String> {
    let lines = servers.iter().filter_map(|server| {
        let damaged = server.counters?.damaged;
        (damaged > 0).then(|| {
            format!(
                "server {} has lost what it held of {}: reading it fails with EIO; log: {}",
                server.id,
                plural(usize::try_from(damaged).unwrap_or(usize::MAX), "file"),
                server.log.display()
            )
        })
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The sums over the servers that answer. Servers of one host whose storage lies beside each other share a
/// file system: its space counts once.
fn sum(servers: &[ServerStatus]) -> Counters {
    let mut total = Counters::default();
    let mut counted: Vec<(&str, Vec<Option<&Path>>)> = Vec::new();
    for server in servers {
        let Some(mut counters) = server.counters else { continue };
        let place = (server.host.as_str(), server.storage.iter().map(|p| p.parent()).collect());
        if counted.contains(&place) {
            (counters.capacity, counters.available) = (0, 0);
        } else {
            counted.push(place);
        }
        total.add(&counters);
    }
    total
}

/// Agents live, and none is the controller: what they know.
fn without_majority(deployment: &mut Deployment, record: &Record, known: &leader::Known, key: &Key) {
    let map = &known.map;
    deployment.state = Condition::Degraded;
    deployment.epoch = Some(map.epoch.0).filter(|epoch| *epoch > 0);
    deployment.voters = known.voters.iter().map(|node| node.0).collect();
    deployment.servers = servers(record, map, &[], key);
    for server in deployment.servers.iter_mut().filter(|server| server.counters.is_none()) {
        server.state = "down";
    }
    deployment.incomplete = incomplete(map).0;
    let hosts: Vec<&str> = known
        .voters
        .iter()
        .filter(|node| !known.alive.contains(node))
        .filter_map(|node| map.node(*node).map(|node| node.host.as_str()))
        .collect();
    let who = match (known.voters.is_empty(), hosts.is_empty()) {
        (true, _) => "none of the agents that keep the map answers".to_owned(),
        (false, true) => "they have not elected one of them yet".to_owned(),
        (false, false) => format!(
            "{} of the {} agents that keep the map {}, and most are needed: those on {} do not",
            known.alive.len(),
            known.voters.len(),
            if known.alive.len() == 1 { "answers" } else { "answer" },
            hosts.join(", ")
        ),
    };
    deployment.problem = Some(format!(
        "there is no controller: {who}; nobody notices that servers die or come back; `bivouac down {0}` takes it down (with --keep, \
         `bivouac up {0}` brings it back)",
        record.name
    ));
}

/// No agent answers: is anybody left?
fn without_controller(record: &Record, why: &str) -> (Condition, String) {
    let here = |d: &&DaemonRecord| d.launcher != LauncherKind::Ssh;
    let alive = record
        .daemons
        .iter()
        .filter(here)
        .filter(|d| traces::process(record, d).is_some_and(|p| p.is_alive()))
        .count();
    let remote = record.daemons.iter().any(|d| d.launcher == LauncherKind::Ssh && d.process.is_some());
    let first_here = record.first().is_some_and(|first| here(&first));
    let name = &record.name;
    match (alive, remote && !first_here) {
        (0, true) => (Condition::Unreachable, format!("its agents do not answer: {why}")),
        (0, false) => {
            let back = if record.state == State::Running {
                format!("`bivouac up {name}` brings it back with its data, ")
            } else {
                String::new()
            };
            let others = if remote { "on this machine " } else { "" };
            (
                Condition::Crashed,
                format!("no daemon {others}is alive: {back}`bivouac down {name}` removes what is left"),
            )
        }
        (n, _) => (
            Condition::Degraded,
            format!(
                "there is no controller: no agent answers ({why}); {} on this machine; `bivouac down {name}` takes it down",
                plural(n, "daemon")
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A server that is up.
    fn server(host: &str, storage: &str) -> ServerStatus {
        ServerStatus {
            id: 0,
            node: 0,
            host: host.into(),
            address: None,
            pid: None,
            restarts: None,
            trouble: None,
            state: "up",
            behind: 0,
            given_up: false,
            departing: false,
            shards: 0,
            primary_shards: 0,
            replaced: 0,
            silent_ms: None,
            lease_ms: None,
            storage: vec![storage.into()],
            log: PathBuf::new(),
            progress: None,
            counters: Some(Counters { capacity: 10, available: 4, inodes: 1, ..Counters::default() }),
        }
    }

    #[test]
    fn json_has_the_documented_fields() {
        let record = Record::new("job", 1, "/m", 4096, "info");
        let directory = Directory { name: "job".into(), path: "/no/such/place".into() };
        let status = Status { version: VERSION, deployments: vec![examine(&directory, &record)] };
        let json: serde_json::Value = serde_json::to_value(&status).expect("encodes");
        let deployment = &json["deployments"][0];
        let mut fields: Vec<&str> =
            deployment.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "agents",
                "block_size",
                "created",
                "directory",
                "epoch",
                "false_failovers",
                "forwarding",
                "incomplete",
                "leader",
                "metadata_replicas",
                "mount",
                "moving_shards",
                "name",
                "policy",
                "problem",
                "rebuild",
                "replicas",
                "servers",
                "state",
                "totals",
                "voters"
            ]
        );
        assert_eq!(deployment["totals"]["meta_operations"], 0, "counters are flat");
        let server = server("a", "/d/s-0");
        let json = serde_json::to_value(&server).expect("encodes");
        let mut fields: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.retain(|field| json["storage"].is_array() && !json[field].is_u64());
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "address",
                "departing",
                "given_up",
                "host",
                "lease_ms",
                "log",
                "pid",
                "restarts",
                "silent_ms",
                "state",
                "storage",
                "trouble"
            ]
        );
    }

    #[test]
    fn space_that_servers_share_counts_once() {
        let all =
            [server("a", "/d/s-0"), server("a", "/d/s-1"), server("a", "/e/s-2"), server("b", "/d/s-3")];
        let total = sum(&all);
        assert_eq!((total.capacity, total.available, total.inodes), (30, 12, 4));
    }
}
