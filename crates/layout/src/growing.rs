//! Servers that are added to a deployment.
//!
//! That takes two changes of the map. First the servers are listed, as ones that are down and hold nothing
//! ([`Map::arriving`]): from then on the controller watches them, and they join as servers do that come back. When all of
//! them are up, a generation begins that has them, too: new files are spread over them from then on, and nothing that is
//! there already moves. Until then they can be dismissed again, as if they had never been there; but their numbers are
//! not given to others ([`Map::numbers`]).

use crate::ids::{NodeId, SERVERS_MAX, ServerId};
use crate::map::{Map, Node, Server, ServerState};
use serde::{Deserialize, Serialize};

/// Servers that are to be added: they have been started, and listen.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Growth {
    /// Their nodes, as far as the map does not have them.
    pub nodes: Vec<Node>,
    /// The servers. Their numbers begin at [`Map::numbers`].
    pub servers: Vec<Server>,
}

impl Map {
    /// Lists servers that arrive. `None`: somebody else has added servers or nodes since, or an address or a number is
    /// taken already.
    pub(crate) fn with_arriving(&self, growth: &Growth) -> Option<Map> {
        let Growth { nodes, servers } = growth;
        let mut map = self.clone();
        let last = usize::from(self.numbers) + servers.len();
        let is_new = |(number, server): (u16, &Server)| {
            server.id == ServerId(number)
                && server.former.is_empty()
                && self.servers.iter().all(|other| other.address != server.address)
        };
        if servers.is_empty()
            || last > usize::from(SERVERS_MAX)
            || !(self.numbers..).zip(servers).all(is_new)
            || nodes.iter().any(|node| self.node(node.id).is_some())
        {
            return None;
        }
        map.nodes.extend(nodes.iter().cloned());
        map.nodes.sort_by_key(|node| node.id);
        map.servers.extend(servers.iter().map(|server| Server {
            state: ServerState::Down,
            joined: 0,
            ..server.clone()
        }));
        map.vacated.retain(|node| servers.iter().all(|server| server.node != *node));
        map.arriving.extend(servers.iter().map(|server| server.id));
        map.numbers = last as u16;
        map.check().is_ok().then_some(map)
    }

    /// Takes servers off the map that have not arrived, and nodes. `None` if a server has arrived or is not known, or if one
    /// of the nodes is used by another server.
    pub(crate) fn without_arriving(&self, servers: &[ServerId], nodes: &[NodeId]) -> Option<Map> {
        let mut map = self.clone();
        map.servers.retain(|server| !servers.contains(&server.id));
        map.arriving.retain(|server| !servers.contains(server));
        map.nodes.retain(|node| !nodes.contains(&node.id));
        map.away.retain(|node| !nodes.contains(node));
        let are_arriving = servers.iter().all(|server| self.arriving.contains(server));
        (are_arriving && map.check().is_ok()).then_some(map)
    }

    /// When all servers that were to arrive are up, new files are spread over them, too.
    pub(crate) fn welcome(&mut self) {
        if self.arriving.is_empty() || !self.arriving.iter().all(|server| self.is_up(*server)) {
            return;
        }
        let mut servers = self.generations.last().map_or(Vec::new(), |newest| newest.servers.clone());
        servers.append(&mut self.arriving);
        self.begin_generation(servers);
        self.balancing = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::groups::Group;
    use crate::ids::{GenerationId, SHARDS, ShardId};
    use crate::map::fixture::replicated;

    fn growth(map: &Map, count: u16) -> Growth {
        let numbers = map.numbers..map.numbers + count;
        let node = |number: u16| Node {
            id: NodeId(number),
            host: format!("node{number}"),
            agent: ([127, 0, 0, 2], 10_000 + number).into(),
            domain: number,
        };
        let server = |number: u16| Server {
            id: ServerId(number),
            node: NodeId(number),
            address: ([127, 0, 0, 2], 1000 + number).into(),
            // Whatever it says.
            state: ServerState::Up,
            joined: 9,
            former: Vec::new(),
        };
        Growth { nodes: numbers.clone().map(node).collect(), servers: numbers.map(server).collect() }
    }

    fn applied(map: &Map, change: MapChange) -> Map {
        let next = change.apply(map).expect("a change");
        assert_eq!(next.check(), Ok(()));
        next
    }

    fn up(map: &Map, server: u16) -> Map {
        applied(map, MapChange::State { server: ServerId(server), state: ServerState::Up })
    }

    #[test]
    fn when_all_that_were_added_are_up_new_files_are_spread_over_them_and_nothing_moves() {
        for copies in [1, 2, 3] {
            let before = replicated(4, copies, &[&[0, 1, 2, 3]]);
            let listed = applied(&before, MapChange::Add(growth(&before, 2)));
            assert_eq!((listed.generations.len(), listed.servers.len(), listed.numbers), (1, 6, 6));
            let one = up(&listed, 5);
            assert_eq!((one.generations.len(), &one.arriving[..]), (1, &[4, 5].map(ServerId)[..]));
            let all = up(&one, 4);
            assert_eq!((all.generations.len(), all.arriving.len()), (2, 0));
            assert_eq!(all.generations[1].servers, [0, 1, 2, 3, 4, 5].map(ServerId));
            for group in before.replicated().chain((0..SHARDS).map(|shard| Group::Shard(ShardId(shard)))) {
                assert_eq!(all.holders(group), before.holders(group), "{group:?}");
            }
            assert_eq!(all.behind, [], "nobody has missed anything");
            let is_new = |group: &Group| matches!(group, Group::Blocks { generation: GenerationId(1), .. });
            let holds = |group: &Group| all.holders(*group).all().contains(&ServerId(4));
            assert_eq!(all.replicated().filter(is_new).any(|group| holds(&group)), copies > 1);
            // They go and come like others then.
            let again =
                up(&applied(&all, MapChange::State { server: ServerId(4), state: ServerState::Down }), 4);
            assert_eq!(again.generations.len(), 2);
        }
    }

    #[test]
    fn what_is_taken_is_refused_and_numbers_are_never_used_again() {
        let map = replicated(3, 1, &[&[0, 1, 2]]);
        let refused = |change: &dyn Fn(&mut Growth)| {
            let mut growth = growth(&map, 2);
            change(&mut growth);
            MapChange::Add(growth).apply(&map).is_none()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|growth| growth.servers.clear()), "nothing is added");
        assert!(refused(&|growth| growth.servers[0].id = ServerId(2)), "a number that another one has");
        assert!(refused(&|growth| growth.servers[1].id = ServerId(7)), "a gap");
        assert!(refused(&|growth| growth.servers[1].address = map.servers[0].address));
        assert!(refused(&|growth| growth.nodes[0].id = NodeId(0)), "a node that is there");
        assert!(refused(&|growth| growth.nodes.truncate(1)), "a node that nobody knows");
        let listed = applied(&map, MapChange::Add(growth(&map, 2)));
        let dismiss = |servers: &[u16], nodes: &[u16]| MapChange::Dismiss {
            servers: servers.iter().copied().map(ServerId).collect(),
            nodes: nodes.iter().copied().map(NodeId).collect(),
        };
        assert!(dismiss(&[2], &[]).apply(&listed).is_none(), "it has not just been added");
        assert!(dismiss(&[3], &[4]).apply(&listed).is_none(), "another one is there");
        let gone = applied(&listed, dismiss(&[3, 4], &[3, 4]));
        assert_eq!((&gone.nodes, &gone.servers, gone.numbers), (&map.nodes, &map.servers, 5));
        assert!(MapChange::Add(growth(&map, 2)).apply(&gone).is_none(), "these numbers were given");
        let later = applied(&gone, MapChange::Add(growth(&gone, 1)));
        assert_eq!(later.arriving, [ServerId(5)]);
        assert!(dismiss(&[5], &[]).apply(&up(&later, 5)).is_none(), "it has arrived");
    }

    #[test]
    fn one_that_does_not_come_is_not_given_up_so_that_all_can_be_dismissed() {
        let map = replicated(4, 2, &[&[0, 1, 2, 3]]);
        let one = up(&applied(&map, MapChange::Add(growth(&map, 2))), 4);
        for accept_loss in [false, true] {
            assert!(MapChange::GiveUp { servers: vec![ServerId(5)], accept_loss }.apply(&one).is_none());
        }
        let servers = [4, 5].map(ServerId).to_vec();
        let without = applied(&one, MapChange::Dismiss { servers, nodes: [4, 5].map(NodeId).to_vec() });
        assert_eq!((without.generations, without.servers), (map.generations, map.servers));
    }
}
