//! Connections to servers, each of one thread at a time.

use super::Session;
use super::links::Link;
use crate::host::Host;
use bivouac_layout::{Map, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::auth::Role;
use bivouac_transport::engine::Budget;
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Peer, TransportError};
use std::sync::atomic::Ordering;

impl Session {
    /// A connection to a server, of this thread alone until it is given back.
    pub(crate) fn take_link(&self, server: ServerId, map: &Map) -> Result<Box<Link>, TransportError> {
        let pool = self.pools.get(server).ok_or(TransportError::System(Errno::IO))?;
        self.number()?;
        let fork_count = self.fork.count();
        let entry = map.server(server).ok_or(TransportError::System(Errno::IO))?;
        if let Some(link) = pool.take(fork_count, entry.succession()) {
            return Ok(link);
        }
        let endpoint = if entry.node == self.node && self.local_access() {
            Endpoint::Node(bivouac_node::server_sockets(self.uid, &self.environment.name, &self.key, server))
        } else {
            Endpoint::Tcp(entry.address)
        };
        let role = Role::Client {
            credentials: self.credentials.clone(),
            node: self.node,
            job: self.environment.job_number(),
        };
        let connected =
            Connection::connect(&endpoint, &self.key, map.deployment, role, &connect_options(self.host));
        self.refusals.note(Peer::Server(server), &connected);
        let (connection, _) = connected?;
        let slot = self.slots.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Link::new(self.host, connection, fork_count, slot, entry.succession())))
    }

    /// Gives a connection back.
    pub(crate) fn give_link(&self, server: ServerId, link: Box<Link>) {
        match self.pools.get(server) {
            Some(pool) => pool.give(link, self.fork.count()),
            None => link.discard(),
        }
    }
}

pub(super) fn connect_options(host: &dyn Host) -> ConnectOptions {
    Budget::CLIENT.options(host.floor())
}
