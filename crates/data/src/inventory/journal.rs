//! The journal of an inventory: a header with the boot, then notes of 16 bytes in the order of events.
//!
//! A note is written with one system call, which a killed process has made or not made. A loss of power may
//! leave notes without content; they say nothing. Space is allocated ahead, so that removals can be noted on
//! a full storage.

use crate::error::DataError;
use crate::place;
use bivouac_layout::Ino;
use bivouac_node::Boot;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;

/// The journal's name in the storage directory.
pub(crate) const NAME: &str = "bivouac-made";
/// A journal that is being written anew.
pub(crate) const DRAFT: &str = "bivouac-made.new";

const MAGIC: &[u8; 8] = b"BVKMADE\n";
const VERSION: u32 = 1;
/// Magic, version, nothing, boot.
pub(super) const HEADER: usize = 8 + 4 + 4 + Boot::LEN;
/// Inode, event, check sum.
pub(super) const NOTE: usize = 8 + 4 + 4;
/// Allocated ahead in steps of so many bytes.
const CHUNK: u64 = 64 << 10;
/// Notes of made sub-files leave so much of the allocation to notes of removals, bytes.
const RESERVE: u64 = 32 << 10;
/// What a note says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A sub-file was made.
    Made = 1,
    /// It is on stable storage, and its name too.
    Synced = 2,
    /// It was removed.
    Removed = 3,
}

/// A journal that goes on.
pub(super) struct Journal {
    root: OwnedFd,
    /// Opened only for the first note, so that a store that is only read does not prevent its storage from
    /// being remounted read-only.
    file: Option<OwnedFd>,
    /// Where the next note goes.
    end: u64,
    /// Space is allocated up to here; `u64::MAX` where the storage cannot.
    allocated: u64,
    notes: u64,
}

impl Journal {
    /// Writes a journal of sub-files, each with whether it was synced, and gives it the name.
    pub(super) fn write(
        root: BorrowedFd<'_>,
        boot: Option<Boot>,
        made: impl Iterator<Item = (Ino, bool)>,
    ) -> Result<Journal, Errno> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&Boot::to_bytes(boot));
        let mut notes = 0;
        for (ino, synced) in made {
            let event = if synced { Event::Synced } else { Event::Made };
            bytes.extend_from_slice(&note(ino, event));
            notes += 1;
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = fs::openat(root, DRAFT, flags, Mode::RUSR | Mode::WUSR)?;
        let written = write_all(&file, &bytes, 0)
            // It must be synced before it gets the name: after a loss of power, an empty journal would hide
            // every loss.
            .and_then(|()| fs::fdatasync(&file))
            .and_then(|()| fs::renameat(root, DRAFT, root, NAME));
        if let Err(errno) = written {
            let _ = fs::unlinkat(root, DRAFT, AtFlags::empty());
            return Err(errno);
        }
        let end = bytes.len() as u64;
        Ok(Journal { root: duplicate(root)?, file: None, end, allocated: end, notes })
    }

    /// Goes on with the existing journal, on a storage where no new one can be written. (If the journal is of
    /// an earlier boot, it keeps that boot, and sub-files may be lost without being noticed.)
    pub(super) fn resume(root: BorrowedFd<'_>) -> Result<Journal, Errno> {
        let length = u64::try_from(fs::statat(root, NAME, AtFlags::SYMLINK_NOFOLLOW)?.st_size).unwrap_or(0);
        let notes = length.checked_sub(HEADER as u64).ok_or(Errno::NOSPC)? / NOTE as u64;
        // A torn note at the end is written over.
        let end = HEADER as u64 + notes * NOTE as u64;
        Ok(Journal { root: duplicate(root)?, file: None, end, allocated: end, notes })
    }

    /// Notes in it.
    pub(super) fn notes(&self) -> u64 {
        self.notes
    }

    /// Writes a note at the end. What fails leaves the end where it is.
    pub(super) fn append(&mut self, ino: Ino, event: Event) -> Result<(), Errno> {
        if self.file.is_none() {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            self.file = Some(fs::openat(&self.root, NAME, flags, Mode::empty())?);
        }
        let file = self.file.as_ref().ok_or(Errno::IO)?;
        self.allocated = reserve(file, self.end, self.allocated, event != Event::Made)?;
        write_all(file, &note(ino, event), self.end)?;
        self.end += NOTE as u64;
        self.notes += 1;
        Ok(())
    }
}

/// Allocates ahead; answers up to where. A note that makes no new sub-file takes what there is.
fn reserve(file: &OwnedFd, end: u64, allocated: u64, takes_the_last: bool) -> Result<u64, Errno> {
    let wanted = end + NOTE as u64 + RESERVE;
    if wanted <= allocated {
        return Ok(allocated);
    }
    let more = (wanted - allocated).next_multiple_of(CHUNK);
    match fs::fallocate(file, FallocateFlags::KEEP_SIZE, allocated, more) {
        Ok(()) => Ok(allocated + more),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(u64::MAX),
        Err(_) if takes_the_last => Ok(allocated),
        Err(errno) => Err(errno),
    }
}

fn duplicate(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(root, 0)
}

/// What is noted: which sub-files there should be, whether each was synced, and in which boot the journal was
/// kept.
pub(super) fn read(root: &OwnedFd) -> Result<(HashMap<Ino, bool>, Option<Boot>), DataError> {
    // Anything may have been put in its place; that is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut bytes = Vec::new();
    match fs::openat(root, NAME, flags, Mode::empty()) {
        Ok(file) => {
            if !FileType::from_raw_mode(fs::fstat(&file)?.st_mode).is_file() {
                return Err(DataError::JournalUnknown);
            }
            std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes)
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        }
        Err(Errno::NOENT) => return Ok((HashMap::new(), None)),
        Err(Errno::LOOP) => return Err(DataError::JournalUnknown),
        Err(errno) => return Err(errno.into()),
    }
    let mut noted = HashMap::new();
    // It had a whole header on stable storage before it had its name.
    let (header, notes) = bytes.split_at_checked(HEADER).ok_or(DataError::JournalUnknown)?;
    let mut boot = [0; Boot::LEN];
    boot.copy_from_slice(&header[16..]);
    if header[..8] != MAGIC[..] || header[8..12] != VERSION.to_le_bytes() {
        return Err(DataError::JournalUnknown);
    }
    for bytes in notes.chunks_exact(NOTE) {
        match parse(bytes) {
            Some((ino, Event::Made)) => drop(noted.entry(ino).or_insert(false)),
            Some((ino, Event::Synced)) => drop(noted.insert(ino, true)),
            Some((ino, Event::Removed)) => drop(noted.remove(&ino)),
            // A loss of power left a note without its content.
            None => {}
        }
    }
    Ok((noted, Boot::from_bytes(boot)))
}

fn note(ino: Ino, event: Event) -> [u8; NOTE] {
    let mut out = [0; NOTE];
    out[..8].copy_from_slice(&ino.0.to_le_bytes());
    out[8..12].copy_from_slice(&(event as u32).to_le_bytes());
    out[12..].copy_from_slice(&check_sum(ino, event).to_le_bytes());
    out
}

fn parse(bytes: &[u8]) -> Option<(Ino, Event)> {
    let (ino, rest) = bytes.split_first_chunk::<8>()?;
    let (event, _) = rest.split_first_chunk::<4>()?;
    let ino = Ino(u64::from_le_bytes(*ino));
    let kind = u32::from_le_bytes(*event);
    let event = [Event::Made, Event::Synced, Event::Removed].into_iter().find(|e| *e as u32 == kind)?;
    (note(ino, event) == *bytes).then_some((ino, event))
}

fn check_sum(ino: Ino, event: Event) -> u32 {
    (place::mix(Ino(place::mix(ino) ^ event as u64)) >> 32) as u32
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(file, rest, at + done as u64) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
