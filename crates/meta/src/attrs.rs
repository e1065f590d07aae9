//! Attributes and extended attributes, and where a directory is in the tree.

use crate::access::{EXECUTE, READ, SET_GID, WRITE, in_group, mode_after_chown};
use crate::announce::concerns_others;
use crate::answers::repeated;
use crate::draft::Draft;
use crate::error::Op;
use crate::inode::{Body, Inode};
use crate::layouts;
use crate::names::shown;
use crate::shard::Shard;
use crate::split::parts_by_server;
use crate::store::{Caller, Core};
use bivouac_layout::Ino;
use bivouac_proto::auth::Credentials;
use bivouac_proto::meta::{AS_IT_IS, CHOWN_AS_IT_IS, Change, MetaReply, SetAttr, SetTime, XattrMode};
use bivouac_proto::peer::{PeerReply, PeerRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, FileKind, Refusal, Reply, Time};

/// Longest value of an extended attribute, and most of all of one inode with their names, bytes.
const XATTR_MAX: usize = 64 << 10;
/// Longest name of an extended attribute, bytes.
const XATTR_NAME_MAX: usize = 255;

impl Core {
    pub(crate) fn get_attr(&self, ino: Ino) -> Result<Reply, Failure> {
        let found = self.partitions.with(ino.shard(), |locked| shown(locked, ino))?;
        let attr = self.with_parts(found.attr, found.mtime_set)?;
        Ok(Reply::Meta(MetaReply::Attr(Box::new(attr))))
    }

    /// Completes a split directory's attributes with what its parts know, on all servers.
    pub(crate) fn with_parts(&self, mut attr: Attr, mtime_set: Time) -> Result<Attr, Failure> {
        if !attr.split {
            return Ok(attr);
        }
        (attr.size, attr.nlink) = (0, 2);
        for (server, parts) in parts_by_server(&self.outside.map(), attr.ino) {
            match self.ask(server, &PeerRequest::StatParts { dir: attr.ino, parts })? {
                Reply::Peer(PeerReply::Parts { entries, subdirectories, mtime }) => {
                    attr.size += entries;
                    attr.nlink = attr.nlink.saturating_add(subdirectories);
                    if mtime > mtime_set {
                        attr.mtime = attr.mtime.max(mtime);
                        attr.ctime = attr.ctime.max(mtime);
                    }
                }
                _ => return Err(Errno::PROTO.into()),
            }
        }
        Ok(attr)
    }

    pub(crate) fn set_attr(&self, caller: &Caller, ino: Ino, set: SetAttr) -> Result<Reply, Failure> {
        let now = self.outside.now();
        let (reply, owed, mtime_set) = self.partitions.with(ino.shard(), |locked| {
            let owed = |shard: &Shard| shard.announcements.contains_key(&ino);
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok((reply, owed(locked.shard), Time::MIN));
            }
            locked.shard.is_not_leaving(ino)?;
            let inode = locked.shard.inode(ino)?;
            locked.shard.has_a_size(ino, &inode)?;
            may_set(&inode, &set, &caller.credentials)?;
            let mut draft = Draft::new(now);
            let changed = draft.inode(locked.shard, ino).ok_or(Errno::NOENT)?;
            change(changed, &set, &caller.credentials, now);
            let mtime_set = changed.as_directory().map_or(Time::MIN, |d| d.mtime_set);
            let reply = Reply::Meta(MetaReply::Attr(Box::new(changed.attr(ino))));
            if concerns_others(&inode, changed) {
                draft.owe_announcement(locked.shard, ino);
            }
            draft.answer(&caller.id, &reply);
            locked.commit_for(caller, draft)?;
            let writer = crate::opens::only_writer(locked.shard, ino);
            caller.change.set(Change { writer, ..caller.change.get() });
            Ok((reply, owed(locked.shard), mtime_set))
        })?;
        if owed {
            // After the change and before the answer: a client that drops its cached paths now sees the new
            // bits.
            self.announce(ino)?;
        }
        match reply {
            Reply::Meta(MetaReply::Attr(attr)) => {
                let attr = self.with_parts(*attr, mtime_set)?;
                Ok(Reply::Meta(MetaReply::Attr(Box::new(attr))))
            }
            other => Ok(other),
        }
    }

    pub(crate) fn parent(&self, ino: Ino) -> Result<Reply, Failure> {
        self.partitions.with(ino.shard(), |locked| {
            locked.shard.inode_is_free(ino)?;
            let inode = locked.shard.inodes.get(ino).ok_or(Refusal::UnknownDirectory)?;
            let place = inode.as_directory().ok_or(Errno::NOTDIR)?;
            Ok(Reply::Meta(MetaReply::Parent { parent: place.parent, name: place.name.to_vec() }))
        })
    }

    /// An inode for a coordinator's checks. Waits while an intent holds it.
    pub(crate) fn inode_here(&self, ino: Ino) -> Result<(Attr, Ino), Failure> {
        self.partitions.with(ino.shard(), |locked| {
            locked.shard.inode_is_free(ino)?;
            let inode = locked.shard.inode(ino)?;
            Ok((inode.attr(ino), inode.as_directory().map_or(Ino(0), |d| d.parent)))
        })
    }

    pub(crate) fn get_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        let layout = layouts::meaning(name).map(|shown| (shown, self.outside.map()));
        self.partitions.with(ino.shard(), |locked| {
            let inode = locked.shard.inode(ino)?;
            check_xattr(&inode, name, &caller.credentials, false)?;
            if let Some((shown, map)) = &layout {
                out.extend_from_slice(layouts::text(&inode, ino, map, *shown)?.as_bytes());
                return Ok(Reply::Done);
            }
            let found = inode
                .xattrs()
                .binary_search_by(|(n, _)| n.as_slice().cmp(name))
                .map_err(|_| Errno::NODATA)?;
            if let Some((_, value)) = inode.xattrs().get(found) {
                out.extend_from_slice(value);
            }
            Ok(Reply::Done)
        })
    }

    pub(crate) fn list_xattr(&self, caller: &Caller, ino: Ino, out: &mut Vec<u8>) -> Result<Reply, Failure> {
        self.partitions.with(ino.shard(), |locked| {
            let inode = locked.shard.inode(ino)?;
            if inode.as_directory().is_some_and(|d| !d.layout.is_empty()) {
                out.extend_from_slice(layouts::WHOLE);
                out.push(0);
            }
            for (name, _) in inode.xattrs() {
                if caller.credentials.uid == 0 || !name.starts_with(b"trusted.") {
                    out.extend_from_slice(name);
                    out.push(0);
                }
            }
            Ok(Reply::Done)
        })
    }

    pub(crate) fn set_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        mode: XattrMode,
        value: &[u8],
    ) -> Result<Reply, Failure> {
        if let Some(shown) = layouts::meaning(name) {
            return self.set_layout(caller, ino, shown, Some(value), mode);
        }
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok(reply);
            }
            let inode = locked.shard.inode(ino)?;
            check_xattr(&inode, name, &caller.credentials, true)?;
            if value.len() > XATTR_MAX {
                return Err(Errno::TOOBIG.into());
            }
            let found = inode.xattrs().binary_search_by(|(n, _)| n.as_slice().cmp(name));
            match (found, mode) {
                (Ok(_), XattrMode::Create) => return Err(Errno::EXIST.into()),
                (Err(_), XattrMode::Replace) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            let others = inode.xattrs().iter().filter(|(n, _)| n.as_slice() != name);
            let total: usize = others.map(|(n, v)| n.len() + v.len()).sum();
            if total + name.len() + value.len() > XATTR_MAX + XATTR_NAME_MAX {
                return Err(Errno::NOSPC.into());
            }
            let mut draft = Draft::new(now);
            if let Some(inode) = draft.inode(locked.shard, ino) {
                let value = serde_bytes::ByteBuf::from(value);
                inode.change_extra(|extra| match found {
                    Ok(index) => {
                        if let Some(known) = extra.xattrs.get_mut(index) {
                            known.1 = value;
                        }
                    }
                    Err(index) => extra.xattrs.insert(index, (serde_bytes::ByteBuf::from(name), value)),
                });
                inode.ctime = now;
            }
            draft.answer(&caller.id, &Reply::Done);
            locked.commit(draft)?;
            Ok(Reply::Done)
        })
    }

    pub(crate) fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Reply, Failure> {
        if let Some(shown) = layouts::meaning(name) {
            return self.set_layout(caller, ino, shown, None, XattrMode::Replace);
        }
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok(reply);
            }
            let inode = locked.shard.inode(ino)?;
            check_xattr(&inode, name, &caller.credentials, true)?;
            let found = inode
                .xattrs()
                .binary_search_by(|(n, _)| n.as_slice().cmp(name))
                .map_err(|_| Errno::NODATA)?;
            let mut draft = Draft::freeing(now);
            if let Some(inode) = draft.inode(locked.shard, ino) {
                inode.change_extra(|extra| drop(extra.xattrs.remove(found)));
                inode.ctime = now;
            }
            draft.answer(&caller.id, &Reply::Done);
            locked.commit(draft)?;
            Ok(Reply::Done)
        })
    }
}

fn may_set(inode: &Inode, set: &SetAttr, who: &Credentials) -> Op<()> {
    let owner = inode.owner();
    if set.mode.is_some() {
        owner.check_owner(who)?;
    }
    if *set == CHOWN_AS_IT_IS {
        // Also allowed to those who may write to the file. If there are no such bits, nothing changes, and
        // anybody may ask for that.
        let mode = mode_after_chown(owner, who);
        let takes = inode.kind() != FileKind::Directory && mode != inode.mode;
        return if takes { Ok(owner.check_owner_or(who, WRITE).map_err(|_| Errno::PERM)?) } else { Ok(()) };
    }
    let new_owner = set.uid.is_some_and(|uid| uid != AS_IT_IS && uid != inode.uid);
    let foreign_group = set.gid.is_some_and(|gid| gid != inode.gid && !in_group(who, gid));
    if who.uid != 0 && (set.uid.is_some() || set.gid.is_some()) {
        owner.check_owner(who)?;
        if new_owner || foreign_group {
            return Err(Errno::PERM.into());
        }
    }
    let times = [set.atime, set.mtime];
    if times.iter().any(|t| matches!(t, Some(SetTime::To(_)))) {
        owner.check_owner(who)?;
    } else if times.iter().any(|t| t.is_some()) {
        owner.check_owner_or(who, WRITE)?;
    }
    Ok(())
}

fn change(inode: &mut Inode, set: &SetAttr, who: &Credentials, now: Time) {
    if set.uid.is_some() || set.gid.is_some() {
        if inode.kind() != FileKind::Directory {
            inode.mode = mode_after_chown(inode.owner(), who);
        }
        inode.uid = set.uid.filter(|uid| *uid != AS_IT_IS).unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
    }
    if let Some(mode) = set.mode {
        inode.mode = mode & 0o7777;
        if who.uid != 0 && !in_group(who, inode.gid) {
            inode.mode &= !SET_GID;
        }
    }
    let at = |time| match time {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if let Some(time) = set.atime {
        inode.atime = at(time);
    }
    if let Some(time) = set.mtime {
        inode.mtime = at(time);
        match &mut inode.body {
            Body::Blocks(blocks) => blocks.mtime_set = now,
            Body::Directory(directory) => directory.mtime_set = now,
            _ => {}
        }
    }
    if *set != SetAttr::default() {
        inode.ctime = now;
    }
}

/// Whether the attribute may be there at all, and the caller may see or change it.
pub(crate) fn check_xattr(inode: &Inode, name: &[u8], who: &Credentials, write: bool) -> Op<()> {
    if name.len() > XATTR_NAME_MAX {
        return Err(Errno::RANGE.into());
    }
    if name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    let rest = |prefix: &[u8]| name.strip_prefix(prefix).map(|rest| !rest.is_empty());
    let privileged = who.uid == 0;
    let valid = if let Some(valid) = rest(b"user.") {
        if !matches!(inode.kind(), FileKind::File | FileKind::Directory) {
            return Err(if write { Errno::PERM } else { Errno::NODATA }.into());
        }
        inode.owner().check(who, if write { WRITE } else { READ })?;
        valid
    } else if let Some(valid) = rest(b"trusted.") {
        if !privileged {
            return Err(if write { Errno::PERM } else { Errno::NODATA }.into());
        }
        valid
    } else if let Some(valid) = rest(b"security.") {
        if write && !privileged {
            return Err(Errno::PERM.into());
        }
        valid
    } else {
        return Err(Errno::OPNOTSUPP.into());
    };
    if valid { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// Whether a directory may be searched and written.
pub(crate) const CHANGE_DIRECTORY: u16 = EXECUTE | WRITE;
