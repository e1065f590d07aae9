//! What the servers of a file know of it while somebody writes it: size, age, space.

use crate::rpc::DataJob;
use crate::session::Client;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind, Store, Time};
use bivouac_proto::data::{DataReply, DataRequest};

/// What the servers of a file know of it together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    /// Greatest length of a sub-file: the file's size.
    pub(crate) length: u64,
    /// Nanoseconds since the last write; `u64::MAX` if there was none.
    pub(crate) age: u64,
}

impl Client {
    /// Asks all these servers at once.
    pub(crate) fn extents(&self, ino: Ino, servers: &[ServerId]) -> Result<Extents, Errno> {
        let mut jobs: Vec<DataJob<'_>> =
            servers.iter().map(|&s| DataJob::new(s, DataRequest::Extent { ino }, &[], &mut [])).collect();
        self.data_jobs(&mut jobs);
        let mut sum = Extents { length: 0, age: u64::MAX };
        for job in &mut jobs {
            let (DataReply::Extent { length, age, .. }, _) = job.take()? else { return Err(Errno::PROTO) };
            sum = Extents { length: sum.length.max(length), age: sum.age.min(age) };
        }
        Ok(sum)
    }

    /// Makes size and mtime exact, when the file is open for writing somewhere.
    pub(crate) fn exact(&self, mut attr: Attr) -> Result<Attr, Errno> {
        if attr.kind == FileKind::File
            && attr.store == (Store::Blocks { settled: false })
            && let Some(layout) = &attr.layout
        {
            // Before the servers look, so that a write never seems younger than it is.
            let asked = now();
            let extents = self.extents(attr.ino, &layout.servers(self.map(), u64::MAX))?;
            attr.size = attr.size.max(extents.length);
            let written = i64::try_from(extents.age).map_or(i64::MIN, |age| asked.saturating_sub(age));
            if written > attr.mtime_set.unwrap_or(i64::MIN) {
                // A time in the future was set before that write, which ends it.
                attr.mtime = if attr.mtime > asked { written } else { attr.mtime.max(written) };
                attr.ctime = attr.ctime.max(written);
            }
        }
        Ok(attr)
    }
}

fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
