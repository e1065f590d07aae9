//! Undoing a write.
//!
//! If a client writes to several servers and one of them is full, the write counts only up to there. What the
//! other servers have stored behind that point has to be removed, because it made their sub-files longer than
//! the returned count says. But somebody else may have written there meanwhile, and that must stay. So each
//! write through the server leaves its number with the sub-file, and the server undoes a write only if its
//! number is the latest, no other write ran at the same time, and the sub-file still ends where the write
//! ended. Direct writes of programs on the server's node have no number; they are noticed only by that
//! length.

use crate::error::DataError;
use crate::file::SubFile;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Numbers writes; 0 is none.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The writes to a sub-file through this server.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// Writes under way.
    active: AtomicU32,
    /// The number of the write that began last.
    latest: AtomicU64,
    /// A write is being undone: new ones wait.
    taking_back: AtomicBool,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrote {
    /// Bytes.
    pub count: usize,
    /// Length of the sub-file before, bytes.
    pub before: u64,
    /// For [`SubFile::take_back`]; 0 if it cannot be undone.
    pub undo: u64,
}

/// A write under way.
struct Active<'w>(&'w Writers);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Keeps new writes out.
struct TakingBack<'w>(&'w Writers);

impl Drop for TakingBack<'_> {
    fn drop(&mut self) {
        self.0.taking_back.store(false, Ordering::SeqCst);
    }
}

impl Writers {
    /// Begins a write. Returns how many others are under way, and the write's number.
    fn begin(&self) -> (Active<'_>, u32, u64) {
        loop {
            let others = self.active.fetch_add(1, Ordering::SeqCst);
            let active = Active(self);
            // Either this write is seen as active by who takes one back, or that is seen here.
            if !self.taking_back.load(Ordering::SeqCst) {
                let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
                self.latest.store(number, Ordering::SeqCst);
                return (active, others, number);
            }
            drop(active);
            std::thread::yield_now();
        }
    }

    /// Keeps new writes out. `None` if another thread is doing so, or a write does not end.
    fn keep_out(&self) -> Option<TakingBack<'_>> {
        self.taking_back.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let guard = TakingBack(self);
        let alone = (0..1000).any(|_| {
            std::thread::yield_now();
            self.active.load(Ordering::SeqCst) == 0
        });
        alone.then_some(guard)
    }
}

impl SubFile {
    /// Like [`SubFile::write_at`], but the write can be undone.
    pub fn write_noted(&self, offset: u64, from: &[u8]) -> Result<Wrote, DataError> {
        let (_active, others, number) = self.writers().begin();
        let before = self.length()?;
        let count = self.write_at(offset, from)?;
        let alone = others == 0 && self.writers().latest.load(Ordering::SeqCst) == number;
        Ok(Wrote { count, before, undo: if alone { number } else { 0 } })
    }

    /// Undoes the write with this number, which ended at `end`: makes the sub-file `size` bytes long. Does
    /// nothing, and says so, if anybody else may have written since.
    pub fn take_back(&self, undo: u64, end: u64, size: u64) -> Result<bool, DataError> {
        let Some(_alone) = self.writers().keep_out() else { return Ok(false) };
        let latest = self.writers().latest.load(Ordering::SeqCst);
        if undo == 0 || latest != undo || size >= end || self.length()? != end {
            return Ok(false);
        }
        rustix::fs::ftruncate(self, size)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> SubFile {
        SubFile::new(tempfile::tempfile().expect("a file").into())
    }

    #[test]
    fn the_latest_write_can_be_taken_back_once() {
        let file = scratch();
        file.write_noted(0, b"kept").expect("writes");
        let wrote = file.write_noted(10, b"not kept").expect("writes");
        assert_eq!((wrote.count, wrote.before), (8, 4));
        assert_eq!(file.take_back(wrote.undo, 18, 10), Ok(true));
        assert_eq!(file.length(), Ok(10));
        assert_eq!(file.take_back(wrote.undo, 18, 10), Ok(false));
    }

    #[test]
    fn a_write_of_somebody_else_is_never_taken_back_with_it() {
        let file = scratch();
        let first = file.write_noted(0, &[1; 100]).expect("writes");
        // Inside, so that the length does not show it.
        file.write_noted(50, &[2; 10]).expect("writes");
        assert_eq!(file.take_back(first.undo, 100, 0), Ok(false));
        // Past the server, and longer.
        let second = file.write_noted(0, &[1; 100]).expect("writes");
        file.write_at(100, &[3; 10]).expect("writes");
        assert_eq!(file.take_back(second.undo, 100, 0), Ok(false));
        assert_eq!((file.take_back(0, 110, 0), file.length()), (Ok(false), Ok(110)));
    }

    #[test]
    fn beside_other_writers_only_ones_own_bytes_go() {
        let file = scratch();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..2000u64 {
                        let at = (round * 4 + thread) * 8;
                        let wrote = file.write_noted(at, &(at + 1).to_le_bytes()).expect("writes");
                        if thread == 0 {
                            let size = wrote.before.max(at);
                            file.take_back(wrote.undo, at + 8, size.min(at + 7)).expect("works");
                        }
                    }
                });
            }
        });
        for round in 0..2000u64 {
            for thread in 1..4u64 {
                let at = (round * 4 + thread) * 8;
                let mut found = [0; 8];
                assert_eq!(file.read_at(at, &mut found), Ok(8));
                assert_eq!(u64::from_le_bytes(found), at + 1, "round {round}, thread {thread}");
            }
        }
    }
}
