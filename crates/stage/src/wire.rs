//! What the command and its workers say to each other, over a worker's standard input and output.
//!
//! A frame is a length (4 bytes, little-endian) and a message in postcard's encoding. The first bytes that a
//! worker writes are [`MAGIC`], so that a host whose login scripts print something, or that has another
//! Bivouac, is told apart from a worker. All paths in tasks are relative to the roots that the [`Setup`]
//! names; the empty one is the root itself.

use crate::tree::{Kind, Meta, State, Turns};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::ops::Range;

/// What a worker begins with. The number changes with the messages.
pub(crate) const MAGIC: &[u8; 8] = b"bvstage2";

/// Longest frame, bytes: a directory of a million entries has some 200 MB.
const LONGEST: u32 = 1 << 30;

/// Which way a tree is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Direction {
    /// Into the deployment: preload.
    In,
    /// Out of it: flush.
    Out,
}

/// All that a worker has to know before its first task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// The deployment's name.
    pub name: String,
    /// Which way.
    pub direction: Direction,
    /// The root of what is copied. In a deployment: relative to the mount.
    #[serde(with = "serde_bytes")]
    pub source: Vec<u8>,
    /// The root of the copy.
    #[serde(with = "serde_bytes")]
    pub destination: Vec<u8>,
    /// Distinguishes this run's temporary names.
    pub run: String,
    /// Most tasks that it gets at once.
    pub threads: u16,
    /// Most bytes a second that it reads from or writes to the backend; 0: no limit.
    pub rate: u64,
    /// Read back what was written, and compare.
    pub verify: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Setup(Setup),
    Task(u64, Task),
    /// Where the copy goes, if that was found out only now.
    Destination(Vec<u8>),
    /// The command is alive, and answers the question of this number.
    Alive {
        answer: u64,
    },
    /// The worker's share of the allowed rate, when other workers have gone.
    Rate(u64),
}

/// Which of the two trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Side {
    Source,
    Destination,
    /// The backend's, and the path is absolute.
    Backend,
}

/// A file, link or special file to copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Item {
    #[serde(with = "serde_bytes")]
    pub(crate) path: Vec<u8>,
    pub(crate) meta: Meta,
    pub(crate) how: How,
}

/// What is to be done about an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum How {
    /// Copy it.
    Copy,
    /// There is one of the same size: compare the contents, and copy it if they differ.
    Compare,
    /// The content is there: set owner, mode, times and extended attributes only.
    Attributes,
    /// Make its name, size and attributes; its contents are fetched later.
    Lazy,
    /// Another name of the file whose first name this is.
    Link(Vec<u8>),
    /// Remove it at the destination. A directory that is not empty stays.
    Remove,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Task {
    Stat {
        side: Side,
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        follow: bool,
    },
    /// Make the directories at the destination that lead to its root; the root itself, too, if that is a
    /// directory.
    MakeParents {
        itself: bool,
    },
    /// What is in a directory of the source, and under the same name at the destination; `make`: make it
    /// there.
    List {
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        make: bool,
    },
    /// What is in a directory of the destination alone.
    ListThere {
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    Items(Vec<Item>),
    /// Begin a large file.
    Begin {
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        meta: Meta,
    },
    /// Copy a range of it; `only`: just the blocks whose turn it is, the index of the turn.
    Section {
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        meta: Meta,
        range: Range<u64>,
        only: Option<(Turns, u16)>,
    },
    /// Complete it, if the source is still as `meta` says.
    Finish {
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
        meta: Meta,
    },
    /// Give up what was begun.
    Abandon {
        #[serde(with = "serde_bytes")]
        path: Vec<u8>,
    },
    /// Have the contents of lazy files fetched, each of so many bytes.
    Fetch(Vec<(Vec<u8>, u64)>),
    /// Set owner, mode and times of directories.
    Metas(Vec<(Vec<u8>, Meta)>),
}

/// One entry of a directory that was listed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(with = "serde_bytes")]
    pub(crate) name: Vec<u8>,
    /// In the source; or why its attributes cannot be read.
    pub(crate) here: Option<Result<Meta, String>>,
    /// At the destination.
    pub(crate) there: Option<Meta>,
}

/// What came of an item or a large file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Copied {
    Done {
        kind: Kind,
        /// Without holes.
        bytes: u64,
        source: State,
        target: State,
        /// Identity of the source, for the record.
        identity: u64,
        target_identity: u64,
    },
    /// Compared, and found the same.
    Same {
        source: State,
        target: State,
        identity: u64,
        target_identity: u64,
    },
    /// Removed.
    Settled,
    Failed(String),
    /// The destination cannot hold it, though nothing is wrong.
    LeftOut(String),
    /// It changed while it was read.
    Changed,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Stat(Result<Meta, (i32, String)>),
    Made(Result<(), String>),
    Listed {
        /// Why the directory cannot be copied, or not completely.
        failed: Option<String>,
        /// Its attributes, as they were when it was listed.
        entries: Vec<Entry>,
        /// The node whose server holds its entries.
        node: Option<u16>,
    },
    /// In the items' order.
    Items(Vec<Copied>),
    /// What the source is now; and where the blocks of the copy lie.
    Begun(Result<(Meta, Option<Turns>), String>),
    /// Bytes that were copied of a section.
    Section(Result<u64, String>),
    Finished(Copied),
    /// In the files' order: whether each was still lazy, or why it could not be fetched.
    Fetched(Vec<Result<bool, String>>),
    /// The directories whose attributes could not be set.
    Metas(Vec<(Vec<u8>, String)>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It can work. What the source's root is.
    Ready { node: u16 },
    /// It cannot.
    Unfit(String),
    /// A task is done; with it, what was left out: paths and reasons.
    Done { id: u64, outcome: Outcome, left_out: Vec<(Vec<u8>, String)> },
    /// It is alive, has moved so many bytes so far, and has asked the question of this number.
    Alive { moved: u64, question: u64 },
}

/// Writes a frame.
pub(crate) fn send<T: Serialize>(out: &mut dyn Write, message: &T) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("a directory has too many entries"))?;
    out.write_all(&[&length.to_le_bytes()[..], &body].concat())?;
    out.flush()
}

/// Reads a frame. `None`: the other side has closed.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut dyn Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other("a message that is none"));
    }
    let mut body = Vec::new();
    if from.take(u64::from(length)).read_to_end(&mut body)? < length as usize {
        return Ok(None);
    }
    postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent_and_a_torn_one_is_an_end() {
        let mut bytes = Vec::new();
        let task = Task::ListThere { path: b"a/\xff\n".to_vec() };
        send(&mut bytes, &Order::Task(7, task.clone())).expect("sent");
        let whole: Option<Order> = receive(&mut &bytes[..]).expect("received");
        assert!(matches!(whole, Some(Order::Task(7, got)) if got == task));
        for cut in 0..bytes.len() {
            let torn: Option<Order> = receive(&mut &bytes[..cut]).expect("an end");
            assert!(torn.is_none(), "{cut}");
        }
        assert!(receive::<Order>(&mut &b"Welcome to node 7"[..]).is_err());
    }
}
