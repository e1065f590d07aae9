//! Where a file lies: for people and their tools.

use crate::client::Client;
use crate::error::Fail;
use crate::namespace::Target;
use crate::requests::{OUTDATED, data_done, data_job};
use bivouac_layout::{Group, Map, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::attr::{Attr, FileKind};
use bivouac_proto::data::{DataReply, DataRequest};
use std::ops::Range;

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

/// A range of a file, and who has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Where it begins, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// The servers that have all of it and take part, those of this node first. None: no copy is left.
    pub servers: Vec<ServerId>,
}

impl Location {
    /// The hosts of these servers, each once (it may have several servers), those of this node first.
    pub fn hosts<'m>(&self, map: &'m Map) -> Vec<&'m str> {
        let mut hosts: Vec<&str> = Vec::new();
        for server in self.servers.iter().filter_map(|server| map.server(*server)) {
            let host = map.nodes.iter().find(|node| node.id == server.node).map(|node| &*node.host);
            hosts.extend(host.filter(|host| !hosts.contains(host)));
        }
        hosts
    }
}

impl Client {
    /// Who has a range of a file, as far as the file reaches; by its attributes, which are exact. Ranges with the same servers
    /// that follow each other are one.
    pub fn locations(&self, attr: &Attr, range: Range<u64>) -> Vec<Location> {
        let map = self.session().map();
        let end = range.end.min(attr.size);
        let mut found: Vec<Location> = Vec::new();
        let mut add = |offset, len, group| {
            let mut servers: Vec<ServerId> = map.serving(group).collect();
            servers.sort_by_key(|server| {
                map.server(*server).is_none_or(|server| server.node != self.session().node())
            });
            match found.last_mut() {
                Some(last) if last.servers == servers => last.len += len,
                _ => found.push(Location { offset, len, servers }),
            }
        };
        match attr.layout.as_deref() {
            _ if range.start >= end || attr.kind != FileKind::File => {}
            // What an I/O node has, it has from the backend.
            _ if attr.ino.is_forwarded() => {
                let servers = vec![map.io_node(self.session().node(), attr.ino)];
                found.push(Location { offset: range.start, len: end - range.start, servers });
            }
            Some(layout) => {
                layout
                    .pieces(&map, range.start..end)
                    .for_each(|piece| add(piece.offset, piece.len, piece.group));
            }
            None => add(range.start, end - range.start, Group::Shard(attr.ino.shard())),
        }
        found
    }

    /// Where a file is.
    pub fn spread<'p>(&self, target: impl Into<Target<'p>>) -> Result<Spread, Fail> {
        let mut attr = self.stat(target)?;
        loop {
            match self.holdings(&attr) {
                Err(errno) if errno == OUTDATED || self.names_others(&attr) => {
                    let version = attr.layout.as_ref().map_or(0, |layout| layout.version);
                    attr = self.namespace().exact(*self.namespace().newer_attr(attr.ino, version)?)?;
                }
                blocks => {
                    let home = self.session().map().primary(attr.ino.shard());
                    return Ok(Spread { home, blocks: blocks?, attr });
                }
            }
        }
    }

    fn names_others(&self, attr: &Attr) -> bool {
        attr.layout.as_ref().is_some_and(|layout| self.namespace().is_outdated(attr.ino, layout))
    }

    /// What each server has of a file.
    fn holdings(&self, attr: &Attr) -> Result<Vec<Holding>, Errno> {
        let Some(layout) = attr.layout.as_deref().filter(|_| attr.kind == FileKind::File) else {
            return Ok(Vec::new());
        };
        let request = DataRequest::Extent { ino: attr.ino };
        let ask = |_: &Map, servers: &[ServerId]| {
            let job = |&server: &ServerId| data_job((server, layout.version), request, &[], &mut []);
            let mut jobs: Vec<_> = servers.iter().map(job).collect();
            self.requests().data_jobs(&mut jobs);
            let holding = |(server, job): (&ServerId, _)| match data_done(job)? {
                (DataReply::Extent { allocated, .. }, _) => {
                    Ok(Holding { server: *server, stored: allocated })
                }
                _ => Err(Errno::PROTO),
            };
            servers.iter().zip(&mut jobs).map(holding).collect()
        };
        self.requests().by_newest_map(|map| layout.servers(map, u64::MAX), ask)
    }
}
