//! Shows deployments and the state of their servers, for people and (in a stable form) for programs.

use crate::daemon::traces;
use crate::error::Error;
use crate::home::{DaemonRecord, Directory, Home, LauncherKind, Record, State, uid};
use crate::leader;
use crate::mounts;
use crate::text::{count, imbalance, plural, size, table};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::map::{Server, ServerState};
use bivouac_layout::{Group, Map, NodeId, SHARDS, ShardId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, ServerHealth, Stats, Ward};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Version of the JSON; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// All of the JSON.
#[derive(Serialize, Debug)]
pub struct Status {
    version: u32,
    deployments: Vec<Deployment>,
}

/// One deployment.
#[derive(Serialize, Debug)]
pub struct Deployment {
    name: String,
    state: Condition,
    /// What is wrong, in words; `null` if nothing is.
    problem: Option<String>,
    mount: String,
    block_size: u32,
    /// Copies of new files' blocks, and of the metadata.
    replicas: u8,
    metadata_replicas: u8,
    /// So many pieces (shards, and groups of blocks) have fewer copies than they should.
    incomplete: usize,
    epoch: Option<u64>,
    /// The node whose agent is the controller; `null`: there is none.
    leader: Option<u16>,
    /// The nodes whose agents keep the map.
    voters: Vec<u16>,
    /// Servers that were declared down although they lived, since this controller leads.
    false_failovers: Option<u64>,
    /// Seconds since 1970.
    created: u64,
    directory: PathBuf,
    servers: Vec<ServerStatus>,
    totals: Totals,
}

/// How a deployment fares.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Condition {
    Starting,
    Running,
    Degraded,
    Unreachable,
    Stopped,
    Crashed,
}

impl Condition {
    fn word(self) -> &'static str {
        match self {
            Condition::Starting => "starting",
            Condition::Running => "running",
            Condition::Degraded => "degraded",
            Condition::Unreachable => "unreachable",
            Condition::Stopped => "stopped",
            Condition::Crashed => "crashed",
        }
    }
}

/// One server. What it counts is `null` when it does not answer.
#[derive(Serialize, Debug)]
struct ServerStatus {
    id: u16,
    node: u16,
    host: String,
    address: Option<String>,
    /// Its process, on its host, as far as it is known.
    pid: Option<u32>,
    /// How often its agent has started it again; `null`: the agent does not answer, or does not do that.
    restarts: Option<u32>,
    /// Why it is not there, as its agent says.
    trouble: Option<String>,
    /// `up`; `down`; or `joining`: it answers again, and is about to be up.
    state: &'static str,
    /// It has not got yet what it has missed of so many groups (shards, and parts of files).
    behind: usize,
    /// Others have taken its place: it holds no copies.
    given_up: bool,
    /// So often another process, with new storage, has got its number.
    replaced: u32,
    /// Milliseconds since it last answered the controller.
    silent_ms: Option<u64>,
    /// For so many milliseconds it may still answer for what has copies; `null` where nothing has.
    lease_ms: Option<u64>,
    storage: Vec<PathBuf>,
    log: PathBuf,
    #[serde(flatten)]
    counters: Option<Counters>,
}

/// What a server holds and has done since its start.
#[derive(Serialize, Clone, Copy, Default, Debug)]
struct Counters {
    capacity: u64,
    available: u64,
    stored: u64,
    inodes: u64,
    meta_operations: u64,
    data_operations: u64,
    bytes_read: u64,
    bytes_written: u64,
    connections: u64,
    opens: u64,
    damaged: u64,
    fetched: u64,
    without_room: u64,
    direct_bytes_read: u64,
    direct_bytes_written: u64,
}

/// The sums over the servers that answer.
#[derive(Serialize, Default, Debug)]
struct Totals {
    servers: usize,
    servers_up: usize,
    #[serde(flatten)]
    counters: Counters,
}

impl From<Stats> for Counters {
    fn from(s: Stats) -> Counters {
        Counters {
            capacity: s.capacity,
            available: s.available,
            stored: s.stored,
            inodes: s.inodes,
            meta_operations: s.meta_operations,
            data_operations: s.data_operations,
            bytes_read: s.bytes_read,
            bytes_written: s.bytes_written,
            connections: s.connections,
            opens: s.opens,
            damaged: s.damaged,
            fetched: s.fetched,
            without_room: s.without_room,
            direct_bytes_read: s.direct_read,
            direct_bytes_written: s.direct_written,
        }
    }
}

impl Counters {
    fn add(&mut self, other: &Counters) {
        self.capacity += other.capacity;
        self.available += other.available;
        self.stored += other.stored;
        self.inodes += other.inodes;
        self.meta_operations += other.meta_operations;
        self.data_operations += other.data_operations;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.connections += other.connections;
        self.opens += other.opens;
        self.damaged += other.damaged;
        self.fetched += other.fetched;
        self.without_room += other.without_room;
        self.direct_bytes_read += other.direct_bytes_read;
        self.direct_bytes_written += other.direct_bytes_written;
    }

    fn operations(&self) -> u64 {
        self.meta_operations + self.data_operations
    }

    /// Bytes read from a server's storage, through the server and past it.
    fn read(&self) -> u64 {
        self.bytes_read + self.direct_bytes_read
    }

    /// Bytes written likewise.
    fn written(&self) -> u64 {
        self.bytes_written + self.direct_bytes_written
    }

    fn moved(&self) -> u64 {
        self.read() + self.written()
    }
}

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
        epoch: None,
        leader: None,
        voters: Vec::new(),
        false_failovers: None,
        created: record.created,
        directory: directory.path.clone(),
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
            deployment.false_failovers = Some(false_failovers);
            deployment.leader = Some(leader.0);
            deployment.voters = voters.iter().map(|node| node.0).collect();
            deployment.servers = servers(record, &map, &health, &key);
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
        holders.in_step().filter(|server| map.is_up(*server)).count() < holders.all().len()
    };
    (map.replicated().filter(has_too_few).count(), map.replicated().count())
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
fn servers(record: &Record, map: &Map, health: &[ServerHealth], key: &Key) -> Vec<ServerStatus> {
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
                    trouble: ward.and_then(|ward| ward.trouble.clone()),
                    behind: map.replicated().filter(|group| map.is_behind(*group, server.id)).count(),
                    given_up: map.is_given_up(server.id),
                    replaced: server.succession(),
                    silent_ms: health.map(|h| h.silent_ms),
                    storage: recorded.map(|d| d.storage.clone()).unwrap_or_default(),
                    log: recorded.map(|d| d.log.clone()).unwrap_or_default(),
                    lease_ms: stats.and_then(|stats| stats.lease_ms),
                    counters: stats.map(Counters::from),
                }
            })
            .collect()
    })
}

/// The number of a server's process: its agent knows it best.
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
fn recorded_servers(record: &Record) -> Vec<ServerStatus> {
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
                replaced: d.succession,
                silent_ms: None,
                lease_ms: None,
                storage: d.storage.clone(),
                log: d.log.clone(),
                counters: None,
            })
        })
        .collect();
    servers.sort_by_key(|s| s.id);
    servers
}

fn list(deployments: &[Deployment]) -> String {
    if deployments.is_empty() {
        return "no deployments\n".into();
    }
    let mut rows = vec![vec!["NAME", "STATE", "SERVERS", "MOUNT", "FILES", "STORED", "FREE"]];
    let cells: Vec<Vec<String>> = deployments
        .iter()
        .map(|d| {
            let t = &d.totals;
            vec![
                d.name.clone(),
                d.state.word().into(),
                format!("{}/{}", t.servers_up, t.servers),
                d.mount.clone(),
                count(t.counters.inodes),
                size(t.counters.stored),
                size(t.counters.available),
            ]
        })
        .collect();
    let mut all: Vec<Vec<String>> =
        rows.drain(..).map(|r| r.into_iter().map(str::to_owned).collect()).collect();
    all.extend(cells);
    let mut text = table(&all, &[2, 4, 5, 6]);
    for deployment in deployments {
        if let Some(problem) = &deployment.problem {
            text.push_str(&format!("{}: {problem}\n", deployment.name));
        }
    }
    text
}

fn one(d: &Deployment) -> String {
    let epoch = d.epoch.map_or(String::new(), |e| format!(", epoch {e}"));
    let mut text = format!(
        "{}: {} at {}, {} of {}, blocks of {}{epoch}\n",
        d.name,
        d.state.word(),
        d.mount,
        d.totals.servers_up,
        plural(d.totals.servers, "server"),
        size(d.block_size.into()),
    );
    if let Some(problem) = &d.problem {
        text.push_str(&format!("{problem}\n"));
    }
    if let [_, _, ..] = d.voters[..] {
        let voters: Vec<String> = d.voters.iter().map(u16::to_string).collect();
        let leader = d.leader.map_or("no controller".into(), |leader| format!("controller: node {leader}"));
        text.push_str(&format!("{leader}; the map is kept by nodes {}\n", voters.join(", ")));
    }
    text.push_str(&servers_table(d));
    text
}

fn servers_table(d: &Deployment) -> String {
    let heading = [
        "SERVER", "HOST", "ADDRESS", "STATE", "CAPACITY", "FREE", "STORED", "FILES", "OPS", "READ", "WRITTEN",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let numbers = |c: Option<&Counters>| match c {
        Some(c) => vec![
            size(c.capacity),
            size(c.available),
            size(c.stored),
            count(c.inodes),
            count(c.operations()),
            size(c.read()),
            size(c.written()),
        ],
        None => vec!["-".to_owned(); 7],
    };
    for s in &d.servers {
        let address = s.address.clone().unwrap_or_else(|| "-".into());
        let state = if s.given_up { format!("{}, given up", s.state) } else { s.state.to_owned() };
        let mut row = vec![s.id.to_string(), s.host.clone(), address, state];
        row.extend(numbers(s.counters.as_ref()));
        rows.push(row);
    }
    if d.servers.len() > 1 && d.totals.servers_up > 0 {
        let mut row =
            vec!["all".to_owned(), String::new(), String::new(), format!("{} up", d.totals.servers_up)];
        row.extend(numbers(Some(&d.totals.counters)));
        rows.push(row);
    }
    table(&rows, &[4, 5, 6, 7, 8, 9, 10])
}

/// How evenly the servers were used.
fn evenness(d: &Deployment) -> String {
    let share = |what: &str, of: fn(&Counters) -> u64| {
        let shares: Vec<u64> = d.servers.iter().map(|s| s.counters.as_ref().map_or(0, of)).collect();
        imbalance(&shares).map(|i| format!("{what} {i:.2}"))
    };
    let parts: Vec<String> = [
        share("files", |c| c.inodes),
        share("stored bytes", |c| c.stored),
        share("operations", Counters::operations),
        share("bytes moved", Counters::moved),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() || d.servers.len() < 2 {
        return String::new();
    }
    format!("busiest server against the mean (1.00: perfectly even): {}\n", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            replaced: 0,
            silent_ms: None,
            lease_ms: None,
            storage: vec![storage.into()],
            log: PathBuf::new(),
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
                "block_size",
                "created",
                "directory",
                "epoch",
                "false_failovers",
                "incomplete",
                "leader",
                "metadata_replicas",
                "mount",
                "name",
                "problem",
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

    #[test]
    fn a_list_without_deployments_says_so() {
        assert_eq!(list(&[]), "no deployments\n");
    }
}
