//! Which directory the process lists, and whether it wants to know what its entries are.

use super::ahead::Ahead;
use bivouac_layout::Ino;
use bivouac_proto::attr::DirEntry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether the process that lists directories also wants to know what its entries are: then listings bring
/// their attributes along. Hints only: threads that list at the same time may confuse them.
#[derive(Default)]
pub(crate) struct Listing {
    directory: AtomicU64,
    /// The program asked for attributes that no listing had brought along.
    missed: AtomicBool,
    /// The program asked for attributes that a listing had brought along.
    used: AtomicBool,
    pub(crate) ahead: Ahead,
}

/// Some entries of a directory.
#[derive(Debug, Default)]
pub struct Entries {
    /// In the order of their cookies.
    pub entries: Vec<DirEntry>,
    /// Nothing came after them when they were listed.
    pub end: bool,
}

impl Listing {
    /// A directory's listing begins.
    pub(crate) fn begin(&self, dir: Ino) {
        if self.directory.swap(dir.0, Ordering::Relaxed) != dir.0 {
            let used = self.used.swap(false, Ordering::Relaxed);
            self.missed.fetch_and(used, Ordering::Relaxed);
        }
    }

    pub(crate) fn missed(&self, dir: Ino) {
        if self.directory.load(Ordering::Relaxed) == dir.0 {
            self.missed.store(true, Ordering::Relaxed);
            self.used.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn used(&self, dir: Ino) {
        if self.directory.load(Ordering::Relaxed) == dir.0 {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn wants_attributes(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }
}
