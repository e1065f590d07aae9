//! The data of files as far as it passes through here: small files in their records, moving out of the record, cutting,
//! appending.
//!
//! What takes more than one step with data servers marks the file *busy* in memory: others that would change its data or
//! size wait, everything else goes on. A cut is noted in the log before it begins, and done again after a crash.

use crate::access::{WRITE, mode_after_write};
use crate::draft::Draft;
use crate::error::{Op, Stop};
use crate::inode::{Blocks, Body, Inode};
use crate::mutation::Mutation;
use crate::opens::{end_busy, reap, stamp};
use crate::partition::LockedShard;
use crate::store::{Caller, Core, Outside, repeated};
use bivouac_layout::{FileLayout, Ino, ServerId, Template};
use bivouac_proto::attr::{FILE_MAX, INLINE_MAX};
use bivouac_proto::auth::Credentials;
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, Refusal, Reply, Time};

/// Changes the size of a file in its record; bytes that appear are zeros.
pub(crate) fn resize_inline(inode: &mut Inode, size: usize, now: Time, who: &Credentials) {
    if let Body::Inline(data) = &mut inode.body {
        let mut bytes = std::mem::take(data).into_vec();
        bytes.resize(size, 0);
        *data = bytes.into();
        inode.size = size as u64;
        inode.size_version += 1;
        touch(inode, now, who);
    }
}

fn touch(inode: &mut Inode, now: Time, who: &Credentials) {
    inode.mtime = now;
    inode.ctime = now;
    inode.mode = mode_after_write(inode.owner(), who);
}

fn not_a_file(inode: &Inode) -> Stop {
    if inode.as_directory().is_some() { Errno::ISDIR.into() } else { Errno::INVAL.into() }
}

/// How an append begins.
enum Append {
    Answered(Reply),
    Spill,
    /// At the file's end, when that is known here.
    Blocks {
        layout: FileLayout,
        end: Option<u64>,
        size: u64,
        size_version: u32,
    },
}

impl<O: Outside> Core<O> {
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
                return Err(if inode.as_blocks().is_some() {
                    Refusal::NotInline.into()
                } else {
                    not_a_file(&inode)
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
            locked.commit(draft)?;
            Ok(Reply::Done)
        })
    }

    pub(crate) fn spill(&self, ino: Ino) -> Result<Reply, Failure> {
        Ok(Reply::Meta(MetaReply::Attr(Box::new(self.spill_now(ino)?))))
    }

    /// Moves a file's data out of its record, if it is still there.
    fn spill_now(&self, ino: Ino) -> Result<Attr, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let step = self.partitions.with(ino.shard(), |locked| {
            locked.shard.is_not_busy(ino)?;
            let inode = locked.shard.inode(ino)?;
            let layout = inode.layout(ino, &map);
            match &inode.body {
                Body::Blocks(_) => Ok(Err(inode.attr(ino))),
                // What a crash in an earlier try left at the server is to go first.
                Body::Inline(_) if locked.shard.purges.contains_key(&ino) => Err(Stop::Wait),
                Body::Inline(data) if data.is_empty() => Ok(Err(move_out(locked, ino, &layout, now, false)?)),
                Body::Inline(data) => {
                    let data = data.clone();
                    let holder = layout.server_at(&map, 0).ok_or(Errno::IO)?;
                    let mut draft = Draft::new(now);
                    draft.push(Mutation::PutPurge(ino, vec![holder]));
                    locked.commit(draft)?;
                    locked.shard.live.entry(ino).or_default().busy = true;
                    Ok(Ok((data, layout, holder)))
                }
                _ => Err(not_a_file(&inode)),
            }
        })?;
        let (data, layout, holder) = match step {
            Err(attr) => return Ok(attr),
            Ok(step) => step,
        };
        let written = match self.outside.data(
            holder,
            &DataRequest::Write { ino, offset: 0, sync: false },
            &data,
            &mut [],
        ) {
            Ok(DataReply::Written { count, .. }) if count as usize == data.len() => Ok(()),
            Ok(DataReply::Written { .. }) => Err(Errno::NOSPC),
            Ok(_) => Err(Errno::PROTO),
            Err(errno) => Err(errno),
        };
        let result = self.partitions.with(ino.shard(), |locked| {
            end_busy(locked, ino);
            written?;
            locked.shard.inode(ino)?;
            let attr = move_out(locked, ino, &layout, now, true)?;
            reap(locked, &map, ino, now)?;
            Ok(attr)
        });
        if result.is_err() {
            self.keeper.purge(ino);
        }
        result
    }

    pub(crate) fn truncate(&self, caller: &Caller, ino: Ino, size: u64) -> Result<Reply, Failure> {
        if size > FILE_MAX {
            return Err(Errno::FBIG.into());
        }
        self.partitions.with(ino.shard(), |locked| {
            // A description that is open for writing may cut whatever the mode says, and only the owner can have
            // one against the mode; the client checks what a path asks for.
            let owner = locked.shard.inode(ino)?.owner();
            Ok(owner.check_owner_or(&caller.credentials, WRITE)?)
        })?;
        self.once(caller, ino.shard(), || {
            let attr = self.set_size(ino, size, &caller.credentials, &caller.id)?;
            Ok(Reply::Meta(MetaReply::Attr(Box::new(attr))))
        })
    }

    /// Sets a file's size. The attributes are what request `id` is answered with.
    pub(crate) fn set_size(
        &self,
        ino: Ino,
        size: u64,
        who: &Credentials,
        id: &RequestId,
    ) -> Result<Attr, Failure> {
        let now = self.outside.now();
        loop {
            // `None`: out of the record first.
            let step = self.partitions.with(ino.shard(), |locked| {
                locked.shard.is_not_busy(ino)?;
                let inode = locked.shard.inode(ino)?;
                match &inode.body {
                    Body::Inline(_) if size <= INLINE_MAX as u64 => {
                        let mut draft = Draft::new(now);
                        draft.frees = size <= inode.size;
                        if let Some(inode) = draft.inode(locked.shard, ino) {
                            resize_inline(inode, size as usize, now, who);
                            let attr = inode.attr(ino);
                            draft.answer(id, &Reply::Meta(MetaReply::Attr(Box::new(attr))));
                        }
                        locked.commit(draft)?;
                        Ok(Some(Err(locked.shard.inode(ino)?.attr(ino))))
                    }
                    Body::Inline(_) => Ok(None),
                    Body::Blocks(blocks) => {
                        let before = (inode.size, blocks.as_ref().clone());
                        let mut draft = Draft::freeing(now);
                        if let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut) {
                            blocks.truncating = Some(size);
                        }
                        locked.commit(draft)?;
                        locked.shard.live.entry(ino).or_default().busy = true;
                        Ok(Some(Ok(before)))
                    }
                    _ => Err(not_a_file(&inode)),
                }
            })?;
            match step {
                None => {
                    self.spill_now(ino)?;
                }
                Some(Err(attr)) => return Ok(attr),
                Some(Ok((old, blocks))) => {
                    let truncated = self.truncate_blocks(ino, &blocks, old, size);
                    return self.end_truncation(ino, size, who, id, truncated);
                }
            }
        }
    }

    /// Does a truncation again that a crash interrupted.
    pub(crate) fn redo_truncation(&self, ino: Ino) -> Result<(), Failure> {
        let found = self.partitions.with(ino.shard(), |locked| {
            let inode = locked.shard.inode(ino)?;
            let Some(size) = inode.as_blocks().and_then(|b| b.truncating) else {
                return Ok(None);
            };
            locked.shard.is_not_busy(ino)?;
            let blocks = inode.as_blocks().cloned();
            locked.shard.live.entry(ino).or_default().busy = true;
            Ok(blocks.map(|blocks| (size, blocks)))
        })?;
        let Some((size, blocks)) = found else {
            return Ok(());
        };
        let truncated = self.truncate_blocks(ino, &blocks, u64::MAX, size);
        let again = truncated.is_err();
        let (root, nobody) = (Credentials::default(), RequestId::default());
        let result = self.end_truncation(ino, size, &root, &nobody, truncated);
        if again {
            // Still owed.
            let now = self.outside.now();
            self.partitions.with(ino.shard(), |locked| {
                let mut draft = Draft::freeing(now);
                if let Some(blocks) = draft.inode(locked.shard, ino).and_then(Inode::blocks_mut) {
                    blocks.truncating = Some(size);
                }
                locked.commit(draft)
            })?;
        }
        result.map(drop)
    }

    /// Cuts the sub-files that can be longer than `size`, and lengthens that of the last byte.
    fn truncate_blocks(&self, ino: Ino, blocks: &Blocks, old: u64, size: u64) -> Result<(), Errno> {
        let map = self.outside.map();
        let last = size.checked_sub(1).and_then(|last| blocks.layout.server_at(&map, last));
        let longer: Vec<ServerId> = if blocks.settled && size >= old {
            Vec::new()
        } else {
            let reach = if blocks.settled { blocks.reach } else { u64::MAX };
            blocks.layout.servers(&map, reach).into_iter().filter(|server| Some(*server) != last).collect()
        };
        for answer in self.outside.data_all(&longer, &DataRequest::Truncate { ino, size, extend: false }) {
            answer?;
        }
        if let Some(last) = last {
            self.outside.data(last, &DataRequest::Truncate { ino, size, extend: true }, &[], &mut [])?;
        }
        Ok(())
    }

    fn end_truncation(
        &self,
        ino: Ino,
        size: u64,
        who: &Credentials,
        id: &RequestId,
        truncated: Result<(), Errno>,
    ) -> Result<Attr, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        self.partitions.with(ino.shard(), |locked| {
            end_busy(locked, ino);
            locked.shard.inode(ino)?;
            let mut draft = Draft::freeing(now);
            if let Some(inode) = draft.inode(locked.shard, ino) {
                if truncated.is_ok() {
                    inode.size = size;
                    inode.size_version += 1;
                    touch(inode, now, who);
                }
                if let Some(blocks) = inode.blocks_mut() {
                    blocks.truncating = None;
                    blocks.reach = blocks.reach.max(size);
                }
                let attr = inode.attr(ino);
                if truncated.is_ok() {
                    draft.answer(id, &Reply::Meta(MetaReply::Attr(Box::new(attr))));
                }
            }
            locked.commit(draft)?;
            if truncated.is_ok()
                && let Some(live) = locked.shard.live.get_mut(&ino)
            {
                live.written.end = 0;
                live.written.append_end = live.written.append_end.map(|_| size);
            }
            let attr = locked.shard.inode(ino)?.attr(ino);
            reap(locked, &map, ino, now)?;
            truncated?;
            Ok(attr)
        })
    }

    pub(crate) fn append(&self, caller: &Caller, ino: Ino, payload: &[u8]) -> Result<Reply, Failure> {
        self.once(caller, ino.shard(), || {
            loop {
                match self.begin_append(caller, ino, payload)? {
                    Append::Answered(reply) => return Ok(reply),
                    Append::Spill => {
                        self.spill_now(ino)?;
                    }
                    Append::Blocks { layout, end, size, size_version } => {
                        let written = match end {
                            Some(end) => Ok(end),
                            None => self.extent(ino, &layout).map(|(length, _)| length.max(size)),
                        }
                        .and_then(|end| Ok((end, self.append_blocks(ino, &layout, end, payload)?)));
                        return self.end_append(caller, ino, size_version, written);
                    }
                }
            }
        })
    }

    fn begin_append(&self, caller: &Caller, ino: Ino, payload: &[u8]) -> Result<Append, Failure> {
        let now = self.outside.now();
        self.partitions.with(ino.shard(), |locked| {
            locked.shard.is_not_busy(ino)?;
            let inode = locked.shard.inode(ino)?;
            let size_version = inode.size_version;
            match &inode.body {
                Body::Inline(data) if data.len() + payload.len() <= INLINE_MAX => {
                    let offset = data.len() as u64;
                    let reply = MetaReply::Appended { offset, written: payload.len() as u32, size_version };
                    let reply = Reply::Meta(reply);
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
                    Ok(Append::Answered(reply))
                }
                Body::Inline(_) => Ok(Append::Spill),
                Body::Blocks(blocks) => {
                    let (layout, size, settled) = (blocks.layout.clone(), inode.size, blocks.settled);
                    let live = locked.shard.live.entry(ino).or_default();
                    live.busy = true;
                    let end = live.written.append_end.or(settled.then_some(size));
                    Ok(Append::Blocks { layout, end, size, size_version })
                }
                _ => Err(not_a_file(&inode)),
            }
        })
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
            match self.outside.data(piece.server, &request, bytes, &mut []) {
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
        caller: &Caller,
        ino: Ino,
        size_version: u32,
        written: Result<(u64, u32), Errno>,
    ) -> Result<Reply, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        self.partitions.with(ino.shard(), |locked| {
            end_busy(locked, ino);
            let (offset, count) = match written {
                Ok(written) => written,
                Err(errno) => {
                    if let Some(live) = locked.shard.live.get_mut(&ino) {
                        live.written.append_end = None;
                        live.written.unsure = true;
                    }
                    reap(locked, &map, ino, now)?;
                    return Err(errno.into());
                }
            };
            let end = offset + u64::from(count);
            let live = locked.shard.live.entry(ino).or_default();
            live.written.end = live.written.end.max(end);
            live.written.last = now;
            let only_appenders = live.has_writer() && live.opens.iter().all(|o| o.append || !o.write);
            live.written.append_end = only_appenders.then_some(end);
            let reply = MetaReply::Appended { offset, written: count, size_version };
            let reply = Reply::Meta(reply);
            let mut draft = Draft::new(now);
            let inode = locked.shard.inode(ino)?;
            if inode.as_blocks().is_some_and(|b| b.settled) {
                // Without an open: there will be no close to settle it.
                let stamp = crate::mutation::Stamp { size: end, mtime: now, ctime: now, ..stamp(&inode) };
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
            reap(locked, &map, ino, now)?;
            Ok(reply)
        })
    }
}

/// The record becomes that of a file in blocks.
fn move_out(
    locked: &mut LockedShard<'_>,
    ino: Ino,
    layout: &FileLayout,
    now: Time,
    purge_noted: bool,
) -> Op<Attr> {
    let settled = !locked.shard.live.get(&ino).is_some_and(|l| l.has_writer());
    let mut draft = Draft::new(now);
    if purge_noted {
        draft.push(Mutation::DropPurge(ino));
    }
    if let Some(inode) = draft.inode(locked.shard, ino) {
        let (reach, layout) = (inode.size, layout.clone());
        inode.set_template(Template::default());
        inode.body =
            Body::Blocks(Box::new(Blocks { layout, settled, reach, truncating: None, mtime_set: Time::MIN }));
    }
    locked.commit(draft)?;
    let inode = locked.shard.inode(ino)?;
    let (attr, size) = (inode.attr(ino), inode.size);
    if let Some(live) = locked.shard.live.get_mut(&ino) {
        let only_appenders = live.has_writer() && live.opens.iter().all(|o| o.append || !o.write);
        live.written = crate::shard::Written {
            append_end: only_appenders.then_some(size),
            ..crate::shard::Written::default()
        };
    }
    Ok(attr)
}
