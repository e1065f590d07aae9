//! Making names, and removing them.

use super::Namespace;
use super::again::Failing;
use super::target::{Changed, Target};
use super::walk::Last;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{FileKind, PATH_MAX};
use bivouac_proto::meta::{At, MetaReply, MetaRequest};

/// What gets the new name.
#[derive(Clone, Copy)]
enum New<'a> {
    Directory { mode: u16 },
    Node { kind: FileKind, mode: u16, target: &'a [u8] },
    Link { ino: Ino },
}

impl<'a> New<'a> {
    fn request<'r>(self, at: At<'r>) -> MetaRequest<'r>
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
    pub(crate) fn mkdir(&self, start: Ino, path: &[u8], mode: u32) -> Result<Changed, Fail> {
        self.make(start, path, New::Directory { mode: (mode & 0o7777) as u16 })
    }

    /// Makes a file, named pipe or socket; `mode` has its type bits, with the umask applied.
    pub(crate) fn mknod(&self, start: Ino, path: &[u8], mode: u32) -> Result<Changed, Fail> {
        let kind = match mode & 0o170_000 {
            0 | 0o100_000 => FileKind::File,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o040_000 => return Err(Errno::INVAL.into()),
            _ => return Err(Errno::PERM.into()),
        };
        self.make(start, path, New::Node { kind, mode: (mode & 0o7777) as u16, target: b"" })
    }

    /// Makes a character device, or a block device; `mode` has its type bits, with the umask applied.
    pub(crate) fn make_device(
        &self,
        start: Ino,
        path: &[u8],
        mode: u32,
        number: u32,
    ) -> Result<Changed, Fail> {
        let kind = match mode & 0o170_000 {
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return Err(Errno::INVAL.into()),
        };
        let target = &number.to_le_bytes();
        self.make(start, path, New::Node { kind, mode: (mode & 0o7777) as u16, target })
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(&self, target: &[u8], start: Ino, path: &[u8]) -> Result<Changed, Fail> {
        match target.len() {
            0 => return Err(Errno::NOENT.into()),
            1..=PATH_MAX => {}
            _ => return Err(Errno::NAMETOOLONG.into()),
        }
        self.make(start, path, New::Node { kind: FileKind::Symlink, mode: 0o777, target })
    }

    fn make(&self, start: Ino, path: &[u8], new: New<'_>) -> Result<Changed, Fail> {
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
                match self.entry(&place, &mut [], |at| new.request(at))?.0 {
                    MetaReply::Entry { attr, .. } => {
                        Ok(Changed { ino: attr.ino, attr: Some(attr), writer: None })
                    }
                    MetaReply::Elsewhere { ino, .. } => Ok(Changed { ino, attr: None, writer: None }),
                    _ => Err(Errno::PROTO.into()),
                }
            }
        })
    }

    /// Makes another name for a file. Who names that by its number says that it is no directory.
    pub(crate) fn link(&self, target: Target<'_>, to: Ino, to_path: &[u8]) -> Result<Changed, Fail> {
        let ino = match target {
            Target::Inode(ino) => ino,
            Target::Path { start, path, follow } => {
                let attr = self.find(start, path, follow)?;
                if attr.kind == FileKind::Directory {
                    return Err(self.refused_link(to, to_path));
                }
                attr.ino
            }
        };
        self.make(to, to_path, New::Link { ino })
    }

    /// Gives an open file a name.
    pub(crate) fn link_open(
        &self,
        ino: Ino,
        is_directory: bool,
        to: Ino,
        to_path: &[u8],
    ) -> Result<Changed, Fail> {
        let directory = is_directory || self.attr_of(ino).is_ok_and(|attr| attr.kind == FileKind::Directory);
        match directory {
            true => Err(self.refused_link(to, to_path)),
            false => self.link(Target::Inode(ino), to, to_path),
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
