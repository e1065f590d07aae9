//! Where files are that programs have open through I/O nodes, as these have told this server, in case they die.
//!
//! It can be wrong by now: whoever finds a file by it looks whether it is the same one.

use crate::recent::Recent;
use bivouac_layout::Ino;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files that are remembered, at most; those that were not told of for longest are forgotten.
const REMEMBERED: usize = 64 << 10;

/// See the module.
pub struct Entrusted(Mutex<Recent<PathBuf>>);

impl Default for Entrusted {
    fn default() -> Entrusted {
        Entrusted(Mutex::new(Recent::new(REMEMBERED)))
    }
}

impl Entrusted {
    fn paths(&self) -> MutexGuard<'_, Recent<PathBuf>> {
        // Ignores poisoning: each change is a single insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is at this path, relative to the forwarded directory.
    pub fn note(&self, ino: Ino, path: &Path) {
        self.paths().insert(ino, path.to_path_buf());
    }

    /// Where a file was last.
    pub fn find(&self, ino: Ino) -> Option<PathBuf> {
        self.paths().peek(ino).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_path_counts_and_what_was_not_told_of_for_longest_is_forgotten() {
        let entrusted = Entrusted::default();
        let ino = |number: usize| Ino::forwarded(number as u64);
        for number in 1..=REMEMBERED {
            entrusted.note(ino(number), Path::new("a"));
        }
        entrusted.note(ino(1), Path::new("b"));
        assert_eq!(entrusted.find(ino(1)), Some("b".into()));
        entrusted.note(ino(REMEMBERED + 1), Path::new("c"));
        assert_eq!(entrusted.find(ino(1)), Some("b".into()));
        assert_eq!(entrusted.find(ino(2)), None);
        assert_eq!(entrusted.find(ino(3)), Some("a".into()));
        assert_eq!(entrusted.find(ino(REMEMBERED + 1)), Some("c".into()));
    }
}
