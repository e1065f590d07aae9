//! Inline data: small files, whose data is in their inode.

use crate::access::mode_after_write;
use crate::answers::repeated;
use crate::draft::Draft;
use crate::error::Stop;
use crate::inode::{Body, Inode};
use crate::store::{Caller, Core};
use bivouac_layout::Ino;
use bivouac_proto::attr::INLINE_MAX;
use bivouac_proto::auth::Credentials;
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Time};

/// Changes the size of a file whose data is in its inode; bytes that appear are zeros.
pub(crate) fn resize_inline(inode: &mut Inode, size: usize, now: Time, who: &Credentials) {
    if inode.as_lazy().is_some() && size == 0 {
        // Nobody wants its contents any more.
        inode.body = Body::Inline(Box::default());
    }
    if let Body::Inline(data) = &mut inode.body {
        let mut bytes = std::mem::take(data).into_vec();
        bytes.resize(size, 0);
        *data = bytes.into();
        inode.size = size as u64;
        inode.size_version += 1;
        touch(inode, now, who);
    }
}

/// What else changes in an inode when it is written to or its size is set.
pub(crate) fn touch(inode: &mut Inode, now: Time, who: &Credentials) {
    inode.mtime = now;
    inode.ctime = now;
    inode.mode = mode_after_write(inode.owner(), who);
}

/// The error of operations that work on regular files only.
pub(crate) fn not_a_file(inode: &Inode) -> Stop {
    if inode.as_directory().is_some() { Errno::ISDIR.into() } else { Errno::INVAL.into() }
}

impl Core {
    pub(crate) fn read_inline(
        &self,
        ino: Ino,
        offset: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        self.partitions.with(ino.shard(), |locked| {
            let inode = locked.shard.inode(ino)?;
            let Body::Inline(data) = &inode.body else {
                return Err(match &inode.body {
                    Body::Blocks(_) => Refusal::NotInline.into(),
                    Body::Lazy(_) => Refusal::Unfetched { ino }.into(),
                    _ => not_a_file(&inode),
                });
            };
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
            let end = start.saturating_add(len as usize).min(data.len());
            out.extend_from_slice(data.get(start..end).unwrap_or_default());
            Ok(Reply::Meta(MetaReply::Attr(Box::new(inode.attr(ino)))))
        })
    }

    pub(crate) fn write_inline(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        payload: &[u8],
    ) -> Result<Reply, Failure> {
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            if let Some(reply) = repeated(locked.shard, &caller.id)? {
                return Ok(reply);
            }
            let inode = locked.shard.inode(ino)?;
            match &inode.body {
                Body::Inline(_) => {}
                Body::Blocks(_) => return Err(Refusal::NotInline.into()),
                Body::Lazy(_) => return Err(Refusal::Unfetched { ino }.into()),
                _ => return Err(not_a_file(&inode)),
            }
            let end = offset.checked_add(payload.len() as u64).filter(|end| *end <= INLINE_MAX as u64);
            let Some(end) = end else {
                return Err(Refusal::NotInline.into());
            };
            locked.shard.is_not_busy(ino)?;
            if payload.is_empty() {
                return Ok(Reply::Done);
            }
            let mut draft = Draft::new(now);
            if let Some(inode) = draft.inode(locked.shard, ino)
                && let Body::Inline(data) = &mut inode.body
            {
                let (offset, end) = (offset as usize, end as usize);
                if end > data.len() {
                    let mut bytes = std::mem::take(data).into_vec();
                    bytes.reserve_exact(end - bytes.len());
                    bytes.resize(end, 0);
                    *data = bytes.into();
                }
                if let Some(target) = data.get_mut(offset..end) {
                    target.copy_from_slice(payload);
                }
                inode.size = data.len() as u64;
                touch(inode, now, &caller.credentials);
            }
            draft.answer(&caller.id, &Reply::Done);
            locked.commit_for(caller, draft)?;
            Ok(Reply::Done)
        })
    }
}
