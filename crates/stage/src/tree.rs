//! A tree of files, as the copying engine sees it.

use std::io;

/// What something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    /// What is not copied: devices, sockets, named pipes.
    Other,
}

/// The attributes that a copy keeps, and those that it needs.
#[derive(Clone, Copy, Debug)]
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
    /// Which file it is, and how many names it has: for hard links.
    pub(crate) identity: (u64, u64),
    pub(crate) links: u64,
}

/// An open file.
pub(crate) trait Open: Send + Sync {
    /// Reads at an offset until the buffer is full or the file ends.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all of it at an offset.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Makes it the file that it was created for, with these attributes. Without it, nothing of a new file stays.
    fn finish(&self, meta: &Meta) -> io::Result<()>;
}

/// A tree. Paths are bytes; parents exist before their children are made.
pub(crate) trait Tree: Sync {
    fn stat(&self, path: &[u8], follow: bool) -> io::Result<Meta>;
    fn list(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>>;
    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>>;
    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Open>>;
    /// A new file in place of what is there.
    fn create(&self, path: &[u8]) -> io::Result<Box<dyn Open>>;
    /// Makes a directory that can be filled; one that is there is fine.
    fn make_directory(&self, path: &[u8]) -> io::Result<()>;
    fn make_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> io::Result<()>;
    fn make_link(&self, existing: &[u8], path: &[u8]) -> io::Result<()>;
    fn set_meta(&self, path: &[u8], meta: &Meta) -> io::Result<()>;
}

/// `directory/name`.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() && !directory.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
