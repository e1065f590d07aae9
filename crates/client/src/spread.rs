//! Where a file lies: for people and their tools.

use crate::error::Fail;
use crate::rpc::{data_done, data_job};
use crate::session::Client;
use bivouac_layout::{Ino, Map, ServerId};
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
        let attr = self.stat(start, path, true)?;
        let home = self.map().primary(attr.ino.shard());
        let layout = attr.layout.as_deref().filter(|_| attr.kind == FileKind::File);
        let servers = layout.map(|layout| layout.servers(self.map(), u64::MAX)).unwrap_or_default();
        let request = DataRequest::Extent { ino: attr.ino };
        let mut jobs: Vec<_> =
            servers.iter().map(|&server| data_job(server, request, &[], &mut [])).collect();
        self.data_jobs(&mut jobs);
        let mut blocks = Vec::with_capacity(servers.len());
        for (server, job) in servers.iter().zip(&mut jobs) {
            match data_done(job)? {
                (DataReply::Extent { allocated, .. }, _) => {
                    blocks.push(Holding { server: *server, stored: allocated });
                }
                _ => return Err(Errno::PROTO.into()),
            }
        }
        Ok(Spread { attr, home, blocks })
    }

    /// The newest map known: servers, nodes, and the deployment's defaults for new files.
    pub fn deployment_map(&self) -> &Map {
        self.map()
    }
}
