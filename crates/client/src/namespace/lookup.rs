//! What a name in a directory leads to, and what the inode's server has of it.

use super::Namespace;
use super::again::{Failing, MAX_GONE};
use super::walk::Place;
use crate::memory::Reached;
use crate::requests::{Came, To};
use bivouac_layout::{Ino, namespace};
use bivouac_proto::attr::{Attr, FileKind, PATH_MAX};
use bivouac_proto::meta::{At, MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};

impl Namespace {
    /// Sends a request about an entry to the shard of its name, wherever that is now.
    pub(crate) fn entry<'n>(
        &self,
        place: &'n Place,
        into: &mut [std::io::IoSliceMut<'_>],
        request: impl Fn(At<'n>) -> MetaRequest<'n>,
    ) -> Result<(MetaReply, usize), Failing> {
        self.opening(place, into, request).map(|(reply, length, _)| (reply, length))
    }

    /// The same for an open, with the descriptor that has come.
    pub(crate) fn opening<'n>(
        &self,
        place: &'n Place,
        into: &mut [std::io::IoSliceMut<'_>],
        request: impl Fn(At<'n>) -> MetaRequest<'n>,
    ) -> Result<(MetaReply, usize, Option<Came>), Failing> {
        let (dir, name) = (place.dir, &place.name[..]);
        for _ in 0..3 {
            let split = self.memory().paths().is_split(dir);
            let to = To::entry(dir, split, name, place.reached);
            match self.requests().meta_opening(to, &request(At { dir, split, name }), into) {
                Err(Failure::Refused(Refusal::DirectorySplit)) => self.memory().paths().learn_split(dir),
                other => return other.map_err(Failing::from),
            }
        }
        Err(Errno::IO.into())
    }

    /// What a name leads to: attributes as the inode's server has them, and the target of a symbolic link.
    pub(crate) fn lookup(
        &self,
        reached: Reached,
        dir: Ino,
        name: &[u8],
    ) -> Result<(Box<Attr>, Vec<u8>), Failing> {
        let mut splits = 0;
        for _ in 0..MAX_GONE {
            let split = self.memory().paths().is_split(dir);
            let shard = namespace::entry_shard(dir, split, name);
            match self.requests().known_name(reached, dir, shard, name) {
                Some(None) => return Err(Errno::NOENT.into()),
                Some(Some((ino, kind))) => {
                    if let Some(known) = self.requests().known_inode(ino) {
                        self.memory().listing().used(dir);
                        return Ok(known);
                    }
                    self.look_ahead(dir, ino, false);
                    if let Some(known) = self.requests().known_inode(ino) {
                        self.memory().listing().missed(dir);
                        return Ok(known);
                    }
                    // The entry's server would only say where to ask. (If the inode is gone, the name is
                    // looked up again.)
                    if self.session().map().primary(ino.shard()) != self.session().map().primary(shard)
                        && let Ok(found) = self.inode(ino, kind)
                    {
                        self.memory().listing().missed(dir);
                        return Ok(found);
                    }
                }
                None => {}
            }
            self.memory().listing().missed(dir);
            let before = self.requests().before(shard);
            let request = MetaRequest::Lookup { at: At { dir, split, name } };
            match self.requests().meta(To::entry(dir, split, name, reached), &request, &[], &mut []) {
                Ok((MetaReply::Entry { attr, target }, _)) => {
                    self.requests().learn_name(before, dir, name, Some((attr.ino, attr.kind)));
                    self.requests().learn_inode(before, &attr, &target);
                    return Ok((attr, target));
                }
                Ok((MetaReply::Elsewhere { ino, kind }, _)) => {
                    match self.inode(ino, kind) {
                        // Its name leads to another inode now, or to none: ask the entry's server.
                        Err(Errno::NOENT) => continue,
                        found => {
                            self.requests().learn_name(before, dir, name, Some((ino, kind)));
                            return Ok(found?);
                        }
                    }
                }
                Ok(_) => return Err(Errno::PROTO.into()),
                Err(Failure::Refused(Refusal::DirectorySplit)) if splits < 3 => {
                    splits += 1;
                    self.memory().paths().learn_split(dir);
                }
                Err(Failure::Refused(Refusal::DirectorySplit)) => return Err(Errno::IO.into()),
                Err(Failure::Errno(Errno::NOENT)) => {
                    self.requests().learn_name(before, dir, name, None);
                    self.was_absent(dir);
                    return Err(Errno::NOENT.into());
                }
                Err(other) => return Err(other.into()),
            }
        }
        Err(Errno::NOENT.into())
    }

    /// Attributes of an inode in another shard than its entry, and the target of a symbolic link.
    pub(crate) fn inode(&self, ino: Ino, kind: FileKind) -> Result<(Box<Attr>, Vec<u8>), Errno> {
        if kind != FileKind::Symlink {
            return Ok((self.attr_of(ino)?, Vec::new()));
        }
        if let Some(known) = self.requests().known_inode(ino) {
            return Ok(known);
        }
        // A symbolic link's target never changes.
        let before = self.requests().before(ino.shard());
        let (attr, target) = (self.attr_of(ino)?, self.link_target(ino)?);
        self.requests().learn_inode(before, &attr, &target);
        Ok((attr, target))
    }

    /// The target of a symbolic link.
    pub(crate) fn link_target(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let mut target = vec![0; PATH_MAX + 1];
        let mut into = [std::io::IoSliceMut::new(&mut target)];
        let (_, len) = self.requests().meta_with(ino, &MetaRequest::ReadLink { ino }, &[], &mut into)?;
        target.truncate(len);
        Ok(target)
    }

    /// Attributes as the inode's server has them.
    pub(crate) fn attr_of(&self, ino: Ino) -> Result<Box<Attr>, Errno> {
        if let Some((attr, _)) = self.requests().known_inode(ino) {
            return Ok(attr);
        }
        let before = self.requests().before(ino.shard());
        match self.requests().meta_on(ino, &MetaRequest::GetAttr { ino })? {
            MetaReply::Attr(attr) => {
                if attr.kind != FileKind::Symlink {
                    self.requests().learn_inode(before, &attr, b"");
                }
                Ok(attr)
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// The directory above, and the name in it.
    pub(crate) fn parent(&self, ino: Ino) -> Result<(Ino, Vec<u8>), Errno> {
        if let Some(known) = self.requests().known_parent(ino) {
            return Ok(known);
        }
        let before = self.requests().before(ino.shard());
        match self.requests().meta_on(ino, &MetaRequest::Parent { ino })? {
            MetaReply::Parent { parent, name } => {
                self.requests().learn_parent(before, ino, parent, &name);
                Ok((parent, name))
            }
            _ => Err(Errno::PROTO),
        }
    }
}
