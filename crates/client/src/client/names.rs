//! Calls on names, and on the inodes that they lead to.

use super::Client;
use crate::error::Fail;
use crate::memory::listing::Entries;
use crate::namespace::{Changed, StatFs, Target, removed};
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::Attr;
use bivouac_proto::lazy::{LazyFile, Unfetchable};
use bivouac_proto::meta::SetAttr;

/// On an inode: by its number, or what a path names (see [`Target`]).
impl Client {
    /// The attributes; size and times are exact.
    pub fn stat<'p>(&self, target: impl Into<Target<'p>>) -> Result<Attr, Fail> {
        self.namespace().stat(target.into())
    }

    /// Whether this process may access it; `mask` as for `access(2)` (4 read, 2 write, 1 execute).
    pub fn access<'p>(&self, target: impl Into<Target<'p>>, mask: u32) -> Result<(), Fail> {
        self.namespace().access(target.into(), mask)
    }

    /// Sets attributes.
    pub fn set_attr<'p>(&self, target: impl Into<Target<'p>>, set: SetAttr) -> Result<Changed, Fail> {
        self.namespace().set_attr(target.into(), set)
    }

    /// Sets the size of a file, bytes. By a path as `truncate(2)` does, with its errors; by a number without asking whether it
    /// is a file.
    pub fn truncate<'p>(&self, target: impl Into<Target<'p>>, size: u64) -> Result<Changed, Fail> {
        self.namespace().truncate(target.into(), size)
    }

    /// The target of a symbolic link. One at the end of a path is read, and never followed.
    pub fn readlink<'p>(&self, target: impl Into<Target<'p>>) -> Result<Vec<u8>, Fail> {
        self.namespace().readlink(target.into())
    }

    /// An extended attribute's value.
    pub fn get_xattr<'p>(&self, target: impl Into<Target<'p>>, name: &[u8]) -> Result<Vec<u8>, Fail> {
        self.namespace().get_xattr(target.into(), name)
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr<'p>(&self, target: impl Into<Target<'p>>) -> Result<Vec<u8>, Fail> {
        self.namespace().list_xattr(target.into())
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub fn set_xattr<'p>(
        &self,
        target: impl Into<Target<'p>>,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<(), Fail> {
        self.namespace().set_xattr(target.into(), name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr<'p>(&self, target: impl Into<Target<'p>>, name: &[u8]) -> Result<(), Fail> {
        self.namespace().remove_xattr(target.into(), name)
    }

    /// How full the file system is that it lies on: the servers that are up, in bytes of files with the deployment's number of
    /// copies; or the backend, for what is forwarded.
    pub fn statfs<'p>(&self, target: impl Into<Target<'p>>) -> Result<StatFs, Fail> {
        self.namespace().statfs(target.into())
    }

    /// Puts what its metadata server has of it on stable storage.
    pub fn sync<'p>(&self, target: impl Into<Target<'p>>) -> Result<(), Fail> {
        self.namespace().sync(target.into())
    }

    /// Has the contents of a lazy file fetched; whether it was one.
    pub fn fetch<'p>(&self, target: impl Into<Target<'p>>) -> Result<bool, Unfetchable> {
        self.namespace().fetch(target.into())
    }

    /// The attributes of what was made or changed. Exact, but for the time and the storage of what an open
    /// description has written: for who asks again before he shows these.
    pub fn attr_after(&self, changed: Changed) -> Result<Attr, Errno> {
        self.namespace().attr_after(changed)
    }

    /// Makes attributes exact that came with a listing: size, space and mtime, when the file is open for writing somewhere.
    pub fn exact(&self, attr: Attr) -> Result<Attr, Errno> {
        self.namespace().exact(attr)
    }

    /// The attributes to show for an open directory that was removed: it is empty, and has no name.
    pub fn removed(&self, dir: Ino) -> Attr {
        *removed(dir)
    }
}

/// On a name, in the directory that a path leads to.
impl Client {
    /// Makes a directory; `mode` with the umask applied.
    pub fn mkdir(&self, start: Ino, path: &[u8], mode: u32) -> Result<Changed, Fail> {
        self.namespace().mkdir(start, path, mode)
    }

    /// Makes a file, named pipe or socket; `mode` has its type bits, with the umask applied. EPERM for a device.
    pub fn mknod(&self, start: Ino, path: &[u8], mode: u32) -> Result<Changed, Fail> {
        self.namespace().mknod(start, path, mode)
    }

    /// Makes a character device or a block device, for a mount, whose kernel knows who may; `mode` has its type bits.
    pub fn make_device(&self, start: Ino, path: &[u8], mode: u32, number: u32) -> Result<Changed, Fail> {
        self.namespace().make_device(start, path, mode, number)
    }

    /// Makes a lazy file; its attributes.
    pub fn make_lazy(&self, start: Ino, path: &[u8], file: &LazyFile) -> Result<Attr, Fail> {
        self.namespace().make_lazy(start, path, file)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &[u8], start: Ino, path: &[u8]) -> Result<Changed, Fail> {
        self.namespace().symlink(target, start, path)
    }

    /// Makes another name for a file. Who names that by its number says that it is no directory.
    pub fn link<'p>(&self, target: impl Into<Target<'p>>, to: Ino, to_path: &[u8]) -> Result<Changed, Fail> {
        self.namespace().link(target.into(), to, to_path)
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, start: Ino, path: &[u8]) -> Result<(), Fail> {
        self.namespace().unlink(start, path)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, start: Ino, path: &[u8]) -> Result<(), Fail> {
        self.namespace().rmdir(start, path)
    }

    /// Renames; `flags` as for `renameat2(2)`.
    pub fn rename(&self, start: Ino, path: &[u8], to: Ino, to_path: &[u8], flags: u32) -> Result<(), Fail> {
        self.namespace().rename(start, path, to, to_path, flags)
    }

    /// The canonical path of what a path names: absolute, without links, `.` and `..`; begins with the mount.
    pub fn real_path(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
        self.namespace().real_path(start, path)
    }
}

/// On a directory, by its number.
impl Client {
    /// The path of a directory: absolute, beginning with the mount point or the forwarded directory. ENOENT if it was removed.
    pub fn path_of(&self, dir: Ino) -> Result<Vec<u8>, Errno> {
        self.namespace().path_of(dir)
    }

    /// The directory above a directory.
    pub fn parent(&self, dir: Ino) -> Result<Ino, Errno> {
        self.namespace().parent(dir).map(|(parent, _)| parent)
    }

    /// Entries of a directory with cookies greater than `after`, in their order, about `max`: as [`crate::Handle::list`], but
    /// neither `.` nor `..`. `begins`: they are its first, and the directory above is this one.
    pub fn list(&self, dir: Ino, begins: Option<Ino>, after: u64, max: usize) -> Result<Entries, Errno> {
        self.namespace().list(dir, begins, after, max)
    }

    /// The same, about `limit` of them, for a program that says whether it wants their attributes. None at the end; a
    /// directory that was removed has none.
    pub fn list_after(&self, dir: Ino, after: u64, limit: u32, attrs: bool) -> Result<Entries, Errno> {
        self.namespace().list_after(dir, after, limit, attrs)
    }
}
