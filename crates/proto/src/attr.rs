//! Attributes and directory entries.

use bivouac_layout::{FileLayout, Ino};
use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01 UTC; before it, negative.
pub type Time = i64;

/// Longest name of an entry, bytes.
pub const NAME_MAX: usize = 255;
/// Longest path and longest target of a symbolic link, bytes, without the final NUL.
pub const PATH_MAX: usize = 4095;
/// Longest inline data of a file, bytes; a longer file is in blocks.
pub const INLINE_MAX: usize = 4096;
/// Most hard links to one file.
pub const LINK_MAX: u32 = 65_000;
/// Most that one call reads or writes, bytes: as in the kernel, 2 GiB less a page.
pub const TRANSFER_MAX: usize = 0x7fff_f000;
/// Largest offset at which a file may end.
pub const FILE_MAX: u64 = i64::MAX as u64;

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe (only through a kernel mount can it be opened).
    Fifo,
    /// Socket (likewise).
    Socket,
    /// Character device (likewise).
    CharDevice,
    /// Block device (likewise).
    BlockDevice,
}

impl FileKind {
    /// The file type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// The `d_type` of a directory entry.
    pub fn d_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// Where a regular file's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Store {
    /// Inline data, in the inode, at its server. [`Attr::size`] is exact.
    Inline,
    /// In blocks. `settled`: nobody has the file open for writing, and [`Attr::size`], [`Attr::mtime`] are
    /// exact; otherwise the servers of the layout know better: see [`crate::data::DataReply::Extent`].
    Blocks {
        /// Whether the inode's size and mtime are exact.
        settled: bool,
    },
    /// In the backend: the file is [lazy](crate::lazy). Nobody has it open, and [`Attr::size`] is exact.
    Lazy,
}

/// What `stat` shows, and what the client core needs besides.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, with set-id and sticky bits (07777).
    pub mode: u16,
    /// Hard links; for a directory 2 + its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; see [`Store`] for when it is exact. Symbolic links: length of the target. Directories: entries.
    /// Devices: the number, see [`Attr::device`].
    pub size: u64,
    /// Last access: when it was made, or last set. Reading leaves it as it is; see the semantics page.
    pub atime: Time,
    /// Last change of the data; see [`Store`].
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Where a regular file's bytes are; `Inline` for everything else.
    pub store: Store,
    /// Counts truncations, so that late reports of older sizes are ignored.
    pub size_version: u32,
    /// A directory whose entries are spread over its parts.
    pub split: bool,
    /// Whether it has extended attributes (of a directory, also the one that shows its layout). Where it has
    /// none, they need not be asked for.
    pub xattrs: bool,
    /// How the blocks are spread; `None` where there are none (not `Store::Blocks`).
    pub layout: Option<Box<FileLayout>>,
    /// When mtime was last set explicitly: writes before that do not change mtime. `None`: never, or it does
    /// not matter.
    pub mtime_set: Option<Time>,
    /// For a file in blocks: the storage that it takes on all servers, bytes. Given only if it does not
    /// follow from the size, because the file has holes, or more storage than its size needs. As exact as
    /// [`Attr::size`] is.
    pub allocated: Option<u64>,
}

/// Storage that a file without holes takes, bytes: whole pages.
pub fn dense(size: u64) -> u64 {
    size.div_ceil(4096).saturating_mul(4096)
}

impl Attr {
    /// What `st_size` shows, bytes.
    pub fn st_size(&self) -> u64 {
        if self.is_device() { 0 } else { self.size }
    }

    /// What `st_blocks` shows, units of 512 bytes.
    pub fn st_blocks(&self) -> u64 {
        match self.kind {
            FileKind::File => self.allocated.unwrap_or(dense(self.size)).div_ceil(512),
            _ => 0,
        }
    }

    /// The device's number, as the kernel encodes it in 32 bits; 0 for what is no device.
    pub fn device(&self) -> u32 {
        if self.is_device() { self.size as u32 } else { 0 }
    }

    fn is_device(&self) -> bool {
        matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice)
    }
}

/// One entry of a listing.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct DirEntry {
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Its position: listing goes on after the entries with this cookie.
    pub cookie: u64,
    /// Its attributes, when asked for and when its inode is held by the same server.
    pub attr: Option<Box<Attr>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_kernels_numbers() {
        let kinds =
            [FileKind::File, FileKind::Directory, FileKind::Symlink, FileKind::Fifo, FileKind::Socket];
        // S_IFREG and so on, shifted: DT_REG and so on.
        assert_eq!(kinds.map(FileKind::d_type), [8, 4, 10, 1, 12]);
        assert_eq!([FileKind::CharDevice, FileKind::BlockDevice].map(FileKind::d_type), [2, 6]);
        assert!(kinds.iter().all(|kind| kind.mode_bits() & 0o7777 == 0));
    }
}
