//! Shards that move to other servers, where nothing has copies as well as where everything has.
//!
//! A move is replication for a while: the server that the shard moves to is one more copy, catches up ([`crate::takeover`]),
//! and then takes the shard over, as after a failure. What is different is here:
//!
//! - A shard without copies keeps no stream of records for others. When it is to move, its server begins one
//!   ([`Core::share`]): a new term, whose first record says so in the log. When nobody follows any more, it ends.
//! - The former server is asked for its position when the shard is taken over, and answers for it no more from then on.
//!   Where nothing has copies that is all that keeps it from doing so, so it is waited for, whatever the map says of it.
//! - Operations over several shards that were decided before the move may not be known to all who take part. What programs
//!   ask of the shard is refused until they are (and no longer than after a restart); other shards are not concerned.
//! - A program may have had the former server sync what it changed. So the new one syncs its logs before it says that it answers
//!   for the shard ([`Core::sync_handed`]): only then the former one removes what it has.
//! - A server that has nothing to do with a shard any more removes it from memory and log ([`Core::leave`]).

use crate::mutation::{Batch, Mutation};
use crate::partition::{PARTITIONS, Partition, Partitions};
use crate::shard::Shard;
use crate::store::Core;
use crate::stream::Role;
use bivouac_layout::{Map, MoveStage, ServerId, ServerState, ShardId};
use bivouac_proto::peer::Position;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a server that starts is for a shard of its log, by the first map that it gets: whether nobody else can have
/// anything of it. Otherwise it is a copy, and finds out.
pub(crate) fn is_sole(map: &Map, me: ServerId, shard: ShardId) -> bool {
    map.copies == 1 && map.answers_for(shard) == Some(me) && map.former_holder(shard).is_none()
}

impl Core {
    /// Begins streams of the shards that are to move away from this server, which answers for them without copies.
    pub(crate) fn share(&self, map: &Map) {
        if map.copies > 1 {
            return;
        }
        let me = self.outside.me();
        let is_mine = |shard: ShardId| map.answers_for(shard) == Some(me);
        for entry in map.moving.iter().filter(|entry| entry.stage == MoveStage::CatchingUp) {
            if is_mine(entry.shard) {
                self.partitions.share(entry.shard, map.epoch.0);
            }
        }
    }

    /// Puts shards that this server was handed on stable storage, each log once. Says whether it could.
    pub(crate) fn sync_handed(&self, shards: &[ShardId]) -> bool {
        let by_log: BTreeMap<usize, ShardId> =
            shards.iter().map(|id| (usize::from(id.0) % PARTITIONS, *id)).collect();
        by_log.into_values().all(|id| self.sync_shard(id).is_ok())
    }

    /// Removes what this server has of shards that others hold, and which nobody asks it for any more.
    pub(crate) fn leave(&self, map: &Map) {
        let me = self.outside.me();
        if !map.is_up(me) {
            return;
        }
        let is_served = |shard| {
            map.answers_for(shard).is_some_and(|server| {
                server != me && map.server(server).is_some_and(|s| s.state != ServerState::Down)
            })
        };
        let left = self.partitions.leave(|shard| !map.keeps_shard(shard, me) && is_served(shard));
        if left > 0 {
            tracing::info!(shards = left, "others hold these shards now");
        }
    }

    /// Whether programs are to wait before they are answered about a shard that was handed over.
    pub(crate) fn resumes(&self, shard: ShardId) -> bool {
        if self.partitions.resuming.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut guard = self.partitions.lock(usize::from(shard.0));
        let Some(shard) = guard.shards.get_mut(&shard.0) else { return false };
        let Some(until) = shard.resumes_until else { return false };
        let waits = shard.stream.serves() && !shard.untold.is_empty() && Instant::now() < until;
        if !waits {
            shard.resumes_until = None;
            self.partitions.resuming.fetch_sub(1, Ordering::AcqRel);
        }
        waits
    }
}

impl Partitions {
    fn share(&self, id: ShardId, term: u64) {
        let mut guard = self.lock(usize::from(id.0));
        let Partition { shards, journal, .. } = &mut *guard;
        let Some(shard) = shards.get_mut(&id.0) else { return };
        let stream = &mut shard.stream;
        if stream.role != Role::Sole || term <= stream.last.term {
            return;
        }
        let at = Position { term, sequence: stream.last.sequence + 1 };
        let batch = Batch { shard: id.0, at, mutations: vec![Mutation::Adopt] };
        if let Err(error) = journal.write(&batch, true) {
            // It is tried again when the next map comes, or the server that waits for it asks again.
            tracing::warn!(%error, ?id, "a shard cannot move yet");
            return;
        }
        (stream.role, stream.term, stream.reign) = (Role::Primary, term, term);
        stream.advance(at);
        stream.keep(at, journal.last());
        stream.awaited = at.sequence;
    }

    /// Removes copies of shards; how many.
    fn leave(&self, is_others: impl Fn(ShardId) -> bool) -> usize {
        let mut left = 0;
        for number in 0..PARTITIONS {
            let mut guard = self.lock(number);
            let is_left =
                |(id, shard): &(&u16, &Shard)| shard.stream.role == Role::Copy && is_others(ShardId(**id));
            let ids: Vec<u16> = guard.shards.iter().filter(is_left).map(|(id, _)| *id).collect();
            let Partition { shards, journal, staging, .. } = &mut *guard;
            for id in ids {
                let Some(shard) = shards.get(&id) else { continue };
                let batch = Batch { shard: id, at: shard.stream.last, mutations: vec![Mutation::Leave] };
                if let Err(error) = journal.write(&batch, true) {
                    tracing::warn!(%error, id, "what is left of a shard is not removed yet");
                    break;
                }
                staging.remove(&id);
                if shards.remove(&id).is_some_and(|shard| shard.resumes_until.is_some()) {
                    self.resuming.fetch_sub(1, Ordering::AcqRel);
                }
                left += 1;
            }
        }
        left
    }
}
