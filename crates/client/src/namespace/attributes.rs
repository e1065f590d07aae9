//! Attributes of inodes, named by their numbers or by paths.

use super::Namespace;
use super::again::{Failing, MAX_GONE};
use super::target::{Changed, Target};
use super::walk::{Last, Walk};
use crate::error::Fail;
use crate::host;
use crate::requests::To;
use bivouac_layout::Ino;
use bivouac_node::SlotId;
use bivouac_proto::attr::{Attr, FILE_MAX, FileKind};
use bivouac_proto::meta::{MetaReply, MetaRequest, SetAttr};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId};
use std::sync::atomic::Ordering;

/// Whether a path has no names, so that it leads to where it starts.
pub(crate) fn names_itself(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').all(|name| matches!(name, b"" | b"."))
}

/// The attributes shown for a directory that was removed while it was a program's working directory, or open:
/// its server does not know it any more, but on a local file system it would still exist, empty and without a
/// name.
pub(crate) fn removed(dir: Ino) -> Box<Attr> {
    Box::new(Attr {
        ino: dir,
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 0,
        uid: 0,
        gid: 0,
        size: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        store: bivouac_proto::attr::Store::Inline,
        size_version: 0,
        split: false,
        xattrs: false,
        layout: None,
        mtime_set: None,
        allocated: None,
    })
}

impl Namespace {
    /// The attributes; size and times are exact.
    pub(crate) fn stat(&self, target: Target<'_>) -> Result<Attr, Fail> {
        self.on_found(target, |attr| Ok(self.exact(attr)?))
    }

    /// Does something with an inode whose attributes are known for it. If the inode that a path named is gone by then, because
    /// its name was replaced or removed, uses the inode that the path names now.
    pub(super) fn on_found<T>(
        &self,
        target: Target<'_>,
        operation: impl Fn(Attr) -> Result<T, Fail>,
    ) -> Result<T, Fail> {
        let Target::Path { start, path, follow } = target else { return operation(*self.found(target)?) };
        let mut gone = 0;
        loop {
            let attr = self.find(start, path, follow)?;
            // A directory without a name would be found again and again.
            let (named, forwarded) = (attr.nlink > 0, attr.ino.is_forwarded());
            match operation(*attr) {
                Err(Fail::Errno(Errno::NOENT)) if named && gone < MAX_GONE => gone += 1,
                // The backend remembered what others have replaced there. The I/O node has had it look again.
                Err(Fail::Errno(Errno::STALE)) if forwarded && gone < 2 => gone += 1,
                done => return done,
            }
        }
    }

    /// The same for what needs no attributes: an inode that is named by its number is not asked for them.
    pub(super) fn on_inode<T>(
        &self,
        target: Target<'_>,
        operation: impl Fn(Ino) -> Result<T, Errno>,
    ) -> Result<T, Fail> {
        match target {
            Target::Inode(ino) => Ok(operation(ino)?),
            Target::Path { .. } => self.on_found(target, |attr| Ok(operation(attr.ino)?)),
        }
    }

    /// Whether this process may access it; `mask` as for `access(2)` (4 read, 2 write, 1 execute).
    pub(crate) fn access(&self, target: Target<'_>, mask: u32) -> Result<(), Fail> {
        let attr = self.found(target)?;
        let directory = attr.kind == FileKind::Directory;
        if mask & !7 != 0 {
            return Err(Errno::INVAL.into());
        }
        if mask != 0 && !self.session().allowed(attr.mode, attr.uid, attr.gid, mask, directory) {
            return Err(Errno::ACCESS.into());
        }
        Ok(())
    }

    /// The inode, as its server has it.
    pub(crate) fn found(&self, target: Target<'_>) -> Result<Box<Attr>, Fail> {
        match target {
            Target::Inode(ino) => Ok(self.attr_of(ino)?),
            Target::Path { start, path, follow } => self.find(start, path, follow),
        }
    }

    /// The inode that a path names, as its server has it.
    pub(crate) fn find(&self, start: Ino, path: &[u8], follow: bool) -> Result<Box<Attr>, Fail> {
        match self.at_last(start, path, |walk, last| self.find_last(walk, last, follow)) {
            Err(Fail::Errno(Errno::NOENT)) if names_itself(path) => Ok(removed(start)),
            found => found,
        }
    }

    pub(crate) fn find_last(
        &self,
        walk: &mut Walk<'_, '_>,
        last: Last,
        follow: bool,
    ) -> Result<Box<Attr>, Failing> {
        let place = match last {
            Last::Directory(ino) => return Ok(self.attr_of(ino)?),
            Last::Name(place) => place,
        };
        let (dir, slash) = (place.dir, place.slash);
        let (attr, target) = self.lookup(place.reached, dir, &place.name)?;
        if attr.kind == FileKind::Symlink && (follow || slash) {
            walk.follow(dir, &target, slash)?;
            return Err(Failing::Follow);
        }
        if slash && attr.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok(attr)
    }

    /// Sets attributes.
    pub(crate) fn set_attr(&self, target: Target<'_>, set: SetAttr) -> Result<Changed, Fail> {
        self.on_inode(target, |ino| self.set_attr_of(ino, set))
    }

    pub(crate) fn set_attr_of(&self, ino: Ino, set: SetAttr) -> Result<Changed, Errno> {
        let request = MetaRequest::SetAttr { ino, set };
        match self.requests().meta_changing(To::inode(ino), &request, &[], &mut []) {
            Ok((reply, _, change)) => {
                let attr = if let MetaReply::Attr(attr) = reply { Some(attr) } else { None };
                Ok(Changed { ino, attr, writer: change.writer })
            }
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// Sets the size of a file. By a path, as `truncate(2)` does.
    pub(crate) fn truncate(&self, target: Target<'_>, size: u64) -> Result<Changed, Fail> {
        let changed = |attr: Box<Attr>| Changed { ino: attr.ino, attr: Some(attr), writer: None };
        if let Target::Inode(ino) = target {
            return Ok(changed(self.truncate_of(ino, size)?));
        }
        self.on_found(target, |attr| {
            match attr.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
            if !self.session().allowed(attr.mode, attr.uid, attr.gid, 2, false) {
                return Err(Errno::ACCESS.into());
            }
            Ok(changed(self.truncate_of(attr.ino, size)?))
        })
    }

    pub(crate) fn truncate_of(&self, ino: Ino, size: u64) -> Result<Box<Attr>, Errno> {
        if size > FILE_MAX {
            return Err(Errno::FBIG);
        }
        if self.session().size_limit().get().is_some_and(|limit| size > limit)
            && self.exact(*self.attr_of(ino)?)?.size < size
        {
            return Err(host::exceeded());
        }
        match self.requests().meta_on(ino, &MetaRequest::Truncate { ino, size })? {
            MetaReply::Attr(attr) => Ok(attr),
            _ => Err(Errno::PROTO),
        }
    }

    /// The attributes of what was made or changed. Exact, but for the time and the storage of what an open
    /// description has written: for who asks again before he shows these.
    pub(crate) fn attr_after(&self, changed: Changed) -> Result<Attr, Errno> {
        let Changed { ino, attr, writer } = changed;
        let Some(mut attr) = attr else { return self.exact(*self.attr_of(ino)?) };
        match writer.and_then(|writer| self.written_to(writer, attr.size_version)) {
            Some(end) => attr.size = attr.size.max(end),
            None => return self.exact(*attr),
        }
        Ok(*attr)
    }

    /// How far a description of this node has written, if its slot tells all.
    fn written_to(&self, open: OpenId, size_version: u32) -> Option<u64> {
        if open.agent != self.session().agent_number() {
            return None;
        }
        let id = SlotId { index: open.slot, incarnation: open.incarnation };
        let slot = self.session().table().slot(id)?;
        let knows = slot.writing.load(Ordering::Acquire) == 0
            && slot.size_version.load(Ordering::Relaxed) == size_version;
        knows.then(|| slot.end.load(Ordering::Acquire))
    }

    /// The target of a symbolic link. One at the end of a path is read, and never followed.
    pub(crate) fn readlink(&self, target: Target<'_>) -> Result<Vec<u8>, Fail> {
        let (start, path) = match target {
            Target::Inode(ino) => return Ok(self.link_target(ino)?),
            Target::Path { start, path, .. } => (start, path),
        };
        self.at_last(start, path, |walk, last| {
            let place = match last {
                Last::Name(place) if !place.slash => place,
                last => {
                    self.find_last(walk, last, false)?;
                    return Err(Errno::INVAL.into());
                }
            };
            match self.lookup(place.reached, place.dir, &place.name)? {
                (attr, target) if attr.kind == FileKind::Symlink => Ok(target),
                _ => Err(Errno::INVAL.into()),
            }
        })
    }

    /// Puts what its metadata server has of an inode on stable storage.
    pub(crate) fn sync(&self, target: Target<'_>) -> Result<(), Fail> {
        self.on_inode(target, |ino| self.requests().meta_on(ino, &MetaRequest::Sync { ino }).map(drop))
    }
}
