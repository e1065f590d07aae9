//! Which sub-files should exist in a storage directory.
//!
//! If a file has no sub-file here, that usually means that nothing was written to this part of the file: it
//! is a hole. But if a sub-file was made here and is gone although Bivouac did not remove it, data is lost,
//! and must not read as zeros. So the store notes the making and the removal of each sub-file in a journal,
//! the file `bivouac-made` in the storage directory, and in memory (some 30 bytes for each). When the store
//! finds no sub-file, it asks the inventory whether there should be one.
//!
//! - A sub-file is noted after it was made and before anybody can write to it. It is noted as removed after
//!   its removal. A part of the map is locked meanwhile, so that no thread sees one without the other. If the
//!   process is killed in between, either a sub-file exists that is not noted, or there is a note of a
//!   removed one, which nobody will ever ask for. Each note takes one system call of 0.3 µs.
//! - After a start of the machine only what was synced must be there: a loss of power may have taken the
//!   others.
//! - When the store is opened, it compares journal and directory: it counts the sub-files that are missing,
//!   notes those that were not noted (all of them, if somebody has removed the journal so as to go on with
//!   what is there, or if it is of an earlier version), and writes the journal anew.
//!
//! The inventory does not know the *length* of a sub-file. Programs of the server's node write to it
//! directly, so the server does not know how long it should be.

mod journal;

pub(crate) use journal::{DRAFT, NAME};

use crate::error::DataError;
use crate::place;
use bivouac_layout::Ino;
use bivouac_node::Boot;
use journal::{Event, Journal};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Parts of the map; the lock of one is held while a sub-file is made or removed.
const PARTS: usize = 64;
/// The journal is written anew when the number of its notes exceeds twice the necessary number by this.
const SLACK: u64 = 64 << 10;

/// What is known of a sub-file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Made, and perhaps not on stable storage yet.
    Made,
    /// Made, and on stable storage.
    Synced,
    /// It was made, and is gone.
    Missing { synced: bool },
}

type Part = HashMap<Ino, State>;

/// The inventory of one storage directory.
pub(crate) struct Inventory {
    root: OwnedFd,
    boot: Option<Boot>,
    parts: [Mutex<Part>; PARTS],
    /// Locked after a part, or after all of them.
    journal: Mutex<Journal>,
    missing: AtomicU64,
}

impl Inventory {
    /// Compares what is noted below `root` with the inodes whose sub-files were `found` there.
    pub(crate) fn open(root: &OwnedFd, boot: Option<Boot>, found: &[Ino]) -> Result<Inventory, DataError> {
        let (noted, then) = journal::read(root)?;
        let ran = Boot::is_since(boot, then);
        let mut parts: [Part; PARTS] = std::array::from_fn(|_| Part::default());
        for (ino, synced) in noted {
            // A sub-file that was not synced may be gone after a loss of power.
            if ran || synced {
                parts[part_of(ino)].insert(ino, State::Missing { synced });
            }
        }
        for ino in found {
            let known = parts[part_of(*ino)].entry(*ino).or_insert(State::Made);
            // What was there before the machine was started anew came from the storage.
            let synced = !ran || *known == State::Missing { synced: true };
            *known = if synced { State::Synced } else { State::Made };
        }
        let gone = |state: &&State| matches!(state, State::Missing { .. });
        let missing = parts.iter().flat_map(HashMap::values).filter(gone).count();
        let journal = match Journal::write(root.as_fd(), boot, noted_states(parts.iter())) {
            Err(Errno::NOSPC | Errno::DQUOT | Errno::ROFS) => Journal::resume(root.as_fd()),
            written => written,
        };
        let journal = journal?;
        let root = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
        let (journal, missing) = (Mutex::new(journal), AtomicU64::new(missing as u64));
        Ok(Inventory { root, boot, parts: parts.map(Mutex::new), journal, missing })
    }

    /// Every sub-file that should be there.
    pub(crate) fn all(&self) -> Vec<Ino> {
        let keys = |part: &Mutex<Part>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.keys().copied().collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(keys).collect()
    }

    /// Whether a sub-file should be there.
    pub(crate) fn knows(&self, ino: Ino) -> bool {
        self.part(ino).contains_key(&ino)
    }

    /// How many sub-files are known to be gone.
    pub(crate) fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// Opens a sub-file that may have to be made: `open(true)` makes it, `open(false)` does not.
    pub(crate) fn open_or_make(
        &self,
        ino: Ino,
        open: impl Fn(bool) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, DataError> {
        let mut part = self.part(ino);
        match part.get(&ino) {
            None => {
                let made = open(true)?;
                self.note(ino, Event::Made)?;
                part.insert(ino, State::Made);
                drop(part);
                self.shorten_if_long();
                Ok(made)
            }
            Some(_) => match open(false) {
                Err(Errno::NOENT) => {
                    self.lose(&mut part, ino);
                    Err(DataError::Missing(ino))
                }
                opened => Ok(opened?),
            },
        }
    }

    /// To be called when no sub-file was found. `None`: there should be none. If there should be one, it may
    /// have been made a moment ago: so this calls `look` again, while nobody can make or remove it.
    pub(crate) fn look_again<T>(
        &self,
        ino: Ino,
        look: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<Option<T>, DataError> {
        let mut part = self.part(ino);
        if !part.contains_key(&ino) {
            return Ok(None);
        }
        match look() {
            Err(Errno::NOENT) => {
                self.lose(&mut part, ino);
                Err(DataError::Missing(ino))
            }
            found => Ok(Some(found?)),
        }
    }

    /// Removes a sub-file with `unlink`; one that is not there is removed all the same.
    pub(crate) fn remove(
        &self,
        ino: Ino,
        unlink: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), DataError> {
        let mut part = self.part(ino);
        match unlink() {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        if let Some(state) = part.remove(&ino) {
            if let State::Missing { .. } = state {
                self.missing.fetch_sub(1, Ordering::Relaxed);
            }
            // At worst the removed sub-file counts as missing after the next start; nobody will ask for it.
            if let Err(error) = self.note(ino, Event::Removed) {
                tracing::warn!(%ino, %error, "the removal of a sub-file was not noted");
            }
        }
        drop(part);
        self.shorten_if_long();
        Ok(())
    }

    /// A sub-file and its name are on stable storage.
    pub(crate) fn synced(&self, ino: Ino) {
        let mut part = self.part(ino);
        if part.get(&ino) == Some(&State::Made) {
            // Without the note, its loss would not be noticed after the machine was started anew.
            match self.note(ino, Event::Synced) {
                Ok(()) => drop(part.insert(ino, State::Synced)),
                Err(error) => tracing::debug!(%ino, %error, "the syncing of a sub-file was not noted"),
            }
        }
    }

    fn part(&self, ino: Ino) -> MutexGuard<'_, Part> {
        self.parts[part_of(ino)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, part: &mut Part, ino: Ino) {
        let Some(state) = part.get_mut(&ino) else { return };
        let synced = match *state {
            State::Missing { .. } => return,
            state => state == State::Synced,
        };
        *state = State::Missing { synced };
        self.missing.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%ino, "a sub-file is gone that nobody removed: what was in it is lost");
    }

    fn note(&self, ino: Ino, event: Event) -> Result<(), Errno> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(ino, event)
    }

    /// Writes the journal anew when most of it is about sub-files that are gone.
    fn shorten_if_long(&self) {
        let notes = self.journal.lock().unwrap_or_else(PoisonError::into_inner).notes();
        if notes < SLACK {
            return;
        }
        let parts = self.parts.each_ref().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner));
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if journal.notes() < 2 * needed + SLACK {
            return;
        }
        let states = noted_states(parts.iter().map(|part| &**part));
        match Journal::write(self.root.as_fd(), self.boot, states) {
            Ok(shorter) => *journal = shorter,
            // The long journal stays in use, and the next note tries this again.
            Err(error) => tracing::debug!(%error, "the journal of sub-files could not be shortened"),
        }
    }
}

/// What the journal is to say of each sub-file: whether it was synced.
fn noted_states<'a>(parts: impl Iterator<Item = &'a Part>) -> impl Iterator<Item = (Ino, bool)> {
    parts
        .flatten()
        .map(|(ino, state)| (*ino, matches!(state, State::Synced | State::Missing { synced: true })))
}

fn part_of(ino: Ino) -> usize {
    place::mix(ino) as usize % PARTS
}

#[cfg(test)]
mod tests;
