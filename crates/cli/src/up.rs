//! Starting a deployment: plan, launch, have the first agent begin, wait.
//!
//! The record is saved before the first daemon starts, and whatever goes wrong, everything that was started
//! is stopped and removed again. A deployment that is there already, but whose daemons are gone, is brought
//! back ([`crate::resume`]).

use crate::args::{FirstChoice, ServerArgs};
use crate::backend;
use crate::down;
use crate::error::Error;
use crate::forward;
use crate::home::{DaemonRecord, Directory, Home, Lock, Record, State, random, uid};
use crate::hosts::{self, Host};
use crate::launch::{self, Order, Ready, StorageOrder};
use crate::leader;
use crate::mounts;
use crate::policy;
use crate::rebuild;
use crate::resume;
use crate::signals;
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_daemon::{DaemonConfig, ServerConfig};
use bivouac_layout::map::{Node, Server, ServerState};
use bivouac_layout::{First, Founding, NodeId, SERVERS_MAX, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_transport::engine::budget::control;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// After so many seconds a server that is down is given up, unless the user says otherwise.
const HEAL_AFTER: u32 = 30;
/// So often within ten minutes a server that died is started again, unless the user says otherwise.
const RESTARTS: u32 = 3;

/// A deployment that serves.
pub struct Started {
    /// Its directory.
    pub directory: Directory,
    /// What was started.
    pub record: Record,
    /// Its key.
    pub key: Key,
    /// It was brought back with its data.
    pub resumed: bool,
}

/// Starts, or brings back, the deployment `name`. `ephemeral`: it will end with this process.
pub fn up(home: &Home, name: &str, args: &ServerArgs, ephemeral: bool) -> Result<Started, Error> {
    backend::journal::check_none(home, name)?;
    // One at the mount path would be in the way.
    mounts::sweep(uid());
    let directory = home.deployment(name);
    let fresh = directory.create()?;
    let lock = directory.lock()?;
    let record = match directory.load() {
        Ok(record) => Some(record),
        Err(Error::Unknown(_)) => None,
        Err(other) => return Err(other),
    };
    let started = match record {
        Some(record) => resume::resume(&directory, record, args, &lock),
        None => {
            let result = found(home, &directory, args, ephemeral, &lock);
            if result.is_err() && fresh && matches!(directory.load(), Err(Error::Unknown(_))) {
                // Nothing was begun. What could not be removed stays on record, for `down`.
                let _ = directory.remove();
            }
            result
        }
    }?;
    drop(lock);
    if started.resumed
        && let Err(error) = policy::go_on(&directory)
    {
        error.show();
    }
    Ok(started)
}

fn found(
    home: &Home,
    directory: &Directory,
    args: &ServerArgs,
    ephemeral: bool,
    lock: &Lock,
) -> Result<Started, Error> {
    let hosts = hosts::resolve(args)?;
    let storage = args
        .storage
        .iter()
        .map(|path| std::path::absolute(path).map_err(|e| Error::file("find", path, e)))
        .collect::<Result<Vec<PathBuf>, Error>>()?;
    let mut number = [0; 8];
    random(&mut number)?;
    let key = directory.make_key()?;
    let deployment = u64::from_le_bytes(number);
    let mut record =
        Record::new(&directory.name, deployment, &args.mount, args.block_size.0, &args.log_level);
    record.width = args.width.map_or(0, |width| width.0);
    record.first = args.first.map_or(First::Hashed, FirstChoice::first);
    record.replicas = args.replicas.unwrap_or(1);
    record.metadata_replicas = args.metadata_replicas.unwrap_or(record.replicas);
    record.min_copies = args.min_copies.unwrap_or(1);
    record.heal_after = args.heal_after.unwrap_or(HEAL_AFTER);
    record.heal_rate = args.heal_rate.unwrap_or(0);
    record.lease = args.lease.unwrap_or(bivouac_layout::LEASE);
    record.restarts = args.restarts.unwrap_or(RESTARTS);
    record.ephemeral = ephemeral;
    record.daemons = plan(&hosts, args.servers.unwrap_or(1), args.port, &storage, directory)?;
    if let Some(file) = &args.failure_domain {
        let domains = hosts::domains(file, &hosts)?;
        for daemon in &mut record.daemons {
            daemon.domain = domains.get(usize::from(daemon.node.0)).copied().unwrap_or(u16::MAX);
        }
    }
    check_copies(&record)?;
    let how = &args.forwarding;
    if args.forward.is_none() && (how.io_nodes.is_some() || how.scheduler.is_some() || how.assign.is_some()) {
        return Err(Error::refused(
            "--io-nodes, --scheduler and --assign say how a directory is forwarded, and none is",
            "name it with --forward DIR",
        ));
    }
    let started = begin_new(home, directory, record, key, lock)?;
    if let Some(forwarded) = &args.forward {
        let map = rebuild::look(&started.record, &started.key);
        let changed = map.and_then(|map| {
            forward::change(&started.record, &started.key, &map, Some(forwarded), &args.forwarding)
        });
        if let Err(error) = changed {
            if let Err(left) = down::take_down(directory, &started.record, false, lock) {
                left.show();
            }
            return Err(error);
        }
    }
    Ok(started)
}

/// Begins a new deployment whose daemons are planned. If that fails, everything that was started ends.
pub fn begin_new(
    home: &Home,
    directory: &Directory,
    mut record: Record,
    key: Key,
    lock: &Lock,
) -> Result<Started, Error> {
    directory.save(&record)?;
    let started = launch_all(&mut record, &key, directory)
        .and_then(|()| begin(&record, &key, ControlRequest::Found { founding: Box::new(founding(&record)) }))
        .and_then(|()| {
            record.state = State::Running;
            directory.save(&record)
        });
    match started {
        Ok(()) => Ok(Started { directory: directory.clone(), record, key, resumed: false }),
        Err(error) => {
            let error = with_kept_logs(error, home, directory);
            let cleaned = down::take_down(directory, &record, false, lock);
            if let Err(left) = cleaned {
                left.show();
            }
            Err(error)
        }
    }
}

/// Whether there can be so many copies.
pub fn check_copies(record: &Record) -> Result<(), Error> {
    let servers = record.daemons.iter().filter(|d| d.server.is_some()).count();
    let (replicas, copies) = (record.replicas, record.metadata_replicas);
    if copies < replicas {
        return Err(Error::refused(
            format!("{copies} copies of the metadata are too few for {replicas} copies of files"),
            "a file must not outlive its inode: give --metadata-replicas at least as much as --replicas",
        ));
    }
    if record.min_copies > copies {
        return Err(Error::refused(
            format!("no change could have {} copies: there are {copies}", record.min_copies),
            "give --min-copies at most as much as --replicas",
        ));
    }
    if usize::from(copies) > servers {
        return Err(Error::refused(
            format!("{copies} copies need as many servers, and there are {servers}"),
            "give more --hosts or --servers, or fewer copies",
        ));
    }
    Ok(())
}

/// Which daemons on which hosts. Servers are numbered host by host and then round again, so that neighbours
/// in the generation are on different hosts.
fn plan(
    hosts: &[Host],
    servers_per_host: u16,
    port: u16,
    storage: &[PathBuf],
    directory: &Directory,
) -> Result<Vec<DaemonRecord>, Error> {
    let total = hosts.len() * usize::from(servers_per_host);
    if total > usize::from(SERVERS_MAX) {
        return Err(Error::refused(
            format!("{total} servers are too many"),
            format!("at most {SERVERS_MAX} are possible"),
        ));
    }
    let mut daemons = Vec::with_capacity(total + 1);
    for (node, host) in hosts.iter().enumerate() {
        // The agent's port comes after those of the servers.
        for round in [None].into_iter().chain((0..servers_per_host).map(Some)) {
            let server = round.map(|round| ServerId(round * hosts.len() as u16 + node as u16));
            let further = round.unwrap_or(servers_per_host);
            let port = match port {
                0 => 0,
                port => port.checked_add(further).ok_or_else(|| {
                    Error::refused(
                        format!("port {port} and {further} more is beyond 65535"),
                        "give a smaller --port",
                    )
                })?,
            };
            daemons.push(record_of(host, NodeId(node as u16), server, port, storage, directory));
        }
    }
    // The machine where it all begins needs an agent for `exec`. It founds the deployment, unless the others cannot
    // reach it.
    let mut first = hosts.iter().position(|h| h.here);
    if first.is_none() {
        let here = hosts::this_machine_beside(hosts);
        let is_reached = here.reach.is_some_and(|address| !address.is_loopback());
        daemons.push(record_of(&here, NodeId(hosts.len() as u16), None, 0, &[], directory));
        first = Some(if is_reached { hosts.len() } else { 0 });
    }
    for daemon in &mut daemons {
        daemon.first = daemon.agent && Some(usize::from(daemon.node.0)) == first;
    }
    Ok(daemons)
}

/// What is known of a daemon before it is started.
pub fn record_of(
    host: &Host,
    node: NodeId,
    server: Option<ServerId>,
    port: u16,
    storage: &[PathBuf],
    directory: &Directory,
) -> DaemonRecord {
    let mut record = DaemonRecord {
        host: host.name.clone(),
        node,
        domain: node.0,
        launcher: host.launcher,
        server,
        succession: 0,
        agent: server.is_none(),
        first: false,
        listen: SocketAddr::new(host.listen, port),
        reach: host.reach,
        process: None,
        address: None,
        log: PathBuf::new(),
        storage_in: if server.is_some() { storage.to_vec() } else { Vec::new() },
        storage: Vec::new(),
    };
    record.log = directory.logs().join(format!("{}.log", record.label()));
    record
}

/// Starts all daemons of a new deployment. The first failure is returned when all have ended.
fn launch_all(record: &mut Record, key: &Key, directory: &Directory) -> Result<(), Error> {
    let failures = launch_each(record, key, directory, false);
    let mut failed = None;
    let mut begun = Vec::with_capacity(failures.len());
    for (daemon, failure) in record.daemons.drain(..).zip(failures) {
        let Some(error) = failure else {
            begun.push(daemon);
            continue;
        };
        // A host that could not be reached had nothing before, and need not be cleaned.
        if !matches!(error, Error::Unreached { .. }) {
            begun.push(daemon);
        }
        // A daemon that failed has left a log, which goes unless its failure is told.
        if failed.as_ref().is_none_or(|first| matches!(first, Error::Unreached { .. })) {
            failed = Some(error);
        }
    }
    record.daemons = begun;
    // Also what did start is written down: it has to be found again to be ended.
    directory.save(record)?;
    failed.map_or(Ok(()), Err)
}

/// Starts all daemons at once, and fills in what they answer. Why which ones did not start.
pub fn launch_each(
    record: &mut Record,
    key: &Key,
    directory: &Directory,
    existing: bool,
) -> Vec<Option<Error>> {
    let orders: Vec<Order> =
        record.daemons.iter().map(|d| order(record, d, key, directory, existing)).collect();
    let answers: Vec<Result<Ready, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = record
            .daemons
            .iter()
            .zip(&orders)
            .map(|(daemon, order)| {
                let kind = daemon.launcher;
                scope.spawn(move || launch::start(kind, order))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or(Err(Error::Interrupted(libc::SIGABRT)))).collect()
    });
    let filled = record.daemons.iter_mut().zip(answers);
    filled.map(|(daemon, answer)| answer.and_then(|ready| fill_in(daemon, ready)).err()).collect()
}

/// The order to start a daemon again, where it was.
pub fn order_again(record: &Record, daemon: &DaemonRecord, key: &Key, directory: &Directory) -> Order {
    let mut order = order(record, daemon, key, directory, true);
    if let Some(address) = daemon.address {
        order.config.listen.set_port(address.port());
    }
    order
}

/// The order to start a daemon, on the storage that it has or on new storage.
pub fn order(
    record: &Record,
    daemon: &DaemonRecord,
    key: &Key,
    directory: &Directory,
    existing: bool,
) -> Order {
    let succession = daemon.succession;
    let server =
        daemon.server.map(|id| ServerConfig { id, succession, storage: Vec::new(), created_storage: true });
    Order {
        config: DaemonConfig {
            name: record.name.clone(),
            uid: uid(),
            deployment: record.deployment,
            key: key.clone(),
            node: daemon.node,
            host: daemon.host.clone(),
            listen: daemon.listen,
            server,
            agent: daemon.agent,
            mount: record.mount.clone(),
            block_size: record.block_size,
            ephemeral: record.ephemeral,
            closed: record.closed,
            restarts: record.restarts,
            deployment_dir: directory.path.clone(),
            log_file: daemon.log.clone(),
            log_level: record.log_level.clone(),
        },
        storage: if existing {
            StorageOrder::Existing(daemon.storage.clone())
        } else {
            StorageOrder::Fresh(daemon.storage_in.clone())
        },
    }
}

/// Notes what a daemon that was started has answered.
pub fn fill_in(daemon: &mut DaemonRecord, ready: Ready) -> Result<(), Error> {
    daemon.process = Some(ready.process);
    daemon.storage = ready.storage;
    daemon.address = match ready.address {
        Some(address) if address.ip().is_unspecified() => {
            let Some(ip) = daemon.reach.or(ready.reached) else {
                return Err(Error::Launch {
                    host: daemon.host.clone(),
                    cause: "no address is known by which other hosts can reach it".into(),
                    remedy: "name the host by its address".into(),
                    refused: false,
                });
            };
            Some(SocketAddr::new(ip, address.port()))
        }
        other => other,
    };
    Ok(())
}

/// With what the deployment begins.
fn founding(record: &Record) -> Founding {
    let node = |d: &DaemonRecord| {
        Some(Node { id: d.node, host: d.host.clone(), agent: d.address?, domain: d.domain })
    };
    let nodes = record.daemons.iter().filter(|d| d.agent).filter_map(node).collect();
    let server = |d: &DaemonRecord| {
        Some(Server {
            id: d.server?,
            node: d.node,
            address: d.address?,
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        })
    };
    let servers = record.daemons.iter().filter_map(server).collect();
    Founding {
        block_size: record.block_size,
        width: record.width,
        first: record.first,
        replicas: record.replicas,
        metadata_replicas: record.metadata_replicas,
        min_copies: record.min_copies,
        heal_after: record.heal_after,
        heal_rate: record.heal_rate,
        lease: record.lease,
        ..Founding::new(record.deployment, &record.mount, nodes, servers)
    }
}

/// Has the first agent begin, and waits until all daemons serve.
pub fn begin(record: &Record, key: &Key, how: ControlRequest) -> Result<(), Error> {
    let problem = |daemon: &DaemonRecord, what: String| Error::Launch {
        host: daemon.host.clone(),
        cause: format!("{} {what}", daemon.label()),
        remedy: format!("log: {}", daemon.log.display()),
        refused: false,
    };
    let first = record.first();
    let first = first
        .ok_or_else(|| Error::refused("no agent is the first", format!("take {:?} down", record.name)))?;
    let gone = |e| problem(first, format!("is to begin, and does not answer: {e}"));
    let endpoint = first.endpoint(&record.name, key);
    let mut link = ControlLink::connect(&endpoint, key, record.deployment, control::INSTALL).map_err(gone)?;
    let refused = |error| match error {
        LinkError::Failed(cause) => Error::refused(
            cause,
            format!("to give the deployment and its data up: `bivouac down {}`", record.name),
        ),
        LinkError::NotLeader(_) => problem(first, "and the others do not agree on a controller".into()),
        other => gone(other),
    };
    link.tell(how).map_err(refused)?;
    let deadline = Instant::now() + control::INSTALL;
    let request = ControlRequest::Beginning;
    loop {
        if let Some(signal) = signals::interrupted() {
            return Err(Error::Interrupted(signal));
        }
        let answer = leader::ask(record, key, &request, control::BEGIN, control::REACH);
        let (pending, failed) = match answer.map_err(refused)? {
            Some(ControlReply::Beginning { pending, failed }) => (pending, failed),
            _ => return Err(gone(LinkError::Unexpected)),
        };
        if let Some((member, cause)) = failed.into_iter().next() {
            let daemon = record.daemons.iter().find(|d| d.member() == member).unwrap_or(first);
            return Err(problem(
                daemon,
                format!(
                    "started, but does not serve: {cause} ({} at {}; is a firewall between the hosts?)",
                    daemon.host,
                    daemon.endpoint(&record.name, key)
                ),
            ));
        }
        if pending == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(problem(first, format!("waits for {pending} daemons that do not begin to serve")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Moves the logs to where they outlive the deployment, and says so.
fn with_kept_logs(error: Error, home: &Home, directory: &Directory) -> Error {
    let Error::Launch { host, cause, remedy, refused } = error else {
        return error;
    };
    let kept = home.failed(&directory.name);
    let _ = std::fs::remove_dir_all(&kept);
    if let Some(parent) = kept.parent() {
        let _ = std::fs::create_dir_all(parent);
    }
    let moved = std::fs::rename(directory.logs(), &kept).is_ok();
    let (before, after) = (directory.logs().display().to_string(), kept.display().to_string());
    let remedy: Vec<String> = remedy
        .lines()
        .map(|line| if moved { line.replace(&before, &after) } else { line.to_owned() })
        // A host with a directory of its own takes its log along.
        .filter(|line| line.strip_prefix("log: ").is_none_or(|path| Path::new(path).exists()))
        .collect();
    let remedy = remedy.join("\n");
    Error::Launch { host, cause, remedy, refused }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::LauncherKind;

    fn host(name: &str, here: bool) -> Host {
        let launcher = if here { LauncherKind::Local } else { LauncherKind::Ssh };
        Host {
            name: name.into(),
            launcher,
            listen: "0.0.0.0".parse().expect("address"),
            reach: Some("10.0.0.1".parse().expect("address")),
            here,
        }
    }

    fn directory() -> Directory {
        Directory { name: "job".into(), path: "/home/u/.bivouac/job".into() }
    }

    #[test]
    fn neighbouring_servers_are_on_different_hosts() {
        let hosts = [host("a", false), host("b", false), host("c", true)];
        let daemons = plan(&hosts, 2, 0, &[], &directory()).expect("a plan");
        let mut by_id: Vec<(u16, u16)> =
            daemons.iter().filter_map(|d| Some((d.server?.0, d.node.0))).collect();
        by_id.sort_unstable();
        assert_eq!(by_id, [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]);
        assert_eq!(daemons.iter().filter(|d| d.agent).count(), 3, "one agent on each node");
        let first: Vec<&DaemonRecord> = daemons.iter().filter(|d| d.first).collect();
        assert!(matches!(first[..], [c] if c.host == "c" && c.agent), "on the launching machine");
    }

    #[test]
    fn the_launching_machine_gets_an_agent_when_it_serves_nothing() {
        let daemons = plan(&[host("a", false)], 1, 7000, &[], &directory()).expect("a plan");
        assert_eq!(daemons.len(), 3);
        assert_eq!((daemons[0].server, daemons[0].listen.port()), (None, 7001));
        assert_eq!((daemons[1].server, daemons[1].listen.port()), (Some(ServerId(0)), 7000));
        assert!(daemons[2].server.is_none() && daemons[2].agent && daemons[2].first);
        assert_eq!(daemons[2].node, NodeId(1));
    }

    #[test]
    fn ports_beyond_the_last_are_refused() {
        assert!(plan(&[host("a", true)], 2, 65_534, &[], &directory()).is_err());
        assert!(plan(&[host("a", true)], 1, 65_534, &[], &directory()).is_ok());
    }

    #[test]
    fn the_first_map_keeps_the_rules_of_maps() {
        let mut record = Record::new("job", 9, "/m", 4096, "info");
        record.daemons = plan(&[host("a", true), host("b", false)], 2, 0, &[], &directory()).expect("a plan");
        for daemon in &mut record.daemons {
            daemon.address = Some("10.0.0.1:5".parse().expect("address"));
        }
        let map = founding(&record).map().expect("a map");
        assert_eq!((map.nodes.len(), map.servers.len(), map.generations[0].servers.len()), (2, 4, 4));
    }

    #[test]
    fn an_address_for_all_is_replaced_by_the_one_that_others_can_reach() {
        let mut daemon = plan(&[host("a", false)], 1, 0, &[], &directory()).expect("a plan").swap_remove(0);
        let ready = |reached: Option<&str>| Ready {
            process: crate::process::ProcessId { pid: 1, start: 1 },
            address: Some("0.0.0.0:77".parse().expect("address")),
            reached: reached.map(|a| a.parse().expect("address")),
            storage: Vec::new(),
        };
        fill_in(&mut daemon, ready(Some("10.0.0.9"))).expect("known");
        assert_eq!(daemon.address, Some("10.0.0.1:77".parse().expect("address")));
        daemon.reach = None;
        fill_in(&mut daemon, ready(Some("10.0.0.9"))).expect("told by ssh");
        assert_eq!(daemon.address, Some("10.0.0.9:77".parse().expect("address")));
        assert!(fill_in(&mut daemon, ready(None)).is_err());
    }
}
