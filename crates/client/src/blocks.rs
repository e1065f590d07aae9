//! Reading and writing files that live in blocks.
//!
//! The layout divides a range into pieces. Pieces on this node are read and written directly in their
//! sub-files; the others go out in one exchange with all servers concerned. What has copies is written by its primary,
//! and read from any copy, one on this node first; where that cannot be shown at the moment, from the primary. No write touches the inode: a
//! file's size is the greatest length of its sub-files while somebody writes it.
//!
//! A read that comes back short finds out how long the file is, and reads again what lies before that end and
//! was missing: what was written meanwhile is there now, and only what is still missing is a hole, which
//! reads as zeros.
//!
//! An access of one piece on this node costs hardly more than the system call in it. So what leads there is inlined, and
//! the rest is apart: behind a system call each return to a caller is predicted wrongly where the kernel defends itself
//! against speculation, which takes some 7 ns each time.

use crate::layouts::Known;
use crate::local::{Direct, SubFile, SubFiles};
use crate::rpc::{DataJob, OUTDATED, ahead_job, copy_job, data_done, piece_job, read_job, write_job};
use crate::session::Client;
use bivouac_layout::{FileLayout, Group, Ino, Map, Piece, ServerId};
use bivouac_node::SlotId;
use bivouac_proto::Errno;
use bivouac_proto::attr::{FILE_MAX, Store, TRANSFER_MAX};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::MAX_PAYLOAD;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

/// Writes of so many bytes or more are sent to a copy on this node from here, rather than through the primary.
const LONG: usize = 64 << 10;
/// But not if a call writes more pieces than this: then links have enough to do, and the copy too much.
const FEW: usize = 2;
/// The longest piece that goes to an I/O node, bytes. (With 1 MiB, a message costs little for what it carries.)
const FORWARDED: u32 = 1 << 20;

/// A file in blocks, for the length of a call.
pub(crate) struct Blocks<'a> {
    pub(crate) client: &'a Client,
    pub(crate) ino: Ino,
    /// The open description's slot in the node's table.
    pub(crate) id: SlotId,
    pub(crate) known: &'a Known,
    pub(crate) layout: &'a FileLayout,
    pub(crate) local: &'a SubFiles,
}

/// A piece of a read under way.
struct Part<'b> {
    piece: Piece,
    buffer: &'b mut [u8],
    filled: usize,
    /// Its server gave no answer. This does not matter for a piece behind the file's end.
    failed: Option<Errno>,
}

impl Part<'_> {
    /// Whether something before `end` is missing.
    fn lacks(&self, end: u64) -> bool {
        self.filled < self.buffer.len() && self.piece.offset + (self.filled as u64) < end
    }

    /// Where in the file its data ends; 0 if it has none.
    fn end(&self) -> u64 {
        if self.filled == 0 { 0 } else { self.piece.offset + self.filled as u64 }
    }
}

/// A piece of a write under way.
struct Change<'b> {
    piece: Piece,
    data: &'b [u8],
    /// How much of it is in the sub-file.
    landed: Result<usize, Errno>,
    /// Its server was asked to write it.
    tried: bool,
    /// For a piece that its server wrote: the length of the sub-file before, and the write's number, for
    /// undoing it.
    before: u64,
    undo: u64,
}

impl Blocks<'_> {
    /// Reads from `offset`; returns less than asked only at the end of the file.
    #[inline(always)]
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let map = self.client.map();
        let end = end_of(offset, buffer.len())?;
        let buffer = &mut buffer[..(end - offset) as usize];
        // The common case first: one piece, on this node, all there.
        let mut first = 0;
        if let Some(server) = self.only_reader(&map, offset, end)
            && let Some(sub_file) = self.readable(&map, server)
            && let Ok(Direct::Done(count)) = sub_file.read(offset, buffer)
        {
            if count == buffer.len() {
                return Ok(count);
            }
            first = count;
        }
        self.read_parts(&map, offset, buffer, first)
    }

    /// The same for what may lie anywhere; of the only piece, if it is one, the first bytes are there.
    #[inline(never)]
    fn read_parts(&self, map: &Map, offset: u64, buffer: &mut [u8], first: usize) -> Result<usize, Errno> {
        let end = offset + buffer.len() as u64;
        let mut parts = self.cut(map, offset, buffer);
        if parts.iter().map(|p| p.piece.len).sum::<u64>() != end - offset {
            return Err(self.noted(Errno::IO));
        }
        if let [part] = &mut parts[..]
            && first > 0
        {
            part.filled = first;
        }
        let known_end = self.fill(map, &mut parts)?;
        if parts.iter().all(|p| p.filled == p.buffer.len()) {
            return Ok((end - offset) as usize);
        }
        if self.ino.is_forwarded()
            && let Some(at) = parts.iter().position(|part| part.failed.is_some())
        {
            // Of what it could not read, an I/O node does not say where it ends.
            let (before, behind) = parts.split_at(at);
            let done: usize = before.iter().map(|part| part.filled).sum();
            return match behind.first().and_then(|part| part.failed) {
                Some(errno) if done == 0 => Err(errno),
                _ => Ok(done),
            };
        }
        let size = match self.ino.is_forwarded() || known_end >= end {
            // An I/O node knows how long the file is.
            true => known_end,
            false => known_end.max(self.length()?),
        };
        let inside = size.min(end);
        if parts.iter().any(|p| p.lacks(inside)) {
            // The program's buffer stays untouched behind the end that was found, too.
            for part in &mut parts {
                let wanted = inside.saturating_sub(part.piece.offset).min(part.buffer.len() as u64) as usize;
                let buffer = std::mem::take(&mut part.buffer);
                part.buffer = &mut buffer[..wanted.max(part.filled)];
            }
            self.fill(map, &mut parts)?;
            for part in &mut parts {
                if let (Some(errno), true) = (part.failed, part.lacks(inside)) {
                    return Err(errno);
                }
                let filled = part.filled;
                part.buffer[filled..].fill(0);
            }
        }
        Ok(inside.saturating_sub(offset) as usize)
    }

    /// Reads what is still missing in the parts; returns the file's greatest end that is known.
    fn fill(&self, map: &Map, parts: &mut [Part<'_>]) -> Result<u64, Errno> {
        let mut remote = Vec::new();
        for part in parts.iter_mut().filter(|p| p.filled < p.buffer.len()) {
            let at = part.piece.offset + part.filled as u64;
            let sub_file = self.readable(map, part.piece.server);
            let read = sub_file.map(|s| s.read(at, &mut part.buffer[part.filled..]));
            match read.unwrap_or(Ok(Direct::ThroughServer)) {
                Ok(Direct::Done(count)) => part.filled += count,
                Ok(Direct::ThroughServer) => remote.push(part),
                Err(errno) => part.failed = Some(self.noted(errno)),
            }
        }
        let known_end = match self.layout.replicas {
            1 => self.ask_for(remote, read_job)?.0,
            _ => {
                let (end, left) = self.ask_for(remote, copy_job)?;
                let (other, unanswered) = self.ask_for(left, read_job)?;
                unanswered.into_iter().for_each(|part| part.failed = Some(self.noted(Errno::IO)));
                end.max(other)
            }
        };
        Ok(parts.iter().map(Part::end).fold(known_end, u64::max))
    }

    /// Asks servers for what is missing in parts, in one exchange. The file's greatest end that they know, and the parts
    /// that others have to be asked for.
    fn ask_for<'p, 'b>(
        &self,
        parts: Vec<&'p mut Part<'b>>,
        job: impl for<'j> Fn((&Piece, u32), DataRequest, &'j mut [u8]) -> DataJob<'j>,
    ) -> Result<(u64, Vec<&'p mut Part<'b>>), Errno> {
        let mut parts = parts;
        let mut jobs: Vec<DataJob<'_>> = Vec::with_capacity(parts.len());
        for part in &mut parts {
            let Part { piece, buffer, filled, .. } = &mut **part;
            let rest = &mut buffer[*filled..];
            let offset = piece.offset + *filled as u64;
            let request = DataRequest::Read { ino: self.ino, offset, len: rest.len() as u32 };
            jobs.push(job((piece, self.layout.version), self.in_its_way(request), rest));
        }
        if !jobs.is_empty() {
            self.client.data_jobs(&mut jobs);
        }
        let answers: Vec<_> = jobs.iter_mut().map(data_done).collect();
        let (mut known_end, mut left) = (0, Vec::new());
        for (part, answer) in parts.into_iter().zip(answers) {
            match answer {
                Ok((DataReply::Read { length }, count)) => {
                    (part.filled, part.failed) = (part.filled + count, None);
                    known_end = known_end.max(length);
                }
                Ok((DataReply::Elsewhere, _)) => left.push(part),
                Ok(_) => return Err(Errno::PROTO),
                Err(errno) => part.failed = Some(self.noted(errno)),
            }
        }
        Ok((known_end, left))
    }

    /// A request as the description's flags want it: O_DIRECT means something at an I/O node only.
    fn in_its_way(&self, request: DataRequest) -> DataRequest {
        let slot = self.ino.is_forwarded().then(|| self.client.table().slot(self.id)).flatten();
        let is_direct =
            slot.is_some_and(|slot| slot.flags.load(Ordering::Relaxed) as i32 & libc::O_DIRECT != 0);
        if is_direct { request.direct() } else { request }
    }

    /// Writes at `offset`. Returns how much was written from there on without a gap, and an error only if
    /// that is nothing. What was written behind a gap is undone, so that the file is not longer than the
    /// count says.
    #[inline(always)]
    pub(crate) fn write(&self, offset: u64, data: &[u8], sync: bool) -> Result<usize, Errno> {
        let map = self.client.map();
        let end = end_of(offset, data.len())?;
        let data = &data[..(end - offset) as usize];
        if let Some(server) = self.layout.only_server(&map, offset, end)
            && let Some(sub_file) = self.writable(&map, server)
        {
            match sub_file.write(offset, data)? {
                Direct::Done(count) => return Ok(count),
                Direct::ThroughServer => {}
            }
        }
        self.write_parts(&map, offset, data, sync)
    }

    /// The same for what may lie anywhere.
    #[inline(never)]
    fn write_parts(&self, map: &Map, offset: u64, data: &[u8], sync: bool) -> Result<usize, Errno> {
        let end = offset + data.len() as u64;
        let mut changes = Vec::new();
        let mut rest = data;
        for piece in self.transfers(map, offset, end) {
            let (now, later) = rest.split_at(piece.len as usize);
            changes.push(Change {
                piece,
                data: now,
                landed: Err(Errno::IO),
                tried: false,
                before: 0,
                undo: 0,
            });
            rest = later;
        }
        if !rest.is_empty() {
            return Err(self.noted(Errno::IO));
        }
        // What is written behind a gap has to be undone, which only a server can do. So pieces of other
        // servers go first, and direct writes on this node follow as far as there is no gap.
        let is_local = |change: &Change<'_>| self.writable(map, change.piece.server).is_some();
        let remote: Vec<&mut Change<'_>> = changes.iter_mut().filter(|change| !is_local(change)).collect();
        self.write_remote(remote, sync);
        for change in &mut changes {
            if !change.tried {
                let server = change.piece.server;
                let sub_file = self.writable(map, server);
                let written = sub_file.map(|s| s.write(change.piece.offset, change.data));
                match written.unwrap_or(Ok(Direct::ThroughServer)) {
                    Ok(Direct::Done(count)) => change.landed = Ok(count),
                    Ok(Direct::ThroughServer) => self.write_remote(vec![&mut *change], sync),
                    Err(errno) => change.landed = Err(errno),
                }
            }
            if change.landed != Ok(change.data.len()) {
                break;
            }
        }
        // What has failed for that reason is written again.
        if self.known.is_outdated() { Err(OUTDATED) } else { self.settle(&changes) }
    }

    fn write_remote(&self, changes: Vec<&mut Change<'_>>, sync: bool) {
        let mut jobs = Vec::with_capacity(changes.len());
        let here = self.send_ahead(&changes, &mut jobs);
        let ahead = jobs.len();
        for (index, change) in changes.iter().enumerate() {
            let request = DataRequest::Write { ino: self.ino, offset: change.piece.offset, sync };
            let request = self.in_its_way(request);
            jobs.push(match here.get(index) {
                Some(Some(here)) => {
                    write_job((&change.piece, self.layout.version), request, change.data, *here)
                }
                _ => piece_job((&change.piece, self.layout.version), request, change.data, &mut []),
            });
        }
        self.client.data_jobs(&mut jobs);
        let results: Vec<_> = jobs.iter_mut().skip(ahead).map(data_done).collect();
        for (change, result) in changes.into_iter().zip(results) {
            change.tried = true;
            change.landed = match result {
                Ok((DataReply::Written { count, before, undo }, _))
                    if count as usize <= change.data.len() =>
                {
                    (change.before, change.undo) = (before, undo);
                    Ok(count as usize)
                }
                Ok(_) => Err(Errno::PROTO),
                Err(errno) => Err(self.noted(errno)),
            };
        }
    }

    /// Has the bytes of long writes sent to copies on this node, which takes no link. To which, and their numbers, for
    /// each change; or nothing for any.
    fn send_ahead<'j>(
        &self,
        changes: &[&mut Change<'j>],
        jobs: &mut Vec<DataJob<'j>>,
    ) -> Vec<Option<(ServerId, u64)>> {
        if self.layout.replicas == 1 || changes.len() > FEW {
            return Vec::new();
        }
        let Ok(session) = self.client.session() else { return Vec::new() };
        let here: Vec<Option<(ServerId, u64)>> =
            changes.iter().map(|change| self.copy_here(change)).collect();
        for (change, here) in changes.iter().zip(&here) {
            jobs.extend(here.map(|here| ahead_job(session, here, change.data)));
        }
        here
    }

    /// Another holder than the primary, on this node, which is sent the bytes of a long write from here; and a number
    /// for them.
    fn copy_here(&self, change: &Change<'_>) -> Option<(ServerId, u64)> {
        let is_copied = matches!(change.piece.group, Group::Blocks { copies: 2.., .. });
        if !is_copied || change.data.len() < LONG || !self.client.local_access {
            return None;
        }
        let (map, node) = (self.client.map(), self.client.node());
        let holder = map.reader_of(change.piece.group, node)?;
        let is_here = map.server(holder).is_some_and(|server| server.node == node);
        (is_here && holder != change.piece.server).then(|| (holder, self.client.next_ahead()))
    }

    /// The count of a write over several pieces.
    fn settle(&self, changes: &[Change<'_>]) -> Result<usize, Errno> {
        let mut count = 0;
        for (index, change) in changes.iter().enumerate() {
            let landed = change.landed.unwrap_or(0);
            count += landed;
            if landed < change.data.len() {
                self.take_back(&changes[index + 1..]);
                return if count > 0 { Ok(count) } else { Err(change.landed.err().unwrap_or(Errno::NOSPC)) };
            }
        }
        Ok(count)
    }

    /// Undoes what was written behind a gap, where it made a sub-file longer. What was there before stays,
    /// and so does what others have written since.
    fn take_back(&self, changes: &[Change<'_>]) {
        for change in changes {
            let Ok(landed @ 1..) = change.landed else { continue };
            let (undo, end) = (change.undo, change.piece.offset + landed as u64);
            if undo != 0 && change.before < end {
                let size = change.before.max(change.piece.offset);
                let request = DataRequest::TakeBack { ino: self.ino, undo, end, size };
                let mut jobs = [piece_job((&change.piece, self.layout.version), request, &[], &mut [])];
                self.client.data_jobs(&mut jobs);
            }
        }
    }

    /// The file's size. Sub-files that are all at hand tell it; then the inode's server, if nobody writes the
    /// file; then the servers of the file.
    fn length(&self) -> Result<u64, Errno> {
        let map = self.client.map();
        let mut length = Some(0);
        for server in self.layout.servers(&map, u64::MAX) {
            length = match self.local.known(&map, server).map(|sub_file| sub_file.length()) {
                Some(Direct::Done(there)) => length.map(|length| u64::max(length, there)),
                Some(Direct::ThroughServer) | None => None,
            };
        }
        if let Some(length) = length {
            return Ok(length);
        }
        let attr = self.client.attr_of(self.ino)?;
        if attr.layout.is_some_and(|layout| layout.version > self.layout.version) {
            // What was added since may be on other servers.
            return Err(self.noted(OUTDATED));
        }
        if attr.store == (Store::Blocks { settled: true }) {
            return Ok(attr.size);
        }
        let extents = self.client.extents(self.ino, self.layout).map_err(|errno| self.noted(errno))?;
        // What of it is lost with servers that have left, nobody of these has.
        Ok(extents.length.max(attr.size))
    }

    /// An error, which says perhaps that the layout is outdated: then the access is done again, whatever came of it.
    pub(crate) fn noted(&self, errno: Errno) -> Errno {
        // A server that has left cannot say so any more.
        let has_left = || errno == Errno::IO && self.client.is_outdated(self.ino, self.layout);
        if errno == OUTDATED || has_left() {
            self.known.outdate();
            return OUTDATED;
        }
        errno
    }

    /// The sub-file of a server of this node, for reading directly.
    #[inline]
    fn readable(&self, map: &Map, server: ServerId) -> Option<SubFile<'_>> {
        self.local.get((self.client, map), server, (self.ino, self.known), false)
    }

    /// The same for writing. Blocks that have copies are not written directly: their primary orders what is done to them.
    #[inline]
    fn writable(&self, map: &Map, server: ServerId) -> Option<SubFile<'_>> {
        match self.layout.replicas {
            1 => self.local.get((self.client, map), server, (self.ino, self.known), true),
            _ => None,
        }
    }

    /// Which server to read all of a range from, if that is one.
    #[inline]
    fn only_reader(&self, map: &Map, offset: u64, end: u64) -> Option<ServerId> {
        match self.layout.replicas {
            1 => self.layout.only_server(map, offset, end),
            _ => {
                let piece = self.layout.piece_at(map, offset, end)?;
                (piece.len == end - offset).then(|| self.reader(map, &piece))
            }
        }
    }

    /// Which server to read a piece from.
    fn reader(&self, map: &Map, piece: &Piece) -> ServerId {
        match self.layout.replicas {
            1 => piece.server,
            _ => map.reader_of(piece.group, self.client.node()).unwrap_or(piece.server),
        }
    }

    /// The pieces of a range, none longer than one message carries. An I/O node passes each piece on when it has all of it: so that
    /// both ways are used at once, what is long goes to it in pieces.
    fn transfers<'m>(&'m self, map: &'m Map, offset: u64, end: u64) -> impl Iterator<Item = Piece> + 'm {
        let most = if self.ino.is_forwarded() { FORWARDED } else { MAX_PAYLOAD };
        let mut at = offset;
        std::iter::from_fn(move || {
            let mut piece = self.layout.piece_at(map, at, end)?;
            piece.len = piece.len.min(u64::from(most));
            at += piece.len;
            Some(piece)
        })
    }

    fn cut<'b>(&self, map: &Map, offset: u64, mut buffer: &'b mut [u8]) -> Vec<Part<'b>> {
        let end = offset + buffer.len() as u64;
        let mut parts = Vec::new();
        for piece in self.transfers(map, offset, end) {
            let (now, later) = buffer.split_at_mut(piece.len as usize);
            let piece = Piece { server: self.reader(map, &piece), ..piece };
            parts.push(Part { piece, buffer: now, filled: 0, failed: None });
            buffer = later;
        }
        parts
    }

    /// The servers that can hold a part of the file.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.layout.servers(&self.client.map(), u64::MAX)
    }
}

/// The end of an access, clipped to the largest file and to what one call may transfer.
fn end_of(offset: u64, len: usize) -> Result<u64, Errno> {
    let len = len.min(TRANSFER_MAX) as u64;
    let end = offset.saturating_add(len).min(FILE_MAX);
    if offset > end || (offset == end && len > 0) { Err(Errno::FBIG) } else { Ok(end) }
}

/// A reader's view of `IoSliceMut` for one buffer.
pub(crate) fn one(buffer: &mut [u8]) -> [IoSliceMut<'_>; 1] {
    [IoSliceMut::new(buffer)]
}
