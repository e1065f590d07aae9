//! Listing directories.
//!
//! Entries come in the order of their cookies, from one server for a packed directory, merged from all
//! servers for a split one. Positions are the cookies themselves: 1 after `.`, 2 after `..`, then hashes, so
//! that they stay good while the directory changes or splits.

use super::Namespace;
use crate::memory::listing::Entries;
use crate::requests::To;
use bivouac_layout::{Ino, Map, ServerId, ServerState, namespace};
use bivouac_proto::attr::DirEntry;
use bivouac_proto::meta::{MetaReply, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal};
use bivouac_transport::engine::Waited;
use std::collections::BTreeSet;

/// Most entries asked of a server at once.
const BATCH: u32 = 2048;

/// Most entries asked for at the beginning of a listing, while it is not known whether the program wants
/// attributes.
const FIRST: u32 = 256;

/// Entries that each server is asked for at least.
const FEW: u32 = 64;

impl Namespace {
    /// Entries of a directory by its number, with cookies greater than `after`, in their order: neither `.` nor `..`.
    /// `begins`: they are its first, and the directory above is this one.
    pub(crate) fn list(
        &self,
        dir: Ino,
        begins: Option<Ino>,
        after: u64,
        max: usize,
    ) -> Result<Entries, Errno> {
        if begins.is_some() {
            self.memory().listing().begin(dir);
        }
        self.next_entries(dir, begins, after, max)
    }

    /// The next entries of a directory, about `max`; with `above`, the directory above, its first.
    pub(crate) fn next_entries(
        &self,
        dir: Ino,
        above: Option<Ino>,
        after: u64,
        max: usize,
    ) -> Result<Entries, Errno> {
        let attrs = self.memory().listing().wants_attributes();
        // Few at first: if the program then asks for attributes, it gets them with the rest.
        let most = if after == 2 && !attrs { FIRST } else { BATCH };
        let limit = max.min(most as usize);
        match above.and_then(|above| self.already_listed(above, dir, limit)) {
            Some(entries) => Ok(entries),
            None => self.list_after(dir, after, limit as u32, attrs),
        }
    }

    /// A directory's first entries, if they were looked up ahead, or can be now, together with those of other
    /// directories.
    fn already_listed(&self, above: Ino, dir: Ino, most: usize) -> Option<Entries> {
        if self.memory().paths().is_split(dir) {
            return None;
        }
        self.listed_ahead(dir, most).or_else(|| {
            self.look_ahead(above, dir, true);
            self.listed_ahead(dir, most)
        })
    }

    /// Entries of a directory with cookies greater than `after`, in their order: about `limit`, none at the
    /// end. A directory that was removed has none.
    pub(crate) fn list_after(&self, dir: Ino, after: u64, limit: u32, attrs: bool) -> Result<Entries, Errno> {
        loop {
            let split = self.memory().paths().is_split(dir);
            let before = self.requests().before(dir.shard());
            let listed = if split {
                self.list_split(dir, after, limit, attrs)
            } else {
                let request = MetaRequest::ReadDir { dir, split, after, limit, attrs };
                self.requests().meta(To::inode(dir), &request, &[], &mut []).and_then(
                    |(reply, _)| match reply {
                        MetaReply::Listing { entries, end } => {
                            self.requests().learn_listing(before, dir, split, (&entries, attrs));
                            if before.is_some() {
                                self.memory().listing().ahead.expect(dir, after <= 2, (&entries, attrs));
                            }
                            let listed = Entries { entries, end };
                            if after <= 2 {
                                self.keep_listing(before, dir, &listed);
                            }
                            Ok(listed)
                        }
                        _ => Err(Errno::PROTO.into()),
                    },
                )
            };
            match listed {
                Ok(listed) => return Ok(listed),
                Err(Failure::Refused(Refusal::DirectorySplit)) if !split => {
                    self.memory().paths().learn_split(dir)
                }
                Err(Failure::Refused(Refusal::UnknownDirectory)) => {
                    return Ok(Entries { entries: Vec::new(), end: true });
                }
                Err(Failure::Refused(Refusal::StaleNamespace { .. })) => {}
                Err(Failure::Refused(_)) => return Err(Errno::IO),
                Err(Failure::Errno(errno)) => return Err(errno),
            }
        }
    }

    /// Asks every server for its parts, and merges.
    fn list_split(&self, dir: Ino, after: u64, limit: u32, attrs: bool) -> Result<Entries, Failure> {
        loop {
            let map = self.session().map();
            let parts = (0..namespace::PARTS).map(|part| map.primary(namespace::part_shard(dir, part)));
            let holders: BTreeSet<ServerId> = parts.collect();
            match self.requests().wait_until_up(&map, &Vec::from_iter(holders)) {
                Waited::Up => {}
                Waited::NewerMap => continue,
                // An error is better than a listing that silently lacks the entries of a dead server.
                Waited::GivenUp => return Err(Errno::IO.into()),
            }
            let listed = self.list_split_by(&map, dir, after, limit, attrs);
            if self.session().map().epoch == map.epoch {
                return listed;
            }
            // Meanwhile a part may have gone from a server that was not asked yet to one that was.
        }
    }

    fn list_split_by(
        &self,
        map: &Map,
        dir: Ino,
        after: u64,
        limit: u32,
        attrs: bool,
    ) -> Result<Entries, Failure> {
        let mut all = Vec::new();
        let servers = map.servers.iter().filter(|s| s.state == ServerState::Up);
        // Each server has about the same share of the next entries.
        let limit = limit.div_ceil(servers.clone().count().max(1) as u32).max(FEW);
        // Beyond this cookie some server may have entries that it did not list.
        let mut complete_to = u64::MAX;
        for server in servers {
            let Some(shard) = map.shards_of(server.id).next() else {
                continue;
            };
            let before = self.requests().before(shard);
            let request = MetaRequest::ReadDir { dir, split: true, after, limit, attrs };
            match self.requests().meta(To::Server(server.id, shard), &request, &[], &mut []) {
                Ok((MetaReply::Listing { entries, end }, _)) => {
                    self.requests().learn_listing(before, dir, true, (&entries, attrs));
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
        self.memory().listing().ahead.expect(dir, after <= 2, (&all, attrs));
        Ok(Entries { entries: all, end: complete_to == u64::MAX })
    }
}
