//! The bytes of long writes go to the copies in a chain, before the change itself.
//!
//! If a primary sends the bytes of a write to each copy, its own link carries them as often as there are
//! copies, while the links of the copies carry nothing. And if it begins only when it has all of them, they
//! take the time of a link once more for each step. So the bytes of a write of [`LEAST`] or more go from
//! holder to holder: while they come in, the primary passes them on to the first copy, that one to the
//! second, and so on. Each link carries them once, and all links at the same time; a write takes as long as
//! its bytes take over one link.
//!
//! Bytes that are sent ahead change nothing, and nobody waits for them: no range is held and no slot is
//! taken, so a program that is stopped in the middle of a write is in nobody's way. Each holder keeps them
//! under a number ([`Kept`]). When the primary has all of them, it has the others make the change as ever
//! (order, marks, epochs, one answer from each copy), only that the request names the number in place of the
//! bytes. A copy that does not have them, because the chain is broken or slow somewhere before it, says so,
//! and the primary sends it the bytes itself. So the chain may lose anything, and promises nothing: a broken
//! one costs time, not data. For a while, no chain goes through that copy then.
//!
//! If there is a copy on a program's own node, the program sends that one the bytes itself, which takes no
//! link, and tells the primary so: this copy is in no chain. The program may change its buffer between the
//! two. So the change states the checksum of the bytes that the primary has, and a copy that has got other
//! bytes counts as one that has got none.
//!
//! The order of the chain is that of the group's holders, but other copies on the program's node come last:
//! the link of this node has to send the bytes to the primary already, and does not have to send them again.
//!
//! Short writes go to all copies at once, with their bytes: there, the way counts. So does a write to one
//! copy whose bytes are all there when it begins: a chain of one link is no shorter.

mod kept;
mod passing;

use super::Copies;
use crate::links::Links;
use bivouac_layout::{Group, Map, NodeId, ServerId};
use bivouac_proto::auth::Role;
use bivouac_proto::copies::{CopyRequest, Sender, Sent};
use bivouac_transport::engine::Requester;
use kept::{Arrival, Kept};
use passing::Passing;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Writes of so many bytes or more go through the chain.
const LEAST: usize = 64 << 10;
/// For so long no chain goes through a server that has not got what was sent.
const DOUBTED: Duration = Duration::from_secs(10);
/// Longest chain, without the primary: there are eight copies at most.
const LONGEST: usize = 7;

/// From where the bytes of a write come.
#[derive(Default)]
pub(crate) struct Program {
    /// Its node, if it is a program.
    pub(crate) node: Option<NodeId>,
    /// Which copy it sends them itself.
    pub(crate) here: Option<(ServerId, Sent)>,
}

/// What a server keeps of bytes that are sent ahead, and knows of chains.
pub(super) struct Chain {
    /// The number of the next bytes that this server sends.
    next: AtomicU64,
    kept: Arc<Kept>,
    /// Servers that have not got what was sent, and when that was.
    doubts: Mutex<HashMap<ServerId, Instant>>,
}

/// A payload that is being sent on while it comes.
pub(crate) enum Coming {
    /// Of a write, at the primary.
    Write(Ahead),
    /// At a copy; passed on to the next one, if there is one.
    Copy(Arrival, Option<Passing>),
}

/// Bytes that this server sends ahead as a primary.
pub(crate) struct Ahead {
    sent: SentAhead,
    /// `None`: the program sends them itself to the only copy.
    passing: Option<Passing>,
}

/// Which copies have been sent the bytes of a write ahead.
#[derive(Debug)]
pub(crate) struct SentAhead {
    own: Sent,
    chain: Vec<ServerId>,
    /// By the program.
    here: Option<(ServerId, Sent)>,
}

impl SentAhead {
    /// What a copy was sent.
    pub(super) fn to(&self, copy: ServerId) -> Option<Sent> {
        let here = self.here.filter(|(server, _)| *server == copy).map(|(_, sent)| sent);
        here.or_else(|| self.chain.contains(&copy).then_some(self.own))
    }
}

impl Coming {
    /// More has come.
    pub(crate) fn more(&mut self, so_far: &[u8]) {
        match self {
            Coming::Write(ahead) => {
                if let Some(passing) = &mut ahead.passing {
                    passing.more(so_far);
                }
            }
            Coming::Copy(arrival, passing) => {
                arrival.more();
                if let Some(passing) = passing {
                    passing.more(so_far);
                }
            }
        }
    }
}

impl Chain {
    /// With numbers from `first` on, which are later than those before a restart.
    pub(super) fn new(first: u64) -> Chain {
        Chain { next: AtomicU64::new(first), kept: Arc::default(), doubts: Mutex::default() }
    }

    /// A copy has not got what was sent to it.
    pub(super) fn doubt(&self, server: ServerId) {
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        if doubts.insert(server, Instant::now()).is_none() {
            tracing::info!(%server, "a copy has not got what was sent ahead: for a while, nothing is");
        }
    }

    /// Whether what is sent through all of these arrives, as far as is known.
    fn trusts(&self, servers: &[ServerId]) -> bool {
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        doubts.retain(|_, since| since.elapsed() < DOUBTED);
        doubts.is_empty() || servers.iter().all(|server| !doubts.contains_key(server))
    }

    /// Bytes that were sent ahead. Waits while they come.
    pub(super) fn take(&self, sent: Sent, links: &Links) -> Option<Vec<u8>> {
        let epoch = links.epoch();
        self.kept.take(sent, || links.epoch() == epoch && !links.is_closing())
    }
}

/// Whether a request sends bytes ahead, and its sender may: a program (its session) only what it names
/// itself, and to one copy.
pub(crate) fn may_send_ahead(role: &Role, session: u64, request: &CopyRequest) -> bool {
    let CopyRequest::Ahead { sent, rest } = request else { return false };
    match role {
        Role::Server(_) => true,
        Role::Client { .. } => sent.by == Sender::Program(session) && rest.is_empty(),
        _ => false,
    }
}

/// In which order copies get bytes that come from a program of this node.
fn in_order(map: &Map, others: &[ServerId], node: Option<NodeId>) -> Vec<ServerId> {
    let is_there = |server: &ServerId| node.is_some() && map.server(*server).map(|found| found.node) == node;
    let (there, elsewhere): (Vec<_>, Vec<_>) = others.iter().copied().partition(is_there);
    elsewhere.into_iter().chain(there).collect()
}

impl Copies {
    /// Begins to send the bytes of a write ahead that come from a program of a node; there are `len` of them.
    /// `None`: they are to go with the change.
    pub(crate) fn begin_ahead(&self, group: Group, program: &Program, len: usize) -> Option<Ahead> {
        let map = self.links.map();
        if len < LEAST || !self.is_primary(&map, group) {
            return None;
        }
        let others = self.others(&map, group);
        let is_fit = |server| others.contains(&server) && self.chain.trusts(&[server]);
        let here = program.here.filter(|(server, _)| is_fit(*server));
        let mut chain = in_order(&map, &others, program.node);
        chain.retain(|server| here.is_none_or(|(here, _)| here != *server));
        if !self.chain.trusts(&chain) {
            chain.clear();
        }
        if chain.is_empty() && here.is_none() {
            return None;
        }
        let own =
            Sent { by: Sender::Server(self.me), number: self.chain.next.fetch_add(1, Ordering::Relaxed) };
        let passing = match chain.split_first() {
            Some((first, rest)) => {
                let request = CopyRequest::Ahead { sent: own, rest: rest.to_vec() };
                let passing = Passing::begin(&self.links, *first, &request, len);
                if passing.is_none() {
                    self.chain.doubt(*first);
                }
                Some(passing?)
            }
            None => None,
        };
        Some(Ahead { sent: SentAhead { own, chain, here }, passing })
    }

    /// Sends the bytes of a write ahead that are all there. `None`: they are to go with the change.
    pub(crate) fn send_ahead(&self, group: Group, program: &Program, payload: &[u8]) -> Option<SentAhead> {
        let is_long = payload.len() >= LEAST
            && (program.here.is_some() || self.others(&self.links.map(), group).len() > 1);
        let ahead = is_long.then(|| self.begin_ahead(group, program, payload.len()))??;
        self.finish_ahead(ahead, payload)
    }

    /// All of the bytes have come that are sent ahead. `None`: they are to go with the change.
    pub(crate) fn finish_ahead(&self, ahead: Ahead, payload: &[u8]) -> Option<SentAhead> {
        let Ahead { sent, passing } = ahead;
        let is_sent = passing.is_none_or(|passing| passing.finish(payload));
        match sent.chain.first() {
            Some(first) if !is_sent => self.chain.doubt(*first),
            _ => {}
        }
        is_sent.then_some(sent)
    }

    /// Bytes begin to come that another server sends ahead.
    pub(crate) fn begin_keeping(&self, request: &CopyRequest, len: usize) -> Option<Coming> {
        let CopyRequest::Ahead { sent, rest } = request else { return None };
        let arrival = self.chain.kept.begin(*sent);
        let next = rest.split_first().filter(|_| rest.len() < LONGEST);
        let passing = next.and_then(|(next, rest)| {
            let request = CopyRequest::Ahead { sent: *sent, rest: rest.to_vec() };
            Passing::begin(&self.links, *next, &request, len)
        });
        Some(Coming::Copy(arrival, passing))
    }

    /// All bytes have come that another server sends ahead.
    pub(crate) fn keep(&self, coming: Option<Coming>, request: &CopyRequest, payload: &[u8]) {
        let coming = coming.or_else(|| self.begin_keeping(request, payload.len()));
        if let Some(Coming::Copy(arrival, passing)) = coming {
            arrival.complete(payload);
            if let Some(passing) = passing {
                passing.finish(payload);
            }
        }
    }
}

#[cfg(test)]
mod tests;
