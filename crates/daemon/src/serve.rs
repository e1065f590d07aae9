//! The server role: metadata of the daemon's shards, and blocks in its storage.
//!
//! This module connects requests to the stores; what they mean is the stores' business.

use crate::copies::Copies;
use crate::order::Running;
use crate::restriping::Flight;
use bivouac_data::{DataError, DataStore};
use bivouac_layout::{Ino, Map, ServerId, ShardId, namespace};
use bivouac_proto::data::{DataReply, DataRequest, SmallPiece};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::meta::{At, MetaRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply};
use bivouac_transport::Responder;
use rustix::fd::AsFd;

/// Serves a request for data that arrived over a connection.
pub(crate) fn data(
    (store, copies): (&DataStore, &Copies),
    request: &DataRequest,
    payload: &[u8],
    inodes: impl FnOnce() -> u64,
    reply: &mut Responder,
    running: &mut Running<'_>,
) -> Served {
    let mut served = Served::default();
    let outcome = match *request {
        DataRequest::Read { ino, offset, len } => read(store, ino, offset, len, reply).map(|count| {
            served.read = count;
            None
        }),
        DataRequest::Pass { ino, access } => store.pass(ino, access).map(|descriptor| {
            reply.ok_descriptor(&Reply::Data(DataReply::Passed), descriptor.as_fd());
            None
        }),
        DataRequest::Space => store.space().map(|space| {
            let (total, available, device) = (space.total, space.available, space.device);
            Some(DataReply::Space { total, available, device, inodes: inodes() })
        }),
        _ => {
            if let DataRequest::Write { .. } = request {
                served.written = payload.len() as u64;
            }
            match data_locally((store, copies), request, payload, &mut []) {
                Ok(done) => {
                    // Kept before it is sent, so that a repetition finds it.
                    running.answered(done);
                    Ok(Some(done))
                }
                Err(failure) => {
                    let failure = match (failure, request) {
                        // By the map that there is by then, others may be asked.
                        (
                            Failure::Errno(errno),
                            DataRequest::Sync { ino }
                            | DataRequest::Extent { ino }
                            | DataRequest::Seek { ino, .. },
                        ) if copies.could_not_answer(
                            *ino,
                            matches!(request, DataRequest::Sync { .. }),
                            errno,
                        ) =>
                        {
                            Refusal::OldServer.into()
                        }
                        (failure, _) => failure,
                    };
                    reply.fail(&failure);
                    return served;
                }
            }
        }
    };
    match outcome {
        Ok(Some(done)) => reply.ok(&Reply::Data(done)),
        Ok(None) => {}
        Err(error) => reply.fail(&error.errno().into()),
    }
    served
}

/// How many bytes a request moved.
#[derive(Default)]
pub(crate) struct Served {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

pub(crate) fn read(
    store: &DataStore,
    ino: Ino,
    offset: u64,
    len: u32,
    reply: &mut Responder,
) -> Result<u64, DataError> {
    let Some(sub_file) = store.read_file(ino)? else {
        reply.ok(&Reply::Data(DataReply::Read { length: 0 }));
        return Ok(0);
    };
    let length = sub_file.length()?;
    let count = length.saturating_sub(offset).min(u64::from(len.min(MAX_PAYLOAD)));
    let answer = Reply::Data(DataReply::Read { length });
    if store.is_suspect(ino) {
        // Read first and answer then, so that the client gets the storage's error.
        let buffer = reply.buffer();
        buffer.resize(count as usize, 0);
        sub_file.read_at(offset, buffer)?;
        reply.ok(&answer);
        return Ok(count);
    }
    reply.ok_file(&answer, sub_file.as_fd(), offset, count as usize).map_err(DataError::Io)?;
    if reply.was_unreadable() {
        store.suspect(ino);
    }
    Ok(count)
}

/// Reads pieces of many files; of each, whether it is there as a whole. What is, is appended to `out`.
pub(crate) fn gather<'r>(
    store: &DataStore,
    pieces: &[SmallPiece],
    may_read: impl Fn(Ino) -> Option<Flight<'r>>,
    out: &mut Vec<u8>,
) -> Vec<bool> {
    let read = |piece: &SmallPiece| {
        let Some(_flight) = may_read(piece.ino) else { return false };
        let before = out.len();
        out.resize(before + piece.len as usize, 0);
        let is_whole = matches!(
            store.read(piece.ino, piece.offset, &mut out[before..]),
            Ok(count) if count == piece.len as usize
        );
        if !is_whole {
            out.truncate(before);
        }
        is_whole
    };
    pieces.iter().map(read).collect()
}

/// Serves a request for data within the daemon. Reads fill `into`; descriptors are not passed this way.
pub(crate) fn data_locally(
    (store, copies): (&DataStore, &Copies),
    request: &DataRequest,
    payload: &[u8],
    into: &mut [u8],
) -> Result<DataReply, Failure> {
    let failed = |error: DataError| Failure::Errno(error.errno());
    let done = match *request {
        DataRequest::Read { ino, offset, len } => {
            let len = into.len().min(len as usize);
            store.read(ino, offset, &mut into[..len]).map_err(failed)?;
            DataReply::Read { length: store.extent(ino).map_err(failed)?.length }
        }
        DataRequest::Write { ino, offset, sync } => {
            let wrote = store.write(ino, offset, payload, sync).map_err(failed)?;
            DataReply::Written { count: wrote.count as u32, before: wrote.before, undo: wrote.undo }
        }
        DataRequest::TakeBack { ino, undo, end, size } => {
            store.take_back(ino, undo, end, size).map_err(failed)?;
            DataReply::Done
        }
        DataRequest::Extent { ino } => {
            copies.check_ready()?;
            copies.settle_length(ino)?;
            // Not in the middle of a change that was allowed by an older map.
            let extent = copies.apply(ino, 0..0, || store.extent(ino)).map_err(failed)?;
            let length = copies.certain_length(ino, extent.length);
            DataReply::Extent { length, allocated: extent.allocated, written: extent.written }
        }
        DataRequest::Truncate { ino, size, extend, closing: 0 } => {
            let exists =
                copies.apply(ino, 0..u64::MAX, || store.truncate(ino, size, extend)).map_err(failed)?;
            DataReply::Truncated { exists }
        }
        DataRequest::Truncate { ino, size, extend, closing } => {
            // Looked at where nothing else happens to the sub-file: the truncation may be over, and others go on.
            let stays_closed = || copies.ranges().stays_closed(ino, closing);
            let truncate = || stays_closed().then(|| store.truncate(ino, size, extend));
            match copies.apply(ino, 0..u64::MAX, truncate).ok_or(Errno::AGAIN)? {
                Ok(exists) => {
                    copies.note_length(ino);
                    DataReply::Truncated { exists }
                }
                Err(error) => {
                    tracing::warn!(%ino, %error, "a copy is not truncated");
                    copies.note_failure(ino, error.errno());
                    DataReply::NotTruncated { excused: copies.is_excused() }
                }
            }
        }
        DataRequest::Fallocate { ino, offset, len, mode } => {
            store.fallocate(ino, offset, len, mode).map_err(failed)?;
            DataReply::Done
        }
        DataRequest::Seek { ino, offset, end, hole, share } => {
            DataReply::Position { offset: store.seek_share(ino, offset..end, share, hole).map_err(failed)? }
        }
        DataRequest::Sync { ino } => {
            store.sync(ino).map_err(failed)?;
            DataReply::Done
        }
        DataRequest::Remove { ino } => {
            copies.apply(ino, 0..u64::MAX, || store.remove(ino)).map_err(failed)?;
            DataReply::Done
        }
        DataRequest::Close { ino, closing } => {
            copies.ranges().close(ino, closing)?;
            DataReply::Done
        }
        DataRequest::Open { ino, closing } => {
            copies.ranges().open(ino, closing);
            DataReply::Done
        }
        // These need more than the store, or are for I/O nodes.
        DataRequest::Space
        | DataRequest::Pass { .. }
        | DataRequest::ReadDirect { .. }
        | DataRequest::WriteDirect { .. } => return Err(Errno::OPNOTSUPP.into()),
    };
    Ok(done)
}

/// Makes a change of blocks that have copies, here. Their checksums change with them.
pub(crate) fn change_copied(
    (store, copies): (&DataStore, &Copies),
    request: &DataRequest,
    payload: &[u8],
) -> Result<DataReply, Failure> {
    let failed = |error: DataError| Failure::Errno(error.errno());
    match *request {
        DataRequest::Write { ino, offset, sync } => {
            let wrote = store.write_summed(ino, offset, payload, sync).map_err(failed)?;
            Ok(DataReply::Written { count: wrote.count as u32, before: wrote.before, undo: wrote.undo })
        }
        DataRequest::Fallocate { ino, offset, len, mode } => {
            store.fallocate_summed(ino, offset, len, mode).map_err(failed)?;
            Ok(DataReply::Done)
        }
        _ => data_locally((store, copies), request, payload, &mut []),
    }
}

/// What a request to the metadata is about: this determines its shard.
enum About<'a> {
    Entry(At<'a>),
    Inode(Ino),
    /// All of the server.
    Server,
}

fn about<'a>(request: &MetaRequest<'a>) -> About<'a> {
    use MetaRequest as R;
    match *request {
        R::Lookup { at }
        | R::Open { at, .. }
        | R::Mkdir { at, .. }
        | R::MakeNode { at, .. }
        | R::MakeLazy { at, .. }
        | R::Link { at, .. }
        | R::Unlink { at }
        | R::Rmdir { at }
        | R::Rename { from: at, .. } => About::Entry(at),
        R::GetAttr { ino }
        | R::SetAttr { ino, .. }
        | R::OpenInode { ino, .. }
        | R::MakeTemporary { dir: ino, .. }
        | R::Release { ino, .. }
        | R::Abandon { ino: Some(ino), .. }
        | R::Reopen { ino, .. }
        | R::Truncate { ino, .. }
        | R::ReadInline { ino, .. }
        | R::WriteInline { ino, .. }
        | R::Spill { ino }
        | R::Append { ino }
        | R::Parent { ino }
        | R::ReadLink { ino }
        | R::GetXattr { ino, .. }
        | R::ListXattr { ino }
        | R::SetXattr { ino, .. }
        | R::RemoveXattr { ino, .. }
        | R::Lock { ino, .. }
        | R::Unlock { ino, .. }
        | R::TestLock { ino, .. }
        | R::CancelLock { ino, .. }
        | R::Fetch { ino }
        | R::Locate { ino }
        | R::GiveLocks { ino, .. }
        | R::Sync { ino } => About::Inode(ino),
        R::ReadDir { dir, split: false, .. } => About::Inode(dir),
        R::ReadDir { .. }
        | R::EndSession { .. }
        | R::Report { .. }
        | R::Relock { .. }
        | R::Abandon { ino: None, .. }
        | R::Entrust { .. }
        | R::Find { .. }
        | R::Look { .. } => About::Server,
    }
}

/// The inodes that a request names.
pub(crate) fn named(request: &MetaRequest<'_>) -> [Option<Ino>; 2] {
    let first = match about(request) {
        About::Entry(at) => Some(at.dir),
        About::Inode(ino) => Some(ino),
        About::Server => None,
    };
    let second = match *request {
        MetaRequest::Rename { to, .. } => Some(to.dir),
        MetaRequest::Link { ino, .. } => Some(ino),
        _ => None,
    };
    [first, second]
}

/// Whether a request is about the shard in its header, and not about all of the server.
pub(crate) fn concerns_one_shard(request: &MetaRequest<'_>) -> bool {
    !matches!(about(request), About::Server)
}

/// Whether a request carries paths that the client may have cached: then its namespace version matters.
pub(crate) fn walks(request: &MetaRequest<'_>) -> bool {
    matches!(about(request), About::Entry(_)) || matches!(request, MetaRequest::Find { .. })
}

/// Whether a request changes something, so that it matters in which order it comes.
pub(crate) fn changes(request: &MetaRequest<'_>) -> bool {
    use MetaRequest as R;
    !matches!(
        request,
        R::Lookup { .. }
            | R::GetAttr { .. }
            | R::ReadInline { .. }
            | R::ReadDir { .. }
            | R::Parent { .. }
            | R::ReadLink { .. }
            | R::GetXattr { .. }
            | R::ListXattr { .. }
            | R::TestLock { .. }
            | R::Fetch { .. }
            | R::Locate { .. }
            | R::Entrust { .. }
            | R::Sync { .. }
            | R::Find { .. }
            | R::Look { .. }
    )
}

/// Checks that a request came to the right server: that the shard in its header is the one that its subject
/// is in, and is one of this server's. EINVAL if a client computes this differently.
pub(crate) fn check_place(
    map: &Map,
    me: ServerId,
    shard: ShardId,
    request: &MetaRequest<'_>,
) -> Result<(), Failure> {
    let right = match about(request) {
        About::Entry(at) => namespace::entry_shard(at.dir, at.split, at.name),
        About::Inode(ino) => ino.shard(),
        // It may answer for no shard at the moment.
        About::Server => return Ok(()),
    };
    if right != shard || shard.0 >= bivouac_layout::ids::SHARDS {
        return Err(Errno::INVAL.into());
    }
    if map.primary(shard) != me {
        return Err(Errno::IO.into());
    }
    Ok(())
}
