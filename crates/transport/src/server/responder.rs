//! Sending answers.
//!
//! An answer is sent when the service gives it, so that what the service does after costs the client no time.
//! Each request gets exactly one: later ones are ignored, a missing one becomes EIO, and a request that wants
//! none gets none. A failure to send ends the connection: once the service returns, or at once where the request is
//! answered later than that.

use super::shelf::Shelf;
use super::{Halt, PeerInfo};
use crate::error::{TransportError, errno_of};
use crate::gather;
use crate::socket;
use bivouac_layout::Epoch;
use bivouac_node::Fd;
use bivouac_proto::header::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD, NO_REPLY};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Reply, Status, encode};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno as Sys;
use rustix::net::{SendFlags, Shutdown};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// File ranges up to this are read and sent with the header: two system calls rather than three, and one
/// packet.
const READ_RATHER: usize = 32 << 10;

/// How one request is answered. It owns what it needs, and can be used from any thread.
pub struct Responder {
    line: Arc<Line>,
    request: Header,
    body: Vec<u8>,
    payload: Vec<u8>,
    /// What is in it belongs to the answer; otherwise it is of an earlier one.
    used: bool,
    /// There was an answer, or none is wanted.
    answered: bool,
    /// The file of an answer could not be read after its header had left.
    unreadable: bool,
    sent: usize,
    failed: Option<TransportError>,
}

/// A connection's way out: what the worker that serves the connection shares with those who answer its requests later.
pub(super) struct Line {
    pub(super) fd: Fd,
    pub(super) unix: bool,
    pub(super) peer: PeerInfo,
    pub(super) stall: Duration,
    pub(super) halt: Arc<Halt>,
    /// The map epoch and the namespace version that answers carry.
    pub(super) versions: Arc<dyn Fn() -> (Epoch, u64) + Send + Sync>,
    /// Buffers of requests that were answered later.
    pub(super) shelf: Arc<Shelf>,
    /// Held while an answer is being sent: others may be sent by other threads.
    pub(super) sending: Mutex<()>,
}

impl Responder {
    /// The answer to nothing.
    pub(super) fn idle(line: Arc<Line>, body: Vec<u8>, payload: Vec<u8>) -> Responder {
        Responder {
            line,
            request: Header::new(Kind::Request),
            body,
            payload,
            used: false,
            answered: true,
            unreadable: false,
            sent: 0,
            failed: None,
        }
    }

    /// The next request has come.
    pub(super) fn begin(&mut self, request: Header) {
        self.used = false;
        self.answered = request.flags & NO_REPLY != 0;
        (self.request, self.unreadable, self.sent, self.failed) = (request, false, 0, None);
    }

    /// The buffers, for another connection's answers.
    pub(super) fn take_buffers(&mut self) -> (Vec<u8>, Vec<u8>) {
        (std::mem::take(&mut self.body), std::mem::take(&mut self.payload))
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Whether the client waits for an answer.
    pub fn is_awaited(&self) -> bool {
        !self.answered
    }

    /// The payload of the answer, empty at first: what is in it goes out with [`Responder::ok`]. Reused from
    /// request to request.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if !self.used {
            self.payload.clear();
            self.used = true;
        }
        &mut self.payload
    }

    /// The same with so many bytes of whatever is in them, all of which the service is to replace: to clear them would cost
    /// about as much as to read them.
    pub fn room(&mut self, len: usize) -> &mut Vec<u8> {
        self.payload.resize(len, 0);
        self.used = true;
        &mut self.payload
    }

    /// The request was carried out; the payload is what [`Responder::buffer`] holds.
    pub fn ok(&mut self, reply: &Reply) {
        let len = self.buffer().len();
        if self.is_awaited() && self.encode_reply(reply, len) {
            let result = self.send(Status::OK, None, true);
            self.ended(result);
        }
    }

    /// The request was not carried out.
    pub fn fail(&mut self, failure: &Failure) {
        if !self.is_awaited() {
            return;
        }
        self.body.clear();
        self.buffer().clear();
        let mut status = Status::REFUSED;
        match failure {
            Failure::Errno(errno) => status = Status::from(*errno),
            Failure::Refused(refusal) => encode(refusal, &mut self.body),
        }
        if self.body.len() > MAX_BODY as usize {
            self.body.clear();
            status = Errno::IO.into();
        }
        let result = self.send(status, None, false);
        self.ended(result);
    }

    /// The request was carried out; the payload is `len` bytes of `file` from `offset`, without a copy
    /// through this process if that is faster. If the file turns out to be shorter (because it was truncated
    /// meanwhile), zeros take the place of what is missing. [`Responder::buffer`] is not sent, and its
    /// contents are lost.
    ///
    /// Fails if the file could not be read and nothing has been answered: the service decides what to answer. (Whether
    /// it could not be read later than that, [`Responder::was_unreadable`] says.)
    pub fn ok_file(
        &mut self,
        reply: &Reply,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<(), Errno> {
        if !self.is_awaited() || !self.encode_reply(reply, len) {
            return Ok(());
        }
        if len > READ_RATHER {
            let result = self.send_file(file, offset, len);
            self.sent = len;
            self.ended(result);
            return Ok(());
        }
        read_all(file, offset, self.room(len)).map_err(errno_of)?;
        let result = self.send(Status::OK, None, true);
        self.ended(result);
        Ok(())
    }

    /// Whether the file of the answer could not be read after the header had been sent. Then the client only
    /// sees that the connection breaks, and asks again. To report the error then, the service must read the
    /// file before it answers.
    pub fn was_unreadable(&self) -> bool {
        self.unreadable
    }

    /// The request was carried out; the answer passes a descriptor. Only over Unix sockets; other clients get
    /// EOPNOTSUPP.
    pub fn ok_descriptor(&mut self, reply: &Reply, descriptor: BorrowedFd<'_>) {
        let len = self.buffer().len();
        if !self.line.unix {
            self.fail(&Failure::Errno(Errno::OPNOTSUPP));
        } else if self.is_awaited() && self.encode_reply(reply, len) {
            let result = self.send(Status::OK, Some(descriptor), true);
            self.ended(result);
        }
    }

    /// After the service has returned: sends EIO if it gave no answer, and reports a failure to send. Returns
    /// how many bytes of payload were sent.
    pub(super) fn finish(&mut self) -> Result<usize, TransportError> {
        if self.is_awaited() {
            tracing::error!("a request got no answer from the service: {:?}", self.request);
            self.fail(&Failure::Errno(Errno::IO));
        }
        self.failed.take().map_or(Ok(self.sent), Err)
    }

    /// The request was taken away from the worker: so ends the connection if an answer cannot be sent.
    pub(super) fn finish_later(&mut self) {
        if let Err(error) = self.finish() {
            tracing::debug!("{:?} is closed: {error}", self.line.peer);
            self.line.break_off();
        }
    }

    fn ended(&mut self, result: Result<(), TransportError>) {
        self.answered = true;
        if self.used {
            self.sent = self.sent.max(self.payload.len());
        }
        self.failed = result.err();
    }

    /// Encodes the body; an answer that no message can carry becomes EIO, and false is returned.
    fn encode_reply(&mut self, reply: &Reply, payload: usize) -> bool {
        self.body.clear();
        encode(reply, &mut self.body);
        let fits = self.body.len() <= MAX_BODY as usize && payload <= MAX_PAYLOAD as usize;
        if !fits {
            tracing::error!("an answer is too long: body {}, payload {payload} bytes", self.body.len());
            self.fail(&Failure::Errno(Errno::IO));
        }
        fits
    }

    fn head(&self, status: Status, payload: usize) -> [u8; HEADER_LEN] {
        let (epoch, namespace) = (self.line.versions)();
        Header {
            kind: Kind::Reply,
            flags: 0,
            body_len: self.body.len() as u32,
            payload_len: payload as u32,
            status,
            shard: self.request.shard,
            epoch,
            namespace,
            id: self.request.id,
            attempt: self.request.attempt,
            layout: self.request.layout,
        }
        .to_bytes()
    }

    fn send(
        &self,
        status: Status,
        pass: Option<BorrowedFd<'_>>,
        with_payload: bool,
    ) -> Result<(), TransportError> {
        let payload: &[u8] = if with_payload { &self.payload } else { &[] };
        let _alone = self.line.alone();
        let head = self.head(status, payload.len());
        self.line.send(&head, &self.body, payload, pass, SendFlags::empty())
    }

    fn send_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), TransportError> {
        // MORE: the first packet is filled up with the beginning of the payload.
        let _alone = self.line.alone();
        self.line.send(&self.head(Status::OK, len), &self.body, &[], None, SendFlags::MORE)?;
        let mut at = offset;
        let mut left = len;
        let line = self.line.clone();
        let mut wait = line.wait();
        while left > 0 {
            match rustix::fs::sendfile(&self.line.fd, file, Some(&mut at), left) {
                Ok(0) => return self.line.send_zeros(left),
                Ok(n) => {
                    left = left.saturating_sub(n);
                    wait = line.wait();
                }
                Err(Sys::AGAIN | Sys::INTR) => wait.again()?,
                // The header promised bytes that cannot be read: only a broken connection can tell the
                // client.
                Err(error) => {
                    self.unreadable = !matches!(error, Sys::PIPE | Sys::CONNRESET | Sys::NOTCONN);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
}

impl Line {
    /// Ends the connection, whoever serves it: its next receive finds the end.
    pub(super) fn break_off(&self) {
        // It may have ended by itself.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        // Ignores poisoning: it protects nothing but an order.
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(
        &self,
        head: &[u8],
        body: &[u8],
        payload: &[u8],
        pass: Option<BorrowedFd<'_>>,
        flags: SendFlags,
    ) -> Result<(), TransportError> {
        let payload = [IoSlice::new(payload)];
        let all = head.len() + body.len() + gather::total(&payload);
        let mut sent = 0;
        let mut wait = self.wait();
        while sent < all {
            // A descriptor goes with the first bytes, once.
            let pass = if sent == 0 { pass } else { None };
            match gather::send(self.fd.as_fd(), [&[], head, body], &payload, sent, pass, flags) {
                Ok(n) => {
                    sent += n;
                    wait = self.wait();
                }
                Err(Sys::AGAIN | Sys::INTR) => wait.again()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn send_zeros(&self, mut left: usize) -> Result<(), TransportError> {
        let zeros = [0; 4 << 10];
        while left > 0 {
            let piece = zeros.get(..left.min(zeros.len())).unwrap_or_default();
            self.send(piece, &[], &[], None, SendFlags::empty())?;
            left -= piece.len();
        }
        Ok(())
    }

    fn wait(&self) -> Wait<'_> {
        Wait { stall: self.stall, halt: &self.halt, since: None }
    }
}

/// Bounds the wait for a peer that takes nothing. The socket's send timeout is short, so that a server that
/// stops is noticed.
struct Wait<'a> {
    stall: Duration,
    halt: &'a Halt,
    since: Option<Duration>,
}

impl Wait<'_> {
    fn again(&mut self) -> Result<(), TransportError> {
        let now = socket::now();
        let waited = now.saturating_sub(*self.since.get_or_insert(now));
        if self.halt.is_abandoned() || waited > self.stall {
            return Err(TransportError::TimedOut);
        }
        Ok(())
    }
}

/// Fills `into`; with zeros where the file ends before.
fn read_all(file: BorrowedFd<'_>, offset: u64, mut into: &mut [u8]) -> Result<(), Sys> {
    let mut at = offset;
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, at) {
            Ok(0) => {
                into.fill(0);
                break;
            }
            Ok(n) => {
                at = at.saturating_add(n as u64);
                into = into.get_mut(n..).unwrap_or_default();
            }
            Err(Sys::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
