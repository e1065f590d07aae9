//! The changes that a map can undergo. Applying one is a pure function, so that everybody who applies the same
//! changes in the same order has the same map.

use crate::groups::Group;
use crate::ids::{Epoch, ServerId};
use crate::map::{Map, ServerState};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// One change of the map.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum MapChange {
    /// A server takes part again, or not any more. One that is down is behind from then on in all groups
    /// that others can serve.
    State {
        /// Which.
        server: ServerId,
        /// Whether it takes part.
        state: ServerState,
    },
    /// A holder has everything again that was acknowledged in these groups.
    InStep {
        /// Which.
        server: ServerId,
        /// Where.
        groups: Vec<Group>,
    },
    /// All servers were stopped and started again, and all of them serve; some listen somewhere else.
    Resumed {
        /// Where each server listens.
        addresses: Vec<(ServerId, SocketAddr)>,
    },
}

impl MapChange {
    /// The map after the change, at the next epoch. `None` if it names a server that the map does not have.
    pub fn apply(&self, map: &Map) -> Option<Map> {
        let mut next = map.clone();
        next.epoch = Epoch(map.epoch.0 + 1);
        match self {
            MapChange::State { server, state } => {
                next.servers.iter_mut().find(|s| s.id == *server)?.state = *state;
                if *state == ServerState::Down {
                    next.fall_behind(*server);
                }
            }
            MapChange::InStep { server, groups } => {
                map.server(*server)?;
                next.catch_up(*server, groups);
            }
            MapChange::Resumed { addresses } => {
                for (server, address) in addresses {
                    let server = next.servers.iter_mut().find(|s| s.id == *server)?;
                    (server.address, server.state) = (*address, ServerState::Up);
                }
            }
        }
        Some(next)
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
        let address = "10.0.0.9:99".parse().expect("an address");
        let resumed = MapChange::Resumed { addresses: vec![(ServerId(1), address)] };
        let up = resumed.apply(&down).expect("a change");
        assert_eq!(up.server(ServerId(1)).map(|s| (s.address, s.state)), Some((address, ServerState::Up)));
        for unknown in [
            state(9, ServerState::Down),
            MapChange::InStep { server: ServerId(9), groups: Vec::new() },
            MapChange::Resumed { addresses: vec![(ServerId(9), address)] },
        ] {
            assert_eq!(unknown.apply(&map), None);
        }
    }
}
