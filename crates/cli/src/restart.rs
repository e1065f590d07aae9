//! Starting servers of a running deployment again, on the storage that they have.
//!
//! A server that still answers is asked to stop first. The new process listens where the old one did: the map says
//! where that is, and programs that hold the old address find it there. The command waits until the controller has
//! taken the server in again. If the agent of its node is not there either, it is started first. If that agent starts
//! the server at the same time, one of the two does it, on the server's host, and the other one finds it there
//! ([`crate::daemon`]).

use crate::args::RestartArgs;
use crate::daemon::traces;
use crate::error::Error;
use crate::home::{DaemonRecord, Directory, Home, LauncherKind, Record};
use crate::{launch, replace, status, text, up};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::{Epoch, NodeId, ServerId, ServerState};
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::time::{Duration, Instant};

/// How long a server that was asked to stop may take.
const STOPPING: Duration = Duration::from_secs(15);

/// Starts servers again, one after the other.
pub fn restart(home: &Home, args: &RestartArgs) -> Result<(), Error> {
    let directory = home.deployment(&args.name);
    let _lock = directory.lock()?;
    let (mut record, key) = (directory.load()?, directory.key()?);
    record.check_runs()?;
    if let Ok(overview) = status::overview(&record, &key)
        && replace::reconcile(&mut record, &overview.map)
    {
        directory.save(&record)?;
    }
    for number in &args.servers {
        let id = ServerId(*number);
        let at = position(&record, id)?;
        let node = record.daemons[at].node;
        bring_agent_back(&directory, &mut record, node, &key)?;
        stop(&record, &record.daemons[at], &key)?;
        let order = up::order_again(&record, &record.daemons[at], &key, &directory);
        let ready = launch::start(record.daemons[at].launcher, &order)?;
        up::fill_in(&mut record.daemons[at], ready)?;
        directory.save(&record)?;
        wait_until_up(&record, &key, &record.daemons[at], id)?;
        println!("server {number} of {} is back", args.name);
    }
    Ok(())
}

/// Starts the agent of a node, if nobody is where it listened.
fn bring_agent_back(
    directory: &Directory,
    record: &mut Record,
    node: NodeId,
    key: &Key,
) -> Result<(), Error> {
    let is_its = |d: &DaemonRecord| d.agent && d.node == node && d.server.is_none();
    let Some(at) = record.daemons.iter().position(is_its) else { return Ok(()) };
    let agent = &record.daemons[at];
    // Without an address, `endpoint` is the agent of this machine.
    if agent.address.is_some() || agent.launcher == LauncherKind::Local {
        let endpoint = agent.endpoint(&record.name, key);
        match ControlLink::connect(&endpoint, key, record.deployment, control::AGENT) {
            Err(error) if error.is_death() => {}
            _ => return Ok(()),
        }
    }
    let ready = launch::start(agent.launcher, &up::order_again(record, agent, key, directory))?;
    up::fill_in(&mut record.daemons[at], ready)?;
    directory.save(record)
}

/// Where a server is in a record.
pub fn position(record: &Record, id: ServerId) -> Result<usize, Error> {
    record.daemons.iter().position(|d| d.server == Some(id)).ok_or_else(|| {
        let servers = record.daemons.iter().filter(|d| d.server.is_some()).count();
        Error::refused(
            format!("the deployment {:?} has no server {id}", record.name),
            format!("it has {}: see `bivouac status {}`", text::plural(servers, "server"), record.name),
        )
    })
}

/// Asks a server to stop, if it is there, and waits until it is gone.
fn stop(record: &Record, daemon: &DaemonRecord, key: &Key) -> Result<(), Error> {
    // Without an address, an agent would be asked.
    let Some(address) = daemon.address else { return Ok(()) };
    let endpoint = Endpoint::Tcp(address);
    let until = Instant::now() + STOPPING;
    let mut told = false;
    loop {
        match ControlLink::connect(&endpoint, key, record.deployment, control::STOP) {
            Ok(mut link) if !told => told = link.tell(ControlRequest::Shutdown { keep: true }).is_ok(),
            Ok(_) => {}
            Err(error) if error.is_death() => return Ok(()),
            Err(_) => {}
        }
        if Instant::now() >= until {
            return Err(does_not_end(record, daemon));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server was asked to stop, and lives.
pub fn does_not_end(record: &Record, daemon: &DaemonRecord) -> Error {
    let process = traces::process(record, daemon).map_or(0, |process| process.pid);
    Error::Unanswered {
        cause: format!("{} on {} does not end", daemon.label(), daemon.host),
        remedy: format!("end its process {process} there (`kill -9 {process}`), and repeat the command"),
    }
}

/// Waits until the map says that the server takes part again.
pub fn wait_until_up(record: &Record, key: &Key, daemon: &DaemonRecord, id: ServerId) -> Result<(), Error> {
    let until = Instant::now() + control::INSTALL;
    loop {
        if has_been_taken_in(record, key, daemon, id).unwrap_or(false) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Error::Unanswered {
                cause: format!("{} was started, and is not taken in", daemon.label()),
                remedy: format!("log: {}", daemon.log.display()),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the map says that the server takes part, and the server has that map.
fn has_been_taken_in(
    record: &Record,
    key: &Key,
    daemon: &DaemonRecord,
    id: ServerId,
) -> Result<bool, LinkError> {
    let endpoint = daemon.endpoint(&record.name, key);
    // A sender without a map says that it has none.
    let known = ControlLink::connect(&endpoint, key, record.deployment, control::LOOK)?
        .ping(Epoch(0), NodeId::NONE, None)?
        .epoch;
    let map = status::overview(record, key)?.map;
    Ok(map.server(id).is_some_and(|server| server.state == ServerState::Up) && known == map.epoch)
}
