//! Nodes that are away: what their programs had locked and open here ends, so that nobody waits for a machine that died.
//!
//! A node may be back later, having been cut off only. Until it is back by the map, its programs get no locks and open
//! nothing; then its agent knows which locks they have lost, and registers again what they have open. Each newer map by
//! which nodes are away has everything looked through again, because this server may have taken over shards since.

use crate::mutation::Mutation;
use crate::store::Core;
use bivouac_layout::{Ino, Map, NodeId};
use bivouac_proto::meta::LockOwner;
use bivouac_proto::status::Failure;
use bivouac_proto::{OpenId, Refusal};
use std::sync::atomic::Ordering;

impl Core {
    /// Ends what programs of nodes have that are away. Says whether everything has ended.
    pub(crate) fn end_what_is_away(&self) -> bool {
        let map = self.outside.map();
        if map.away.is_empty() {
            return true;
        }
        // A shard that is taken over only now may have locks that the server before this one did not end any more.
        let is_complete = self.answers_for_all(&map);
        let mut locks: Vec<(Ino, LockOwner)> = Vec::new();
        let mut opens: Vec<(Ino, OpenId)> = Vec::new();
        self.partitions.each(|_, shard| {
            for (ino, live) in &shard.live {
                let theirs = live.locks.iter().map(|(owner, _)| *owner).filter(|o| map.is_away(node_of(*o)));
                locks.extend(theirs.map(|owner| (*ino, owner)));
                let theirs = live.opens.iter().filter(|open| map.is_away(NodeId::of(open.id.agent)));
                opens.extend(theirs.map(|open| (*ino, open.id)));
            }
        });
        if !locks.is_empty() || !opens.is_empty() {
            tracing::warn!(
                locks = locks.len(), opens = opens.len(), nodes = ?map.away,
                "nodes are away: what their programs had locked and open ends"
            );
        }
        // Others may wait for a lock: first all of these, then what may take data servers' answers.
        let unlocked = locks.into_iter().all(|(ino, owner)| self.end_lock(ino, owner).is_ok());
        if unlocked && is_complete {
            self.ended_away_by.fetch_max(map.epoch.0, Ordering::AcqRel);
        }
        let mut released = true;
        for (ino, open) in opens {
            // The node may be back meanwhile, and have told that it has the file open.
            let is_away = || self.outside.map().is_away(NodeId::of(open.agent));
            released &= self.release_while(None, ino, open, None, is_away).is_ok();
            if self.outside.map().epoch != map.epoch {
                return false;
            }
        }
        for node in &map.away {
            if self.keeper.reported(*node, map.epoch) {
                self.partitions.each_mut(|_, _| {});
                self.keeper.orphans();
            }
        }
        unlocked && is_complete && released
    }

    fn end_lock(&self, ino: Ino, owner: LockOwner) -> Result<(), Failure> {
        self.partitions.with(ino.shard(), |locked| {
            if locked.shard.live.contains_key(&ino) {
                locked.keep(Mutation::DropLock(ino, owner, 0, u64::MAX));
                self.locking.gave_up(|other| *other == owner);
            }
            locked.shard.rest(ino);
            Ok(())
        })
    }

    /// Refuses to tell a node which of its locks are left before those have ended that it has lost.
    pub(crate) fn check_ended(&self, map: &Map) -> Result<(), Refusal> {
        let ended = map.away.is_empty() || self.ended_away_by.load(Ordering::Acquire) >= map.epoch.0;
        if ended { Ok(()) } else { Err(Refusal::OldServer) }
    }

    /// Whether the node of a lock's owner is away.
    pub(crate) fn is_owner_away(&self, owner: LockOwner) -> bool {
        self.outside.map().is_away(node_of(owner))
    }
}

fn node_of(owner: LockOwner) -> NodeId {
    match owner {
        LockOwner::Process { session, .. } => NodeId::of(session),
        LockOwner::Description(open) | LockOwner::Flock(open) => NodeId::of(open.agent),
    }
}
