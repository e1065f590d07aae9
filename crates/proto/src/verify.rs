//! Comparing what is stored with its checksums and its copies (`bivouac verify`): what the command line asks each server.
//!
//! A server checks in the background. It is told to begin, asked again and again how far it is, and stops by itself if
//! nobody asks any more. There are two [`Stage`]s: all servers finish the first one before the second one begins,
//! because what is found missing is fetched again before copies are compared.

use bivouac_layout::{Epoch, Ino, ServerId, ShardId};
use serde::{Deserialize, Serialize};

/// Most findings that a server keeps; of further ones it keeps the number.
pub const FINDINGS: usize = 20_000;
/// Most findings, inodes or names in one message.
pub const IN_MESSAGE: usize = 1000;

/// A part of the work.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Stage {
    /// What this server can find out by itself: its logs, and which sub-files are gone. What has copies and is gone is
    /// fetched again.
    Own,
    /// What takes several servers: copies of the metadata, blocks, lengths, and what lies on servers that are away.
    Together,
    /// Only which files have blocks on servers that are away.
    Away,
}

/// What the command line asks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum VerifyRequest {
    /// Begin (`Done`). What is under way for somebody else is ended.
    Start {
        /// With what.
        stage: Stage,
        /// Change nothing.
        dry_run: bool,
        /// Most bytes to read in a second; 0: as many as there are.
        rate: u64,
    },
    /// How far are you (`Verify`).
    State {
        /// Findings before this one are known.
        from: u32,
    },
    /// Stop (`Done`).
    Cancel,
    /// The names of these inodes in the shards that you answer for (`Names`): at most [`IN_MESSAGE`].
    Names {
        /// Which.
        inos: Vec<Ino>,
    },
}

/// How far a server is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct VerifyState {
    /// It is at work.
    pub is_running: bool,
    /// Its map when it began, and its newest one. If they differ, servers came or went, and something may have been left
    /// out.
    pub epochs: (Epoch, Epoch),
    /// What it has done.
    pub progress: Progress,
    /// How many findings there are in all.
    pub found: u32,
    /// Those from the one that was asked for, at most [`IN_MESSAGE`].
    pub findings: Vec<Finding>,
}

/// What a server has done.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Progress {
    /// Files in blocks whose inodes the server has.
    pub files: u64,
    /// Bytes of sub-files that were read here and compared with their checksums.
    pub bytes: u64,
    /// Bytes of logs that were read.
    pub log_bytes: u64,
    /// Copies of shards that were compared.
    pub shards: u64,
    /// Shards, files and stretches of files that could not be compared, because they changed all the time or a server
    /// did not answer.
    pub skipped: u64,
}

/// What became of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Outcome {
    /// Nothing: it was only looked for.
    Seen,
    /// It was repaired.
    Repaired,
    /// It could not be repaired.
    Damaged,
}

/// What is wrong with a sub-file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Debug)]
pub enum Fault {
    /// Bytes are not those that were written.
    Bytes,
    /// Bytes differ from those of the group's primary, and nothing says that either are wrong.
    Differs,
    /// All copies have the same bytes, and the checksum is another one.
    Checksum,
    /// The sub-file ends too early or too late.
    Length,
    /// The sub-file is gone.
    Missing,
}

/// Something that is not as it should be.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Finding {
    /// In a sub-file.
    SubFile {
        /// Of this file.
        ino: Ino,
        /// On this server.
        server: ServerId,
        /// What.
        fault: Fault,
        /// Where it begins, bytes.
        offset: u64,
        /// How far it extends, bytes; 0 where that is not known.
        len: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// In a metadata log, or the mark beside it.
    Log {
        /// Whose.
        server: ServerId,
        /// The number of the log partition.
        partition: u32,
        /// What became of it.
        outcome: Outcome,
    },
    /// A server's copy of a shard differs from the primary's.
    Shard {
        /// The shard.
        shard: ShardId,
        /// Whose copy.
        server: ServerId,
        /// What became of it.
        outcome: Outcome,
    },
    /// Blocks of a file are on servers only that are not there.
    Away {
        /// The file.
        ino: Ino,
    },
}

impl Finding {
    /// What became of it.
    pub fn outcome(&self) -> Outcome {
        match self {
            Finding::SubFile { outcome, .. }
            | Finding::Log { outcome, .. }
            | Finding::Shard { outcome, .. } => *outcome,
            Finding::Away { .. } => Outcome::Damaged,
        }
    }
}

/// A name of an inode.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Name {
    /// The inode.
    pub ino: Ino,
    /// The directory.
    pub dir: Ino,
    /// The name there.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
}
