//! Taking a deployment down: ask, wait, make sure, remove.
//!
//! The process of a [policy](crate::policy) is ended first, so that it starts nothing any more. Daemons that live are asked, through the controller or, when there is none, one by one; they remove what
//! they made. Then every host is [cleaned](crate::daemon::cleanup): daemons that have not ended by then are
//! killed (by number and start time), and what is left is removed. A deployment whose daemons are all gone is
//! taken down the same way. The deployment's directory goes last, so that `down` can be repeated when a host
//! could not be reached.

use crate::daemon::cleanup;
use crate::error::Error;
use crate::home::{Directory, Home, LauncherKind, Lock, RECORD, Record, State, uid};
use crate::launch::{self, CleanupOrder, Leave};
use crate::signals;
use crate::status;
use crate::vacating;
use bivouac_daemon::DaemonConfig;
use bivouac_daemon::controller::ControlLink;
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::time::Duration;

/// How long daemons that were asked may take to end.
const GRACE: Duration = Duration::from_secs(15);
/// How long those may take that could not be asked.
const NO_GRACE: Duration = Duration::from_millis(200);
/// How long the other daemons of a host may take to notice that they are deserted, and to end.
const DESERTED_GRACE: Duration = Duration::from_secs(30);

/// Takes down the deployment `name`. `force`: also if a host of it cannot be reached.
pub fn down(home: &Home, name: &str, keep: bool, force: bool) -> Result<(), Error> {
    let directory = home.deployment(name);
    // It may have the lock.
    directory.end_policy_process();
    let lock = directory.lock()?;
    let record = match directory.load() {
        Ok(record) => record,
        // An `up` that was killed in its first moments.
        Err(Error::Unknown(_)) => return directory.remove(),
        Err(other) => return Err(other),
    };
    match take_down(&directory, &record, keep, &lock) {
        Err(error) if force => {
            error.show();
            directory.remove()
        }
        result => result,
    }
}

/// Ends everything that the record names. The caller holds the lock, so no other command does the same.
pub fn take_down(directory: &Directory, record: &Record, keep: bool, _lock: &Lock) -> Result<(), Error> {
    // A signal that interrupted `up` must not prevent the hosts from being cleaned.
    signals::heeded();
    directory.end_policy_process();
    let key = directory.key().ok();
    let runs = record.state == State::Running;
    let overview = key.as_ref().filter(|_| runs).and_then(|key| status::overview(record, key).ok());
    // Hosts that have left while a command was killed may be switched off.
    let mut record = record.clone();
    if let Some(overview) = &overview
        && vacating::forget(&mut record, &overview.map)
    {
        directory.save(&record)?;
    }
    let record = &record;
    let keep = keep && record.daemons.iter().any(|d| !d.storage.is_empty());
    let asked = key.is_some_and(|key| ask(record, &key, overview, keep));
    let leave = if keep { Leave::Storage } else { Leave::Nothing };
    clean_hosts(directory, record, leave, if asked { GRACE } else { NO_GRACE })?;
    if !keep {
        return directory.remove();
    }
    let mut record = record.clone();
    record.state = State::Stopped;
    record.ephemeral = false;
    for daemon in record.daemons.iter_mut().chain(&mut record.former) {
        daemon.process = None;
    }
    directory.save(&record)
}

/// Asks all daemons to stop. Returns whether all that were started have accepted.
fn ask(record: &Record, key: &Key, overview: Option<status::Overview>, keep: bool) -> bool {
    let tell = |endpoint: &Endpoint| {
        ControlLink::connect(endpoint, key, record.deployment, control::STOP)
            .and_then(|mut link| link.tell(ControlRequest::Shutdown { keep }))
            .is_ok()
    };
    // Any agent would end, and only the controller tells the others.
    let leader = overview.map(|overview| overview.leader);
    let controller = record.daemons.iter().find(|daemon| daemon.agent && Some(daemon.node) == leader);
    if controller.is_some_and(|daemon| tell(&daemon.endpoint(&record.name, key))) {
        return true;
    }
    let started: Vec<_> = record.all().filter(|d| d.process.is_some()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            started.iter().map(|d| scope.spawn(|| tell(&d.endpoint(&record.name, key)))).collect();
        let told = threads.into_iter().filter_map(|t| t.join().ok()).filter(|told| *told).count();
        told > 0
    })
}

/// Cleans every host. All are tried; all failures are told, the last by whoever gets it.
pub fn clean_hosts(
    directory: &Directory,
    record: &Record,
    leave: Leave,
    grace: Duration,
) -> Result<(), Error> {
    Error::of_all(clean_each_host(directory, record, leave, grace).into_iter().map(|(_, error)| Err(error)))
}

/// The same. Where that failed, and why.
pub fn clean_each_host(
    directory: &Directory,
    record: &Record,
    leave: Leave,
    grace: Duration,
) -> Vec<(String, Error)> {
    let mut hosts: Vec<(&str, LauncherKind)> = record.all().map(|d| (d.host.as_str(), d.launcher)).collect();
    hosts.sort_by_key(|(host, _)| *host);
    hosts.dedup();
    std::thread::scope(|scope| {
        let threads: Vec<_> = hosts
            .into_iter()
            .map(|(host, kind)| {
                let cleaning = scope.spawn(move || {
                    let order = order(directory, record, (host, kind), leave, grace);
                    match kind {
                        // Processes and directories of a namespace are those of this machine.
                        LauncherKind::Local | LauncherKind::Netns => cleanup::clean(&order),
                        LauncherKind::Ssh => launch::clean(kind, host, &order),
                    }
                    .map_err(|error| not_clean(host, &record.name, error))
                });
                (host, cleaning)
            })
            .collect();
        let cleaned = threads.into_iter().map(|(host, thread)| {
            (host.to_owned(), thread.join().unwrap_or(Err(Error::Interrupted(libc::SIGABRT))))
        });
        cleaned.filter_map(|(host, cleaned)| Some((host, cleaned.err()?))).collect()
    })
}

fn order(
    directory: &Directory,
    record: &Record,
    (host, kind): (&str, LauncherKind),
    leave: Leave,
    grace: Duration,
) -> CleanupOrder {
    let daemons = || record.all().filter(|d| d.host == host && d.launcher == kind);
    CleanupOrder {
        name: record.name.clone(),
        deployment: record.deployment,
        uid: uid(),
        leave,
        grace_ms: grace.as_millis() as u64,
        processes: daemons().filter_map(|d| d.process).collect(),
        storage: daemons().flat_map(|d| d.storage.clone()).collect(),
        logs: if kind == LauncherKind::Ssh { daemons().map(|d| d.log.clone()).collect() } else { Vec::new() },
        voters: daemons().filter(|d| d.agent).map(|d| directory.voter(d.node)).collect(),
        only: None,
    }
}

fn not_clean(host: &str, name: &str, error: Error) -> Error {
    let advice = format!("then repeat `bivouac down {name}`, or forget the host with --force");
    let remedy = error.remedy().map_or(advice.clone(), |remedy| format!("{remedy}\n{advice}"));
    Error::Unanswered { cause: format!("not everything could be removed on {host}: {error}"), remedy }
}

/// What a daemon does after it has ended although nobody took the deployment down: if the `run` that made it
/// is gone, nobody else cleans up. `false`: the deployment was not started from this machine (or is removed
/// already).
pub fn after_lifeline(config: &DaemonConfig) -> bool {
    let Some(name) = config.deployment_dir.file_name().and_then(|n| n.to_str()) else {
        return false;
    };
    let directory = Directory { name: name.to_owned(), path: config.deployment_dir.clone() };
    let Ok(record) = directory.load() else { return false };
    if !record.ephemeral || record.deployment != config.deployment {
        return false;
    }
    // Home directories may be shared: only where `run` was are the record's local processes and paths those
    // of this machine.
    let own = record.daemons.iter().find(|daemon| daemon.node == config.node);
    if own.is_none_or(|daemon| daemon.launcher == LauncherKind::Ssh) {
        return false;
    }
    directory.end_policy_process();
    // A command, or another daemon, that holds the lock is about to do it.
    let Ok(lock) = directory.lock() else { return true };
    // Servers may have been added meanwhile.
    let Ok(record) = directory.load() else { return false };
    if let Err(error) = take_down(&directory, &record, false, &lock) {
        tracing::error!(%error, "not everything could be removed");
    }
    true
}

/// What an agent does whose node has left: nothing of the deployment is to be left there.
pub fn after_leaving(config: &DaemonConfig) {
    clean_here(config, Duration::ZERO, Some(format!("agent-{}", config.node)));
}

/// What a deserted daemon does on a host that the deployment was not started from: the other daemons here are
/// deserted, too, and it removes what daemons have left that were killed before.
pub fn after_desertion(config: &DaemonConfig) {
    clean_here(config, DESERTED_GRACE, None);
}

/// Removes what daemons, or `only` this one, have left on their host. Others are given time to do it themselves.
fn clean_here(config: &DaemonConfig, grace: Duration, only: Option<String>) {
    // Logs in a shared home go with the deployment's directory, or are removed by the next command.
    let shared = config.deployment_dir.join(RECORD).exists();
    let order = CleanupOrder {
        name: config.name.clone(),
        deployment: config.deployment,
        uid: config.uid,
        leave: Leave::Nothing,
        grace_ms: grace.as_millis() as u64,
        processes: Vec::new(),
        storage: Vec::new(),
        logs: if shared { Vec::new() } else { vec![config.log_file.clone()] },
        voters: vec![DaemonConfig::voter_dir(&config.deployment_dir, config.node)],
        only,
    };
    if let Err(error) = cleanup::clean(&order) {
        tracing::error!(%error, "not everything could be removed");
    }
}
