//! Calls on paths: attributes, directories, links, renaming, extended attributes.

use crate::error::Fail;
use crate::handle::Handle;
use crate::host;
use crate::rpc::To;
use crate::session::Client;
use crate::walk::{Again, Failing, Last, MAX_GONE, Place, Walk};
use bivouac_layout::{Ino, Map, ServerState};
use bivouac_proto::attr::{Attr, FILE_MAX, FileKind, NAME_MAX, PATH_MAX};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::{At, MetaReply, MetaRequest, RenameMode, SetAttr, XattrMode};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use std::io::{IoSlice, IoSliceMut};

/// Longest extended attribute value, bytes.
const XATTR_MAX: usize = 64 << 10;
/// Flags of `renameat2` and `setxattr` (Linux).
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// What `statfs` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Storage of all servers that are up, bytes.
    pub total: u64,
    /// Still free, bytes.
    pub available: u64,
    /// Block size of new files, bytes.
    pub block_size: u32,
    /// Inodes that there are.
    pub inodes: u64,
}

impl StatFs {
    /// Inodes that can still be made. Nothing limits them but room: one for each page of storage that is
    /// free.
    pub fn free_inodes(&self) -> u64 {
        self.available / 4096
    }
}

/// What gets the new name.
#[derive(Clone, Copy)]
pub(crate) enum New<'a> {
    Directory { mode: u16 },
    Node { kind: FileKind, mode: u16, target: &'a [u8] },
    Link { ino: Ino },
}

impl<'a> New<'a> {
    pub(crate) fn request<'r>(self, at: At<'r>) -> MetaRequest<'r>
    where
        'a: 'r,
    {
        match self {
            New::Directory { mode } => MetaRequest::Mkdir { at, mode },
            New::Node { kind, mode, target } => MetaRequest::MakeNode { at, kind, mode, target },
            New::Link { ino } => MetaRequest::Link { ino, at },
        }
    }
}

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

impl Client {
    /// The attributes of what a path names; size and times are exact.
    pub fn stat(&self, start: Ino, path: &[u8], follow: bool) -> Result<Attr, Fail> {
        self.on_found(start, path, follow, |attr| Ok(self.exact(attr)?))
    }

    /// Does something with the inode that a path names. If that inode is gone by then, because its name was
    /// replaced or removed, uses the inode that the path names now.
    fn on_found<T>(
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
    pub fn access(&self, start: Ino, path: &[u8], mask: u32, follow: bool) -> Result<(), Fail> {
        let attr = self.find(start, path, follow)?;
        let directory = attr.kind == FileKind::Directory;
        if mask & !7 != 0 {
            return Err(Errno::INVAL.into());
        }
        if mask != 0 && !self.allowed(attr.mode, attr.uid, attr.gid, mask, directory) {
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

    /// Makes a directory; `mode` with the umask applied.
    pub fn mkdir(&self, start: Ino, path: &[u8], mode: u32) -> Result<(), Fail> {
        self.make(start, path, New::Directory { mode: (mode & 0o7777) as u16 })
    }

    /// Makes a file, named pipe or socket; `mode` has its type bits, with the umask applied.
    pub fn mknod(&self, start: Ino, path: &[u8], mode: u32) -> Result<(), Fail> {
        let kind = match mode & 0o170_000 {
            0 | 0o100_000 => FileKind::File,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o040_000 => return Err(Errno::INVAL.into()),
            _ => return Err(Errno::PERM.into()),
        };
        self.make(start, path, New::Node { kind, mode: (mode & 0o7777) as u16, target: b"" })
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: &[u8], start: Ino, path: &[u8]) -> Result<(), Fail> {
        match target.len() {
            0 => return Err(Errno::NOENT.into()),
            1..=PATH_MAX => {}
            _ => return Err(Errno::NAMETOOLONG.into()),
        }
        self.make(start, path, New::Node { kind: FileKind::Symlink, mode: 0o777, target })
    }

    fn make(&self, start: Ino, path: &[u8], new: New<'_>) -> Result<(), Fail> {
        self.at_last(start, path, |_, last| match last {
            Last::Directory(_) => Err(Errno::EXIST.into()),
            Last::Name(place) => {
                if let New::Link { ino } = new
                    && ino.is_forwarded() != place.dir.is_forwarded()
                {
                    return Err(Errno::XDEV.into());
                }
                if place.slash && !matches!(new, New::Directory { .. }) {
                    return Err(match self.lookup(place.reached, place.dir, &place.name) {
                        Ok(_) => Errno::EXIST.into(),
                        Err(failing) => failing,
                    });
                }
                self.entry(&place, &mut [], |at| new.request(at)).map(|_| ())
            }
        })
    }

    /// Makes another name for a file.
    pub fn link(&self, start: Ino, path: &[u8], to: Ino, to_path: &[u8], follow: bool) -> Result<(), Fail> {
        let attr = self.find(start, path, follow)?;
        if attr.kind == FileKind::Directory {
            return Err(self.refused_link(to, to_path));
        }
        self.make(to, to_path, New::Link { ino: attr.ino })
    }

    /// Gives an open file a name. ENOENT if only descriptors opened with O_PATH are left of it.
    pub fn link_open(&self, handle: &Handle, to: Ino, to_path: &[u8]) -> Result<(), Fail> {
        let ino = handle.ino();
        let directory =
            handle.is_directory() || self.attr_of(ino).is_ok_and(|attr| attr.kind == FileKind::Directory);
        if directory {
            Err(self.refused_link(to, to_path))
        } else {
            self.make(to, to_path, New::Link { ino })
        }
    }

    /// The error for linking a directory; errors of the new name come first.
    fn refused_link(&self, to: Ino, to_path: &[u8]) -> Fail {
        let looked = self.at_last(to, to_path, |_, last| match last {
            Last::Directory(_) => Err(Errno::EXIST.into()),
            Last::Name(place) => match self.lookup(place.reached, place.dir, &place.name) {
                Ok(_) => Err(Errno::EXIST.into()),
                Err(Failing::Fail(Fail::Errno(Errno::NOENT))) if !place.slash => Ok(()),
                Err(other) => Err(other),
            },
        });
        looked.err().unwrap_or(Errno::PERM.into())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, start: Ino, path: &[u8]) -> Result<(), Fail> {
        self.at_last(start, path, |_, last| match last {
            Last::Directory(_) => Err(Errno::ISDIR.into()),
            Last::Name(place) if place.slash => {
                match self.lookup(place.reached, place.dir, &place.name)?.0.kind {
                    FileKind::Directory => Err(Errno::ISDIR.into()),
                    _ => Err(Errno::NOTDIR.into()),
                }
            }
            Last::Name(place) => self.entry(&place, &mut [], |at| MetaRequest::Unlink { at }).map(|_| ()),
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, start: Ino, path: &[u8]) -> Result<(), Fail> {
        self.at_last(start, path, |_, last| match last {
            Last::Directory(Ino::ROOT | Ino::FORWARDED) => Err(Errno::BUSY.into()),
            Last::Directory(_) if path.ends_with(b"..") || path.ends_with(b"../") => {
                Err(Errno::NOTEMPTY.into())
            }
            Last::Directory(_) => Err(Errno::INVAL.into()),
            Last::Name(place) => {
                self.entry(&place, &mut [], |at| MetaRequest::Rmdir { at })?;
                self.paths().forget_child(place.dir, &place.name);
                Ok(())
            }
        })
    }

    /// Renames; `flags` as for `renameat2(2)`.
    pub fn rename(&self, start: Ino, path: &[u8], to: Ino, to_path: &[u8], flags: u32) -> Result<(), Fail> {
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL.into()),
        };
        let mut again = Again::default();
        loop {
            let mut dirs = None;
            match self.try_rename((start, path), (to, to_path), mode, again.always_asks, &mut dirs) {
                Ok(()) => return Ok(()),
                Err(failing) => {
                    let (from, to) = dirs.unwrap_or_default();
                    if let Failing::Refused(Refusal::UnknownDirectory) = failing {
                        self.paths().forget_directory(from);
                        self.paths().forget_directory(to);
                    }
                    // The refusal does not say which of the two is unknown. If walking again finds the same
                    // two, it was removed.
                    again.after(failing, Ino(from.0 ^ to.0.rotate_left(32)), false)?;
                }
            }
        }
    }

    /// One attempt; `dirs` are the directories of the two names, once they are found.
    fn try_rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        always_asks: bool,
        dirs: &mut Option<(Ino, Ino)>,
    ) -> Result<(), Failing> {
        let last_of = |(start, path)| self.at_any_last(start, path, always_asks, |_, last| Ok(last));
        let from = last_of(from)?;
        let to = match (last_of(to), &from) {
            (Err(fail), Last::Name(place)) => {
                // An error about the first path comes first, even if only this request finds out that the
                // path is out of date.
                self.confirm(place)?;
                return Err(fail.into());
            }
            (to, _) => to?,
        };
        let Last::Name(from) = from else {
            if let Last::Name(to) = &to {
                // No request follows that would find out whether the other path is out of date.
                self.confirm(to)?;
            }
            return Err(Errno::BUSY.into());
        };
        let Last::Name(to) = to else {
            self.confirm(&from)?;
            let exists = mode == RenameMode::NoReplace;
            return Err(if exists { Errno::EXIST } else { Errno::BUSY }.into());
        };
        if from.dir.is_forwarded() != to.dir.is_forwarded() {
            return Err(Errno::XDEV.into());
        }
        *dirs = Some((from.dir, to.dir));
        if let Err(failing) = self.check_rename(&from, &to, mode) {
            self.confirm(&from)?;
            self.confirm(&to)?;
            return Err(failing);
        }
        let (from_split, to_split) = (self.paths().is_split(from.dir), self.paths().is_split(to.dir));
        let request = MetaRequest::Rename {
            from: At { dir: from.dir, split: from_split, name: &from.name },
            to: At { dir: to.dir, split: to_split, name: &to.name },
            mode,
        };
        let reached = from.reached.and(to.reached);
        match self.meta(To::entry(from.dir, from_split, &from.name, reached), &request, &[], &mut []) {
            Ok(_) => {
                self.paths().forget_child(from.dir, &from.name);
                self.paths().forget_child(to.dir, &to.name);
                Ok(())
            }
            Err(Failure::Refused(Refusal::DirectorySplit)) => {
                // The refusal does not say which of the two.
                let mut learned = false;
                for (dir, known) in [(from.dir, from_split), (to.dir, to_split)] {
                    if !known && self.attr_of(dir)?.split {
                        self.paths().learn_split(dir);
                        learned = true;
                    }
                }
                if learned { Err(Refusal::DirectorySplit.into()) } else { Err(Errno::IO.into()) }
            }
            Err(Failure::Errno(errno @ (Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY))) => {
                Err(self.refused_rename(&from, &to, mode)?.unwrap_or(errno).into())
            }
            Err(Failure::Errno(errno)) => {
                // Perhaps an error of the first path, whose server is asked first. (A server that does not
                // answer has said nothing about any path, and may have been waited for.)
                if errno != Errno::IO && to.reached.cached && to.dir != from.dir {
                    self.confirm(&to)?;
                }
                Err(errno.into())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Fails if a server finds that the cached path to a name is out of date.
    fn confirm(&self, place: &Place) -> Result<(), Failing> {
        let name = place.name.get(..NAME_MAX).unwrap_or(&place.name);
        match self.lookup(place.reached, place.dir, name) {
            Err(refused @ Failing::Refused(_)) => Err(refused),
            _ => Ok(()),
        }
    }

    /// Linux looks at whether one of the two lies in the other before it looks at what they are.
    fn refused_rename(&self, from: &Place, to: &Place, mode: RenameMode) -> Result<Option<Errno>, Failing> {
        let (moved, _) = self.lookup(from.reached, from.dir, &from.name)?;
        if moved.kind == FileKind::Directory && self.lies_in(to.dir, moved.ino)? {
            return Ok(Some(Errno::INVAL));
        }
        let (target, _) = self.lookup(to.reached, to.dir, &to.name)?;
        if target.kind == FileKind::Directory && self.lies_in(from.dir, target.ino)? {
            return Ok(Some(if mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY }));
        }
        Ok(None)
    }

    /// Whether a directory is `above`, or lies somewhere in it.
    fn lies_in(&self, mut dir: Ino, above: Ino) -> Result<bool, Errno> {
        while dir != above {
            if matches!(dir, Ino::ROOT | Ino::FORWARDED) {
                return Ok(false);
            }
            dir = self.parent(dir)?.0;
        }
        Ok(true)
    }

    /// Checks what the server cannot: a name with a slash after it must be a directory's, and names have a
    /// greatest length.
    fn check_rename(&self, from: &Place, to: &Place, mode: RenameMode) -> Result<(), Failing> {
        let short = |place: &Place| place.name.len() <= NAME_MAX;
        if !from.slash && !to.slash && short(from) && short(to) {
            return Ok(());
        }
        let kind = |place: &Place| {
            if !short(place) {
                return Err(Errno::NAMETOOLONG.into());
            }
            self.lookup(place.reached, place.dir, &place.name).map(|(attr, _)| attr.kind)
        };
        let moved = kind(from)?;
        let target = match kind(to) {
            Ok(kind) => Some(kind),
            Err(Failing::Fail(Fail::Errno(Errno::NOENT))) => None,
            Err(failing) => return Err(failing),
        };
        let directory = |kind: FileKind| kind == FileKind::Directory;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            (RenameMode::Exchange, Some(kind)) if to.slash && !directory(kind) => {
                return Err(Errno::NOTDIR.into());
            }
            _ => {}
        }
        let slash = from.slash || to.slash && mode != RenameMode::Exchange;
        if slash && !directory(moved) { Err(Errno::NOTDIR.into()) } else { Ok(()) }
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
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

    /// Sets attributes.
    pub fn set_attr(&self, start: Ino, path: &[u8], follow: bool, set: SetAttr) -> Result<(), Fail> {
        self.on_found(start, path, follow, |attr| Ok(self.set_attr_of(attr.ino, set)?))
    }

    pub(crate) fn set_attr_of(&self, ino: Ino, set: SetAttr) -> Result<(), Errno> {
        self.meta_on(ino, &MetaRequest::SetAttr { ino, set }).map(|_| ())
    }

    /// Sets the size of a file.
    pub fn truncate(&self, start: Ino, path: &[u8], size: u64) -> Result<(), Fail> {
        self.on_found(start, path, true, |attr| {
            match attr.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
            if !self.allowed(attr.mode, attr.uid, attr.gid, 2, false) {
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
        if self.size_limit().get().is_some_and(|limit| size > limit)
            && self.exact(*self.attr_of(ino)?)?.size < size
        {
            return Err(host::exceeded());
        }
        match self.meta_on(ino, &MetaRequest::Truncate { ino, size })? {
            MetaReply::Attr(attr) => Ok(attr),
            _ => Err(Errno::PROTO),
        }
    }

    /// An extended attribute's value.
    pub fn get_xattr(&self, start: Ino, path: &[u8], follow: bool, name: &[u8]) -> Result<Vec<u8>, Fail> {
        self.on_found(start, path, follow, |attr| {
            none_of(&attr, name)?;
            Ok(self.get_xattr_of(attr.ino, name)?)
        })
    }

    pub(crate) fn get_xattr_of(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattr_payload(ino, &MetaRequest::GetXattr { ino, name })
    }

    /// The names of all extended attributes, each ended by NUL.
    pub fn list_xattr(&self, start: Ino, path: &[u8], follow: bool) -> Result<Vec<u8>, Fail> {
        self.on_found(start, path, follow, |attr| {
            Ok(if attr.xattrs { self.list_xattr_of(attr.ino)? } else { Vec::new() })
        })
    }

    pub(crate) fn list_xattr_of(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.xattr_payload(ino, &MetaRequest::ListXattr { ino })
    }

    fn xattr_payload(&self, ino: Ino, request: &MetaRequest<'_>) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; XATTR_MAX];
        let (_, len) = self.meta_with(ino, request, &[], &mut [IoSliceMut::new(&mut value)])?;
        value.truncate(len);
        Ok(value)
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
        self.on_found(start, path, follow, |attr| Ok(self.set_xattr_of(attr.ino, name, value, flags)?))
    }

    pub(crate) fn set_xattr_of(&self, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<(), Errno> {
        let mode = match flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        if value.len() > XATTR_MAX {
            return Err(Errno::NOSPC);
        }
        let request = MetaRequest::SetXattr { ino, name, mode };
        self.meta_with(ino, &request, &[IoSlice::new(value)], &mut []).map(|_| ())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, start: Ino, path: &[u8], follow: bool, name: &[u8]) -> Result<(), Fail> {
        self.on_found(start, path, follow, |attr| Ok(self.remove_xattr_of(attr.ino, name)?))
    }

    pub(crate) fn remove_xattr_of(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.meta_on(ino, &MetaRequest::RemoveXattr { ino, name }).map(|_| ())
    }

    /// How full the file system is that an inode lies on: the backend's, for what is forwarded.
    pub fn statfs_of(&self, ino: Ino) -> Result<StatFs, Errno> {
        if !ino.is_forwarded() {
            return self.statfs();
        }
        match self.space_of(ino)? {
            DataReply::Space { total, available, inodes, .. } => {
                Ok(StatFs { total, available, block_size: 4096, inodes })
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// How full the storage of the servers that are up is, in bytes of files with the deployment's number of copies.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        self.by_newest_map(|map| self.statfs_by(map))
    }

    fn statfs_by(&self, map: &Map) -> Result<StatFs, Errno> {
        let mut sum = StatFs { total: 0, available: 0, block_size: map.block_size, inodes: 0 };
        let mut counted = Vec::new();
        for server in map.servers.iter().filter(|s| s.state == ServerState::Up) {
            let (DataReply::Space { total, available, device, inodes }, ..) =
                self.data((server.id, 0), DataRequest::Space, &[], &mut [])?
            else {
                return Err(Errno::PROTO);
            };
            sum.inodes = sum.inodes.saturating_add(inodes);
            if !counted.contains(&(server.node, device)) {
                counted.push((server.node, device));
                sum.total = sum.total.saturating_add(total);
                sum.available = sum.available.saturating_add(available);
            }
        }
        let copies = u64::from(map.replicas.max(1));
        (sum.total, sum.available) = (sum.total / copies, sum.available / copies);
        Ok(sum)
    }

    /// The canonical path of what a path names: absolute, without links, `.` and `..`; begins with the mount.
    pub fn real_path(&self, start: Ino, path: &[u8]) -> Result<Vec<u8>, Fail> {
        self.at_last(start, path, |walk, last| match last {
            Last::Directory(ino) => Ok(self.path_of(ino)?),
            Last::Name(place) => {
                self.find_last(walk, Last::Name(place.clone()), true)?;
                let mut path = self.path_of(place.dir)?;
                path.push(b'/');
                path.extend_from_slice(&place.name);
                Ok(path)
            }
        })
    }

    /// The path of a directory, from its number: absolute, beginning with the mount point or the forwarded directory. ENOENT if it was
    /// removed.
    pub fn path_of(&self, dir: Ino) -> Result<Vec<u8>, Errno> {
        let mut names = Vec::new();
        let mut at = dir;
        while !matches!(at, Ino::ROOT | Ino::FORWARDED) {
            let (parent, name) =
                self.parent(at).map_err(|e| if e == Errno::STALE { Errno::NOENT } else { e })?;
            names.push(name);
            at = parent;
            // Deeper than any path that could have been given; moves under way could lead in a circle.
            if names.len() > PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
        }
        let mut path = self.path_to(dir).to_vec();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }
}

/// The answer, without asking the server, about an extended attribute of an inode that has none. (Not for
/// names that stand for what the file system knows of the file, nor for names that are not valid.)
pub(crate) fn none_of(attr: &Attr, name: &[u8]) -> Result<(), Errno> {
    const ASKED: &[u8] = b"user.bivouac.";
    if attr.xattrs || name.len() > NAME_MAX || name.starts_with(ASKED) {
        return Ok(());
    }
    // No user attribute can be read without the permission to read, which the server checks.
    let kept = [&b"security."[..], b"trusted."]
        .iter()
        .any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
    if kept {
        Err(Errno::NODATA)
    } else if name.starts_with(b"system.") {
        Err(Errno::OPNOTSUPP)
    } else {
        Ok(())
    }
}
