//! Servers that leave before everything has left them, because their nodes will be taken away.
//!
//! They depart as usual first ([`crate::departing`]), and are stopped. Then they are taken off the map, with
//! whatever is still on them ([`MapChange::Abandon`](crate::MapChange::Abandon)):
//!
//! - Where there are other copies, others take the servers' places, as those of servers that were given up.
//!   They have to catch up, which restores the number of copies.
//! - Blocks of which no copy is left are *gone* ([`Map::gone`]): nobody serves them, so that they never look
//!   like holes. Ranges of files with such blocks stay in their generations, or go to successors in which the
//!   lost blocks have the same places, and are gone, too ([`Map::is_lost_place`]). New files are not
//!   concerned: their generation has begun without the servers.
//! - The metadata must have left the servers, or others must have all of it.
//!
//! [`FileLayout::bytes_on`] says beforehand how much of a file that is.

use crate::groups::{Group, Holders};
use crate::ids::{GenerationId, ServerId};
use crate::map::{Map, NO_SERVER, ServerState};
use crate::placement::FileLayout;

/// What becomes of a file if servers leave as they are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Loss {
    /// Bytes of which no complete copy is left.
    pub lost: u64,
    /// Bytes that have fewer copies then.
    pub fewer: u64,
}

impl Map {
    /// Whether servers may be taken off the map with what is on them; or why not.
    pub fn may_abandon(&self, servers: &[ServerId]) -> Result<(), &'static str> {
        let is_down = |id: &ServerId| self.server(*id).is_some_and(|s| s.state == ServerState::Down);
        if servers.is_empty() || !servers.iter().all(|server| self.is_departing(*server)) {
            return Err("one of them is not to leave");
        }
        if !servers.iter().all(is_down) {
            return Err("one of them is not down");
        }
        let metadata_stays = match self.copies {
            1 => {
                !self.moving.iter().any(|m| servers.contains(&m.from) || servers.contains(&m.to))
                    && !servers.iter().any(|server| self.shards.contains(server))
            }
            _ => self
                .without(servers)
                .is_some_and(|without| !without.lost.iter().any(|group| matches!(group, Group::Shard(_)))),
        };
        if metadata_stays { Ok(()) } else { Err("nobody else has some of the metadata that they hold") }
    }

    /// Takes servers off the map with what is still on them. `None`: not these.
    pub(crate) fn without_abandoned(&self, servers: &[ServerId]) -> Option<Map> {
        self.may_abandon(servers).ok()?;
        let mut map = match self.copies {
            1 => self.clone(),
            _ => self.without(servers)?.map,
        };
        for (number, generation) in self.generations.iter().enumerate() {
            let id = GenerationId(number as u32);
            for (position, server) in generation.servers.iter().enumerate() {
                if servers.contains(server) {
                    map.gone.push(only_copy(id, position as u16));
                }
            }
        }
        map.gone.sort_unstable();
        map.gone.dedup();
        map.servers.retain(|server| !servers.contains(&server.id));
        for list in [&mut map.departing, &mut map.emptied, &mut map.lost] {
            list.retain(|server| !servers.contains(server));
        }
        map.spares.retain(|spare| !servers.contains(&spare.server));
        // In these successors others have the places of what is lost.
        let names_one = |id: GenerationId| {
            self.generation(id)
                .is_some_and(|generation| generation.servers.iter().any(|s| servers.contains(s)))
        };
        map.successors.retain(|(from, _)| !names_one(*from));
        let (known, newest) = (map.generations.len(), map.generations.last().cloned());
        map.succeed();
        if map.generations.len() > known {
            // New files go on as before.
            map.begin_generation(newest.map_or(Vec::new(), |newest| newest.servers));
        }
        Some(map)
    }

    /// Whether a group is lost, and not because the server has left at whose place it was.
    pub(crate) fn is_lost_otherwise(&self, group: Group) -> bool {
        let Group::Blocks { generation, position, .. } = group else { return false };
        let place = self.generation(generation).and_then(|g| g.servers.get(usize::from(position)));
        let has_left = place.is_some_and(|server| self.server(*server).is_none());
        self.primary_of(group) == Some(NO_SERVER) && !has_left
    }

    /// Whether any blocks may be lost: looking for them takes long.
    pub(crate) fn has_losses(&self) -> bool {
        !self.gone.is_empty() || self.servers.iter().any(|server| !server.former.is_empty())
    }

    /// Whether blocks with one copy at this place of a generation are lost.
    pub(crate) fn is_lost_place(&self, generation: GenerationId, position: u16) -> bool {
        self.primary_of(only_copy(generation, position)) == Some(NO_SERVER)
    }

    /// Blocks with one copy at these places of a generation are lost, as those at the same places of another
    /// one.
    pub(crate) fn lose_places(&mut self, generation: GenerationId, positions: impl Iterator<Item = u16>) {
        self.gone.extend(positions.map(|position| only_copy(generation, position)));
        self.gone.sort_unstable();
        self.gone.dedup();
    }
}

/// The blocks at a place of a generation that have no other copy.
pub(crate) fn only_copy(generation: GenerationId, position: u16) -> Group {
    Group::Blocks { generation, position, spread: 0, copies: 1 }
}

impl FileLayout {
    /// Whether no copy is left of some blocks of the first `end` bytes, if the file has any there.
    pub fn has_lost(&self, map: &Map, end: u64) -> bool {
        map.has_losses() && self.groups(map, end).any(|group| map.primary_of(group) == Some(NO_SERVER))
    }

    /// What becomes of the first `size` bytes of a file if servers leave with what they have. Holes count as
    /// bytes.
    pub fn bytes_on(&self, map: &Map, servers: &[ServerId], size: u64) -> Loss {
        let mut loss = Loss::default();
        for (group, bytes) in self.bytes_by_group(map, size) {
            let holders: Holders = map.holders(group);
            let leaves = |server: &ServerId| servers.contains(server);
            if map.is_gone(group) || !holders.all().iter().any(leaves) {
                continue;
            }
            match holders.in_step().any(|server| !leaves(&server)) {
                true => loss.fewer += bytes,
                false => loss.lost += bytes,
            }
        }
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::ids::Ino;
    use crate::map::fixture::replicated;
    use crate::restripe::Rule;

    const BLOCK: u64 = 4096;

    fn ids(numbers: &[u16]) -> Vec<ServerId> {
        numbers.iter().copied().map(ServerId).collect()
    }

    fn applied(map: &Map, change: MapChange) -> Map {
        let next = change.apply(map).expect("a change");
        assert_eq!(next.check(), Ok(()));
        next
    }

    /// They depart, their shards go to another server where nobody else has them, and they are stopped.
    fn stopped(map: &Map, servers: &[u16]) -> Map {
        let mut map = applied(map, MapChange::Depart { servers: ids(servers) });
        if map.copies == 1 {
            let stays = map.servers.iter().map(|s| s.id).find(|s| !map.is_departing(*s)).expect("one stays");
            map.shards.iter_mut().filter(|s| servers.contains(&s.0)).for_each(|shard| *shard = stays);
        }
        for server in ids(servers) {
            map = applied(&map, MapChange::State { server, state: ServerState::Down });
        }
        map
    }

    fn abandoned(map: &Map, servers: &[u16]) -> Map {
        applied(&stopped(map, servers), MapChange::Abandon { servers: ids(servers) })
    }

    fn at(map: &Map, layout: &FileLayout, block: u64) -> ServerId {
        layout.server_at(map, block * BLOCK).expect("a piece")
    }

    #[test]
    fn only_servers_that_leave_and_are_down_and_whose_metadata_others_have_are_abandoned() {
        let map = replicated(4, 1, &[&[0, 1, 2, 3]]);
        let refused = |map: &Map| MapChange::Abandon { servers: ids(&[3]) }.apply(map).is_none();
        let down =
            |map: &Map| applied(map, MapChange::State { server: ServerId(3), state: ServerState::Down });
        let departing = applied(&map, MapChange::Depart { servers: ids(&[3]) });
        assert!(refused(&map) && refused(&down(&map)), "they are not to leave");
        assert!(refused(&departing), "it is up");
        assert_eq!(
            down(&departing).may_abandon(&ids(&[3])),
            Err("nobody else has some of the metadata that they hold")
        );
        assert!(!refused(&stopped(&map, &[3])));
    }

    #[test]
    fn what_has_one_copy_is_lost_and_nothing_else_and_never_comes_back_as_holes() {
        let map = abandoned(&replicated(5, 1, &[&[0, 1, 2, 3, 4]]), &[3]);
        assert!(map.server(ServerId(3)).is_none() && map.departing.is_empty());
        let old = FileLayout::spread(Ino(7), BLOCK as u32, GenerationId(0));
        let before = replicated(5, 1, &[&[0, 1, 2, 3, 4]]);
        for block in 0..20 {
            let was = at(&before, &old, block);
            let is = at(&map, &old, block);
            assert_eq!(is, if was == ServerId(3) { NO_SERVER } else { was }, "{block}");
        }
        for rule in [Rule::Metadata, Rule::Direct] {
            assert_eq!(old.next_to_restripe(&map, rule, 20 * BLOCK, u64::MAX), None, "{rule:?}: it stays");
        }
        // One more leaves: what the file still has on it goes to others, and what is lost stays lost.
        let departing = applied(&map, MapChange::Depart { servers: ids(&[1]) });
        for rule in [Rule::Metadata, Rule::Direct] {
            let (range, rule) =
                old.next_to_restripe(&departing, rule, 20 * BLOCK, u64::MAX).expect("it has to leave");
            assert_eq!((range.clone(), rule), (0..u64::MAX, Rule::Metadata));
            let new = old.restriped(&departing, Ino(7), rule, &range);
            for block in 0..20 {
                let (was, is) = (at(&departing, &old, block), at(&departing, &new, block));
                match was {
                    ServerId(1) => assert!(is != ServerId(1) && is != NO_SERVER, "{block}"),
                    was => assert_eq!(is, was, "{block}"),
                }
            }
            assert_eq!(new.next_to_restripe(&departing, Rule::Direct, 20 * BLOCK, u64::MAX), None);
        }
        // Its size is what those say that are left, and its inode.
        assert!(!old.servers_to_measure(&map, u64::MAX).contains(&NO_SERVER));
        assert!(old.servers_to_change(&map, u64::MAX).contains(&NO_SERVER), "nobody can cut it");
        // A file that has nothing in these places is spread over the newest servers.
        let short = (0..u64::MAX).map(|ino| FileLayout::spread(Ino(ino), BLOCK as u32, GenerationId(0)));
        let short = short.into_iter().find(|file| at(&map, file, 0) == ServerId(2)).expect("one");
        let next = short.next_to_restripe(&map, Rule::Direct, BLOCK, u64::MAX);
        assert_eq!(next, Some((0..u64::MAX, Rule::Direct)));
    }

    #[test]
    fn servers_are_abandoned_when_others_have_left_or_are_about_to() {
        let map = stopped(&replicated(5, 1, &[&[0, 1, 2, 3, 4]]), &[4]);
        let begun = applied(&map, MapChange::Rebuild { rule: Rule::Metadata, rate: 0 });
        let emptied = applied(&begun, MapChange::Rebuilt { number: 1, complete: true });
        let left = applied(&emptied, MapChange::Remove { servers: ids(&[4]), nodes: Vec::new() });
        let other_departs = applied(&left, MapChange::Depart { servers: ids(&[0]) });
        for map in [abandoned(&left, &[3]), abandoned(&other_departs, &[3])] {
            let newest = &map.generations.last().expect("a generation").servers;
            assert!(!newest.contains(&ServerId(3)) && !newest.contains(&ServerId(4)), "{newest:?}");
            let places = map.gone.len();
            // Where 4 was there was nothing.
            let old = FileLayout::spread(Ino(7), BLOCK as u32, GenerationId(0));
            let lost = (0..5).filter(|block| at(&map, &old, *block) == NO_SERVER).count();
            assert!(lost == 1 && places > 1, "{places}");
        }
    }

    #[test]
    fn where_there_are_copies_others_take_the_places_and_catch_up() {
        let before = replicated(5, 2, &[&[0, 1, 2, 3, 4]]);
        let map = abandoned(&before, &[3]);
        for group in map.replicated() {
            let holders = map.holders(group);
            assert_eq!((holders.all().len(), holders.all().contains(&ServerId(3))), (2, false), "{group:?}");
            assert!(map.serving(group).next().is_some(), "{group:?}");
        }
        assert!(!map.behind.is_empty());
        let copied = FileLayout { replicas: 2, ..FileLayout::spread(Ino(1), BLOCK as u32, GenerationId(0)) };
        assert!((0..40).all(|block| at(&map, &copied, block) != NO_SERVER));
        let once = FileLayout { replicas: 1, ..copied };
        assert!((0..40).any(|block| at(&map, &once, block) == NO_SERVER));
        // Both who have copies of something leave: that is lost, and nothing but that.
        let two = stopped(&before, &[2, 3]);
        assert!(two.may_abandon(&ids(&[2, 3])).is_err(), "they have pieces of the metadata together");
    }

    #[test]
    fn what_would_be_lost_is_counted_as_it_is_afterwards() {
        for (copies, replicas, size) in [(1, 1, 37 * BLOCK + 5), (2, 2, 37 * BLOCK + 5), (2, 1, 3 * BLOCK)] {
            let map = replicated(5, copies, &[&[0, 1, 2, 3, 4]]);
            let file = FileLayout { replicas, ..FileLayout::spread(Ino(3), BLOCK as u32, GenerationId(0)) };
            let loss = file.bytes_on(&map, &ids(&[3]), size);
            let has = |group| map.holders(group).all().contains(&ServerId(3));
            let expected: u64 =
                file.pieces(&map, 0..size).filter(|piece| has(piece.group)).map(|piece| piece.len).sum();
            assert!(expected > 0);
            let told = if replicas == 1 { loss.lost } else { loss.fewer };
            assert_eq!((told, loss.lost + loss.fewer), (expected, expected), "{copies} {replicas}");
        }
    }
}
