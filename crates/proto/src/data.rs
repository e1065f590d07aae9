//! Requests for the bytes of files, to the server that holds the blocks.
//!
//! A server keeps what it holds of a file in one sparse *sub-file* at the file's own offsets: its length is the
//! end of the last byte that the server was given, and holes in it are blocks of other servers, or never written.

use bivouac_layout::Ino;
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
    /// Servers that take turns; not 0.
    pub width: u16,
    /// The server's turn, less than `width`.
    pub turn: u16,
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
    /// Cuts the sub-file to `size` if it is longer; with `extend` also lengthens it (the server of the last byte).
    Truncate {
        /// The file.
        ino: Ino,
        /// Bytes.
        size: u64,
        /// Lengthen too.
        extend: bool,
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
    /// The next data or hole at or after `offset` and before `end`, in those blocks that are this server's (`Position`).
    /// Behind the sub-file's end everything is a hole. ENXIO if there is none.
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
    /// Passes a descriptor of the sub-file, open for reading and writing (`Passed`, with SCM_RIGHTS). Unix sockets only.
    /// The sub-file is made if `create`; otherwise ENOENT when it is missing.
    Pass {
        /// The file.
        ino: Ino,
        /// Make it.
        create: bool,
    },
    /// How full the server's storage is (`Space`).
    Space,
}

/// Replies to [`DataRequest`]s.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum DataReply {
    /// The payload was read; `length` is the sub-file's length.
    Read {
        /// Length of the sub-file, bytes.
        length: u64,
    },
    /// So much was written; less than asked when the storage filled up.
    Written {
        /// Bytes.
        count: u32,
        /// Length of the sub-file before, bytes: what a writer that takes its write back must leave.
        before: u64,
    },
    /// What the server knows of the file.
    Extent {
        /// Length of the sub-file, bytes: the file is at least so long.
        length: u64,
        /// Allocated, bytes.
        allocated: u64,
        /// Nanoseconds since the sub-file was last written; `u64::MAX` if there is none.
        age: u64,
    },
    /// A position.
    Position {
        /// Offset in the file.
        offset: u64,
    },
    /// A descriptor comes with this.
    Passed,
    /// Storage.
    Space {
        /// Bytes in all.
        total: u64,
        /// Bytes that can still be stored.
        available: u64,
        /// Which storage that is: servers of one node that name the same share it, and it counts once.
        device: u64,
    },
}
