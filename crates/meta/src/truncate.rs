//! Setting a file's size.
//!
//! A truncation of a file in blocks is noted in the log before it begins. Each data server truncates its
//! sub-file to the end of its own blocks below the new size, so that no sub-file is longer than its data can
//! be. A crash, or a server that fails in between, leaves the truncation *unfinished*: data is gone on some
//! servers and not on others. Until it is finished, at the new size, the server shows neither a size nor
//! zeros in place of what is gone: requests for the file get EIO. The keeper finishes it, or the next
//! truncation of the file does.

use crate::access::WRITE;
use crate::draft::Draft;
use crate::error::Op;
use crate::inline::{not_a_file, resize_inline, touch};
use crate::inode::{Blocks, Body, Inode};
use crate::mutation::Mutation;
use crate::opens::noted;
use crate::outside::Standing;
use crate::partition::LockedShard;
use crate::steps::Begun;
use crate::store::{Caller, Core};
use bivouac_layout::{FileLayout, Ino, Map, ServerId, ServerState};
use bivouac_proto::attr::{FILE_MAX, INLINE_MAX, dense};
use bivouac_proto::auth::Credentials;
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, Refusal, Reply};
use std::time::{Duration, Instant};

/// How long a truncation of copies is tried while servers come: not as long as a file stays closed by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two of these.
const PAUSE: Duration = Duration::from_millis(50);

/// The caller that sets a size, and how it is answered.
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
}

/// What they did.
#[derive(Clone, Copy)]
struct Truncated {
    size: u64,
    /// What the inode notes of the file's storage.
    allocated: Option<u64>,
    /// No sub-file reaches beyond this, also none that is empty now. Bytes.
    reach: u64,
}

/// How an attempt to set a size ends.
enum Outcome {
    Done(Box<Attr>),
    /// The data has to leave the inode first.
    Spill,
    /// An earlier truncation has to be finished first.
    Unfinished,
    /// Nothing is done, because these servers are not up.
    Away(Vec<ServerId>),
}

impl Core {
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
        loop {
            let map = self.outside.map();
            let outcome = self.in_steps(
                ino,
                |locked| self.begin_truncation(locked, &map, ino, size, setting),
                |truncation, stance| self.truncate_blocks(ino, truncation, stance.standing),
                |locked, _, truncated| {
                    let done = self.end_truncation(locked, ino, setting, *truncated)?;
                    Ok(Outcome::Done(Box::new(done)))
                },
            )?;
            match outcome {
                Outcome::Done(attr) => return Ok(*attr),
                Outcome::Spill => drop(self.spill_now(None, ino)?),
                Outcome::Unfinished => self.finish_truncation(ino)?,
                Outcome::Away(servers) => {
                    if !self.outside.wait_until_up(&map, &servers) {
                        return Err(Errno::IO.into());
                    }
                }
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
            // Of a lazy file that is cut to nothing, nothing needs to be fetched.
            Body::Lazy(_) if size > 0 => Err(Refusal::Unfetched { ino }.into()),
            Body::Inline(_) | Body::Lazy(_) if size <= INLINE_MAX as u64 => {
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
            // Nobody works on it any more. What a shorter size leaves needs not be of the other size first.
            Body::Blocks(blocks) if blocks.truncating.is_some_and(|unfinished| size > unfinished) => {
                Ok(Begun::Done(Outcome::Unfinished))
            }
            Body::Blocks(blocks) => {
                let exact = blocks.settled && blocks.truncating.is_none();
                let old = exact.then_some(inode.size);
                let requests = requests(map, ino, blocks, old, size);
                let blocks = blocks.as_ref().clone();
                let serves = |server| map.server(server).is_some_and(|s| s.state == ServerState::Up);
                let servers = requests.iter().map(|(server, _)| *server);
                let away: Vec<ServerId> = servers.filter(|server| !serves(*server)).collect();
                if !away.is_empty() {
                    // Fail before anything is done rather than half-way.
                    return Ok(Begun::Done(Outcome::Away(away)));
                }
                let mut draft = Draft::freeing(now);
                if let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut) {
                    blocks.truncating = Some(size);
                }
                if locked.shard.appends.contains_key(&ino) {
                    // What is repeated after this is appended to what this leaves.
                    draft.push(Mutation::DropAppend(ino));
                }
                locked.commit(draft)?;
                Ok(Begun::Work(Truncation { size, old, blocks }))
            }
            _ => Err(not_a_file(&inode)),
        }
    }

    fn truncate_blocks(
        &self,
        ino: Ino,
        truncation: &Truncation,
        standing: Standing,
    ) -> Result<Truncated, Errno> {
        let Truncation { size, old, blocks } = truncation;
        let answers = if blocks.layout.copies(&self.outside.map()) > 1 {
            self.truncate_copies(standing, ino, &blocks.layout, *size)?
        } else {
            self.ask_holders(Some(standing), &blocks.layout, |map| requests(map, ino, blocks, *old, *size))?
        };
        let cut = |(server, reply)| matches!(reply, DataReply::Truncated { exists: true }).then_some(server);
        let found: Vec<ServerId> = answers.into_iter().filter_map(cut).collect();
        let reach = blocks.reach_with(&self.outside.map(), *size, &found);
        Ok(Truncated { size: *size, allocated: self.left_allocated(ino, truncation), reach })
    }

    /// With copies, changes go from server to server: all servers keep them out until each has done its part, so that
    /// none of them is made before the truncation here and after it there.
    fn truncate_copies(
        &self,
        standing: Standing,
        ino: Ino,
        layout: &FileLayout,
        size: u64,
    ) -> Result<Vec<(ServerId, DataReply)>, Errno> {
        let closing = self.outside.now().unsigned_abs().max(1);
        let all = |map: &Map, request: DataRequest| -> Vec<(ServerId, DataRequest)> {
            layout.servers_to_change(map, u64::MAX).into_iter().map(|server| (server, request)).collect()
        };
        let (until, mut has_cut) = (Instant::now() + PATIENCE, false);
        let truncated = loop {
            let truncated = self
                .ask_holders(Some(standing), layout, |map| all(map, DataRequest::Close { ino, closing }))
                .and_then(|_| {
                    has_cut = true;
                    self.ask_holders(Some(standing), layout, |map| {
                        cuts_of_copies(map, ino, layout, size, closing)
                    })
                });
            match truncated {
                // A server has come meanwhile, or another one took too long.
                Err(Errno::AGAIN) if Instant::now() < until && self.outside.stands(standing) => {
                    std::thread::sleep(PAUSE);
                }
                Err(Errno::AGAIN) => break Err(Errno::IO),
                truncated => break truncated,
            }
        };
        if truncated.is_ok() || !has_cut {
            // Where this fails, changes begin after a while by themselves.
            let _ =
                self.ask_holders(Some(standing), layout, |map| all(map, DataRequest::Open { ino, closing }));
        }
        // Copies that are cut here and not there stay closed for who finishes it, so that nobody reads both.
        truncated
    }

    /// What the inode of a truncated file notes of its storage. Of a file that is being written the servers
    /// are asked when it is settled; of others only if what is left of their holes cannot be known.
    fn left_allocated(&self, ino: Ino, truncation: &Truncation) -> Option<u64> {
        let Truncation { size, old, blocks, .. } = truncation;
        let old = old.unwrap_or(u64::MAX);
        match blocks.allocated {
            _ if *size == 0 || !blocks.settled => None,
            None if *size < old => None,
            before if *size >= old => noted(before.unwrap_or(dense(old)), *size),
            // Where that cannot be found out, it follows from the size.
            _ => self.extent(ino, &blocks.layout).ok().and_then(|found| noted(found.allocated, *size)),
        }
    }

    /// Ends the truncation: all servers have done it, or some have failed.
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
        let Truncated { size, allocated, reach } = match truncated {
            Ok(truncated) => truncated,
            Err(errno) => {
                self.keeper.truncation(ino);
                return Err(errno.into());
            }
        };
        live.written.end = 0;
        // What was added is a hole. Which parts of what was truncated were holes is not known.
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
            blocks.reach = blocks.reach.max(reach);
            settled = blocks.settled;
        }
        let attr = inode.attr(ino);
        draft.answer(setting.id, &Reply::Meta((setting.reply)(attr.clone())));
        locked.commit(draft)?;
        if !settled && !has_writer {
            // When it was closed last, the truncation prevented settling it.
            self.keeper.settle(ino);
        }
        Ok(attr)
    }

    /// Finishes a truncation that a crash has interrupted, or a server's failure.
    pub(crate) fn finish_truncation(&self, ino: Ino) -> Result<(), Failure> {
        let (who, id) = (Credentials::default(), RequestId::default());
        let setting = Setting { who: &who, id: &id, reply: |attr| MetaReply::Attr(Box::new(attr)) };
        self.in_steps(
            ino,
            |locked| {
                let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(Begun::Done(())) };
                let owed = inode.as_blocks().and_then(|blocks| Some((blocks, blocks.truncating?)));
                let Some((blocks, size)) = owed else { return Ok(Begun::Done(())) };
                Ok(Begun::Work(Truncation { size, old: None, blocks: blocks.clone() }))
            },
            |truncation, stance| self.truncate_blocks(ino, truncation, stance.standing),
            |locked, _, truncated| self.end_truncation(locked, ino, &setting, *truncated).map(drop),
        )
    }
}

/// What each server of a file that has copies has to do so that the file has a size.
fn cuts_of_copies(
    map: &Map,
    ino: Ino,
    layout: &FileLayout,
    size: u64,
    closing: u64,
) -> Vec<(ServerId, DataRequest)> {
    let last = size.checked_sub(1).and_then(|last| layout.piece_at(map, last, u64::MAX));
    let has_last = |server| last.is_some_and(|piece| map.holders(piece.group).all().contains(&server));
    let cut = |server| {
        let (size, extend) = (layout.end_on(map, server, size), has_last(server));
        (server, DataRequest::Truncate { ino, size, extend, closing })
    };
    layout.servers_to_change(map, u64::MAX).into_iter().map(cut).collect()
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
        (server, DataRequest::Truncate { ino, size, extend: false, closing: 0 })
    };
    let others = longer.into_iter().filter(|server| Some(*server) != last).map(cut);
    let lengthened =
        last.map(|server| (server, DataRequest::Truncate { ino, size, extend: true, closing: 0 }));
    others.chain(lengthened).collect()
}
