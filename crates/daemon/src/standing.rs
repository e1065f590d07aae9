//! Since when this server has answered for what it answers for.
//!
//! A server that is the primary of a group may be replaced, and become its primary again, while one of its threads waits
//! for an answer: for a copy that it does not reach, for example. Meanwhile whoever asked for that change has repeated it at
//! the other primary, and has built on it. If the thread went on when the wait is over, it would find itself the primary,
//! and make the old change once more, on top of newer ones. So a change is made by a *standing* ([`Standing`]): a group,
//! and by which map the server was its primary when the change began. It counts until a map has another primary.
//!
//! It is enough to look at the maps that this server gets, although it may not get every map. For another primary has
//! changed nothing of which this server knows nothing: either this server was one of the copies, and has made the change
//! by that map; or it was out, and has had to see that before it could catch up.
//!
//! The same holds for who carries out what another server has begun: a copy that is to make its primary's change, or the
//! primary of blocks that the server of the file's shard has written. Such a request states the epoch of a map by which
//! its sender's standing counted, and is taken by the same map only. Then it may wait here: for an earlier attempt, for a
//! range, for bytes. So when it is made, its receiver looks whether the sender has been replaced since that epoch, by the
//! maps that it has got itself. For the same reason a program's change stands by the map by which it has come, not
//! by the one that there is when it has waited for its turn.

use bivouac_layout::{Epoch, Group, Map, SHARDS, ShardId};
use bivouac_meta::Standing;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Which groups have had another primary, or none that was up.
#[derive(Default)]
pub(crate) struct Losses {
    /// By which map each group's primary was replaced last, or went down.
    lost: RwLock<HashMap<Group, Epoch>>,
    /// The newest of these: most often there is nothing else to look at.
    newest: AtomicU64,
}

impl Losses {
    /// Notes what primaries lose by a newer map. To be called before anybody else sees that map.
    pub(crate) fn note(&self, before: &Map, next: &Map) {
        if next.copies == 1 && before.shards == next.shards {
            return;
        }
        let mut lost = self.lost.write().unwrap_or_else(PoisonError::into_inner);
        // Without copies, only who answers for a shard changes, because it moves.
        let shards = (0..SHARDS).map(|shard| Group::Shard(ShardId(shard))).filter(|_| next.copies == 1);
        let groups = before.replicated().filter(|_| next.copies > 1).chain(shards);
        for group in groups {
            let primary = before.primary_of(group);
            let is_there = |server| next.copies == 1 || next.is_up(server);
            let has_stayed = next.primary_of(group) == primary && primary.is_some_and(is_there);
            if primary.is_some() && !has_stayed {
                lost.insert(group, next.epoch);
                self.newest.store(next.epoch.0, Ordering::Release);
            }
        }
    }

    /// Whether a standing still counts.
    pub(crate) fn stands(&self, standing: Standing) -> bool {
        if self.newest.load(Ordering::Acquire) <= standing.since.0 {
            return true;
        }
        let lost = self.lost.read().unwrap_or_else(PoisonError::into_inner);
        lost.get(&standing.group).is_none_or(|lost| *lost <= standing.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::founding;
    use bivouac_layout::{MapChange, ServerId, ServerState};

    #[test]
    fn a_standing_ends_with_another_primary_and_does_not_begin_again() {
        let addresses = [1, 2, 3].map(|port| format!("127.0.0.1:{port}").parse().expect("an address"));
        let mut founding = founding(&addresses);
        (founding.replicas, founding.metadata_replicas) = (2, 2);
        let mut maps = vec![founding.map().expect("a map")];
        let all: Vec<Group> = maps[0].replicated().collect();
        let me = ServerId(0);
        let change = |maps: &mut Vec<Map>, change: MapChange| {
            let next = change.apply(&maps[maps.len() - 1]).expect("a change");
            maps.push(next);
        };
        for state in [ServerState::Down, ServerState::Joining, ServerState::Up] {
            change(&mut maps, MapChange::State { server: me, state });
        }
        let caught_up = all.iter().copied().filter(|group| maps[3].is_behind(*group, me)).collect();
        change(&mut maps, MapChange::InStep { servers: vec![(me, caught_up)] });
        let mine = |map: &Map, server: u16| {
            let is_mine = |group: &Group| map.primary_of(*group) == Some(ServerId(server));
            all.iter().copied().filter(is_mine).collect::<Vec<_>>()
        };
        let (first, last) = (&maps[0], &maps[4]);
        assert!(!mine(first, 0).is_empty() && mine(first, 0) == mine(last, 0), "it is as before");
        // Who was away has lost everything, also if it has not seen every map.
        for seen in [vec![0, 1, 2, 3, 4], vec![0, 2, 4]] {
            let losses = Losses::default();
            seen.windows(2).for_each(|two| losses.note(&maps[two[0]], &maps[two[1]]));
            for group in mine(first, 0) {
                assert!(!losses.stands(Standing { group, since: first.epoch }), "{group:?}");
                assert!(losses.stands(Standing { group, since: last.epoch }), "{group:?}");
            }
        }
        // The others have lost what they have taken over, and nothing else; and all know what was lost.
        let losses = Losses::default();
        maps.windows(2).for_each(|two| losses.note(&two[0], &two[1]));
        for group in mine(first, 0) {
            assert!(!losses.stands(Standing { group, since: first.epoch }), "{group:?}");
        }
        let taken: Vec<Group> =
            mine(&maps[1], 1).into_iter().filter(|group| !mine(first, 1).contains(group)).collect();
        assert!(!taken.is_empty());
        for group in taken {
            assert!(!losses.stands(Standing { group, since: maps[1].epoch }), "{group:?}");
        }
        for group in mine(first, 1) {
            assert!(losses.stands(Standing { group, since: first.epoch }), "{group:?}");
        }
    }
}
