//! Sending answers.
//!
//! An answer is sent when the service gives it, so that what the service does after costs the client no time.
//! Each request gets exactly one: later ones are ignored, a missing one becomes EIO, and a request that wants
//! none gets none. A failure to send is kept and ends the connection once the service returns.

use super::Halt;
use crate::error::{TransportError, errno_of};
use crate::gather;
use crate::socket;
use bivouac_layout::Epoch;
use bivouac_proto::header::{HEADER_LEN, MAX_BODY, MAX_PAYLOAD, NO_REPLY};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Reply, Status, encode};
use rustix::fd::BorrowedFd;
use rustix::io::Errno as Sys;
use rustix::net::SendFlags;
use std::io::IoSlice;
use std::time::Duration;

/// File ranges up to this are read and sent with the header: two system calls rather than three, and one
/// packet.
const READ_RATHER: usize = 32 << 10;

/// How a service answers one request.
pub struct Responder<'a> {
    line: Outlet<'a>,
    request: &'a Header,
    versions: &'a dyn Fn() -> (Epoch, u64),
    body: &'a mut Vec<u8>,
    payload: &'a mut Vec<u8>,
    answered: bool,
    /// The file of an answer could not be read after its header had left.
    unreadable: bool,
    sent: usize,
    failed: Option<TransportError>,
}

/// The socket as answers need it.
#[derive(Clone, Copy)]
pub(super) struct Outlet<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) unix: bool,
    pub(super) stall: Duration,
    pub(super) halt: &'a Halt,
}

impl<'a> Responder<'a> {
    pub(super) fn new(
        line: Outlet<'a>,
        request: &'a Header,
        versions: &'a dyn Fn() -> (Epoch, u64),
        body: &'a mut Vec<u8>,
        payload: &'a mut Vec<u8>,
    ) -> Responder<'a> {
        payload.clear();
        Responder {
            line,
            request,
            versions,
            body,
            payload,
            answered: false,
            unreadable: false,
            sent: 0,
            failed: None,
        }
    }

    /// Whether the client waits for an answer.
    pub fn is_awaited(&self) -> bool {
        self.request.flags & NO_REPLY == 0 && !self.answered
    }

    /// The payload of the answer, empty at first: what is in it goes out with [`Responder::ok`]. Reused from
    /// request to request.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.payload
    }

    /// The request was carried out; the payload is what [`Responder::buffer`] holds.
    pub fn ok(&mut self, reply: &Reply) {
        if self.is_awaited() && self.encode_reply(reply, self.payload.len()) {
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
        self.payload.clear();
        let mut status = Status::REFUSED;
        match failure {
            Failure::Errno(errno) => status = Status::from(*errno),
            Failure::Refused(refusal) => encode(refusal, self.body),
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
        self.payload.clear();
        self.payload.resize(len, 0);
        read_all(file, offset, self.payload).map_err(errno_of)?;
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
        if !self.line.unix {
            self.fail(&Failure::Errno(Errno::OPNOTSUPP));
        } else if self.is_awaited() && self.encode_reply(reply, self.payload.len()) {
            let result = self.send(Status::OK, Some(descriptor), true);
            self.ended(result);
        }
    }

    /// After the service has returned: sends EIO if it gave no answer, and reports a failure to send. Returns
    /// how many bytes of payload were sent.
    pub(super) fn finish(mut self) -> Result<usize, TransportError> {
        if self.is_awaited() {
            tracing::error!("a request got no answer from the service: {:?}", self.request);
            self.fail(&Failure::Errno(Errno::IO));
        }
        self.failed.map_or(Ok(self.sent), Err)
    }

    fn ended(&mut self, result: Result<(), TransportError>) {
        self.answered = true;
        self.sent = self.sent.max(self.payload.len());
        self.failed = result.err();
    }

    /// Encodes the body; an answer that no message can carry becomes EIO, and false is returned.
    fn encode_reply(&mut self, reply: &Reply, payload: usize) -> bool {
        self.body.clear();
        encode(reply, self.body);
        let fits = self.body.len() <= MAX_BODY as usize && payload <= MAX_PAYLOAD as usize;
        if !fits {
            tracing::error!("an answer is too long: body {}, payload {payload} bytes", self.body.len());
            self.fail(&Failure::Errno(Errno::IO));
        }
        fits
    }

    fn head(&self, status: Status, payload: usize) -> [u8; HEADER_LEN] {
        let (epoch, namespace) = (self.versions)();
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
        let payload: &[u8] = if with_payload { self.payload } else { &[] };
        let head = self.head(status, payload.len());
        self.line.send(&head, self.body, payload, pass, SendFlags::empty())
    }

    fn send_file(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), TransportError> {
        // MORE: the first packet is filled up with the beginning of the payload.
        self.line.send(&self.head(Status::OK, len), self.body, &[], None, SendFlags::MORE)?;
        let mut at = offset;
        let mut left = len;
        let mut wait = self.line.wait();
        while left > 0 {
            match rustix::fs::sendfile(self.line.fd, file, Some(&mut at), left) {
                Ok(0) => return self.line.send_zeros(left),
                Ok(n) => {
                    left = left.saturating_sub(n);
                    wait = self.line.wait();
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

impl<'a> Outlet<'a> {
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
            match gather::send(self.fd, [&[], head, body], &payload, sent, pass, flags) {
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

    fn wait(&self) -> Wait<'a> {
        Wait { stall: self.stall, halt: self.halt, since: None }
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

/// Reads until `into` is full or the file ends.
fn read_all(file: BorrowedFd<'_>, offset: u64, mut into: &mut [u8]) -> Result<(), Sys> {
    let mut at = offset;
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, at) {
            Ok(0) => break,
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
