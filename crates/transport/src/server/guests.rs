//! Connections that have not authenticated yet (*guests*): how many there may be, and which one is closed
//! when there are too many.
//!
//! Anybody on the network may connect and say nothing. What such a peer may use up is bounded: each listener
//! has room for a number of unauthenticated connections. Each of them is closed after
//! [`ServerOptions::greeting`](super::ServerOptions). When there is no room, the oldest one is closed,
//! provided that it has had a fair time to prove itself. Until then new connections wait in the listener's
//! backlog. A genuine client proves itself within milliseconds, so that even of a burst of thousands none is
//! closed; somebody without the key who keeps silent connections open only delays others by the fair time.
//!
//! The acceptor's thread alone owns this list. It learns without a lock that a connection is no guest any
//! more: the connection's [`Ticket`] is gone then.

use super::Service;
use super::pool::Pool;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Held by a connection for as long as it has not authenticated.
pub(super) type Ticket = Arc<()>;

/// The unauthenticated connections of one kind, oldest first.
pub(super) struct Guests {
    /// How many there may be.
    most: usize,
    /// How long each may stay although others wait.
    fair: Duration,
    /// Also contains some that have authenticated since, until this is noticed.
    list: VecDeque<Guest>,
}

struct Guest {
    since: Duration,
    token: u64,
    ticket: Weak<()>,
}

impl Guest {
    fn is_over(&self) -> bool {
        self.ticket.strong_count() == 0
    }
}

/// Whether one more connection may be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// Yes.
    Free,
    /// Not before this moment, unless somebody authenticates or leaves.
    NotBefore(Duration),
}

impl Guests {
    pub(super) fn new(most: usize, fair: Duration) -> Guests {
        Guests { most, fair, list: VecDeque::new() }
    }

    /// Notes a connection that was admitted at the moment `since`.
    pub(super) fn note(&mut self, since: Duration, token: u64, ticket: &Ticket) {
        self.list.push_back(Guest { since, token, ticket: Arc::downgrade(ticket) });
    }

    /// Makes room for one more by closing the oldest guest that has had its fair time.
    pub(super) fn make_room<S: Service>(&mut self, pool: &Pool<S>, now: Duration) -> Room {
        if self.list.len() < self.most {
            return Room::Free;
        }
        self.list.retain(|guest| !guest.is_over());
        if self.list.len() < self.most {
            return Room::Free;
        }
        let fair = self.fair;
        if self.close_first(pool, |guest| guest.since.saturating_add(fair) <= now) {
            return Room::Free;
        }
        Room::NotBefore(self.list.front().map_or(now, |oldest| oldest.since.saturating_add(fair)))
    }

    /// Closes the oldest guest, however long it has been there. Whether there was one.
    pub(super) fn close_oldest<S: Service>(&mut self, pool: &Pool<S>) -> bool {
        self.close_first(pool, |_| true)
    }

    /// Closes the first one for which `may_go` is true, if no worker is at work on it at this moment.
    fn close_first<S: Service>(&mut self, pool: &Pool<S>, may_go: impl Fn(&Guest) -> bool) -> bool {
        let closed = self
            .list
            .iter()
            .take_while(|guest| may_go(guest))
            .position(|guest| !guest.is_over() && pool.close_unless_authenticated(guest.token));
        if let Some(at) = closed {
            self.list.remove(at);
        }
        closed.is_some()
    }

    /// Closes those who have been guests for `longest`.
    pub(super) fn close_overdue<S: Service>(&mut self, pool: &Pool<S>, now: Duration, longest: Duration) {
        while let Some(oldest) = self.list.front()
            && (oldest.is_over() || oldest.since.saturating_add(longest) <= now)
        {
            if !oldest.is_over() {
                pool.close_unless_authenticated(oldest.token);
            }
            self.list.pop_front();
        }
    }

    /// When the oldest one will have been here for `longest`.
    pub(super) fn next_overdue(&self, longest: Duration) -> Option<Duration> {
        self.list.front().map(|oldest| oldest.since.saturating_add(longest))
    }
}
