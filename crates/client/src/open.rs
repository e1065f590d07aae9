//! Opening.

use crate::client::Client;
use crate::data::File;
use crate::error::Fail;
use crate::handle::Handle;
use crate::host::OwnFd;
use crate::namespace::{Failing, Last, Place, Target, Walk};
use crate::opening::{Entry, Found, FoundAt, Opened, Registered, how};
use bivouac_layout::{Ino, namespace};
use bivouac_node::SlotId;
use bivouac_node::release::{KIND_DIRECTORY, KIND_FILE};
use bivouac_proto::attr::{Attr, FileKind, NAME_MAX};
use bivouac_proto::meta::{Create, OpenHow};
use bivouac_proto::{Errno, OpenId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file that was opened with [`Client::open_file`].
pub struct OpenedFile {
    /// The description.
    pub handle: Arc<Handle>,
    /// The file's attributes, exact.
    pub attr: Attr,
    /// Whether it was made just now.
    pub created: bool,
}

/// Whether flags of `open(2)` ask for a file without a name. (O_TMPFILE contains O_DIRECTORY.)
pub fn is_temporary(flags: i32) -> bool {
    flags & libc::O_TMPFILE == libc::O_TMPFILE && flags & libc::O_PATH == 0
}

impl Client {
    /// Opens; `flags` as for `open(2)`, `mode` with the umask applied. The description has no placeholder
    /// yet: make one in the node's table, or close the description with [`Client::closed`].
    pub fn open(
        self: &Arc<Self>,
        start: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
    ) -> Result<Arc<Handle>, Fail> {
        self.open_after(|_| Ok(()), start, path, flags, mode).map(|(handle, ())| handle)
    }

    /// Opens a file for a program that shows it under names of its own: a mount. Nothing but a regular file is opened, by its
    /// number or by its name; a symbolic link at the end of a path is ELOOP unless the target says that it is followed. With
    /// O_CREAT a file of this name is made if there is none, with O_TMPFILE one without a name, for the directory. `mode` with
    /// the umask applied.
    ///
    /// The description is only this process's, which closes it with [`Client::close_waiting`]: it has no placeholder, and no
    /// name that others could know it by.
    pub fn open_file<'p>(
        self: &Arc<Self>,
        target: impl Into<Target<'p>>,
        flags: i32,
        mode: u32,
    ) -> Result<OpenedFile, Fail> {
        let target = target.into();
        let described = self.described(
            flags,
            |_| Ok(()),
            |open| {
                let found = match target {
                    Target::Inode(dir) if is_temporary(flags) => {
                        Found::File(self.open_new_nameless(dir, flags, (mode & 0o7777) as u16, open)?)
                    }
                    Target::Inode(ino) => Found::File(self.open_numbered(ino, flags, open)?),
                    Target::Path { start, path, follow } => {
                        let flags = if follow { flags } else { flags | libc::O_NOFOLLOW };
                        self.open_found(start, path, flags, mode, open)?.0
                    }
                };
                match found {
                    Found::File(_) => Ok((found, None)),
                    Found::Directory(_) | Found::Path(_) => Err(Errno::ISDIR.into()),
                }
            },
        )?;
        let (attr, created) = described.file.ok_or(Errno::PROTO)?;
        match self.namespace().exact(*attr) {
            Ok(attr) => Ok(OpenedFile { handle: Arc::new(described.handle), attr, created }),
            Err(errno) => {
                self.close_waiting(described.handle.id());
                Err(errno.into())
            }
        }
    }

    /// Opens for a program that has no descriptor for it, and closes it with [`Client::close_alone`]. What comes with it is
    /// held until then: by it the agent knows that the program is there, also if it does not see its number, and that it has not
    /// executed another program. By its number, only a file is opened, and nothing is made.
    pub fn open_held<'p>(
        self: &Arc<Self>,
        target: impl Into<Target<'p>>,
        flags: i32,
        mode: u32,
    ) -> Result<(Arc<Handle>, OwnFd), Fail> {
        let handle = match target.into() {
            Target::Inode(ino) => {
                let find = |open| Ok((Found::File(self.open_numbered(ino, flags, open)?), None));
                self.opened(flags, |_| Ok(()), find)?.0
            }
            Target::Path { start, path, follow } => {
                let flags = if follow { flags } else { flags | libc::O_NOFOLLOW };
                self.open(start, path, flags, mode)?
            }
        };
        match self.session().table().placeholder(handle.id(), true) {
            Ok(placeholder) => Ok((handle, OwnFd::new(self.session().host(), placeholder))),
            Err(error) => {
                self.close_alone(handle.id());
                Err(Errno(error.raw_errno() as u16).into())
            }
        }
    }

    /// Opens, as [`Client::open`]. `before` runs as soon as the description has its slot in the table; if it
    /// fails, nothing is opened, made or truncated.
    pub fn open_after<T>(
        self: &Arc<Self>,
        before: impl FnOnce(SlotId) -> Result<T, Errno>,
        start: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
    ) -> Result<(Arc<Handle>, T), Fail> {
        self.opened(flags, before, |open| self.open_found(start, path, flags, mode, open))
    }

    /// Opens what a path names; with the directory and the name where it was found.
    fn open_found(
        &self,
        start: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
        open: OpenId,
    ) -> Result<FoundAt, Fail> {
        if is_temporary(flags) {
            return Ok((self.open_temporary(start, path, flags, mode, open)?, None));
        }
        let mut named = None;
        let found = self.namespace().at_any_last(start, path, false, |walk, last| {
            named = match &last {
                Last::Name(place) => Some((place.dir, place.name.clone())),
                Last::Directory(_) => None,
            };
            self.open_last(walk, last, flags, mode, open)
        });
        Ok((found?, named))
    }

    /// Opens the file of an open description anew, as opening `/proc/self/fd/N` does: permissions are
    /// checked, O_TRUNC truncates, and the new description has its own position and flags. The file need not
    /// have a name any more. ELOOP for a symbolic link and with O_NOFOLLOW, EEXIST with O_CREAT and O_EXCL,
    /// ENXIO for what is no file. `mode` is that of a file that O_TMPFILE makes in a directory; `before` is
    /// as for [`Client::open_after`].
    pub fn open_again<T>(
        self: &Arc<Self>,
        before: impl FnOnce(SlotId) -> Result<T, Errno>,
        handle: &Handle,
        flags: i32,
        mode: u32,
    ) -> Result<(Arc<Handle>, T), Fail> {
        if is_temporary(flags) {
            return self.open_after(before, handle.ino(), b"", flags, mode);
        }
        let named = self.session().table().slot(handle.id()).and_then(|slot| slot.name());
        let named = named.map(|(dir, name)| (Ino(dir), name));
        self.opened(flags, before, |open| {
            Ok((self.open_inode(handle.ino(), handle.is_directory(), flags, open)?, named))
        })
    }

    fn opened<T>(
        self: &Arc<Self>,
        flags: i32,
        before: impl FnOnce(SlotId) -> Result<T, Errno>,
        find: impl FnOnce(OpenId) -> Result<FoundAt, Fail>,
    ) -> Result<(Arc<Handle>, T), Fail> {
        let described = self.described(flags, before, find)?;
        Ok((Arc::new(described.handle), described.before))
    }

    fn open_last(
        &self,
        walk: &mut Walk<'_, '_>,
        last: Last,
        flags: i32,
        mode: u32,
        open: OpenId,
    ) -> Result<Found, Failing> {
        let create = flags & libc::O_CREAT != 0 && flags & libc::O_PATH == 0;
        let exclusive = create && flags & libc::O_EXCL != 0;
        let follow = flags & libc::O_NOFOLLOW == 0 && !exclusive;
        let length = last.check_length();
        let place = match last {
            Last::Directory(_) if exclusive => return Err(Errno::EXIST.into()),
            Last::Directory(ino) => return self.open_directory(ino, flags, ino == walk.start()),
            Last::Name(place) => place,
        };
        let (dir, slash) = (place.dir, place.slash);
        if create && slash {
            // The error does not depend on the name; but only a request can find out that the directory was
            // removed.
            let name = place.name.get(..NAME_MAX).unwrap_or(&place.name);
            return match self.namespace().lookup(place.reached, dir, name) {
                Err(refused @ Failing::Refused(_)) => Err(refused),
                // Nor may everybody look for names there.
                Err(Failing::Fail(Fail::Errno(Errno::ACCESS))) => Err(Errno::ACCESS.into()),
                _ => Err(Errno::ISDIR.into()),
            };
        }
        length?;
        let how = OpenHow {
            directory: flags & libc::O_DIRECTORY != 0 || slash,
            create: create.then_some(Create { mode: (mode & 0o7777) as u16, exclusive }),
            ..how(flags)
        };
        if flags & libc::O_PATH != 0 {
            return self.open_path(walk, place, how.directory, follow);
        }
        if !create && let Some(known) = self.open_known(walk, &place, flags, follow)? {
            return Ok(known);
        }
        let Opened { registered, target } = match self.open_entry(&place, how, open)? {
            Entry::Opened(opened) => opened,
            Entry::Directory(ino) => return self.open_directory(ino, flags, false),
        };
        match registered.attr.kind {
            FileKind::File => Ok(Found::File(registered)),
            FileKind::Directory if create => Err(Errno::ISDIR.into()),
            FileKind::Directory => Ok(Found::Directory(registered.attr.ino)),
            FileKind::Symlink if exclusive => Err(Errno::EXIST.into()),
            FileKind::Symlink if follow || slash => {
                walk.follow(dir, &target, slash)?;
                Err(Failing::Follow)
            }
            FileKind::Symlink if how.directory => Err(Errno::NOTDIR.into()),
            FileKind::Symlink => Err(Errno::LOOP.into()),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Err(Errno::NXIO.into())
            }
        }
    }

    /// Handles what needs no open at a server: a directory is opened, other kinds are refused or (symbolic
    /// links) followed.
    fn open_known(
        &self,
        walk: &mut Walk<'_, '_>,
        place: &Place,
        flags: i32,
        follow: bool,
    ) -> Result<Option<Found>, Failing> {
        let shard = namespace::entry_shard(place.dir, self.memory().paths().is_split(place.dir), &place.name);
        match self.requests().known_name(place.reached, place.dir, shard, &place.name) {
            Some(None) => Err(Errno::NOENT.into()),
            Some(Some((ino, FileKind::Directory))) => {
                if self.requests().known_inode(ino).is_none() {
                    self.namespace().look_ahead(place.dir, ino, false);
                }
                self.open_directory(ino, flags, false).map(Some)
            }
            Some(Some((ino, FileKind::Symlink))) if follow => match self.requests().known_inode(ino) {
                Some((_, target)) => {
                    walk.follow(place.dir, &target, place.slash)?;
                    Err(Failing::Follow)
                }
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// O_TMPFILE: a file without a name, in the directory that the path names.
    fn open_temporary(
        &self,
        start: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
        open: OpenId,
    ) -> Result<Found, Fail> {
        if !how(flags).write {
            return Err(Errno::INVAL.into());
        }
        let directory = self.namespace().find(start, path, flags & libc::O_NOFOLLOW == 0)?;
        if directory.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        match self.open_new_nameless(directory.ino, flags, (mode & 0o7777) as u16, open) {
            Ok(registered) => Ok(Found::File(registered)),
            // The directory was removed.
            Err(Errno::STALE) => Err(Errno::NOENT.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// `start`: the path starts from it, so that it may have been removed since.
    fn open_directory(&self, ino: Ino, flags: i32, start: bool) -> Result<Found, Failing> {
        if flags & libc::O_PATH != 0 {
            return Ok(Found::Path(ino));
        }
        if flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) != 0 {
            return Err(Errno::ISDIR.into());
        }
        let attr = match self.namespace().attr_of(ino) {
            Err(Errno::NOENT) if start => return Ok(Found::Directory(ino)),
            found => found?,
        };
        if !self.session().allowed(attr.mode, attr.uid, attr.gid, 4, true) {
            return Err(Errno::ACCESS.into());
        }
        Ok(Found::Directory(ino))
    }

    fn open_inode(&self, ino: Ino, directory: bool, flags: i32, open: OpenId) -> Result<Found, Fail> {
        if flags & libc::O_NOFOLLOW != 0 {
            return Err(Errno::LOOP.into());
        }
        let path_only = flags & libc::O_PATH != 0;
        if !path_only && flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
            return Err(Errno::EXIST.into());
        }
        let directory = directory || self.namespace().attr_of(ino)?.kind == FileKind::Directory;
        if directory {
            return self.open_directory(ino, flags, true).map_err(|failing| match failing {
                Failing::Fail(fail) => fail,
                _ => Errno::IO.into(),
            });
        }
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno::NOTDIR.into());
        }
        if path_only {
            return Ok(Found::Path(ino));
        }
        self.open_numbered(ino, flags, open).map(Found::File)
    }

    /// Opens a regular file by its number.
    fn open_numbered(&self, ino: Ino, flags: i32, open: OpenId) -> Result<Registered, Fail> {
        let how = OpenHow { directory: false, ..how(flags) };
        let registered = self.open_registered(ino, how, open)?.registered;
        match registered.attr.kind {
            FileKind::File => Ok(registered),
            FileKind::Directory => Err(Errno::ISDIR.into()),
            FileKind::Symlink => Err(Errno::LOOP.into()),
            _ => Err(Errno::NXIO.into()),
        }
    }

    fn open_path(
        &self,
        walk: &mut Walk<'_, '_>,
        place: Place,
        directory: bool,
        follow: bool,
    ) -> Result<Found, Failing> {
        let attr = self.namespace().find_last(walk, Last::Name(place), follow)?;
        match attr.kind {
            FileKind::Directory => Ok(Found::Directory(attr.ino)),
            _ if directory => Err(Errno::NOTDIR.into()),
            _ => Ok(Found::Path(attr.ino)),
        }
    }

    /// A process's view of a description that it got by fork, by exec, or through a socket.
    pub fn adopt(self: &Arc<Self>, id: SlotId) -> Result<Arc<Handle>, Errno> {
        let slot = self.session().table().slot(id).ok_or(Errno::BADF)?;
        let ino = Ino(slot.ino.load(Ordering::Relaxed));
        let kind = slot.kind.load(Ordering::Acquire);
        let handle = Handle::new(self, File::new(id, ino, kind == KIND_DIRECTORY));
        if kind == KIND_FILE
            && let Ok(attr) = self.namespace().attr_of(ino)
        {
            handle.data().learn(&attr);
        }
        Ok(Arc::new(handle))
    }
}
