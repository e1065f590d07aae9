//! The server's side of the authentication, piece by piece: nothing here waits.
//!
//! Only a peer that has proven the key learns why it is declined; all others see their connection close. The
//! one exception is a peer of another protocol version: it gets a header of ours, which tells it both
//! versions.

use super::guests::Ticket;
use super::{Parting, PeerInfo, Service};
use crate::error::TransportError;
use crate::gather;
use crate::handshake::nonce;
use bivouac_proto::auth::{ANY_DEPLOYMENT, Challenge, Hello, NONCE_LEN, Proof, Side, prove, verify};
use bivouac_proto::header::HEADER_LEN;
use bivouac_proto::{Errno, Header, Kind, Status, decode, encode};
use rustix::fd::BorrowedFd;
use rustix::io::Errno as Sys;
use rustix::net::{RecvFlags, SendFlags};
use std::time::Duration;

/// Longest body before the authentication is done: room for a user in thousands of groups.
const MAX_GREETING: usize = 64 << 10;
/// Bytes taken from the socket at a time.
const PIECE: usize = 4 << 10;

/// A connection on its way to being authenticated.
pub(super) struct Greeting {
    /// When it must be done.
    pub(super) deadline: Duration,
    /// Exists as long as the greeting: by it the acceptor knows that the connection has not authenticated.
    _ticket: Ticket,
    bytes: Vec<u8>,
    challenged: Option<(Hello, [u8; NONCE_LEN])>,
}

/// How far it got.
pub(super) enum Greeted<T> {
    /// More has to come.
    Waiting,
    /// It is done.
    Done(T),
}

impl Greeting {
    pub(super) fn new(deadline: Duration, ticket: Ticket) -> Greeting {
        Greeting { deadline, _ticket: ticket, bytes: Vec::new(), challenged: None }
    }

    /// Takes what the socket has. An error means: close the connection.
    pub(super) fn step<S: Service>(
        &mut self,
        fd: BorrowedFd<'_>,
        peer: PeerInfo,
        service: &S,
    ) -> Result<Greeted<S::Session>, TransportError> {
        let result = self.try_step(fd, peer, service);
        if let Err(TransportError::Version { .. }) = result {
            refuse(fd, Errno::PROTO);
        }
        result
    }

    fn try_step<S: Service>(
        &mut self,
        fd: BorrowedFd<'_>,
        peer: PeerInfo,
        service: &S,
    ) -> Result<Greeted<S::Session>, TransportError> {
        loop {
            while let Some(body) = self.message()? {
                let Some((hello, server_nonce)) = self.challenged.take() else {
                    self.challenge(fd, &body, service)?;
                    continue;
                };
                let proof: Proof = decode(&body).map_err(|_| TransportError::Authentication)?;
                if !verify(service.key(), Side::Client, &hello, &server_nonce, &proof.proof) {
                    return Err(TransportError::Authentication);
                }
                return self.welcome(fd, peer, &hello, service).map(Greeted::Done);
            }
            let mut piece = [0; PIECE];
            match rustix::net::recv(fd, &mut piece, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(TransportError::Closed),
                Ok((n, _)) => self.bytes.extend_from_slice(piece.get(..n).unwrap_or_default()),
                Err(Sys::AGAIN) => return Ok(Greeted::Waiting),
                Err(Sys::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The body of the next message, once it is complete. Never holds more than one message and a piece.
    fn message(&mut self) -> Result<Option<Vec<u8>>, TransportError> {
        let Some(head) = self.bytes.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = Header::from_bytes(head)?;
        if header.kind != Kind::Auth {
            return Err(TransportError::Protocol("a request before the authentication"));
        }
        let body_end = HEADER_LEN + header.body_len as usize;
        if header.payload_len != 0 || body_end > HEADER_LEN + MAX_GREETING {
            return Err(TransportError::Protocol("oversized authentication"));
        }
        let Some(body) = self.bytes.get(HEADER_LEN..body_end).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.bytes.drain(..body_end);
        Ok(Some(body))
    }

    fn challenge<S: Service>(
        &mut self,
        fd: BorrowedFd<'_>,
        body: &[u8],
        service: &S,
    ) -> Result<(), TransportError> {
        let hello: Hello = decode(body).map_err(|_| TransportError::Protocol("malformed authentication"))?;
        if !self.bytes.is_empty() {
            return Err(TransportError::Protocol("an answer before the challenge"));
        }
        let server_nonce = nonce()?;
        let proof = prove(service.key(), Side::Server, &hello, &server_nonce);
        let mut body = Vec::new();
        encode(&Challenge { nonce: server_nonce, proof }, &mut body);
        send(fd, Status::OK, &body)?;
        self.challenged = Some((hello, server_nonce));
        Ok(())
    }

    fn welcome<S: Service>(
        &mut self,
        fd: BorrowedFd<'_>,
        peer: PeerInfo,
        hello: &Hello,
        service: &S,
    ) -> Result<S::Session, TransportError> {
        if !self.bytes.is_empty() {
            return Err(TransportError::Protocol("a request before the authentication"));
        }
        let accepted = if [ANY_DEPLOYMENT, service.deployment()].contains(&hello.deployment) {
            service.accept(hello, peer)
        } else {
            None
        };
        let Some((session, welcome)) = accepted else {
            refuse(fd, Errno::ACCESS);
            return Err(TransportError::Authentication);
        };
        let mut body = Vec::new();
        encode(&welcome, &mut body);
        match send(fd, Status::OK, &body) {
            Ok(()) => Ok(session),
            Err(error) => {
                service.closed(session, Parting::Lost);
                Err(error)
            }
        }
    }
}

/// Declines the peer. Reads what the peer still sends, because closing a socket with unread bytes would
/// destroy the answer.
fn refuse(fd: BorrowedFd<'_>, errno: Errno) {
    if send(fd, errno.into(), &[]).is_ok() {
        let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
        let mut piece = [0; PIECE];
        for _ in 0..MAX_GREETING / PIECE {
            match rustix::net::recv(fd, &mut piece, RecvFlags::DONTWAIT) {
                Ok((n, _)) if n > 0 => {}
                _ => break,
            }
        }
    }
}

/// Sends a short message, which always fits into an idle socket.
fn send(fd: BorrowedFd<'_>, status: Status, body: &[u8]) -> Result<(), TransportError> {
    let mut header = Header::new(Kind::Auth);
    header.status = status;
    header.body_len = body.len() as u32;
    let sent = gather::send(fd, [&[], &header.to_bytes(), body], &[], 0, None, SendFlags::DONTWAIT)?;
    if sent == HEADER_LEN + body.len() { Ok(()) } else { Err(TransportError::TimedOut) }
}
