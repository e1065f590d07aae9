//! One open file description: what all its descriptors, in all processes of the node, share.

pub(crate) mod steps;

use crate::offset::OffsetLock;
use crate::owner::OWNER_BITS;
use crate::release::monotonic;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A slot of the table. Its fields are what the client core keeps about an open file; the client core decides
/// when they change. All of them start at 0 when the slot is allocated.
#[repr(C, align(128))]
pub struct Slot {
    pub(crate) word: AtomicU64,
    /// Inode number.
    pub ino: AtomicU64,
    /// File offset in bytes; for a directory the cookie after which listing goes on.
    pub offset: AtomicU64,
    /// The highest end of a write into blocks, bytes.
    pub end: AtomicU64,
    /// When it last wrote, nanoseconds of [`monotonic`]; 0: never.
    pub wrote_at: AtomicU64,
    /// Access mode and status flags (`O_*`).
    pub flags: AtomicU32,
    /// 0: regular file, 1: directory.
    pub kind: AtomicU32,
    /// The size version under which [`Slot::end`] was reached.
    pub size_version: AtomicU32,
    /// Writes under way.
    pub writing: AtomicU32,
    /// Locks of the description (`flock`, OFD) were taken.
    pub locks: AtomicU32,
    pub(crate) offset_lock: OffsetLock,
    /// The file is known to live in blocks.
    pub in_blocks: AtomicU32,
    /// When it began to retire, in [`ticks`].
    pub(crate) retired_at: AtomicU32,
    /// Directory that it was opened in. A description of a kernel mount has no name here; it counts the
    /// changes of data past the mount instead: see the module `entered`.
    dir: AtomicU64,
    /// The name there: its length, then as many bytes. For a mount's description: the threads that make such
    /// changes.
    name: [AtomicU32; PLACES],
}

/// How many threads that change data past a mount are known to it.
pub(crate) const PLACES: usize = 12;
/// Longest name that a slot has room for, bytes.
pub const NAME_ROOM: usize = PLACES * 4 - 1;

const _: () = assert!(size_of::<Slot>() == 128);

/// A clock for [`Slot::retired_at`]: about a thousand ticks a second, never 0.
pub(crate) fn ticks() -> u32 {
    ((monotonic() >> 20) as u32).max(1)
}

impl Slot {
    /// Notes where it was opened, before any other process can see the description. A name that is too long
    /// is not noted.
    pub fn set_name(&self, dir: u64, name: &[u8]) {
        if name.len() > NAME_ROOM {
            return;
        }
        let mut bytes = [0u8; PLACES * 4];
        bytes[0] = name.len() as u8;
        bytes[1..=name.len()].copy_from_slice(name);
        let (words, _) = bytes.as_chunks::<4>();
        for (word, bytes) in self.name.iter().zip(words) {
            word.store(u32::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        self.dir.store(dir, Ordering::Release);
    }

    /// Where it was opened: the directory, and the name in it at that time.
    pub fn name(&self) -> Option<(u64, Vec<u8>)> {
        let dir = self.dir.load(Ordering::Acquire);
        let bytes: Vec<u8> = self.name.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        let (length, bytes) = bytes.split_first()?;
        let name = bytes.get(..usize::from(*length))?;
        (dir != 0 && !name.is_empty()).then(|| (dir, name.to_vec()))
    }

    /// The count of the module `entered`.
    pub(crate) fn entered(&self) -> &AtomicU64 {
        &self.dir
    }

    /// Where the threads that change data past a mount leave their numbers.
    pub(crate) fn places(&self) -> &[AtomicU32; PLACES] {
        &self.name
    }

    /// Everything back to 0, but not the state word.
    pub(crate) fn clear(&self) {
        for field in [&self.ino, &self.offset, &self.end, &self.wrote_at] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.flags, &self.kind, &self.size_version, &self.writing, &self.locks] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.in_blocks, &self.retired_at] {
            field.store(0, Ordering::Relaxed);
        }
        self.dir.store(0, Ordering::Relaxed);
        for field in &self.name {
            field.store(0, Ordering::Relaxed);
        }
        self.offset_lock.reset();
    }
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// Free.
    Free = 0,
    /// An owner has taken it, and has not made the placeholder yet.
    Allocated = 1,
    /// The placeholder has been made. (All its descriptors may be closed by now.)
    Live = 2,
    /// The owner is releasing the description at its server.
    Retiring = 3,
}

/// A slot's state, owner and incarnation, in one word, so that they change together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub state: State,
    /// Of [`OWNER_BITS`].
    pub owner: u32,
    pub incarnation: u32,
}

const STATE_BITS: u32 = 32 - OWNER_BITS;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const OWNER_MASK: u32 = (1 << OWNER_BITS) - 1;

impl Word {
    pub fn from_bits(bits: u64) -> Word {
        let state = match bits & STATE_MASK {
            1 => State::Allocated,
            2 => State::Live,
            3 => State::Retiring,
            _ => State::Free,
        };
        Word { state, owner: (bits >> STATE_BITS) as u32 & OWNER_MASK, incarnation: (bits >> 32) as u32 }
    }

    pub fn bits(self) -> u64 {
        self.state as u64
            | u64::from(self.owner & OWNER_MASK) << STATE_BITS
            | u64::from(self.incarnation) << 32
    }
}

impl Slot {
    pub(crate) fn word(&self) -> Word {
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn change(&self, from: Word, to: Word) -> bool {
        steps::change(&self.word, from, to)
    }
}
