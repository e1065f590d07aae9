//! One request and its answer on their way through a socket, in any number of steps.
//!
//! [`Progress`] knows how many bytes went out and came in; [`Progress::send`] and [`Progress::receive`] move
//! as many as the socket takes. With a blocking socket that is one step each; with `DONTWAIT` the caller
//! polls and calls again. The body is received into the connection's buffer, the payload into the caller's.

use crate::connection::Outgoing;
use crate::error::TransportError;
use crate::gather;
use crate::socket::now;
use bivouac_node::Fd;
use bivouac_proto::header::{HEADER_LEN, HeaderError, MAX_BODY, MAX_PAYLOAD, NO_REPLY};
use bivouac_proto::{Header, Kind, RequestId};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::IoSliceMut;
use std::time::Duration;

/// The first receive of an answer takes up to this: header, body and a small payload come with one system
/// call, and are copied out.
pub(crate) const INBOX: usize = 20 << 10;
/// Payloads up to this come with the first receive.
const SMALL_PAYLOAD: usize = 16 << 10;
/// If a larger payload may follow a body of unknown length, the first receive takes only so much, so that
/// hardly any of the payload has to be copied.
const GLIMPSE: usize = 64;

/// An answer, whose body is in the connection ([`crate::Connection::body`]).
#[derive(Debug)]
pub struct Received {
    /// Its header: status, epoch, namespace version, lengths.
    pub header: Header,
    /// Bytes that came into the caller's slices.
    pub payload_len: usize,
    /// The descriptor that came with it (close-on-exec).
    pub fd: Option<Fd>,
}

/// How far a step got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// All done.
    Done,
    /// The socket cannot send, or has not received, any more now.
    Blocked,
}

/// The socket as steps need it.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub fd: BorrowedFd<'a>,
    pub unix: bool,
    pub fd_floor: RawFd,
    /// Longest silence that is waited out.
    pub silence: Duration,
}

/// Where an exchange of messages stands.
pub(crate) struct Progress {
    head: [u8; HEADER_LEN],
    sent: usize,
    to_send: usize,
    kind: Kind,
    id: RequestId,
    filled: usize,
    answer: Option<Header>,
    payload: usize,
    /// Expected length of the body of an answer with much payload: that of the last such answer.
    foreseen: Option<usize>,
    /// Where in the inbox the front of this answer ends.
    front: usize,
    fd: Option<Fd>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress {
            head: [0; HEADER_LEN],
            sent: 0,
            to_send: 0,
            kind: Kind::Request,
            id: RequestId::default(),
            filled: 0,
            answer: None,
            payload: 0,
            foreseen: None,
            front: 0,
            fd: None,
        }
    }

    /// Begins with a request; nothing is sent yet.
    pub(crate) fn begin(&mut self, request: &Outgoing<'_>, no_reply: bool) -> Result<(), TransportError> {
        self.begin_long(request, gather::total(request.payload), no_reply)
    }

    /// The same with a request of whose payload not all is there yet.
    pub(crate) fn begin_long(
        &mut self,
        request: &Outgoing<'_>,
        payload: usize,
        no_reply: bool,
    ) -> Result<(), TransportError> {
        let body = request.body.len();
        if body > MAX_BODY as usize || payload > MAX_PAYLOAD as usize {
            return Err(TransportError::TooLong { body, payload });
        }
        let mut header = request.header;
        header.body_len = body as u32;
        header.payload_len = payload as u32;
        header.flags = if no_reply { header.flags | NO_REPLY } else { header.flags & !NO_REPLY };
        *self = Progress {
            head: header.to_bytes(),
            to_send: request.before.len() + HEADER_LEN + body + payload,
            kind: header.kind,
            id: header.id,
            foreseen: self.foreseen,
            ..Progress::new()
        };
        Ok(())
    }

    /// Whether the request is out.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.to_send
    }

    /// Whether the answer has begun to come.
    pub(crate) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    /// Bytes moved so far in either direction.
    pub(crate) fn moved(&self) -> usize {
        self.sent + self.filled + self.payload
    }

    /// Length of the answer's body.
    pub(crate) fn body_len(&self) -> usize {
        self.answer.map_or(0, |h| h.body_len as usize)
    }

    /// Sends as much as the socket takes.
    pub(crate) fn send(
        &mut self,
        line: Line<'_>,
        request: &Outgoing<'_>,
        flags: SendFlags,
    ) -> Result<Step, TransportError> {
        let mut patience = Patience::new(line.silence);
        while self.sent < self.to_send {
            let front = [request.before, &self.head, request.body];
            match gather::send(line.fd, front, request.payload, self.sent, None, flags) {
                Ok(n) => {
                    self.sent += n;
                    patience.progressed();
                }
                Err(Errno::AGAIN) => return Ok(Step::Blocked),
                Err(Errno::INTR) => patience.interrupted()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Step::Done)
    }

    /// Sends of what there is of a request as much as the socket takes.
    pub(crate) fn send_part(
        &mut self,
        line: Line<'_>,
        request: &Outgoing<'_>,
        flags: SendFlags,
    ) -> Result<Step, TransportError> {
        let whole = self.to_send;
        let there = request.before.len() + HEADER_LEN + request.body.len() + gather::total(request.payload);
        self.to_send = there.min(whole);
        let sent = self.send(line, request, flags);
        self.to_send = whole;
        sent
    }

    /// Receives as much as the socket has of the answer.
    pub(crate) fn receive(
        &mut self,
        line: Line<'_>,
        inbox: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Step, TransportError> {
        let mut patience = Patience::new(line.silence);
        loop {
            let received = match self.answer {
                None => self.receive_head(line, inbox, into, flags),
                Some(header) => match self.receive_rest(line, header, inbox, into, flags) {
                    Some(received) => received,
                    None => return Ok(Step::Done),
                },
            };
            match received {
                Ok(0) => return Err(self.closed_early(inbox)),
                Ok(_) => patience.progressed(),
                Err(Errno::AGAIN) => return Ok(Step::Blocked),
                Err(Errno::INTR) => patience.interrupted()?,
                Err(error) => return Err(error.into()),
            }
            if self.answer.is_none() {
                self.read_head(inbox, into)?;
            }
        }
    }

    /// The answer. Only after [`Progress::receive`] has said that it is complete.
    pub(crate) fn finish(&mut self) -> Option<Received> {
        let header = self.answer?;
        Some(Received { header, payload_len: header.payload_len as usize, fd: self.fd.take() })
    }

    /// Receives the front of an answer into the inbox. If much payload may follow, takes only as much as
    /// header and body are expected to have, so that the payload can be received straight to its place.
    fn receive_head(
        &mut self,
        line: Line<'_>,
        inbox: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        let much = gather::total_mut(into) > SMALL_PAYLOAD;
        self.front = if much { HEADER_LEN + self.foreseen.unwrap_or(GLIMPSE) } else { INBOX };
        if inbox.len() < self.front {
            inbox.resize(self.front, 0);
        }
        let free = inbox.get_mut(self.filled..self.front).unwrap_or_default();
        let room = free.len();
        let into = if much && self.foreseen.is_some() { into } else { &mut [] };
        let n = if line.unix {
            let (n, fd) = gather::receive_with_descriptor(line.fd, free, into, flags)?;
            if let Some(fd) = fd {
                self.fd = Some(fd.above(line.fd_floor));
            }
            n
        } else {
            gather::receive(line.fd, free, into, 0, flags)?
        };
        self.filled += n.min(room);
        self.payload = n.saturating_sub(room);
        Ok(n)
    }

    /// Looks at the header once it is there, and moves what came of the payload where it belongs.
    fn read_head(&mut self, inbox: &mut Vec<u8>, into: &mut [IoSliceMut<'_>]) -> Result<(), TransportError> {
        let Some(head) = inbox.get(..self.filled).and_then(|b| b.first_chunk()) else {
            return Ok(());
        };
        let header = Header::from_bytes(head)?;
        match (self.kind, header.kind) {
            (Kind::Auth, Kind::Auth) => {}
            (Kind::Request, Kind::Reply) if header.id == self.id => {}
            _ => return Err(TransportError::Protocol("not the answer to the request")),
        }
        if header.payload_len as usize > gather::total_mut(into) {
            return Err(TransportError::Protocol("longer payload than asked for"));
        }
        let body_end = HEADER_LEN + header.body_len as usize;
        if self.filled + self.payload > body_end + header.payload_len as usize {
            return Err(TransportError::Protocol("bytes after the answer"));
        }
        if self.payload > 0 && body_end != self.front {
            // The body has not the expected length: divide what came into body and payload again.
            let came = gather::gathered(into, self.payload);
            inbox.truncate(self.filled);
            inbox.extend_from_slice(&came);
            (self.filled, self.payload) = (inbox.len(), 0);
        }
        if inbox.len() < body_end {
            inbox.resize(body_end, 0);
        }
        if let Some(early) = inbox.get(body_end..self.filled)
            && !early.is_empty()
        {
            self.payload = gather::copy(into, early);
            self.filled = body_end;
        }
        if header.payload_len as usize > SMALL_PAYLOAD {
            self.foreseen = Some(header.body_len as usize);
        }
        self.answer = Some(header);
        Ok(())
    }

    /// Receives more of the body or the payload; `None` when both are complete.
    fn receive_rest(
        &mut self,
        line: Line<'_>,
        header: Header,
        inbox: &mut [u8],
        into: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Option<Result<usize, Errno>> {
        // A blocking receive need not come back before it has everything.
        let flags = if flags.contains(RecvFlags::DONTWAIT) { flags } else { flags | RecvFlags::WAITALL };
        let body_end = HEADER_LEN + header.body_len as usize;
        if self.filled < body_end {
            let free = inbox.get_mut(self.filled..body_end).unwrap_or_default();
            let result = rustix::net::recv(line.fd, free, flags).map(|(n, _)| n);
            self.filled += result.unwrap_or(0);
            Some(result)
        } else if self.payload < header.payload_len as usize {
            let result = receive_payload(line.fd, into, self.payload, header.payload_len as usize, flags);
            self.payload += result.unwrap_or(0);
            Some(result)
        } else {
            None
        }
    }

    /// The stream ended within the answer. A peer of another version may have said so in a header that is
    /// shorter than ours.
    fn closed_early(&self, inbox: &[u8]) -> TransportError {
        let mut head = [0; HEADER_LEN];
        if self.answer.is_none() && self.filled >= 6 {
            let known = self.filled.min(HEADER_LEN);
            head[..known].copy_from_slice(&inbox[..known]);
            if let Err(HeaderError::Version { theirs }) = Header::from_bytes(&head) {
                return TransportError::Version { theirs };
            }
        }
        TransportError::Closed
    }
}

/// Receives into `into` from `from` up to `to`, not a byte beyond: the caller's slices may be longer than the
/// payload.
fn receive_payload(
    fd: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    from: usize,
    to: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    if gather::total_mut(into) == to {
        return gather::receive(fd, &mut [], into, from, flags);
    }
    // A shorter answer than there is room for: slice by slice, which is rare.
    let mut start = 0;
    for part in into.iter_mut() {
        let end = (start + part.len()).min(to);
        if from < end
            && let Some(free) = part.get_mut(from.saturating_sub(start)..end - start)
        {
            return rustix::net::recv(fd, free, flags).map(|(n, _)| n);
        }
        start += part.len();
    }
    Ok(0)
}

/// Bounds the wait of a call that signals keep interrupting: each of them restarts the kernel's clock.
pub(crate) struct Patience {
    silence: Duration,
    until: Option<Duration>,
}

impl Patience {
    pub(crate) fn new(silence: Duration) -> Patience {
        Patience { silence, until: None }
    }

    pub(crate) fn progressed(&mut self) {
        self.until = None;
    }

    pub(crate) fn interrupted(&mut self) -> Result<(), TransportError> {
        let now = now();
        if now > *self.until.get_or_insert(now.saturating_add(self.silence)) {
            return Err(TransportError::TimedOut);
        }
        Ok(())
    }
}
