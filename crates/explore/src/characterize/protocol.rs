//! What the command tells the processes that measure a storage, and what they answer.

use crate::protocol::Outcome;
use serde::{Deserialize, Serialize};

/// What all processes have to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The directory in which everything happens. Process 0 makes it.
    pub directory: String,
    /// A number that nothing else has.
    pub run: u64,
    /// What random places follow from.
    pub seed: u64,
    /// Processes on each node.
    pub each: u32,
}

/// Which processes take part in a measurement: the first ones of each of the first nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// How many nodes.
    pub nodes: u32,
    /// How many processes on each.
    pub each: u32,
}

impl Group {
    /// How many processes.
    pub fn processes(self) -> u32 {
        self.nodes.saturating_mul(self.each)
    }

    /// The number within the group of a process, by its number among all, of which `on_each` are on each
    /// node.
    pub fn member(self, rank: u32, on_each: u32) -> Option<u32> {
        let (node, local) = (rank.checked_div(on_each)?, rank.checked_rem(on_each)?);
        (node < self.nodes && local < self.each).then(|| node * self.each + local)
    }

    /// Whose files a member reads: those of one on another node, if there is one, so that no cache of its own
    /// node answers.
    pub fn other(self, member: u32) -> u32 {
        let further = if self.nodes > 1 { self.each } else { 1 };
        (member + further) % self.processes().max(1)
    }
}

/// One step of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Who takes part.
    pub group: Group,
    /// The measurement's number, which stands in what it writes.
    pub number: u64,
    /// What they do.
    pub act: Act,
}

/// What processes do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Act {
    /// Say what there is.
    Look,
    /// Write all of the file that is read.
    Fill {
        /// Its bytes.
        bytes: u64,
    },
    /// Sync that file, and drop what this node's page cache has of it.
    Forget,
    /// Open what a transfer uses.
    Open(Transfer),
    /// Transfer.
    Go(Transfer),
    /// Check what another process has written. `done`: how many requests each has done.
    Check(Transfer, Vec<u64>),
    /// Remove or sync what a transfer has written.
    Close(Transfer),
    /// Remove the file that is read.
    Clear,
    /// A step of a flood.
    Flood(Flood),
    /// A step of measuring metadata.
    Metadata(Metadata),
}

/// A transfer.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// It writes, and does not read.
    pub writes: bool,
    /// Its requests are in no order.
    pub random: bool,
    /// Each process syncs its file in the end, as a part of what is measured.
    pub fsync: bool,
    /// Bytes of a request.
    pub request: u64,
    /// Bytes of each process's file: a multiple of `request`.
    pub bytes: u64,
    /// Seconds after which it ends, whatever is left.
    pub seconds: f64,
    /// The number of the step that has filled the file that is read.
    pub filled: u64,
}

/// A step of a flood of small files in one directory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Flood {
    /// The first process makes the directory.
    Begin,
    /// Create and write so many files, all processes together, of so many bytes.
    Create(u64, u64),
    /// Read another process's part.
    Read(u64, u64),
    /// Look which of these are in the directory.
    List(u64),
    /// Remove the own part.
    Clean(u64),
    /// The first process removes the directory.
    End,
}

/// A step of measuring metadata. Each process has a directory of its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Metadata {
    /// Make that directory.
    Begin,
    /// Do one kind of operation.
    Do {
        /// Which.
        operation: Operation,
        /// Of `Mkdir` and `Create`: how many at most, and for how many seconds.
        most: (u64, f64),
        /// How many directories and files each process has made so far.
        made: Vec<(u64, u64)>,
    },
    /// Remove the directory.
    End,
}

/// An operation of metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Operation {
    Mkdir,
    Create,
    Stat,
    Readdir,
    Rename,
    Unlink,
}

impl Operation {
    /// All of them, in the order in which they can follow each other.
    pub const ALL: [Operation; 6] = [
        Operation::Mkdir,
        Operation::Create,
        Operation::Stat,
        Operation::Readdir,
        Operation::Rename,
        Operation::Unlink,
    ];
}

/// What a process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It takes no part.
    Idle,
    /// It is done.
    Ready,
    /// To [`Act::Look`].
    Seen(Seen),
    /// What it has done, and when.
    Done(Outcome),
    /// To [`Flood::List`]: how many files were there, and how many of them whole.
    Found(u64, u64),
}

/// What a process sees of a storage and of its node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// The kind of the file system.
    pub file_system: String,
    /// Its bytes.
    pub capacity: u64,
    /// Bytes that this user can still write.
    pub free: u64,
    /// Files that can still be made, if there is a limit.
    pub free_files: Option<u64>,
    /// Memory that the page cache can take, bytes.
    pub memory: u64,
    /// Processors of the node.
    pub cores: u64,
}
