//! Calls on names, and on the inodes that they lead to.

use super::Client;
use crate::error::Fail;
use crate::handle::Handle;
use crate::memory::listing::Entries;
use crate::namespace::StatFs;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::Attr;
use bivouac_proto::lazy::{LazyFile, Unfetchable};
use bivouac_proto::meta::SetAttr;

impl Client {
    /// The attributes of what a path names; size and times are exact.
    pub fn stat(&self, start: Ino, path: &[u8], follow: bool) -> Result<Attr, Fail> {
        self.namespace().stat(start, path, follow)
    }

    /// Whether this process may access what a path names; `mask` as for `access(2)` (4 read, 2 write, 1
    /// execute).
    pub fn access(&self, start: Ino, path: &[u8], mask: u32, follow: bool) -> Result<(), Fail> {
        self.namespace().access(start, path, mask, follow)
    }

    /// Makes a directory; `mode` with the umask applied.
    pub fn mkdir(&self, start: Ino, path: &[u8], mode: u32) -> Result<(), Fail> {
        self.namespace().mkdir(start, path, mode)
    }

    /// Makes a file, named pipe or socket; `mode` has its type bits, with the umask applied.
    pub fn mknod(&self, start: Ino, path: &[u8], mode: u32) -> Result<(), Fail> {
        self.namespace().mknod(start, path, mode)
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &[u8], start: Ino, path: &[u8]) -> Result<(), Fail> {
        self.namespace().symlink(target, start, path)
    }

    /// Makes another name for a file.
    pub fn link(&self, start: Ino, path: &[u8], to: Ino, to_path: &[u8], follow: bool) -> Result<(), Fail> {
        self.namespace().link(start, path, to, to_path, follow)
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

    /// The target of a symbolic link.
    pub fn readlink(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
        self.namespace().readlink(start, path)
    }

    /// Sets attributes.
    pub fn set_attr(&self, start: Ino, path: &[u8], follow: bool, set: SetAttr) -> Result<(), Fail> {
        self.namespace().set_attr(start, path, follow, set)
    }

    /// Sets the size of a file.
    pub fn truncate(&self, start: Ino, path: &[u8], size: u64) -> Result<(), Fail> {
        self.namespace().truncate(start, path, size)
    }

    /// An extended attribute's value.
    pub fn get_xattr(&self, start: Ino, path: &[u8], follow: bool, name: &[u8]) -> Result<Vec<u8>, Fail> {
        self.namespace().get_xattr(start, path, follow, name)
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr(&self, start: Ino, path: &[u8], follow: bool) -> Result<Vec<u8>, Fail> {
        self.namespace().list_xattr(start, path, follow)
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub fn set_xattr(
        &self,
        start: Ino,
        path: &[u8],
        follow: bool,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<(), Fail> {
        self.namespace().set_xattr(start, path, follow, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, start: Ino, path: &[u8], follow: bool, name: &[u8]) -> Result<(), Fail> {
        self.namespace().remove_xattr(start, path, follow, name)
    }

    /// How full the file system is that an inode lies on: the backend's, for what is forwarded.
    pub fn statfs_of(&self, ino: Ino) -> Result<StatFs, Errno> {
        self.namespace().statfs_of(ino)
    }

    /// How full the storage of the servers that are up is, in bytes of files with the deployment's number of copies.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        self.namespace().statfs()
    }

    /// The canonical path of what a path names: absolute, without links, `.` and `..`; begins with the mount.
    pub fn real_path(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
        self.namespace().real_path(start, path)
    }

    /// The path of a directory, from its number: absolute, beginning with the mount point or the forwarded directory. ENOENT if it was
    /// removed.
    pub fn path_of(&self, dir: Ino) -> Result<Vec<u8>, Errno> {
        self.namespace().path_of(dir)
    }

    /// The target of a symbolic link.
    pub fn link_target(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.namespace().link_target(ino)
    }

    /// Entries of a directory by its number, with cookies greater than `after`, in their order: as
    /// [`Handle::list`], but neither `.` nor `..`. `begins`: they are its first, and the directory above is
    /// this one.
    pub fn list_number(
        &self,
        dir: Ino,
        begins: Option<Ino>,
        after: u64,
        max: usize,
    ) -> Result<Entries, Errno> {
        self.namespace().list_number(dir, begins, after, max)
    }

    /// Entries of a directory with cookies greater than `after`, in their order: about `limit`, none at the
    /// end. A directory that was removed has none.
    pub fn list_after(&self, dir: Ino, after: u64, limit: u32, attrs: bool) -> Result<Entries, Errno> {
        self.namespace().list_after(dir, after, limit, attrs)
    }

    /// Makes size, space and mtime exact, when the file is open for writing somewhere.
    pub fn exact(&self, attr: Attr) -> Result<Attr, Errno> {
        self.namespace().exact(attr)
    }

    /// Has the contents of what a path names fetched, if it is a lazy file; whether it was one. Symbolic links are not
    /// followed.
    pub fn fetch_path(&self, start: Ino, path: &[u8]) -> Result<bool, Unfetchable> {
        self.namespace().fetch_path(start, path)
    }

    /// Makes a lazy file; its attributes.
    pub fn make_lazy(&self, start: Ino, path: &[u8], file: &LazyFile) -> Result<Attr, Fail> {
        self.namespace().make_lazy(start, path, file)
    }

    /// Gives an open file a name. ENOENT if only descriptors opened with O_PATH are left of it.
    pub fn link_open(&self, handle: &Handle, to: Ino, to_path: &[u8]) -> Result<(), Fail> {
        self.namespace().link_open(handle.ino(), handle.is_directory(), to, to_path)
    }
}
