//! Cleaning one host of a deployment: processes, mounts, storage, run directory, logs.
//!
//! It has two sources: the order (what `up` has recorded), and the traces on the host itself, so that it also
//! finds daemons of an `up` that was killed before it could record them. It removes nothing that these do not
//! name, and nothing of another deployment with the same name. It may be repeated, and then finds nothing
//! more.

use super::traces;
use crate::error::Error;
use crate::home;
use crate::launch::{CleanupOrder, Leave};
use crate::mounts;
use crate::process::ProcessId;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long those may take to end that an agent has started at the last moment.
const AFTER_AGENTS: Duration = Duration::from_millis(500);
/// Daemons are looked for so many times at most: after the first round no agent is left that could start one.
const ROUNDS: u32 = 4;

/// Does it.
pub fn clean(order: &CleanupOrder) -> Result<(), Error> {
    let run_dir = bivouac_node::place::find(order.uid, &order.name).map(PathBuf::from);
    if let Some(label) = &order.only {
        return clean_one(order, run_dir.as_deref(), label);
    }
    let all = || run_dir.as_deref().map(traces::all).unwrap_or_default();
    let mut processes: Vec<ProcessId> = order.processes.clone();
    let (mut grace, mut rounds) = (Duration::from_millis(order.grace_ms), 0);
    let (ours, strangers) = loop {
        let (ours, strangers): (Vec<_>, Vec<_>) =
            all().into_iter().partition(|(_, trace)| trace.deployment == order.deployment);
        processes.extend(ours.iter().map(|(_, t)| t.process));
        processes.retain(|process| *process != ProcessId::own() && process.is_alive());
        rounds += 1;
        if processes.is_empty() || rounds > ROUNDS {
            break (ours, strangers);
        }
        end_all(&processes, grace)?;
        // An agent may have started a server again before it ended: who is found now has not heard of the end.
        grace = AFTER_AGENTS;
    };
    let mut storage: Vec<PathBuf> = order.storage.clone();
    storage.extend(ours.iter().flat_map(|(_, t)| t.storage.clone()));
    storage.sort();
    storage.dedup();
    if strangers.is_empty() && order.leave != Leave::Mounts {
        mounts::take_away_of(&order.name, order.uid);
    }
    if order.leave == Leave::Nothing {
        for path in &storage {
            remove_storage(path)?;
        }
        order.voters.iter().for_each(|directory| home::remove_voter(directory));
        remove_logs(order);
    }
    for (file, _) in &ours {
        let _ = std::fs::remove_file(file);
    }
    if let Some(run_dir) = run_dir
        && strangers.is_empty()
    {
        remove_run_dir(&run_dir, order.leave);
    }
    Ok(())
}

/// Ends one daemon of a deployment that goes on, and removes what it has left.
fn clean_one(order: &CleanupOrder, run_dir: Option<&Path>, label: &str) -> Result<(), Error> {
    let trace = run_dir.and_then(|run_dir| traces::of(run_dir, label, order.deployment));
    let mut processes = order.processes.clone();
    processes.extend(trace.iter().map(|trace| trace.process));
    processes.retain(|process| *process != ProcessId::own() && process.is_alive());
    // Its agent must not start it again meanwhile.
    if let (Some(run_dir), Some(trace)) = (run_dir, &trace) {
        traces::leave(run_dir, label, &traces::Trace { ending: true, ..trace.clone() })?;
    }
    end_all(&processes, Duration::from_millis(order.grace_ms))?;
    if order.leave == Leave::Nothing {
        for path in order.storage.iter().chain(trace.iter().flat_map(|trace| &trace.storage)) {
            remove_storage(path)?;
        }
        order.voters.iter().for_each(|directory| home::remove_voter(directory));
        remove_logs(order);
    }
    if let Some(run_dir) = run_dir {
        traces::forget(run_dir, label);
        // The last daemon of a host: an agent that was killed leaves a key and more.
        if order.leave == Leave::Nothing && trace.is_some() && traces::all(run_dir).is_empty() {
            remove_run_dir(run_dir, order.leave);
        }
    }
    Ok(())
}

/// They share one grace time.
fn end_all(processes: &[ProcessId], grace: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + grace;
    for process in processes {
        if !process.end(deadline.saturating_duration_since(Instant::now())) {
            return Err(Error::Unanswered {
                cause: format!("the daemon with process number {} cannot be ended", process.pid),
                remedy: "it hangs in the kernel; try again later".into(),
            });
        }
    }
    Ok(())
}

/// Removes a storage directory that Bivouac made: one that is named as such, a directory, and the user's own.
fn remove_storage(path: &Path) -> Result<(), Error> {
    let named = path
        .file_name()
        .and_then(|n| n.to_str())
        .is_some_and(|n| n.starts_with("bivouac-") || n.starts_with("storage-"));
    let own = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta.is_dir() && home::is_own(&meta),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::file("examine", path, e)),
    };
    if !(named && own && path.is_absolute()) {
        return Err(Error::refused(
            format!("{} does not look like a storage directory of yours", path.display()),
            "look at it, and remove it by hand",
        ));
    }
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::file("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes the key, the marks of warnings, and the node directories unless storage is kept: programs that
/// live on have files open by them, which the next agents of the nodes take over. Then the run directory, if
/// nothing stays in it.
fn remove_run_dir(run_dir: &Path, leave: Leave) {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("node-") {
            if leave == Leave::Nothing {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        } else if name == "key" || name.starts_with("key.") || name.starts_with(bivouac_node::bypass::MARK) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    traces::remove_if_empty(run_dir);
}

/// Logs go with the deployment's directory where that is shared; elsewhere the host has its own.
fn remove_logs(order: &CleanupOrder) {
    for log in &order.logs {
        let _ = std::fs::remove_file(log);
        let mut directory = log.parent();
        // The logs' directory, and the deployment's.
        for _ in 0..2 {
            if let Some(path) = directory {
                let _ = std::fs::remove_dir(path);
                directory = path.parent();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(storage: Vec<PathBuf>, leave: Leave) -> CleanupOrder {
        CleanupOrder {
            name: format!("cleanup-test-{}", std::process::id()),
            deployment: 5,
            uid: home::uid(),
            leave,
            grace_ms: 0,
            processes: Vec::new(),
            storage,
            logs: Vec::new(),
            voters: Vec::new(),
            only: None,
        }
    }

    #[test]
    fn only_what_bivouac_made_is_removed() {
        let dir = std::env::temp_dir().join(format!("bivouac-cleanup-{}", std::process::id()));
        let storage = dir.join("bivouac-job-0");
        let precious = dir.join("precious");
        std::fs::create_dir_all(storage.join("deep/er")).expect("makes it");
        std::fs::create_dir_all(&precious).expect("makes it");
        std::os::unix::fs::symlink(&precious, dir.join("bivouac-link")).expect("links");
        clean(&order(vec![storage.clone()], Leave::Storage)).expect("cleans");
        assert!(storage.exists(), "kept");
        clean(&order(vec![storage.clone()], Leave::Nothing)).expect("cleans");
        assert!(!storage.exists());
        clean(&order(vec![storage], Leave::Nothing)).expect("may be repeated");
        for bad in [precious.clone(), dir.join("bivouac-link")] {
            assert!(matches!(clean(&order(vec![bad], Leave::Nothing)), Err(Error::Refused { .. })));
        }
        assert!(precious.exists());
        std::fs::remove_dir_all(dir).expect("cleans up");
    }

    #[test]
    fn processes_get_their_grace_and_then_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("spawns");
        let process = ProcessId::of(child.id()).expect("runs");
        let order =
            CleanupOrder { processes: vec![process], grace_ms: 50, ..order(Vec::new(), Leave::Nothing) };
        let start = Instant::now();
        clean(&order).expect("cleans");
        assert!(start.elapsed() >= Duration::from_millis(50) && !process.is_alive());
        child.wait().expect("reaped");
    }
}
