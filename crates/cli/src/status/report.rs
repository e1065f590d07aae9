//! What `bivouac status --json` says. Fields are added; none changes its meaning or goes without a new version.

use crate::forward::Shown;
use crate::holding::Holding;
use crate::policy;
use bivouac_layout::{Rebuild, Rule};
use bivouac_proto::control::Stats;
use bivouac_proto::restripe::Progress;
use serde::Serialize;
use std::path::PathBuf;

/// Version of the JSON; raised when a field changes its meaning or goes.
pub(super) const VERSION: u32 = 1;

/// All of the JSON.
#[derive(Serialize, Debug)]
pub(super) struct Status {
    pub(super) version: u32,
    pub(super) deployments: Vec<Deployment>,
}

/// One deployment.
#[derive(Serialize, Debug)]
pub(super) struct Deployment {
    pub(super) name: String,
    pub(super) state: Condition,
    /// What is wrong, in words; `null` if nothing is.
    pub(super) problem: Option<String>,
    pub(super) mount: String,
    pub(super) block_size: u32,
    /// Copies of new files' blocks, and of the metadata.
    pub(super) replicas: u8,
    pub(super) metadata_replicas: u8,
    /// So many pieces (shards, and groups of blocks) have fewer copies than they should.
    pub(super) incomplete: usize,
    /// So many shards move to another server, or are to: servers have come, or are to leave.
    pub(super) moving_shards: usize,
    /// What the servers do to bring files to where they are to be; `null`: nothing is to be done.
    pub(super) rebuild: Option<Rebuilding>,
    /// The policy by which it grows and shrinks by itself; `null`: that is off.
    pub(super) policy: Option<policy::Shown>,
    /// The directory of the site's storage that is forwarded, and what went through its I/O nodes; `null`: none is.
    pub(super) forwarding: Option<Shown>,
    pub(super) epoch: Option<u64>,
    /// The node whose agent is the controller; `null`: there is none.
    pub(super) leader: Option<u16>,
    /// The nodes whose agents keep the map.
    pub(super) voters: Vec<u16>,
    /// Servers that were declared down although they lived, since this controller leads.
    pub(super) false_failovers: Option<u64>,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) directory: PathBuf,
    pub(super) agents: Vec<AgentStatus>,
    pub(super) servers: Vec<ServerStatus>,
    pub(super) totals: Totals,
}

/// How far a rebuild is, by the servers that answer.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Rebuilding {
    pub(super) rule: Rule,
    /// Bytes per second that each server takes in at most; 0: as many as it can.
    pub(super) max_rate: u64,
    /// Files that are where they are to be since it began, and those that are not, or have not been looked at yet.
    pub(super) files_done: u64,
    pub(super) files_left: u64,
    /// Bytes that have moved.
    pub(super) bytes_done: u64,
    /// Bytes of the files that are left: more than what of them has to move.
    pub(super) bytes_left: u64,
    /// Files that wait until programs end that have mapped them, or have them open in a mount that passes them through.
    pub(super) held: u64,
    /// The programs for which they wait.
    pub(super) held_by: Vec<Holding>,
    /// Files that could not be moved: they are tried again.
    pub(super) failed: u64,
    /// A server has no room for what it is to get.
    pub(super) no_room: bool,
}

impl Rebuilding {
    pub(super) fn new(rebuild: &Rebuild, sum: &Progress, held_by: Vec<Holding>) -> Rebuilding {
        Rebuilding {
            rule: rebuild.rule,
            max_rate: rebuild.rate,
            files_done: sum.files_done,
            files_left: sum.files_left,
            bytes_done: sum.bytes_done,
            bytes_left: sum.bytes_left,
            held: sum.held,
            held_by,
            failed: sum.failed,
            no_room: sum.no_room,
        }
    }
}

/// How a deployment fares.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum Condition {
    Starting,
    Running,
    Degraded,
    Unreachable,
    Stopped,
    Crashed,
}

impl Condition {
    pub(super) fn word(self) -> &'static str {
        match self {
            Condition::Starting => "starting",
            Condition::Running => "running",
            Condition::Degraded => "degraded",
            Condition::Unreachable => "unreachable",
            Condition::Stopped => "stopped",
            Condition::Crashed => "crashed",
        }
    }
}

/// One agent: the daemon of a node that looks after the node's programs.
#[derive(Serialize, Debug)]
pub(super) struct AgentStatus {
    pub(super) node: u16,
    pub(super) host: String,
    /// Its process, on its host, as far as it is known.
    pub(super) pid: Option<u32>,
    /// What it is for the map; `null` if nobody could be asked.
    pub(super) role: Option<AgentRole>,
    /// Nobody reaches its node: what that node's programs had locked and open has ended.
    pub(super) away: bool,
    /// The servers of its node have left: it ends when no program there uses the deployment.
    pub(super) leaving: bool,
    pub(super) log: PathBuf,
}

/// What an agent is for the map.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum AgentRole {
    /// The voter that the others have elected: it changes the map.
    Controller,
    /// It keeps the map.
    Voter,
    /// It follows the map.
    Follower,
}

/// One server. What it counts is `null` when it does not answer.
#[derive(Serialize, Debug)]
pub(super) struct ServerStatus {
    pub(super) id: u16,
    pub(super) node: u16,
    pub(super) host: String,
    pub(super) address: Option<String>,
    /// Its process, on its host, as far as it is known.
    pub(super) pid: Option<u32>,
    /// How often its agent has started it again; `null`: the agent does not answer, or does not do that.
    pub(super) restarts: Option<u32>,
    /// Why it is not there, as its agent says.
    pub(super) trouble: Option<String>,
    /// `up`; `down`; or `joining`: it answers again, and is about to be up.
    pub(super) state: &'static str,
    /// It has not got yet what it has missed of so many groups (shards, and parts of files).
    pub(super) behind: usize,
    /// Others have taken its place: it holds no copies.
    pub(super) given_up: bool,
    /// It is to leave.
    pub(super) departing: bool,
    /// So many shards of the metadata it holds, of which it answers for as many as the second number says.
    pub(super) shards: usize,
    pub(super) primary_shards: usize,
    /// So often another process, with new storage, has got its number.
    pub(super) replaced: u32,
    /// Milliseconds since it last answered the controller.
    pub(super) silent_ms: Option<u64>,
    /// For so many milliseconds it may still answer for what has copies; `null` where nothing has.
    pub(super) lease_ms: Option<u64>,
    pub(super) storage: Vec<PathBuf>,
    pub(super) log: PathBuf,
    /// How far it is with the latest rebuild.
    #[serde(skip)]
    pub(super) progress: Option<Progress>,
    #[serde(flatten)]
    pub(super) counters: Option<Counters>,
}

/// What a server holds and has done since its start.
#[derive(Serialize, Clone, Copy, Default, Debug)]
pub(super) struct Counters {
    pub(super) capacity: u64,
    pub(super) available: u64,
    pub(super) stored: u64,
    pub(super) inodes: u64,
    pub(super) meta_operations: u64,
    pub(super) data_operations: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) connections: u64,
    pub(super) opens: u64,
    pub(super) damaged: u64,
    pub(super) fetched: u64,
    pub(super) without_room: u64,
    pub(super) direct_bytes_read: u64,
    pub(super) direct_bytes_written: u64,
    /// Files whose contents are still in the backend, and their bytes; how many of them could not be fetched.
    pub(super) lazy_files: u64,
    pub(super) lazy_bytes: u64,
    pub(super) unfetchable: u64,
}

/// The sums over the servers that answer.
#[derive(Serialize, Default, Debug)]
pub(super) struct Totals {
    pub(super) servers: usize,
    pub(super) servers_up: usize,
    #[serde(flatten)]
    pub(super) counters: Counters,
}

impl From<Stats> for Counters {
    fn from(s: Stats) -> Counters {
        Counters {
            capacity: s.capacity,
            available: s.available,
            stored: s.stored,
            inodes: s.inodes,
            meta_operations: s.meta_operations,
            data_operations: s.data_operations,
            bytes_read: s.bytes_read,
            bytes_written: s.bytes_written,
            connections: s.connections,
            opens: s.opens,
            damaged: s.damaged,
            fetched: s.fetched,
            without_room: s.without_room,
            direct_bytes_read: s.direct_read,
            direct_bytes_written: s.direct_written,
            lazy_files: s.lazy_files,
            lazy_bytes: s.lazy_bytes,
            unfetchable: s.unfetchable,
        }
    }
}

impl Counters {
    pub(super) fn add(&mut self, other: &Counters) {
        self.capacity += other.capacity;
        self.available += other.available;
        self.stored += other.stored;
        self.inodes += other.inodes;
        self.meta_operations += other.meta_operations;
        self.data_operations += other.data_operations;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.connections += other.connections;
        self.opens += other.opens;
        self.damaged += other.damaged;
        self.fetched += other.fetched;
        self.without_room += other.without_room;
        self.direct_bytes_read += other.direct_bytes_read;
        self.direct_bytes_written += other.direct_bytes_written;
        self.lazy_files += other.lazy_files;
        self.lazy_bytes += other.lazy_bytes;
        self.unfetchable += other.unfetchable;
    }

    pub(super) fn operations(&self) -> u64 {
        self.meta_operations + self.data_operations
    }

    /// Bytes read from a server's storage, through the server and past it.
    pub(super) fn read(&self) -> u64 {
        self.bytes_read + self.direct_bytes_read
    }

    /// Bytes written likewise.
    pub(super) fn written(&self) -> u64 {
        self.bytes_written + self.direct_bytes_written
    }

    pub(super) fn moved(&self) -> u64 {
        self.read() + self.written()
    }
}
