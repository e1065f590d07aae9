//! What the data servers know of a file while somebody writes it: size, time of the last write, space.

use crate::rpc::{DataJob, data_done, data_job};
use crate::session::Client;
use bivouac_layout::{FileLayout, Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind, Store, Time};
use bivouac_proto::data::{DataReply, DataRequest, WriteTime};

/// What the data servers of a file know of it, taken together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    /// Greatest length of a sub-file: the file's size.
    pub(crate) length: u64,
    /// Storage that it takes, bytes.
    pub(crate) allocated: u64,
    /// When it was last written.
    pub(crate) written: WriteTime,
}

impl Client {
    /// Asks all servers of a file at once.
    pub(crate) fn extents(&self, ino: Ino, layout: &FileLayout) -> Result<Extents, Errno> {
        self.by_newest_map(|map| {
            let mut sum = self.extents_on(ino, &layout.servers_to_measure(map, u64::MAX))?;
            sum.allocated /= u64::from(layout.copies(map).max(1));
            Ok(sum)
        })
    }

    fn extents_on(&self, ino: Ino, servers: &[ServerId]) -> Result<Extents, Errno> {
        let mut jobs: Vec<DataJob<'_>> =
            servers.iter().map(|&s| data_job(s, DataRequest::Extent { ino }, &[], &mut [])).collect();
        let asked = now();
        self.data_jobs(&mut jobs);
        let answered = now();
        let mut sum = Extents { length: 0, allocated: 0, written: WriteTime::NEVER };
        for job in &mut jobs {
            let (DataReply::Extent { length, allocated, written }, _) = data_done(job)? else {
                return Err(Errno::PROTO);
            };
            let written = written.map_or(WriteTime::NEVER, |write| write.time(asked, answered));
            sum = Extents {
                length: sum.length.max(length),
                allocated: sum.allocated.saturating_add(allocated),
                written: sum.written.max(written),
            };
        }
        Ok(sum)
    }

    /// Makes size, space and mtime exact, when the file is open for writing somewhere.
    pub(crate) fn exact(&self, mut attr: Attr) -> Result<Attr, Errno> {
        if attr.kind == FileKind::File
            && attr.store == (Store::Blocks { settled: false })
            && let Some(layout) = &attr.layout
        {
            let extents = self.extents(attr.ino, layout)?;
            attr.size = attr.size.max(extents.length);
            attr.allocated = Some(extents.allocated);
            let WriteTime { earliest, shown } = extents.written;
            if earliest > attr.mtime_set.unwrap_or(Time::MIN) {
                // An mtime in the future was set before that write, so the write replaces it.
                attr.mtime = if attr.mtime > now() { shown } else { attr.mtime.max(shown) };
                attr.ctime = attr.ctime.max(shown);
            }
        }
        Ok(attr)
    }
}

fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
