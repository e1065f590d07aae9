//! Raft's messages over the daemons' own connections.

use super::peers::Carrier;
use bivouac_layout::NodeId;
use bivouac_proto::auth::{Key, Role};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::raft::RaftRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Header, Kind, Request};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Outgoing, engine};
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest answer, bytes: it says whether entries were taken, and no more.
const ANSWER: usize = 64 << 10;
/// An answer is waited for at least so long before the connection is given up, whether or not anybody needs it: a
/// voter that is slow is not made slower by new connections.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where the agents of all nodes listen.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<BTreeMap<NodeId, SocketAddr>>>);

impl Book {
    /// Replaces everything in it.
    pub(crate) fn set(&self, agents: impl IntoIterator<Item = (NodeId, SocketAddr)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = agents.into_iter().collect();
    }

    /// Adds what is not in it.
    pub(crate) fn add(&self, agents: impl IntoIterator<Item = (NodeId, SocketAddr)>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, address) in agents {
            known.entry(node).or_insert(address);
        }
    }

    /// Everything in it.
    pub(crate) fn all(&self) -> BTreeMap<NodeId, SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where a node's agent listens.
    pub(crate) fn find(&self, node: NodeId) -> Option<SocketAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&node).copied()
    }
}

/// A connection to another voter.
pub(crate) struct Wire {
    pub(crate) key: Key,
    pub(crate) deployment: u64,
    /// The start of this voter's agent.
    pub(crate) boot: u64,
    pub(crate) to: NodeId,
    pub(crate) book: Book,
    pub(crate) connection: Option<(SocketAddr, Connection)>,
    pub(crate) body: Vec<u8>,
    pub(crate) answer: Vec<u8>,
}

impl Wire {
    /// A way to the voter of a node, not connected yet.
    pub(crate) fn new(key: Key, deployment: u64, boot: u64, to: NodeId, book: Book) -> Wire {
        Wire { key, deployment, boot, to, book, connection: None, body: Vec::new(), answer: vec![0; ANSWER] }
    }

    fn connect(&self, address: SocketAddr, limit: Duration) -> Result<Connection, String> {
        let options =
            ConnectOptions { timeout: limit, silence: limit.max(PATIENCE), ..ConnectOptions::default() };
        let (endpoint, role) = (Endpoint::Tcp(address), Role::Agent(self.boot));
        let connected = Connection::connect(&endpoint, &self.key, self.deployment, role, &options);
        connected.map(|(connection, _)| connection).map_err(|error| error.to_string())
    }
}

impl Carrier for Wire {
    fn carry(&mut self, kind: RaftRequest, message: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
        if message.len() > MAX_PAYLOAD as usize {
            return Err("the message is too long".into());
        }
        let address = self.book.find(self.to).ok_or("nobody knows where it listens")?;
        let mut connection = match self.connection.take() {
            Some((to, connection)) if to == address && !connection.is_broken() => connection,
            _ => self.connect(address, limit)?,
        };
        self.body.clear();
        bivouac_proto::encode(&Request::Raft(kind), &mut self.body);
        let payload = [IoSlice::new(message)];
        let header = Header::new(Kind::Request);
        let outgoing = Outgoing { before: &[], header, body: &self.body, payload: &payload };
        let into = &mut [IoSliceMut::new(&mut self.answer)];
        let answered = engine::attempt(&mut connection, &outgoing, into, None, || false);
        let answered = answered.map_err(|error| error.to_string())?;
        self.connection = Some((address, connection));
        match answered {
            Ok(answered) => Ok(self.answer.get(..answered.payload_len).unwrap_or_default().to_vec()),
            Err(Failure::Errno(errno)) => Err(errno.to_string()),
            Err(Failure::Refused(_)) => Err("it refuses".into()),
        }
    }
}
