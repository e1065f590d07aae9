//! Starting daemons that are to belong to a deployment that runs.
//!
//! They are started first, where they have no part in anything yet; then the controller is asked to count them. The record
//! names them meanwhile, among what is removed with the deployment. If the command is killed in between,
//! [`crate::replace::reconcile`] finds by the map which of them count.

use crate::args::LauncherChoice;
use crate::daemon::cleanup;
use crate::error::Error;
use crate::home::{DaemonRecord, Directory, LauncherKind, Record, uid};
use crate::hosts::{self, Host};
use crate::launch::{self, CleanupOrder, Leave, Ready};
use crate::up;
use bivouac_daemon::controller::ControlLink;
use bivouac_layout::NodeId;
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_transport::engine::budget::control;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// How long a process of an earlier attempt may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// Where a new server is to run.
pub struct Place {
    /// The host.
    pub host: Host,
    /// Its node.
    pub node: NodeId,
    /// Its failure domain.
    pub domain: u16,
    /// The host is not one of the deployment yet.
    pub is_new: bool,
}

/// The host that the user means: one of the deployment, or another one.
pub fn place(record: &Record, name: &str, launcher: LauncherChoice) -> Result<Place, Error> {
    let of = |agent: &DaemonRecord, here: bool| Place {
        host: Host {
            name: agent.host.clone(),
            launcher: agent.launcher,
            listen: agent.listen.ip(),
            reach: agent.reach,
            here,
        },
        node: agent.node,
        domain: agent.domain,
        is_new: false,
    };
    let is_reached = |ip: IpAddr| {
        ip.is_loopback() == record.daemons.iter().any(|d| d.server.is_some() && d.listen.ip().is_loopback())
    };
    let known = record.daemons.iter().find(|d| d.agent && d.host.eq_ignore_ascii_case(name));
    let place = match known {
        Some(agent) => of(agent, agent.launcher == LauncherKind::Local),
        None => {
            let others = record.daemons.iter().find(|d| d.server.is_some()).and_then(|d| d.address);
            let all_netns =
                record.daemons.iter().all(|d| d.server.is_none() || d.launcher == LauncherKind::Netns);
            let launcher = match launcher {
                LauncherChoice::Auto if all_netns => LauncherChoice::Netns,
                other => other,
            };
            let host = hosts::another(name, launcher, others.map(|address| address.ip()))?;
            let here = record.daemons.iter().find(|d| d.agent && d.launcher == LauncherKind::Local);
            match here.filter(|_| host.here) {
                // This machine by another name.
                Some(agent) => of(agent, true),
                None => {
                    let known = record.all().map(|d| d.node.0).max().unwrap_or(0);
                    let node = NodeId(record.nodes.max(1 + known));
                    let domains: BTreeSet<u16> = record.daemons.iter().map(|d| d.domain).collect();
                    let domain = (node.0..u16::MAX).find(|domain| !domains.contains(domain));
                    Place { host, node, domain: domain.unwrap_or(u16::MAX), is_new: true }
                }
            }
        }
    };
    if is_reached(place.host.listen) {
        return Ok(place);
    }
    Err(Error::refused(
        format!("the servers of {:?} and one on {} would not reach each other", record.name, name),
        "one of them listens for its own machine only: a deployment that is to have several hosts is started with --hosts",
    ))
}

/// The port of a new server on a node: any, or, where ports were given (as that of `other`), the first behind those that the
/// node uses.
pub fn free_port(record: &Record, other: &DaemonRecord, node: NodeId) -> u16 {
    if other.listen.port() == 0 {
        return 0;
    }
    let used = record.all().filter(|d| d.node == node).map(|d| d.listen.port());
    used.max().map_or(other.listen.port(), |last| last.checked_add(1).unwrap_or(0))
}

/// What was started, and does not count yet.
pub struct Started<'d> {
    directory: &'d Directory,
    key: &'d Key,
    /// Those that have started.
    pub daemons: Vec<DaemonRecord>,
}

impl<'d> Started<'d> {
    /// Nothing so far.
    pub fn new(directory: &'d Directory, key: &'d Key) -> Started<'d> {
        Started { directory, key, daemons: Vec::new() }
    }

    /// Starts daemons on new storage, all at once, and has the record name those that have started. The first failure is
    /// returned when all have ended.
    pub fn start(&mut self, record: &mut Record, daemons: Vec<DaemonRecord>) -> Result<(), Error> {
        daemons.iter().for_each(|daemon| end_others_there(record, daemon));
        let started: Vec<(DaemonRecord, Result<Ready, Error>)> = std::thread::scope(|scope| {
            let (this, record) = (&*self, &*record);
            let threads: Vec<_> = daemons
                .into_iter()
                .map(|daemon| scope.spawn(move || this.start_one(record, daemon)))
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let mut failed = None;
        for (mut daemon, ready) in started {
            match ready {
                Ok(ready) => {
                    let noted = up::fill_in(&mut daemon, ready);
                    failed = failed.or(noted.err());
                    record.former.push(daemon.clone());
                    self.daemons.push(daemon);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.directory.save(record)?;
        failed.map_or(Ok(()), Err)
    }

    fn start_one(&self, record: &Record, daemon: DaemonRecord) -> (DaemonRecord, Result<Ready, Error>) {
        // A command that was killed may have left one that never counted.
        let ready = clean(record, &daemon, Leave::Nothing).and_then(|()| {
            launch::start(daemon.launcher, &up::order(record, &daemon, self.key, self.directory, false))
        });
        (daemon, ready)
    }

    /// Ends what was started, and removes what it has made, as far as that is possible; the record names the rest.
    pub fn take_back(&self, record: &mut Record) {
        for daemon in self.daemons.iter().rev() {
            let endpoint = daemon.endpoint(&record.name, self.key);
            let _ = ControlLink::connect(&endpoint, self.key, record.deployment, control::STOP)
                .and_then(|mut link| link.tell(ControlRequest::Shutdown { keep: false }));
            if clean(record, daemon, Leave::Nothing).is_ok() {
                let is_another =
                    |other: &DaemonRecord| other.label() != daemon.label() || other.process != daemon.process;
                record.former.retain(is_another);
                record.daemons.retain(is_another);
            }
        }
        if let Err(error) = self.directory.save(record) {
            error.show();
        }
    }
}

/// Ends other agents on the host of an agent that is to be started: a command had started them, and was killed before they counted.
/// A host has one agent, and a second one could not listen where the first one does.
fn end_others_there(record: &mut Record, daemon: &DaemonRecord) {
    let is_one = |other: &DaemonRecord| daemon.agent && other.agent && other.host == daemon.host;
    let others: Vec<DaemonRecord> = record.former.iter().filter(|other| is_one(other)).cloned().collect();
    for other in others {
        match clean(record, &other, Leave::Nothing) {
            Ok(()) => record.former.retain(|former| former.label() != other.label()),
            // The record goes on naming it; if it lives, the new one cannot start, and says why.
            Err(error) => error.show(),
        }
    }
}

/// Ends one daemon on its host.
pub fn clean(record: &Record, daemon: &DaemonRecord, leave: Leave) -> Result<(), Error> {
    let order = CleanupOrder {
        name: record.name.clone(),
        deployment: record.deployment,
        uid: uid(),
        leave,
        grace_ms: GRACE.as_millis() as u64,
        processes: daemon.process.into_iter().collect(),
        storage: daemon.storage.clone(),
        logs: vec![daemon.log.clone()],
        voters: Vec::new(),
        only: Some(daemon.label()),
    };
    match daemon.launcher {
        LauncherKind::Local | LauncherKind::Netns => cleanup::clean(&order),
        LauncherKind::Ssh => launch::clean(daemon.launcher, &daemon.host, &order),
    }
}
