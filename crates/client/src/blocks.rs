//! Reading and writing files that live in blocks.
//!
//! A range is cut into pieces by the layout. Pieces on this node are read and written directly in their sub-files;
//! the others go out in one exchange with all servers concerned. No write touches the inode: a file's size is the
//! greatest length of its sub-files while somebody writes it. A read that comes back short therefore asks: bytes that a
//! later piece or a longer sub-file proves to lie inside the file are a hole, and read as zeros.

use crate::local::{SubFiles, errno};
use crate::rpc::DataJob;
use crate::session::Client;
use bivouac_layout::{FileLayout, Ino, Map, Piece, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind, Store};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::MAX_PAYLOAD;
use rustix::io::ReadWriteFlags;
use std::io::{IoSlice, IoSliceMut};

/// A file in blocks, for the length of a call.
pub(crate) struct Blocks<'a> {
    pub(crate) client: &'a Client,
    pub(crate) ino: Ino,
    pub(crate) layout: &'a FileLayout,
    pub(crate) local: &'a SubFiles,
}

/// What the servers of a file know of it together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Extents {
    /// Greatest length of a sub-file: the file's size.
    pub(crate) length: u64,
    /// Allocated on all servers, bytes.
    pub(crate) allocated: u64,
    /// Nanoseconds since the last write; `u64::MAX` if there was none.
    pub(crate) age: u64,
}

/// A piece under way.
struct Part<'b> {
    piece: Piece,
    buffer: &'b mut [u8],
    filled: usize,
}

impl Blocks<'_> {
    /// Reads from `offset`; returns less than asked only at the end of the file.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let map = self.client.map();
        let end = end_of(offset, buffer.len())?;
        let len = (end - offset) as usize;
        // The common case first: one piece, on this node.
        if let Some(piece) = self.layout.piece_at(map, offset, end)
            && piece.len as usize == len
            && let Some(sub_file) = self.local.get(self.client, piece.server, self.ino, false)
        {
            let filled = read_all(sub_file, offset, &mut buffer[..len])?;
            if filled == len {
                return Ok(len);
            }
            return self.finish(offset, &mut buffer[..len], filled, offset + filled as u64);
        }
        let mut known_end = 0;
        let mut parts = cut(map, self.layout, offset, &mut buffer[..len]);
        if parts.iter().map(|p| p.piece.len).sum::<u64>() != len as u64 {
            return Err(Errno::IO);
        }
        let mut remote = Vec::new();
        for part in &mut parts {
            match self.local.get(self.client, part.piece.server, self.ino, false) {
                Some(sub_file) => {
                    part.filled = read_all(sub_file, part.piece.offset, part.buffer)?;
                    known_end = known_end.max(end_if_any(part));
                }
                None => remote.push(part),
            }
        }
        known_end = known_end.max(self.read_remote(remote)?);
        // Everything up to the last piece with data is inside the file: gaps before it are holes.
        for part in &mut parts {
            known_end = known_end.max(end_if_any(part));
        }
        let first_gap = parts.iter().position(|p| p.filled < p.buffer.len());
        let Some(first_gap) = first_gap else {
            return Ok(len);
        };
        let mut contiguous = parts[first_gap].filled;
        for part in &parts[..first_gap] {
            contiguous += part.buffer.len();
        }
        for part in &mut parts[first_gap..] {
            let filled = part.filled;
            part.buffer[filled..].fill(0);
        }
        drop(parts);
        self.finish(offset, &mut buffer[..len], contiguous, known_end)
    }

    /// Ends a read of which `filled` bytes are there for sure and the rest is zeros or beyond the end.
    fn finish(&self, offset: u64, buffer: &mut [u8], filled: usize, known_end: u64) -> Result<usize, Errno> {
        let wanted_end = offset + buffer.len() as u64;
        let size = if known_end >= wanted_end {
            known_end
        } else {
            known_end.max(self.length()?)
        };
        let inside = (size.min(wanted_end).saturating_sub(offset) as usize).max(filled);
        if known_end <= offset + filled as u64 {
            // Nothing was zeroed yet behind what was read.
            buffer[filled..inside].fill(0);
        }
        Ok(inside)
    }

    /// Reads pieces from their servers; returns the greatest sub-file length that the answers tell.
    fn read_remote(&self, parts: Vec<&mut Part<'_>>) -> Result<u64, Errno> {
        let mut known_end = 0;
        let mut jobs: Vec<DataJob<'_>> = Vec::with_capacity(parts.len());
        let mut filled = Vec::with_capacity(parts.len());
        for part in parts {
            let request = DataRequest::Read {
                ino: self.ino,
                offset: part.piece.offset,
                len: part.piece.len as u32,
            };
            jobs.push(DataJob::new(part.piece.server, request, &[], part.buffer));
            filled.push(&mut part.filled);
        }
        self.client.data_jobs(&mut jobs);
        for (job, filled) in jobs.iter_mut().zip(filled) {
            match job.take()? {
                (DataReply::Read { length }, count) => {
                    *filled = count;
                    known_end = known_end.max(length);
                }
                _ => return Err(Errno::PROTO),
            }
        }
        Ok(known_end)
    }

    /// Writes at `offset`. Returns how much is in the file from there on without a gap, and an error only when that
    /// is nothing; what landed behind a gap is cut off again.
    pub(crate) fn write(&self, offset: u64, data: &[u8], sync: bool) -> Result<usize, Errno> {
        let map = self.client.map();
        let end = end_of(offset, data.len())?;
        let data = &data[..(end - offset) as usize];
        if let Some(piece) = self.layout.piece_at(map, offset, end)
            && piece.len as usize == data.len()
            && let Some(sub_file) = self.local.get(self.client, piece.server, self.ino, true)
        {
            return write_all(sub_file, offset, data, sync);
        }
        let mut pieces: Vec<(Piece, &[u8], Result<usize, Errno>)> = Vec::new();
        let mut rest = data;
        for piece in transfers(map, self.layout, offset, end) {
            let (now, later) = rest.split_at(piece.len as usize);
            pieces.push((piece, now, Err(Errno::IO)));
            rest = later;
        }
        if !rest.is_empty() {
            return Err(Errno::IO);
        }
        let mut remote = Vec::new();
        for entry in &mut pieces {
            match self.local.get(self.client, entry.0.server, self.ino, true) {
                Some(sub_file) => {
                    entry.2 = write_all(sub_file, entry.0.offset, entry.1, sync);
                    if entry.2 != Ok(entry.1.len()) {
                        // What comes behind would have to be taken back.
                        break;
                    }
                }
                None => remote.push(entry),
            }
        }
        self.write_remote(remote, sync);
        self.settle(&pieces)
    }

    fn write_remote(&self, pieces: Vec<&mut (Piece, &[u8], Result<usize, Errno>)>, sync: bool) {
        let mut jobs = Vec::with_capacity(pieces.len());
        let mut results = Vec::with_capacity(pieces.len());
        for (piece, data, result) in pieces {
            let request = DataRequest::Write {
                ino: self.ino,
                offset: piece.offset,
                sync,
            };
            jobs.push(DataJob::new(piece.server, request, data, &mut []));
            results.push(result);
        }
        self.client.data_jobs(&mut jobs);
        for (job, result) in jobs.iter_mut().zip(results) {
            *result = match job.take() {
                Ok((DataReply::Written { count }, _)) => Ok(count as usize),
                Ok(_) => Err(Errno::PROTO),
                Err(errno) => Err(errno),
            };
        }
    }

    /// The count of a write over several pieces.
    fn settle(&self, pieces: &[(Piece, &[u8], Result<usize, Errno>)]) -> Result<usize, Errno> {
        let mut count = 0;
        for (index, (_, data, result)) in pieces.iter().enumerate() {
            let landed = *result.as_ref().unwrap_or(&0);
            count += landed;
            if landed < data.len() {
                self.take_back(&pieces[index + 1..]);
                if count > 0 {
                    return Ok(count);
                }
                return result.map(|_| 0).and(Err(Errno::NOSPC));
            }
        }
        Ok(count)
    }

    /// Cuts off what landed behind a gap, where it is the end of its sub-file: the file must not be longer than the
    /// count says.
    fn take_back(&self, pieces: &[(Piece, &[u8], Result<usize, Errno>)]) {
        for (piece, _, result) in pieces {
            let Ok(landed @ 1..) = result else { continue };
            let extent = self
                .client
                .data(piece.server, DataRequest::Extent { ino: self.ino }, &[], &mut []);
            if let Ok((DataReply::Extent { length, .. }, ..)) = extent
                && length <= piece.offset + *landed as u64
            {
                let cut = DataRequest::Truncate {
                    ino: self.ino,
                    size: piece.offset,
                    extend: false,
                };
                let _ = self.client.data(piece.server, cut, &[], &mut []);
            }
        }
    }

    /// The file's size: the greatest length of its sub-files.
    fn length(&self) -> Result<u64, Errno> {
        let mut length = 0;
        let mut jobs = Vec::new();
        for server in self.servers() {
            match self.local.get(self.client, server, self.ino, false) {
                Some(sub_file) => {
                    length = length.max(rustix::fs::fstat(sub_file).map_err(errno)?.st_size as u64)
                }
                None => jobs.push(DataJob::new(
                    server,
                    DataRequest::Extent { ino: self.ino },
                    &[],
                    &mut [],
                )),
            }
        }
        self.client.data_jobs(&mut jobs);
        for job in &mut jobs {
            let (DataReply::Extent { length: there, .. }, _) = job.take()? else {
                return Err(Errno::PROTO);
            };
            length = length.max(there);
        }
        Ok(length)
    }

    /// The servers that can hold a part of the file.
    pub(crate) fn servers(&self) -> Vec<ServerId> {
        self.layout.servers(self.client.map(), u64::MAX)
    }
}

impl Client {
    /// What the servers of a file know of it together.
    pub(crate) fn extents_of(&self, ino: Ino, layout: &FileLayout) -> Result<Extents, Errno> {
        let servers = layout.servers(self.map(), u64::MAX);
        let mut jobs: Vec<DataJob<'_>> = servers
            .iter()
            .map(|&s| DataJob::new(s, DataRequest::Extent { ino }, &[], &mut []))
            .collect();
        self.data_jobs(&mut jobs);
        let mut sum = Extents {
            age: u64::MAX,
            ..Extents::default()
        };
        for job in &mut jobs {
            let (
                DataReply::Extent {
                    length,
                    allocated,
                    age,
                },
                _,
            ) = job.take()?
            else {
                return Err(Errno::PROTO);
            };
            sum.length = sum.length.max(length);
            sum.allocated = sum.allocated.saturating_add(allocated);
            sum.age = sum.age.min(age);
        }
        Ok(sum)
    }

    /// Makes size and mtime exact, when the file is open for writing somewhere.
    pub(crate) fn exact(&self, mut attr: Attr) -> Result<Attr, Errno> {
        if attr.kind == FileKind::File
            && attr.store == (Store::Blocks { settled: false })
            && let Some(layout) = attr.layout.take()
        {
            let extents = self.extents_of(attr.ino, &layout)?;
            attr.size = attr.size.max(extents.length);
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            let now = now
                .tv_sec
                .saturating_mul(1_000_000_000)
                .saturating_add(now.tv_nsec);
            let written = i64::try_from(extents.age).map_or(i64::MIN, |age| now.saturating_sub(age));
            // Not after an explicit change of the times, which set ctime.
            if written > attr.ctime {
                attr.mtime = written;
                attr.ctime = written;
            }
            attr.layout = Some(layout);
        }
        Ok(attr)
    }
}

/// The end of an access, clipped to the largest file and to what one call may transfer.
fn end_of(offset: u64, len: usize) -> Result<u64, Errno> {
    // As the kernel does: at most 2 GiB less a page a call.
    let len = (len as u64).min(0x7fff_f000);
    let end = offset.saturating_add(len).min(bivouac_proto::attr::FILE_MAX);
    if offset > end || (offset == end && len > 0) {
        Err(Errno::FBIG)
    } else {
        Ok(end)
    }
}

fn end_if_any(part: &Part<'_>) -> u64 {
    if part.filled == 0 {
        0
    } else {
        part.piece.offset + part.filled as u64
    }
}

/// The pieces of a range, none longer than one message carries.
fn transfers<'m>(
    map: &'m Map,
    layout: &'m FileLayout,
    offset: u64,
    end: u64,
) -> impl Iterator<Item = Piece> + 'm {
    let mut at = offset;
    std::iter::from_fn(move || {
        let mut piece = layout.piece_at(map, at, end)?;
        piece.len = piece.len.min(u64::from(MAX_PAYLOAD));
        at += piece.len;
        Some(piece)
    })
}

fn cut<'b>(map: &Map, layout: &FileLayout, offset: u64, mut buffer: &'b mut [u8]) -> Vec<Part<'b>> {
    let end = offset + buffer.len() as u64;
    let mut parts = Vec::new();
    for piece in transfers(map, layout, offset, end) {
        let (now, later) = buffer.split_at_mut(piece.len as usize);
        parts.push(Part {
            piece,
            buffer: now,
            filled: 0,
        });
        buffer = later;
    }
    parts
}

fn read_all(sub_file: rustix::fd::BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(sub_file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(filled)
}

fn write_all(
    sub_file: rustix::fd::BorrowedFd<'_>,
    offset: u64,
    data: &[u8],
    sync: bool,
) -> Result<usize, Errno> {
    let mut written = 0;
    while written < data.len() {
        let at = offset + written as u64;
        let result = if sync {
            rustix::io::pwritev2(
                sub_file,
                &[IoSlice::new(&data[written..])],
                at,
                ReadWriteFlags::DSYNC,
            )
        } else {
            rustix::io::pwrite(sub_file, &data[written..], at)
        };
        match result {
            Ok(n) => written += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if written > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(written)
}

/// A reader's view of `IoSliceMut` for one buffer.
pub(crate) fn one(buffer: &mut [u8]) -> [IoSliceMut<'_>; 1] {
    [IoSliceMut::new(buffer)]
}
