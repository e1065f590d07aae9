//! Busy-waiting for the next request, for a moment, before sleeping.
//!
//! A program that makes one call after the other has its next request ready some microseconds after the
//! answer: sooner than a sleeping thread is woken ([`bivouac_transport::Spin`] has the figures). So a thread
//! that has served a request busy-waits for the next one for a while, if that has paid lately. Only one
//! thread of a mount does so at a time; more would only compete.

use bivouac_transport::Spin;
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// For each mount: whether one of its threads busy-waits.
#[derive(Default)]
pub(crate) struct Post(AtomicBool);

/// For each thread: what it remembers of such waits.
pub(crate) struct Watcher<'m> {
    post: &'m Post,
    spin: Spin,
}

impl<'m> Watcher<'m> {
    pub(crate) fn new(post: &'m Post) -> Watcher<'m> {
        Watcher { post, spin: Spin::default() }
    }

    /// Busy-waits for a request; returns its length. `None`: there was none, or another thread busy-waits, or
    /// there was an error, which the next blocking read will return again.
    pub(crate) fn receive(&mut self, device: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<usize> {
        if self.post.0.swap(true, Ordering::Acquire) {
            return None;
        }
        let found = self.look(device, buffer);
        self.post.0.store(false, Ordering::Release);
        found
    }

    fn look(&mut self, device: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<usize> {
        let mut vigil = self.spin.begin()?;
        rustix::fs::fcntl_setfl(device, OFlags::RDWR | OFlags::NONBLOCK).ok()?;
        let found = loop {
            match rustix::io::read(device, &mut *buffer) {
                Ok(length) => break Some(length),
                Err(Errno::AGAIN) if vigil.goes_on() => {}
                Err(_) => break None,
            }
        };
        // If this failed, the blocking read would not block.
        let _ = rustix::fs::fcntl_setfl(device, OFlags::RDWR);
        self.spin.ended(found.is_some());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::Write;

    #[test]
    fn one_at_a_time_finds_what_comes_and_gives_up_when_nothing_does() {
        let post = Post::default();
        let (mut one, mut other) = (Watcher::new(&post), Watcher::new(&post));
        let (end, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut buffer = [0; 8];
        assert_eq!(one.receive(end.as_fd(), &mut buffer), None);
        far.write_all(b"asked").unwrap();
        assert_eq!(other.receive(end.as_fd(), &mut buffer), Some(5));
        // It blocks again.
        assert!(!rustix::fs::fcntl_getfl(&end).unwrap().contains(OFlags::NONBLOCK));
        far.write_all(b"asked").unwrap();
        post.0.store(true, Ordering::Release);
        assert_eq!(one.receive(end.as_fd(), &mut buffer), None);
    }
}
