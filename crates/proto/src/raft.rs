//! Messages between the voters that keep the map.
//!
//! What they say is Raft's, in the encoding of [`crate::codec`]: the payload of request and answer is one message
//! each, which only the two voters understand. So this crate knows nothing of the engine behind them.

use serde::{Deserialize, Serialize};

/// Which message of Raft the payload is. The answer is a [`crate::Reply::Done`] with the answer as its payload.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum RaftRequest {
    /// Log entries of the leader, or a sign of life.
    Append,
    /// Somebody wants to be the leader.
    Vote,
    /// Would you vote for a new leader? Without a payload; the answer's is one byte, 1 for yes.
    Canvass,
    /// A part of a snapshot, for a voter that lacks entries which nobody has any more.
    Snapshot,
}
