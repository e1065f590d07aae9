//! Making lazy files: names, sizes and attributes of files whose contents are still in the backend.

use crate::access::Owner;
use crate::answers::repeated;
use crate::inode::{Body, Inode};
use crate::names::{check_name, make, may_make, shard_of};
use crate::store::{Caller, Core};
use bivouac_proto::attr::{FILE_MAX, PATH_MAX};
use bivouac_proto::lazy::LazyFile;
use bivouac_proto::meta::{At, MetaReply};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};

/// Permission bits, with set-id and sticky bits.
const MODE: u16 = 0o7777;

impl Core {
    /// Makes one; an ordinary one, if it is empty.
    pub(crate) fn make_lazy(&self, caller: &Caller, at: At<'_>, file: &LazyFile) -> Result<Reply, Failure> {
        check_name(at.name)?;
        let LazyFile { source, mode, owner, atime } = file;
        let own = rustix::process::geteuid().as_raw();
        if ![0, own].contains(&caller.credentials.uid) {
            // Servers read the backend with the rights of the deployment's user.
            return Err(Errno::PERM.into());
        }
        if !source.path.starts_with(b"/") || source.path.len() > PATH_MAX || source.path.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        if source.size > FILE_MAX {
            return Err(Errno::FBIG.into());
        }
        if owner.is_some_and(|owner| owner != (caller.credentials.uid, caller.credentials.gid))
            && caller.credentials.uid != 0
        {
            return Err(Errno::PERM.into());
        }
        let body = || match source.size {
            0 => Body::Inline(Box::default()),
            _ => Body::Lazy(Box::new(source.clone())),
        };
        let (now, map) = (self.outside.now(), self.outside.map());
        let (reply, grown) = self.partitions.with(shard_of(&at), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok((reply, false));
            }
            let home = may_make(locked, caller, &at)?;
            let (_, directory) = locked.shard.home(at.dir, at.split, at.name)?;
            let inherited = directory.inherit(&caller.credentials, mode & MODE, false);
            let owner = owner.map_or(inherited, |(uid, gid)| Owner { mode: mode & MODE, uid, gid });
            let mut inode = Inode::new(owner, now, body());
            (inode.atime, inode.mtime) = (*atime, source.mtime);
            let entry = |attr| MetaReply::Entry { attr, target: Vec::new() };
            let (_, reply, grown) = make(locked, caller, now, (home, at.name), inode, Some(&map), entry)?;
            Ok((reply, grown))
        })?;
        if grown {
            self.keeper.split(at.dir);
        }
        Ok(reply)
    }
}
