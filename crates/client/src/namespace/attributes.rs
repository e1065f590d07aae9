//! Attributes of what paths name.

use super::Namespace;
use super::again::{Failing, MAX_GONE};
use super::walk::{Last, Walk};
use crate::error::Fail;
use crate::host;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FILE_MAX, FileKind};
use bivouac_proto::meta::{MetaReply, MetaRequest, SetAttr};

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
    /// The attributes of what a path names; size and times are exact.
    pub(crate) fn stat(&self, start: Ino, path: &[u8], follow: bool) -> Result<Attr, Fail> {
        self.on_found(start, path, follow, |attr| Ok(self.exact(attr)?))
    }

    /// Does something with the inode that a path names. If that inode is gone by then, because its name was
    /// replaced or removed, uses the inode that the path names now.
    pub(super) fn on_found<T>(
        &self,
        start: Ino,
        path: &[u8],
        follow: bool,
        operation: impl Fn(Attr) -> Result<T, Fail>,
    ) -> Result<T, Fail> {
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

    /// Whether this process may access what a path names; `mask` as for `access(2)` (4 read, 2 write, 1
    /// execute).
    pub(crate) fn access(&self, start: Ino, path: &[u8], mask: u32, follow: bool) -> Result<(), Fail> {
        let attr = self.find(start, path, follow)?;
        let directory = attr.kind == FileKind::Directory;
        if mask & !7 != 0 {
            return Err(Errno::INVAL.into());
        }
        if mask != 0 && !self.session().allowed(attr.mode, attr.uid, attr.gid, mask, directory) {
            return Err(Errno::ACCESS.into());
        }
        Ok(())
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
    pub(crate) fn set_attr(&self, start: Ino, path: &[u8], follow: bool, set: SetAttr) -> Result<(), Fail> {
        self.on_found(start, path, follow, |attr| Ok(self.set_attr_of(attr.ino, set)?))
    }

    pub(crate) fn set_attr_of(&self, ino: Ino, set: SetAttr) -> Result<(), Errno> {
        self.requests().meta_on(ino, &MetaRequest::SetAttr { ino, set }).map(|_| ())
    }

    /// Sets the size of a file.
    pub(crate) fn truncate(&self, start: Ino, path: &[u8], size: u64) -> Result<(), Fail> {
        self.on_found(start, path, true, |attr| {
            match attr.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
            if !self.session().allowed(attr.mode, attr.uid, attr.gid, 2, false) {
                return Err(Errno::ACCESS.into());
            }
            self.truncate_of(attr.ino, size)?;
            Ok(())
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

    /// The target of a symbolic link.
    pub(crate) fn readlink(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
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
}
