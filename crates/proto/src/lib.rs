//! The wire format, without any I/O.
//!
//! Every message is a fixed [`Header`], then a *body* (an encoded [`Request`], [`Reply`] or [`Refusal`]),
//! then a raw *payload* (file data, which is never copied through an encoder). Both lengths stand in the
//! header and are bounded before anything is allocated. Decoding never panics, whatever the bytes.
//!
//! - [`header`]: the fixed part: versions, epoch, namespace version, request identity, lengths.
//! - [`attr`]: attributes, layouts as replies carry them, directory entries.
//! - [`meta`], [`data`], [`peer`], [`agent`], [`control`]: the requests by family, with their meaning.
//! - [`lazy`]: files whose contents are still in the backend.
//! - [`raft`]: what those who keep the map tell each other.
//! - [`verify`]: what `bivouac verify` asks servers.
//! - [`status`]: how a request ends: an errno, or a refusal that tells the client what to change and redo.
//! - [`auth`]: the challenge and response by which both ends prove the deployment's key.
//!
//! The version is one number for the whole format: peers of different versions refuse each other with
//! [`header::HeaderError::Version`], which names both.

pub mod agent;
pub mod attr;
pub mod auth;
pub mod codec;
pub mod control;
pub mod copies;
pub mod data;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzzing;
pub mod header;
pub mod lazy;
pub mod meta;
pub mod node;
pub mod peer;
pub mod raft;
pub mod restripe;
pub mod status;
pub mod verify;

pub use attr::{Attr, DirEntry, FileKind, Time};
pub use codec::{decode, encode};
pub use header::{Header, Kind, OpenId, RequestId};
pub use status::{Errno, Refusal, Status};

use serde::{Deserialize, Serialize};

/// Any request's body.
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub enum Request<'a> {
    /// Names, attributes, small files, opens, locks: to the server that holds the shard.
    #[serde(borrow)]
    Meta(meta::MetaRequest<'a>),
    /// Bytes of files: to the server that holds the blocks.
    Data(data::DataRequest),
    /// From server to server.
    #[serde(borrow)]
    Peer(peer::PeerRequest<'a>),
    /// From a process to its node's agent, over a Unix socket.
    Agent(agent::AgentRequest),
    /// From the controller and the command line to a daemon.
    Control(control::ControlRequest),
    /// For memory that the processes of a node share: to an agent or a server of that node, over a Unix
    /// socket.
    Node(node::NodeRequest),
    /// Bytes of files that have copies: to the primary of their group.
    Copied(copies::Copied),
    /// From server to server, about copies of blocks.
    Copy(copies::CopyRequest),
    /// From voter to voter, about the map that they keep.
    Raft(raft::RaftRequest),
    /// From a file's inode's server to those of its blocks, and among these: ranges go to other servers.
    Restripe(restripe::RestripeRequest),
    /// From a lazy file's inode's server to those that are to hold its blocks.
    Fetch(Box<lazy::FetchRequest>),
    /// Bytes of many files: to the server that holds them.
    Gather(data::Gather),
}

/// What a request is about: which of a [`Request`]'s variants it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// [`Request::Meta`]
    Meta,
    /// [`Request::Data`]
    Data,
    /// [`Request::Peer`]
    Peer,
    /// [`Request::Agent`]
    Agent,
    /// [`Request::Control`]
    Control,
    /// [`Request::Node`]
    Node,
    /// [`Request::Copied`]
    Copied,
    /// [`Request::Copy`]
    Copy,
    /// [`Request::Raft`]
    Raft,
    /// [`Request::Restripe`]
    Restripe,
    /// [`Request::Fetch`]
    Fetch,
    /// [`Request::Gather`]
    Gather,
}

impl Family {
    /// All of them, in the order of a [`Request`]'s variants.
    const ALL: [Family; 12] = [
        Family::Meta,
        Family::Data,
        Family::Peer,
        Family::Agent,
        Family::Control,
        Family::Node,
        Family::Copied,
        Family::Copy,
        Family::Raft,
        Family::Restripe,
        Family::Fetch,
        Family::Gather,
    ];

    /// Of a request's body, without decoding it. `None`: it is no request's, or one of a newer version.
    pub fn of(body: &[u8]) -> Option<Family> {
        Family::ALL.get(usize::from(*body.first()?)).copied()
    }
}

/// Any reply's body when [`Header::status`] is [`Status::OK`].
#[derive(Serialize, Deserialize, Debug, PartialEq)]
pub enum Reply {
    /// Done; there is nothing to tell, or the payload tells it.
    Done,
    /// Answer to a [`Request::Meta`].
    Meta(meta::MetaReply),
    /// Answer to a [`Request::Data`].
    Data(data::DataReply),
    /// Answer to a [`Request::Peer`].
    Peer(peer::PeerReply),
    /// Answer to a [`Request::Agent`].
    Agent(agent::AgentReply),
    /// Answer to a [`Request::Control`].
    Control(control::ControlReply),
    /// Answer to a [`Request::Meta`] that has changed its shard in one step, or sets attributes of a file
    /// that is being written.
    Changed(meta::Change, meta::MetaReply),
    /// Answer to a [`Request::Copy`].
    Copy(copies::CopyReply),
    /// Answer to a [`Request::Restripe`].
    Restripe(restripe::RestripeReply),
    /// Answer to a [`Request::Fetch`].
    Fetch(lazy::FetchReply),
    /// Answer to a [`Request::Gather`]: of each piece, whether it is in the payload.
    Gathered(Vec<bool>),
    /// Answer to an open for reading of a file that lies on the answering server as a whole: the descriptor of its sub-file comes
    /// with it.
    Opened(data::SubFile, meta::MetaReply),
}

#[cfg(test)]
mod tests;
