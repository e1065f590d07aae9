//! Who is to keep the map.
//!
//! As many agents as the rule says ([`odd`]): of the nodes that stay and reach each other. Those that keep it go on, except
//! where their node leaves; others that answer take their places, or are added where nodes have come.

use crate::controller::raft::voter::{MOST_VOTERS, can_vote_with, odd};
use bivouac_layout::{Map, NodeId};
use std::collections::BTreeMap;

/// The agents that are to be voters, sorted. `own` leads; `alive`: agents that answer. If nobody could take a place, those
/// that are.
pub(super) fn wanted(own: NodeId, voters: &[NodeId], alive: &[NodeId], map: &Map) -> Vec<NodeId> {
    let nodes: BTreeMap<_, _> = map.nodes.iter().map(|node| (node.id, node.agent)).collect();
    let stays = |node: &NodeId| map.may_keep_the_map(*node) && can_vote_with(own, *node, &nodes);
    let lives = |node: &NodeId| *node == own || alive.contains(node);
    let all = nodes.keys().filter(|node| stays(node)).count();
    let mut able: Vec<NodeId> = voters.iter().copied().filter(stays).collect();
    // Where there are to be fewer, these are not.
    able.sort_by_key(|node| (*node != own, !lives(node), *node));
    able.extend(nodes.keys().copied().filter(|node| !voters.contains(node) && stays(node) && lives(node)));
    if able.is_empty() {
        able = voters.to_vec();
    } else {
        able.truncate(odd(all.min(MOST_VOTERS).min(able.len())));
    }
    able.sort_unstable();
    able
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::{Founding, MapChange, Node, Server, ServerId, ServerState};

    /// A server on each node, and two nodes without one if `more`.
    fn map(servers: u16, more: bool) -> Map {
        let all = if more { servers + 2 } else { servers };
        let address = |port: u16| ([10, 0, 0, 1], port).into();
        let node = |id| Node { id: NodeId(id), host: format!("n{id}"), agent: address(1 + id), domain: id };
        let server = |id| Server {
            id: ServerId(id),
            node: NodeId(id),
            address: address(100 + id),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let (nodes, servers) = ((0..all).map(node).collect(), (0..servers).map(server).collect());
        Founding::new(7, "/bivouac", nodes, servers).map().expect("a map")
    }

    fn departing(map: &Map, servers: &[u16]) -> Map {
        let servers = servers.iter().copied().map(ServerId).collect();
        MapChange::Depart { servers }.apply(map).expect("a change")
    }

    fn of(map: &Map, own: u16, voters: &[u16], alive: &[u16]) -> Vec<u16> {
        let ids = |all: &[u16]| all.iter().copied().map(NodeId).collect::<Vec<_>>();
        wanted(NodeId(own), &ids(voters), &ids(alive), map).into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn where_no_node_leaves_or_comes_voters_stay_who_they_are() {
        assert_eq!(of(&map(1, false), 0, &[0], &[0]), [0]);
        assert_eq!(of(&map(2, false), 1, &[1], &[0, 1]), [1]);
        assert_eq!(of(&map(4, false), 3, &[0, 2, 3], &[0, 1, 2, 3]), [0, 2, 3]);
        // Who does not answer is waited for.
        assert_eq!(of(&map(5, false), 3, &[0, 1, 2, 3, 4], &[3]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn others_take_the_places_of_those_whose_node_leaves() {
        let all = [0, 1, 2, 3];
        // The only one of two; one of three of four; the leader, too.
        assert_eq!(of(&departing(&map(2, false), &[0]), 0, &[0], &[0, 1]), [1]);
        assert_eq!(of(&departing(&map(4, false), &[0]), 1, &[0, 1, 2], &all), [1, 2, 3]);
        assert_eq!(of(&departing(&map(4, false), &[0]), 0, &[0, 1, 2], &all), [1, 2, 3]);
        // There are fewer then: the leader stays, and one that is silent does not.
        assert_eq!(of(&departing(&map(3, false), &[0]), 2, &[0, 1, 2], &all), [2]);
        assert_eq!(of(&departing(&map(3, false), &[0]), 0, &[0, 1, 2], &[0, 2]), [2]);
        assert_eq!(of(&departing(&map(4, false), &[0]), 1, &[0, 1, 2], &[0, 1, 2]), [1]);
        // Nodes that never had a server can keep the map.
        assert_eq!(of(&departing(&map(2, true), &[0]), 0, &[0, 1, 2], &all), [1, 2, 3]);
    }

    #[test]
    fn where_nobody_can_take_over_those_that_keep_the_map_go_on() {
        assert_eq!(of(&departing(&map(2, false), &[0]), 0, &[0], &[0]), [0]);
    }

    #[test]
    fn where_nodes_have_come_there_are_more() {
        assert_eq!(of(&map(4, false), 1, &[1], &[0, 1, 2, 3]), [0, 1, 2]);
        assert_eq!(of(&map(4, false), 1, &[1], &[1, 2]), [1], "two are not better than one");
        assert_eq!(of(&map(9, false), 8, &[3, 4, 8], &[0, 1, 2, 3, 4, 5, 6, 7, 8]), [0, 1, 2, 3, 4, 5, 8]);
    }
}
