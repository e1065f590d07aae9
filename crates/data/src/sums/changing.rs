//! Notes of the chunks whose checksums and bytes may not agree: changes that are under way, and what is *owed*.
//!
//! A change notes its chunks before it begins ([`Changing::begin`]) and takes the note away when checksums and bytes
//! agree again ([`Slot::end`]). If it cannot make them agree (the storage that had no room for the bytes has none for
//! the old checksums either), the note stays, and the chunks are owed: their checksums are computed from what is stored
//! when the file is used again, or when the store is opened again. Nothing calls that damage meanwhile.
//!
//! Notes are in one small file of fixed length, so that a full storage has room for them.

use crate::error::DataError;
use bivouac_layout::Ino;
use bivouac_node::Boot;
use rustix::fd::OwnedFd;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The file of the notes, in the first storage directory.
pub(crate) const NAME: &str = "bivouac-changing";
/// So many notes may be there at once; more changes wait.
const SLOTS: u32 = 1024;
/// At most so many are of what is owed: the others are for changes.
const OWED: usize = SLOTS as usize / 2;
/// Bytes before the first slot: in which boot of the machine the notes were made; and nothing.
const HEAD: u64 = 32;
/// Bytes of a slot: inode, first chunk, end; and nothing, so that no slot lies across two pages.
const SLOT: u64 = 32;

/// Chunks of a file.
pub(super) type Noted = (Ino, Range<u64>);

/// The notes of a store.
pub(super) struct Changing {
    file: OwnedFd,
    free: Mutex<Vec<u32>>,
    freed: Condvar,
    owed: Mutex<Vec<(Noted, u32)>>,
    /// How many are owed, so that changes need not look.
    how_many: AtomicUsize,
    /// The machine has not been started anew since the store was last open.
    pub(super) is_sure: bool,
}

/// A note of a change. Dropped without [`Slot::end`], its chunks are owed.
pub(super) struct Slot<'c> {
    changing: &'c Changing,
    number: u32,
    noted: Noted,
    is_settled: bool,
}

fn place_of(slot: u32) -> u64 {
    HEAD + u64::from(slot) * SLOT
}

impl Changing {
    /// Makes or opens the file in this directory. What was noted when the store was last open is owed.
    pub(super) fn open(directory: &OwnedFd) -> Result<Changing, DataError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = fs::openat(directory, NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let mut content = vec![0; place_of(SLOTS) as usize];
        let count = read_up_to(&file, &mut content, 0)?;
        let (head, slots) = content.split_at_mut(HEAD as usize);
        let mut then = [0; Boot::LEN];
        then.copy_from_slice(&head[..Boot::LEN]);
        let is_sure = count == 0 || Boot::is_since(Boot::current(), Boot::from_bytes(then));
        let number = |slot: &[u8], at: usize| {
            let field = slot.get(at..at + 8).and_then(|field| field.try_into().ok());
            u64::from_le_bytes(field.unwrap_or_default())
        };
        let slots = (0..).zip(slots.chunks_exact(SLOT as usize)).map(|(slot_number, slot)| {
            let noted = (Ino(number(slot, 0)), number(slot, 8)..number(slot, 16));
            (noted, slot_number)
        });
        let (owed, free): (Vec<(Noted, u32)>, Vec<_>) = slots.partition(|((ino, _), _)| ino.0 != 0);
        let free = free.into_iter().map(|(_, number)| number).collect();
        head[..Boot::LEN].copy_from_slice(&Boot::to_bytes(Boot::current()));
        // Written as a whole: changes that free space need slots on a full storage, too.
        write_all(&file, &content, 0)?;
        let (free, freed, how_many) = (Mutex::new(free), Condvar::new(), AtomicUsize::new(owed.len()));
        Ok(Changing { file, free, freed, owed: Mutex::new(owed), how_many, is_sure })
    }

    /// The files of which something is owed.
    pub(super) fn files(&self) -> BTreeSet<Ino> {
        self.owed().iter().map(|((ino, _), _)| *ino).collect()
    }

    /// Notes a change; waits while too many are under way.
    pub(super) fn begin(&self, ino: Ino, chunks: &Range<u64>) -> Result<Slot<'_>, DataError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free =
            self.freed.wait_while(free, |free| free.is_empty()).unwrap_or_else(PoisonError::into_inner);
        let number = free.pop().unwrap_or_default();
        drop(free);
        // Nothing is changed before the note is there.
        let mut slot = Slot { changing: self, number, noted: (ino, chunks.clone()), is_settled: true };
        let mut note = [0; 24];
        for (field, value) in note.as_chunks_mut::<8>().0.iter_mut().zip([ino.0, chunks.start, chunks.end]) {
            *field = value.to_le_bytes();
        }
        write_all(&self.file, &note, place_of(number))?;
        slot.is_settled = false;
        Ok(slot)
    }

    /// Takes what is owed of a file, as notes. In the file's turn.
    pub(super) fn take_owed(&self, ino: Ino) -> Vec<Slot<'_>> {
        if self.how_many.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut owed = self.owed();
        let taken = owed.extract_if(.., |((of, _), _)| *of == ino);
        let taken = taken.map(|(noted, number)| Slot { changing: self, number, noted, is_settled: false });
        let taken = taken.collect();
        self.how_many.store(owed.len(), Ordering::Relaxed);
        taken
    }

    #[cfg(test)]
    pub(super) fn how_many_are_owed(&self) -> usize {
        self.owed().len()
    }

    fn owed(&self) -> MutexGuard<'_, Vec<(Noted, u32)>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a note, unless others have the same chunks. Whether it did.
    fn owe(&self, (ino, chunks): &Noted, number: u32) -> bool {
        let mut owed = self.owed();
        let has = |have: &Range<u64>| have.start <= chunks.start && chunks.end <= have.end;
        if owed.iter().any(|((of, have), _)| of == ino && has(have)) {
            return false;
        }
        if owed.len() >= OWED {
            tracing::warn!(%ino, ?chunks, "checksums of these chunks are wrong until `bivouac verify`: too many are");
            return false;
        }
        owed.push(((*ino, chunks.clone()), number));
        self.how_many.store(owed.len(), Ordering::Relaxed);
        true
    }
}

impl Slot<'_> {
    /// The chunks it is of.
    pub(super) fn chunks(&self) -> Range<u64> {
        self.noted.1.clone()
    }

    /// Checksums and bytes agree.
    pub(super) fn end(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !self.is_settled && self.changing.owe(&self.noted, self.number) {
            return;
        }
        // If this fails, the chunks are summed once more at the next start.
        let _ = write_all(&self.changing.file, &[0; 8], place_of(self.number));
        self.changing.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
        self.changing.freed.notify_one();
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => (bytes, offset) = (&bytes[n..], offset + n as u64),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn read_up_to(file: &OwnedFd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
