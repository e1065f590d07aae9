//! Memory that the processes of a node share, and that none of them can make unusable for the others.
//!
//! A process that may write to a file may also truncate it, and then the kernel kills every process that
//! touches the missing part of its mapping (SIGBUS). So shared data is not in a file with a name, but in a
//! *sealed memfd*: nobody can change its length, even with its descriptor, and it exists as long as any
//! process has it mapped. Its maker passes the descriptor to the others over a Unix socket; they map it and
//! close the descriptor at once. The maker allocates all of it before anybody else sees it, so that a lack of
//! memory is an error there, and not a signal later.
//!
//! Its content can still be anything, because a program that writes past its own buffers may overwrite it.
//! Its users check what they read.

use crate::error::{NodeError, doing};
use crate::fd::Fd;
use rustix::fd::BorrowedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::CStr;

/// The seals that fix the length.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of shared memory.
#[derive(Debug)]
pub(crate) struct Memory {
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping lives as long as the value, and what lies in it is used as atomic numbers only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Who may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writers {
    /// Everybody who gets the descriptor.
    All,
    /// Only who made it (where the kernel can do that, from 5.1 on).
    Maker,
}

impl Memory {
    /// Makes memory of this length, all zeros, and a descriptor to pass to other processes. The name is for
    /// people who look into `/proc`.
    pub fn make(name: &CStr, length: usize, writers: Writers) -> Result<(Memory, Fd), NodeError> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map(Fd::from)
            .map_err(doing("making memory to share"))?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, length as u64)
            .map_err(doing("allocating memory to share"))?;
        let memory = Memory::mapped(&fd, length, true)?;
        if writers == Writers::Maker {
            let _ = rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE);
        }
        rustix::fs::fcntl_add_seals(&fd, FIXED).map_err(doing("sealing memory to share"))?;
        Ok((memory, fd))
    }

    /// Maps memory that somebody else has made; it must be as long as expected, and stay so.
    pub fn attach(fd: BorrowedFd<'_>, length: usize, write: bool) -> Result<Memory, NodeError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| NodeError::Format)?;
        let stat = rustix::fs::fstat(fd).map_err(doing("looking at shared memory"))?;
        if !seals.contains(FIXED) || usize::try_from(stat.st_size) != Ok(length) {
            return Err(NodeError::Format);
        }
        Memory::mapped(fd, length, write)
    }

    fn mapped(fd: impl rustix::fd::AsFd, length: usize, write: bool) -> Result<Memory, NodeError> {
        let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice; what it is of is `length` bytes long
        // and stays so.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, fd, 0) };
        Ok(Memory { base: base.map_err(doing("mapping shared memory"))?.cast(), length })
    }

    /// Its first byte, which is at the beginning of a page.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; nothing borrowed from it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn nobody_can_change_the_length_of_shared_memory() {
        let (memory, fd) = Memory::make(c"test", 8192, Writers::All).expect("made");
        for length in [0, 100, 4096, 8191, 8193, 100_000] {
            assert!(rustix::fs::ftruncate(&fd, length).is_err(), "{length}");
        }
        assert!(
            rustix::fs::fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)
                .is_ok()
        );
        let other = Memory::attach(fd.as_fd(), 8192, true).expect("attached");
        // SAFETY: both mappings are 8192 bytes long; nobody else knows them.
        unsafe {
            memory.base().add(8191).write_volatile(7);
            assert_eq!(other.base().add(8191).read_volatile(), 7);
        }
    }

    #[test]
    fn what_could_be_truncated_or_has_another_length_is_not_mapped() {
        let (_memory, fd) = Memory::make(c"test", 8192, Writers::All).expect("made");
        assert!(matches!(Memory::attach(fd.as_fd(), 4096, true), Err(NodeError::Format)));
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        file.set_len(8192).expect("long enough");
        assert!(matches!(Memory::attach(file.as_fd(), 8192, true), Err(NodeError::Format)));
        let loose = rustix::fs::memfd_create(c"test", MemfdFlags::ALLOW_SEALING).expect("made");
        rustix::fs::ftruncate(&loose, 8192).expect("long enough");
        assert!(matches!(Memory::attach(loose.as_fd(), 8192, true), Err(NodeError::Format)));
    }

    #[test]
    fn where_only_the_maker_writes_others_cannot_map_it_to_write() {
        let (memory, fd) = Memory::make(c"test", 4096, Writers::Maker).expect("made");
        assert!(Memory::attach(fd.as_fd(), 4096, true).is_err());
        let reader = Memory::attach(fd.as_fd(), 4096, false).expect("attached");
        // SAFETY: both mappings are 4096 bytes long; nobody else knows them.
        unsafe {
            memory.base().write_volatile(9);
            assert_eq!(reader.base().read_volatile(), 9);
        }
    }
}
