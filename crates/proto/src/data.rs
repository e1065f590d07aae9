//! Requests for the bytes of files, to the server that holds the blocks.
//!
//! A server keeps what it holds of a file in one sparse *sub-file* at the file's own offsets: its length is
//! the end of the last byte that the server was given, and holes in it are blocks of other servers, or never
//! written.

use crate::attr::Time;
use bivouac_layout::{Ino, ServerId};
use serde::{Deserialize, Serialize};

/// What `fallocate` does.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Fallocate {
    /// Allocates; the length grows if the range ends beyond it.
    Extend,
    /// Allocates; the length stays (FALLOC_FL_KEEP_SIZE).
    KeepSize,
    /// Makes a hole (FALLOC_FL_PUNCH_HOLE).
    PunchHole,
    /// Makes zeros (FALLOC_FL_ZERO_RANGE).
    Zero,
}

/// Which blocks of a file are a server's: block `b` where `b mod width` is `turn`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Share {
    /// Bytes of a block; not 0.
    pub block_size: u32,
    /// Turns; not 0.
    pub width: u32,
    /// The server's turn, less than `width`.
    pub turn: u32,
}

/// What a descriptor of a sub-file is good for.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Access {
    /// Reading. ENOENT if there is no sub-file. (Blocks that have copies are changed only by their servers.)
    Read,
    /// Reading and writing. ENOENT if there is no sub-file.
    Write,
    /// Reading and writing; the sub-file is made.
    Make,
}

/// Of which process a descriptor of a sub-file is that was not asked for by [`DataRequest::Pass`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct SubFile {
    /// The server that passes it.
    pub server: ServerId,
    /// Its succession.
    pub succession: u32,
    /// How often, before it was passed, a sub-file of the file's fence word had become another local file.
    pub moved: u64,
}

/// Requests for data. Offsets and lengths are those of the file.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum DataRequest {
    /// Reads up to `len` bytes: payload, with `Read`. Shorter where the sub-file ends.
    Read {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// At most [`crate::header::MAX_PAYLOAD`].
        len: u32,
    },
    /// Writes the payload (`Written`).
    Write {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Return only when it is on stable storage (O_SYNC, O_DSYNC).
        sync: bool,
    },
    /// What this server knows of a file's length and age (`Extent`). A missing sub-file has length 0.
    Extent {
        /// The file.
        ino: Ino,
    },
    /// Truncates the sub-file to `size` if it is longer (`Truncated`). With `extend` also lengthens it: for
    /// the server of the last byte.
    Truncate {
        /// The file.
        ino: Ino,
        /// Bytes.
        size: u64,
        /// Lengthen too.
        extend: bool,
        /// For a file that has copies, the number of the [`DataRequest::Close`] before: EAGAIN if the file is not
        /// closed by that any more. 0: the file has no copies.
        closing: u64,
    },
    /// Allocates or frees a range.
    Fallocate {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What.
        mode: Fallocate,
    },
    /// The next data or hole at or after `offset` and before `end`, in those blocks that are this server's
    /// (`Position`). Behind the sub-file's end everything is a hole. ENXIO if there is none.
    Seek {
        /// The file.
        ino: Ino,
        /// From here.
        offset: u64,
        /// To here, exclusive.
        end: u64,
        /// A hole rather than data.
        hole: bool,
        /// Which blocks are the server's.
        share: Share,
    },
    /// Puts the sub-file on stable storage.
    Sync {
        /// The file.
        ino: Ino,
    },
    /// Removes the sub-file. Missing is fine.
    Remove {
        /// The file.
        ino: Ino,
    },
    /// Passes a descriptor of the sub-file (`Passed`, with SCM_RIGHTS). Unix sockets only.
    Pass {
        /// The file.
        ino: Ino,
        /// What for.
        access: Access,
    },
    /// How full the server's storage is (`Space`).
    Space,
    /// Undoes a write that the client does not count, because an earlier part of the same write found another
    /// server full. Makes the sub-file as short as it was before, unless somebody else has written to it
    /// meanwhile.
    TakeBack {
        /// The file.
        ino: Ino,
        /// Which write, as its answer said.
        undo: u64,
        /// Where the write ended, bytes: if the sub-file ends elsewhere, nothing is done.
        end: u64,
        /// How long the sub-file is to be, bytes.
        size: u64,
    },
    /// From the inode's server, for a file that has copies: let no new change of the file begin until
    /// [`DataRequest::Open`], and answer when none is under way.
    Close {
        /// The file.
        ino: Ino,
        /// The truncation's number.
        closing: u64,
    },
    /// From the inode's server: the truncation is over, changes may begin. It may not be closed by that number any
    /// more, by a request that arrives late.
    Open {
        /// The file.
        ino: Ino,
        /// The truncation's number.
        closing: u64,
    },
    /// [`DataRequest::Read`], past the page cache of the I/O node (O_DIRECT). Only for forwarded files.
    ReadDirect {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// At most [`crate::header::MAX_PAYLOAD`].
        len: u32,
    },
    /// [`DataRequest::Write`], past the page cache of the I/O node (O_DIRECT). Only for forwarded files.
    WriteDirect {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Return only when it is on stable storage (O_SYNC, O_DSYNC).
        sync: bool,
    },
}

impl DataRequest {
    /// A read or write of a forwarded file, past the page cache. Every other request stays what it is.
    #[must_use]
    pub fn direct(self) -> DataRequest {
        match self {
            DataRequest::Read { ino, offset, len } => DataRequest::ReadDirect { ino, offset, len },
            DataRequest::Write { ino, offset, sync } => DataRequest::WriteDirect { ino, offset, sync },
            other => other,
        }
    }

    /// What is read or written, and whether past the page cache.
    pub fn plain(self) -> (DataRequest, bool) {
        match self {
            DataRequest::ReadDirect { ino, offset, len } => (DataRequest::Read { ino, offset, len }, true),
            DataRequest::WriteDirect { ino, offset, sync } => {
                (DataRequest::Write { ino, offset, sync }, true)
            }
            other => (other, false),
        }
    }

    /// The file that it is about.
    pub fn file(&self) -> Option<Ino> {
        match self {
            DataRequest::Read { ino, .. }
            | DataRequest::ReadDirect { ino, .. }
            | DataRequest::Write { ino, .. }
            | DataRequest::WriteDirect { ino, .. }
            | DataRequest::Extent { ino }
            | DataRequest::Truncate { ino, .. }
            | DataRequest::Fallocate { ino, .. }
            | DataRequest::Seek { ino, .. }
            | DataRequest::Sync { ino }
            | DataRequest::Remove { ino }
            | DataRequest::Pass { ino, .. }
            | DataRequest::TakeBack { ino, .. }
            | DataRequest::Close { ino, .. }
            | DataRequest::Open { ino, .. } => Some(*ino),
            DataRequest::Space => None,
        }
    }

    /// The file whose sub-file it changes, so that the server has to keep such requests in order.
    pub fn changed(&self) -> Option<Ino> {
        match self {
            DataRequest::Write { ino, .. }
            | DataRequest::WriteDirect { ino, .. }
            | DataRequest::Truncate { ino, .. }
            | DataRequest::TakeBack { ino, .. }
            | DataRequest::Fallocate { ino, .. }
            | DataRequest::Close { ino, .. }
            | DataRequest::Open { ino, .. }
            | DataRequest::Remove { ino } => Some(*ino),
            DataRequest::Read { .. }
            | DataRequest::ReadDirect { .. }
            | DataRequest::Extent { .. }
            | DataRequest::Seek { .. }
            | DataRequest::Sync { .. }
            | DataRequest::Pass { .. }
            | DataRequest::Space => None,
        }
    }
}

/// A request for pieces of many files at once, for programs that read small ones. The answer ([`crate::Reply::Gathered`]) says of
/// each piece whether its bytes are in the payload, one piece behind the other; if they are not, because it is not there as a whole,
/// or the file's blocks have moved, the client asks for it alone. Files have no copies, and layouts of version 0.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Gather {
    /// At most [`GATHER_MAX`], and at most [`crate::header::MAX_PAYLOAD`] bytes together.
    pub pieces: Vec<SmallPiece>,
}

/// Most pieces in a [`Gather`].
pub const GATHER_MAX: usize = 256;

/// One of its pieces.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct SmallPiece {
    /// The file.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Replies to [`DataRequest`]s.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum DataReply {
    /// The payload was read; `length` is the sub-file's length.
    Read {
        /// Length of the sub-file, bytes. (A copy whose length is about to change says where the payload ends.)
        length: u64,
    },
    /// So much was written; less than asked when the storage filled up.
    Written {
        /// Bytes.
        count: u32,
        /// Length of the sub-file before, bytes: a writer that undoes its write must leave that much.
        before: u64,
        /// The number of the write, for undoing it; 0 if it cannot be undone.
        undo: u64,
    },
    /// What the server knows of the file.
    Extent {
        /// Length of the sub-file, bytes: the file is at least so long.
        length: u64,
        /// Allocated, bytes.
        allocated: u64,
        /// When the sub-file was last written; `None` if there is none.
        written: Option<LastWrite>,
    },
    /// A position.
    Position {
        /// Offset in the file.
        offset: u64,
    },
    /// A descriptor comes with this.
    Passed,
    /// The sub-file is not longer than it was to be.
    Truncated {
        /// Whether there is a sub-file.
        exists: bool,
    },
    /// The sub-file of a file with copies is not truncated, because the storage has failed.
    NotTruncated {
        /// The server has to catch up with other copies anyway, and will compare everything again before it says that
        /// it has.
        excused: bool,
    },
    /// It is done, and there is nothing to tell.
    Done,
    /// Storage.
    Space {
        /// Bytes in all.
        total: u64,
        /// Bytes that can still be stored.
        available: u64,
        /// Which storage that is: servers of one node that name the same share it, and it counts once.
        device: u64,
        /// Inodes that the server holds.
        inodes: u64,
    },
    /// A copy cannot be shown at the moment: ask the primary.
    Elsewhere,
}

/// How far clocks may be apart and still count as the same, nanoseconds: well-kept clocks of a cluster are
/// closer.
const SAME_CLOCK: Time = 5_000_000;
/// An answer that took longer than this, nanoseconds, tells little about clocks.
const QUICK: Time = 100_000_000;

/// When a sub-file was last written or truncated, as its server knows it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LastWrite {
    /// So long ago, nanoseconds, as exact as the kernel's clock tick (up to 10 ms).
    pub age: u64,
    /// At this time of the server's clock.
    pub at: Time,
}

impl LastWrite {
    /// The time of the write, for a client that sent its question at `asked` and got the answer at
    /// `answered`, by its own clock.
    pub fn time(self, asked: Time, answered: Time) -> WriteTime {
        let age = Time::try_from(self.age).unwrap_or(Time::MAX);
        let earliest = asked.saturating_sub(age);
        let latest = answered.min(asked.saturating_add(QUICK)).saturating_sub(age);
        let same = earliest.saturating_sub(SAME_CLOCK)..=latest.saturating_add(SAME_CLOCK);
        WriteTime { earliest, shown: if same.contains(&self.at) { self.at } else { earliest } }
    }
}

/// When something was last written, by the clock of who asked about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteTime {
    /// Not before this, and not after the write: what decides which of two events was later.
    pub earliest: Time,
    /// What to show. This is the server's own time if, as far as the client can tell, its clock agrees with
    /// the client's: then it is the same at each look, however long the answer took. Otherwise it is
    /// [`WriteTime::earliest`].
    pub shown: Time,
}

impl WriteTime {
    /// Of what was never written.
    pub const NEVER: WriteTime = WriteTime { earliest: Time::MIN, shown: Time::MIN };

    /// Of what the asker's own clock saw.
    pub fn exactly(time: Time) -> WriteTime {
        WriteTime { earliest: time, shown: time }
    }

    /// The later of two.
    pub fn max(self, other: WriteTime) -> WriteTime {
        WriteTime { earliest: self.earliest.max(other.earliest), shown: self.shown.max(other.shown) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = 1_000_000_000;

    #[test]
    fn the_time_of_a_write_is_the_same_whenever_it_is_asked_for() {
        for (asked, delay) in [(100, 0), (101, 30_000), (500, QUICK)] {
            let asked = asked * SECOND;
            // The server looks at some time in between.
            for looked in [asked, asked + delay / 2, asked + delay] {
                let write = LastWrite { age: (looked - 90 * SECOND) as u64, at: 90 * SECOND };
                let time = write.time(asked, asked + delay);
                assert_eq!(time.shown, 90 * SECOND);
                assert!(time.earliest <= 90 * SECOND && time.earliest >= 90 * SECOND - delay);
            }
        }
    }

    #[test]
    fn a_clock_that_goes_wrong_does_not_matter() {
        for at in [0, 50 * SECOND, 150 * SECOND, Time::MIN, Time::MAX] {
            let write = LastWrite { age: 10 * SECOND as u64, at };
            assert_eq!(write.time(100 * SECOND, 150 * SECOND), WriteTime::exactly(90 * SECOND));
        }
        // One that is a little ahead shows, but does not make the write later than what came after it.
        let write = LastWrite { age: 10 * SECOND as u64, at: 90 * SECOND + SAME_CLOCK };
        let time = write.time(100 * SECOND, 100 * SECOND);
        assert_eq!(time, WriteTime { earliest: 90 * SECOND, shown: 90 * SECOND + SAME_CLOCK });
        assert!(LastWrite { age: u64::MAX, at: 0 }.time(Time::MIN, Time::MAX).earliest < 0);
    }
}
