//! Appending: the inode's server orders appends and writes the blocks, so that each lands whole, at the end,
//! and once.
//!
//! Where an append to blocks goes, and for which request, is [logged](Placed) before anything is written. So the
//! repetition of a request whose server died in between lands at the same place, also at the shard's next primary.
//! Until the repetition comes, or for [`LATE`], nobody else appends: what was written of the append might be a part of
//! it. If it does not come, its program is dead, or was told EIO and goes on (which a later request of its slot shows), and
//! the next append goes behind whatever there is.

use crate::access::mode_after_write;
use crate::draft::Draft;
use crate::error::Op;
use crate::inline::{not_a_file, touch};
use crate::inode::Body;
use crate::mutation::{Mutation, Stamp};
use crate::opens::stamp;
use crate::outside::Standing;
use crate::partition::LockedShard;
use crate::steps::{Begun, Stance};
use crate::store::{Caller, Core};
use bivouac_layout::{FileLayout, Ino};
use bivouac_proto::attr::{FILE_MAX, INLINE_MAX};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, RequestId};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How long the repetition of an append is waited for that was under way when its server died. A program that lives
/// repeats it several times a second.
const LATE: Duration = Duration::from_secs(5);

/// An append that was begun and is not answered.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
pub(crate) struct Placed {
    pub id: RequestId,
    /// Where it begins, bytes.
    pub offset: u64,
    /// How much is to be written, bytes.
    pub length: u64,
    /// Since when its repetition is waited for.
    #[serde(skip)]
    pub since: Option<Instant>,
}

/// An append to blocks.
struct Append {
    layout: FileLayout,
    /// The file's end, when that is known here.
    end: Option<u64>,
    size: u64,
    size_version: u32,
    /// An earlier attempt at the same request has begun to write at `end`.
    placed: bool,
}

/// How an attempt to append ends.
enum Appended {
    Answered(Reply),
    /// The data has to leave the inode first.
    Spill,
}

impl Core {
    pub(crate) fn append(&self, caller: &Caller, ino: Ino, payload: &[u8]) -> Result<Reply, Failure> {
        self.once(caller, ino.shard(), || {
            loop {
                let appended = self.in_steps(
                    ino,
                    |locked| self.begin_append(locked, caller, ino, payload),
                    |append, stance| {
                        let end = match append.end {
                            Some(end) => end,
                            None => self.extent(ino, &append.layout)?.length.max(append.size),
                        };
                        if !append.placed {
                            let length = payload.len() as u64;
                            let placed = Placed { id: caller.id, offset: end, length, since: None };
                            self.place(ino, stance, placed)?;
                        }
                        Ok((end, self.append_blocks(stance.standing, ino, &append.layout, (end, payload))?))
                    },
                    |locked, append, written| self.end_append(locked, caller, ino, append, written),
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
                let append = |end, placed| Append { layout, end, size, size_version, placed };
                let work = match locked.shard.appends.get_mut(&ino) {
                    None => append(known.or(settled.then_some(size)), false),
                    Some(placed) if placed.id == caller.id && placed.length == payload.len() as u64 => {
                        append(Some(placed.offset), true)
                    }
                    Some(placed) => {
                        let slot = (placed.id.session, placed.id.slot);
                        let later = |sequence| sequence > placed.id.sequence;
                        let given_up = slot == (caller.id.session, caller.id.slot)
                            && later(caller.id.sequence)
                            || locked.shard.answers.get(&slot).is_some_and(|answer| later(answer.sequence));
                        if !given_up && placed.since.get_or_insert_with(Instant::now).elapsed() < LATE {
                            return Err(Refusal::Busy.into());
                        }
                        append(None, false)
                    }
                };
                Ok(Begun::Work(work))
            }
            Body::Lazy(_) => Err(Refusal::Unfetched { ino }.into()),
            _ => Err(not_a_file(&inode)),
        }
    }

    /// Logs where an append goes.
    fn place(&self, ino: Ino, stance: Stance, placed: Placed) -> Result<(), Failure> {
        if placed.id.session == 0 {
            // Nobody can repeat it.
            return Ok(());
        }
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            if stance.reign != Some(locked.shard.stream.reign) {
                // Another server has answered for the shard meanwhile, and may have appended this.
                return Err(Refusal::Busy.into());
            }
            let mut draft = Draft::new(now);
            draft.push(Mutation::PutAppend(ino, placed));
            locked.commit_unseen(draft)
        })
    }

    /// Writes at the end, block after block, and returns how much of it the servers took.
    fn append_blocks(
        &self,
        standing: Standing,
        ino: Ino,
        layout: &FileLayout,
        (end, payload): (u64, &[u8]),
    ) -> Result<u32, Errno> {
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
            match self.outside.write(standing, (&piece, layout.version), &request, bytes) {
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
        written: &Result<(u64, u32), Failure>,
    ) -> Op<Appended> {
        let now = self.outside.now();
        let live = locked.shard.live.entry(ino).or_default();
        let (offset, count) = match written {
            Ok(written) => *written,
            Err(failure) => {
                live.written.append_end = None;
                live.written.unsure = true;
                if locked.shard.appends.contains_key(&ino) {
                    let mut draft = Draft::freeing(now);
                    draft.push(Mutation::DropAppend(ino));
                    locked.commit_unseen(draft)?;
                }
                return Err(failure.clone().into());
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
            let size = end.max(inode.size);
            let stamp = Stamp { size, mtime: now, ctime: now, allocated, ..stamp };
            draft.push(Mutation::Stamp(ino, stamp));
        }
        let mode = mode_after_write(inode.owner(), &caller.credentials);
        if count > 0
            && mode != inode.mode
            && let Some(inode) = draft.inode(locked.shard, ino)
        {
            inode.mode = mode;
        }
        if locked.shard.appends.contains_key(&ino) {
            draft.push(Mutation::DropAppend(ino));
        }
        draft.answer(&caller.id, &reply);
        locked.commit(draft)?;
        Ok(Appended::Answered(reply))
    }
}
