//! Sub-files that the storage has failed to read a moment ago.
//!
//! The server sends the header of an answer, which says how many bytes follow, and then the bytes by
//! `sendfile`. If the storage fails to read them then, the server cannot change the answer any more: it ends
//! the connection, and the client asks again. A sub-file to which this happened is *suspect* for a while: the
//! server reads from it before it sends a header, so that the repeated request gets the error.

use bivouac_layout::Ino;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// For so long: longer than anybody waits with a repetition.
const SUSPECT: Duration = Duration::from_secs(60);

/// The suspects.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Whether there may be suspects: looked at before each read.
    any: AtomicBool,
    since: Mutex<HashMap<Ino, Instant>>,
}

impl Suspects {
    pub(crate) fn add(&self, ino: Ino) {
        let now = Instant::now();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.insert(ino, now);
        since.retain(|_, when| now - *when < SUSPECT);
        self.any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, when| when.elapsed() < SUSPECT);
        self.any.store(!since.is_empty(), Ordering::Relaxed);
        since.contains_key(&ino)
    }
}
