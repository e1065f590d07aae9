//! Shards that move from one server to another while programs use them.
//!
//! A move takes three changes of the map, each for many shards:
//!
//! 1. [`MapChange::MoveShards`](crate::MapChange::MoveShards) begins it. The server that the shard moves to becomes one more
//!    holder of it, the last one, which is behind: it catches up with the shard's primary as a server that was away does.
//!    The shard is served as before.
//! 2. With the change that says that it has caught up (`InStep`), it has the place of the server that the shard moves away
//!    from. If that was the primary, the new holder answers for the shard from then on: it asks the former one for its
//!    position first, and from then on that one answers for it no more ([`MoveStage::HandingOver`]). That matters most
//!    where nothing has copies, because no lease keeps the former server from answering.
//! 3. When the new primary says that it answers for the shard (`InStep` again), the former server is forgotten, and
//!    removes what it has of the shard.
//!
//! A move whose servers do not both stay up before the second change is cancelled by the change that says so, and nothing
//! has happened. From the second change on it is always completed. So the map says at each moment what is to be done, and
//! any controller can go on with it.

use crate::groups::Group;
use crate::ids::{SHARDS, ServerId, ShardId};
use crate::map::Map;
use serde::{Deserialize, Serialize};

/// A shard that moves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct ShardMove {
    /// Which.
    pub shard: ShardId,
    /// The server that it moves away from.
    pub from: ServerId,
    /// The server that it moves to.
    pub to: ServerId,
    /// How far the move is.
    pub stage: MoveStage,
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum MoveStage {
    /// The new server is one more holder, and is behind.
    CatchingUp,
    /// The new server has the former one's place. The former one is no holder any more, and may not know it yet.
    HandingOver,
}

/// A move that is to begin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct Relocation {
    /// Which shard moves.
    pub shard: ShardId,
    /// The holder whose place is to be another's.
    pub from: ServerId,
    /// Whose. If it is a holder already, the two change places, which moves nothing.
    pub to: ServerId,
}

impl Map {
    /// The move of a shard, if it moves.
    #[inline]
    pub fn move_of(&self, shard: ShardId) -> Option<&ShardMove> {
        if self.moving.is_empty() {
            return None;
        }
        self.moving.binary_search_by_key(&shard, |entry| entry.shard).ok().map(|at| &self.moving[at])
    }

    /// The server that a shard has just moved away from, which may not know it yet: whoever takes the shard over asks it.
    pub fn former_holder(&self, shard: ShardId) -> Option<ServerId> {
        self.move_of(shard).filter(|entry| entry.stage == MoveStage::HandingOver).map(|entry| entry.from)
    }

    /// Who is to answer for a shard by this map; without copies also while it is down, because nobody else can.
    pub fn answers_for(&self, shard: ShardId) -> Option<ServerId> {
        match self.copies {
            1 => self.shards.get(usize::from(shard.0)).copied(),
            _ => self.serving(Group::Shard(shard)).next(),
        }
    }

    /// The shards that a server has got from others, and has to answer for: it tells the controller when it does.
    pub fn handed_to(&self, server: ServerId) -> impl Iterator<Item = ShardId> + '_ {
        let handed = self.moving.iter().filter(|entry| entry.stage == MoveStage::HandingOver);
        handed.map(|entry| entry.shard).filter(move |shard| self.answers_for(*shard) == Some(server))
    }

    /// Whether a server has to keep what it has of a shard: it holds it, or has just been its holder.
    pub fn keeps_shard(&self, shard: ShardId, server: ServerId) -> bool {
        self.holders(Group::Shard(shard)).all().contains(&server) || self.former_holder(shard) == Some(server)
    }

    /// A shard's row of the table: who holds it, without who is about to.
    pub(crate) fn row(&self, shard: ShardId) -> &[ServerId] {
        let copies = usize::from(self.copies);
        let at = usize::from(shard.0) * copies;
        self.shards.get(at..at + copies).unwrap_or_default()
    }

    pub(crate) fn row_mut(&mut self, shard: ShardId) -> &mut [ServerId] {
        let copies = usize::from(self.copies);
        let at = usize::from(shard.0) * copies;
        self.shards.get_mut(at..at + copies).unwrap_or_default()
    }

    /// Whether a server may get shards: it is there to stay.
    pub fn takes_shards(&self, server: ServerId) -> bool {
        self.server(server).is_some()
            && !self.is_given_up(server)
            && self.arriving.binary_search(&server).is_err()
            && !self.is_departing(server)
    }

    /// Begins moves. `None` if one of them cannot be: a server is not up, or does not stay; the shard moves already, or is
    /// held by others.
    pub(crate) fn with_moves(&self, moves: &[Relocation]) -> Option<Map> {
        let mut map = self.clone();
        let mut behind = Vec::new();
        for Relocation { shard, from, to } in moves {
            let group = Group::Shard(*shard);
            let is_possible = shard.0 < SHARDS
                && from != to
                && map.move_of(*shard).is_none()
                && map.row(*shard).contains(from)
                && map.is_up(*from)
                && map.is_up(*to)
                && map.takes_shards(*to);
            if !is_possible {
                return None;
            }
            let holders = map.holders(group);
            let (bit_from, bit_to) = (holders.bit(*from), holders.bit(*to));
            if bit_to != 0 {
                if holders.behind & bit_to != 0 {
                    return None;
                }
                for holder in map.row_mut(*shard) {
                    *holder = match *holder {
                        h if h == *from => *to,
                        h if h == *to => *from,
                        other => other,
                    };
                }
                if holders.behind & bit_from != 0 {
                    let bits = holders.behind & !bit_from | bit_to;
                    map.behind.iter_mut().filter(|lag| lag.group == group).for_each(|lag| lag.holders = bits);
                }
                continue;
            }
            let at = map.moving.partition_point(|entry| entry.shard < *shard);
            let stage = MoveStage::CatchingUp;
            map.moving.insert(at, ShardMove { shard: *shard, from: *from, to: *to, stage });
            behind.push((group, holders.behind | 1 << self.copies));
        }
        map.set_behind(behind);
        Some(map)
    }

    /// Cancels moves of which the new holder has not caught up yet: as if they had not begun.
    pub(crate) fn cancel_moves(&mut self, concerns: impl Fn(&ShardMove) -> bool) {
        let is_cancelled = |entry: &ShardMove| entry.stage == MoveStage::CatchingUp && concerns(entry);
        let cancelled: Vec<ShardId> =
            self.moving.iter().filter(|entry| is_cancelled(entry)).map(|entry| entry.shard).collect();
        if cancelled.is_empty() {
            return;
        }
        self.moving.retain(|entry| !is_cancelled(entry));
        let bit = 1u16 << self.copies;
        for lag in &mut self.behind {
            if let Group::Shard(shard) = lag.group
                && cancelled.binary_search(&shard).is_ok()
            {
                lag.holders &= !bit;
            }
        }
        self.behind.retain(|lag| lag.holders != 0);
    }

    /// A server takes part no more, or begins anew: what was about to move to it or away from it stays.
    pub(crate) fn cancel_moves_of(&mut self, server: ServerId) {
        self.cancel_moves(|entry| entry.from == server || entry.to == server);
    }

    /// A server has caught up with a shard, or answers for it: a move goes on. Says whether that is all that there is to do.
    pub(crate) fn move_on(&mut self, shard: ShardId, server: ServerId) -> bool {
        let Some(entry) = self.move_of(shard).copied() else { return false };
        let before = self.answers_for(shard);
        match entry.stage {
            MoveStage::HandingOver => {
                if before == Some(server) {
                    self.forget_move(shard);
                }
                // It may have been behind, too.
                false
            }
            MoveStage::CatchingUp if entry.to != server => false,
            MoveStage::CatchingUp => {
                let group = Group::Shard(shard);
                let bits = (1u16 << self.copies) | self.holders(group).bit(entry.from);
                self.row_mut(shard).iter_mut().filter(|s| **s == entry.from).for_each(|s| *s = entry.to);
                if let Ok(at) = self.behind.binary_search_by_key(&group, |lag| lag.group) {
                    self.behind[at].holders &= !bits;
                    if self.behind[at].holders == 0 {
                        self.behind.remove(at);
                    }
                }
                let at = self.moving.partition_point(|other| other.shard < shard);
                match before == Some(entry.from) {
                    true => self.moving[at].stage = MoveStage::HandingOver,
                    false => self.forget_move(shard),
                }
                true
            }
        }
    }

    fn forget_move(&mut self, shard: ShardId) {
        if let Ok(at) = self.moving.binary_search_by_key(&shard, |entry| entry.shard) {
            self.moving.remove(at);
        }
    }

    /// Whether the moves that the map states can be; says what cannot.
    pub(crate) fn check_moves(&self) -> Result<(), &'static str> {
        if !self.moving.windows(2).all(|w| w[0].shard < w[1].shard) {
            return Err("shards that move are not sorted");
        }
        for entry in &self.moving {
            let (row, group) = (self.row(entry.shard), Group::Shard(entry.shard));
            if row.is_empty() || self.server(entry.from).is_none() || self.server(entry.to).is_none() {
                return Err("a shard that moves, or a server that it moves between, is unknown");
            }
            let is_sound = match entry.stage {
                MoveStage::CatchingUp => {
                    let lags = self.lag_of(group).is_some_and(|lag| lag.holders >> self.copies == 1);
                    row.contains(&entry.from) && !row.contains(&entry.to) && lags
                }
                MoveStage::HandingOver => !row.contains(&entry.from),
            };
            if !is_sound {
                return Err("a shard moves to who has it, or from who has it not");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::map::ServerState;
    use crate::map::fixture::replicated;

    fn applied(map: &Map, change: MapChange) -> Map {
        let next = change.apply(map).expect("a change");
        assert_eq!(next.check(), Ok(()));
        next
    }

    fn relocation(shard: u16, from: ServerId, to: u16) -> Relocation {
        Relocation { shard: ShardId(shard), from, to: ServerId(to) }
    }

    fn begin(map: &Map, moves: &[Relocation]) -> Map {
        applied(map, MapChange::MoveShards { moves: moves.to_vec() })
    }

    fn in_step(map: &Map, server: u16, shard: u16) -> Map {
        let groups = vec![Group::Shard(ShardId(shard))];
        applied(map, MapChange::InStep { servers: vec![(ServerId(server), groups)] })
    }

    #[test]
    fn a_shard_is_served_by_the_former_server_until_the_new_one_has_everything() {
        for copies in [1, 2] {
            let map = replicated(4, copies, &[&[0, 1, 2, 3]]);
            let group = Group::Shard(ShardId(5));
            let before = map.row(ShardId(5)).to_vec();
            let (from, to) = (before[0], (0..4).find(|s| !before.contains(&ServerId(*s))).expect("one"));
            let begun = begin(&map, &[relocation(5, from, to)]);
            assert_eq!(begun.primary(ShardId(5)), from);
            assert_eq!(begun.holders(group).all().len(), before.len() + 1);
            assert!(begun.is_behind(group, ServerId(to)) && begun.former_holder(ShardId(5)).is_none());
            let handing = in_step(&begun, to, 5);
            assert_eq!(handing.primary(ShardId(5)), ServerId(to));
            assert_eq!((handing.former_holder(ShardId(5)), handing.behind.len()), (Some(from), 0));
            assert!(handing.keeps_shard(ShardId(5), from));
            assert_eq!(handing.handed_to(ServerId(to)).collect::<Vec<_>>(), [ShardId(5)]);
            let done = in_step(&handing, to, 5);
            assert!(done.moving.is_empty() && !done.keeps_shard(ShardId(5), from));
            assert_eq!(done.row(ShardId(5))[1..], before[1..], "the others stay");
        }
    }

    #[test]
    fn a_second_copy_moves_without_another_primary() {
        let map = replicated(4, 2, &[&[0, 1, 2, 3]]);
        let row = map.row(ShardId(9)).to_vec();
        let to = (0..4).find(|s| !row.contains(&ServerId(*s))).expect("one");
        let done = in_step(&begin(&map, &[relocation(9, row[1], to)]), to, 9);
        assert!(done.moving.is_empty());
        assert_eq!(done.row(ShardId(9)), [row[0], ServerId(to)]);
    }

    #[test]
    fn a_move_to_a_holder_is_a_change_of_places() {
        let map = replicated(3, 2, &[&[0, 1, 2]]);
        let row = map.row(ShardId(9)).to_vec();
        let swapped = begin(&map, &[relocation(9, row[0], row[1].0)]);
        assert!(swapped.moving.is_empty() && swapped.behind.is_empty());
        assert_eq!(swapped.row(ShardId(9)), [row[1], row[0]]);
    }

    #[test]
    fn a_move_whose_servers_do_not_stay_up_has_never_begun() {
        for copies in [1, 2] {
            let map = replicated(4, copies, &[&[0, 1, 2, 3]]);
            let row = map.row(ShardId(5)).to_vec();
            let to = (0..4).find(|s| !row.contains(&ServerId(*s))).expect("one");
            let begun = begin(&map, &[relocation(5, row[0], to)]);
            for server in [row[0], ServerId(to)] {
                for state in [ServerState::Down, ServerState::Joining] {
                    let after = applied(&begun, MapChange::State { server, state });
                    assert!(after.moving.is_empty());
                    assert_eq!(after.row(ShardId(5)), row);
                    let without_move = applied(&map, MapChange::State { server, state });
                    let lag = |map: &Map| map.lag_of(Group::Shard(ShardId(5))).map(|lag| lag.holders);
                    assert_eq!(lag(&after), lag(&without_move));
                }
            }
            let handing = in_step(&begun, to, 5);
            let down = applied(&handing, MapChange::State { server: row[0], state: ServerState::Down });
            assert_eq!(down.former_holder(ShardId(5)), Some(row[0]), "it may still believe that it answers");
        }
    }

    #[test]
    fn what_cannot_move_does_not() {
        let map = replicated(4, 1, &[&[0, 1, 2, 3]]);
        let from = map.primary(ShardId(5));
        let others: Vec<u16> = (0..4).filter(|s| ServerId(*s) != from).collect();
        let refused =
            |map: &Map, moves: Relocation| MapChange::MoveShards { moves: vec![moves] }.apply(map).is_none();
        assert!(refused(&map, relocation(5, from, 9)), "nobody knows it");
        assert!(refused(&map, relocation(5, ServerId(others[0]), others[1])), "it has no such shard");
        assert!(refused(&map, relocation(SHARDS, from, others[0])));
        assert!(refused(&map, relocation(5, from, from.0)));
        let begun = begin(&map, &[relocation(5, from, others[0])]);
        assert!(refused(&begun, relocation(5, from, others[1])), "it moves already");
        let down = applied(&map, MapChange::State { server: ServerId(others[0]), state: ServerState::Down });
        assert!(refused(&down, relocation(5, from, others[0])));
    }
}
