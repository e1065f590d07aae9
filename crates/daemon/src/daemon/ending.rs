//! How a daemon ends.

use std::sync::{Condvar, Mutex, PoisonError};

/// Why a daemon ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was told to; its storage stays or goes.
    Told {
        /// The storage stays.
        keep: bool,
    },
    /// The `run` that made the deployment has ended, and nobody is the controller, so that nobody could tell
    /// this daemon. Its storage is removed.
    Deserted,
    /// Another process has this server's number. Its storage stays.
    Replaced,
    /// Its node, of which it is the agent, is one of the deployment no more.
    Left,
}

/// How a daemon is told to stop.
#[derive(Default)]
pub(crate) struct Ending {
    told: Mutex<Option<End>>,
    changed: Condvar,
}

impl Ending {
    /// Tells the daemon to stop. The first reason counts.
    pub(crate) fn tell(&self, end: End) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.changed.notify_all();
    }

    /// Whether the daemon was told.
    pub(crate) fn is_told(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until told.
    pub(crate) fn wait(&self) -> End {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(end) = *told {
                return end;
            }
            told = self.changed.wait(told).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
