//! Bringing a deployment back whose daemons are gone, on the storage that it had. If that fails, its storage stays as
//! it was.
//!
//! Where everything has copies, the deployment also comes back without hosts that cannot be reached, and without servers
//! whose storage is gone: for the map they are down, and others serve what they hold, as when they die while it runs.

use crate::args::ServerArgs;
use crate::daemon::traces;
use crate::down;
use crate::error::Error;
use crate::home::DaemonRecord;
use crate::home::{Directory, LauncherKind, Lock, Record, State};
use crate::launch::Leave;
use crate::leader;
use crate::up::{Started, begin, launch_each};
use bivouac_proto::auth::Key;
use bivouac_proto::control::ControlRequest;
use std::time::{Duration, Instant};

/// How long a process may take to end after it was killed.
const DYING: Duration = Duration::from_secs(2);

/// Whether the daemons of this machine are gone. Those that were killed just now are waited for: a process takes
/// a while to free its memory. Those elsewhere cannot be seen; their agents would answer.
fn are_gone(record: &Record) -> bool {
    let alive = |daemon: &DaemonRecord| {
        daemon.launcher != LauncherKind::Ssh
            && traces::process(record, daemon).is_some_and(|process| process.is_alive())
    };
    let start = Instant::now();
    while record.daemons.iter().any(alive) {
        if start.elapsed() > DYING {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Brings a deployment back whose daemons are gone.
pub fn resume(
    directory: &Directory,
    mut record: Record,
    args: &ServerArgs,
    lock: &Lock,
) -> Result<Started, Error> {
    let name = &directory.name;
    let key = directory.key()?;
    if leader::anybody(&record, &key) || !are_gone(&record) {
        return Err(Error::refused(
            format!("the deployment {name:?} runs already"),
            format!(
                "use it with `bivouac exec {name}`, take it down with `bivouac down {name}`, or use another name"
            ),
        ));
    }
    let whole = record.daemons.iter().all(|d| d.server.is_none() || !d.storage.is_empty());
    if !whole {
        return Err(Error::refused(
            format!("the deployment {name:?} was left behind half started"),
            format!("remove what is left of it with `bivouac down {name}`"),
        ));
    }
    let asks_for_others = args.servers.is_some()
        || args.hosts.is_some()
        || !args.storage.is_empty()
        || args.width.is_some_and(|width| width.0 != record.width)
        || args.first.is_some_and(|first| first.first() != record.first)
        || args.replicas.is_some_and(|replicas| replicas != record.replicas)
        || args.metadata_replicas.is_some_and(|replicas| replicas != record.metadata_replicas)
        || args.min_copies.is_some_and(|copies| copies != record.min_copies)
        || args.heal_after.is_some_and(|seconds| seconds != record.heal_after)
        || args.heal_rate.is_some_and(|rate| rate != record.heal_rate)
        || args.lease.is_some_and(|millis| millis != record.lease)
        || args.failure_domain.is_some()
        || (args.mount != "/bivouac" && args.mount != record.mount);
    if asks_for_others {
        return Err(Error::refused(
            format!("the deployment {name:?} exists, with its own servers, storage, layout and mount path"),
            format!("`bivouac up {name}` without options brings it back; or use another name"),
        ));
    }
    // Stragglers, and the run directories of the earlier life.
    let unclean = down::clean_each_host(directory, &record, Leave::Mounts, Duration::from_millis(500));
    let has_copies = record.metadata_replicas > 1;
    let unclean = match has_copies {
        true => unclean,
        false => Error::of_all(unclean.into_iter().map(|(_, error)| Err(error))).map(|()| Vec::new())?,
    };
    record.state = State::Starting;
    record.ephemeral = false;
    record.restarts = args.restarts.unwrap_or(record.restarts);
    directory.save(&record)?;
    let started = start(&mut record, &key, directory, unclean).and_then(|missing| {
        record.state = State::Running;
        directory.save(&record)?;
        Ok(missing)
    });
    match started {
        Ok(missing) => {
            missing.iter().for_each(|(daemon, error)| tell(&record, *daemon, error));
            Ok(Started { directory: directory.clone(), record, key, resumed: true })
        }
        Err(error) => {
            if let Err(left) = down::take_down(directory, &record, true, lock) {
                left.show();
            }
            Err(error)
        }
    }
}

/// Starts what can be started, and has it go on. Which daemons are missing (by their places in the record), and why.
fn start(
    record: &mut Record,
    key: &Key,
    directory: &Directory,
    unclean: Vec<(String, Error)>,
) -> Result<Vec<(usize, Error)>, Error> {
    let before: Vec<_> = record.daemons.iter().map(|d| (d.process, d.address)).collect();
    for daemon in &mut record.daemons {
        (daemon.process, daemon.address) = (None, None);
    }
    let mut failures = launch_each(record, key, directory, true);
    for (host, error) in unclean {
        // What is left there may be in the way of what was started, if it could be.
        let mut of_host = record.daemons.iter().zip(&mut failures).filter(|(d, _)| d.host == host);
        if let Some((_, failure)) = of_host.next() {
            failure.get_or_insert(error);
        }
    }
    let failed = record.daemons.iter().zip(&failures);
    let is_missing: Vec<bool> = failed.map(|(d, failure)| failure.is_some() && d.process.is_none()).collect();
    for ((daemon, is_missing), before) in record.daemons.iter_mut().zip(&is_missing).zip(before) {
        if *is_missing {
            // Where the others look for it when it is back.
            (daemon.process, daemon.address) = before;
        }
    }
    directory.save(record)?;
    let started: Vec<&DaemonRecord> =
        record.daemons.iter().zip(&is_missing).filter(|(_, missing)| !**missing).map(|(d, _)| d).collect();
    let agents: Vec<_> =
        started.iter().filter(|d| d.agent).filter_map(|d| Some((d.node, d.address?))).collect();
    let servers = started.iter().filter_map(|d| d.server.zip(d.address)).collect();
    let mut missing: Vec<(usize, Error)> =
        failures.into_iter().enumerate().filter_map(|(at, e)| Some((at, e?))).collect();
    let can_be_missed = |error: &Error| {
        matches!(error, Error::Launch { .. } | Error::Unreached { .. } | Error::Unanswered { .. })
    };
    let cannot_go_on =
        |error: &Error| record.metadata_replicas == 1 || agents.is_empty() || !can_be_missed(error);
    if let Some(at) = missing.iter().position(|(_, error)| cannot_go_on(error)) {
        return Err(missing.swap_remove(at).1);
    }
    // Any agent can do it.
    let is_there = |d: &DaemonRecord, is_missing: bool| d.agent && !is_missing;
    let first = record.daemons.iter().zip(&is_missing).position(|(d, m)| d.first && is_there(d, *m));
    let first = first.or_else(|| record.daemons.iter().zip(&is_missing).position(|(d, m)| is_there(d, *m)));
    for (at, daemon) in record.daemons.iter_mut().enumerate() {
        daemon.first = Some(at) == first;
    }
    directory.save(record)?;
    begin(record, key, ControlRequest::Resume { agents, servers })?;
    Ok(missing)
}

/// Tells the user what is missing.
fn tell(record: &Record, daemon: usize, error: &Error) {
    let Some(daemon) = record.daemons.get(daemon) else { return };
    eprintln!("bivouac: {} of {} is not back: {error}", daemon.label(), record.name);
    if let Some(server) = daemon.server {
        eprintln!(
            "  others serve what it holds, and get it copied after a while; `bivouac restart {0} {server}` starts it when its \
             host and storage are there again, `bivouac replace` has another host take its place",
            record.name
        );
    }
}
