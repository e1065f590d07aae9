//! Noticing a fork.
//!
//! A page of memory is marked MADV_WIPEONFORK: the kernel hands the child a page of zeros instead of a copy.
//! Reading one word therefore tells a child from its parent, whatever way it was forked, without interposing
//! anything. (A vfork child shares the parent's memory and sees the parent's word: it is the parent, for as
//! long as it lives.)

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The length of the mapping, bytes.
const PAGE: usize = 4096;

/// Counts the forks between the process that made this and the current one.
pub(crate) struct ForkMark {
    /// The page, which begins with a word: the fork count, or 0 in a fresh child.
    page: NonNull<AtomicU64>,
    /// Counts forks; copied (not wiped) by fork.
    last: AtomicU64,
}

impl ForkMark {
    pub(crate) fn new() -> Result<ForkMark, rustix::io::Errno> {
        // SAFETY: a fresh anonymous mapping, at an address that the kernel chooses, which nobody else knows.
        let page = unsafe {
            let page = mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?;
            // Kernels before 4.14 do not have it; then a fork is noticed only by `Client::after_fork`.
            let _ = madvise(page, PAGE, Advice::LinuxWipeOnFork);
            page
        };
        let page = NonNull::new(page.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        let mark = ForkMark { page, last: AtomicU64::new(1) };
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives, aligned, and any bytes are a number.
        unsafe { self.page.as_ref() }
    }

    /// The current process's fork count: differs from the parent's in every child.
    pub(crate) fn count(&self) -> u64 {
        match self.word().load(Ordering::Relaxed) {
            0 => self.advance(),
            fork_count => fork_count,
        }
    }

    /// A child begins. (Called by itself when the wiped word is seen.)
    #[cold]
    pub(crate) fn advance(&self) -> u64 {
        // Right after a fork the child has only one thread, so there is no race here.
        let fork_count = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.word().store(fork_count, Ordering::Relaxed);
        fork_count
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: its own mapping, to which nobody has a reference any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

// SAFETY: the page holds an atomic number, and is unmapped only by the last owner.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}
