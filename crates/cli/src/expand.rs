//! Adding servers to a deployment that runs.
//!
//! The new processes are started first, where they have no part in anything yet. Then the controller lists them, and they
//! join. When all of them are up, new files are spread over them, too. If one does not come, all are taken back; never one
//! that has arrived, because files may be on it already.

use crate::args::ExpandArgs;
use crate::backend;
use crate::error::Error;
use crate::home::{DaemonRecord, Directory, Home, Lock, Record};
use crate::joining::{self, Place, Started, free_port};
use crate::text::plural;
use crate::{hosts, leader, rebuild, replace, shrink, signals, status, up, vacating};
use bivouac_daemon::controller::LinkError;
use bivouac_layout::map::Node;
use bivouac_layout::{Growth, Map, NodeId, Rule, SERVERS_MAX, Server, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_transport::engine::budget::control;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long servers that were started may take to be up.
pub const ARRIVAL: Duration = Duration::from_secs(60);
/// Time between two looks whether they are.
const LOOK: Duration = Duration::from_millis(20);

/// Adds servers, and waits until files are spread over them.
pub fn expand(home: &Home, args: &ExpandArgs) -> Result<(), Error> {
    let Some(rule) = args.restripe.rule() else {
        return backend::rebuild(
            home,
            &args.name,
            (&args.through, args.restripe.max_rate),
            |record, directory| {
                let places = places(record, args, directory)?;
                Ok(backend::planned(record, &[], &places, &storage(record, args)?, directory))
            },
        );
    };
    backend::journal::check_none(home, &args.name)?;
    let directory = home.deployment(&args.name);
    let lock = directory.lock()?;
    let (mut record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    let added = add_servers(&directory, &mut record, &key, args, &lock)?;
    let all = record.daemons.iter().filter(|daemon| daemon.server.is_some()).count();
    println!(
        "{} more: new files of {} are spread over {} now",
        plural(added.len(), "server"),
        args.name,
        plural(all, "server")
    );
    // Others may change the deployment meanwhile: the servers do the rest.
    drop(lock);
    match rule {
        // No server leaves: only files that are open for writing change, so that what they grow by goes to the new servers, too.
        Rule::Metadata => match look(&record, &key)?.rebuild {
            Some(_) => Ok(()),
            None => rebuild::begin(&record, &key, Rule::Metadata, args.restripe.max_rate),
        },
        Rule::Direct => {
            rebuild::begin(&record, &key, Rule::Direct, args.restripe.max_rate)?;
            rebuild::follow(&record, &key, &args.restripe, None).map(drop)
        }
    }
}

/// Starts servers, and waits until new files are spread over them; or takes all of them back. Which they are.
pub fn add_servers(
    directory: &Directory,
    record: &mut Record,
    key: &Key,
    args: &ExpandArgs,
    lock: &Lock,
) -> Result<Vec<ServerId>, Error> {
    let map = look(record, key)?;
    if replace::reconcile(record, &map) {
        directory.save(record)?;
    }
    take_back_unarrived(directory, record, key, &map, lock)?;
    // Hosts that have left may be given again.
    shrink::forget(directory, record, &map, lock)?;
    let places = places(record, args, directory)?;
    if vacating::wait_for_leaving(record, key, &map, &places)? {
        return add_servers(directory, record, key, args, lock);
    }
    if usize::from(map.numbers) + places.len() > usize::from(SERVERS_MAX) {
        return Err(Error::refused(
            format!("{} more servers are too many: this deployment has had {}", places.len(), map.numbers),
            format!("a deployment may have had {SERVERS_MAX} in all: start another one"),
        ));
    }
    let (agents, servers) = plan(record, &map, args, &places, directory)?;
    let mut started = Started::new(directory, key);
    let added = started
        .start(record, agents)
        .and_then(|()| started.start(record, servers))
        .and_then(|()| add(record, key, &started.daemons))
        .and_then(|()| wait_until_all_are_up(record, key, &started.daemons));
    if let Err(error) = added {
        // A signal that interrupted it must not prevent that.
        signals::heeded();
        if let Err(left) = take_back(&mut started, record, key) {
            left.show();
        }
        // A host has left at this moment: it gets an agent like any other.
        let has_left = |map: Map| places.iter().any(|place| !place.is_new && map.has_left(place.node));
        if look(record, key).is_ok_and(has_left) {
            return add_servers(directory, record, key, args, lock);
        }
        return Err(error);
    }
    let map = look(record, key)?;
    replace::reconcile(record, &map);
    directory.save(record)?;
    Ok(started.daemons.iter().filter_map(|daemon| daemon.server).collect())
}

fn look(record: &Record, key: &Key) -> Result<Map, Error> {
    status::overview(record, key).map(|overview| overview.map).map_err(|error| unanswered(record, &error))
}

fn unanswered(record: &Record, error: &LinkError) -> Error {
    Error::Unanswered {
        cause: format!("the controller of {:?} does not answer: {error}", record.name),
        remedy: format!(
            "servers can be added only while most of those agents live that keep the map: see `bivouac status {}`",
            record.name
        ),
    }
}

/// Where each new server is to run.
fn places(record: &Record, args: &ExpandArgs, directory: &Directory) -> Result<Vec<Place>, Error> {
    let count = args.servers.map_or(1, |count| usize::from(count.get()));
    let hosts = match &args.hosts {
        Some(hosts) => {
            let names = hosts::names(hosts)?;
            // Host by host and then round again, as when a deployment begins.
            names.iter().cycle().take(names.len() * count).cloned().collect()
        }
        None => with_fewest(record, count),
    };
    // Each finds those before it among the hosts of the deployment.
    let mut planned = record.clone();
    let mut places = Vec::new();
    for host in hosts {
        let place = joining::place(&planned, &host, args.launcher)?;
        if place.is_new {
            let agent = up::record_of(&place.host, place.node, None, 0, &[], directory);
            planned.daemons.push(DaemonRecord { domain: place.domain, ..agent });
        }
        places.push(place);
    }
    Ok(places)
}

/// The hosts that have the fewest servers, each as often as it is to have one more.
fn with_fewest(record: &Record, count: usize) -> Vec<String> {
    let mut held: BTreeMap<NodeId, (usize, &str)> = BTreeMap::new();
    for daemon in record.daemons.iter().filter(|daemon| daemon.server.is_some()) {
        held.entry(daemon.node).or_insert((0, &daemon.host)).0 += 1;
    }
    let next = || {
        let (servers, host) = held.values_mut().min_by_key(|(servers, _)| *servers)?;
        *servers += 1;
        Some((*host).to_owned())
    };
    std::iter::from_fn(next).take(count).collect()
}

/// A server that new ones are like.
fn like(record: &Record) -> Result<&DaemonRecord, Error> {
    let like = record.daemons.iter().find(|daemon| daemon.server.is_some());
    like.ok_or_else(|| Error::refused("the deployment has no server", "start another one"))
}

/// Where new servers have their storage.
fn storage(record: &Record, args: &ExpandArgs) -> Result<Vec<PathBuf>, Error> {
    match &args.storage[..] {
        [] => Ok(like(record)?.storage_in.clone()),
        given => given
            .iter()
            .map(|path| std::path::absolute(path).map_err(|cause| Error::file("find", path, cause)))
            .collect(),
    }
}

/// The daemons that are to be started: agents of hosts that have none, and servers.
fn plan(
    record: &Record,
    map: &Map,
    args: &ExpandArgs,
    places: &[Place],
    directory: &Directory,
) -> Result<(Vec<DaemonRecord>, Vec<DaemonRecord>), Error> {
    let like = like(record)?;
    let storage = storage(record, args)?;
    let (mut agents, mut servers, mut planned) = (Vec::new(), Vec::new(), record.clone());
    for (place, number) in places.iter().zip(map.numbers..) {
        let Place { host, node, domain, .. } = place;
        if place.is_new {
            agents.push(DaemonRecord {
                domain: *domain,
                ..up::record_of(host, *node, None, 0, &[], directory)
            });
        }
        let port = free_port(&planned, like, *node);
        let server = up::record_of(host, *node, Some(ServerId(number)), port, &storage, directory);
        let server = DaemonRecord { domain: *domain, ..server };
        planned.daemons.push(server.clone());
        servers.push(server);
    }
    Ok((agents, servers))
}

/// Has the controller list servers that were started.
fn add(record: &Record, key: &Key, started: &[DaemonRecord]) -> Result<(), Error> {
    let node = |daemon: &DaemonRecord| {
        let (host, domain) = (daemon.host.clone(), daemon.domain);
        Some(Node { id: daemon.node, host, agent: daemon.address?, domain })
    };
    let server = |daemon: &DaemonRecord| {
        let (id, node, address) = (daemon.server?, daemon.node, daemon.address?);
        Some(Server { id, node, address, state: ServerState::Down, joined: 0, former: Vec::new() })
    };
    let nodes = started.iter().filter(|daemon| daemon.agent).filter_map(node).collect();
    let mut servers: Vec<Server> = started.iter().filter_map(server).collect();
    servers.sort_by_key(|server| server.id);
    let are_listed = |map: &Map| {
        servers
            .iter()
            .all(|server| map.server(server.id).is_some_and(|known| known.address == server.address))
    };
    let request = ControlRequest::Add(Box::new(Growth { nodes, servers: servers.clone() }));
    match leader::ask(record, key, &request, control::INSTALL, control::ELECTION) {
        Ok(_) => Ok(()),
        // The answer may have been lost, or the change was committed later.
        Err(_) if look(record, key).is_ok_and(|map| are_listed(&map)) => Ok(()),
        Err(LinkError::Errno(_) | LinkError::Failed(_)) => Err(Error::refused(
            "the servers cannot be added: others were added meanwhile",
            "repeat the command",
        )),
        Err(error) => Err(unanswered(record, &error)),
    }
}

/// Waits until new files are spread over the servers.
fn wait_until_all_are_up(record: &Record, key: &Key, started: &[DaemonRecord]) -> Result<(), Error> {
    let until = Instant::now() + ARRIVAL;
    loop {
        let map = look(record, key)?;
        let missing =
            started.iter().find(|daemon| daemon.server.is_some_and(|id| map.arriving.contains(&id)));
        let Some(daemon) = missing else { return Ok(()) };
        if let Some(signal) = signals::interrupted() {
            return Err(Error::Interrupted(signal));
        }
        if Instant::now() >= until {
            return Err(Error::Unanswered {
                cause: format!("{} on {} was started, and is not taken in", daemon.label(), daemon.host),
                remedy: format!(
                    "all new ones are taken back; see whether the hosts reach each other, and its log: {}",
                    daemon.log.display()
                ),
            });
        }
        std::thread::sleep(LOOK);
    }
}

/// Takes servers off the map that do not arrive, and their nodes, and then what was started for them. If they have arrived
/// meanwhile, or nobody can say that they have not, they stay.
fn take_back(started: &mut Started<'_>, record: &mut Record, key: &Key) -> Result<(), Error> {
    let map = look(record, key)?;
    let servers: Vec<ServerId> = started.daemons.iter().filter_map(|daemon| daemon.server).collect();
    let is_listed = |server: &ServerId| map.server(*server).is_some();
    if servers.iter().any(|server| is_listed(server) && !map.arriving.contains(server)) {
        return Ok(());
    }
    let is_used =
        |node: NodeId| map.servers.iter().any(|server| server.node == node && !servers.contains(&server.id));
    let nodes = started.daemons.iter().filter(|daemon| daemon.agent).map(|daemon| daemon.node);
    let nodes: Vec<NodeId> = nodes.filter(|node| map.node(*node).is_some() && !is_used(*node)).collect();
    let servers: Vec<ServerId> = servers.iter().copied().filter(is_listed).collect();
    if !servers.is_empty() || !nodes.is_empty() {
        let request = ControlRequest::Dismiss { servers, nodes };
        leader::ask(record, key, &request, control::INSTALL, control::ELECTION)
            .map_err(|error| unanswered(record, &error))?;
    }
    started.take_back(record);
    Ok(())
}

/// What a command that was killed has left: servers that have not arrived are taken back.
pub fn take_back_unarrived(
    directory: &Directory,
    record: &mut Record,
    key: &Key,
    map: &Map,
    _lock: &Lock,
) -> Result<(), Error> {
    let mut started = Started::new(directory, key);
    let is_of_one = |daemon: &&DaemonRecord| daemon.server.is_some_and(|id| map.arriving.contains(&id));
    started.daemons.extend(record.daemons.iter().filter(is_of_one).cloned());
    if started.daemons.is_empty() {
        return Ok(());
    }
    take_back(&mut started, record, key)
}
