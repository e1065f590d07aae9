//! The known directories of paths: (directory, name) to directory, and which directories are split.
//!
//! Threads hardly ever wait here: one that finds the lock taken does without the cache. What was found in an
//! earlier era is not added ([`super::heard`]).

use bivouac_layout::Ino;
use std::collections::{HashMap, HashSet};
use std::sync::RwLock;

/// When there are so many cached directories, the cache is emptied.
const CACHED: usize = 100_000;

/// A cached directory.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub(crate) ino: Ino,
    /// Permission bits, owner and group, for checking search permission; not kept for the superuser, who
    /// needs none.
    pub(crate) owner: Option<(u16, u32, u32)>,
}

/// What is known of directories.
#[derive(Default)]
pub(crate) struct Paths {
    known: RwLock<Tree>,
    split: RwLock<HashSet<Ino>>,
}

/// The known paths.
#[derive(Default)]
struct Tree {
    era: u64,
    children: HashMap<Ino, HashMap<Box<[u8]>, Known>>,
    /// Where each known child stands in `children`. (A directory has one name.)
    places: HashMap<Ino, (Ino, Box<[u8]>)>,
}

impl Tree {
    fn forget_directory(&mut self, ino: Ino) {
        if let Some((dir, name)) = self.places.remove(&ino)
            && let Some(names) = self.children.get_mut(&dir)
        {
            names.remove(&name);
            if names.is_empty() {
                self.children.remove(&dir);
            }
        }
    }

    /// Drops the names in a directory. Who begins there, with a descriptor or as the working directory, asks
    /// its server again, which checks search permission.
    fn forget_names(&mut self, dir: Ino) {
        for known in self.children.remove(&dir).into_iter().flat_map(HashMap::into_values) {
            self.places.remove(&known.ino);
        }
    }

    fn clear(&mut self) {
        self.children.clear();
        self.places.clear();
    }
}

impl Paths {
    /// Empty, as of this era.
    pub(crate) fn new(era: u64) -> Paths {
        Paths { known: RwLock::new(Tree { era, ..Tree::default() }), ..Paths::default() }
    }

    pub(crate) fn child(&self, dir: Ino, name: &[u8]) -> Option<Known> {
        self.known.try_read().ok()?.children.get(&dir)?.get(name).copied()
    }

    /// Adds what a walk that began in `era` found, if that still lasts.
    pub(crate) fn learn(&self, era: u64, dir: Ino, name: &[u8], known: Known) {
        let Ok(mut tree) = self.known.try_write() else { return };
        if tree.era != era {
            return;
        }
        if tree.places.len() >= CACHED {
            tree.clear();
        }
        tree.forget_directory(known.ino);
        let replaced = tree.children.entry(dir).or_default().insert(name.into(), known);
        if let Some(replaced) = replaced {
            tree.places.remove(&replaced.ino);
        }
        tree.places.insert(known.ino, (dir, name.into()));
    }

    /// Drops the paths to directories that moved or lost search permission, and the names in them, or with
    /// `None` all paths (but not which directories are split: that never changes back). Returns the era that
    /// begins with this; `None` if a panic has left the cache unusable.
    pub(crate) fn forget(&self, moved: Option<&[Ino]>) -> Option<u64> {
        // No thread holds the lock during a request, so the wait is short.
        let mut tree = self.known.write().ok()?;
        tree.era += 1;
        match moved {
            Some(moved) => {
                for ino in moved {
                    tree.forget_directory(*ino);
                    tree.forget_names(*ino);
                }
            }
            None => tree.clear(),
        }
        Some(tree.era)
    }

    /// Drops a directory that was removed, or that is not where this process knew it.
    pub(crate) fn forget_directory(&self, ino: Ino) {
        if let Ok(mut tree) = self.known.write() {
            tree.forget_directory(ino);
        }
    }

    /// Forgets one name: this process just removed or renamed it.
    pub(crate) fn forget_child(&self, dir: Ino, name: &[u8]) {
        if let Ok(mut tree) = self.known.write()
            && let Some(known) = tree.children.get_mut(&dir).and_then(|names| names.remove(name))
        {
            tree.places.remove(&known.ino);
        }
    }

    pub(crate) fn is_split(&self, dir: Ino) -> bool {
        self.split.try_read().is_ok_and(|split| split.contains(&dir))
    }

    pub(crate) fn learn_split(&self, dir: Ino) {
        if let Ok(mut split) = self.split.write() {
            split.insert(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(ino: u64) -> Known {
        Known { ino: Ino(ino), owner: None }
    }

    fn child(paths: &Paths, dir: u64, name: &[u8]) -> Option<u64> {
        paths.child(Ino(dir), name).map(|known| known.ino.0)
    }

    #[test]
    fn only_the_ways_to_what_moved_are_forgotten() {
        let paths = Paths::new(3);
        paths.learn(3, Ino(1), b"a", known(10));
        paths.learn(3, Ino(10), b"b", known(11));
        paths.learn(3, Ino(1), b"c", known(12));
        paths.learn(3, Ino(11), b"d", known(13));
        assert_eq!(paths.forget(Some(&[Ino(10)])), Some(4));
        assert_eq!(child(&paths, 1, b"a"), None);
        // It may have lost search permission; and somebody may have it as the working directory.
        assert_eq!((child(&paths, 10, b"b"), child(&paths, 1, b"c")), (None, Some(12)));
        // Further below it, directories are found by their number.
        assert_eq!(child(&paths, 11, b"d"), Some(13));
        assert_eq!(paths.forget(None), Some(5));
        assert_eq!((child(&paths, 11, b"d"), child(&paths, 1, b"c")), (None, None));
    }

    #[test]
    fn what_was_found_in_an_earlier_era_is_not_taken_in() {
        let paths = Paths::new(0);
        paths.forget(Some(&[]));
        paths.learn(0, Ino(1), b"a", known(10));
        assert_eq!(child(&paths, 1, b"a"), None);
        paths.learn(1, Ino(1), b"a", known(10));
        assert_eq!(child(&paths, 1, b"a"), Some(10));
    }

    #[test]
    fn a_directory_is_known_by_one_name_and_a_name_leads_to_one_directory() {
        let paths = Paths::new(0);
        paths.learn(0, Ino(1), b"a", known(10));
        paths.learn(0, Ino(2), b"b", known(10));
        assert_eq!((child(&paths, 1, b"a"), child(&paths, 2, b"b")), (None, Some(10)));
        paths.learn(0, Ino(2), b"b", known(20));
        // The place of what was there before is free, and forgetting it does not touch its successor.
        paths.forget_directory(Ino(10));
        assert_eq!(child(&paths, 2, b"b"), Some(20));
        paths.forget_child(Ino(2), b"b");
        paths.forget_directory(Ino(20));
        assert_eq!(child(&paths, 2, b"b"), None);
    }
}
