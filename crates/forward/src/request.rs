//! What is known of a request.

/// The identity of a request in its queue. Numbers grow in the order in which requests arrive.
pub type Number = u64;

/// Whether a request reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct By {
    /// The job that the program belongs to; 0: it did not say.
    pub job: u64,
    /// The process. Its requests to one file are issued in the order in which they arrived.
    pub process: u64,
}

/// A read or write that a program has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The job that the program belongs to.
    pub job: u64,
    /// The process that asks. Requests of one process to one file are issued in the order in which they arrived.
    pub process: u64,
    /// The file, as the I/O node numbers it.
    pub file: u64,
    /// Whether it reads or writes.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, at least 1.
    pub len: u64,
    /// Whether it may be merged with others. Not so what appends, or goes past the page cache without being aligned.
    pub merges: bool,
}

impl Asked {
    /// The byte after the last one.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}
