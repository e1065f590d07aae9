//! Appending: the inode's server orders appends and writes the blocks, so that each lands whole, at the end,
//! and once.

use crate::access::mode_after_write;
use crate::draft::Draft;
use crate::error::Op;
use crate::inline::{not_a_file, touch};
use crate::inode::Body;
use crate::mutation::{Mutation, Stamp};
use crate::opens::stamp;
use crate::partition::LockedShard;
use crate::steps::Begun;
use crate::store::{Caller, Core, Outside};
use bivouac_layout::{FileLayout, Ino};
use bivouac_proto::attr::{FILE_MAX, INLINE_MAX};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply};

/// An append to blocks.
struct Append {
    layout: FileLayout,
    /// The file's end, when that is known here.
    end: Option<u64>,
    size: u64,
    size_version: u32,
}

/// How an attempt to append ends.
enum Appended {
    Answered(Reply),
    /// The data has to leave the inode first.
    Spill,
}

impl<O: Outside> Core<O> {
    pub(crate) fn append(&self, caller: &Caller, ino: Ino, payload: &[u8]) -> Result<Reply, Failure> {
        self.once(caller, ino.shard(), || {
            loop {
                let appended = self.in_steps(
                    ino,
                    |locked| self.begin_append(locked, caller, ino, payload),
                    |append| {
                        let end = match append.end {
                            Some(end) => end,
                            None => self.extent(ino, &append.layout)?.length.max(append.size),
                        };
                        Ok((end, self.append_blocks(ino, &append.layout, end, payload)?))
                    },
                    |locked, append, written| self.end_append(locked, caller, ino, append, *written),
                )?;
                match appended {
                    Appended::Answered(reply) => return Ok(reply),
                    Appended::Spill => drop(self.spill_now(None, ino)?),
                }
            }
        })
    }

    fn begin_append(
        &self,
        locked: &mut LockedShard<'_>,
        caller: &Caller,
        ino: Ino,
        payload: &[u8],
    ) -> Op<Begun<Appended, Append>> {
        let now = self.outside.now();
        let inode = locked.shard.inode(ino)?;
        locked.shard.has_a_size(ino, &inode)?;
        let size_version = inode.size_version;
        match &inode.body {
            Body::Inline(data) if data.len() + payload.len() <= INLINE_MAX => {
                let (offset, written) = (data.len() as u64, payload.len() as u32);
                let reply = Reply::Meta(MetaReply::Appended { offset, written, size_version });
                let mut draft = Draft::new(now);
                if !payload.is_empty()
                    && let Some(inode) = draft.inode(locked.shard, ino)
                    && let Body::Inline(data) = &mut inode.body
                {
                    *data = [&**data, payload].concat().into();
                    inode.size = data.len() as u64;
                    touch(inode, now, &caller.credentials);
                }
                draft.answer(&caller.id, &reply);
                locked.commit(draft)?;
                Ok(Begun::Done(Appended::Answered(reply)))
            }
            Body::Inline(_) => Ok(Begun::Done(Appended::Spill)),
            Body::Blocks(blocks) => {
                let (layout, size, settled) = (blocks.layout.clone(), inode.size, blocks.settled);
                let known = locked.shard.live.get(&ino).and_then(|live| live.written.append_end);
                let end = known.or(settled.then_some(size));
                Ok(Begun::Work(Append { layout, end, size, size_version }))
            }
            _ => Err(not_a_file(&inode)),
        }
    }

    /// Writes at the end, block after block, and returns how much of it the servers took.
    fn append_blocks(&self, ino: Ino, layout: &FileLayout, end: u64, payload: &[u8]) -> Result<u32, Errno> {
        let map = self.outside.map();
        let until =
            end.checked_add(payload.len() as u64).filter(|until| *until <= FILE_MAX).ok_or(Errno::FBIG)?;
        let mut done = 0usize;
        for piece in layout.pieces(&map, end..until) {
            let len = piece.len as usize;
            let Some(bytes) = payload.get(done..done + len) else {
                break;
            };
            let request = DataRequest::Write { ino, offset: piece.offset, sync: false };
            match self.outside.write(&piece, &request, bytes) {
                Ok(DataReply::Written { count, .. }) if count as usize >= len => done += len,
                Ok(DataReply::Written { count, .. }) if done + count as usize > 0 => {
                    return Ok((done + count as usize) as u32);
                }
                Ok(DataReply::Written { .. }) => return Err(Errno::NOSPC),
                other if done == 0 => return Err(other.err().unwrap_or(Errno::PROTO)),
                _ => break,
            }
        }
        Ok(done as u32)
    }

    fn end_append(
        &self,
        locked: &mut LockedShard<'_>,
        caller: &Caller,
        ino: Ino,
        append: &Append,
        written: Result<(u64, u32), Errno>,
    ) -> Op<Appended> {
        let now = self.outside.now();
        let live = locked.shard.live.entry(ino).or_default();
        let (offset, count) = match written {
            Ok(written) => written,
            Err(errno) => {
                live.written.append_end = None;
                live.written.unsure = true;
                return Err(errno.into());
            }
        };
        let end = offset + u64::from(count);
        live.written.end = live.written.end.max(end);
        live.written.last = now;
        let only_appenders = live.has_writer() && live.opens.iter().all(|o| o.append || !o.write);
        live.written.append_end = only_appenders.then_some(end);
        let (written, size_version) = (count, append.size_version);
        let reply = Reply::Meta(MetaReply::Appended { offset, written, size_version });
        let mut draft = Draft::new(now);
        let inode = locked.shard.inode(ino)?;
        if inode.as_blocks().is_some_and(|b| b.settled) {
            // Without an open: there will be no close to settle it.
            let stamp = stamp(&inode);
            let allocated = stamp.allocated.map(|allocated| allocated.saturating_add(u64::from(count)));
            let stamp = Stamp { size: end, mtime: now, ctime: now, allocated, ..stamp };
            draft.push(Mutation::Stamp(ino, stamp));
        }
        let mode = mode_after_write(inode.owner(), &caller.credentials);
        if count > 0
            && mode != inode.mode
            && let Some(inode) = draft.inode(locked.shard, ino)
        {
            inode.mode = mode;
        }
        draft.answer(&caller.id, &reply);
        locked.commit(draft)?;
        Ok(Appended::Answered(reply))
    }
}
