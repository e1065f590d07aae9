//! Where a file has data and where it has holes (SEEK_DATA, SEEK_HOLE).
//!
//! Each server knows about its own blocks only, and is asked only about them: all servers of a stretch at
//! once, and the nearest answer counts. Behind the end of a sub-file everything is a hole, and the file's
//! size, which is asked for first, is the bound of all. What is reported as a hole is one. What is reported
//! as data may be zeros: the servers' local file systems know holes only in units of their own blocks, and
//! inline data counts as data up to its end.

use super::Data;
use super::blocks::Blocks;
use crate::requests::{DataJob, data_done, data_job};
use bivouac_layout::Map;
use bivouac_proto::Errno;
use bivouac_proto::data::{DataReply, DataRequest, Share};

/// How many blocks of each server one question covers, when each block may take the server a step.
const BLOCKS_AT_ONCE: u64 = 4096;

impl Data<'_> {
    /// The first data (or `hole`) at or after `offset`; the end of the file is a hole. ENXIO where there is
    /// none.
    pub(crate) fn seek_data(self, offset: i64, hole: bool) -> Result<u64, Errno> {
        let size = self.attr()?.size;
        let offset = u64::try_from(offset).ok().filter(|offset| *offset < size).ok_or(Errno::NXIO)?;
        let found = self.by_newest_layout(|blocks| {
            let mut at = offset;
            while at < size {
                let (found, end) = blocks.seek_from(at, size, hole)?;
                match found {
                    Some(found) => return Ok(Some(found)),
                    None => at = end,
                }
            }
            Ok(None)
        })?;
        match found {
            None => Ok(if hole { size } else { offset }),
            Some(Some(found)) => Ok(found),
            Some(None) if hole => Ok(size),
            Some(None) => Err(Errno::NXIO),
        }
    }
}

impl Blocks<'_> {
    /// Looks as far as one question to each server goes: what was found, and where the next question begins.
    fn seek_from(&self, at: u64, size: u64, hole: bool) -> Result<(Option<u64>, u64), Errno> {
        let servers = |map: &Map| self.layout.turns_at(map, at).map_or_else(Vec::new, |(servers, _)| servers);
        self.namespace.requests().by_newest_map(servers, |map, _| self.seek_by(map, at, size, hole))
    }

    fn seek_by(&self, map: &Map, at: u64, size: u64, hole: bool) -> Result<(Option<u64>, u64), Errno> {
        let (servers, range_end) = self.layout.turns_at(map, at).ok_or(Errno::IO)?;
        let width = servers.len() as u32;
        let block_size = self.layout.block_size;
        let mut end = size.min(range_end);
        if hole {
            // Data takes a server one step, however far it is; each block without a hole takes one.
            let reach = u64::from(block_size).saturating_mul(u64::from(width)).saturating_mul(BLOCKS_AT_ONCE);
            end = end.min(at.saturating_add(reach));
        }
        let mut jobs: Vec<DataJob<'_>> = Vec::with_capacity(servers.len());
        for (turn, server) in servers.into_iter().enumerate() {
            let share = Share { block_size, width, turn: turn as u32 };
            let request = DataRequest::Seek { ino: self.ino, offset: at, end, hole, share };
            jobs.push(data_job((server, self.layout.version), request, &[], &mut []));
        }
        self.namespace.requests().data_jobs(&mut jobs);
        let mut nearest: Option<u64> = None;
        for job in &mut jobs {
            match data_done(job) {
                Ok((DataReply::Position { offset }, _)) if (at..end).contains(&offset) => {
                    nearest = Some(nearest.map_or(offset, |nearest| nearest.min(offset)));
                }
                Ok(_) => return Err(Errno::PROTO),
                Err(Errno::NXIO) => {}
                Err(errno) => return Err(self.noted(errno)),
            }
        }
        Ok((nearest, end))
    }
}
