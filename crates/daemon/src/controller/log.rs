//! The map as a log of changes: what is proposed, in one order, and never lost.
//!
//! A change is *committed* once its line stands in `changes.log` on stable storage; then it is applied, which
//! raises the epoch by one, and `map.json` is replaced by a snapshot. Whoever recovers takes the snapshot and
//! applies the lines that are newer; a line that a crash tore off was never committed and is forgotten.
//!
//! Today there is one controller. Several replicas of it could keep this interface ([`MapLog::propose`],
//! [`MapLog::map`]) and commit a change when a majority of them has the line.

use super::ControllerError;
use bivouac_layout::{Epoch, Map, MapChange};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the snapshot in the deployment's directory.
pub const SNAPSHOT: &str = "map.json";
/// Name of the log beside it.
pub const LOG: &str = "changes.log";
/// The log starts anew when it is longer than this, bytes: the snapshot has all of it.
const LOG_LIMIT: u64 = 1 << 20;
/// Longest file that is read, bytes: maps of thousands of servers, and changes up to the next snapshot.
const LONGEST: usize = 1 << 30;

/// A committed change.
#[derive(Serialize, Deserialize)]
struct Line {
    /// The epoch that it made.
    epoch: Epoch,
    change: MapChange,
}

/// The log and the map that it leads to.
#[derive(Debug)]
pub struct MapLog {
    dir: PathBuf,
    file: File,
    len: u64,
    map: Arc<Map>,
}

impl MapLog {
    /// Begins with `map`, which replaces what was in `dir`. (A crash in between leaves a log whose changes are
    /// in the map already, and which are not applied again.)
    pub fn found(dir: &Path, map: Map) -> Result<MapLog, ControllerError> {
        write_snapshot(dir, &map)?;
        let path = dir.join(LOG);
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path)
            .and_then(|file| file.sync_all().map(|()| file))
            .map_err(|cause| ControllerError::Store { path, cause })?;
        Ok(MapLog { dir: dir.to_owned(), file, len: 0, map: Arc::new(map) })
    }

    /// Goes on with the newest map that was committed in `dir`.
    pub fn resume(dir: &Path) -> Result<MapLog, ControllerError> {
        MapLog::found(dir, MapLog::recover(dir)?)
    }

    /// The newest map that was committed in `dir`.
    pub fn recover(dir: &Path) -> Result<Map, ControllerError> {
        let path = dir.join(SNAPSHOT);
        let store = |path: &Path, cause| ControllerError::Store { path: path.to_owned(), cause };
        let text = read(&path).map_err(|cause| match cause.kind() {
            std::io::ErrorKind::NotFound => ControllerError::NotFounded,
            _ => store(&path, cause),
        })?;
        let damaged = |what: String| ControllerError::Damaged { path: path.clone(), what };
        let mut map: Map = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        map.check().map_err(|e| damaged(e.to_owned()))?;
        let path = dir.join(LOG);
        let log = match read(&path) {
            Ok(log) => log,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(store(&path, cause)),
        };
        for line in log.split(|byte| *byte == b'\n') {
            // A torn line can only be the last one, and was not committed.
            let Ok(Line { epoch, change }) = serde_json::from_slice(line) else {
                break;
            };
            if epoch.0 == map.epoch.0 + 1 {
                map = change.apply(&map).ok_or_else(|| ControllerError::Damaged {
                    path: path.clone(),
                    what: "a change names an unknown server".into(),
                })?;
            }
        }
        Ok(map)
    }

    /// Commits a change and applies it. On an error the map is as before.
    pub fn propose(&mut self, change: MapChange) -> Result<Arc<Map>, ControllerError> {
        let next = change.apply(&self.map).ok_or(ControllerError::UnknownServer)?;
        let mut line = serde_json::to_vec(&Line { epoch: next.epoch, change }).map_err(|e| {
            ControllerError::Store { path: self.dir.join(LOG), cause: std::io::Error::other(e) }
        })?;
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(cause) = written {
            // A part of this line must not remain in front of the next one.
            let _ = self.rewind();
            return Err(ControllerError::Store { path: self.dir.join(LOG), cause });
        }
        self.len += line.len() as u64;
        self.map = Arc::new(next);
        // The change is committed. If the snapshot fails now, the next one will contain the change.
        match write_snapshot(&self.dir, &self.map) {
            Ok(()) if self.len > LOG_LIMIT => {
                self.len = 0;
                let _ = self.rewind();
            }
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "snapshot of the map not written; the log has it"),
        }
        Ok(self.map.clone())
    }

    /// The current map.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Truncates the file to what was committed.
    fn rewind(&mut self) -> std::io::Result<()> {
        use std::io::{Seek, SeekFrom};
        self.file.set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len)).map(|_| ())
    }
}

/// Replaces the snapshot: readers see the old one or the new one, also after a crash.
fn write_snapshot(dir: &Path, map: &Map) -> Result<(), ControllerError> {
    let path = dir.join(SNAPSHOT);
    let fresh = dir.join("map.json.new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(map)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|cause| ControllerError::Store { path: path.clone(), cause })
}

/// All of a file that a controller of this user has written.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    Ok(bivouac_node::file::read(path, LONGEST)?)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{scratch, two_servers};
    use super::*;
    use bivouac_layout::{ServerId, ServerState};

    fn down(server: u16) -> MapChange {
        MapChange::State { server: ServerId(server), state: ServerState::Down }
    }

    #[test]
    fn committed_changes_survive_a_lost_snapshot() {
        let dir = scratch("log-snapshot");
        let mut log = MapLog::found(dir.path(), two_servers()).expect("founds");
        let old_snapshot = std::fs::read(dir.path().join(SNAPSHOT)).expect("a snapshot");
        log.propose(down(1)).expect("commits");
        let moved = MapChange::Resumed {
            agents: Vec::new(),
            servers: vec![(ServerId(0), "10.0.0.1:9".parse().expect("address"))],
        };
        let newest = log.propose(moved).expect("commits");
        assert_eq!(MapLog::recover(dir.path()).expect("recovers"), *newest);
        std::fs::write(dir.path().join(SNAPSHOT), old_snapshot).expect("an older snapshot");
        let recovered = MapLog::recover(dir.path()).expect("recovers");
        assert_eq!(recovered, *newest);
        assert_eq!(recovered.epoch, Epoch(3));
        assert_eq!(recovered.server(ServerId(1)).expect("listed").state, ServerState::Down);
    }

    #[test]
    fn a_log_torn_at_any_byte_recovers_what_was_committed_before() {
        let dir = scratch("log-torn");
        let mut log = MapLog::found(dir.path(), two_servers()).expect("founds");
        let snapshot = std::fs::read(dir.path().join(SNAPSHOT)).expect("a snapshot");
        log.propose(down(0)).expect("commits");
        log.propose(down(1)).expect("commits");
        let whole = std::fs::read(dir.path().join(LOG)).expect("a log");
        let first = whole.iter().position(|b| *b == b'\n').expect("lines");
        std::fs::write(dir.path().join(SNAPSHOT), snapshot).expect("the first snapshot");
        for cut in 0..=whole.len() {
            std::fs::write(dir.path().join(LOG), &whole[..cut]).expect("a torn log");
            let epoch = MapLog::recover(dir.path()).expect("recovers").epoch;
            // A line without its newline is whole all the same.
            let expected = 1 + u64::from(cut >= first) + u64::from(cut >= whole.len() - 1);
            assert_eq!(epoch, Epoch(expected), "cut at {cut}");
        }
    }

    #[test]
    fn a_change_of_an_unknown_server_changes_nothing() {
        let dir = scratch("log-unknown");
        let mut log = MapLog::found(dir.path(), two_servers()).expect("founds");
        assert!(matches!(log.propose(down(9)), Err(ControllerError::UnknownServer)));
        assert_eq!(log.map().epoch, Epoch(1));
        assert_eq!(MapLog::recover(dir.path()).expect("recovers").epoch, Epoch(1));
    }

    #[test]
    fn a_damaged_snapshot_is_an_error_and_no_panic() {
        let dir = scratch("log-damaged");
        MapLog::found(dir.path(), two_servers()).expect("founds");
        for text in ["", "{}", "[]", "\u{0}"] {
            std::fs::write(dir.path().join(SNAPSHOT), text).expect("writes");
            assert!(matches!(MapLog::recover(dir.path()), Err(ControllerError::Damaged { .. })), "{text:?}");
        }
    }
}
