//! Reading and writing through mappings, each of a descriptor that is opened for it.
#![allow(clippy::undocumented_unsafe_blocks, reason = "as in the module above")]

use super::{Outcome, System, done, failed, told};
use crate::model::call::{Answer, pattern};
use libc::c_int;

impl System {
    pub(super) fn map_read(&self, slot: u8, offset: u64, len: u64) -> Outcome {
        self.mapped(slot, libc::O_RDONLY, libc::PROT_READ, (offset, len), |at| {
            // SAFETY: so many bytes are mapped, and lie in the file.
            let data = unsafe { std::slice::from_raw_parts(at, len as usize) };
            Ok(Answer::Bytes(data.to_vec()))
        })
    }

    pub(super) fn map_write(&self, slot: u8, offset: u64, len: u64, seed: u8) -> Outcome {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        self.mapped(slot, libc::O_RDWR, both, (offset, len), |at| {
            let data = pattern(seed, len);
            // SAFETY: likewise, and nobody else has them.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len()) };
            done(unsafe { libc::msync(at.cast(), len as usize, libc::MS_SYNC) })
        })
    }

    fn mapped(
        &self,
        slot: u8,
        flags: c_int,
        protection: c_int,
        (offset, len): (u64, u64),
        body: impl FnOnce(*mut u8) -> Outcome,
    ) -> Outcome {
        let name = super::text(&format!("/proc/self/fd/{}", self.fd(slot)?));
        let fd = told(unsafe { libc::open(name.as_ptr(), flags | libc::O_CLOEXEC) })? as c_int;
        let (none, len) = (std::ptr::null_mut(), len as usize);
        let at = unsafe { libc::mmap(none, len, protection, libc::MAP_SHARED, fd, offset as i64) };
        let outcome = if at == libc::MAP_FAILED { Err(failed()) } else { body(at.cast()) };
        if at != libc::MAP_FAILED {
            unsafe { libc::munmap(at, len) };
        }
        unsafe { libc::close(fd) };
        outcome
    }
}
