//! Requests about blocks of files that have copies on several servers.
//!
//! A program asks the primary of the blocks' group ([`Copied`]). The primary lets changes of the same range follow
//! each other, has the other holders do each of them ([`CopyRequest::Forward`]), and does it itself last: so what it
//! shows of a range is what all have. Other holders are asked for bytes, too: they show what is not being changed.
//!
//! The bytes of a long write may go ahead of it, from each holder to the next ([`CopyRequest::Ahead`]): that changes
//! nothing yet. The change itself only names them then ([`Change::Sent`]).

use crate::data::{DataRequest, Fallocate, LastWrite};
use bivouac_layout::{Group, Ino, ServerId};
use serde::{Deserialize, Serialize};

/// To the primary of a group: a request about its blocks. Reading, writing, allocating, and undoing a write. To another
/// holder: reading.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Copied {
    /// Which group.
    pub group: Group,
    /// What is to be done.
    pub request: DataRequest,
    /// Of a write: another holder on the program's own node, which the program sends the bytes itself, and the number
    /// under which it does ([`CopyRequest::Ahead`]).
    pub here: Option<(ServerId, u64)>,
}

/// Bytes that are sent ahead of their change. No two have the same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub struct Sent {
    /// Who sends them first.
    pub by: Sender,
    /// Counts what that one has sent, also over its restarts.
    pub number: u64,
}

/// Who sends bytes ahead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub enum Sender {
    /// The primary of a group.
    Server(ServerId),
    /// A program, by its session.
    Program(u64),
}

/// Requests among the servers that hold the same blocks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum CopyRequest {
    /// From the primary: make this change to your copy, too (`Made`, or `Failed`).
    Forward {
        /// Whose blocks.
        group: Group,
        /// The change's slot: of one primary, at most one change is under way in each. The next one in the slot
        /// tells that all have made the one before.
        slot: u32,
        /// Which change in the slot this belongs to: no two are the same.
        turn: u64,
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What.
        change: Change,
    },
    /// To the primary: the bytes of a range (payload), when no change of it is under way (`Read`). Shorter where
    /// the primary's sub-file ends.
    Fetch {
        /// Whose blocks.
        group: Group,
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// At most [`crate::header::MAX_PAYLOAD`].
        len: u32,
    },
    /// To the primary: the CRC-32C of each [`DIGESTED`] bytes of a range (payload, little endian), when no change of
    /// it is under way. What lies behind the sub-file's end counts as zeros.
    Digest {
        /// Whose blocks.
        group: Group,
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// To the primary: how far its sub-file reaches when those changes of the file have ended that are under way now
    /// (`Extent`).
    Extent {
        /// Whose blocks.
        group: Group,
        /// The file.
        ino: Ino,
    },
    /// To the primary of a group, from another holder: which of its changes are under way (`UnderWay`). If it answers, it
    /// has settled what primaries of the group before it had begun.
    UnderWay {
        /// Which group.
        group: Group,
    },
    /// To a holder, from the group's next primary: changes that may not have been made by all (`Marks`).
    Marks,
    /// From a server that was away: what you know of files whose ranges go, or have gone, to other servers (`Stripes`), as many
    /// as go into an answer; none: that was all.
    Stripes {
        /// Those behind this one.
        after: Ino,
    },
    /// The checksums of each [`CHUNK`] bytes (`Sums`): to a holder, from the primary, which keeps changes of the range out;
    /// or to the primary, when no change of the range is under way.
    Sums {
        /// Whose blocks.
        group: Group,
        /// The file.
        ino: Ino,
        /// First byte: that of a chunk.
        offset: u64,
        /// At most [`SUMMED_AT_ONCE`].
        len: u64,
    },
    /// To a holder, from the primary, which keeps changes of the range out: the bytes of a range (payload), as they
    /// are there (`Read`). Shorter where the sub-file ends.
    Bytes {
        /// Whose blocks.
        group: Group,
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// At most [`crate::header::MAX_PAYLOAD`].
        len: u32,
    },
    /// From a group's primary, from the holder before in the chain, or from a program: bytes (payload) that the
    /// primary is about to have written. To be kept for a while, and passed on while they come.
    Ahead {
        /// By what they are going to be named ([`Change::Sent`]).
        sent: Sent,
        /// Who is to get them besides: the next one in the chain first.
        rest: Vec<ServerId>,
    },
}

/// For so many bytes of a stored copy there is one checksum.
pub const CHUNK: u64 = bivouac_layout::placement::MIN_BLOCK as u64;
/// Most bytes of which checksums are asked at once ([`CopyRequest::Sums`]).
pub const SUMMED_AT_ONCE: u64 = 4 << 20;

/// For so many bytes there is one checksum.
pub const DIGESTED: u64 = 64 << 10;

/// A change of a range, as it goes to copies.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Change {
    /// The range becomes the payload.
    Write {
        /// Answer only when it is on stable storage.
        sync: bool,
    },
    /// The range is allocated or freed.
    Fallocate(Fallocate),
    /// The range becomes the payload, and a hole behind that. A sub-file that ends in the hole ends before it.
    Mirror {
        /// This undoes the change before in the same turn: the sub-file is not to be longer than it was before.
        undoes: bool,
    },
    /// Like `Mirror`, of whole chunks whose bytes were damaged: their checksums become those of the bytes.
    Restore,
    /// Like `Write`, of bytes that were sent ahead. (`Missing`: they have not come, and nothing was changed.)
    Sent {
        /// Which.
        sent: Sent,
        /// The CRC-32C of the bytes that the primary has: others count as missing.
        sum: u32,
        /// As in `Write`.
        sync: bool,
    },
}

/// A change that not all holders may have made.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Mark {
    /// Whose blocks.
    pub group: Group,
    /// The file.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Replies to [`CopyRequest`]s.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum CopyReply {
    /// The copy has made the change.
    Made,
    /// Its storage has not: the error.
    Failed(crate::Errno),
    /// The payload was read.
    Read,
    /// Of the sub-file.
    Extent {
        /// Its length, bytes; 0 if there is none.
        length: u64,
        /// When it was last written; `None` if there is none.
        written: Option<LastWrite>,
    },
    /// Changes.
    Marks(Vec<Mark>),
    /// The primary's changes, in all groups.
    UnderWay {
        /// It has begun all changes with this turn or a later one since it was started.
        first: u64,
        /// Those that may not have been made by all: slot and turn.
        changes: Vec<(u32, u64)>,
    },
    /// Of a range.
    Sums {
        /// The length of the sub-file, bytes; 0 if there is none.
        length: u64,
        /// Checksums are as old as the bytes: the holder's machine has not been started anew.
        is_sure: bool,
        /// For each chunk the checksum of its bytes, and the one that was stored when they were written.
        sums: Vec<(u32, u32)>,
    },
    /// The bytes were not sent ahead, or did not all come: nothing was changed.
    Missing,
    /// Files, in the order of their numbers.
    Stripes(Vec<Stripe>),
}

/// A file whose ranges go, or have gone, to other servers, as one of them knows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Stripe {
    /// The file.
    pub ino: Ino,
    /// Who asks for blocks has to go by this version of the layout, or a later one.
    pub needed: u32,
    /// Steps that keep changes out: number, beginning and end of the range.
    pub fences: Vec<(u64, u64, u64)>,
}
