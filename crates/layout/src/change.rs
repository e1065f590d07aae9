//! The changes that a map can undergo. Applying one is a pure function, so that everybody who applies the same
//! changes in the same order has the same map.

use crate::forwarding::Forwarding;
use crate::giving_up::Without;
use crate::groups::Group;
use crate::growing::Growth;
use crate::ids::{Epoch, NodeId, ServerId};
use crate::map::{Map, Server, ServerState};
use crate::moving::Relocation;
use crate::replacing::{Replaced, Replacement};
use crate::restripe::{Rebuild, Rule};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// One change of the map.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum MapChange {
    /// A server takes part again, or not any more. One that is down is behind from then on in all groups
    /// that others can serve. One that was given up is taken back when it is up.
    State {
        /// Which.
        server: ServerId,
        /// Whether it takes part.
        state: ServerState,
    },
    /// Holders have everything again that was acknowledged.
    InStep {
        /// Who, and in which groups.
        servers: Vec<(ServerId, Vec<Group>)>,
    },
    /// Copies that cannot be relied on: they are behind, where others can serve the group.
    Behind {
        /// In which groups who.
        copies: Vec<(Group, ServerId)>,
    },
    /// Servers that are down do not come back: others take their place.
    GiveUp {
        /// Which.
        servers: Vec<ServerId>,
        /// Also if nobody else has what was acknowledged last.
        accept_loss: bool,
    },
    /// A server that is down does not come back: another process, with new storage, has its number from now on.
    Replace(Replacement),
    /// Servers were started that are to belong to the deployment.
    Add(Growth),
    /// Servers that were added and have not arrived do not come.
    Dismiss {
        /// Which.
        servers: Vec<ServerId>,
        /// Nodes that were added with them.
        nodes: Vec<NodeId>,
    },
    /// Ranges of all files go to other servers by this rule, from now on. A rebuild that is under way is replaced.
    Rebuild {
        /// Which ranges, and where to.
        rule: Rule,
        /// As [`crate::Rebuild::rate`].
        rate: u64,
    },
    /// A rebuild is complete, or is not to go on.
    Rebuilt {
        /// Which.
        number: u32,
        /// By this map, every file is where it is to be.
        complete: bool,
    },
    /// Servers are to leave: they get no new files, and what they have leaves them.
    Depart {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Servers that were to leave stay.
    Stay {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Servers that were to leave hold nothing any more, and are gone.
    Remove {
        /// Which.
        servers: Vec<ServerId>,
        /// Nodes that go with them.
        nodes: Vec<NodeId>,
    },
    /// Shards are to move.
    MoveShards {
        /// Which, and between whom.
        moves: Vec<Relocation>,
    },
    /// Nobody reaches a node any more, or somebody does again.
    Node {
        /// Which.
        node: NodeId,
        /// Whether it is away.
        away: bool,
    },
    /// All daemons were stopped and started again; some listen somewhere else. Those that are not named did not start:
    /// these servers are down, and these nodes away. Nobody knows any more which changes of blocks were under way: copies
    /// have to be compared with their primaries.
    Resumed {
        /// Where the nodes' agents listen.
        agents: Vec<(NodeId, SocketAddr)>,
        /// Where the servers listen.
        servers: Vec<(ServerId, SocketAddr)>,
    },
    /// Servers that were to leave were stopped, and are gone with what they still hold.
    Abandon {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Another directory of the backend is forwarded, by others, or otherwise; or none any more.
    Forward {
        /// What is forwarded from now on.
        forwarding: Option<Forwarding>,
    },
    /// The agent of a node has ended whose servers have left before: the node is one of the deployment no more.
    Leave {
        /// Which.
        node: NodeId,
        /// No program of the node had anything locked or open. (Otherwise that ends, as if the node were away.)
        idle: bool,
    },
}

impl MapChange {
    /// The map after the change, at the next epoch. `None` if it names a server or node that the map does not have, or
    /// gives up what cannot be given up.
    pub fn apply(&self, map: &Map) -> Option<Map> {
        let mut next = map.clone();
        next.epoch = Epoch(map.epoch.0 + 1);
        match self {
            MapChange::State { server, state } => {
                let server_of = next.servers.iter_mut().find(|s| s.id == *server)?;
                server_of.state = *state;
                if *state == ServerState::Joining {
                    server_of.joined = server_of.joined.wrapping_add(1);
                }
                if *state != ServerState::Up {
                    next.cancel_moves_of(*server);
                }
                if *state == ServerState::Down {
                    next.fall_behind(*server);
                    next.relieve_io_node(*server);
                }
                if *state == ServerState::Up && next.is_given_up(*server) {
                    next.take_back(*server);
                }
            }
            MapChange::InStep { servers } => {
                for (server, groups) in servers {
                    map.server(*server)?;
                    next.catch_up(*server, groups);
                }
            }
            MapChange::Behind { copies } => {
                next.distrust(copies);
            }
            MapChange::GiveUp { servers, accept_loss } => {
                let Without { map: without, lost } = map.without(servers)?;
                if !(lost.is_empty() || *accept_loss) {
                    return None;
                }
                next = without;
            }
            MapChange::Replace(Replacement { server, succession, node, address, accept_loss }) => {
                if map.server(*server).map(Server::succession) != succession.checked_sub(1) {
                    return None;
                }
                let Replaced { map: replaced, lost } = map.replaced(*server, node, *address)?;
                if !(lost.is_empty() || *accept_loss) {
                    return None;
                }
                next = replaced;
            }
            MapChange::Add(growth) => next = Map { epoch: next.epoch, ..map.with_arriving(growth)? },
            MapChange::Dismiss { servers, nodes } => {
                next = Map { epoch: next.epoch, ..map.without_arriving(servers, nodes)? };
            }
            MapChange::Rebuild { rule, rate } => {
                next.rebuilds += 1;
                next.rebuild = Some(Rebuild { number: next.rebuilds, rule: *rule, rate: *rate });
            }
            MapChange::Rebuilt { number, complete } => {
                map.rebuild.filter(|rebuild| rebuild.number == *number)?;
                next.rebuild = None;
                if *complete {
                    next.emptied = next.departing.clone();
                }
            }
            MapChange::Depart { servers } => {
                next = next.with_departing(servers)?;
            }
            MapChange::Stay { servers } => next = next.with_staying(servers)?,
            MapChange::Remove { servers, nodes } => next = next.without_departed(servers, nodes)?,
            MapChange::Abandon { servers } => {
                next = Map { epoch: next.epoch, ..map.without_abandoned(servers)? };
            }
            MapChange::Leave { node, idle } => {
                next = Map { epoch: next.epoch, ..map.without_vacated(*node, *idle)? };
            }
            MapChange::Forward { forwarding } => {
                let before = map.forwarding.as_ref();
                next.forwarding = forwarding.clone().map(|forwarding| forwarding.after(before));
            }
            MapChange::MoveShards { moves } => next = next.with_moves(moves)?,
            MapChange::Node { node, away } => {
                map.node(*node)?;
                next.away.retain(|other| other != node);
                if *away {
                    next.away.push(*node);
                    next.away.sort_unstable();
                }
            }
            MapChange::Resumed { agents, servers } => {
                next.away = next.nodes.iter().map(|node| node.id).collect();
                for (node, address) in agents {
                    // The agent of a node that has left may have been started by who did not know that yet.
                    let Some(known) = next.nodes.iter_mut().find(|n| n.id == *node) else { continue };
                    known.agent = *address;
                    next.away.retain(|away| away != node);
                }
                next.servers.iter_mut().for_each(|server| server.state = ServerState::Down);
                for (server, address) in servers {
                    let server = next.servers.iter_mut().find(|s| s.id == *server)?;
                    (server.address, server.state) = (*address, ServerState::Up);
                }
                next.cancel_moves(|_| true);
                let is_back = |server: &ServerId| servers.iter().any(|(back, _)| back == server);
                let back: Vec<ServerId> = next.lost.iter().copied().filter(is_back).collect();
                back.into_iter().for_each(|server| next.take_back(server));
                next.doubt_copies();
            }
        }
        // The host of a server that was replaced stays.
        if !matches!(self, MapChange::Replace(_)) {
            next.note_vacated(map);
        }
        next.replace_io_nodes();
        next.welcome();
        next.leave_behind_who_is_away();
        next.balancing &= !next.is_balanced();
        if next.has_other_primaries(map) {
            next.primaries_since = next.epoch;
        }
        next.note_since(map);
        // No daemon would take another one, and nothing would go on.
        next.check().is_ok().then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fixture::replicated;

    fn state(server: u16, state: ServerState) -> MapChange {
        MapChange::State { server: ServerId(server), state }
    }

    #[test]
    fn a_change_raises_the_epoch_and_one_of_an_unknown_server_is_none() {
        let map = replicated(3, 1, &[&[0, 1, 2]]);
        let down = state(1, ServerState::Down).apply(&map).expect("a change");
        assert_eq!(down.epoch, Epoch(map.epoch.0 + 1));
        assert_eq!(down.server(ServerId(1)).map(|s| s.state), Some(ServerState::Down));
        assert_eq!(down.behind, [], "without copies nobody can be behind");
        let joined = |map: &Map| map.server(ServerId(1)).map(|s| s.joined);
        let joining = state(1, ServerState::Joining).apply(&down).expect("a change");
        let again = state(1, ServerState::Joining).apply(&joining).expect("a change");
        assert_eq!(
            [&down, &joining, &again].map(joined),
            [Some(0), Some(1), Some(2)],
            "each start is told apart"
        );
        let address = "10.0.0.9:99".parse().expect("an address");
        let resumed =
            MapChange::Resumed { agents: vec![(NodeId(2), address)], servers: vec![(ServerId(1), address)] };
        let up = resumed.apply(&down).expect("a change");
        assert_eq!(up.server(ServerId(1)).map(|s| (s.address, s.state)), Some((address, ServerState::Up)));
        assert_eq!(up.node(NodeId(2)).map(|n| n.agent), Some(address));
        let away = MapChange::Node { node: NodeId(2), away: true }.apply(&down).expect("a change");
        assert!(away.is_away(NodeId(2)) && !away.is_away(NodeId(1)) && away.check().is_ok());
        let back = MapChange::Node { node: NodeId(2), away: false }.apply(&away).expect("a change");
        assert_eq!((back.away.len(), resumed.apply(&away).expect("a change").is_away(NodeId(2))), (0, false));
        assert_eq!(up.away, [NodeId(0), NodeId(1)], "only one agent is back");
        let states: Vec<ServerState> = up.servers.iter().map(|server| server.state).collect();
        assert_eq!(states, [ServerState::Down, ServerState::Up, ServerState::Down]);
        for unknown in [
            MapChange::Node { node: NodeId(9), away: true },
            state(9, ServerState::Down),
            MapChange::InStep { servers: vec![(ServerId(9), Vec::new())] },
            MapChange::Resumed { agents: Vec::new(), servers: vec![(ServerId(9), address)] },
        ] {
            assert_eq!(unknown.apply(&map), None);
        }
        // A node that has left is not one more.
        let left = MapChange::Resumed { agents: vec![(NodeId(9), address)], servers: Vec::new() };
        assert_eq!(left.apply(&map).map(|map| map.nodes), Some(map.nodes));
    }
}
