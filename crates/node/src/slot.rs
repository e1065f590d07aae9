//! One open file description: what all its descriptors, in all processes of the node, share.

use crate::offset::{OffsetGuard, OffsetLock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A slot of the table. Its fields are what the client core keeps about an open file; who may change which, and
/// when, is the client core's business. All of them start at 0 when the slot is allocated.
#[repr(C, align(128))]
pub struct Slot {
    pub(crate) word: AtomicU64,
    /// Inode number.
    pub ino: AtomicU64,
    /// File offset in bytes; for a directory the cookie after which listing goes on.
    pub offset: AtomicU64,
    /// The highest end of a write into blocks, bytes.
    pub end: AtomicU64,
    /// When it last wrote, CLOCK_MONOTONIC nanoseconds; 0: never.
    pub wrote_at: AtomicU64,
    /// Access mode and status flags (`O_*`).
    pub flags: AtomicU32,
    /// 0: regular file, 1: directory.
    pub kind: AtomicU32,
    /// The size generation under which [`Slot::end`] was reached.
    pub size_generation: AtomicU32,
    /// Writes under way.
    pub writing: AtomicU32,
    /// Locks of the description (`flock`, OFD) were taken.
    pub locks: AtomicU32,
    offset_lock: OffsetLock,
    reserved: [AtomicU64; 8],
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Slot {
    /// Takes the lock on the offset, across processes: reads and writes at the shared offset hold it, as the kernel's
    /// do with theirs. Waits as long as the owner lives; when the owner is dead, the lock is taken over.
    pub fn lock_offset(&self) -> OffsetGuard<'_> {
        self.offset_lock.lock()
    }

    /// Everything back to 0, but not the state word.
    pub(crate) fn clear(&self) {
        for field in [&self.ino, &self.offset, &self.end, &self.wrote_at] {
            field.store(0, Ordering::Relaxed);
        }
        for field in [&self.flags, &self.kind, &self.size_generation, &self.writing, &self.locks] {
            field.store(0, Ordering::Relaxed);
        }
        for field in &self.reserved {
            field.store(0, Ordering::Relaxed);
        }
        self.offset_lock.reset();
    }
}

/// What a slot is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// Nobody's.
    Free = 0,
    /// Taken by the owner, which has not made the placeholder yet.
    Allocated = 1,
    /// There is, or was, a placeholder.
    Live = 2,
    /// The owner releases it at the server.
    Retiring = 3,
}

/// A slot's state, owner and generation, in one word, so that they change together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub state: State,
    /// A process's number (the kernel's are below 2^22).
    pub owner: u32,
    pub generation: u32,
}

impl Word {
    pub fn from_bits(bits: u64) -> Word {
        let state = match bits & 0xff {
            1 => State::Allocated,
            2 => State::Live,
            3 => State::Retiring,
            _ => State::Free,
        };
        Word { state, owner: (bits >> 8) as u32 & 0xff_ffff, generation: (bits >> 32) as u32 }
    }

    pub fn bits(self) -> u64 {
        self.state as u64 | u64::from(self.owner & 0xff_ffff) << 8 | u64::from(self.generation) << 32
    }
}

impl Slot {
    pub(crate) fn word(&self) -> Word {
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    pub(crate) fn change(&self, from: Word, to: Word) -> bool {
        self.word.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
