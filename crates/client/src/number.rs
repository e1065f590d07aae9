//! Calls on inodes by their numbers, for the kernel mount: the kernel has walked the path itself, and
//! names a directory and one name in it, or an inode.
//!
//! Nothing here follows a symbolic link. The kernel has checked the permissions of the caller; the servers
//! check those of this process.

use crate::client::Client;
use crate::error::Fail;
use crate::handle::Handle;
use crate::namespace::{Last, New, none_of, removed};
use crate::opening::how;
use crate::opening::{Entry, Found, Opened};
use crate::requests::To;
use bivouac_layout::Ino;
use bivouac_node::SlotId;
use bivouac_node::release::{Release, release};
use bivouac_proto::attr::{Attr, FileKind};
use bivouac_proto::meta::{Create, MetaReply, MetaRequest, OpenHow, SetAttr};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file that was opened by number, or made.
pub struct OpenedFile {
    /// The description. Only this process holds it; close it with [`Client::close_number`].
    pub handle: Arc<Handle>,
    /// The file's attributes, exact.
    pub attr: Attr,
    /// Whether it was made just now.
    pub created: bool,
}

impl Client {
    /// The attributes of an inode, exact.
    pub fn stat_number(&self, ino: Ino) -> Result<Attr, Errno> {
        self.namespace().exact(*self.namespace().attr_of(ino)?)
    }

    /// The attributes of an open directory that was removed: it is empty, and has no name.
    pub fn removed_number(&self, dir: Ino) -> Attr {
        *removed(dir)
    }

    /// The attributes of what `name` in `dir` names, exact.
    pub fn stat_name(&self, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        self.namespace().stat(dir, name, false).map_err(Fail::errno)
    }

    /// Makes a directory; `mode` with the umask applied.
    pub fn mkdir_name(&self, dir: Ino, name: &[u8], mode: u16) -> Result<Attr, Errno> {
        self.make_name(dir, name, New::Directory { mode })
    }

    /// Makes a file, symbolic link (to `target`), named pipe or socket; `mode` with the umask applied.
    pub fn make_node_name(
        &self,
        dir: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        target: &[u8],
    ) -> Result<Attr, Errno> {
        self.make_name(dir, name, New::Node { kind, mode, target })
    }

    /// Makes another name for a file.
    pub fn link_name(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let attr = self.make_name(dir, name, New::Link { ino })?;
        self.namespace().exact(attr)
    }

    fn make_name(&self, dir: Ino, name: &[u8], new: New<'_>) -> Result<Attr, Errno> {
        let made = self.namespace().at_last(dir, name, |_, last| match last {
            Last::Directory(_) => Err(Errno::EXIST.into()),
            Last::Name(place) => match self.namespace().entry(&place, &mut [], |at| new.request(at))?.0 {
                MetaReply::Entry { attr, .. } => Ok(*attr),
                MetaReply::Elsewhere { ino, .. } => Ok(*self.namespace().attr_of(ino)?),
                _ => Err(Errno::PROTO.into()),
            },
        });
        made.map_err(Fail::errno)
    }

    /// Opens a file; `flags` as for `open(2)`, of which O_CREAT and O_EXCL do not count.
    pub fn open_number(self: &Arc<Self>, ino: Ino, flags: i32) -> Result<OpenedFile, Errno> {
        self.opening(flags, |how, open| Ok(Entry::Opened(self.open_registered(ino, how, open)?)))
    }

    /// Makes a file and opens it; if there is one and O_EXCL is not among the flags, opens that. A symbolic
    /// link is ELOOP. `mode` with the umask applied.
    pub fn create_name(
        self: &Arc<Self>,
        dir: Ino,
        name: &[u8],
        flags: i32,
        mode: u16,
    ) -> Result<OpenedFile, Errno> {
        let exclusive = flags & libc::O_EXCL != 0;
        self.opening(flags, |how, open| {
            let how = OpenHow { create: Some(Create { mode, exclusive }), ..how };
            let opened = self.namespace().at_last(dir, name, |_, last| match last {
                Last::Directory(_) => Err(Errno::ISDIR.into()),
                Last::Name(place) => self.open_entry(&place, how, open),
            });
            opened.map_err(Fail::errno)
        })
    }

    /// Makes a file without a name, for a directory, and opens it: O_TMPFILE. `mode` with the umask applied.
    pub fn create_nameless(self: &Arc<Self>, dir: Ino, flags: i32, mode: u16) -> Result<OpenedFile, Errno> {
        self.opening(flags, |_, open| {
            let registered = self.open_new_nameless(dir, flags, mode, open)?;
            Ok(Entry::Opened(Opened { registered, target: Vec::new() }))
        })
    }

    /// Makes a description of what `open` opens, if that is a regular file.
    fn opening(
        self: &Arc<Self>,
        flags: i32,
        open: impl FnOnce(OpenHow, OpenId) -> Result<Entry, Errno>,
    ) -> Result<OpenedFile, Errno> {
        let how = OpenHow { directory: false, ..how(flags) };
        let file = |id| match open(how, id)? {
            Entry::Directory(_) => Err(Errno::ISDIR),
            Entry::Opened(Opened { registered, .. }) => match registered.attr.kind {
                FileKind::File => Ok(registered),
                FileKind::Directory => Err(Errno::ISDIR),
                FileKind::Symlink => Err(Errno::LOOP),
                _ => Err(Errno::NXIO),
            },
        };
        // A mount's description has no name that others could know it by.
        let found = |id| Ok((Found::File(file(id)?), None));
        let described = self.described(flags, |_| Ok(()), found).map_err(Fail::errno)?;
        let (attr, created) = described.file.ok_or(Errno::PROTO)?;
        match self.namespace().exact(*attr) {
            Ok(attr) => Ok(OpenedFile { handle: Arc::new(described.handle), attr, created }),
            Err(errno) => {
                self.close_number(described.handle.id());
                Err(errno)
            }
        }
    }

    /// Closes a description that only this process holds, without a placeholder. When this returns, its
    /// server knows.
    pub fn close_number(&self, id: SlotId) {
        if self.session().table().retire(id) {
            self.forget_locks(id);
            let release = release(self.session().table(), self.session().agent_number(), id);
            if release.is_none_or(|release| self.tell_release(&Release { wait: true, ..release })) {
                self.session().table().free(id);
            }
        }
    }

    /// Sets attributes; what they are then. Exact, but for the time and the storage of what an open
    /// description has written: for who asks again before he shows these.
    pub fn set_attr_number(&self, ino: Ino, set: SetAttr) -> Result<Attr, Errno> {
        let request = MetaRequest::SetAttr { ino, set };
        match self.requests().meta_changing(To::inode(ino), &request, &[], &mut []) {
            Ok((MetaReply::Attr(mut attr), _, change)) => {
                match change.writer.and_then(|writer| self.written_to(writer, attr.size_version)) {
                    Some(end) => attr.size = attr.size.max(end),
                    None => return self.namespace().exact(*attr),
                }
                Ok(*attr)
            }
            Ok(_) => Err(Errno::PROTO),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// How far a description of this node has written, if its slot tells all.
    fn written_to(&self, open: OpenId, size_version: u32) -> Option<u64> {
        if open.agent != self.session().agent_number() {
            return None;
        }
        let slot = self.session().table().slot(SlotId { index: open.slot, incarnation: open.incarnation })?;
        let knows = slot.writing.load(Ordering::Acquire) == 0
            && slot.size_version.load(Ordering::Relaxed) == size_version;
        knows.then(|| slot.end.load(Ordering::Acquire))
    }

    /// Sets the size of a file, bytes; what its attributes are then, exact.
    pub fn truncate_number(&self, ino: Ino, size: u64) -> Result<Attr, Errno> {
        let attr = self.namespace().truncate_of(ino, size)?;
        self.namespace().exact(*attr)
    }

    /// The target of a symbolic link.
    pub fn readlink_number(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.namespace().link_target(ino)
    }

    /// An extended attribute's value.
    pub fn get_xattr_number(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if let Some((attr, _)) = self.requests().known_record(ino) {
            none_of(&attr, name)?;
        }
        self.namespace().get_xattr_of(ino, name)
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr_number(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        match self.requests().known_record(ino) {
            Some((attr, _)) if !attr.xattrs => Ok(Vec::new()),
            _ => self.namespace().list_xattr_of(ino),
        }
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub fn set_xattr_number(&self, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
        self.namespace().set_xattr_of(ino, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr_number(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.namespace().remove_xattr_of(ino, name)
    }

    /// The directory above a directory.
    pub fn parent_number(&self, dir: Ino) -> Result<Ino, Errno> {
        self.namespace().parent(dir).map(|(parent, _)| parent)
    }

    /// Puts what the metadata server has of an inode on stable storage.
    pub fn sync_number(&self, ino: Ino) -> Result<(), Errno> {
        self.requests().meta_on(ino, &MetaRequest::Sync { ino }).map(|_| ())
    }
}
