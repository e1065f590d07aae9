//! Servers that refuse connections, and since when; the node's agent, too.
//!
//! A server that lives always takes connections; one that refuses them is dead, or not back yet. The map says
//! so soon, unless the controller has died, too. Until then a server that refuses is waited for, for
//! [`PATIENCE`]: it may be starting again. That time is the failure's and not the request's: an operation
//! that needs several dead servers, one after the other, does not wait for each of them. So a server that
//! begins to refuse while another one has been refusing counts as refusing since then.

use bivouac_layout::ServerId;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a server that refuses connections is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// After so long a refusal has nothing to do with an earlier one: the server may have been back meanwhile.
const MEMORY: Duration = Duration::from_secs(12);

/// Who takes connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    Server(ServerId),
    /// The agent of this node, which a fork's child needs before it can ask any server.
    Agent,
}

/// Since when each of them has been refusing connections, milliseconds of some clock; 0: it has not.
#[derive(Debug)]
pub(crate) struct Refusals {
    servers: Box<[AtomicU32]>,
    agent: AtomicU32,
}

impl Refusals {
    /// For servers with numbers below `places`.
    pub(crate) fn new(places: usize) -> Refusals {
        let servers = (0..places).map(|_| AtomicU32::new(0)).collect();
        Refusals { servers, agent: AtomicU32::new(0) }
    }

    fn place(&self, peer: Peer) -> Option<&AtomicU32> {
        match peer {
            Peer::Server(server) => self.servers.get(usize::from(server.0)),
            Peer::Agent => Some(&self.agent),
        }
    }

    /// Somebody has taken a connection.
    pub(crate) fn taken(&self, peer: Peer) {
        if let Some(since) = self.place(peer) {
            since.store(0, Ordering::Relaxed);
        }
    }

    /// Somebody has refused one at `now`, nanoseconds.
    pub(crate) fn refused(&self, peer: Peer, now: u64) {
        let Some(place) = self.place(peer) else { return };
        let now = millis(now);
        if age(place, now).is_none() {
            let all = self.servers.iter().chain([&self.agent]);
            let longest = all.filter_map(|other| age(other, now)).max().unwrap_or(0);
            place.store(now.wrapping_sub(longest).max(1), Ordering::Relaxed);
        }
    }

    /// Whether a peer that has just refused a connection has been waited for long enough.
    pub(crate) fn is_gone(&self, peer: Peer, now: u64) -> bool {
        let since = self.place(peer).and_then(|place| age(place, millis(now)));
        since.is_some_and(|age| u128::from(age) >= PATIENCE.as_millis())
    }
}

/// For how long a server has been refusing, milliseconds.
fn age(since: &AtomicU32, now: u32) -> Option<u32> {
    let since = since.load(Ordering::Relaxed);
    let age = now.wrapping_sub(since);
    (since != 0 && u128::from(age) < MEMORY.as_millis()).then_some(age)
}

fn millis(nanoseconds: u64) -> u32 {
    ((nanoseconds / 1_000_000) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer = Peer::Server(ServerId(0));
    const B: Peer = Peer::Server(ServerId(1));

    fn at(seconds: f64) -> u64 {
        ((1000.0 + seconds) * 1e9) as u64
    }

    #[test]
    fn a_server_that_refuses_is_waited_for_once_and_not_by_each_request() {
        let refusals = Refusals::new(2);
        refusals.refused(A, at(0.0));
        assert!(!refusals.is_gone(A, at(1.9)));
        refusals.refused(A, at(1.9));
        assert!(refusals.is_gone(A, at(2.1)));
        refusals.taken(A);
        refusals.refused(A, at(2.2));
        assert!(!refusals.is_gone(A, at(2.3)), "it was back");
    }

    #[test]
    fn servers_that_died_together_are_waited_for_together() {
        let refusals = Refusals::new(2);
        refusals.refused(A, at(0.0));
        refusals.refused(B, at(2.0));
        assert!(refusals.is_gone(B, at(2.0)));
        refusals.refused(Peer::Agent, at(2.0));
        assert!(refusals.is_gone(Peer::Agent, at(2.0)));
        refusals.taken(Peer::Agent);
        assert!(!refusals.is_gone(Peer::Agent, at(2.1)) && refusals.is_gone(B, at(2.1)));
    }

    #[test]
    fn a_refusal_of_long_ago_does_not_count() {
        let refusals = Refusals::new(2);
        refusals.refused(A, at(0.0));
        refusals.refused(B, at(12.5));
        refusals.refused(A, at(12.5));
        assert!(!refusals.is_gone(A, at(13.0)) && !refusals.is_gone(B, at(13.0)));
    }
}
