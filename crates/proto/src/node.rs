//! Requests of a process for what the processes of its node share, over the node's Unix sockets.
//!
//! Each is answered with a descriptor of memory, beside [`crate::Reply::Done`].

use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum NodeRequest {
    /// The node's table of open descriptions. To the agent.
    Table,
    /// The server's version page. To a server; ENOENT if it has none.
    Versions,
    /// The server's counters of direct accesses. To a server; ENOENT if it has none.
    Traffic,
}
