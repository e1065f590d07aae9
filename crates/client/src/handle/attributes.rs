//! Attributes of an open file, its size and its space, and putting it on stable storage.

use super::Handle;
use crate::error::Fail;
use crate::namespace::Changed;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FILE_MAX};
use bivouac_proto::data::Fallocate;
use bivouac_proto::meta::SetAttr;
use std::sync::atomic::Ordering;

impl Handle {
    /// Writes through this description until now do not count for mtime any more, because it is about to be
    /// set explicitly.
    pub fn forget_write_time(&self) {
        if let Ok(slot) = self.data().slot() {
            slot.wrote_at.store(0, Ordering::Relaxed);
        }
    }

    /// Allocates, punches or zeroes a range; `mode` as for `fallocate(2)`.
    pub fn fallocate(&self, mode: i32, offset: i64, len: i64) -> Result<(), Errno> {
        self.data().usable()?;
        let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else {
            return Err(Errno::INVAL);
        };
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 if keep => Fallocate::KeepSize,
            0 => Fallocate::Extend,
            libc::FALLOC_FL_PUNCH_HOLE if keep => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::Zero,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let slot = self.data().writable()?;
        let end = offset.checked_add(len).filter(|&end| end <= FILE_MAX).ok_or(Errno::FBIG)?;
        self.data().fallocate(slot, offset..end, what, keep)
    }

    /// An extended attribute's value.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.client.namespace().get_xattr_of(self.file.ino, name)
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr(&self) -> Result<Vec<u8>, Errno> {
        self.client.namespace().list_xattr_of(self.file.ino)
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
        self.client.namespace().set_xattr_of(self.file.ino, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        self.client.namespace().remove_xattr_of(self.file.ino, name)
    }
}

impl Handle {
    /// Its attributes, exact.
    pub fn attr(&self) -> Result<Attr, Errno> {
        self.data().attr()
    }

    /// Sets attributes.
    pub fn set_attr(&self, set: SetAttr) -> Result<(), Errno> {
        self.data().set_attr(set)
    }

    /// Sets the size (`ftruncate`).
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        let data = self.data();
        data.usable()?;
        data.writable().map_err(|_| Errno::INVAL)?;
        data.truncate(size)
    }

    /// Puts data and attributes on stable storage, on all servers that hold any. (This also serves
    /// `fdatasync`: the times, which it need not write, are in the same log as the size and the layout, which
    /// it must.)
    pub fn sync(&self) -> Result<(), Errno> {
        self.data().usable()?;
        self.data().sync()
    }

    /// Gives the file a name. ENOENT if only descriptors opened with O_PATH are left of it.
    pub fn link(&self, to: Ino, to_path: &[u8]) -> Result<Changed, Fail> {
        self.client.namespace().link_open(self.ino(), self.is_directory(), to, to_path)
    }
}
