//! Where files are that programs have open through I/O nodes, as these have told this server, in case they die.
//!
//! It can be wrong by now: whoever finds a file by it looks whether it is the same one.

use bivouac_layout::Ino;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files that are remembered, at most; the oldest are forgotten.
const REMEMBERED: usize = 64 << 10;

#[derive(Default)]
struct Table {
    paths: HashMap<Ino, PathBuf>,
    /// Of `paths`, in the order in which they came.
    order: VecDeque<Ino>,
}

/// See the module.
#[derive(Default)]
pub struct Entrusted(Mutex<Table>);

impl Entrusted {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Ignores poisoning: each change is a single insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is at this path, relative to the forwarded directory.
    pub fn note(&self, ino: Ino, path: &Path) {
        let Table { paths, order } = &mut *self.table();
        if paths.insert(ino, path.to_path_buf()).is_none() {
            order.push_back(ino);
        }
        while order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            paths.remove(&oldest);
        }
    }

    /// Where a file was last.
    pub fn find(&self, ino: Ino) -> Option<PathBuf> {
        self.table().paths.get(&ino).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_path_counts_and_the_oldest_file_is_forgotten() {
        let entrusted = Entrusted::default();
        let ino = |number: usize| Ino::forwarded(number as u64);
        for number in 1..=REMEMBERED {
            entrusted.note(ino(number), Path::new("a"));
        }
        entrusted.note(ino(1), Path::new("b"));
        assert_eq!(entrusted.find(ino(1)), Some("b".into()));
        entrusted.note(ino(REMEMBERED + 1), Path::new("c"));
        assert_eq!(entrusted.find(ino(1)), None);
        assert_eq!(entrusted.find(ino(2)), Some("a".into()));
        assert_eq!(entrusted.find(ino(REMEMBERED + 1)), Some("c".into()));
    }
}
