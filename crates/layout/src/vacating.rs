//! Nodes that leave a deployment.
//!
//! When the last server of a node has left ([`crate::departing`], [`crate::abandoning`]), the node is *vacated*: only its
//! agent is there still, for the programs of the node. The agent keeps the map no longer than others need to take that over,
//! and ends when no program of its node uses the deployment. Then the node is taken off the map
//! ([`MapChange::Leave`](crate::MapChange::Leave)). Until then servers can be added on it again, as on any other.
//!
//! A node that never had a server (the machine that a deployment was started from, for example) stays.
//!
//! A server that was replaced may have been on the node at the time of old generations, and the node's failure domain
//! still decides who holds their blocks ([`Server::former`](crate::map::Server::former)). Such a node stays on the map, as
//! vacated and away at the same time: it has left, too ([`Map::has_left`]).

use crate::ids::NodeId;
use crate::map::Map;

impl Map {
    /// Whether any server of the map is on a node.
    pub fn has_servers(&self, node: NodeId) -> bool {
        self.servers.iter().any(|server| server.node == node)
    }

    /// Whether a node's last server has left.
    pub fn is_vacated(&self, node: NodeId) -> bool {
        self.vacated.binary_search(&node).is_ok()
    }

    /// Whether a node is one of the deployment no more.
    pub fn has_left(&self, node: NodeId) -> bool {
        self.node(node).is_none() || (self.is_vacated(node) && self.is_away(node))
    }

    /// Whether a node has no servers any more, or will have none soon: others are to keep the map.
    pub fn is_being_vacated(&self, node: NodeId) -> bool {
        let stays = |server: &crate::map::Server| server.node == node && !self.is_departing(server.id);
        self.is_vacated(node) || (self.has_servers(node) && !self.servers.iter().any(stays))
    }

    /// Whether the agent of a node may begin to keep the map: not if the node leaves, or may be dismissed again because none of its
    /// servers has arrived.
    pub fn may_keep_the_map(&self, node: NodeId) -> bool {
        let mut servers = self.servers.iter().filter(|server| server.node == node).peekable();
        let arrives = servers.peek().is_some() && servers.all(|server| self.arriving.contains(&server.id));
        self.node(node).is_some() && !self.is_being_vacated(node) && !arrives
    }

    /// Notes which nodes have servers no more that had some before, and which have some again.
    pub(crate) fn note_vacated(&mut self, before: &Map) {
        let is_vacated = |node: &NodeId| {
            !self.has_servers(*node) && (before.has_servers(*node) || before.is_vacated(*node))
        };
        self.vacated = self.nodes.iter().map(|node| node.id).filter(is_vacated).collect();
    }

    /// Takes a vacated node off the map. `None`: it is not.
    pub(crate) fn without_vacated(&self, node: NodeId, idle: bool) -> Option<Map> {
        if !self.is_vacated(node) || self.has_left(node) {
            return None;
        }
        let mut map = self.clone();
        let mut former = self.servers.iter().flat_map(|server| &server.former);
        let is_needed = former.any(|former| former.node == node);
        map.away.retain(|away| *away != node);
        if is_needed || !idle {
            map.away.push(node);
            map.away.sort_unstable();
        }
        if !is_needed {
            map.nodes.retain(|known| known.id != node);
        }
        Some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::MapChange;
    use crate::ids::{GenerationId, ServerId};
    use crate::map::fixture::replicated;
    use crate::map::{Former, Node, Server, ServerState};
    use crate::{Growth, Rule};

    fn applied(map: &Map, change: MapChange) -> Map {
        let next = change.apply(map).expect("a change");
        assert_eq!(next.check(), Ok(()));
        next
    }

    fn departing(map: &Map, server: u16) -> Map {
        applied(map, MapChange::Depart { servers: vec![ServerId(server)] })
    }

    /// A server has left, with whatever it held.
    fn left(map: &Map, server: u16) -> Map {
        let mut departing = departing(map, server);
        while !departing.relocations().is_empty() || !departing.moving.is_empty() {
            let moves = departing.relocations();
            if !moves.is_empty() {
                departing = applied(&departing, MapChange::MoveShards { moves });
            }
            let on = |entry: &crate::ShardMove| (entry.to, vec![crate::Group::Shard(entry.shard)]);
            let servers = departing.moving.iter().map(on).collect();
            departing = applied(&departing, MapChange::InStep { servers });
        }
        let begun = applied(&departing, MapChange::Rebuild { rule: Rule::Metadata, rate: 0 });
        let emptied = applied(&begun, MapChange::Rebuilt { number: begun.rebuilds, complete: true });
        applied(&emptied, MapChange::Remove { servers: vec![ServerId(server)], nodes: Vec::new() })
    }

    fn leave(node: u16, idle: bool) -> MapChange {
        MapChange::Leave { node: NodeId(node), idle }
    }

    /// Servers 0 to 2, and a node that never had one.
    fn map() -> Map {
        let mut map = replicated(3, 1, &[&[0, 1, 2]]);
        map.nodes.push(Node { id: NodeId(3), ..map.nodes[0].clone() });
        map
    }

    #[test]
    fn a_node_leaves_when_its_last_server_has_left_and_its_agent_has_ended() {
        let map = map();
        assert_eq!((leave(3, true).apply(&map), leave(0, true).apply(&map)), (None, None));
        let soon = departing(&map, 0);
        assert!(soon.is_being_vacated(NodeId(0)) && !soon.may_keep_the_map(NodeId(0)));
        assert!(!soon.is_being_vacated(NodeId(1)) && !soon.is_being_vacated(NodeId(3)));
        assert!(!soon.is_vacated(NodeId(0)), "a server is there still");
        let vacated = left(&map, 0);
        assert_eq!((&vacated.vacated, vacated.may_keep_the_map(NodeId(0))), (&vec![NodeId(0)], false));
        let later = applied(&vacated, MapChange::State { server: ServerId(1), state: ServerState::Down });
        assert_eq!(later.vacated, [NodeId(0)], "whatever happens meanwhile");
        let gone = applied(&later, leave(0, true));
        assert!(gone.has_left(NodeId(0)) && gone.away.is_empty() && gone.vacated.is_empty());
        assert_eq!(gone.nodes.iter().map(|node| node.id.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(leave(0, true).apply(&gone), None);
    }

    #[test]
    fn what_programs_had_ends_where_the_agent_has_died() {
        let gone = applied(&left(&map(), 0), leave(0, false));
        assert!(gone.has_left(NodeId(0)) && gone.is_away(NodeId(0)) && gone.node(NodeId(0)).is_none());
        let later = applied(&gone, MapChange::State { server: ServerId(1), state: ServerState::Down });
        assert!(later.is_away(NodeId(0)), "servers that have missed this map hear of it, too");
    }

    #[test]
    fn a_server_can_come_to_a_vacated_node_at_any_time_and_not_come_after_all() {
        let vacated = left(&map(), 0);
        let address = ([127, 0, 0, 3], 9).into();
        let server = Server { id: ServerId(3), node: NodeId(0), address, ..vacated.servers[0].clone() };
        let back = applied(&vacated, MapChange::Add(Growth { nodes: Vec::new(), servers: vec![server] }));
        assert!(!back.may_keep_the_map(NodeId(0)), "it has not arrived");
        let up = applied(&back, MapChange::State { server: ServerId(3), state: ServerState::Up });
        assert!(up.may_keep_the_map(NodeId(0)));
        assert_eq!((&back.vacated[..], leave(0, true).apply(&back)), (&[][..], None));
        let servers = vec![ServerId(3)];
        let dismissed = applied(&back, MapChange::Dismiss { servers, nodes: Vec::new() });
        assert_eq!(dismissed.vacated, [NodeId(0)]);
    }

    #[test]
    fn a_node_that_old_generations_need_stays_on_the_map_and_has_left_all_the_same() {
        let mut map = map();
        map.servers[1].former = vec![Former { node: NodeId(0), until: GenerationId(1) }];
        let vacated = left(&map, 0);
        let gone = applied(&vacated, leave(0, true));
        assert!(gone.has_left(NodeId(0)) && gone.node(NodeId(0)).is_some());
        assert!(gone.is_vacated(NodeId(0)) && gone.is_away(NodeId(0)));
        assert_eq!(leave(0, true).apply(&gone), None);
    }
}
