//! Extended attributes.

use super::Namespace;
use super::target::Target;
use crate::error::Fail;
use bivouac_layout::Ino;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, NAME_MAX};
use bivouac_proto::meta::{MetaRequest, XattrMode};
use std::io::{IoSlice, IoSliceMut};

/// Longest extended attribute value, bytes.
const XATTR_MAX: usize = 64 << 10;

/// Flags of `setxattr` (Linux).
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

impl Namespace {
    /// An extended attribute's value.
    pub(crate) fn get_xattr(&self, target: Target<'_>, name: &[u8]) -> Result<Vec<u8>, Fail> {
        if let Target::Inode(ino) = target {
            if let Some((attr, _)) = self.requests().known_record(ino) {
                none_of(&attr, name)?;
            }
            return Ok(self.get_xattr_of(ino, name)?);
        }
        self.on_found(target, |attr| {
            none_of(&attr, name)?;
            Ok(self.get_xattr_of(attr.ino, name)?)
        })
    }

    pub(crate) fn get_xattr_of(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattr_payload(ino, &MetaRequest::GetXattr { ino, name })
    }

    /// The names of all extended attributes, each ended by NUL.
    pub(crate) fn list_xattr(&self, target: Target<'_>) -> Result<Vec<u8>, Fail> {
        if let Target::Inode(ino) = target {
            return match self.requests().known_record(ino) {
                Some((attr, _)) if !attr.xattrs => Ok(Vec::new()),
                _ => Ok(self.list_xattr_of(ino)?),
            };
        }
        self.on_found(target, |attr| Ok(if attr.xattrs { self.list_xattr_of(attr.ino)? } else { Vec::new() }))
    }

    pub(crate) fn list_xattr_of(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.xattr_payload(ino, &MetaRequest::ListXattr { ino })
    }

    fn xattr_payload(&self, ino: Ino, request: &MetaRequest<'_>) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; XATTR_MAX];
        let (_, len) = self.requests().meta_with(ino, request, &[], &mut [IoSliceMut::new(&mut value)])?;
        value.truncate(len);
        Ok(value)
    }

    /// Sets an extended attribute; `flags` as for `setxattr(2)`.
    pub(crate) fn set_xattr(
        &self,
        target: Target<'_>,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<(), Fail> {
        self.on_inode(target, |ino| self.set_xattr_of(ino, name, value, flags))
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
        self.requests().meta_with(ino, &request, &[IoSlice::new(value)], &mut []).map(|_| ())
    }

    /// Removes an extended attribute.
    pub(crate) fn remove_xattr(&self, target: Target<'_>, name: &[u8]) -> Result<(), Fail> {
        self.on_inode(target, |ino| self.remove_xattr_of(ino, name))
    }

    pub(crate) fn remove_xattr_of(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.requests().meta_on(ino, &MetaRequest::RemoveXattr { ino, name }).map(|_| ())
    }
}

/// The answer, without asking the server, about an extended attribute of an inode that has none. (Not for
/// names that stand for what the file system knows of the file, nor for names that are not valid.)
fn none_of(attr: &Attr, name: &[u8]) -> Result<(), Errno> {
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
