//! Inodes and parts of directories, as they are in memory and in the log.
//!
//! They are compact, because a server may hold hundreds of millions: fields that few inodes have are behind a
//! pointer, and byte strings are boxed slices.

use crate::access::Owner;
use bivouac_layout::{FileLayout, Ino, Map, ServerId, Template};
use bivouac_proto::attr::Store;
use bivouac_proto::lazy::Source;
use bivouac_proto::{Attr, FileKind, Time};
use serde::{Deserialize, Serialize};

/// An inode.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Inode {
    /// Bytes; of a directory that is not split, entries.
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_version: u32,
    /// Permission bits (07777).
    pub mode: u16,
    pub body: Body,
    pub extra: Option<Box<Extra>>,
}

/// What an inode is, with what belongs to that.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) enum Body {
    /// A regular file with inline data. Its size is the slice's length.
    Inline(#[serde(with = "serde_bytes")] Box<[u8]>),
    /// A regular file in blocks.
    Blocks(Box<Blocks>),
    Directory(Box<Directory>),
    /// Its target.
    Symlink(#[serde(with = "serde_bytes")] Box<[u8]>),
    Fifo,
    Socket,
    /// Its number.
    CharDevice(u32),
    BlockDevice(u32),
    /// A regular file whose contents are still in the backend. Nobody has it open.
    Lazy(Box<Source>),
}

/// A regular file in blocks.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Blocks {
    pub layout: FileLayout,
    /// Nobody has it open for writing: size and mtime are exact.
    pub settled: bool,
    /// No sub-file reaches beyond this, unless the file was written since it was last settled. Bytes.
    pub reach: u64,
    /// A truncation to so many bytes is under way, and is done again after a crash.
    pub truncating: Option<u64>,
    /// When mtime was last set explicitly; writes before that do not change it.
    pub mtime_set: Time,
    /// Storage that it takes on all servers, bytes, as of when it was last settled; `None`: what follows from
    /// its size.
    pub allocated: Option<u64>,
}

impl Blocks {
    /// How far the sub-files of a file of this size reach, if these servers have one, bytes.
    pub(crate) fn reach_with(&self, map: &Map, size: u64, found: &[ServerId]) -> u64 {
        let known = self.reach.max(size);
        let servers = self.layout.servers(map, known);
        if found.iter().all(|server| servers.contains(server)) { known } else { u64::MAX }
    }
}

/// A directory.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Directory {
    pub parent: Ino,
    /// Its name there.
    #[serde(with = "serde_bytes")]
    pub name: Box<[u8]>,
    pub state: Spread,
    /// When mtime was last set explicitly; changes of the parts before that do not show.
    pub mtime_set: Time,
    /// How files made in it are to be spread.
    pub layout: Template,
}

/// Where a directory's entries are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(crate) enum Spread {
    /// In the directory's own shard.
    Packed,
    /// Still there, but about to move: they can be read, and changes wait.
    Splitting,
    /// In the parts' shards.
    Split,
}

/// What few inodes have.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, Debug)]
pub(crate) struct Extra {
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>,
    /// Of a file with inline data: its template, for when the data moves to blocks.
    pub layout: Template,
    /// Made without a name, it may still be given one.
    pub linkable: bool,
}

/// One part of a split directory, as its shard sees it.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Part {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub entries: u32,
    pub subdirectories: u32,
    pub mtime: Time,
    pub layout: Template,
}

impl Part {
    pub(crate) fn owner(&self) -> Owner {
        Owner { mode: self.mode, uid: self.uid, gid: self.gid }
    }
}

impl Inode {
    /// A new inode with one link (two for a directory).
    pub(crate) fn new(owner: Owner, now: Time, body: Body) -> Inode {
        let nlink = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        let size = match &body {
            Body::Inline(bytes) | Body::Symlink(bytes) => bytes.len() as u64,
            Body::Lazy(source) => source.size,
            _ => 0,
        };
        Inode {
            size,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            nlink,
            uid: owner.uid,
            gid: owner.gid,
            size_version: 0,
            mode: owner.mode,
            body,
            extra: None,
        }
    }

    /// A new, empty directory.
    pub(crate) fn directory(owner: Owner, now: Time, parent: Ino, name: &[u8], layout: Template) -> Inode {
        let (state, mtime_set) = (Spread::Packed, Time::MIN);
        let directory = Directory { parent, name: name.into(), state, mtime_set, layout };
        Inode::new(owner, now, Body::Directory(Box::new(directory)))
    }

    pub(crate) fn kind(&self) -> FileKind {
        match self.body {
            Body::Inline(_) | Body::Blocks(_) | Body::Lazy(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
            Body::CharDevice(_) => FileKind::CharDevice,
            Body::BlockDevice(_) => FileKind::BlockDevice,
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { mode: self.mode, uid: self.uid, gid: self.gid }
    }

    pub(crate) fn as_directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    pub(crate) fn as_blocks(&self) -> Option<&Blocks> {
        match &self.body {
            Body::Blocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    pub(crate) fn blocks_mut(&mut self) -> Option<&mut Blocks> {
        match &mut self.body {
            Body::Blocks(blocks) => Some(blocks),
            _ => None,
        }
    }

    /// Where the contents of a lazy file are.
    pub(crate) fn as_lazy(&self) -> Option<&Source> {
        match &self.body {
            Body::Lazy(source) => Some(source),
            _ => None,
        }
    }

    /// The target of a symbolic link; empty for everything else.
    pub(crate) fn target(&self) -> &[u8] {
        match &self.body {
            Body::Symlink(target) => target,
            _ => &[],
        }
    }

    /// What `stat` shows. Of a split directory, entries, links and mtime still lack what the parts know.
    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let (store, layout) = match &self.body {
            Body::Blocks(b) => (Store::Blocks { settled: b.settled }, Some(Box::new(b.layout.clone()))),
            Body::Lazy(_) => (Store::Lazy, None),
            _ => (Store::Inline, None),
        };
        Attr {
            ino,
            kind: self.kind(),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            size: match self.body {
                Body::CharDevice(number) | Body::BlockDevice(number) => u64::from(number),
                _ => self.size,
            },
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            store,
            size_version: self.size_version,
            split: self.as_directory().is_some_and(|d| d.state == Spread::Split),
            xattrs: !self.xattrs().is_empty() || self.as_directory().is_some_and(|d| !d.layout.is_empty()),
            layout,
            mtime_set: self.as_blocks().map(|blocks| blocks.mtime_set).filter(|set| *set != Time::MIN),
            allocated: self.as_blocks().and_then(|blocks| blocks.allocated),
        }
    }

    /// Changes the fields that few inodes have. If all of them are empty afterwards, they take no memory.
    pub(crate) fn change_extra(&mut self, change: impl FnOnce(&mut Extra)) {
        let mut extra = self.extra.take().unwrap_or_default();
        change(&mut extra);
        self.extra = (*extra != Extra::default()).then_some(extra);
    }

    /// Whether it is without a name and may be given one.
    pub(crate) fn is_linkable(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.linkable)
    }

    pub(crate) fn xattrs(&self) -> &[(serde_bytes::ByteBuf, serde_bytes::ByteBuf)] {
        self.extra.as_ref().map_or(&[], |extra| &extra.xattrs)
    }
}
