//! Setting a file's size.
//!
//! A truncation of a file in blocks is noted in the log before it begins. Each server cuts its sub-file to
//! the end of its own blocks below the new size: a sub-file's length is the end of data that can be there,
//! and no more. A crash, or a server that fails on the way, leaves a truncation that is *unfinished*: data is
//! gone on some servers and not on others. Nobody is shown a size then, or zeros for what is gone: whoever
//! asks gets EIO, until the keeper, or who truncates the file again, has finished it, at the new size.

use crate::access::WRITE;
use crate::draft::Draft;
use crate::error::Op;
use crate::inline::{not_a_file, resize_inline, touch};
use crate::inode::{Blocks, Body, Inode};
use crate::opens::noted;
use crate::partition::LockedShard;
use crate::steps::Begun;
use crate::store::{Caller, Core, Outside};
use bivouac_layout::{Ino, Map, ServerId, ServerState};
use bivouac_proto::attr::{FILE_MAX, INLINE_MAX, dense};
use bivouac_proto::auth::Credentials;
use bivouac_proto::data::DataRequest;
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, Reply};

/// Who sets a size, and how he is answered.
pub(crate) struct Setting<'a> {
    pub who: &'a Credentials,
    /// The request; its answer is logged with the change.
    pub id: &'a RequestId,
    pub reply: fn(Attr) -> MetaReply,
}

/// What the servers of a file have to do.
struct Truncation {
    size: u64,
    /// The file's size, if that is exact.
    old: Option<u64>,
    blocks: Blocks,
    requests: Vec<(ServerId, DataRequest)>,
}

/// What they did.
#[derive(Clone, Copy)]
struct Truncated {
    size: u64,
    /// What the inode notes of the file's storage.
    allocated: Option<u64>,
}

/// How an attempt to set a size ends.
enum Outcome {
    Done(Box<Attr>),
    /// The data has to leave the inode first.
    Spill,
    /// An earlier truncation has to be finished first.
    Unfinished,
}

impl<O: Outside> Core<O> {
    pub(crate) fn truncate(&self, caller: &Caller, ino: Ino, size: u64) -> Result<Reply, Failure> {
        if size > FILE_MAX {
            return Err(Errno::FBIG.into());
        }
        self.partitions.with(ino.shard(), |locked| {
            // A description that is open for writing may truncate whatever the mode says, and only the owner
            // can have one against the mode; the client checks what a path asks for.
            let owner = locked.shard.inode(ino)?.owner();
            Ok(owner.check_owner_or(&caller.credentials, WRITE)?)
        })?;
        let reply = |attr| MetaReply::Attr(Box::new(attr));
        let setting = Setting { who: &caller.credentials, id: &caller.id, reply };
        self.once(caller, ino.shard(), || Ok(Reply::Meta(reply(self.set_size(ino, size, &setting)?))))
    }

    /// Sets a file's size; what its attributes are then.
    pub(crate) fn set_size(&self, ino: Ino, size: u64, setting: &Setting<'_>) -> Result<Attr, Failure> {
        let map = self.outside.map();
        loop {
            let outcome = self.in_steps(
                ino,
                |locked| self.begin_truncation(locked, &map, ino, size, setting),
                |truncation| self.truncate_blocks(ino, truncation),
                |locked, _, truncated| {
                    let done = self.end_truncation(locked, ino, setting, *truncated)?;
                    Ok(Outcome::Done(Box::new(done)))
                },
            )?;
            match outcome {
                Outcome::Done(attr) => return Ok(*attr),
                Outcome::Spill => drop(self.spill_now(None, ino)?),
                Outcome::Unfinished => self.finish_truncation(ino)?,
            }
        }
    }

    fn begin_truncation(
        &self,
        locked: &mut LockedShard<'_>,
        map: &Map,
        ino: Ino,
        size: u64,
        setting: &Setting<'_>,
    ) -> Op<Begun<Outcome, Truncation>> {
        let now = self.outside.now();
        let inode = locked.shard.inode(ino)?;
        match &inode.body {
            Body::Inline(_) if size <= INLINE_MAX as u64 => {
                let mut draft = Draft::new(now);
                draft.frees = size <= inode.size;
                let changed = draft.inode(locked.shard, ino).ok_or(Errno::NOENT)?;
                resize_inline(changed, size as usize, now, setting.who);
                let attr = changed.attr(ino);
                draft.answer(setting.id, &Reply::Meta((setting.reply)(attr.clone())));
                locked.commit(draft)?;
                Ok(Begun::Done(Outcome::Done(Box::new(attr))))
            }
            Body::Inline(_) => Ok(Begun::Done(Outcome::Spill)),
            // Nobody is at it any more.
            Body::Blocks(blocks) if blocks.truncating.is_some() => Ok(Begun::Done(Outcome::Unfinished)),
            Body::Blocks(blocks) => {
                let old = if blocks.settled { Some(inode.size) } else { None };
                let requests = requests(map, ino, blocks, old, size);
                let blocks = blocks.as_ref().clone();
                let serves = |server| map.server(server).is_some_and(|s| s.state == ServerState::Up);
                if !requests.iter().all(|(server, _)| serves(*server)) {
                    // Better nothing at all than a part.
                    return Err(Errno::IO.into());
                }
                let mut draft = Draft::freeing(now);
                if let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut) {
                    blocks.truncating = Some(size);
                }
                locked.commit(draft)?;
                Ok(Begun::Work(Truncation { size, old, blocks, requests }))
            }
            _ => Err(not_a_file(&inode)),
        }
    }

    fn truncate_blocks(&self, ino: Ino, truncation: &Truncation) -> Result<Truncated, Errno> {
        let answers = self.outside.data_each(&truncation.requests);
        answers.into_iter().try_for_each(|answer| answer.map(drop))?;
        let allocated = self.left_allocated(ino, truncation)?;
        Ok(Truncated { size: truncation.size, allocated })
    }

    /// What the inode of a truncated file notes of its storage. Of a file that is being written the servers
    /// are asked when it is settled; of others only if what is left of their holes cannot be known.
    fn left_allocated(&self, ino: Ino, truncation: &Truncation) -> Result<Option<u64>, Errno> {
        let Truncation { size, old, blocks, .. } = truncation;
        let old = old.unwrap_or(u64::MAX);
        match blocks.allocated {
            _ if *size == 0 || !blocks.settled => Ok(None),
            None if *size < old => Ok(None),
            before if *size >= old => Ok(noted(before.unwrap_or(dense(old)), *size)),
            _ => self.extent(ino, &blocks.layout).map(|found| noted(found.allocated, *size)),
        }
    }

    /// All servers have done it, or not.
    fn end_truncation(
        &self,
        locked: &mut LockedShard<'_>,
        ino: Ino,
        setting: &Setting<'_>,
        truncated: Result<Truncated, Errno>,
    ) -> Op<Attr> {
        let now = self.outside.now();
        let live = locked.shard.live.entry(ino).or_default();
        live.restoring = false;
        let Truncated { size, allocated } = match truncated {
            Ok(truncated) => truncated,
            Err(errno) => {
                self.keeper.truncation(ino);
                return Err(errno.into());
            }
        };
        live.written.end = 0;
        // What was added is a hole, and of what was cut off nobody knows what was one.
        live.written.unsure |= size > 0;
        live.written.append_end = live.written.append_end.map(|_| size);
        let has_writer = live.has_writer();
        let mut draft = Draft::freeing(now);
        let inode = draft.inode(locked.shard, ino).ok_or(Errno::NOENT)?;
        inode.size = size;
        inode.size_version += 1;
        touch(inode, now, setting.who);
        let mut settled = true;
        if let Some(blocks) = inode.blocks_mut() {
            blocks.truncating = None;
            blocks.allocated = allocated;
            blocks.reach = blocks.reach.max(size);
            settled = blocks.settled;
        }
        let attr = inode.attr(ino);
        draft.answer(setting.id, &Reply::Meta((setting.reply)(attr.clone())));
        locked.commit(draft)?;
        if !settled && !has_writer {
            // Whoever closed it last could not settle it.
            self.keeper.settle(ino);
        }
        Ok(attr)
    }

    /// Finishes a truncation that a crash has interrupted, or a server's failure.
    pub(crate) fn finish_truncation(&self, ino: Ino) -> Result<(), Failure> {
        let map = self.outside.map();
        let (who, id) = (Credentials::default(), RequestId::default());
        let setting = Setting { who: &who, id: &id, reply: |attr| MetaReply::Attr(Box::new(attr)) };
        self.in_steps(
            ino,
            |locked| {
                let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(Begun::Done(())) };
                let owed = inode.as_blocks().and_then(|blocks| Some((blocks, blocks.truncating?)));
                let Some((blocks, size)) = owed else { return Ok(Begun::Done(())) };
                let (requests, blocks) = (requests(&map, ino, blocks, None, size), blocks.clone());
                Ok(Begun::Work(Truncation { size, old: None, blocks, requests }))
            },
            |truncation| self.truncate_blocks(ino, truncation),
            |locked, _, truncated| self.end_truncation(locked, ino, &setting, *truncated).map(drop),
        )
    }
}

/// What each server has to do so that a file has a size. `old`: its size, if that is exact and no sub-file
/// reaches further than the inode says.
fn requests(
    map: &Map,
    ino: Ino,
    blocks: &Blocks,
    old: Option<u64>,
    size: u64,
) -> Vec<(ServerId, DataRequest)> {
    let last = size.checked_sub(1).and_then(|last| blocks.layout.server_at(map, last));
    let longer = match old {
        Some(old) if size >= old => Vec::new(),
        Some(_) => blocks.layout.servers(map, blocks.reach),
        None => blocks.layout.servers(map, u64::MAX),
    };
    let cut = |server: ServerId| {
        let size = blocks.layout.end_on(map, server, size);
        (server, DataRequest::Truncate { ino, size, extend: false })
    };
    let others = longer.into_iter().filter(|server| Some(*server) != last).map(cut);
    let lengthened = last.map(|server| (server, DataRequest::Truncate { ino, size, extend: true }));
    others.chain(lengthened).collect()
}
