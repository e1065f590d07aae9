//! How full the file system is.

use super::Namespace;
use super::target::Target;
use crate::error::Fail;
use bivouac_layout::{Ino, Map, Server, ServerId, ServerState};
use bivouac_proto::Errno;
use bivouac_proto::data::{DataReply, DataRequest};

/// What `statfs` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Storage of all servers that are up, bytes.
    pub total: u64,
    /// Still free, bytes.
    pub available: u64,
    /// Block size of new files, bytes.
    pub block_size: u32,
    /// Inodes that there are.
    pub inodes: u64,
}

impl StatFs {
    /// Inodes that can still be made. Nothing limits them but room: one for each page of storage that is
    /// free.
    pub fn free_inodes(&self) -> u64 {
        self.available / 4096
    }
}

impl Namespace {
    /// How full the file system is that an inode lies on: the backend's, for what is forwarded.
    pub(crate) fn statfs(&self, target: Target<'_>) -> Result<StatFs, Fail> {
        self.on_inode(target, |ino| match ino.is_forwarded() {
            true => self.space_of_backend(ino),
            false => self.space_of_servers(),
        })
    }

    fn space_of_backend(&self, ino: Ino) -> Result<StatFs, Errno> {
        match self.requests().space_of(ino)? {
            DataReply::Space { total, available, inodes, .. } => {
                Ok(StatFs { total, available, block_size: 4096, inodes })
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// How full the storage of the servers that are up is, in bytes of files with the deployment's number of copies.
    fn space_of_servers(&self) -> Result<StatFs, Errno> {
        let is_up = |server: &&Server| server.state == ServerState::Up;
        let servers = |map: &Map| map.servers.iter().filter(is_up).map(|server| server.id).collect();
        self.requests().by_newest_map(servers, |map, servers| self.space_by(map, servers))
    }

    fn space_by(&self, map: &Map, servers: &[ServerId]) -> Result<StatFs, Errno> {
        let mut sum = StatFs { total: 0, available: 0, block_size: map.block_size, inodes: 0 };
        let mut counted = Vec::new();
        for server in servers.iter().filter_map(|server| map.server(*server)) {
            let (DataReply::Space { total, available, device, inodes }, ..) =
                self.requests().data((server.id, 0), DataRequest::Space, &[], &mut [])?
            else {
                return Err(Errno::PROTO);
            };
            sum.inodes = sum.inodes.saturating_add(inodes);
            if !counted.contains(&(server.node, device)) {
                counted.push((server.node, device));
                sum.total = sum.total.saturating_add(total);
                sum.available = sum.available.saturating_add(available);
            }
        }
        let copies = u64::from(map.replicas.max(1));
        (sum.total, sum.available) = (sum.total / copies, sum.available / copies);
        Ok(sum)
    }
}
