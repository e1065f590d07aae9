//! Reads that the kernel can answer from memory.
//!
//! Where all that is asked for is in memory, the kernel sends it from there to the client, without a copy through this process.
//! For everything else it is not known how long the backend takes: such reads are carried out in the queue's order, and only
//! then answered, so that the client gets the backend's error.

use crate::files::Open;
use crate::kernel;
use rustix::fs::FsWord;
use rustix::io::ReadWriteFlags;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// File systems that have nothing but memory (the kernel's `magic.h`).
const MEMORY: [FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// What a file's system can say.
const UNKNOWN: u8 = 0;
/// Everything is in memory.
const ALWAYS: u8 = 1;
/// Whether something is.
const TELLS: u8 = 2;
/// Nothing; or it said that something was in memory and could not be read.
const NEVER: u8 = 3;

/// What is known of a file.
#[derive(Default)]
pub(crate) struct Residence(AtomicU8);

impl Residence {
    /// Whether so many bytes from `offset` are there, and in memory. (Only the last byte is asked for: who reads a file from its
    /// beginning has the others there, too.)
    pub(crate) fn has(&self, file: &impl AsFd, offset: u64, len: u64) -> bool {
        let last = offset.saturating_add(len).saturating_sub(1);
        if self.0.load(Ordering::Relaxed) == UNKNOWN {
            let kind = rustix::fs::fstatfs(file).map(|figures| figures.f_type);
            let always = kind.is_ok_and(|kind| MEMORY.contains(&kind));
            self.0.store(if always { ALWAYS } else { TELLS }, Ordering::Relaxed);
        }
        match self.0.load(Ordering::Relaxed) {
            ALWAYS => kernel::stat(file).is_ok_and(|found| found.stx_size > last),
            TELLS => {
                let mut byte = [0];
                let into = &mut [IoSliceMut::new(&mut byte)];
                match rustix::io::preadv2(file, into, last, ReadWriteFlags::NOWAIT) {
                    Ok(count) => count == 1,
                    Err(rustix::io::Errno::OPNOTSUPP) => {
                        self.0.store(NEVER, Ordering::Relaxed);
                        false
                    }
                    Err(_) => false,
                }
            }
            _ => false,
        }
    }
}

/// A file of which all that is asked for is in memory.
pub struct Resident(pub(crate) Arc<Open>);

impl Resident {
    /// It could not be read: the next reads of this file get the backend's answer.
    pub fn suspect(&self) {
        self.0.residence.0.store(NEVER, Ordering::Relaxed);
    }
}

impl AsFd for Resident {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // It was asked for, and so is there.
        self.0.reader().map_or(self.0.as_fd(), AsFd::as_fd)
    }
}
