//! Listing directories.
//!
//! Entries come in the order of their cookies, from one server for a packed directory, merged from all servers for a
//! split one. Positions are the cookies themselves: 1 after `.`, 2 after `..`, then hashes, so that they stay good
//! while the directory changes or splits.

use crate::handle::Handle;
use crate::rpc::To;
use crate::session::Client;
use bivouac_layout::{Ino, ServerState, namespace};
use bivouac_proto::attr::{DirEntry, FileKind};
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use std::sync::atomic::Ordering;

/// Most entries asked of a server at once.
const BATCH: u32 = 2048;

impl Handle {
    /// The next entries from the shared position, about `max` of them, and moves it behind them. `.` and `..` come
    /// first; nothing at the end.
    pub fn list(&self, max: usize) -> Result<Vec<DirEntry>, Errno> {
        if !self.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let slot = self.slot()?;
        let _guard = self.client().table().lock_offset(slot);
        let mut after = slot.offset.load(Ordering::Relaxed);
        let mut entries = Vec::new();
        if after < 2 {
            let here = self.ino();
            let above = match self.client().parent(here) {
                Ok((parent, _)) => parent,
                // A directory that was removed is empty.
                Err(Errno::STALE | Errno::NOENT) => return Ok(entries),
                Err(errno) => return Err(errno),
            };
            for (cookie, name, ino) in [(1, &b"."[..], here), (2, b"..", above)] {
                if after < cookie {
                    let name = name.to_vec();
                    entries.push(DirEntry { name, ino, kind: FileKind::Directory, cookie, attr: None });
                }
            }
            after = 2;
        }
        if entries.len() < max {
            let limit = (max - entries.len()).min(BATCH as usize) as u32;
            entries.extend(self.client().list_after(self.ino(), after, limit, false)?);
        }
        if let Some(last) = entries.last() {
            slot.offset.store(last.cookie, Ordering::Relaxed);
        }
        Ok(entries)
    }
}

impl Client {
    /// Entries of a directory with cookies greater than `after`, in their order: about `limit`, none at the end. A
    /// directory that was removed has none.
    pub fn list_after(&self, dir: Ino, after: u64, limit: u32, attrs: bool) -> Result<Vec<DirEntry>, Errno> {
        loop {
            let split = self.cache().is_split(dir);
            let listed = if split {
                self.list_split(dir, after, limit, attrs)
            } else {
                let request = MetaRequest::ReadDir { dir, split, after, limit, attrs };
                self.meta(To::Shard(dir.shard()), &request, &[], &mut []).and_then(|(reply, _)| match reply {
                    MetaReply::Listing { entries, .. } => Ok(entries),
                    _ => Err(Errno::PROTO.into()),
                })
            };
            match listed {
                Ok(entries) => return Ok(entries),
                Err(Failure::Refused(Refusal::DirectorySplit)) if !split => self.cache().learn_split(dir),
                Err(Failure::Refused(Refusal::UnknownDirectory)) => return Ok(Vec::new()),
                Err(Failure::Refused(Refusal::StaleNamespace(_))) => {}
                Err(Failure::Refused(_)) => return Err(Errno::IO),
                Err(Failure::Errno(errno)) => return Err(errno),
            }
        }
    }

    /// Asks every server for its parts, and merges.
    fn list_split(&self, dir: Ino, after: u64, limit: u32, attrs: bool) -> Result<Vec<DirEntry>, Failure> {
        let map = self.map();
        let held = |part| map.primary(namespace::part_shard(dir, part));
        let up = |server| map.server(server).is_some_and(|s| s.state == ServerState::Up);
        if !(0..namespace::PARTS).all(|part| up(held(part))) {
            // Better no listing than one that silently lacks what a dead server held.
            return Err(Errno::IO.into());
        }
        let mut all = Vec::new();
        // Beyond this cookie some server may have entries that it did not list.
        let mut complete_to = u64::MAX;
        for server in map.servers.iter().filter(|s| s.state == ServerState::Up) {
            let Some(shard) = map.shards_of(server.id).next() else {
                continue;
            };
            let request = MetaRequest::ReadDir { dir, split: true, after, limit, attrs };
            match self.meta(To::Server(server.id, shard), &request, &[], &mut []) {
                Ok((MetaReply::Listing { entries, end }, _)) => {
                    if let (false, Some(last)) = (end, entries.last()) {
                        complete_to = complete_to.min(last.cookie);
                    }
                    all.extend(entries);
                }
                Ok(_) => return Err(Errno::PROTO.into()),
                // It holds no part of it.
                Err(Failure::Refused(Refusal::UnknownDirectory)) => {}
                Err(failure) => return Err(failure),
            }
        }
        all.retain(|entry: &DirEntry| entry.cookie <= complete_to);
        all.sort_by(|a, b| a.cookie.cmp(&b.cookie).then_with(|| a.name.cmp(&b.name)));
        Ok(all)
    }
}
