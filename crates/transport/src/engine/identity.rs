//! Who a request is, through all its attempts.

use super::Requester;
use crate::connection::Connection;
use crate::error::TransportError;
use bivouac_layout::{Map, ServerId};
use bivouac_proto::RequestId;

/// A connection, and the request slot of the session that its requests carry. It has one request under way at
/// most, and so has the slot.
#[derive(Debug)]
pub struct Lane {
    /// The connection.
    pub connection: Connection,
    slot: u32,
    /// Requests numbered with this slot.
    sequence: u64,
}

impl Lane {
    /// A connection with a slot that no other connection of the session has had.
    pub fn new(connection: Connection, slot: u32) -> Lane {
        Lane { connection, slot, sequence: 0 }
    }

    /// The identity of the next request on this connection.
    pub(super) fn next_id(&mut self, session: u64) -> RequestId {
        self.sequence += 1;
        RequestId { session, slot: self.slot, sequence: self.sequence }
    }
}

/// No process: several have not answered.
const SEVERAL: u64 = 0;

/// The identity of a request.
pub(super) struct Identity<L> {
    id: Option<RequestId>,
    /// Attempts that were begun.
    attempts: u16,
    /// The connection whose slot the identity is of: nobody else may use it until the request is answered.
    owner: Option<(ServerId, L)>,
    /// The process that has not answered an attempt.
    lost: Option<u64>,
}

impl<L> Default for Identity<L> {
    fn default() -> Identity<L> {
        Identity { id: None, attempts: 0, owner: None, lost: None }
    }
}

impl<L> Identity<L> {
    /// Of a request whose only attempt was lost with its connection. A broken connection's slot is nobody's any
    /// more: the identity stays this request's.
    pub(super) fn of_lost(id: RequestId) -> Identity<L> {
        Identity { id: Some(id), attempts: 1, owner: None, lost: None }
    }

    /// Whether an attempt was begun.
    pub(super) fn has_begun(&self) -> bool {
        self.attempts > 0
    }

    /// A connection for the next attempt, the identity, and how many attempts there were before.
    pub(super) fn link_for<R: Requester<Link = L>>(
        &mut self,
        requester: &R,
        server: ServerId,
        map: &Map,
    ) -> Result<(L, RequestId, u16), TransportError> {
        let mut link = match self.owner.take_if(|(of, link)| *of == server && R::works(link)) {
            Some((_, link)) => link,
            None => requester.take(server, map)?,
        };
        let id = match self.id {
            Some(id) => id,
            None => match requester.session() {
                Ok(session) => *self.id.insert(R::lane(&mut link).next_id(session)),
                Err(error) => {
                    requester.give(server, link);
                    return Err(error);
                }
            },
        };
        let attempts = self.attempts;
        self.attempts = attempts.saturating_add(1);
        Ok((link, id, attempts))
    }

    /// After an attempt over `link`.
    pub(super) fn done_with<R: Requester<Link = L>>(&mut self, requester: &R, server: ServerId, mut link: L) {
        if self.id.is_some_and(|id| id.slot == R::lane(&mut link).slot) {
            self.owner = Some((server, link));
        } else {
            requester.give(server, link);
        }
    }

    /// An attempt was not answered by this process.
    pub(super) fn lost_at(&mut self, process: u64) {
        let several = self.lost.is_some_and(|before| before != process);
        self.lost = Some(if several { SEVERAL } else { process });
    }

    /// Whether an attempt may have been carried out by another process than this one, which cannot know.
    pub(super) fn is_lost_to(&self, process: u64) -> bool {
        self.lost.is_some_and(|lost| lost != process)
    }

    /// The request is over.
    pub(super) fn give_back<R: Requester<Link = L>>(self, requester: &R) {
        if let Some((server, link)) = self.owner {
            requester.give(server, link);
        }
    }
}
