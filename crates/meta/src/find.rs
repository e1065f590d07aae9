//! Many files in one request, with the data of small ones: for programs that read thousands of them.
//!
//! What cannot be shown at once, or not by this server, is left out: the client asks for it as for any other file, and waits.

use crate::access::{EXECUTE, READ};
use crate::inode::Body;
use crate::names::{check_name, shard_of, shown};
use crate::partition::LockedShard;
use crate::store::{Caller, Core};
use bivouac_layout::Ino;
use bivouac_proto::meta::{At, FIND_MAX, MetaReply, Sighted, Sought};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Reply};
use std::time::Duration;

impl Core {
    /// Attributes of files; the data of those that are inline go to `out`.
    pub(crate) fn find(
        &self,
        caller: &Caller,
        files: &[Sought<'_>],
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        if files.len() > FIND_MAX {
            return Err(Errno::INVAL.into());
        }
        let find = |file: &Sought<'_>| {
            match file {
                Sought::Name(at) => self.find_name(caller, at, out),
                Sought::Inode(ino) => self.find_inode(caller, *ino, out),
            }
            .unwrap_or(Sighted::Untold)
        };
        Ok(Reply::Meta(MetaReply::Found(files.iter().map(find).collect())))
    }

    fn find_name(&self, caller: &Caller, at: &At<'_>, out: &mut Vec<u8>) -> Option<Sighted> {
        check_name(at.name).ok()?;
        let shard = shard_of(at);
        if !self.is_mine(shard) {
            return None;
        }
        let before = out.len();
        let looked = self.partitions.with_patience(shard, Duration::ZERO, |locked| {
            let (_, owner) = locked.shard.home(at.dir, at.split, at.name)?;
            owner.check(&caller.credentials, EXECUTE)?;
            locked.shard.entry_is_free(at.dir, at.name)?;
            let named = locked.shard.find(at.dir, at.name).ok_or(Errno::NOENT)?;
            Ok(match named.kind {
                FileKind::File if named.ino.shard() == locked.id => show(locked, caller, named.ino, out),
                FileKind::File => Some(Sighted::Elsewhere(named.ino)),
                _ => None,
            })
        });
        // What is not acknowledged by all that hold the shard is not shown.
        match looked.inspect_err(|_| out.truncate(before)).ok()? {
            // An entry may have come from a shard in which its inode has stayed.
            Some(Sighted::Elsewhere(ino)) if self.is_mine(ino.shard()) => self.find_inode(caller, ino, out),
            found => found,
        }
    }

    fn find_inode(&self, caller: &Caller, ino: Ino, out: &mut Vec<u8>) -> Option<Sighted> {
        if !self.is_mine(ino.shard()) {
            return None;
        }
        let before = out.len();
        let looked = self
            .partitions
            .with_patience(ino.shard(), Duration::ZERO, |locked| Ok(show(locked, caller, ino, out)));
        looked.inspect_err(|_| out.truncate(before)).ok()?
    }
}

/// What is shown of a file in this shard.
fn show(locked: &LockedShard<'_>, caller: &Caller, ino: Ino, out: &mut Vec<u8>) -> Option<Sighted> {
    let attr = Box::new(shown(locked, ino).ok()?.attr);
    let inode = locked.shard.inode(ino).ok()?;
    match &inode.body {
        Body::Inline(data) if inode.owner().check(&caller.credentials, READ).is_ok() => {
            out.extend_from_slice(data);
            Some(Sighted::File { attr, with_data: true })
        }
        _ if attr.kind == FileKind::File => Some(Sighted::File { attr, with_data: false }),
        _ => None,
    }
}
