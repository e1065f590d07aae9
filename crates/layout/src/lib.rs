//! Where everything is.
//!
//! Bivouac has no metadata server: a client that holds the current [`Map`] computes from a name or an inode
//! number alone which server to ask. This crate holds those rules as pure functions over plain data, so that
//! every party (client, server, controller, tests) comes to the same answer, and so that each rule can be
//! tested without a network.
//!
//! - [`ids`]: the numbers that name things (inodes, shards, servers, epochs).
//! - [`hash`]: the one stable hash behind every placement; changing it changes where data is.
//! - [`namespace`]: which shard holds a directory, an entry, an inode.
//! - [`placement`]: which server holds which byte of a file.
//! - [`groups`]: what is replicated as one, who holds it, and who of them has everything.
//! - [`restripe`]: which ranges of files go to which other servers when servers come or leave.
//! - [`template`]: what a directory says about the layout of new files.
//! - [`map`]: the table of nodes, servers, shards and generations, with its epoch.
//! - [`forwarding`]: which I/O node serves a file of the site's storage.
//! - [`founding`]: what a deployment begins with, and the first map.
//! - [`change`]: what can happen to a map.
//! - [`balance`]: assigning shards to servers evenly, moving as few of them as possible. `rebalancing`: which are to move;
//!   `moving`: how they do.
//! - `growing`, `departing`, `abandoning`, `giving_up`, `replacing`: servers that come and go; `vacating`: nodes that leave
//!   with their last server.

mod abandoning;
pub mod balance;
pub mod change;
mod departing;
pub mod forwarding;
pub mod founding;
mod giving_up;
pub mod groups;
mod growing;
pub mod hash;
pub mod ids;
pub mod map;
mod moving;
pub mod namespace;
pub mod placement;
mod rebalancing;
mod replacing;
pub mod restripe;
mod since;
pub mod template;
mod vacating;

pub use abandoning::Loss;
pub use change::MapChange;
pub use forwarding::{Assign, Forwarding};
pub use founding::{Founding, LEASE, LEASE_MIN};
pub use giving_up::Without;
pub use groups::{Group, Holders, Lag, REPLICAS_MAX};
pub use growing::Growth;
pub use ids::{Epoch, GenerationId, Ino, NodeId, SERVERS_MAX, SHARDS, ServerId, ShardId};
pub use map::{Former, Generation, Map, Node, Server, ServerState, Spare};
pub use moving::{MoveStage, Relocation, ShardMove};
pub use placement::{FileLayout, LayoutRange, Piece};
pub use replacing::{Replaced, Replacement};
pub use restripe::{Rebuild, Rule};
pub use since::{News, ShardNews};
pub use template::{First, Template};

#[cfg(test)]
mod fair;
