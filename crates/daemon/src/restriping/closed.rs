//! Files of which nothing is changed for a moment. Who closes a file waits for changes that have begun before
//! ([`super::flights`]); those that begin later look here, and are refused.

use bivouac_layout::Ino;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct ClosedFiles {
    /// How many there are: most often none, and nobody has to look at them.
    count: AtomicUsize,
    files: Mutex<BTreeSet<Ino>>,
}

/// A file is closed until this is dropped. (One closes a file at a time.)
pub(super) struct Closed<'c>(&'c ClosedFiles, Ino);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut files = self.0.files();
        files.remove(&self.1);
        self.0.count.store(files.len(), Ordering::SeqCst);
    }
}

impl ClosedFiles {
    fn files(&self) -> MutexGuard<'_, BTreeSet<Ino>> {
        // Ignores poisoning: each change is a single insertion or removal.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, changes that begin are refused.
    pub(super) fn close(&self, ino: Ino) -> Closed<'_> {
        let mut files = self.files();
        files.insert(ino);
        self.count.store(files.len(), Ordering::SeqCst);
        Closed(self, ino)
    }

    /// Whether a file is closed.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.files().contains(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_closed_until_what_closes_it_is_dropped() {
        let closed = ClosedFiles::default();
        let one = closed.close(Ino(1));
        let two = closed.close(Ino(2));
        assert_eq!([1, 2, 3].map(|ino| closed.has(Ino(ino))), [true, true, false]);
        drop(one);
        assert_eq!([1, 2].map(|ino| closed.has(Ino(ino))), [false, true]);
        drop(two);
        assert!(!closed.has(Ino(2)));
    }
}
