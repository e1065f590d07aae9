//! What the data servers know of a file while somebody writes it: size, time of the last write, space.

use super::Namespace;
use crate::requests::{DataJob, OUTDATED, data_done, data_job};
use bivouac_layout::{FileLayout, Ino, ServerId};
use bivouac_node::release::monotonic;
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind, Store, Time};
use bivouac_proto::data::{DataReply, DataRequest, WriteTime};
use rustix::time::Timespec;
use std::time::Duration;

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

impl Namespace {
    /// Asks all servers of a file at once. [`OUTDATED`] where the file has another layout by now.
    pub(crate) fn extents(&self, ino: Ino, layout: &FileLayout) -> Result<Extents, Errno> {
        self.requests().by_newest_map(
            |map| layout.servers_to_measure(map, u64::MAX),
            |map, servers| {
                let mut sum = self.extents_on((ino, layout.version), servers)?;
                sum.allocated /= u64::from(layout.copies(map).max(1));
                Ok(sum)
            },
        )
    }

    fn extents_on(&self, (ino, layout): (Ino, u32), servers: &[ServerId]) -> Result<Extents, Errno> {
        let job = |&server: &ServerId| data_job((server, layout), DataRequest::Extent { ino }, &[], &mut []);
        let mut jobs: Vec<DataJob<'_>> = servers.iter().map(job).collect();
        let asked = now();
        self.requests().data_jobs(&mut jobs);
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
            let extents = match self.extents(attr.ino, layout) {
                Err(errno) if errno == OUTDATED || self.is_outdated(attr.ino, layout) => {
                    return self.exact(*self.newer_attr(attr.ino, layout.version)?);
                }
                extents => extents?,
            };
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

/// How long a layout is waited for that is newer than one that a server has refused: the file's server shows it when all
/// servers of its blocks have done their parts. As long as other requests are repeated.
const PATIENCE: Duration = Duration::from_secs(30);

impl Namespace {
    /// Whether a file has another layout than this one, which names servers that have left: they cannot say so any more. Where
    /// they have left with what they held, it may also be that the file has no other layout.
    #[cold]
    pub(crate) fn is_outdated(&self, ino: Ino, layout: &FileLayout) -> bool {
        // The layout of a forwarded file names nobody: whoever serves it answers for all of it.
        if ino.is_forwarded() || !layout.names_servers_that_left(&self.session().map()) {
            return false;
        }
        if !layout.has_lost(&self.session().map(), u64::MAX) {
            return true;
        }
        let newest = self.attr_of(ino).ok().and_then(|attr| attr.layout);
        newest.is_some_and(|newest| newest.version > layout.version)
    }

    /// A file's attributes with a layout that is newer than this version: some server has refused that.
    #[cold]
    pub(crate) fn newer_attr(&self, ino: Ino, version: u32) -> Result<Box<Attr>, Errno> {
        let begun = monotonic();
        let mut pause = Duration::from_micros(50);
        loop {
            let attr = self.attr_of(ino)?;
            if attr.layout.as_ref().is_some_and(|layout| layout.version > version) {
                return Ok(attr);
            }
            if monotonic().saturating_sub(begun) > PATIENCE.as_nanos() as u64 {
                return Err(Errno::IO);
            }
            let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as _ });
            pause = (2 * pause).min(Duration::from_millis(10));
        }
    }
}

fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
