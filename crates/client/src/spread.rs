//! Where a file lies: for people and their tools.

use crate::error::Fail;
use crate::maps::MapRef;
use crate::rpc::{OUTDATED, data_done, data_job};
use crate::session::Client;
use bivouac_layout::{Ino, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind};
use bivouac_proto::data::{DataReply, DataRequest};

/// What one server holds of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Which server.
    pub server: ServerId,
    /// Storage that it takes there, bytes.
    pub stored: u64,
}

/// Where a file lies.
#[derive(Clone, PartialEq, Debug)]
pub struct Spread {
    /// Its attributes, exact.
    pub attr: Attr,
    /// The server that holds its inode, and its inline data if it has any.
    pub home: ServerId,
    /// The servers that its blocks are striped over, first block first; none for what has no blocks.
    pub blocks: Vec<Holding>,
}

impl Client {
    /// Where the file is that a path names. Follows symbolic links.
    pub fn spread(&self, start: Ino, path: &[u8]) -> Result<Spread, Fail> {
        let mut attr = self.stat(start, path, true)?;
        loop {
            match self.holdings(&attr) {
                Err(errno) if errno == OUTDATED || self.names_others(&attr) => {
                    let version = attr.layout.as_ref().map_or(0, |layout| layout.version);
                    attr = self.exact(*self.newer_attr(attr.ino, version)?)?;
                }
                blocks => {
                    let home = self.map().primary(attr.ino.shard());
                    return Ok(Spread { home, blocks: blocks?, attr });
                }
            }
        }
    }

    fn names_others(&self, attr: &Attr) -> bool {
        attr.layout.as_ref().is_some_and(|layout| self.is_outdated(attr.ino, layout))
    }

    /// What each server has of a file.
    fn holdings(&self, attr: &Attr) -> Result<Vec<Holding>, Errno> {
        let Some(layout) = attr.layout.as_deref().filter(|_| attr.kind == FileKind::File) else {
            return Ok(Vec::new());
        };
        let servers = layout.servers(&self.map(), u64::MAX);
        let request = DataRequest::Extent { ino: attr.ino };
        let job = |&server: &ServerId| data_job((server, layout.version), request, &[], &mut []);
        let mut jobs: Vec<_> = servers.iter().map(job).collect();
        self.data_jobs(&mut jobs);
        let holding = |(server, job)| match data_done(job)? {
            (DataReply::Extent { allocated, .. }, _) => Ok(Holding { server, stored: allocated }),
            _ => Err(Errno::PROTO),
        };
        servers.into_iter().zip(&mut jobs).map(holding).collect()
    }

    /// The newest map known: servers, nodes, and the deployment's defaults for new files.
    pub fn deployment_map(&self) -> MapRef<'_> {
        self.map()
    }
}
