//! A descriptor that is closed by a raw system call.
//!
//! The standard library's `OwnedFd` closes through libc's `close`, which in the preload library is the
//! library's own: it would ask itself about a descriptor that it hides. [`Fd`] goes to the kernel directly.
//! (libc's `close` is also a place where a thread may be cancelled, which must not happen in the middle of
//! our own work.)

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// An owned descriptor, closed on drop without going through libc.
#[derive(Debug)]
pub struct Fd(RawFd);

impl Fd {
    /// Moves the descriptor to the first free number that is at least `floor` (close-on-exec). Where that is
    /// impossible (the descriptor limit is lower) it stays where it is: a high number is only a courtesy to
    /// the program.
    pub fn above(self, floor: RawFd) -> Fd {
        if self.0 >= floor {
            return self;
        }
        match rustix::io::fcntl_dupfd_cloexec(&self, floor) {
            Ok(moved) => Fd::from(moved),
            Err(_) => self,
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, and nothing uses it after drop.
        unsafe { rustix::io::close(self.0) }
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd(fd.into_raw_fd())
    }
}

impl From<Fd> for OwnedFd {
    fn from(fd: Fd) -> OwnedFd {
        // SAFETY: ownership moves from `fd`, which is forgotten, to the result.
        unsafe { OwnedFd::from_raw_fd(fd.into_raw_fd()) }
    }
}

impl IntoRawFd for Fd {
    fn into_raw_fd(self) -> RawFd {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` lives, and it is never -1.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    fn is_open(fd: RawFd) -> bool {
        // SAFETY: only asked about.
        rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
    }

    #[test]
    fn a_descriptor_that_is_moved_up_leaves_nothing_behind_and_is_closed_on_drop() {
        // In a process of its own: other tests open and close descriptors, too.
        let child = crate::table::tests::in_child(|| {
            let fd = Fd::from(rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).unwrap());
            let before = fd.as_raw_fd();
            let moved = fd.above(300);
            let after = moved.as_raw_fd();
            let opened = after >= 300 && is_open(after) && !is_open(before);
            drop(moved);
            (opened && !is_open(after)) as i32
        });
        assert_eq!(child, 1);
    }
}
