//! Reading blocks.

use super::end_of;
use crate::data::blocks::Blocks;
use crate::data::local::Direct;
use crate::requests::{DataJob, copy_job, data_done, read_job};
use bivouac_layout::{Map, Piece, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::data::{DataReply, DataRequest};

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

impl Blocks<'_> {
    /// Reads from `offset`; returns less than asked only at the end of the file.
    #[inline(always)]
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let map = self.namespace.session().map();
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
            self.namespace.requests().data_jobs(&mut jobs);
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
}
