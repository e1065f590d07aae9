//! Closes that are sent with the next request.
//!
//! No program waits until a server knows of a close, and a message of its own would cost a system call and,
//! worse, wake the server once more. So the client keeps the release of a description, and sends it ahead of
//! the next request to the same server, in the same system call. After [`MOST`] of them, or when the process
//! ends or executes another program, it sends them alone. Until then the slot of the description stays in the
//! node's table as *retiring*: if the process dies, or makes no request for a while, the node's agent
//! releases it ([`bivouac_node::OpenTable::sweep`]).
//!
//! The client keeps only closes that may be late without anybody noticing. It does not keep those of
//! descriptions with locks, nor of files in blocks, because somebody may wait for their space or look at
//! their size.

use super::Requests;
use crate::spare::Spare;
use bivouac_layout::ServerId;
use bivouac_node::SlotId;
use bivouac_proto::header::{HEADER_LEN, NO_REPLY};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::{Header, Kind, Request, RequestId};
use bivouac_transport::Outgoing;

/// Most closes that are kept for a server.
const MOST: usize = 32;

/// Closes that a server has not been told yet.
#[derive(Default)]
pub(crate) struct Closes {
    /// The fork count that they belong to: in a forked child they are invalid.
    fork_count: u64,
    /// Whole messages.
    messages: Vec<u8>,
    slots: Vec<SlotId>,
}

impl Closes {
    /// The messages to send ahead of the next request.
    pub(crate) fn messages(&self) -> &[u8] {
        &self.messages
    }
}

/// What is kept for one server.
pub(crate) type Kept = Spare<Closes>;

impl Spare<Closes> {
    /// Puts closes back. If another thread has put some in meanwhile, the two are merged.
    fn add(&self, mut closes: Box<Closes>) {
        while let Err(back) = self.try_put(closes) {
            closes = back;
            if let Some(others) = self.take() {
                closes.messages.extend_from_slice(&others.messages);
                closes.slots.extend_from_slice(&others.slots);
            }
        }
    }
}

impl Requests {
    pub(crate) fn kept_for(&self, server: ServerId) -> Option<&Kept> {
        self.kept.get(server)
    }

    /// Keeps a close for the next request to its server.
    pub(crate) fn close_later(&self, id: SlotId, release: &MetaRequest<'_>, shard: bivouac_layout::ShardId) {
        let server = self.session().map().primary(shard);
        let Some(kept) = self.kept_for(server) else { return };
        let mut closes = kept.take().unwrap_or_default();
        self.of_this_process(&mut closes);
        let mut body = Vec::with_capacity(64);
        bivouac_proto::encode(&Request::Meta(release.clone()), &mut body);
        let mut header = Header::new(Kind::Request);
        header.shard = shard;
        header.epoch = self.session().map().epoch;
        header.namespace = u64::MAX;
        header.id = RequestId::default();
        header.flags = NO_REPLY;
        header.body_len = body.len() as u32;
        closes.messages.reserve(HEADER_LEN + body.len());
        closes.messages.extend_from_slice(&header.to_bytes());
        closes.messages.extend_from_slice(&body);
        closes.slots.push(id);
        if closes.slots.len() < MOST {
            kept.add(closes);
        } else {
            self.tell(server, closes);
        }
    }

    /// What to send ahead of the next request to a server; to be given back with [`Requests::told`] or
    /// [`Requests::not_told`].
    pub(crate) fn closes_for(&self, server: ServerId) -> Option<Box<Closes>> {
        let mut closes = self.kept_for(server)?.take()?;
        self.of_this_process(&mut closes);
        Some(closes)
    }

    /// The server has got them.
    pub(crate) fn told(&self, server: ServerId, mut closes: Box<Closes>) {
        for id in closes.slots.drain(..) {
            self.session().table().free(id);
        }
        closes.messages.clear();
        if let Some(kept) = self.kept_for(server) {
            kept.add(closes);
        }
    }

    /// It is not known whether the server has got them. To send them again does no harm.
    pub(crate) fn not_told(&self, server: ServerId, closes: Box<Closes>) {
        if let Some(kept) = self.kept_for(server) {
            kept.add(closes);
        }
    }

    /// Sends all servers what was kept for them, because the process ends or executes another program.
    pub(crate) fn tell_closes(&self) {
        for server in &self.session().map().servers {
            if let Some(closes) = self.closes_for(server.id).filter(|c| !c.slots.is_empty()) {
                self.tell(server.id, closes);
            }
        }
    }

    /// Sends closes alone. If that is not possible, the agent sends them later.
    fn tell(&self, server: ServerId, closes: Box<Closes>) {
        let Some((before, header, body)) = closes.last() else { return };
        let Ok(mut link) = self.session().take_link(server, &self.session().map()) else { return };
        let outgoing = Outgoing { before, header, body, payload: &[] };
        let sent = link.lane.connection.post(&outgoing);
        self.session().give_link(server, link);
        if sent.is_ok() {
            self.told(server, closes);
        }
    }

    fn of_this_process(&self, closes: &mut Closes) {
        let fork_count = self.session().forks();
        if closes.fork_count != fork_count {
            closes.messages.clear();
            closes.slots.clear();
            closes.fork_count = fork_count;
        }
    }
}

impl Closes {
    /// All messages but the last, and the header and the body of that one.
    fn last(&self) -> Option<(&[u8], Header, &[u8])> {
        let mut at = 0;
        loop {
            let head = self.messages.get(at..)?.first_chunk::<HEADER_LEN>()?;
            let header = Header::from_bytes(head).ok()?;
            let end = at + HEADER_LEN + header.body_len as usize;
            if end >= self.messages.len() {
                return Some((&self.messages[..at], header, self.messages.get(at + HEADER_LEN..end)?));
            }
            at = end;
        }
    }
}
