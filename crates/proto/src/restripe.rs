//! Requests by which a range of a file goes to other servers.
//!
//! The server of the file's inode drives it, and logs each step before it asks for it. The servers that have the range are
//! *fenced* first: they let changes of it that are under way end, and refuse new ones. Then those that are to have it take
//! it from them. When all have it, the step is decided, and those that had it *finish*: they give up what is no longer
//! theirs, and refuse from then on who goes by an older version of the layout. Only then does the inode show the new layout.
//! If anything fails before the decision, the step is undone everywhere. All requests may be repeated.

use crate::data::LastWrite;
use bivouac_layout::{FileLayout, Group, Ino};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One range of a file that goes to other servers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Restripe {
    /// The file.
    pub ino: Ino,
    /// The step's number, which no other step of the file has.
    pub number: u64,
    /// Where the range begins, bytes.
    pub start: u64,
    /// Where it ends, bytes; `u64::MAX` if it goes as far as the file may grow.
    pub end: u64,
    /// The layout by which the range was until now.
    pub old: FileLayout,
    /// The layout by which it is to be. Its version is greater.
    pub new: FileLayout,
}

impl Restripe {
    /// The range, bytes.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// Most stretches of one [`RestripeRequest::Give`].
pub const STRETCHES_MAX: usize = 4096;

/// Requests of a restriping.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum RestripeRequest {
    /// Keep changes of the range out, and answer when none is under way (`Fenced`).
    Fence(Box<Restripe>),
    /// Get what of the range this server has to have by the new layout and has not by the old one (`Took`). Refused if the
    /// step is over here.
    Take {
        /// The step.
        step: Box<Restripe>,
        /// How long the file is, bytes.
        length: u64,
        /// Bytes per second that this server takes in at most, of all files; 0: as many as it can.
        rate: u64,
    },
    /// The step is decided: give up what is not this server's any more (`Done`).
    Finish(Box<Restripe>),
    /// The step is not to be: forget it, and what was taken for it (`Done`).
    Undo(Box<Restripe>),
    /// From who takes it, to the primary of a group by the old layout: the bytes of stretches (payload, with `Gave`).
    /// EAGAIN if the step has not fenced the file here.
    Give {
        /// Whose blocks.
        group: Group,
        /// The file.
        ino: Ino,
        /// The step.
        number: u64,
        /// Each stretch's beginning and length, bytes: at most [`STRETCHES_MAX`], which fit into one payload.
        stretches: Vec<(u64, u32)>,
    },
}

impl RestripeRequest {
    /// The step, of those that the inode's server sends.
    pub fn step(&self) -> Option<&Restripe> {
        match self {
            RestripeRequest::Fence(step)
            | RestripeRequest::Take { step, .. }
            | RestripeRequest::Finish(step)
            | RestripeRequest::Undo(step) => Some(step),
            RestripeRequest::Give { .. } => None,
        }
    }
}

/// Replies to [`RestripeRequest`]s.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum RestripeReply {
    /// It is done.
    Done,
    /// Changes of the range are kept out.
    Fenced {
        /// Length of the sub-file, bytes.
        length: u64,
    },
    /// The server has its part.
    Took {
        /// So many bytes came from others.
        bytes: u64,
    },
    /// The payload is the stretches that are not holes, one after the other.
    Gave {
        /// Which of the stretches are holes, or lie behind the sub-file's end. One that the sub-file ends in is filled with
        /// zeros.
        holes: Vec<bool>,
        /// Length of the sub-file, bytes.
        length: u64,
        /// When it was last written; `None` if there is none.
        written: Option<LastWrite>,
    },
    /// The server's storage fails. The map says already that it is behind in all that it holds of the file, and it will learn
    /// from others what has become of that before it catches up.
    Excused,
}

/// How far a server has come with a rebuild, for the files of whose inodes it is in charge.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Progress {
    /// Which rebuild; 0: none.
    pub number: u32,
    /// Files of which all has moved that had to, since the rebuild began or the server was started.
    pub files_done: u64,
    /// Files that are still to be looked at, or to be moved.
    pub files_left: u64,
    /// Bytes that have moved.
    pub bytes_done: u64,
    /// Bytes of files that are still to be looked at, or to be moved: more than what of them has to move.
    pub bytes_left: u64,
    /// Files that cannot move yet, because a kernel holds them: they are mapped, or open in a mount.
    pub held: u64,
    /// Files that could not be moved: they are tried again.
    pub failed: u64,
    /// A server of these files has no room left.
    pub no_room: bool,
}
