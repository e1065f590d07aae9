//! The client's end of a connection: authenticated, blocking, one request at a time.
//!
//! A call is one system call to send and, for answers with little payload, one to receive. Nothing is
//! allocated on the way. A connection is marked broken when a request begins and sound again when its answer
//! is complete: whatever ends a call early (an error, a signal handler that jumps out of it) leaves a
//! connection that refuses to be used, never one with half a message in it. After a fork only one of the two
//! processes may use it; dropping it in the other disturbs nobody.

use crate::crowd::Crowd;
use crate::endpoint::Endpoint;
use crate::error::TransportError;
use crate::gather;
use crate::handshake;
use crate::progress::{INBOX, Line, Progress, Received, Step};
use crate::socket::{self, now};
use crate::spin::{BULK, Spin};
use bivouac_node::Fd;
use bivouac_proto::Header;
use bivouac_proto::auth::{Key, Role, Welcome};
use bivouac_proto::header::HEADER_LEN;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Longest time to connect and authenticate.
    pub timeout: Duration,
    /// Longest silence of the peer within a call, before it ends with [`TransportError::TimedOut`].
    pub silence: Duration,
    /// Lowest number for the connection's descriptor and for descriptors that it receives. 0: any.
    pub fd_floor: RawFd,
    /// Answers are busy-waited for only while no other thread of the machine waits for a core: it may be the one that
    /// is to answer. For daemons; it takes one more descriptor of the process.
    pub considerate: bool,
}

impl Default for ConnectOptions {
    /// 5 s to connect, 60 s of silence, any descriptor, not considerate.
    fn default() -> ConnectOptions {
        ConnectOptions {
            timeout: Duration::from_secs(5),
            silence: Duration::from_secs(60),
            fd_floor: 0,
            considerate: false,
        }
    }
}

/// A request on its way out.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Whole messages that expect no answer, to be sent ahead of this one. So they cost no system call of
    /// their own, and do not wake the server an extra time.
    pub before: &'a [u8],
    /// Kind, shard, epoch, namespace, identity. Lengths and flags are filled in.
    pub header: Header,
    /// The encoded request.
    pub body: &'a [u8],
    /// What follows it: gathered, at most [`bivouac_proto::header::MAX_PAYLOAD`] bytes.
    pub payload: &'a [IoSlice<'a>],
}

/// An answer.
#[derive(Debug)]
pub struct Answer<'c> {
    /// Its header: status, epoch, namespace version, lengths.
    pub header: Header,
    /// Its body, in the connection's buffer.
    pub body: &'c [u8],
    /// Bytes that came into the caller's slices.
    pub payload_len: usize,
    /// The descriptor that came with it (close-on-exec).
    pub fd: Option<Fd>,
}

/// An authenticated connection to a daemon.
pub struct Connection {
    fd: Fd,
    unix: bool,
    role: Role,
    fd_floor: RawFd,
    silence: Duration,
    inbox: Vec<u8>,
    progress: Progress,
    spin: Spin,
    /// Looked at before a busy wait.
    crowd: Option<&'static Crowd>,
    broken: bool,
    /// The peer's process, by its own number.
    process: u64,
}

impl Connection {
    /// Connects, and proves to the daemon, and has it prove, that both know `key`.
    pub fn connect(
        endpoint: &Endpoint,
        key: &Key,
        deployment: u64,
        role: Role,
        options: &ConnectOptions,
    ) -> Result<(Connection, Welcome), TransportError> {
        let deadline = now().saturating_add(options.timeout);
        let fd = socket::connect(endpoint, deadline)?.above(options.fd_floor);
        let mut connection = Connection {
            fd,
            unix: endpoint.is_unix(),
            role: role.clone(),
            fd_floor: options.fd_floor,
            silence: options.timeout,
            inbox: vec![0; INBOX],
            progress: Progress::new(),
            spin: Spin::default(),
            crowd: options.considerate.then(Crowd::here),
            broken: false,
            process: 0,
        };
        let welcome = handshake::introduce(&mut connection, key, deployment, role, deadline)?;
        connection.set_silence(options.silence)?;
        connection.process = welcome.process;
        Ok((connection, welcome))
    }

    /// Its descriptor: so that the caller can hide it from the program, not for use.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// What it was made for.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Whether it cannot be used any more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the peer has sent something that nobody has asked for, or has closed the connection: then it is of no
    /// use any more. Only between requests.
    pub fn has_ended(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        !matches!(rustix::net::recv(&self.fd, &mut byte, flags), Err(rustix::io::Errno::AGAIN))
    }

    /// The same, before a request: a connection that has ended is broken.
    pub fn check(&mut self) -> Result<(), TransportError> {
        self.broken |= self.has_ended();
        if self.broken { Err(TransportError::Closed) } else { Ok(()) }
    }

    /// The number that the peer's process has given itself ([`Welcome::process`]).
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Frees everything but the descriptor, whose number now belongs to the program.
    pub fn forget_descriptor(self) {
        std::mem::forget(self.fd);
    }

    /// Changes the longest silence of the peer within a call.
    pub fn set_silence(&mut self, silence: Duration) -> Result<(), TransportError> {
        self.silence = silence;
        socket::set_timeout(self.fd.as_fd(), sockopt::Timeout::Recv, silence)?;
        socket::set_timeout(self.fd.as_fd(), sockopt::Timeout::Send, silence)
    }

    /// The body of the last answer, until the next request. Empty after a failure.
    pub fn body(&self) -> &[u8] {
        let body_end = HEADER_LEN + self.progress.body_len();
        if self.broken { &[] } else { self.inbox.get(HEADER_LEN..body_end).unwrap_or_default() }
    }

    /// One request, one answer. The answer's payload comes into `into`; one that is longer is an error.
    pub fn call(
        &mut self,
        request: &Outgoing<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Answer<'_>, TransportError> {
        self.begin(request, false)?;
        let Received { header, payload_len, fd } = self.complete(request, into)?;
        Ok(Answer { header, body: self.body(), payload_len, fd })
    }

    /// Sends a request whose answer is not awaited yet: [`Connection::as_fd`] becomes readable when it comes,
    /// and [`Connection::go_on`] takes it, with the same request.
    pub fn start(&mut self, request: &Outgoing<'_>) -> Result<(), TransportError> {
        self.begin(request, false)?;
        // `go_on` sends what cannot be sent now.
        self.send(request, SendFlags::empty()).map(|_| ())
    }

    /// Goes on with a call that was started, or ended with [`TransportError::TimedOut`]: the same request,
    /// the same slices.
    pub fn go_on(
        &mut self,
        request: &Outgoing<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Answer<'_>, TransportError> {
        let Received { header, payload_len, fd } = self.complete(request, into)?;
        Ok(Answer { header, body: self.body(), payload_len, fd })
    }

    /// Sends without awaiting an answer: the server gives none.
    pub fn post(&mut self, request: &Outgoing<'_>) -> Result<(), TransportError> {
        self.begin(request, true)?;
        match self.send(request, SendFlags::empty())? {
            Step::Done => {
                self.broken = false;
                Ok(())
            }
            Step::Blocked => Err(TransportError::TimedOut),
        }
    }

    /// Begins to send a request that gets no answer, and whose payload is still coming: it has `payload_len` bytes.
    /// Nothing is sent yet.
    pub fn post_begin(&mut self, request: &Outgoing<'_>, payload_len: usize) -> Result<(), TransportError> {
        if self.broken {
            return Err(TransportError::Closed);
        }
        self.progress.begin_long(request, payload_len, true)?;
        self.broken = true;
        Ok(())
    }

    /// Sends more of it: the same request with what there is of its payload, from the beginning on. Sends what the
    /// socket takes without waiting, or with `waits` all that there is, unless the peer takes nothing for as long as
    /// it may be silent. The connection is sound again when the whole request was sent.
    pub fn post_more(&mut self, request: &Outgoing<'_>, waits: bool) -> Result<(), TransportError> {
        let line =
            Line { fd: self.fd.as_fd(), unix: self.unix, fd_floor: self.fd_floor, silence: self.silence };
        let flags = if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let step = self.progress.send_part(line, request, flags)?;
        self.broken = !self.progress.is_sent();
        if waits && step == Step::Blocked { Err(TransportError::TimedOut) } else { Ok(()) }
    }

    /// Starts a request; from here on the connection counts as broken until the answer is complete.
    pub(crate) fn begin(&mut self, request: &Outgoing<'_>, no_reply: bool) -> Result<(), TransportError> {
        if self.broken {
            return Err(TransportError::Closed);
        }
        self.progress.begin(request, no_reply)?;
        self.broken = true;
        Ok(())
    }

    /// Does what is left of a request that was begun, blocking.
    pub(crate) fn complete(
        &mut self,
        request: &Outgoing<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received, TransportError> {
        if !self.progress.is_sent() && self.send(request, SendFlags::empty())? == Step::Blocked {
            return Err(TransportError::TimedOut);
        }
        let bulk = gather::total(request.payload).max(gather::total_mut(into)) > BULK;
        let vigil = if bulk { None } else { self.spin.begin() };
        let vigil = vigil.filter(|_| !self.crowd.is_some_and(Crowd::is_crowded));
        if let Some(mut vigil) = vigil {
            loop {
                if let Some(received) = self.receive(into, RecvFlags::DONTWAIT)? {
                    self.spin.ended(true);
                    return Ok(received);
                }
                if self.progress.is_answered() || !vigil.goes_on() {
                    break;
                }
            }
            self.spin.ended(self.progress.is_answered());
        }
        self.receive(into, RecvFlags::empty())?.ok_or(TransportError::TimedOut)
    }

    /// Sends more of a request that was begun.
    pub(crate) fn send(&mut self, request: &Outgoing<'_>, flags: SendFlags) -> Result<Step, TransportError> {
        let line =
            Line { fd: self.fd.as_fd(), unix: self.unix, fd_floor: self.fd_floor, silence: self.silence };
        self.progress.send(line, request, flags)
    }

    /// Receives more of its answer; `None`: it is not complete.
    pub(crate) fn receive(
        &mut self,
        into: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Option<Received>, TransportError> {
        let line =
            Line { fd: self.fd.as_fd(), unix: self.unix, fd_floor: self.fd_floor, silence: self.silence };
        match self.progress.receive(line, &mut self.inbox, into, flags)? {
            Step::Blocked => Ok(None),
            Step::Done => {
                self.broken = false;
                Ok(self.progress.finish())
            }
        }
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.progress.is_sent()
    }

    pub(crate) fn moved(&self) -> usize {
        self.progress.moved()
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// Its descriptor, to wait for what comes.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("fd", &self.fd)
            .field("role", &self.role)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
