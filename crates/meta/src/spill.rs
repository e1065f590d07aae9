//! Spilling: a file's inline data moves into blocks, once, when the file grows.

use crate::draft::Draft;
use crate::error::{Op, Stop};
use crate::inline::not_a_file;
use crate::inode::{Blocks, Body};
use crate::mutation::Mutation;
use crate::partition::LockedShard;
use crate::shard::{Shard, Written};
use crate::steps::Begun;
use crate::store::{Caller, Core};
use bivouac_layout::{FileLayout, Ino, Map, Piece, ServerId, ServerState, Template};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::MetaReply;
use bivouac_proto::status::Failure;
use bivouac_proto::{Attr, Errno, Refusal, Reply, Time};

/// Inline data that is being moved.
struct Moving {
    data: Box<[u8]>,
    layout: FileLayout,
    /// Where it goes: it is shorter than any block.
    first: Piece,
}

impl Core {
    pub(crate) fn spill(&self, caller: &Caller, ino: Ino) -> Result<Reply, Failure> {
        Ok(Reply::Meta(MetaReply::Attr(Box::new(self.spill_now(Some(caller), ino)?))))
    }

    /// Moves a file's data into blocks, if it is still in the inode.
    pub(crate) fn spill_now(&self, caller: Option<&Caller>, ino: Ino) -> Result<Attr, Failure> {
        let now = self.outside.now();
        let map = self.outside.map();
        let moved = self.in_steps(
            ino,
            |locked| {
                let inode = locked.shard.inode(ino)?;
                let layout = inode.layout(ino, &map);
                match &inode.body {
                    Body::Blocks(_) => {
                        locked.shard.has_a_size(ino, &inode)?;
                        Ok(Begun::Done(inode.attr(ino)))
                    }
                    // First remove what an earlier attempt, which a crash or an error has interrupted, may
                    // have left at the server. The keeper does that, unless the server is away.
                    Body::Inline(_) if is_in_the_way(locked.shard, &map, ino, &layout) => {
                        let stuck = locked.shard.live.get(&ino).is_some_and(|live| live.stuck);
                        // With copies, it is in the way of a server that is back, for a moment.
                        let fails = stuck && layout.copies(&map) == 1;
                        Err(if fails { Errno::IO.into() } else { Stop::Wait })
                    }
                    Body::Inline(data) if data.is_empty() => {
                        Ok(Begun::Done(move_out(locked, caller, ino, (&layout, now), false)?))
                    }
                    Body::Inline(data) => {
                        let data = data.clone();
                        let first = layout.piece_at(&map, 0, data.len() as u64).ok_or(Errno::IO)?;
                        let holders = layout.servers_to_change(&map, data.len() as u64);
                        let mut draft = Draft::new(now);
                        draft.push(Mutation::PutPurge(ino, holders));
                        locked.commit(draft)?;
                        Ok(Begun::Work(Moving { data, layout, first }))
                    }
                    Body::Lazy(_) => Err(Refusal::Unfetched { ino }.into()),
                    _ => Err(not_a_file(&inode)),
                }
            },
            |Moving { data, first, layout }, stance| {
                let request = DataRequest::Write { ino, offset: 0, sync: false };
                match self.outside.write(stance.standing, (first, layout.version), &request, data)? {
                    DataReply::Written { count, .. } if count as usize == data.len() => Ok(()),
                    DataReply::Written { .. } => Err(Errno::NOSPC),
                    _ => Err(Errno::PROTO),
                }
            },
            |locked, moving, written| {
                (*written)?;
                locked.shard.inode(ino)?;
                move_out(locked, caller, ino, (&moving.layout, now), true)
            },
        );
        if moved.is_err() {
            self.keeper.purge(ino);
        }
        moved
    }
}

/// Whether there is something to remove before a file's data can be moved. Of a file that has copies, servers that are
/// away may keep it: when they come back they catch up with the others.
pub(crate) fn is_in_the_way(shard: &Shard, map: &Map, ino: Ino, layout: &FileLayout) -> bool {
    let Some(servers) = shard.purges.get(&ino) else { return false };
    let is_stuck = shard.live.get(&ino).is_some_and(|live| live.stuck);
    let is_away = |server: &ServerId| map.server(*server).is_none_or(|s| s.state == ServerState::Down);
    !(layout.copies(map) > 1 && is_stuck && servers.iter().all(is_away))
}

/// The inode becomes that of a file in blocks.
fn move_out(
    locked: &mut LockedShard<'_>,
    caller: Option<&Caller>,
    ino: Ino,
    (layout, now): (&FileLayout, Time),
    purge_noted: bool,
) -> Op<Attr> {
    let settled = !locked.shard.live.get(&ino).is_some_and(|l| l.has_writer());
    let mut draft = Draft::new(now);
    if purge_noted {
        draft.push(Mutation::DropPurge(ino));
    }
    if let Some(inode) = draft.inode(locked.shard, ino) {
        let (reach, layout) = (inode.size, layout.clone());
        inode.set_template(Template::default());
        inode.body = Body::Blocks(Box::new(Blocks {
            layout,
            settled,
            reach,
            truncating: None,
            mtime_set: Time::MIN,
            allocated: None,
        }));
    }
    match caller {
        Some(caller) => locked.commit_for(caller, draft)?,
        None => locked.commit(draft)?,
    }
    let inode = locked.shard.inode(ino)?;
    let (attr, size) = (inode.attr(ino), inode.size);
    if let Some(live) = locked.shard.live.get_mut(&ino) {
        let only_appenders = live.has_writer() && live.opens.iter().all(|o| o.append || !o.write);
        live.written = Written { append_end: only_appenders.then_some(size), ..Written::default() };
    }
    Ok(attr)
}
