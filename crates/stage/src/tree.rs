//! A tree of files, as the workers see it.

use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;

/// What something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// A special file: it has a name and no content.
    Special(Special),
}

/// What a special file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Special {
    NamedPipe,
    Socket,
    CharDevice,
    BlockDevice,
}

impl Special {
    /// Its name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Special::NamedPipe => "named pipe",
            Special::Socket => "socket",
            Special::CharDevice => "character device",
            Special::BlockDevice => "block device",
        }
    }
}

/// The attributes that a copy keeps, and those that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) kind: Kind,
    /// Permission bits (07777).
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// Nanoseconds since the epoch.
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    /// The file's identity and its number of names: for hard links.
    pub(crate) identity: (u64, u64),
    pub(crate) links: u64,
    /// Storage that it takes, bytes. Less than its size: it has holes.
    pub(crate) allocated: u64,
    /// The number of a device, as the kernel's `dev_t`.
    pub(crate) device: u64,
    /// It may have extended attributes.
    pub(crate) attributes: bool,
    /// Its contents are still in the backend.
    pub(crate) lazy: bool,
}

impl Meta {
    /// Whether a file has holes, as far as the storage that it takes tells.
    pub(crate) fn is_sparse(&self) -> bool {
        self.kind == Kind::File && self.allocated < self.size
    }

    /// What tells whether it was changed.
    pub(crate) fn state(&self) -> State {
        State { size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

/// What tells whether a file was changed. A program can set the time of the last change of data back, but not
/// the time of the last change of the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) size: u64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
}

/// An extended attribute: its name and its value.
pub(crate) type Attribute = (Vec<u8>, Vec<u8>);

/// The prefix of users' attributes, which are copied. Other attributes describe the place where a file is.
pub(crate) const USER_ATTRIBUTES: &[u8] = b"user.";

/// An entry of a directory: its name, and its attributes or why they cannot be read.
pub(crate) type Listed = (Vec<u8>, io::Result<Meta>);

/// In which turns the blocks of a file lie on nodes: block `b` is on the node at index `b mod` their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// Bytes.
    pub(crate) block: u64,
    pub(crate) nodes: Vec<u16>,
}

/// An open file.
pub(crate) trait Open: Send + Sync {
    /// Reads at an offset until the buffer is full or the file ends.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all of it at an offset.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// The first contiguous data in a range; `None` if all of it is a hole. What is reported as data may be
    /// zeros.
    fn next_data(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>>;
    /// Sets the length; what appears is a hole.
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn set_attribute(&self, name: &[u8], value: &[u8]) -> io::Result<()>;
    /// Its attributes now, exact.
    fn meta(&self) -> io::Result<Meta>;
    /// Gives a file that is complete its owner, mode and times; its attributes after that.
    fn set_meta(&self, meta: &Meta) -> io::Result<Meta>;
    /// Where its blocks lie, if that is known and matters.
    fn turns(&self) -> Option<Turns> {
        None
    }
}

/// A tree. Paths are bytes; parents exist before their children are made.
pub(crate) trait Tree: Send + Sync {
    fn stat(&self, path: &[u8], follow: bool) -> io::Result<Meta>;
    /// What is in a directory, with attributes.
    fn list(&self, path: &[u8]) -> io::Result<Vec<Listed>>;
    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>>;
    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Open>>;
    /// Makes a new file, or empties the one that is there.
    fn create(&self, path: &[u8]) -> io::Result<Box<dyn Open>>;
    /// Opens a file that was created, to fill a part of it.
    fn open_to_fill(&self, path: &[u8]) -> io::Result<Box<dyn Open>>;
    /// Under which name a file is written until it is complete. The final one where an incomplete file harms
    /// nobody.
    fn part_name(&self, path: &[u8], run: &str) -> Vec<u8>;
    /// Gives a complete file its final name; its attributes after that.
    fn place(&self, part: &[u8], path: &[u8]) -> io::Result<Meta>;
    /// Makes a directory, or uses an existing one, and sees to it that its owner can make entries there.
    /// Whether it is new.
    fn make_directory(&self, path: &[u8]) -> io::Result<bool>;
    fn make_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()>;
    fn make_link(&self, existing: &[u8], path: &[u8]) -> io::Result<()>;
    fn make_special(&self, path: &[u8], what: Special, meta: &Meta) -> io::Result<()>;
    /// Removes anything but a directory.
    fn remove(&self, path: &[u8]) -> io::Result<()>;
    fn remove_directory(&self, path: &[u8]) -> io::Result<()>;
    /// The user's extended attributes of a file or directory. None where there cannot be any.
    fn attributes(&self, path: &[u8]) -> io::Result<Vec<Attribute>>;
    fn set_attribute(&self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()>;
    fn set_meta(&self, path: &[u8], meta: &Meta) -> io::Result<()>;
    /// Makes a file whose contents are to be fetched from this absolute path of the backend; its attributes.
    fn make_lazy(&self, _path: &[u8], _source: &[u8], _meta: &Meta) -> io::Result<Meta> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Has the contents of a lazy file fetched; whether it was one, or why that failed.
    fn fetch(&self, _path: &[u8]) -> Result<bool, String> {
        Ok(false)
    }
    /// The node whose server holds a directory's entries, if that is known.
    fn node_of(&self, _directory: &Meta) -> Option<u16> {
        None
    }
}

/// `directory/name`.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() && !directory.ends_with(b"/") && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The part of a path before its last name, with the slash.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|&b| b == b'/').map_or(0, |i| i + 1);
    &path[..slash]
}

/// The last name of a path.
pub(crate) fn file_name(path: &[u8]) -> &[u8] {
    &path[parent(path).len()..]
}
