//! Receiving requests into a worker's buffer.
//!
//! One receive takes whatever is there: usually a whole request, sometimes several (clients may send without
//! waiting for answers). A request that is larger is then received straight to its place in the same buffer,
//! so that nothing is copied, and only after its lengths were checked. A service that wants to do something with the
//! beginning of a long payload is shown what there is, whenever more has come.

use super::Halt;
use crate::crowd::Crowd;
use crate::error::TransportError;
use crate::socket;
use crate::spin::Spin;
use bivouac_proto::Header;
use bivouac_proto::header::HEADER_LEN;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::ops::Range;
use std::time::Duration;

/// What one receive takes, and the size of a buffer that has not seen a larger request.
const ROOM: usize = 68 << 10;
/// A buffer that grew beyond this is given back when its worker becomes idle.
const KEEP: usize = 1 << 20;
/// Payloads from this on are shown to the service while they come, bytes.
const SHOWN: u32 = 64 << 10;

/// A worker's buffer.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// What was received and not yet taken.
    held: Range<usize>,
}

/// What came.
pub(super) enum Incoming {
    /// A whole request.
    Request(Found),
    /// Nothing came within the socket's receive timeout, and the buffer holds nothing.
    Idle,
    /// The peer has closed the connection between two requests, or the server stops.
    End,
}

/// A request in a buffer: its header, and where the rest is.
#[derive(Clone)]
pub(super) struct Found {
    /// Its header.
    pub(super) header: Header,
    /// Its body.
    pub(super) body: Range<usize>,
    /// Its payload.
    pub(super) payload: Range<usize>,
}

impl Inbox {
    /// Body and payload of a request that was found.
    pub(super) fn parts(&mut self, found: &Found) -> (&[u8], &mut [u8]) {
        let message = self.bytes.get_mut(found.body.start..found.payload.end).unwrap_or_default();
        let (body, payload) = message.split_at_mut_checked(found.body.len()).unwrap_or_default();
        (body, payload)
    }

    /// Takes the buffer away, with the request that was found in it; what it holds beyond goes on in `other`.
    pub(super) fn take_away(&mut self, mut other: Vec<u8>) -> Inbox {
        let rest = self.bytes.get(self.held.clone()).unwrap_or_default();
        if other.len() < rest.len() {
            other.resize(rest.len(), 0);
        }
        other.get_mut(..rest.len()).unwrap_or_default().copy_from_slice(rest);
        let next = Inbox { bytes: other, held: 0..rest.len() };
        let mut taken = std::mem::replace(self, next);
        taken.clear();
        taken
    }

    /// The buffer, to be used again.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets what it holds, and most of its memory.
    pub(super) fn rest(&mut self) {
        self.held = 0..0;
        if self.bytes.len() > KEEP {
            self.bytes = Vec::new();
        }
    }

    /// Forgets what it holds: another connection comes.
    pub(super) fn clear(&mut self) {
        self.held = 0..0;
    }

    /// Whether it holds nothing of a further request.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The next request. The socket's receive timeout is how long an idle peer is waited for; in the middle
    /// of a request it may pause for `stall`. `show` is called with the header, the body and the beginning of a long
    /// payload, again and again while that comes, until it says that it need not be.
    pub(super) fn next(
        &mut self,
        fd: BorrowedFd<'_>,
        stall: Duration,
        halt: &Halt,
        mut awake: Option<Awake<'_>>,
        mut show: impl FnMut(&Header, &[u8], &[u8]) -> bool,
    ) -> Result<Incoming, TransportError> {
        let mut quiet_since: Option<Duration> = None;
        let mut is_shown = true;
        loop {
            let head = self.bytes.get(self.held.clone()).and_then(|held| held.first_chunk::<HEADER_LEN>());
            let header = head.map(Header::from_bytes).transpose()?;
            let needed = header.map(|h| HEADER_LEN + h.body_len as usize + h.payload_len as usize);
            if let (Some(header), Some(needed)) = (header, needed)
                && needed <= self.held.len()
            {
                return self.take(header, needed);
            }
            // All of a short payload is received at once, if it comes.
            is_shown &= header.is_none_or(|header| header.payload_len >= SHOWN);
            // A pause is no news: whoever waits for these bytes is not to take the sender for one that goes on.
            if let (Some(header), true) = (header, is_shown && quiet_since.is_none()) {
                let message = self.bytes.get(self.held.clone()).and_then(|held| held.get(HEADER_LEN..));
                let parts = message.and_then(|message| message.split_at_checked(header.body_len as usize));
                is_shown = parts.is_none_or(|(body, so_far)| show(&header, body, so_far));
            }
            match self.receive(fd, (needed, is_shown), awake.as_mut()) {
                Ok(0) if self.held.is_empty() => return Ok(Incoming::End),
                Ok(0) => return Err(TransportError::Closed),
                Ok(_) => quiet_since = None,
                Err(Errno::AGAIN | Errno::INTR) if halt.is_abandoned() => return Ok(Incoming::End),
                Err(Errno::AGAIN) if self.held.is_empty() => {
                    return Ok(if halt.is_stopping() { Incoming::End } else { Incoming::Idle });
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    let now = socket::now();
                    if now.saturating_sub(*quiet_since.get_or_insert(now)) > stall {
                        return Err(TransportError::TimedOut);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives more: exactly what is missing of a request of `needed` bytes, or what is there; with `in_parts`, what
    /// is there of what is missing.
    fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        (needed, in_parts): (Option<usize>, bool),
        awake: Option<&mut Awake<'_>>,
    ) -> Result<usize, Errno> {
        // Move what is held to the front: it is the beginning of a request, and short.
        if self.held.start > 0 {
            self.bytes.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
        let end = needed.unwrap_or(ROOM);
        if self.bytes.len() < end {
            // Bounded: the header was checked. A buffer that cannot be had costs the connection, not the
            // process.
            let more = end.max(ROOM) - self.bytes.len();
            self.bytes.try_reserve_exact(more).map_err(|_| Errno::NOMEM)?;
            self.bytes.resize(end.max(ROOM), 0);
        }
        let flags = if needed.is_some() && !in_parts { RecvFlags::WAITALL } else { RecvFlags::empty() };
        let free = self.bytes.get_mut(self.held.end..end).unwrap_or_default();
        let awake = awake.filter(|_| self.held.is_empty()).and_then(|awake| awake.wait(fd, free));
        let n = match awake {
            Some(Ok(n)) => n,
            None | Some(Err(Errno::AGAIN)) => rustix::net::recv(fd, free, flags)?.0,
            Some(Err(error)) => return Err(error),
        };
        self.held.end += n;
        Ok(n)
    }

    fn take(&mut self, header: Header, len: usize) -> Result<Incoming, TransportError> {
        let start = self.held.start;
        self.held.start += len;
        if self.held.is_empty() {
            self.held = 0..0;
        }
        let body = start + HEADER_LEN..start + HEADER_LEN + header.body_len as usize;
        let payload = body.end..start + len;
        match payload.start <= payload.end {
            true => Ok(Incoming::Request(Found { header, body, payload })),
            false => Err(TransportError::Protocol("a request shorter than its header says")),
        }
    }
}

/// Busy-waiting for the next request, while no other thread needs the core.
pub(super) struct Awake<'a> {
    /// What the connection remembers.
    pub(super) spin: &'a mut Spin,
    /// Whether threads wait for a core; asked only before a busy wait.
    pub(super) crowd: &'a Crowd,
}

impl Awake<'_> {
    /// Looks for bytes until they are there, or until it is time to sleep (EAGAIN). `None`: sleep at once.
    fn wait(&mut self, fd: BorrowedFd<'_>, free: &mut [u8]) -> Option<Result<usize, Errno>> {
        let mut vigil = self.spin.begin()?;
        if self.crowd.is_crowded() {
            return None;
        }
        loop {
            match rustix::net::recv(fd, &mut *free, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) if vigil.goes_on() => {}
                other => {
                    self.spin.ended(other.is_ok());
                    return Some(other.map(|(n, _)| n));
                }
            }
        }
    }
}
