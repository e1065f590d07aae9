//! Telling servers what the node's processes have open, and before that, what they have locked ([`super::relock`]).
//!
//! A server that was killed has forgotten who has its files open, and a new one waits until it knows (`Grace`
//! in the crate `meta`). So each server that was not there a moment ago is told once, also by an agent that
//! has nothing to say. So is each that answers for more shards than before: it
//! knows of the opens that its predecessor was told of, but not which of them are over. What is closed while the report is
//! on its way could be registered after its release: therefore the table is looked at again afterwards.
//!
//! A node that was away tells everybody again, because servers have ended what its programs had. At first, while the map
//! calls it away, the agent tells of the locks only, and learns which of them are lost. When that is known the controller
//! takes the node back, and the agent tells what is open.

use super::Shared;
use bivouac_layout::map::{Map, ServerState};
use bivouac_layout::{Epoch, NodeId, SHARDS, ServerId, ShardId};
use bivouac_node::SlotId;
use bivouac_node::release::reopened;
use bivouac_proto::Errno;
use bivouac_proto::meta::{MetaRequest, Reopened};
use bivouac_proto::status::Failure;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Descriptions in one message.
pub(super) const AT_ONCE: usize = 1000;
/// How often a server is told at once that is restarted meanwhile.
const TRIES: u32 = 3;

/// Whom this agent has told.
#[derive(Default)]
pub(super) struct Told {
    /// And as what: how often it had begun to join by then. A server that was started again has forgotten it.
    servers: HashMap<ServerId, u32>,
    /// By the map of this epoch.
    epoch: Epoch,
    /// Who answered for each shard then.
    primaries: Vec<ServerId>,
    /// Whether this node was away then.
    is_away: bool,
}

impl Told {
    /// Forgets those who have to be told again.
    fn follow(&mut self, map: &Map, node: NodeId) {
        self.servers.retain(|server, joined| there(map).any(|there| there == (*server, *joined)));
        if map.epoch == self.epoch {
            return;
        }
        let primaries: Vec<ServerId> = (0..SHARDS).map(|shard| map.primary(ShardId(shard))).collect();
        for (now, _) in primaries.iter().zip(&self.primaries).filter(|(now, before)| now != before) {
            self.servers.remove(now);
        }
        self.primaries = primaries;
        // Servers end by each map what a node has that is away.
        if std::mem::replace(&mut self.is_away, map.is_away(node)) || self.is_away {
            self.servers.clear();
        }
        self.epoch = map.epoch;
    }

    fn all(&self, map: &Map) -> bool {
        there(map).all(|(server, _)| self.servers.contains_key(&server))
    }
}

impl Shared {
    /// Whether every server that is there has been told.
    pub(super) fn all_told(&self, told: &mut Told) -> bool {
        let map = self.links.map();
        told.follow(&map, self.node);
        told.all(&map)
    }

    /// Tells those who have not been told. Whom that fails for is tried again.
    pub(super) fn report(&self, told: &mut Told) {
        let map = self.links.map();
        told.follow(&map, self.node);
        if told.all(&map) {
            return self.account(&map);
        }
        let open: Vec<(SlotId, Reopened)> = self
            .table
            .in_use()
            .filter_map(|id| Some((id, reopened(&self.table, self.number, id)?)))
            .collect();
        let missing = there(&map).filter(|(server, _)| !told.servers.contains_key(server));
        for (server, joined) in missing.collect::<Vec<_>>() {
            let of_server = |(_, opened): &&(SlotId, Reopened)| map.primary(opened.ino.shard()) == server;
            let theirs: Vec<_> = open.iter().filter(of_server).copied().collect();
            // It may be restarted while it is told.
            let mut outcome = Err(Errno::AGAIN.into());
            for _ in 0..TRIES {
                let relocked = self.relock(server, &map);
                outcome = match map.is_away(self.node) {
                    // Before it is back, it only learns what it has lost.
                    true => relocked.map(drop),
                    false => relocked.and_then(|start| self.tell(server, (start, map.epoch), &theirs)),
                };
                if self.links.epoch() != map.epoch {
                    // Everything was gathered by the map before.
                    return;
                }
                if outcome != Err(Errno::AGAIN.into()) {
                    break;
                }
            }
            match outcome {
                Ok(()) => drop(told.servers.insert(server, joined)),
                Err(failure) => {
                    tracing::warn!(?failure, %server, "the server does not know yet what is open here");
                }
            }
        }
        if told.all(&map) {
            self.account(&map);
        }
    }

    /// All servers have been asked by this map.
    fn account(&self, map: &Map) {
        if map.is_away(self.node) && self.accounted.swap(map.epoch.0, Ordering::AcqRel) != map.epoch.0 {
            tracing::info!(epoch = %map.epoch, "this node was away, and knows now which locks it has lost");
        }
    }

    /// `start`: which start of the server was told of the locks; and the map by which all was gathered.
    fn tell(
        &self,
        server: ServerId,
        (start, epoch): (u64, Epoch),
        open: &[(SlotId, Reopened)],
    ) -> Result<(), Failure> {
        let node = self.node;
        for some in open.chunks(AT_ONCE) {
            let opens = some.iter().map(|(_, opened)| *opened).collect();
            self.links.meta_at(server, &MetaRequest::Report { node, start, epoch, opens, more: true })?;
        }
        let end = MetaRequest::Report { node, start, epoch, opens: Vec::new(), more: false };
        self.links.meta_at(server, &end)?;
        for (_, opened) in open.iter().filter(|(id, _)| !self.table.is_open(*id)) {
            let request = MetaRequest::Abandon { ino: Some(opened.ino), open: opened.open, wrote: None };
            self.links.meta(opened.ino.shard(), &request)?;
        }
        Ok(())
    }
}

/// The servers that can be told, and how often each has begun to join. (With copies, one that joins does not answer for
/// anything yet, and waits for nobody.)
fn there(map: &Map) -> impl Iterator<Item = (ServerId, u32)> {
    let is_there = |state| match state {
        ServerState::Up => true,
        ServerState::Joining => map.copies == 1,
        ServerState::Down => false,
    };
    let there = map.servers.iter().filter(move |server| is_there(server.state));
    there.map(|server| (server.id, server.joined))
}
