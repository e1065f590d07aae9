//! Requests of a process for memory that the processes of its node share, over the node's Unix sockets.
//!
//! The answer to each is [`crate::Reply::Done`] together with a descriptor of that memory.

use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum NodeRequest {
    /// The node's table of open descriptions. To the agent.
    Table,
    /// The server's version page. To a server; ENOENT if it has none.
    Versions,
    /// The server's fence page, without which nothing is accessed directly. To a server; ENOENT if it has
    /// none.
    Fences,
}
