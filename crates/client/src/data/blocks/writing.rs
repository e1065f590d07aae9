//! Writing blocks.

use super::end_of;
use crate::data::blocks::Blocks;
use crate::data::local::Direct;
use crate::requests::{DataJob, OUTDATED, ahead_job, data_done, piece_job, write_job};
use bivouac_layout::{Group, Map, Piece, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::data::{DataReply, DataRequest};

/// Writes of so many bytes or more are sent to a copy on this node from here, rather than through the primary.
const LONG: usize = 64 << 10;

/// But not if a call writes more pieces than this: then links have enough to do, and the copy too much.
const FEW: usize = 2;

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
    /// Writes at `offset`. Returns how much was written from there on without a gap, and an error only if
    /// that is nothing. What was written behind a gap is undone, so that the file is not longer than the
    /// count says.
    #[inline(always)]
    pub(crate) fn write(&self, offset: u64, data: &[u8], sync: bool) -> Result<usize, Errno> {
        let map = self.namespace.session().map();
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
        self.namespace.requests().data_jobs(&mut jobs);
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
        let Ok(session) = self.namespace.session().number() else { return Vec::new() };
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
        if !is_copied || change.data.len() < LONG || !self.namespace.session().local_access() {
            return None;
        }
        let (map, node) = (self.namespace.session().map(), self.namespace.session().node());
        let holder = map.reader_of(change.piece.group, node)?;
        let is_here = map.server(holder).is_some_and(|server| server.node == node);
        (is_here && holder != change.piece.server).then(|| (holder, self.namespace.session().next_ahead()))
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
                self.namespace.requests().data_jobs(&mut jobs);
            }
        }
    }
}
