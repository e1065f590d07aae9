//! Many files by their names in one request, with the data of small ones: for programs that read thousands of them.
//!
//! What cannot be shown at once, or not by this server alone, is left out: the client asks for it as for any other file, and waits.

use crate::access::{EXECUTE, READ};
use crate::inode::Body;
use crate::names::{check_name, shard_of, shown};
use crate::outside::Outside;
use crate::partition::LockedShard;
use crate::shard::Named;
use crate::store::{Caller, Core};
use bivouac_proto::meta::{At, FIND_MAX, FoundFile, MetaReply};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, FileKind, Reply};
use std::time::Duration;

impl<O: Outside> Core<O> {
    /// Attributes of files; the data of those that are inline go to `out`.
    pub(crate) fn find(
        &self,
        caller: &Caller,
        names: &[At<'_>],
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        if names.len() > FIND_MAX {
            return Err(Errno::INVAL.into());
        }
        let found = names.iter().map(|at| self.find_one(caller, at, out)).collect();
        Ok(Reply::Meta(MetaReply::Found(found)))
    }

    fn find_one(&self, caller: &Caller, at: &At<'_>, out: &mut Vec<u8>) -> Option<FoundFile> {
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
            let here = named.ino.shard() == locked.id;
            Ok((named, here.then(|| show(locked, caller, named, out)).flatten()))
        });
        // What is not acknowledged by all that hold the shard is not shown.
        let (named, found) = looked.inspect_err(|_| out.truncate(before)).ok()?;
        let elsewhere = named.ino.shard();
        // An entry may have come from a shard in which its inode has stayed.
        if found.is_some() || elsewhere == shard || named.kind != FileKind::File || !self.is_mine(elsewhere) {
            return found;
        }
        let looked = self
            .partitions
            .with_patience(elsewhere, Duration::ZERO, |locked| Ok(show(locked, caller, named, out)));
        looked.inspect_err(|_| out.truncate(before)).ok().flatten()
    }
}

/// What is shown of a file in this shard.
fn show(locked: &LockedShard<'_>, caller: &Caller, named: Named, out: &mut Vec<u8>) -> Option<FoundFile> {
    let attr = shown(locked, named.ino).ok()?.attr;
    let inode = locked.shard.inode(named.ino).ok()?;
    if attr.kind != FileKind::File {
        return None;
    }
    let with_data = match &inode.body {
        Body::Inline(data) if inode.owner().check(&caller.credentials, READ).is_ok() => {
            out.extend_from_slice(data);
            true
        }
        _ => false,
    };
    Some(FoundFile { attr: Box::new(attr), with_data })
}
