//! Traces: notes that daemons leave on their own host, so that they can be found there.
//!
//! Each leaves a file in the deployment's run directory before it serves: who it is, and what it made. `exec`
//! and `env` learn from it what the deployment is on any node of the job, also where home directories are not
//! shared; `down` finds what a killed daemon has left.

use crate::error::Error;
use crate::home::{DaemonRecord, LauncherKind, Record, read_own, uid, write_private};
use crate::process::ProcessId;
use bivouac_layout::ServerId;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const PREFIX: &str = "daemon-";
const SUFFIX: &str = ".json";
/// How often the run directory is made again at most.
const REMAKES: usize = 100;

/// One daemon's note.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// The deployment's number.
    pub deployment: u64,
    /// Its name.
    pub name: String,
    /// Where programs see the file system.
    pub mount: String,
    /// Whether this daemon is its node's agent.
    pub agent: bool,
    /// The deployment's directory.
    pub home: PathBuf,
    /// The process.
    pub process: ProcessId,
    /// The storage directories that were made for it.
    pub storage: Vec<PathBuf>,
    /// Its log.
    pub log: PathBuf,
    /// Where it listens, once it does.
    #[serde(default)]
    pub address: Option<SocketAddr>,
    /// It was told to end: nobody has to start it again.
    #[serde(default)]
    pub ending: bool,
}

/// What the note of a server is called.
pub fn server_label(server: ServerId, succession: u32) -> String {
    format!("server-{}", numbered(server, succession))
}

/// A server's number, and behind a dot how often it was given to another process with new storage.
pub fn numbered(server: ServerId, succession: u32) -> String {
    match succession {
        0 => server.to_string(),
        more => format!("{server}.{more}"),
    }
}

/// Writes a note.
pub fn leave(run_dir: &Path, label: &str, trace: &Trace) -> Result<(), Error> {
    let path = file(run_dir, label);
    let json = serde_json::to_vec(trace).map_err(|e| Error::file("write", &path, e.into()))?;
    write_private(&path, &json)
}

/// Writes a daemon's first note. Another daemon of its node that could not start takes the directory along as long as nothing
/// is in it: then it is made `again`.
pub fn leave_first(
    run_dir: &Path,
    label: &str,
    trace: &Trace,
    again: impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    for _ in 0..REMAKES {
        if leave(run_dir, label, trace).is_ok() {
            return Ok(());
        }
        again()?;
    }
    leave(run_dir, label, trace)
}

/// Removes a note, and the run directory with the last one if nothing else is in it.
pub fn forget(run_dir: &Path, label: &str) {
    let _ = std::fs::remove_file(file(run_dir, label));
    remove_if_empty(run_dir);
}

/// Removes the run directory, and the one above, if they are empty.
pub fn remove_if_empty(run_dir: &Path) {
    if std::fs::remove_dir(run_dir).is_ok()
        && let Some(parent) = run_dir.parent()
    {
        let _ = std::fs::remove_dir(parent);
    }
}

fn file(run_dir: &Path, label: &str) -> PathBuf {
    run_dir.join(format!("{PREFIX}{label}{SUFFIX}"))
}

/// All notes in a run directory, with their files. What cannot be read is left out.
pub fn all(run_dir: &Path) -> Vec<(PathBuf, Trace)> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    entries
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.starts_with(PREFIX) && n.ends_with(SUFFIX)))
        .filter_map(|e| Some((e.path(), serde_json::from_slice(&read_own(&e.path()).ok()?).ok()?)))
        .collect()
}

/// The note of a daemon of this deployment.
pub fn of(run_dir: &Path, label: &str, deployment: u64) -> Option<Trace> {
    let trace: Trace = serde_json::from_slice(&read_own(&file(run_dir, label)).ok()?).ok()?;
    (trace.deployment == deployment).then_some(trace)
}

/// The process of a daemon as it is now: its agent may have started it again. What was recorded counts where its host
/// is another machine, or it has left no note.
pub fn process(record: &Record, daemon: &DaemonRecord) -> Option<ProcessId> {
    let is_here = daemon.launcher != LauncherKind::Ssh;
    let run_dir = bivouac_node::place::find(uid(), &record.name).filter(|_| is_here).map(PathBuf::from);
    let trace = run_dir.and_then(|run_dir| of(&run_dir, &daemon.label(), record.deployment));
    trace.map(|trace| trace.process).or(daemon.process)
}

/// The note of an agent that is alive on this machine.
pub fn agent(run_dir: &Path) -> Option<Trace> {
    all(run_dir).into_iter().map(|(_, trace)| trace).find(|t| t.agent && t.process.is_alive())
}

/// Refuses a run directory that another deployment of the same name uses or has left.
pub fn check_stranger(run_dir: &Path, deployment: u64) -> Result<(), Error> {
    let Some((path, stranger)) = all(run_dir).into_iter().find(|(_, t)| t.deployment != deployment) else {
        return Ok(());
    };
    let home = stranger.home.parent().unwrap_or(&stranger.home).display();
    let down = format!("BIVOUAC_HOME={home} bivouac down {}", stranger.name);
    if stranger.process.is_alive() {
        Err(Error::refused(
            format!(
                "another deployment named {:?} runs here (process {})",
                stranger.name, stranger.process.pid
            ),
            format!("use another name, or take that one down: `{down}`"),
        ))
    } else {
        Err(Error::refused(
            format!(
                "another deployment named {:?} has crashed here and left {}",
                stranger.name,
                path.display()
            ),
            format!(
                "use another name, or clean up: `{down}`; if that does not know it, remove {}",
                run_dir.display()
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(deployment: u64, process: ProcessId) -> Trace {
        Trace {
            deployment,
            name: "job".into(),
            mount: "/m".into(),
            agent: true,
            home: "/home/u/.bivouac/job".into(),
            process,
            storage: Vec::new(),
            log: "/x".into(),
            address: None,
            ending: false,
        }
    }

    #[test]
    fn a_daemon_beside_one_that_cannot_start_leaves_its_note() {
        let dir = std::env::temp_dir().join(format!("bivouac-traces-beside-{}", std::process::id()));
        let run_dir = dir.join("job");
        let make = || std::fs::create_dir_all(&run_dir).map_err(|error| Error::file("make", &run_dir, error));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = std::fs::remove_dir(&run_dir);
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            for _ in 0..300 {
                let _ = make();
                let left = leave_first(&run_dir, "agent-0", &trace(1, ProcessId::own()), make);
                left.expect("somebody only removes the directory while it is empty");
                forget(&run_dir, "agent-0");
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let _ = std::fs::remove_dir_all(&dir);
    }

    #[test]
    fn notes_are_found_and_the_directory_goes_with_the_last() {
        let dir = std::env::temp_dir().join(format!("bivouac-traces-{}", std::process::id()));
        let run_dir = dir.join("job");
        std::fs::create_dir_all(&run_dir).expect("makes it");
        let dead = ProcessId { pid: ProcessId::own().pid, start: 1 };
        leave(&run_dir, "server-0", &trace(1, dead)).expect("writes");
        assert!(agent(&run_dir).is_none(), "a dead agent is none");
        leave(&run_dir, "server-1", &trace(1, ProcessId::own())).expect("writes");
        std::fs::write(run_dir.join("daemon-junk.json"), "junk").expect("writes");
        assert_eq!(all(&run_dir).len(), 2);
        assert_eq!(agent(&run_dir).expect("is alive").mount, "/m");
        check_stranger(&run_dir, 1).expect("its own deployment");
        let refused = check_stranger(&run_dir, 2).expect_err("another deployment");
        assert!(
            refused.remedy().expect("a remedy").contains("BIVOUAC_HOME=/home/u/.bivouac bivouac down job")
        );
        std::fs::remove_file(run_dir.join("daemon-junk.json")).expect("removes");
        forget(&run_dir, "server-0");
        assert!(run_dir.exists());
        forget(&run_dir, "server-1");
        assert!(!dir.exists());
    }
}
