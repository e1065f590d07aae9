//! One attempt: one request over one connection, and what its answer says.

use crate::connection::{Answer, Connection, Outgoing};
use crate::error::TransportError;
use bivouac_node::Fd;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Status};
use rustix::fd::BorrowedFd;
use std::io::IoSliceMut;

/// Waits for an answer in place of the engine: called with the connection once a request is out; returns when
/// something came, or when whatever it did to hurry the server is done.
pub type Watch<'w> = &'w dyn Fn(BorrowedFd<'_>);

/// A reply with what came along.
#[derive(Debug)]
pub struct Answered {
    /// What the server says.
    pub reply: Reply,
    /// Bytes of payload that came into the caller's slices.
    pub payload_len: usize,
    /// The descriptor that came with it.
    pub fd: Option<Fd>,
}

/// Sends a request and takes its answer. Each time that the peer was silent for too long, `goes_on` says
/// whether to wait for it any longer.
pub fn attempt(
    connection: &mut Connection,
    outgoing: &Outgoing<'_>,
    into: &mut [IoSliceMut<'_>],
    watch: Option<Watch<'_>>,
    goes_on: impl Fn() -> bool,
) -> Result<Result<Answered, Failure>, TransportError> {
    let mut outcome = match watch {
        None => connection.call(outgoing, into).map(opened),
        Some(watch) => {
            connection.start(outgoing)?;
            watch(connection.as_fd());
            connection.go_on(outgoing, into).map(opened)
        }
    };
    while matches!(outcome, Err(TransportError::TimedOut)) && goes_on() {
        outcome = connection.go_on(outgoing, into).map(opened);
    }
    outcome
}

/// Takes an answer out of its connection's buffer.
fn opened(answer: Answer<'_>) -> Result<Answered, Failure> {
    let reply = open(answer.header.status, answer.body)?;
    Ok(Answered { reply, payload_len: answer.payload_len, fd: answer.fd })
}

/// What an answer of this status says.
pub(super) fn open(status: Status, body: &[u8]) -> Result<Reply, Failure> {
    if status == Status::OK {
        return bivouac_proto::decode(body).map_err(|_| Errno::PROTO.into());
    }
    if status == Status::REFUSED {
        let refusal: Refusal = bivouac_proto::decode(body).map_err(|_| Errno::PROTO)?;
        return Err(refusal.into());
    }
    Err(status.errno().unwrap_or(Errno::PROTO).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_reply_a_refusal_or_an_error_and_garbage_is_eproto() {
        let (mut done, mut busy) = (Vec::new(), Vec::new());
        bivouac_proto::encode(&Reply::Done, &mut done);
        bivouac_proto::encode(&Refusal::Busy, &mut busy);
        assert!(matches!(open(Status::OK, &done), Ok(Reply::Done)));
        assert!(matches!(open(Status::REFUSED, &busy), Err(Failure::Refused(Refusal::Busy))));
        for status in [Status::OK, Status::REFUSED] {
            let garbage = open(status, &[0xff; 40]);
            assert!(matches!(garbage, Err(Failure::Errno(Errno::PROTO))), "{garbage:?}");
        }
        let failed = open(Status::from(Errno::NOENT), &[]);
        assert!(matches!(failed, Err(Failure::Errno(Errno::NOENT))), "{failed:?}");
    }
}
