//! A request and its answer, with the buffers of both.
//!
//! A worker has one, into which it receives request after request. A service that answers at once borrows from it; one that
//! queues, merges, or answers from another thread takes it away ([`Call::later`]), and the worker goes on with other
//! buffers. No byte is copied for that but the beginning of a further request that has come already.

use super::inbox::{Found, Inbox};
use super::responder::{Line, Responder};
use bivouac_proto::{Header, Kind};
use std::sync::Arc;

/// One request, and the way its answer goes.
///
/// One that was taken away is answered with EIO if it is dropped without an answer.
pub struct Call {
    pub(super) inbox: Inbox,
    found: Found,
    pub(super) reply: Responder,
    /// It was taken away from its worker.
    is_later: bool,
    /// The worker's request was taken away.
    was_taken: bool,
}

/// What a worker has between two connections.
#[derive(Default)]
pub(super) struct Desk {
    pub(super) inbox: Inbox,
    pub(super) body: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl Call {
    /// For the requests of a connection.
    pub(super) fn new(line: Arc<Line>, desk: Desk) -> Call {
        let found = Found { header: Header::new(Kind::Request), body: 0..0, payload: 0..0 };
        let reply = Responder::idle(line, desk.body, desk.payload);
        Call { inbox: desk.inbox, found, reply, is_later: false, was_taken: false }
    }

    /// A request has been found in the buffer.
    pub(super) fn begin(&mut self, found: Found) {
        self.reply.begin(found.header);
        self.found = found;
        self.was_taken = false;
    }

    /// Whether the request that was begun was taken away.
    pub(super) fn was_taken(&self) -> bool {
        self.was_taken
    }

    /// The buffers.
    pub(super) fn into_desk(mut self) -> Desk {
        let (body, payload) = self.reply.take_buffers();
        Desk { inbox: std::mem::take(&mut self.inbox), body, payload }
    }

    /// The request's header.
    pub fn header(&self) -> &Header {
        &self.found.header
    }

    /// Its header, its body, all of its payload, and the way its answer goes.
    pub fn parts(&mut self) -> (&Header, &[u8], &mut [u8], &mut Responder) {
        let (body, payload) = self.inbox.parts(&self.found);
        (&self.found.header, body, payload, &mut self.reply)
    }

    /// Takes the call away, to be answered later, from whatever thread. The connection's next request may be served before.
    pub fn later(&mut self) -> Call {
        let line = self.reply.line().clone();
        let ours = self.inbox.take_away(line.shelf.take());
        let beyond = std::mem::replace(&mut self.inbox, ours);
        let mut next = Call::new(line, Desk { inbox: beyond, ..Desk::default() });
        next.was_taken = true;
        let mut call = std::mem::replace(self, next);
        call.is_later = true;
        call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.is_later {
            self.reply.finish_later();
            self.reply.line().shelf.put(std::mem::take(&mut self.inbox).into_bytes());
        }
    }
}
