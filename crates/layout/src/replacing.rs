//! A server whose number another process gets, on new storage and perhaps on another node.
//!
//! Generations keep naming the number, so nobody else has to do anything: the new process is behind in everything that
//! the old one held, gets it from those who have it, and then serves. Who holds what stays as it was
//! ([`Server::former`]). A new generation begins, because of files with one copy: what they had on the old process is
//! lost, which has to be seen, and what they get from now on is on the new one.
//!
//! The old process may live, cut off from everybody. It knows no map in which it was replaced, and takes none; so
//! everybody who has that map refuses it, and whoever has an older one knows it as a server that may be down.

use crate::groups::Group;
use crate::ids::{Epoch, GenerationId, ServerId};
use crate::map::{Former, Map, Node, Server, ServerState};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// That another process is to have a server's number: the server is down and does not come back, and the new process
/// has been started with new storage.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Replacement {
    /// Which server.
    pub server: ServerId,
    /// The new process's succession: one more than the map says.
    pub succession: u32,
    /// Where it runs; a node that the map does not have is added to it.
    pub node: Node,
    /// Where it listens.
    pub address: SocketAddr,
    /// Also if nobody else has what was acknowledged last.
    pub accept_loss: bool,
}

/// A map in which another process has a server's number.
#[derive(Debug)]
pub struct Replaced {
    /// The map, at the next epoch.
    pub map: Map,
    /// Groups of which only the old process had everything that was acknowledged.
    pub lost: Vec<Group>,
}

impl Map {
    /// Gives a server's number to another process, with new storage: the server is down in this map, and something has
    /// copies. `node`: where that process runs; it may be new. `None`: that is not so, the map knows another node
    /// of this number, or somebody listens at this address already.
    pub fn replaced(&self, server: ServerId, node: &Node, address: SocketAddr) -> Option<Replaced> {
        let is_taken = |other: &Server| other.id != server && other.address == address;
        let old = self.server(server).filter(|old| old.state == ServerState::Down)?;
        if self.copies == 1 || self.servers.iter().any(is_taken) {
            return None;
        }
        let mut map = Map { epoch: Epoch(self.epoch.0 + 1), ..self.clone() };
        match map.nodes.binary_search_by_key(&node.id, |known| known.id) {
            Ok(at) if map.nodes[at].host == node.host => {}
            Ok(_) => return None,
            Err(at) => map.nodes.insert(at, node.clone()),
        }
        let until = GenerationId(map.generations.len() as u32);
        let new = map.servers.iter_mut().find(|s| s.id == server)?;
        new.former.push(Former { node: old.node, until });
        (new.node, new.address) = (node.id, address);
        map.vacated.retain(|vacated| *vacated != node.id);
        let mut lost = Vec::new();
        let held = self.replicated().filter_map(|group| {
            let holders = self.holders(group);
            let bit = holders.bit(server);
            if bit == 0 {
                return None;
            }
            if holders.in_step().any(|other| other != server) {
                return Some((group, holders.behind | bit));
            }
            // One counts as complete, as when a server is given up. The others catch up with it.
            lost.push(group);
            let mut others = holders.behind().filter(|other| *other != server);
            let best = others
                .find(|other| self.is_up(*other))
                .or_else(|| holders.behind().find(|other| *other != server));
            Some((group, (holders.behind | bit) & !best.map_or(bit, |best| holders.bit(best))))
        });
        let held = held.collect();
        map.set_behind(held);
        // One that was given up gets new files when it is there.
        if !map.is_given_up(server) {
            let newest = map.generations.last().map_or(Vec::new(), |newest| newest.servers.clone());
            map.begin_generation(newest);
        }
        Some(Replaced { map, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::ids::NodeId;
    use crate::map::NO_SERVER;
    use crate::map::fixture::{map, replicated};

    fn state(map: &Map, server: u16, state: ServerState) -> Map {
        MapChange::State { server: ServerId(server), state }.apply(map).expect("listed")
    }

    fn down(map: &Map, server: u16) -> Map {
        state(map, server, ServerState::Down)
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 9], port).into()
    }

    fn node(id: u16) -> Node {
        Node { id: NodeId(id), host: format!("node{id}"), agent: address(9), domain: id }
    }

    #[test]
    fn the_new_process_has_nothing_and_everybody_else_what_they_had() {
        let before = down(&replicated(4, 3, &[&[0, 1, 2, 3]]), 1);
        for at in [0, 1, 9] {
            let Replaced { map, lost } =
                before.replaced(ServerId(1), &node(at), address(7)).expect("it is down");
            assert_eq!((map.check(), lost, map.epoch), (Ok(()), Vec::new(), Epoch(before.epoch.0 + 1)));
            let new = map.server(ServerId(1)).expect("listed");
            assert_eq!((new.node, new.address, new.succession()), (NodeId(at), address(7), 1));
            assert_eq!(new.state, ServerState::Down, "until it answers");
            assert!(map.node(NodeId(at)).is_some());
            for group in before.replicated() {
                assert_eq!(map.holders(group).all(), before.holders(group).all(), "{group:?}");
            }
            for group in map.replicated().filter(|group| map.holders(*group).all().contains(&ServerId(1))) {
                assert!(map.is_behind(group, ServerId(1)), "{group:?}");
            }
            // What it had caught up with before counts for nothing.
            let since = |group| map.behind_since(group, ServerId(1)).is_none_or(|since| since == map.epoch);
            assert!(before.replicated().all(since));
        }
    }

    #[test]
    fn who_is_up_unknown_or_the_only_one_is_not_replaced() {
        let up = replicated(3, 2, &[&[0, 1, 2]]);
        assert!(up.replaced(ServerId(1), &node(1), address(7)).is_none(), "it is up");
        assert!(state(&up, 1, ServerState::Joining).replaced(ServerId(1), &node(1), address(7)).is_none());
        let down_one = down(&up, 1);
        assert!(down_one.replaced(ServerId(7), &node(1), address(7)).is_none(), "there is none");
        let taken = up.servers[0].address;
        assert!(down_one.replaced(ServerId(1), &node(1), taken).is_none(), "another one listens there");
        let other = Node { host: "another".into(), ..node(1) };
        assert!(down_one.replaced(ServerId(1), &other, address(7)).is_none(), "another node of this number");
        assert!(
            down(&map(3, &[&[0, 1, 2]]), 1).replaced(ServerId(1), &node(1), address(7)).is_none(),
            "one copy"
        );
    }

    #[test]
    fn what_had_its_only_copy_there_is_held_by_nobody_and_new_files_are() {
        let before = down(&replicated(3, 2, &[&[0, 1, 2]]), 1);
        let after = before.replaced(ServerId(1), &node(0), address(7)).expect("it is down").map;
        let single = |generation: u32, position| Group::Blocks {
            generation: GenerationId(generation),
            position,
            spread: 0,
            copies: 1,
        };
        assert_eq!(before.primary_of(single(0, 1)), Some(ServerId(1)));
        assert_eq!(after.primary_of(single(0, 1)), Some(NO_SERVER));
        assert_eq!(after.primary_of(single(0, 2)), Some(ServerId(2)), "others have theirs");
        assert_eq!(after.primary_of(single(1, 1)), Some(ServerId(1)), "what is made from now on");
        let again = down(&after, 1).replaced(ServerId(1), &node(2), address(8)).expect("it is down").map;
        assert_eq!(again.primary_of(single(1, 1)), Some(NO_SERVER));
        assert_eq!(again.server(ServerId(1)).map(Server::succession), Some(2));
        assert_eq!(again.check(), Ok(()));
    }

    #[test]
    fn what_only_the_old_process_had_is_told_and_one_of_the_others_counts() {
        // 0 was down when 1 acknowledged alone; then 1 died.
        let before =
            down(&state(&down(&down(&replicated(3, 2, &[&[0, 1, 2]]), 0), 1), 0, ServerState::Up), 1);
        let Replaced { map, lost } = before.replaced(ServerId(1), &node(2), address(7)).expect("it is down");
        assert!(!lost.is_empty() && map.check() == Ok(()));
        for group in lost {
            assert_eq!(map.primary_of(group), Some(ServerId(0)), "{group:?}");
            assert!(map.is_behind(group, ServerId(1)), "{group:?}");
        }
        let change = |accept_loss| {
            MapChange::Replace(Replacement {
                server: ServerId(1),
                succession: 1,
                node: node(2),
                address: address(7),
                accept_loss,
            })
        };
        assert_eq!(change(false).apply(&before), None);
        let changed = change(true).apply(&before).expect("a change");
        assert_eq!((changed.generations, changed.behind), (map.generations, map.behind));
        let late = MapChange::Replace(Replacement {
            server: ServerId(1),
            succession: 2,
            node: node(2),
            address: address(7),
            accept_loss: true,
        });
        assert_eq!(late.apply(&before), None, "somebody else was faster");
    }

    #[test]
    fn one_that_was_given_up_is_a_spare_when_it_is_there() {
        let given_up =
            down(&replicated(4, 2, &[&[0, 1, 2, 3]]), 1).without(&[ServerId(1)]).expect("enough").map;
        let map = given_up.replaced(ServerId(1), &node(1), address(7)).expect("it is down").map;
        assert!(map.is_given_up(ServerId(1)));
        assert_eq!(map.generations, given_up.generations);
        let map = state(&state(&map, 1, ServerState::Joining), 1, ServerState::Up);
        assert!(!map.is_given_up(ServerId(1)) && map.check() == Ok(()));
        let single = |generation, position| Group::Blocks { generation, position, spread: 0, copies: 1 };
        assert_eq!(map.primary_of(single(GenerationId(0), 1)), Some(NO_SERVER));
        assert_eq!(map.primary_of(single(map.newest_generation(), 1)), Some(ServerId(1)));
    }
}
