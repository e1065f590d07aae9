//! Which directories moved last: a ring of places, written by one server and read by all processes of its
//! node without a lock.
//!
//! The move that gives the namespace version `v` stands at place `v` modulo the number of places. The writer
//! fills the place before it shows the version; a reader looks at the version again after it has read the
//! places. So what it has read was written over only if the version shows it.
//!
//! The numbers lie in shared memory, which a schedule explorer cannot watch. So the algorithm is written over
//! [`Number`], which is an atomic of std's in the page and one of loom's in the test of every interleaving.

use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic number, in one order with all others (`SeqCst`).
pub(super) trait Number {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
    /// Never makes it smaller.
    fn raise(&self, value: u64);
}

impl Number for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }

    fn set(&self, value: u64) {
        self.store(value, Ordering::SeqCst);
    }

    fn raise(&self, value: u64) {
        self.fetch_max(value, Ordering::SeqCst);
    }
}

/// The ring, and the version that it goes up to.
pub(super) struct Ring<'a, N> {
    pub version: &'a N,
    /// At least one.
    pub places: &'a [N],
}

impl<N: Number> Ring<'_, N> {
    fn place(&self, version: u64) -> Option<&N> {
        self.places.get((version % self.places.len() as u64) as usize)
    }

    /// Something moves, and with that the version is this, one more than before. By one thread after the
    /// other.
    pub fn moved(&self, what: u64, version: u64) {
        if let Some(place) = self.place(version) {
            place.set(what);
        }
        self.version.raise(version);
    }

    /// What moved after the version was `after` and until it was `until`. `None`: so much that it is not
    /// known any more.
    pub fn between(&self, after: u64, until: u64) -> Option<Vec<u64>> {
        let known = self.places.len() as u64;
        if until.checked_sub(after)? >= known {
            return None;
        }
        // No number is too large here: something may have been written over the page.
        let moved = (after..until).map(|v| self.place(v + 1).map(Number::get)).collect::<Option<_>>()?;
        // The place of a move is written again before the version that needs it is shown.
        if self.version.get().checked_sub(after)? < known { Some(moved) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    impl Number for loom::sync::atomic::AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Ordering::SeqCst)
        }

        fn set(&self, value: u64) {
            self.store(value, Ordering::SeqCst);
        }

        fn raise(&self, value: u64) {
            self.fetch_max(value, Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    struct Page {
        version: loom::sync::atomic::AtomicU64,
        places: [loom::sync::atomic::AtomicU64; 2],
    }

    impl Page {
        fn ring(&self) -> Ring<'_, loom::sync::atomic::AtomicU64> {
            Ring { version: &self.version, places: &self.places }
        }
    }

    /// Explores every order in which a writer of three moves and a reader can get at a ring of two places.
    #[test]
    fn a_reader_gets_the_moves_of_its_versions_or_none_in_every_interleaving() {
        use std::sync::atomic::{AtomicBool, AtomicUsize};
        static TOLD: AtomicBool = AtomicBool::new(false);
        static REFUSED: AtomicUsize = AtomicUsize::new(0);
        loom::model(|| {
            let page = Arc::new(Page::default());
            let writer = {
                let page = page.clone();
                thread::spawn(move || (1..=3).for_each(|version| page.ring().moved(100 + version, version)))
            };
            let after = page.version.get();
            let until = page.version.get();
            match page.ring().between(after, until) {
                Some(moves) => {
                    let expected: Vec<u64> = (after + 1..=until).map(|version| 100 + version).collect();
                    assert_eq!(moves, expected, "after {after} until {until}");
                    TOLD.fetch_or(!moves.is_empty(), Ordering::Relaxed);
                }
                None => drop(REFUSED.fetch_add(1, Ordering::Relaxed)),
            }
            writer.join().unwrap();
        });
        assert!(TOLD.load(Ordering::Relaxed) && REFUSED.load(Ordering::Relaxed) > 0, "both ends were seen");
    }
}
