//! Requests of a process to its node's agent, over the node's Unix socket.

use bivouac_layout::{Map, NodeId};
use serde::{Deserialize, Serialize};

/// Requests to the agent.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum AgentRequest {
    /// A process begins (`Attached`). The agent watches it and ends its session when it dies.
    ///
    /// If the process was attached before and has executed another program since, it gets a new session, but
    /// it stays the same owner of process locks.
    Attach {
        /// The process.
        pid: u32,
    },
    /// The current map (`Map`). Any daemon answers this: a node's agent may be dead.
    Map,
    /// The process has set a lock at a server. The agent tells that server when the process ends.
    HoldsLocks {
        /// The owner of its locks.
        session: u64,
        /// The server.
        server: bivouac_layout::ServerId,
    },
    /// The process gives a session up before it ends. Its process locks go with the last of its sessions.
    Detach {
        /// The session.
        session: u64,
    },
}

/// Replies of the agent.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum AgentReply {
    /// A session began.
    Attached {
        /// Its number, unique in the deployment.
        session: u64,
        /// The owner of its process locks: the first session of this process.
        owner: u64,
        /// Servers at which it may have set locks before it executed the present program.
        locked: Vec<bivouac_layout::ServerId>,
        /// The agent's number, for [`crate::OpenId::agent`].
        agent: u64,
        /// The node.
        node: NodeId,
        /// Directory of the node's shared tables (open descriptions, anchors).
        run_dir: String,
        /// The current map.
        map: Box<Map>,
    },
    /// The map.
    Map(Box<Map>),
}
