//! What the programs do, and how they note it.

pub use bivouac_node::release::monotonic as now;
use serde::{Deserialize, Serialize};

/// One operation. Paths begin at the program's own directory; descriptors are named by slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the system calls' own arguments")]
pub enum Step {
    /// Makes and opens a file that is not there.
    Create {
        slot: u8,
        path: String,
        append: bool,
    },
    /// Opens a file for reading and writing.
    Open {
        slot: u8,
        path: String,
        append: bool,
        truncate: bool,
    },
    Close {
        slot: u8,
    },
    /// `pwrite`.
    Write {
        slot: u8,
        offset: u64,
        len: u64,
        seed: u8,
    },
    /// `write` to a descriptor that appends.
    Append {
        slot: u8,
        len: u64,
        seed: u8,
    },
    Truncate {
        path: String,
        size: u64,
    },
    TruncateOpen {
        slot: u8,
        size: u64,
    },
    Sync {
        slot: u8,
    },
    /// Takes a whole-file and a byte-range lock of a file that nobody else uses.
    Lock {
        slot: u8,
    },
    /// Compares all that is in the file with what should be.
    Read {
        path: String,
    },
    /// The same through a descriptor.
    ReadOpen {
        slot: u8,
    },
    /// Compares the entries of a directory.
    List {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    /// Appends a record to the file that all programs share.
    Share {
        number: u64,
    },
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was done; so many bytes.
    Done(u64),
    /// It failed with this error number.
    Failed(i32),
    /// It succeeded with a result that cannot be.
    Wrong(String),
}

/// A line of a journal. Times are nanoseconds of the monotonic clock, which all processes of a machine share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// This process begins to work.
    Process(i32),
    /// It begins this step.
    Begin(u64, Step),
    /// The step has ended.
    End(u64, Outcome),
    /// It has closed everything and ends.
    Over,
}

/// What a write with this seed writes.
pub fn pattern(seed: u8, len: u64) -> Vec<u8> {
    (0..len).map(|i| (u64::from(seed) * 251 + i * 7 + i / 253 + 1) as u8).collect()
}
