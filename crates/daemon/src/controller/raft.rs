//! The voters: a Raft group that keeps the map, whoever of it dies.
//!
//! A voter is a part of a node's agent; its number is its node's. Of an odd number of them, one is the *leader*,
//! which alone proposes changes of the map; a change is *committed*, and so lasts, when most voters have it on
//! stable storage. While most voters live and reach each other, there is a leader, or will be in less than two
//! seconds. The engine is openraft; what is here gives it storage, connections, and the map to keep:
//!
//! - [`voter`]: a voter of this process: the narrow interface that everything else uses. The asynchronous runtime
//!   that openraft wants lives in one thread inside of it, and nowhere else in the program.
//! - [`machine`]: what is decided: entries of the log are applied to the map, by everybody in the same way.
//! - [`store`], [`journal`], [`disk`]: log, vote and snapshot in two small files, with checksums, written by a thread
//!   of their own, so that a slow disk holds up no sign of life.
//! - [`peers`]: a thread and a connection for each other voter, one message under way at a time.
//! - [`wire`]: how a daemon sends and takes these messages.
//!
//! A voter that has lost its files has forgotten for whom it voted, and must not vote again as if it had not: it takes
//! part only after the others have agreed to take it in ([`crate::controller::group`]).

#![allow(clippy::result_large_err, reason = "the errors are those of openraft's traits")]

pub(crate) mod disk;
pub(crate) mod journal;
pub(crate) mod machine;
pub(crate) mod peers;
pub(crate) mod store;
pub(crate) mod voter;
pub(crate) mod wire;

use bivouac_layout::{Epoch, Map, MapChange, NodeId, ServerId};
use serde::{Deserialize, Serialize};
use std::io::Cursor;
use std::net::SocketAddr;

openraft::declare_raft_types!(
    /// What openraft's traits want to know.
    pub(crate) Types:
        D = Proposal,
        R = Outcome,
        NodeId = u64,
        Node = openraft::EmptyNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = openraft::TokioRuntime,
);

pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type Membership = openraft::StoredMembership<u64, openraft::EmptyNode>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u64, openraft::EmptyNode>;
pub(crate) type StorageError = openraft::StorageError<u64>;

/// An entry of the log, as it is proposed.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) enum Proposal {
    /// The first map. A second one changes nothing.
    Found(Box<Map>),
    /// A change of the map of this epoch. It changes nothing if the map is another one by then: what the leader knew
    /// when it proposed the change may not be so any more.
    Change {
        /// The epoch of the leader's map.
        expected: Epoch,
        /// The change.
        change: MapChange,
    },
    /// All daemons have the map, and serve.
    Begun,
    /// All daemons were started again. Each start counts once, whoever proposes it.
    Resume {
        /// Names the start.
        number: u64,
        /// Where each node's agent listens.
        agents: Vec<(NodeId, SocketAddr)>,
        /// Where each server listens.
        servers: Vec<(ServerId, SocketAddr)>,
    },
}

/// What became of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(crate) enum Outcome {
    /// It did not concern the map.
    Nothing,
    /// The map has this epoch now.
    Changed(Epoch),
    /// The map is another one than was expected.
    Stale,
    /// There can be no such change of the map.
    Refused,
}

/// Who a voter is: stored with everything that it stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The deployment's number.
    pub(crate) deployment: u64,
    /// The voter's node.
    pub(crate) node: NodeId,
}

#[cfg(test)]
mod tests;
