//! Requests of the controller and of the command line to a daemon.

use crate::restripe::Progress;
use crate::verify::{Name, VerifyRequest, VerifyState};
use bivouac_layout::{
    Epoch, Forwarding, Founding, Group, Growth, Ino, Map, News, NodeId, Replacement, Rule, ServerId,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Requests that run a deployment.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum ControlRequest {
    /// Are you there (`Pong`). The controller sends this twice a second. A daemon that has not got one for
    /// long knows that it has lost the connection to the controller.
    Ping {
        /// The controller's epoch.
        epoch: Epoch,
        /// The node whose agent is the controller; [`NodeId::NONE`] where somebody else asks.
        leader: NodeId,
        /// A lease, for a server that has copies of something.
        lease: Option<Grant>,
    },
    /// Take this map if it is newer than yours.
    Install {
        /// What it adds to the receiver's.
        news: News,
    },
    /// Begin a deployment: found the group of voters that keeps its map, and give the map to all daemons. To one
    /// agent, once; answered when the map is kept and the agent is the controller.
    Found {
        /// With what it begins.
        founding: Box<Founding>,
    },
    /// Bring a deployment back whose daemons were all started again, with the map that its voters have kept. To
    /// one agent, once; answered when the voters can elect one of them.
    Resume {
        /// Where each node's agent listens now.
        agents: Vec<(NodeId, SocketAddr)>,
        /// Where each server listens now.
        servers: Vec<(ServerId, SocketAddr)>,
    },
    /// From an agent that was asked to [`ControlRequest::Resume`], to all agents: go on as a voter if you have
    /// kept something (`Woken`).
    Wake {
        /// Names this start of the deployment.
        number: u64,
        /// Where each node's agent listens now.
        agents: Vec<(NodeId, SocketAddr)>,
        /// Where each server listens now.
        servers: Vec<(ServerId, SocketAddr)>,
    },
    /// From the controller, to the agent of a node: become a voter. It takes part as soon as the voters agree.
    Enlist {
        /// Where each node's agent listens.
        agents: Vec<(NodeId, SocketAddr)>,
    },
    /// Who keeps the map, and what you know of it (`Group`). To any agent.
    Group,
    /// Who does not serve yet after `Found` or `Resume` (`Beginning`). To the controller.
    Beginning,
    /// What you hold and have done (`Stats`).
    Stats,
    /// What the controller knows of all servers (`Overview`). To the controller.
    Overview,
    /// These servers are down and do not come back: others take their place. To the controller.
    GiveUp {
        /// Which.
        servers: Vec<ServerId>,
        /// Also if nobody else has what was acknowledged last.
        accept_loss: bool,
    },
    /// Stop. Without `keep`, remove everything that you stored.
    Shutdown {
        /// Leave the storage for a later start.
        keep: bool,
    },
    /// The deployment ends with this connection (`bivouac run` holds it). To the controller.
    Lifeline,
    /// Revokes an earlier [`ControlRequest::Lifeline`] of the same connection: the deployment goes on when
    /// this connection ends. To the controller.
    Release,
    /// About checking what is stored. To a server.
    Verify(VerifyRequest),
    /// What you know of the servers of your node (`Wards`). To an agent.
    Wards,
    /// A server is down and does not come back: another process, which has been started with new storage, has its number
    /// from now on. To the controller.
    Replace(Box<Replacement>),
    /// Servers were started that are to belong to the deployment. To the controller.
    Add(Box<Growth>),
    /// Servers that were added, and have not arrived, do not come; nodes that were added with them neither. To the
    /// controller.
    Dismiss {
        /// Which.
        servers: Vec<ServerId>,
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// Restripe all files by this rule, in the background. To the controller.
    Rebuild {
        /// Which ranges move, and where to.
        rule: Rule,
        /// As [`bivouac_layout::Rebuild::rate`].
        rate: u64,
    },
    /// Do not go on with a rebuild. To the controller.
    EndRebuild {
        /// Which.
        number: u32,
    },
    /// Servers are to leave: they get no new files, and their shards move to others. To the controller.
    Depart {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Servers that were to leave stay after all. To the controller.
    Stay {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Servers that were to leave hold nothing any more: they are taken off the map. To the controller.
    Remove {
        /// Which.
        servers: Vec<ServerId>,
        /// Nodes that go with them.
        nodes: Vec<NodeId>,
    },
    /// Another directory of the backend is to be forwarded, by others, or otherwise; or none any more. To the controller.
    Forward {
        /// What is forwarded from now on.
        forwarding: Option<Forwarding>,
    },
    /// What is forwarded (`Forwarding`). To any daemon.
    Forwarding,
    /// Whether you could forward a directory; `Failed` with the reason if not. To a server.
    Backend {
        /// Its path.
        directory: String,
    },
    /// How many files of yours have blocks whose only copy is on this server (`Alone`). To a server.
    Alone {
        /// Which.
        server: ServerId,
    },
    /// Servers that were to leave were stopped, and leave with what they still hold. To the controller.
    Abandon {
        /// Which.
        servers: Vec<ServerId>,
    },
    /// Which files of yours lose something if these servers leave as they are (`Losses`). To a server.
    Losses {
        /// Which.
        servers: Vec<ServerId>,
        /// Files behind this one, in the order of their numbers.
        after: Ino,
    },
    /// Which files of yours have to move and cannot, because a kernel holds them (`Held`). To a server.
    Held,
    /// Which files that are nowhere in the forwarded directory any more programs have open through you as an I/O node (`Held`, once for
    /// each open). To a server.
    Kept,
    /// Which programs these are (`Programs`). To the agent of the sessions' node.
    Programs {
        /// Files with sessions, at most [`HELD_MAX`].
        held: Vec<HeldFile>,
    },
    /// Let programs of your node begin to use the deployment, or not; those that copy it go on (`Users`). To an agent.
    Admit {
        /// Whether they may.
        programs: bool,
    },
    /// The servers of your node have left, by my map and by yours: end, if no program there uses the deployment (`Leaving`).
    /// To an agent.
    Leave {
        /// Only say whether any does.
        ask: bool,
    },
}

/// Most entries in one answer to [`ControlRequest::Held`], and in [`ControlRequest::Programs`].
pub const HELD_MAX: usize = 1000;

/// A file that cannot move, because a kernel holds it, or because it has no name by which another I/O node could open it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct HeldFile {
    /// Which file.
    pub ino: Ino,
    /// The session of the process for which the kernel holds it, or that has opened it.
    pub session: u64,
}

/// A program that holds a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub struct Holder {
    /// Which file.
    pub ino: Ino,
    /// The process, on its node.
    pub pid: u32,
    /// Its name there.
    pub command: String,
}

/// Most files in one answer to [`ControlRequest::Losses`].
pub const LOSSES_MAX: usize = 1000;

/// What a file loses if servers leave as they are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct FileLoss {
    /// Which file.
    pub ino: Ino,
    /// Its size, bytes.
    pub size: u64,
    /// So many bytes of it, holes among them, nobody else has.
    pub lost: u64,
    /// So many have fewer copies then.
    pub fewer: u64,
}

/// A server may answer for what has copies until a moment of its own clock.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Grant {
    /// What the clock showed in an earlier `Pong`.
    pub from: u64,
    /// How long from then on, milliseconds.
    pub millis: u32,
}

/// A daemon, as the controller knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub enum Member {
    /// The agent of a node.
    Agent(NodeId),
    /// A server.
    Server(ServerId),
}

/// What an I/O node has forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Forwarded {
    /// Reads and writes that have arrived.
    pub requests_in: u64,
    /// Reads and writes that were issued to the backend: neighbours are merged.
    pub requests_out: u64,
    /// Bytes of those that have arrived.
    pub bytes_in: u64,
    /// Bytes of those that were issued.
    pub bytes_out: u64,
    /// Open file descriptions of programs.
    pub opens: u64,
}

/// Counters of one daemon since its start.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Stats {
    /// Inodes held, directories included.
    pub inodes: u64,
    /// Bytes stored in sub-files (allocated).
    pub stored: u64,
    /// Size of the storage, bytes.
    pub capacity: u64,
    /// Bytes that can still be stored.
    pub available: u64,
    /// Which storage that is: servers of one node that name the same share it, and it counts once.
    pub device: u64,
    /// Requests to the metadata served.
    pub meta_operations: u64,
    /// Requests for data served. (Direct access is not counted here.)
    pub data_operations: u64,
    /// Bytes read through the server.
    pub bytes_read: u64,
    /// Bytes written through the server.
    pub bytes_written: u64,
    /// Connections open.
    pub connections: u64,
    /// Open file descriptions registered.
    pub opens: u64,
    /// Sub-files that are gone although Bivouac has not removed them.
    pub damaged: u64,
    /// Bytes read by processes of the server's node directly, without it.
    pub direct_read: u64,
    /// Bytes written likewise.
    pub direct_written: u64,
    /// How long the server may answer for what has copies if it gets no further lease, milliseconds. `None`: it needs
    /// none.
    pub lease_ms: Option<u64>,
    /// Bytes of blocks that the server has got from others because it lacked them.
    pub fetched: u64,
    /// Files of which it cannot get all that it lacks, because its storage is full.
    pub without_room: u64,
    /// The rebuild that is under way, or was the last one.
    pub rebuild: Progress,
    /// [Lazy](crate::lazy) files whose contents are still in the backend, of the shards that the server answers for.
    pub lazy_files: u64,
    /// Their bytes.
    pub lazy_bytes: u64,
    /// Those of them that could not be fetched when that was tried last.
    pub unfetchable: u64,
    /// What it has forwarded as an I/O node.
    pub forwarded: Forwarded,
}

/// What an agent knows of a server of its node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Ward {
    /// Which.
    pub server: ServerId,
    /// The process that serves, while there is one.
    pub pid: Option<u32>,
    /// How often this agent has started it again.
    pub restarts: u32,
    /// Why the server is not there, or what its latest start has failed with; for a person to read.
    pub trouble: Option<String>,
    /// The agent does not start it again any more.
    pub given_up: bool,
}

/// What the controller knows of one server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct ServerHealth {
    /// Which.
    pub server: ServerId,
    /// Whether it answers.
    pub alive: bool,
    /// Milliseconds since it last answered.
    pub silent_ms: u64,
}

/// Replies.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub enum ControlReply {
    /// Here I am.
    Pong {
        /// My map's epoch.
        epoch: Epoch,
        /// Differs after each start.
        boot: u64,
        /// By this map I am behind in these groups, and have caught up with them.
        caught_up: Vec<Group>,
        /// By this map these copies have everything, but their storage fails.
        suspects: Vec<(Group, ServerId)>,
        /// What my clock shows, nanoseconds: for [`ControlRequest::Ping`]'s lease.
        clock: u64,
        /// By this map my node is away, and I know which locks its programs have lost.
        accounted: Epoch,
        /// I do not reach these servers.
        unreached: Vec<ServerId>,
        /// With this rebuild, and all before it, I am done; 0: with none. Or I have nothing to do with it.
        rebuilt: u32,
    },
    /// Counters.
    Stats(Box<Stats>),
    /// How far the deployment's beginning has come.
    Beginning {
        /// How many daemons do not serve yet.
        pending: u32,
        /// Those of them that cannot, as it seems, and why.
        failed: Vec<(Member, String)>,
    },
    /// The deployment.
    Overview {
        /// The node whose agent is the controller.
        leader: NodeId,
        /// The nodes whose agents keep the map.
        voters: Vec<NodeId>,
        /// The current map.
        map: Box<Map>,
        /// Health of each server of the map.
        health: Vec<ServerHealth>,
        /// How often a server was declared down that had only not answered, since this controller leads.
        false_failovers: u64,
    },
    /// I am not the controller. Nothing was done.
    NotLeader {
        /// The node whose agent is, as far as I know.
        leader: Option<NodeId>,
    },
    /// What an agent has kept as a voter.
    Woken {
        /// The term and the number of its last log entry; `None`: it is no voter.
        last: Option<(u64, u64)>,
        /// The voters, according to that.
        voters: Vec<NodeId>,
    },
    /// What an agent knows of those who keep the map.
    Group {
        /// The node whose agent is the controller, if there is one.
        leader: Option<NodeId>,
        /// The voters; none if the agent is no voter itself.
        voters: Vec<NodeId>,
        /// The agent's map.
        map: Box<Map>,
    },
    /// The request failed; for a person to read.
    Failed {
        /// What is wrong, with what, and what can be done about it.
        cause: String,
    },
    /// How far checking is.
    Verify(Box<VerifyState>),
    /// Names of inodes.
    Names(Vec<Name>),
    /// Servers that an agent looks after.
    Wards(Vec<Ward>),
    /// Files that have their only copy of something on a certain server.
    Alone {
        /// How many.
        files: u64,
        /// One of them.
        example: Option<Ino>,
    },
    /// What files lose.
    Losses {
        /// Those that lose something, in the order of their numbers; if there are [`LOSSES_MAX`], there may be more.
        files: Vec<FileLoss>,
        /// So many files have a range that is on its way from server to server.
        on_their_way: u64,
    },
    /// Files that kernels hold, or that an I/O node keeps; [`HELD_MAX`] at most.
    Held(Vec<HeldFile>),
    /// The programs for which they do.
    Programs(Vec<Holder>),
    /// The programs of the node that use the deployment at this moment, apart from those that copy it: their processes and names.
    Users(Vec<(u32, String)>),
    /// Whether the agent ends, or would, because nobody on its node uses the deployment.
    Leaving {
        /// It does.
        idle: bool,
        /// The programs that use it: their processes and names. Without any, something that they had is still being given up.
        programs: Vec<(u32, String)>,
    },
    /// What is forwarded, by my map.
    Forwarding(Option<Forwarding>),
}
