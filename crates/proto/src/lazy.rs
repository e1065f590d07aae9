//! Lazy files: their names, sizes and attributes are in the deployment, their contents still in the backend.
//!
//! `preload --lazy` makes them ([`crate::meta::MetaRequest::MakeLazy`]). Who wants to see or change the contents is refused
//! ([`crate::Refusal::Unfetched`]), and has them *fetched* first ([`crate::meta::MetaRequest::Fetch`]). The file's inode's
//! server does that: it reads a small file itself. A larger one it has read by the servers that are to hold it: each reads
//! what is to be its own, in steps ([`FetchRequest`]). Only when all of it is there does the inode show that it is. So a
//! fetch that is interrupted leaves the file lazy.

use crate::Errno;
use crate::attr::Time;
use bivouac_layout::{Epoch, FileLayout, Ino};
use serde::{Deserialize, Serialize};

/// A file of the backend, as it was when a lazy file was made of it. If it is not like that any more, it is not read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Source {
    /// Its absolute path.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// Its inode's number there.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of its data.
    pub mtime: Time,
}

/// A lazy file to be made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LazyFile {
    /// Its contents; its time of change is also that of the new file.
    pub source: Source,
    /// Permission bits (07777).
    pub mode: u16,
    /// Owner and group, if they are not to be the caller's.
    pub owner: Option<(u32, u32)>,
    /// Last access.
    pub atime: Time,
}

/// From a lazy file's inode's server to one that is to hold blocks of it: read those of a range, and keep them
/// ([`FetchReply`]). May be repeated.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct FetchRequest {
    /// The file.
    pub ino: Ino,
    /// Counts the attempts at fetching the file: what belongs to an earlier one is not done any more.
    pub number: u64,
    /// The map by which it is asked. Refused as busy if the server has another one: it would find others responsible.
    pub epoch: Epoch,
    /// Since when the sender answers for the inode.
    pub since: Epoch,
    /// Where the range begins, bytes.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// How the file is going to be spread.
    pub layout: FileLayout,
    /// What is read.
    pub source: Source,
}

/// Why a file's contents cannot be fetched.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Unfetchable {
    /// What programs get.
    pub errno: Errno,
    /// For a person to read; names the file.
    pub why: String,
    /// The node of who tried does not see the file. Another one may.
    pub unseen: bool,
}

impl From<Errno> for Unfetchable {
    fn from(errno: Errno) -> Unfetchable {
        Unfetchable { errno, why: errno.to_string(), unseen: false }
    }
}

/// The answer to a [`FetchRequest`].
pub type FetchReply = Result<(), Unfetchable>;
