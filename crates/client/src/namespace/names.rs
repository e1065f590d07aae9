//! Making names, and removing them.

use super::Namespace;
use super::again::Failing;
use super::walk::Last;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{FileKind, PATH_MAX};
use bivouac_proto::meta::{At, MetaRequest};

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

impl Namespace {
    /// Makes a directory; `mode` with the umask applied.
    pub(crate) fn mkdir(&self, start: Ino, path: &[u8], mode: u32) -> Result<(), Fail> {
        self.make(start, path, New::Directory { mode: (mode & 0o7777) as u16 })
    }

    /// Makes a file, named pipe or socket; `mode` has its type bits, with the umask applied.
    pub(crate) fn mknod(&self, start: Ino, path: &[u8], mode: u32) -> Result<(), Fail> {
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
    pub(crate) fn symlink(&self, target: &[u8], start: Ino, path: &[u8]) -> Result<(), Fail> {
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
    pub(crate) fn link(
        &self,
        start: Ino,
        path: &[u8],
        to: Ino,
        to_path: &[u8],
        follow: bool,
    ) -> Result<(), Fail> {
        let attr = self.find(start, path, follow)?;
        if attr.kind == FileKind::Directory {
            return Err(self.refused_link(to, to_path));
        }
        self.make(to, to_path, New::Link { ino: attr.ino })
    }

    /// Gives an open file a name. ENOENT if only descriptors opened with O_PATH are left of it.
    pub(crate) fn link_open(
        &self,
        ino: Ino,
        is_directory: bool,
        to: Ino,
        to_path: &[u8],
    ) -> Result<(), Fail> {
        let directory = is_directory || self.attr_of(ino).is_ok_and(|attr| attr.kind == FileKind::Directory);
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
    pub(crate) fn unlink(&self, start: Ino, path: &[u8]) -> Result<(), Fail> {
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
    pub(crate) fn rmdir(&self, start: Ino, path: &[u8]) -> Result<(), Fail> {
        self.at_last(start, path, |_, last| match last {
            Last::Directory(Ino::ROOT | Ino::FORWARDED) => Err(Errno::BUSY.into()),
            Last::Directory(_) if path.ends_with(b"..") || path.ends_with(b"../") => {
                Err(Errno::NOTEMPTY.into())
            }
            Last::Directory(_) => Err(Errno::INVAL.into()),
            Last::Name(place) => {
                self.entry(&place, &mut [], |at| MetaRequest::Rmdir { at })?;
                self.memory().paths().forget_child(place.dir, &place.name);
                Ok(())
            }
        })
    }
}
