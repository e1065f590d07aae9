//! Which locks this process may hold, as far as it has to mind them at its closes and at its end (see `crate::locks`).

use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// What this process has locked. (A fork's child begins with another.)
#[derive(Default)]
pub(crate) struct Held {
    /// Inodes with process locks.
    files: Mutex<HashSet<Ino>>,
    /// Servers that the agent knows of, and how often it had been restarted when it was told.
    servers: Mutex<HashMap<ServerId, u64>>,
    /// Servers where programs before this one, in this process, had locks.
    before: Vec<ServerId>,
    /// Inodes at those servers on which no locks of such programs are left.
    cleared: Mutex<HashSet<Ino>>,
}

impl Held {
    /// For a process that the agent, restarted so often, has told that programs before it in this process had
    /// locks at `before`.
    pub(crate) fn new(before: Vec<ServerId>, restarts: u64) -> Held {
        let servers = before.iter().map(|server| (*server, restarts)).collect();
        Held { servers: Mutex::new(servers), before, ..Held::default() }
    }

    /// Whether the agent, restarted so often, knows that this process has locks at a server.
    pub(crate) fn is_announced(&self, server: ServerId, restarts: u64) -> Result<bool, Errno> {
        Ok(self.servers.lock().map_err(|_| Errno::NOLCK)?.get(&server) == Some(&restarts))
    }

    /// The agent, restarted so often, was told.
    pub(crate) fn announced(&self, server: ServerId, restarts: u64) -> Result<(), Errno> {
        self.servers.lock().map_err(|_| Errno::NOLCK)?.insert(server, restarts);
        Ok(())
    }

    /// Notes that there are process locks on a file.
    pub(crate) fn note(&self, ino: Ino) -> Result<(), Errno> {
        self.files.lock().map_err(|_| Errno::NOLCK)?.insert(ino);
        Ok(())
    }

    /// Whether there may be process locks on a file at a server.
    pub(crate) fn may_have(&self, ino: Ino, server: ServerId) -> bool {
        self.files.lock().is_ok_and(|files| files.contains(&ino))
            || self.before.contains(&server)
                && self.cleared.lock().is_ok_and(|cleared| !cleared.contains(&ino))
    }

    /// Notes that there are none any more. Returns whether there may have been some.
    pub(crate) fn clear(&self, ino: Ino, server: ServerId) -> bool {
        let had = self.files.lock().is_ok_and(|mut files| files.remove(&ino));
        let cleared = || self.cleared.lock().is_ok_and(|mut cleared| cleared.insert(ino));
        self.before.contains(&server) && cleared() || had
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty() && self.files.lock().is_ok_and(|files| files.is_empty())
    }
}
