//! Servers that refuse connections, and since when; the node's agent, too.
//!
//! A server that lives always takes connections; one that refuses them is dead, or not back yet. The map says
//! so soon, unless the controller has died, too. Until then a server that refuses is waited for, for
//! [`GONE`]: it may be starting again. That time is the failure's and not the request's: an operation
//! that needs several dead servers, or several that each need a dead one, does not wait for each of them. So a
//! server that begins to refuse while another one is refusing counts as refusing since then. And while the
//! controller is not heard of ([`Refusals::heard`]), a server that refuses is waited for no longer than
//! [`GONE`] since the last time that it was: nothing comes back without the controller.

use crate::engine::budget::refusing::{GONE, MEMORY, TOGETHER};
use crate::error::TransportError;
use bivouac_layout::ServerId;
use bivouac_node::ByServer;
use bivouac_node::release::monotonic;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Who takes connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A server.
    Server(ServerId),
    /// The agent of this node, which a fork's child needs before it can ask any server.
    Agent,
}

/// Since when each of them has been refusing connections. At first, none of them has refused any.
#[derive(Debug, Default)]
pub struct Refusals {
    servers: ByServer<Spell>,
    agent: Spell,
    /// When the controller was last heard of, nanoseconds; 0: not known.
    heard: AtomicU64,
}

impl Refusals {
    /// Takes in when the controller was last heard of: a time of [`monotonic`], or 0 where nobody knows.
    pub fn heard(&self, at: u64) {
        self.heard.store(at, Ordering::Relaxed);
    }

    /// How long ago the controller was last heard of. `None`: it never was.
    pub fn unheard(&self) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| Duration::from_nanos(monotonic().saturating_sub(heard)))
    }

    fn spell(&self, peer: Peer) -> Option<&Spell> {
        match peer {
            Peer::Server(server) => self.servers.get(server),
            Peer::Agent => Some(&self.agent),
        }
    }

    /// Takes in how an attempt to connect has ended.
    pub fn note<T>(&self, peer: Peer, connected: &Result<T, TransportError>) {
        match connected {
            Ok(_) => self.taken(peer),
            Err(TransportError::Refused) => self.refused(peer, monotonic()),
            Err(_) => {}
        }
    }

    /// Whether a peer that has just refused a connection has been waited for long enough.
    pub fn is_gone(&self, peer: Peer) -> bool {
        self.is_gone_at(peer, monotonic())
    }

    fn taken(&self, peer: Peer) {
        if let Some(spell) = self.spell(peer) {
            spell.0.store(0, Ordering::Relaxed);
        }
    }

    /// `now`: nanoseconds.
    fn refused(&self, peer: Peer, now: u64) {
        let Some(spell) = self.spell(peer) else { return };
        let now = millis(now);
        let age = spell.age(now, MEMORY).unwrap_or_else(|| {
            let all = self.servers.iter().chain([&self.agent]);
            all.filter_map(|other| other.age(now, TOGETHER)).max().unwrap_or(0)
        });
        spell.0.store(u64::from(now.wrapping_sub(age)) << 32 | u64::from(now), Ordering::Relaxed);
    }

    fn is_gone_at(&self, peer: Peer, now: u64) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        let unheard = if heard == 0 { 0 } else { now.saturating_sub(heard) / 1_000_000 };
        let age = self.spell(peer).and_then(|spell| spell.age(millis(now), MEMORY));
        age.is_some_and(|age| u128::from(unheard.max(age.into())) >= GONE.as_millis())
    }
}

/// The times of the first and the last of a row of refusals, milliseconds of some clock, in the upper and the
/// lower half; 0: there was none.
#[derive(Debug, Default)]
struct Spell(AtomicU64);

impl Spell {
    /// How long ago it began, milliseconds, if the last refusal was not longer ago than `pause`.
    fn age(&self, now: u32, pause: Duration) -> Option<u32> {
        let spell = self.0.load(Ordering::Relaxed);
        let (first, last) = ((spell >> 32) as u32, spell as u32);
        let is_over = u128::from(now.wrapping_sub(last)) > pause.as_millis();
        (spell != 0 && !is_over).then_some(now.wrapping_sub(first))
    }
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
        let refusals = Refusals::default();
        refusals.refused(A, at(0.0));
        assert!(!refusals.is_gone_at(A, at(2.4)));
        refusals.refused(A, at(2.4));
        assert!(refusals.is_gone_at(A, at(2.6)));
        refusals.refused(A, at(11.0));
        refusals.refused(A, at(20.0));
        assert!(refusals.is_gone_at(A, at(20.0)), "nothing says that it was back");
        refusals.taken(A);
        refusals.refused(A, at(20.1));
        assert!(!refusals.is_gone_at(A, at(20.2)), "it was back");
    }

    #[test]
    fn servers_that_died_together_are_waited_for_together() {
        let refusals = Refusals::default();
        refusals.refused(A, at(0.0));
        refusals.refused(A, at(2.4));
        refusals.refused(B, at(2.5));
        assert!(refusals.is_gone_at(B, at(2.5)));
        refusals.refused(Peer::Agent, at(2.5));
        assert!(refusals.is_gone_at(Peer::Agent, at(2.5)));
        refusals.taken(Peer::Agent);
        assert!(!refusals.is_gone_at(Peer::Agent, at(2.6)) && refusals.is_gone_at(B, at(2.6)));
    }

    #[test]
    fn a_server_that_dies_after_another_one_is_waited_for_as_long() {
        let refusals = Refusals::default();
        refusals.refused(A, at(0.0));
        // A may be back; nobody has asked it since.
        refusals.refused(B, at(5.0));
        assert!(!refusals.is_gone_at(B, at(7.4)) && refusals.is_gone_at(B, at(7.6)));
    }

    #[test]
    fn nobody_is_waited_for_any_more_when_the_controller_was_not_heard_of_for_as_long() {
        let refusals = Refusals::default();
        refusals.heard(at(0.0));
        assert!(!refusals.is_gone_at(A, at(9.0)), "it has not refused");
        refusals.refused(A, at(2.3));
        assert!(!refusals.is_gone_at(A, at(2.4)) && refusals.is_gone_at(A, at(2.6)));
        refusals.refused(B, at(9.0));
        assert!(refusals.is_gone_at(B, at(9.0)));
        refusals.heard(at(9.0));
        assert!(!refusals.is_gone_at(B, at(9.1)) && refusals.is_gone_at(A, at(9.1)));
        refusals.heard(at(20.0));
        assert!(!refusals.is_gone_at(B, at(9.1)), "another node's clock");
    }

    #[test]
    fn a_refusal_of_long_ago_does_not_count() {
        let refusals = Refusals::default();
        refusals.refused(A, at(0.0));
        refusals.refused(B, at(12.5));
        refusals.refused(A, at(12.5));
        assert!(!refusals.is_gone_at(A, at(13.0)) && !refusals.is_gone_at(B, at(13.0)));
    }
}
