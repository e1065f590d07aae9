//! Sub-files that the storage has failed to read a moment ago.
//!
//! Reads leave by `sendfile`, behind a header that has promised them. When the storage fails then, the answer
//! cannot be taken back: the connection ends, and the client asks again. A sub-file to which that happened is
//! *suspect* for a while: it is read before anything is answered, so that the repetition gets the error.

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
    /// There may be any. Looked at before each read.
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
