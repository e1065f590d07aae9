//! Since when what a map says has been so, and what is new in it.
//!
//! Most maps differ little from the one before: while shards move, some hundred of them have other holders, and everything
//! else is as it was. A request about anything else is as right by the older map. So a map says since which epoch each shard's
//! holders ([`Map::shards_since`]), and everything else that a request may depend on ([`Map::members_since`]), have been
//! as they are; and a request is refused only if it goes by a map that is older than what it is about ([`Map::since`]).
//!
//! Who has an older map needs only what has changed since ([`News`]).

use crate::groups::{Group, Lag};
use crate::ids::{Epoch, ServerId, ShardId};
use crate::map::Map;
use crate::moving::ShardMove;
use crate::restripe::Rebuild;
use serde::{Deserialize, Serialize};

/// What brings an older map up to date.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum News {
    /// All of the newer map.
    Whole(Box<Map>),
    /// Only shards have other holders.
    Shards(Box<ShardNews>),
}

/// What has changed, where only shards have other holders.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct ShardNews {
    /// Of which deployment.
    pub deployment: u64,
    /// The oldest map to which this may be added.
    pub known: Epoch,
    /// The newer map's epoch.
    pub epoch: Epoch,
    /// The shards with other holders, who these are, and since when. In ascending order.
    pub shards: Vec<(ShardId, Vec<ServerId>, Epoch)>,
    /// As [`Map::behind`].
    pub behind: Vec<Lag>,
    /// As [`Map::moving`].
    pub moving: Vec<ShardMove>,
    /// As [`Map::balancing`].
    pub balancing: bool,
    /// As [`Map::rebuild`].
    pub rebuild: Option<Rebuild>,
    /// As [`Map::rebuilds`].
    pub rebuilds: u32,
    /// As [`Map::emptied`].
    pub emptied: Vec<ServerId>,
}

impl Map {
    /// The first map by which requests about a group are as right as by this one.
    pub fn since(&self, group: Group) -> Epoch {
        let Group::Shard(shard) = group else { return self.members_since };
        let at = self.shards_since.binary_search_by_key(&shard, |(shard, _)| *shard);
        at.ok().and_then(|at| self.shards_since.get(at)).map_or(self.members_since, |(_, since)| *since)
    }

    /// Notes since when things are as they are, by this map, which follows on another one.
    pub(crate) fn note_since(&mut self, before: &Map) {
        if !self.differs_in_shards_only(before) {
            self.members_since = self.epoch;
            self.shards_since.clear();
            return;
        }
        let changed = (0..crate::ids::SHARDS).map(ShardId).filter(|shard| {
            let group = Group::Shard(*shard);
            self.row(*shard) != before.row(*shard)
                || self.move_of(*shard) != before.move_of(*shard)
                || self.lag_of(group) != before.lag_of(group)
        });
        let changed: Vec<ShardId> = changed.collect();
        self.shards_since.retain(|(shard, _)| changed.binary_search(shard).is_err());
        self.shards_since.extend(changed.into_iter().map(|shard| (shard, self.epoch)));
        self.shards_since.sort_unstable();
    }

    /// Whether nothing that requests depend on is different, except who holds shards. How far a rebuild is concerns no
    /// request.
    fn differs_in_shards_only(&self, before: &Map) -> bool {
        let of_blocks = |map: &Map| -> Vec<Lag> {
            map.behind.iter().filter(|lag| !matches!(lag.group, Group::Shard(_))).copied().collect()
        };
        let alike = Map {
            epoch: self.epoch,
            shards: self.shards.clone(),
            behind: self.behind.clone(),
            moving: self.moving.clone(),
            balancing: self.balancing,
            rebuild: self.rebuild,
            rebuilds: self.rebuilds,
            emptied: self.emptied.clone(),
            primaries_since: self.primaries_since,
            members_since: self.members_since,
            shards_since: self.shards_since.clone(),
            ..before.clone()
        };
        alike == *self && of_blocks(self) == of_blocks(before)
    }

    /// What is new for somebody who has the map of an epoch.
    pub fn news_for(&self, known: Epoch) -> News {
        if known < self.members_since || known > self.epoch {
            return News::Whole(Box::new(self.clone()));
        }
        let changed = self.shards_since.iter().filter(|(_, since)| *since > known);
        News::Shards(Box::new(ShardNews {
            deployment: self.deployment,
            known,
            epoch: self.epoch,
            shards: changed.map(|(shard, since)| (*shard, self.row(*shard).to_vec(), *since)).collect(),
            behind: self.behind.clone(),
            moving: self.moving.clone(),
            balancing: self.balancing,
            rebuild: self.rebuild,
            rebuilds: self.rebuilds,
            emptied: self.emptied.clone(),
        }))
    }
}

impl News {
    /// The newer map, for who has this one. `None` if it is not newer, not sound, or not to be added to this one: then the
    /// whole map has to be asked for.
    pub fn added_to(self, map: &Map) -> Option<Map> {
        let newer = match self {
            News::Whole(newer) => *newer,
            News::Shards(news) => news.added_to(map)?,
        };
        let is_newer = newer.epoch > map.epoch && newer.deployment == map.deployment;
        (is_newer && newer.check().is_ok()).then_some(newer)
    }

    /// The epoch of the newer map.
    pub fn epoch(&self) -> Epoch {
        match self {
            News::Whole(map) => map.epoch,
            News::Shards(news) => news.epoch,
        }
    }
}

impl ShardNews {
    fn added_to(self, map: &Map) -> Option<Map> {
        let ShardNews { deployment, known, epoch, shards, behind, moving, balancing, .. } = self;
        let ShardNews { rebuild, rebuilds, emptied, .. } = self;
        if deployment != map.deployment || map.epoch < known || map.epoch >= epoch {
            return None;
        }
        let mut newer = Map { epoch, behind, moving, balancing, rebuild, rebuilds, emptied, ..map.clone() };
        for (shard, holders, since) in shards {
            let row = newer.row_mut(shard);
            if row.len() != holders.len() || row.is_empty() {
                return None;
            }
            row.copy_from_slice(&holders);
            match newer.shards_since.binary_search_by_key(&shard, |(shard, _)| *shard) {
                Ok(at) => newer.shards_since[at].1 = since,
                Err(at) => newer.shards_since.insert(at, (shard, since)),
            }
        }
        Some(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::map::ServerState;
    use crate::map::fixture::replicated;
    use crate::moving::Relocation;
    use proptest::prelude::*;

    fn state(map: &Map, server: u16, state: ServerState) -> Map {
        MapChange::State { server: ServerId(server), state }.apply(map).expect("listed")
    }

    /// A shard begins to move away from its last holder.
    fn moves(map: &Map, shard: u16) -> Option<Map> {
        let shard = ShardId(shard);
        let from = *map.row(shard).last()?;
        let to =
            map.servers.iter().map(|server| server.id).find(|server| !map.row(shard).contains(server))?;
        MapChange::MoveShards { moves: vec![Relocation { shard, from, to }] }.apply(map)
    }

    fn arrives(map: &Map) -> Option<Map> {
        let (shard, to) = map.moving.first().map(|entry| (entry.shard, entry.to))?;
        MapChange::InStep { servers: vec![(to, vec![Group::Shard(shard)])] }.apply(map)
    }

    #[test]
    fn who_asks_about_something_else_than_the_shard_that_moves_need_not_know_of_it() {
        let map = replicated(4, 2, &[&[0, 1, 2, 3]]);
        let moving = moves(&map, 7).expect("it may move");
        let mut groups = map.replicated();
        let blocks = groups.find(|group| matches!(group, Group::Blocks { .. })).expect("blocks have copies");
        assert_eq!(moving.since(Group::Shard(ShardId(7))), moving.epoch);
        assert_eq!(moving.since(Group::Shard(ShardId(8))), map.members_since);
        assert_eq!(moving.since(blocks), map.members_since);
        let rebuilt =
            MapChange::Rebuild { rule: crate::Rule::Direct, rate: 0 }.apply(&moving).expect("a change");
        assert_eq!((rebuilt.members_since, rebuilt.shards_since.len()), (map.members_since, 1));
        let down = state(&rebuilt, 3, ServerState::Down);
        assert_eq!(
            (down.members_since, down.shards_since.len()),
            (down.epoch, 0),
            "everything may be different"
        );
    }

    #[test]
    fn news_of_shards_are_not_added_to_a_map_of_which_they_say_nothing() {
        let map = replicated(4, 1, &[&[0, 1, 2, 3]]);
        let (first, second) = (moves(&map, 1).expect("moves"), moves(&map, 2).expect("moves"));
        let third = moves(&first, 2).expect("moves");
        let news = third.news_for(first.epoch);
        assert!(matches!(&news, News::Shards(news) if news.shards.len() == 1));
        assert_eq!(news.clone().added_to(&first), Some(third.clone()));
        assert_eq!(news.clone().added_to(&map), None, "it would lack shard 1");
        assert_eq!(news.added_to(&third), None, "it is not newer");
        assert_eq!(third.news_for(map.epoch).added_to(&map), Some(third.clone()));
        let down = state(&second, 3, ServerState::Down);
        assert!(matches!(down.news_for(map.epoch), News::Whole(_)));
        let News::Shards(mut hostile) = third.news_for(map.epoch) else { panic!("shards only") };
        hostile.shards[0].0 = ShardId(u16::MAX);
        assert_eq!(News::Shards(hostile.clone()).added_to(&map), None);
        hostile.shards[0] = (ShardId(1), vec![ServerId(99)], third.epoch);
        assert_eq!(News::Shards(hostile).added_to(&map), None, "nobody has that number");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        /// News make of every older map what the newest one is; and what a map says has been so since an epoch was so by
        /// all maps since then.
        #[test]
        fn news_lead_from_every_map_to_the_newest_one(
            copies in 1u8..4,
            events in proptest::collection::vec((0u8..12, 0u16..40), 1..25),
        ) {
            let mut maps = vec![replicated(4, copies, &[&[0, 1, 2, 3]])];
            for (event, number) in events {
                let map = maps.last().expect("one");
                let next = match event {
                    0..=4 => moves(map, number),
                    5..=8 => arrives(map),
                    9 => MapChange::Rebuild { rule: crate::Rule::Metadata, rate: 0 }.apply(map),
                    10 => Some(state(map, number % 4, ServerState::Down)),
                    _ => Some(state(map, number % 4, ServerState::Up)),
                };
                maps.extend(next);
            }
            let newest = maps.last().expect("one");
            for (at, map) in maps.iter().enumerate() {
                let news = newest.news_for(map.epoch);
                prop_assert_eq!(matches!(news, News::Whole(_)), map.epoch < newest.members_since);
                if at + 1 < maps.len() {
                    let added = news.added_to(map);
                    prop_assert_eq!(added.as_ref(), Some(newest));
                }
                for shard in (0..41).map(ShardId) {
                    let group = Group::Shard(shard);
                    let has_stayed = maps[at..].windows(2).all(|two| {
                        (two[0].holders(group), two[0].members_since) == (two[1].holders(group), two[1].members_since)
                    });
                    if newest.since(group) <= map.epoch {
                        prop_assert!(has_stayed, "{:?}", group);
                    }
                }
            }
        }
    }
}
