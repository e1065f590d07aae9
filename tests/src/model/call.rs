//! The calls that programs are made of, and what they answer.
//!
//! Descriptors are named by slots: each client has [`SLOTS`] of them. What a write writes follows from a
//! seed, so that calls stay short.

use serde::{Deserialize, Serialize};

/// Descriptors that each client can have open.
pub const SLOTS: u8 = 5;

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Target {
    /// A path, following a link at its end.
    Path(String),
    /// A path, not following.
    Link(String),
    /// A descriptor.
    Slot(u8),
}

/// A time to set, as for `utimensat(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stamp {
    /// UTIME_NOW.
    Now,
    /// UTIME_OMIT.
    Omit,
    /// Nanoseconds since 1970, long ago.
    To(i64),
}

/// Which kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Domain {
    /// `fcntl(F_SETLK)`.
    Process,
    /// `fcntl(F_OFD_SETLK)`.
    Description,
    /// `flock`.
    Whole,
}

/// Users and groups that files are given to.
pub const SOMEBODY: [u32; 3] = [0, 1001, 1002];

/// What is done to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Hold {
    /// A shared one is taken.
    Shared,
    /// An exclusive one is taken.
    Exclusive,
    /// It is given up.
    Nothing,
}

/// One call. Names and arguments are those of the system calls. `MapRead` and `MapWrite` (in a kernel mount
/// only) go through a shared mapping of the file, which is opened anew for it; the paths of the call in `At`
/// begin at an open directory, as those of `openat`, or after `fchdir` to it (`enter`). A client whose lock
/// waits makes no call until it has it, or a signal ends the call (`Interrupt`). `Reopen` goes through
/// `/proc/self/fd`; so does `LinkSlot`, or else with AT_EMPTY_PATH, as `StatEmpty` and `TimesEmpty`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the system calls' own arguments")]
pub enum Call {
    Open { slot: u8, path: String, flags: i32, mode: u32 },
    Reopen { slot: u8, from: u8, flags: i32 },
    Close { slot: u8 },
    Dup { from: u8, to: u8 },
    Append { slot: u8, on: bool },
    Read { slot: u8, len: u64 },
    Pread { slot: u8, offset: u64, len: u64 },
    Write { slot: u8, len: u64, seed: u8 },
    Pwrite { slot: u8, offset: u64, len: u64, seed: u8 },
    Seek { slot: u8, offset: i64, whence: i32 },
    Copy { from: u8, at: u64, to: u8, to_at: u64, len: u64 },
    Truncate { target: Target, size: i64 },
    Allocate { slot: u8, mode: i32, offset: i64, len: i64 },
    Sync { slot: u8 },
    Stat { target: Target },
    StatEmpty { slot: u8 },
    Chmod { target: Target, mode: u32 },
    Chown { target: Target, uid: u32, gid: u32 },
    Times { target: Target, atime: Stamp, mtime: Stamp },
    TimesEmpty { slot: u8, atime: Stamp, mtime: Stamp },
    Rename { from: String, to: String, flags: u32 },
    Link { from: String, to: String, follow: bool },
    LinkSlot { slot: u8, to: String, empty: bool },
    Symlink { target: String, path: String },
    Readlink { path: String },
    ReadlinkSlot { slot: u8 },
    Unlink { path: String },
    Mkdir { path: String, mode: u32 },
    Mknod { path: String, mode: u32 },
    Rmdir { path: String },
    List { target: Target },
    SetXattr { target: Target, name: String, value: Vec<u8>, flags: i32 },
    GetXattr { target: Target, name: String },
    ListXattr { target: Target },
    RemoveXattr { target: Target, name: String },
    Lock { slot: u8, domain: Domain, hold: Hold, start: u64, len: u64, wait: bool },
    Interrupt,
    TestLock { slot: u8, domain: Domain, exclusive: bool, start: u64, len: u64 },
    MapRead { slot: u8, offset: u64, len: u64 },
    MapWrite { slot: u8, offset: u64, len: u64, seed: u8 },
    At { slot: u8, enter: bool, call: Box<Call> },
}

/// What `stat` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Inode number.
    pub ino: u64,
    /// Kind, as in directory entries (DT_REG and so on).
    pub kind: u8,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Names.
    pub links: u64,
    /// Bytes.
    pub size: u64,
    /// Last access, nanoseconds since 1970.
    pub atime: i64,
    /// Last change of data, likewise.
    pub mtime: i64,
}

/// A byte range under a lock: exclusive or not, first byte, end (`u64::MAX` for all that comes).
pub type Held = (bool, u64, u64);

/// What a call answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Success, and no more to say.
    Done,
    /// How many bytes, or which offset.
    Count(u64),
    /// What was read: a file's bytes, an attribute's value, a link's target.
    Bytes(Vec<u8>),
    /// Attributes.
    Seen(Seen),
    /// A directory's entries with their kinds, or the names of extended attributes; sorted.
    Names(Vec<(Vec<u8>, u8)>),
    /// The lock that is in the way.
    Held(Option<Held>),
    /// The error's number.
    Failed(i32),
}

/// What a client is told to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Close all slots, and work in this directory from now on.
    Enter(String),
    /// Make a directory (absolute path).
    Make(String),
    /// Remove a directory with all that is in it (absolute path).
    Remove(String),
    /// Make a directory with so many entries that it splits, and remove those (absolute path).
    Split(String),
    /// Remove all that is in a directory, and make it as good as new (absolute path).
    Clear(String),
    /// Tell the number of the process.
    Identify,
    /// Do this call.
    Do(Call),
}

/// What a write with this seed writes.
pub fn pattern(seed: u8, len: u64) -> Vec<u8> {
    (0..len).map(|i| (u64::from(seed) * 251 + i * 7 + i / 253 + 1) as u8).collect()
}
