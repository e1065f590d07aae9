//! Servers that do not come back: others take their place.
//!
//! In each group that has copies, the holders that remain stay holders, and the next candidate is one more, which has to
//! catch up: that restores the number of copies. What has one copy stays where it is, and cannot be reached; new files
//! are spread over the servers that are left.
//!
//! A server that was given up and is there again is taken back: it keeps what had one copy on it, new files are spread
//! over it, too, and it is a spare for what others hold in its place.

use crate::groups::{Group, Holders, Lag};
use crate::ids::{Epoch, GenerationId, SHARDS, ServerId, ShardId};
use crate::map::{Generation, Map, Server, ServerState, Spare};
use crate::moving::{MoveStage, ShardMove};
use std::collections::BTreeSet;

/// A map without some of its servers.
pub struct Without {
    /// The map, at the next epoch.
    pub map: Map,
    /// Groups of which no holder is left that has everything that was acknowledged.
    pub lost: Vec<Group>,
}

impl Map {
    /// Whether a server was given up.
    pub fn is_given_up(&self, server: ServerId) -> bool {
        self.lost.binary_search(&server).is_ok()
    }

    /// Gives servers up that are down. `None` if one is not, or has just been added, or if fewer servers are left than there are copies.
    pub fn without(&self, servers: &[ServerId]) -> Option<Without> {
        let is_down = |id: &ServerId| self.server(*id).is_some_and(|s| s.state == ServerState::Down);
        let mut map = Map { epoch: Epoch(self.epoch.0 + 1), ..self.clone() };
        map.lost.extend(servers);
        map.lost.sort_unstable();
        map.lost.dedup();
        map.spares.retain(|spare| !servers.contains(&spare.server));
        let left = self.servers.iter().filter(|server| map.takes_shards(server.id)).count();
        // One that has just been added has nothing: it arrives, or is dismissed.
        let is_arriving = servers.iter().any(|server| self.arriving.contains(server));
        if !servers.iter().all(is_down) || is_arriving || left < usize::from(self.copies) {
            return None;
        }
        if self.moving.iter().any(|entry| entry.stage == MoveStage::CatchingUp) {
            let mut still = self.clone();
            still.cancel_moves(|_| true);
            return still.without(servers);
        }
        let rows = (0..SHARDS).map(|shard| self.holders(Group::Shard(ShardId(shard))));
        map.shards = rows.zip(0..).flat_map(|(row, shard)| map.substituted(ShardId(shard), &row)).collect();
        // Who is a holder again is asked as such.
        let is_no_holder = |entry: &ShardMove| !map.row(entry.shard).contains(&entry.from);
        let moving = map.moving.iter().copied().filter(is_no_holder).collect();
        map.moving = moving;
        map.moving.retain(|entry| !servers.contains(&entry.from));
        let (mut lost, mut gone) = (Vec::new(), self.gone.clone());
        let behind = self.replicated().filter(|group| !self.is_gone(*group)).map(|group| {
            let (before, after) = (self.holders(group), map.holders(group));
            let mut complete: Vec<ServerId> =
                before.in_step().filter(|server| after.all().contains(server)).collect();
            if complete.is_empty() {
                lost.push(group);
                // The most that there is left of it.
                complete = before.behind().filter(|server| after.all().contains(server)).collect();
                if complete.is_empty() {
                    // Metadata begins anew, or else nothing would have a name. Blocks would seem to be holes.
                    complete.extend(after.all().first());
                    gone.extend(Some(group).filter(|group| matches!(group, Group::Blocks { .. })));
                }
            }
            let bit = |(at, server): (usize, &ServerId)| u16::from(!complete.contains(server)) << at;
            let holders = after.all().iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit);
            let known =
                self.lag_of(group).filter(|lag| before.all() == after.all() && lag.holders == holders);
            let since = known.map_or(map.epoch, |lag| lag.since);
            Lag { group, holders, since }
        });
        let mut behind: Vec<Lag> = behind.filter(|lag| lag.holders != 0).collect();
        behind.retain(|lag| !gone.contains(&lag.group));
        behind.sort_unstable();
        gone.sort_unstable();
        (map.behind, map.gone) = (behind, gone);
        let mut newest = map.generations.last().map_or(Vec::new(), |newest| newest.servers.clone());
        newest.retain(|server| !map.is_given_up(*server));
        if map.generations.last().is_some_and(|last| last.servers != newest) && !newest.is_empty() {
            map.begin_generation(newest);
        }
        Some(Without { map, lost })
    }

    /// From now on new files are spread over these servers.
    pub(crate) fn begin_generation(&mut self, servers: Vec<ServerId>) {
        self.fall_behind_in(Generation { servers });
        // Those that are down now are behind in what the new generation will hold, too.
        let down = |server: &&Server| server.state != ServerState::Up && !self.is_given_up(server.id);
        let down: Vec<ServerId> = self.servers.iter().filter(down).map(|server| server.id).collect();
        down.into_iter().for_each(|server| self.fall_behind(server));
    }

    /// Adds a generation. Those that are catching up are behind in what it will hold, too: blocks move there that they should
    /// have, and may not have got yet.
    fn fall_behind_in(&mut self, generation: Generation) {
        let is_of_blocks = |group: &Group| matches!(group, Group::Blocks { .. });
        let lags = self.behind.iter().filter(|lag| is_of_blocks(&lag.group));
        let behind: BTreeSet<ServerId> =
            lags.flat_map(|lag| self.holders(lag.group).behind().collect::<Vec<_>>()).collect();
        self.generations.push(generation);
        if behind.is_empty() {
            return;
        }
        let newest = self.newest_generation();
        let is_new =
            |group: &Group| matches!(group, Group::Blocks { generation, .. } if *generation == newest);
        let mut changed = Vec::new();
        for group in self.replicated().filter(is_new) {
            let holders = self.holders(group);
            // Where all holders are catching up there is nobody to get it from: they show what they have.
            if holders.all().iter().all(|server| behind.contains(server)) {
                continue;
            }
            let bits = holders.all().iter().filter(|server| behind.contains(server));
            let bits = bits.fold(holders.behind, |bits, server| bits | holders.bit(*server));
            if bits != holders.behind {
                changed.push((group, bits));
            }
        }
        self.set_behind(changed);
    }

    /// A server that was given up takes part again: new files are spread over it, too. What others hold in its place
    /// they keep; it becomes a holder of it where others do not suffice.
    pub(crate) fn take_back(&mut self, server: ServerId) {
        let before = self.clone();
        self.lost.retain(|lost| *lost != server);
        self.spares.push(Spare { server, since: GenerationId(self.generations.len() as u32) });
        let gained = before.replicated().filter_map(|group| {
            let (before, after) = (before.holders(group), self.holders(group));
            let is_new = after.bit(server) != 0 && !before.all().contains(&server);
            // It is the last one: the others' bits are the same.
            is_new.then(|| (group, before.behind | after.bit(server)))
        });
        let gained = gained.collect();
        self.set_behind(gained);
        let all = self.servers.iter().map(|server| server.id).filter(|server| self.takes_shards(*server));
        let all = all.collect();
        self.begin_generation(all);
    }

    /// The holders of a shard, with others in place of those that were given up.
    fn substituted(&self, shard: ShardId, row: &Holders) -> Vec<ServerId> {
        let remain = row.all().iter().copied().filter(|server| !self.is_given_up(*server));
        match row.all().first() {
            Some(home) => self.deal_copies(shard, *home, remain.collect()).all().to_vec(),
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::ids::NodeId;
    use crate::map::NO_SERVER;
    use crate::map::fixture::replicated;

    fn down(map: &Map, server: u16) -> Map {
        MapChange::State { server: ServerId(server), state: ServerState::Down }.apply(map).expect("listed")
    }

    #[test]
    fn blocks_of_which_nothing_is_left_are_served_by_nobody_whatever_comes_back() {
        let before = down(&down(&replicated(4, 2, &[&[0, 1, 2, 3]]), 0), 1);
        let both = [ServerId(0), ServerId(1)];
        let Without { map, lost } = before.without(&both).expect("two are left");
        let is_of_both =
            |group: &Group| before.holders(*group).all().iter().all(|holder| both.contains(holder));
        let blocks = |group: &Group| matches!(group, Group::Blocks { .. });
        let expected: Vec<Group> = before.replicated().filter(blocks).filter(is_of_both).collect();
        assert_eq!((map.check(), &map.gone), (Ok(()), &expected));
        assert!(!expected.is_empty() && expected.iter().all(|group| lost.contains(group)));
        let nobody = |map: &Map| {
            assert_eq!(map.check(), Ok(()));
            expected.iter().all(|group| {
                map.primary_of(*group) == Some(NO_SERVER)
                    && map.reader_of(*group, NodeId(2)) == Some(NO_SERVER)
                    && map.serving(*group).next().is_none()
                    && map.lag_of(*group).is_none()
            })
        };
        assert!(nobody(&map));
        // New files have other groups, which are served.
        let newest = |group: &Group| matches!(group, Group::Blocks { generation, .. } if *generation == map.newest_generation());
        assert!(map.replicated().filter(newest).all(|group| map.primary_of(group) != Some(NO_SERVER)));
        let mut later = map.clone();
        for state in [ServerState::Joining, ServerState::Up, ServerState::Down] {
            later = MapChange::State { server: ServerId(0), state }.apply(&later).expect("listed");
            assert!(nobody(&later), "{state:?}");
        }
        assert!(nobody(&later.without(&[ServerId(0)]).expect("two are left").map));
    }

    #[test]
    fn others_take_the_place_of_a_server_that_was_given_up_and_have_to_catch_up() {
        let before = down(&replicated(5, 3, &[&[0, 1, 2, 3, 4]]), 2);
        let Without { map, lost } = before.without(&[ServerId(2)]).expect("enough are left");
        assert_eq!((map.check(), lost), (Ok(()), Vec::new()));
        let mut taken = 0;
        for group in before.replicated() {
            let (before, after) = (before.holders(group), map.holders(group));
            assert_eq!(before.all().len(), after.all().len(), "{group:?}");
            assert!(!after.all().contains(&ServerId(2)), "{group:?}");
            for server in after.all() {
                let is_new = !before.all().contains(server);
                assert_eq!(map.is_behind(group, *server), is_new, "{group:?}");
                taken += u32::from(is_new);
            }
        }
        assert!(taken > u32::from(SHARDS) / 2);
        assert_eq!(map.generations.len(), 2);
        assert_eq!(map.newest_generation(), GenerationId(1));
        assert_eq!(map.generations[1].servers, [0, 1, 3, 4].map(ServerId));
        // What has one copy is still looked for where it is.
        let single = Group::Blocks { generation: GenerationId(0), position: 2, spread: 0, copies: 1 };
        assert_eq!(map.holders(single).all(), [ServerId(2)]);
    }

    #[test]
    fn who_is_down_at_that_moment_is_behind_in_what_comes_after_it() {
        let before = down(&down(&replicated(5, 2, &[&[0, 1, 2, 3, 4]]), 3), 2);
        let map = before.without(&[ServerId(3)]).expect("enough are left").map;
        let newest = map.newest_generation();
        let is_new =
            |group: &Group| matches!(group, Group::Blocks { generation, .. } if *generation == newest);
        let held: Vec<Group> = map
            .replicated()
            .filter(is_new)
            .filter(|g| map.holders(*g).all().contains(&ServerId(2)))
            .collect();
        assert!(!held.is_empty());
        for group in held {
            assert!(map.is_behind(group, ServerId(2)), "{group:?}: it has nothing of what others will write");
        }
    }

    #[test]
    fn who_is_catching_up_at_that_moment_is_behind_in_what_comes_after_it() {
        // Server 2 was down, and is up again; it has not caught up when a new generation begins.
        let joining = MapChange::State { server: ServerId(2), state: ServerState::Joining };
        let joining = joining.apply(&down(&replicated(5, 2, &[&[0, 1, 2, 3, 4]]), 2)).expect("listed");
        let mut map = up(&joining, 2);
        map.begin_generation(map.servers.iter().map(|server| server.id).rev().collect());
        assert_eq!(map.check(), Ok(()));
        let newest = map.newest_generation();
        let new = map
            .replicated()
            .filter(|group| matches!(group, Group::Blocks { generation, .. } if *generation == newest));
        let (mut held, mut others) = (0, 0);
        for group in new {
            let holders = map.holders(group);
            held += usize::from(holders.all().contains(&ServerId(2)));
            others += usize::from(!holders.all().contains(&ServerId(2)));
            let behind: Vec<ServerId> = holders.behind().collect();
            let expected = if holders.all().contains(&ServerId(2)) { vec![ServerId(2)] } else { vec![] };
            assert_eq!(behind, expected, "{group:?}");
        }
        assert!(held > 1 && others > 1);
    }

    fn up(map: &Map, server: u16) -> Map {
        MapChange::State { server: ServerId(server), state: ServerState::Up }.apply(map).expect("listed")
    }

    #[test]
    fn a_server_that_was_given_up_and_is_there_again_gets_new_files_and_nothing_else() {
        let before = replicated(4, 2, &[&[0, 1, 2, 3]]);
        let given_up = down(&before, 1).without(&[ServerId(1)]).expect("three are left").map;
        let map = up(&given_up, 1);
        assert_eq!((map.check(), map.is_given_up(ServerId(1))), (Ok(()), false));
        assert_eq!(map.spares, [Spare { server: ServerId(1), since: GenerationId(2) }]);
        assert_eq!(map.generations[2].servers, [0, 1, 2, 3].map(ServerId), "as at first");
        for group in given_up.replicated() {
            assert_eq!(map.holders(group), given_up.holders(group), "{group:?}");
        }
        let is_new = |group: &Group| matches!(group, Group::Blocks { generation, .. } if *generation == GenerationId(2));
        let holds = |group: &Group| map.holders(*group).in_step().any(|server| server == ServerId(1));
        assert!(
            map.replicated().filter(is_new).filter(holds).count() > 4,
            "it holds its part of what is new"
        );
        assert_eq!(up(&map, 1).generations.len(), 3, "once");
    }

    #[test]
    fn a_server_that_came_back_holds_what_others_do_not_suffice_for() {
        // One after the other is given up and comes back: only two were there all the time.
        let mut map = replicated(4, 3, &[&[0, 1, 2, 3]]);
        for server in [0, 1] {
            map = up(&down(&map, server).without(&[ServerId(server)]).expect("three are left").map, server);
            // Everybody has caught up.
            map.behind.clear();
        }
        let before = map;
        let map = down(&before, 2).without(&[ServerId(2)]).expect("three are left").map;
        assert_eq!(map.check(), Ok(()));
        for group in map.replicated() {
            let (holders, wanted) = (
                map.holders(group),
                match group {
                    Group::Shard(_) => 3,
                    Group::Blocks { copies, .. } => usize::from(copies),
                },
            );
            assert_eq!(holders.all().len(), wanted, "{group:?}");
            assert!(!holders.all().contains(&ServerId(2)), "{group:?}");
            let behind: Vec<ServerId> = holders.behind().collect();
            let gained = |server: &ServerId| !before.holders(group).all().contains(server);
            assert!(behind.iter().all(gained), "{group:?} {behind:?}");
        }
        // The next one that comes back takes nobody's place either.
        let all_back = up(&map, 2);
        assert_eq!(all_back.check(), Ok(()));
        for group in map.replicated() {
            assert_eq!(all_back.holders(group), map.holders(group), "{group:?}");
        }
        let again = down(&map, 0).without(&[ServerId(0)]);
        assert!(again.is_none(), "two servers for three copies");
    }

    #[test]
    fn who_is_up_and_who_is_needed_cannot_be_given_up() {
        let map = replicated(3, 2, &[&[0, 1, 2]]);
        assert!(map.without(&[ServerId(1)]).is_none(), "it is up");
        assert!(map.without(&[ServerId(7)]).is_none(), "there is none");
        let one = down(&map, 1).without(&[ServerId(1)]).expect("two are left").map;
        assert!(down(&one, 2).without(&[ServerId(2)]).is_none(), "one server for two copies");
    }

    #[test]
    fn what_is_lost_with_the_last_that_had_everything_is_told_and_the_rest_is_kept() {
        let map = down(&down(&replicated(4, 2, &[&[0, 1, 2, 3]]), 0), 1);
        let last_writers = |map: &Map| {
            let only = |g: &Group| map.holders(*g).in_step().all(|server| server == ServerId(1));
            map.replicated().filter(only).collect::<Vec<_>>()
        };
        let expected = last_writers(&map);
        assert!(!expected.is_empty(), "0 was down when 1 acknowledged alone");
        let Without { map: after, lost } = map.without(&[ServerId(1)]).expect("three are left");
        assert_eq!(lost, expected);
        assert_eq!(after.check(), Ok(()), "of every group one counts as complete");
        assert!(lost.iter().all(|group| after.primary_of(*group) == Some(ServerId(0))), "it has the most");
    }
}
