//! Fetching: the contents of a lazy file come from the backend, once, before anybody sees or changes them.
//!
//! It has the shape of [spilling](crate::spill). The file is busy meanwhile. Which servers are going to hold blocks is noted in
//! the log first, so that what an interrupted fetch has left there is removed before the next one begins. The contents come
//! in steps of a few MiB for each server: these read what is to be theirs. When all is there, one record makes the inode an
//! ordinary one. So a crash at any moment leaves a lazy file, or one that is complete. Sizes, times and names stay as they were.
//!
//! Where a server does not see the backend (it may have come by `expand`), this one reads its part.

use crate::draft::Draft;
use crate::error::Stop;
use crate::fetches::Failed;
use crate::inode::{Blocks, Body};
use crate::mutation::Mutation;
use crate::opens::noted;
use crate::outside::Standing;
use crate::source::{SourceFile, copy_pieces};
use crate::spill::is_in_the_way;
use crate::steps::Begun;
use crate::store::Core;
use bivouac_layout::{FileLayout, Ino, Map, Piece, ServerId};
use bivouac_proto::attr::{INLINE_MAX, dense};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::lazy::{FetchRequest, Source, Unfetchable};
use bivouac_proto::{Errno, Refusal};
use std::cell::RefCell;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most bytes that each server reads in one step.
const STEP: u64 = 32 << 20;
/// How long a step is tried again that servers refuse because they have another map.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two of these.
const PAUSE: Duration = Duration::from_millis(20);

/// What is to be fetched, and where it goes: into the inode, or by this layout to servers.
struct Fetching {
    source: Source,
    layout: Option<FileLayout>,
}

/// What has come.
enum Fetched {
    Inline(Box<[u8]>),
    /// It is at the servers: the storage that it takes there, bytes, and how far any sub-file reaches.
    Blocks {
        allocated: u64,
        reach: u64,
    },
}

impl Core {
    /// Fetches a file, if it is lazy.
    pub(crate) fn fetch_now(&self, ino: Ino) -> Result<(), Failed> {
        let why: RefCell<Option<Failed>> = RefCell::default();
        let fetched = self.in_steps(
            ino,
            |locked| {
                let map = self.outside.map();
                let Some(inode) = locked.shard.inodes.get(ino) else { return Ok(Begun::Done(())) };
                let Some(source) = inode.as_lazy().cloned() else { return Ok(Begun::Done(())) };
                let layout = inode.layout(ino, &map);
                if source.size <= INLINE_MAX as u64 {
                    return Ok(Begun::Work(Fetching { source, layout: None }));
                }
                if is_in_the_way(locked.shard, &map, ino, &layout) {
                    let stuck = locked.shard.live.get(&ino).is_some_and(|live| live.stuck);
                    let fails = stuck && layout.copies(&map) == 1;
                    return Err(if fails { Errno::IO.into() } else { Stop::Wait });
                }
                let mut draft = Draft::new(self.outside.now());
                draft.push(Mutation::PutPurge(ino, layout.servers_to_change(&map, source.size)));
                locked.commit(draft)?;
                Ok(Begun::Work(Fetching { source, layout: Some(layout) }))
            },
            |Fetching { source, layout }, stance| match layout {
                None => read_whole(source),
                Some(layout) => self.fetch_blocks(ino, source, layout, stance.standing),
            },
            |locked, fetching, fetched| {
                let fetched = match fetched {
                    Ok(fetched) => fetched,
                    Err(failed) => {
                        let errno = match failed {
                            Failed::Later(_) => Errno::AGAIN,
                            Failed::Unfetchable(failed) => failed.errno,
                        };
                        *why.borrow_mut() = Some(failed.clone());
                        return Err(errno.into());
                    }
                };
                let now = self.outside.now();
                let mut draft = Draft::new(now);
                // It may have been removed meanwhile.
                let inode = draft.inode(locked.shard, ino).ok_or(Errno::NOENT)?;
                match (fetched, &fetching.layout) {
                    (Fetched::Blocks { allocated, reach }, Some(layout)) => {
                        inode.set_template(Default::default());
                        inode.body = Body::Blocks(Box::new(Blocks {
                            layout: layout.clone(),
                            settled: true,
                            reach: *reach,
                            truncating: None,
                            // That its blocks were written just now is no change of the file.
                            mtime_set: now,
                            allocated: noted(*allocated, inode.size),
                        }));
                        draft.push(Mutation::DropPurge(ino));
                    }
                    (Fetched::Inline(data), _) => inode.body = Body::Inline(data.clone()),
                    (Fetched::Blocks { .. }, None) => return Err(Errno::IO.into()),
                }
                locked.commit(draft)
            },
        );
        if fetched.is_err() {
            self.keeper.purge(ino);
        }
        fetched.map_err(|failure| why.take().unwrap_or_else(|| failure.into()))
    }

    /// Has a file's blocks read by those who are to hold them.
    fn fetch_blocks(
        &self,
        ino: Ino,
        source: &Source,
        layout: &FileLayout,
        standing: Standing,
    ) -> Result<Fetched, Failed> {
        let own = SourceFile::open(source);
        if let Err(failed) = &own
            && !failed.unseen
        {
            return Err(failed.clone().into());
        }
        let first = self.outside.map();
        let noted = layout.servers_to_change(&first, source.size);
        let number = self.outside.now().unsigned_abs().max(1);
        let step = STEP.max(u64::from(layout.block_size));
        let step = step.saturating_mul(layout.servers(&first, source.size).len().max(1) as u64);
        let mut at = 0;
        while at < source.size {
            let range = at..source.size.min(at.saturating_add(step));
            at = range.end;
            let until = Instant::now() + PATIENCE;
            loop {
                let map = self.outside.map();
                if self.fetches.is_stopped() || layout.servers_to_change(&map, source.size) != noted {
                    // What is there may not be where it is looked for then.
                    return Err(Refusal::Busy.into());
                }
                let request = FetchRequest {
                    ino,
                    number,
                    epoch: map.epoch,
                    since: standing.since,
                    start: range.start,
                    end: range.end,
                    layout: layout.clone(),
                    source: source.clone(),
                };
                match self.fetch_step(&map, standing, request, own.as_ref().ok()) {
                    Ok(()) if self.outside.map().members_since <= map.epoch => break,
                    Err(Failed::Unfetchable(failed)) => return Err(failed.into()),
                    _ if Instant::now() >= until || !self.outside.stands(standing) => {
                        return Err(Refusal::Busy.into());
                    }
                    _ => std::thread::sleep(PAUSE),
                }
            }
        }
        if let Ok(own) = &own {
            own.check()?;
        }
        if own.as_ref().is_ok_and(SourceFile::is_dense) {
            // All of it has been written.
            return Ok(Fetched::Blocks { allocated: dense(source.size), reach: source.size });
        }
        let extent = self.extent(ino, layout).map_err(Unfetchable::from)?;
        let reach = extent.length.max(source.size);
        Ok(Fetched::Blocks { allocated: extent.allocated, reach })
    }

    /// Has a range read.
    fn fetch_step(
        &self,
        map: &Map,
        standing: Standing,
        request: FetchRequest,
        own: Option<&SourceFile<'_>>,
    ) -> Result<(), Failed> {
        let (layout, range) = (&request.layout, request.start..request.end);
        let mut servers: Vec<ServerId> = Vec::new();
        for group in layout.groups_in(map, range.clone()) {
            let primary = map.primary_of(group).ok_or(Unfetchable::from(Errno::IO))?;
            if !servers.contains(&primary) {
                servers.push(primary);
            }
        }
        let answers = self.outside.fetch(standing, &servers, &request);
        let mut blind = Vec::new();
        for (server, answer) in servers.into_iter().zip(answers) {
            match (answer?, own) {
                (Ok(()), _) => {}
                (Err(failed), Some(_)) if failed.unseen => blind.push(server),
                (Err(failed), _) => return Err(failed.into()),
            }
        }
        match own {
            Some(own) if !blind.is_empty() => {
                self.fetch_for_others(own, (map, standing), &request, range, &blind)
            }
            _ => Ok(()),
        }
    }

    /// Reads what is to be that of servers that do not see the backend.
    fn fetch_for_others(
        &self,
        own: &SourceFile<'_>,
        (map, standing): (&Map, Standing),
        request: &FetchRequest,
        range: Range<u64>,
        blind: &[ServerId],
    ) -> Result<(), Failed> {
        let ino = request.ino;
        let write = |piece: &Piece, bytes: &[u8]| {
            let write = DataRequest::Write { ino, offset: piece.offset, sync: false };
            match self.outside.write(standing, (piece, request.layout.version), &write, bytes)? {
                DataReply::Written { count, .. } if count as usize == bytes.len() => Ok(()),
                DataReply::Written { .. } => Err(Errno::NOSPC.into()),
                _ => Err(Errno::PROTO.into()),
            }
        };
        let is_theirs = |piece: &Piece| blind.contains(&piece.server);
        Ok(copy_pieces(own, (&request.layout, map), range, is_theirs, write)?)
    }
}

/// Reads a file that goes into its inode.
fn read_whole(source: &Source) -> Result<Fetched, Failed> {
    let file = SourceFile::open(source)?;
    let mut bytes = vec![0; source.size as usize];
    file.read(0, &mut bytes)?;
    file.check()?;
    Ok(Fetched::Inline(bytes.into()))
}
