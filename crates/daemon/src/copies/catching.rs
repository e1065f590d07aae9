//! Catching up: a server that was away compares what it holds with the primaries, and gets what differs.
//!
//! From the moment that the map calls it up, the primaries have it make all new changes. For what it has missed it
//! goes through all files that have copies, and asks the primary of each stretch that it holds for checksums of it;
//! what differs it fetches. A change may come between the fetching of bytes and their writing, and is newer then:
//! the bytes are fetched again.

use super::Copies;
use super::holder::is_of_blocks;
use crate::links::all_of;
use bivouac_data::DataError;
use bivouac_layout::{FileLayout, Group, Ino, Map, ServerId, ShardId};
use bivouac_proto::copies::{CopyReply, CopyRequest, DIGESTED};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::peer::{PeerReply, PeerRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Request};
use bivouac_transport::engine::To;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of which checksums are asked at once.
const COMPARED: u64 = 16 << 20;

/// What is being fetched, and whether everything was made that came meanwhile.
#[derive(Default)]
pub(crate) struct Catching {
    /// The file, and whether it was changed since the fetching began.
    fetching: Mutex<Option<(Ino, bool)>>,
    spoiled: AtomicBool,
}

impl Catching {
    /// Makes a change that a primary has sent.
    pub(super) fn apply<T>(&self, ino: Ino, make: impl FnOnce() -> T) -> T {
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *fetching {
            Some((file, changed)) if *file == ino => {
                *changed = true;
                make()
            }
            _ => {
                drop(fetching);
                make()
            }
        }
    }

    /// A change was not made: what was compared before has to be compared again.
    pub(super) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    fn begin(&self, ino: Ino) {
        *self.fetching.lock().unwrap_or_else(PoisonError::into_inner) = Some((ino, false));
    }

    /// Makes what was fetched, unless the file was changed meanwhile. Says whether it has.
    fn end<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        match fetching.take() {
            Some((_, false)) => Some(make()),
            _ => None,
        }
    }
}

impl Copies {
    /// Gets what this server has missed of these groups. `Ok`: it has everything, by this map.
    pub(crate) fn catch_up(&self, map: &Map, groups: &[Group]) -> Result<(), Failure> {
        if !groups.iter().any(is_of_blocks) {
            return Ok(());
        }
        self.catching.spoiled.store(false, Ordering::Release);
        for shard in (0..bivouac_layout::SHARDS).map(ShardId) {
            let mut after = Ino(0);
            loop {
                let files = self.files(shard, after)?;
                let Some((last, _)) = files.last() else { break };
                after = *last;
                for (ino, layout) in &files {
                    self.catch_up_file(map, *ino, layout)?;
                }
            }
        }
        let is_whole = self.links.epoch() == map.epoch && !self.catching.spoiled.load(Ordering::Acquire);
        if is_whole { Ok(()) } else { Err(Errno::AGAIN.into()) }
    }

    /// Files of a shard that have copies.
    fn files(&self, shard: ShardId, after: Ino) -> Result<Vec<(Ino, FileLayout)>, Failure> {
        let request = Request::Peer(PeerRequest::Files { shard, after });
        match self.links.ask(To::Shard(shard), &request)? {
            Reply::Peer(PeerReply::Files(files)) => Ok(files),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// The length of a server's sub-file.
    fn length_on(&self, server: ServerId, ino: Ino) -> Result<u64, Failure> {
        match self.links.ask(all_of(server), &Request::Data(DataRequest::Extent { ino }))? {
            Reply::Data(DataReply::Extent { length, .. }) => Ok(length),
            _ => Err(Errno::PROTO.into()),
        }
    }

    fn catch_up_file(&self, map: &Map, ino: Ino, layout: &FileLayout) -> Result<(), Failure> {
        // How far the primaries of its stretches reach.
        let mut lengths: BTreeMap<ServerId, u64> = BTreeMap::new();
        let own = self.store.extent(ino).map_err(|error| error.errno())?.length;
        let mut length_of = |server: ServerId| -> Result<u64, Failure> {
            if let Some(known) = lengths.get(&server) {
                return Ok(*known);
            }
            let length = self.length_on(server, ino)?;
            lengths.insert(server, length);
            Ok(length)
        };
        let mut end = own;
        for server in layout.servers(map, u64::MAX) {
            if server != self.me {
                end = end.max(length_of(server)?);
            }
        }
        for piece in layout.pieces(map, 0..end) {
            if !map.is_behind(piece.group, self.me) {
                continue;
            }
            let (mut at, stop) = (piece.offset, piece.offset + piece.len);
            // Behind the ends of both there is nothing to compare.
            let stop = stop.min(own.max(length_of(piece.server)?));
            while at < stop {
                let len = (stop - at).min(COMPARED);
                self.compare(piece.group, piece.server, ino, at, len)?;
                at += len;
            }
        }
        Ok(())
    }

    /// Compares a range with its primary's, and fetches what differs.
    fn compare(
        &self,
        group: Group,
        primary: ServerId,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> Result<(), Failure> {
        let mut theirs = vec![0; len.div_ceil(DIGESTED) as usize * 4];
        let request = Request::Copy(CopyRequest::Digest { group, ino, offset, len });
        let own = self.digests(ino, offset, len).map_err(|error| error.errno())?;
        match self.links.ask_into(all_of(primary), &request, &[], &mut theirs)? {
            (Reply::Copy(CopyReply::Read), count) if count == theirs.len() => {}
            _ => return Err(Errno::PROTO.into()),
        }
        let (theirs, _) = theirs.as_chunks::<4>();
        for (number, (own, theirs)) in own.iter().zip(theirs).enumerate() {
            if *own != u32::from_le_bytes(*theirs) {
                let at = offset + number as u64 * DIGESTED;
                self.fetch(group, primary, ino, at, (offset + len - at).min(DIGESTED))?;
            }
        }
        Ok(())
    }

    fn fetch(&self, group: Group, primary: ServerId, ino: Ino, offset: u64, len: u64) -> Result<(), Failure> {
        let mut bytes = vec![0; len as usize];
        loop {
            self.catching.begin(ino);
            let request = Request::Copy(CopyRequest::Fetch { group, ino, offset, len: len as u32 });
            let count = match self.links.ask_into(all_of(primary), &request, &[], &mut bytes)? {
                (Reply::Copy(CopyReply::Read), count) if count <= bytes.len() => count,
                _ => return Err(Errno::PROTO.into()),
            };
            let made =
                self.catching.end(|| self.copy_mirror(ino, offset..offset + len, &bytes[..count], None));
            if let Some(made) = made {
                return made.map_err(|error: DataError| error.errno().into());
            }
        }
    }
}
