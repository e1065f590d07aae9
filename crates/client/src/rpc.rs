//! Requests of a client: how it sends them ([`bivouac_transport::engine`]), and what their answers mean to it.
//!
//! A client asks servers that are up. It gets newer maps from its node's agent, carries the namespace version
//! of cached paths, and sends kept closes ahead of its requests. Refusals that only time mends are repeated;
//! those that concern paths go to the caller.

use crate::links::Link;
use crate::maps::MapRef;
use crate::moves::Reached;
use crate::session::Client;
use bivouac_layout::map::{NO_SERVER, ServerState};
use bivouac_layout::{Group, Ino, Map, News, Piece, ServerId, ShardId, namespace};
use bivouac_node::release::begin_opening;
use bivouac_node::{Fd, SlotId};
use bivouac_proto::copies::{Copied, CopyRequest, Sender, Sent};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::{Change, MetaReply, MetaRequest};
use bivouac_proto::node::NodeRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request};
use bivouac_transport::engine::{
    self, ANY_NAMESPACE, Answered, Budget, Job, Lane, Message, Refused, Requester, Target, Watch,
};
use bivouac_transport::{Peer, TransportError};
use std::io::{IoSlice, IoSliceMut};

/// Where a request goes.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// The server that holds a shard.
    Shard(ShardId),
    /// The same, for a name in a directory that was reached in some way.
    Entry(ShardId, Reached),
    /// The primary of a group of blocks; by which version of the file's layout.
    Group(Group, u32),
    /// A certain holder of a group of blocks, as long as it has everything; then the primary.
    Holder(ServerId, Group, u32),
    /// A certain server of a file's blocks.
    Blocks(ServerId, u32),
    /// A certain server; the shard is one of its own.
    Server(ServerId, ShardId),
    /// The I/O node that serves this process's node for a file or directory of the backend.
    Forwarded(Ino),
}

impl To {
    /// Who answers for an inode.
    pub(crate) fn inode(ino: Ino) -> To {
        if ino.is_forwarded() { To::Forwarded(ino) } else { To::Shard(ino.shard()) }
    }

    /// Who answers for a name in a directory that was reached in some way.
    pub(crate) fn entry(dir: Ino, split: bool, name: &[u8], reached: Reached) -> To {
        match dir.is_forwarded() {
            true => To::Forwarded(dir),
            false => To::Entry(namespace::entry_shard(dir, split, name), reached),
        }
    }

    /// Who has blocks of a file, by a version of its layout.
    fn blocks(server: ServerId, layout: u32, file: Option<Ino>) -> To {
        match file {
            Some(file) if file.is_forwarded() => To::Forwarded(file),
            _ => To::Blocks(server, layout),
        }
    }
}

impl Target for To {
    fn server(&self, map: &Map) -> ServerId {
        match self {
            To::Shard(shard) | To::Entry(shard, _) => map.primary(*shard),
            To::Group(group, _) => map.primary_of(*group).unwrap_or(NO_SERVER),
            To::Holder(server, group, _) if map.serving(*group).any(|holder| holder == *server) => *server,
            To::Holder(_, group, _) => map.primary_of(*group).unwrap_or(NO_SERVER),
            To::Server(server, _) | To::Blocks(server, _) => *server,
            // Which one depends on who asks: see `Asking`.
            To::Forwarded(_) => NO_SERVER,
        }
    }

    fn shard(&self) -> ShardId {
        match self {
            To::Shard(shard) | To::Entry(shard, _) | To::Server(_, shard) => *shard,
            To::Group(..) | To::Holder(..) | To::Blocks(..) => ShardId(0),
            To::Forwarded(_) => ShardId::FORWARDED,
        }
    }

    fn layout(&self) -> u32 {
        match self {
            To::Group(_, layout) | To::Holder(_, _, layout) | To::Blocks(_, layout) => *layout,
            To::Shard(_) | To::Entry(..) | To::Server(..) | To::Forwarded(_) => 0,
        }
    }
}

/// What a request for blocks ends with whose sender goes by a layout that is outdated. It never leaves the client core: no
/// system has an error of this number.
pub(crate) const OUTDATED: Errno = Errno(4095);

/// A client as a sender of requests. It is a type of its own, so that faces cannot send requests past the
/// client's methods.
struct Asking<'c>(&'c Client);

impl<'c> Requester for Asking<'c> {
    type Link = Box<Link>;
    type MapRef<'a>
        = MapRef<'c>
    where
        Self: 'a;
    type To = To;
    const BUDGET: Budget = Budget::CLIENT;

    fn map(&self) -> MapRef<'c> {
        self.0.map()
    }

    fn server(&self, to: To, map: &Map) -> ServerId {
        match to {
            To::Forwarded(file) => map.io_node(self.0.node(), file),
            to => to.server(map),
        }
    }

    fn learn(&self, news: News) {
        self.0.learn_map(news);
    }

    fn refresh(&self) {
        let _ = self.0.refresh_map();
    }

    fn asks(state: ServerState) -> bool {
        state == ServerState::Up
    }

    fn take(&self, server: ServerId, map: &Map) -> Result<Box<Link>, TransportError> {
        self.0.take_link(server, map)
    }

    fn give(&self, server: ServerId, link: Box<Link>) {
        self.0.give_link(server, link);
    }

    fn works(link: &Box<Link>) -> bool {
        link.works()
    }

    fn lane(link: &mut Box<Link>) -> &mut Lane {
        &mut link.lane
    }

    fn session(&self) -> Result<u64, TransportError> {
        self.0.session()
    }

    fn namespace(&self, server: ServerId, to: To) -> Result<u64, Refusal> {
        match to {
            To::Entry(_, reached) => self.0.namespace_for(server, reached),
            _ => Ok(ANY_NAMESPACE),
        }
    }

    fn send_with<R>(
        &self,
        server: ServerId,
        send: impl FnOnce(&[u8]) -> Result<R, TransportError>,
    ) -> Result<R, TransportError> {
        let Some(closes) = self.0.closes_for(server) else { return send(&[]) };
        let sent = send(closes.messages());
        match sent {
            Ok(_) => self.0.told(server, closes),
            Err(_) => self.0.not_told(server, closes),
        }
        sent
    }

    fn refused(&self, server: ServerId, refusal: &Refusal) -> Refused {
        match refusal {
            Refusal::OldServer | Refusal::Busy => Refused::Repeat,
            Refusal::StaleNamespace { version, moved } => {
                self.0.hear(server, *version, moved.as_deref());
                Refused::HandOver
            }
            _ => Refused::HandOver,
        }
    }

    fn is_gone(&self, server: ServerId) -> bool {
        // Without a session it was the agent that refused.
        let peer = if self.0.has_session() { Peer::Server(server) } else { Peer::Agent };
        self.0.refusals.heard(self.0.table().heard());
        self.0.refusals.is_gone(peer)
    }

    fn is_hopeless(error: &TransportError) -> bool {
        // What the program has used up, only the program can free.
        engine::is_hopeless(error)
            || matches!(error, TransportError::System(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }
}

impl Client {
    /// The server that answers for an inode.
    pub(crate) fn server_of(&self, ino: Ino) -> ServerId {
        Asking(self).server(To::inode(ino), &self.map())
    }

    /// A request about a file or directory by its number, to the shard of that inode.
    pub(crate) fn meta_on(&self, ino: Ino, request: &MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.meta_with(ino, request, &[], &mut []).map(|(reply, _)| reply)
    }

    /// The same, with the answer waited for by `watch`.
    pub(crate) fn meta_watched(
        &self,
        ino: Ino,
        request: &MetaRequest<'_>,
        watch: Watch<'_>,
    ) -> Result<MetaReply, Errno> {
        let mut body = Vec::with_capacity(96);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        let received = self.call(To::inode(ino), &body, &[], &mut [], Some(watch));
        match received {
            Ok(Answered { reply: Reply::Meta(reply), .. }) => Ok(reply),
            Ok(Answered { reply: Reply::Done, .. }) => Ok(MetaReply::Done),
            Ok(_) => Err(Errno::PROTO),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// The same, with a payload to send or room for one to receive; also returns the received payload's
    /// length.
    pub(crate) fn meta_with(
        &self,
        ino: Ino,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize), Errno> {
        match self.meta(To::inode(ino), request, payload, into) {
            Ok(done) => Ok(done),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::STALE),
        }
    }

    /// A request to the metadata.
    pub(crate) fn meta(
        &self,
        to: To,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize), Failure> {
        self.meta_changing(to, request, payload, into).map(|(reply, length, _)| (reply, length))
    }

    /// The same, with what it has changed besides what the reply says.
    pub(crate) fn meta_changing(
        &self,
        to: To,
        request: &MetaRequest<'_>,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(MetaReply, usize, Change), Failure> {
        let era = self.era();
        if let MetaRequest::Open { open, .. }
        | MetaRequest::OpenInode { open, .. }
        | MetaRequest::MakeTemporary { open, .. } = request
            && let Some(slot) = self.table().slot(SlotId { index: open.slot, incarnation: open.incarnation })
        {
            // Should this process die before it knows what it has opened, the agent knows whom to tell.
            begin_opening(slot, to.shard());
        }
        let mut body = Vec::with_capacity(96);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        let received = loop {
            match self.call(to, &body, payload, into, None) {
                Err(Failure::Refused(Refusal::Unfetched { ino })) => {
                    self.fetch(ino).map_err(|failed| failed.errno)?
                }
                received => break received?,
            }
        };
        match received.reply {
            Reply::Changed(change, reply) => {
                let written = payload.iter().map(|slice| slice.len()).sum();
                self.has_changed(era, to.shard(), (request, written), &reply, change);
                Ok((reply, received.payload_len, change))
            }
            Reply::Meta(reply) => Ok((reply, received.payload_len, Change::default())),
            Reply::Done => Ok((MetaReply::Done, received.payload_len, Change::default())),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// A request for data, by a version of the file's layout.
    pub(crate) fn data(
        &self,
        (server, layout): (ServerId, u32),
        request: DataRequest,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(DataReply, usize, Option<Fd>), Errno> {
        let mut body = Vec::with_capacity(32);
        bivouac_proto::encode(&Request::Data(request), &mut body);
        let answered = self.call(To::blocks(server, layout, request.file()), &body, payload, into, None);
        let Answered { reply, payload_len, fd } = answered.map_err(data_errno)?;
        Ok((data_reply(reply)?, payload_len, fd))
    }

    /// How full the backend is that a forwarded file lies on.
    pub(crate) fn space_of(&self, file: Ino) -> Result<DataReply, Errno> {
        self.data_at(To::Forwarded(file), DataRequest::Space)
    }

    /// A request for data without any bytes, to whomever.
    pub(crate) fn data_at(&self, to: To, request: DataRequest) -> Result<DataReply, Errno> {
        let mut body = Vec::with_capacity(32);
        bivouac_proto::encode(&Request::Data(request), &mut body);
        let answered = self.call(to, &body, &[], &mut [], None);
        data_reply(answered.map_err(data_errno)?.reply)
    }

    /// A descriptor of memory that a server of this node shares with its processes.
    pub(crate) fn node_memory(&self, server: ServerId, which: NodeRequest) -> Result<Fd, Errno> {
        let mut body = Vec::with_capacity(8);
        bivouac_proto::encode(&Request::Node(which), &mut body);
        match self.call(To::Server(server, ShardId(0)), &body, &[], &mut [], None) {
            Ok(received) => received.fd.ok_or(Errno::PROTO),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Refused(_)) => Err(Errno::IO),
        }
    }

    /// Sends a request to the metadata for which no answer is awaited; it may still be lost with a lost
    /// connection. Says whether it was sent.
    pub(crate) fn post_meta(&self, to: To, request: &MetaRequest<'_>) -> bool {
        let mut body = Vec::with_capacity(64);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        engine::post(&Asking(self), to, &body)
    }

    /// Asks servers that the map names. If it changes meanwhile, one of them may have left the deployment; and where something
    /// has copies, others may have to be asked: what one server leaves out, because another one answers for it, it does by one map.
    pub(crate) fn by_newest_map<T>(&self, ask: impl Fn(&Map) -> Result<T, Errno>) -> Result<T, Errno> {
        loop {
            let map = self.map();
            let answer = ask(&map);
            if (map.copies == 1 && answer.is_ok()) || self.map().epoch == map.epoch {
                return answer;
            }
        }
    }

    /// Sends requests for data to all their servers at once and waits for all answers.
    pub(crate) fn data_jobs(&self, jobs: &mut [DataJob<'_>]) {
        engine::call_each(&Asking(self), jobs);
    }

    /// Sends a request until it is answered.
    pub(crate) fn call(
        &self,
        to: To,
        body: &[u8],
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<Answered, Failure> {
        let answered = engine::call(&Asking(self), to, &Message { body, payload, watch }, into);
        match answered {
            // Patience is over.
            Err(Failure::Refused(Refusal::OldServer | Refusal::Busy)) => Err(Errno::IO.into()),
            answered => answered,
        }
    }
}

/// One of several requests for data that go out together.
pub(crate) type DataJob<'a> = Job<'a, To>;

/// A request for data, by a version of the file's layout, to go out together with others.
pub(crate) fn data_job<'a>(
    (server, layout): (ServerId, u32),
    request: DataRequest,
    payload: &'a [u8],
    into: &'a mut [u8],
) -> DataJob<'a> {
    let mut body = Vec::with_capacity(32);
    bivouac_proto::encode(&Request::Data(request), &mut body);
    Job::new(To::blocks(server, layout, request.file()), body, payload, into)
}

/// A request about a piece of a file, to go out together with others: to its server, or where the piece has copies,
/// to whoever is their primary by then.
pub(crate) fn piece_job<'a>(
    (piece, layout): (&Piece, u32),
    request: DataRequest,
    payload: &'a [u8],
    into: &'a mut [u8],
) -> DataJob<'a> {
    let group = piece.group;
    match group {
        Group::Blocks { copies: 2.., .. } => {
            copied_job(To::Group(group, layout), group, request, payload, into)
        }
        _ => data_job((piece.server, layout), request, payload, into),
    }
}

/// A read of a piece.
pub(crate) fn read_job<'a>(piece: (&Piece, u32), request: DataRequest, into: &'a mut [u8]) -> DataJob<'a> {
    piece_job(piece, request, &[], into)
}

/// A read of a piece that has copies, by the holder that the piece names.
pub(crate) fn copy_job<'a>(
    (piece, layout): (&Piece, u32),
    request: DataRequest,
    into: &'a mut [u8],
) -> DataJob<'a> {
    copied_job(To::Holder(piece.server, piece.group, layout), piece.group, request, &[], into)
}

fn copied_job<'a>(
    to: To,
    group: Group,
    request: DataRequest,
    payload: &'a [u8],
    into: &'a mut [u8],
) -> DataJob<'a> {
    let mut body = Vec::with_capacity(40);
    bivouac_proto::encode(&Request::Copied(Copied { group, request, here: None }), &mut body);
    Job::new(to, body, payload, into)
}

/// A write of a piece that has copies; a holder on this node is sent the bytes by [`ahead_job`].
pub(crate) fn write_job<'a>(
    (piece, layout): (&Piece, u32),
    request: DataRequest,
    payload: &'a [u8],
    here: (ServerId, u64),
) -> DataJob<'a> {
    let mut body = Vec::with_capacity(48);
    let copied = Copied { group: piece.group, request, here: Some(here) };
    bivouac_proto::encode(&Request::Copied(copied), &mut body);
    Job::new(To::Group(piece.group, layout), body, payload, &mut [])
}

/// The bytes of a write for a holder on this node. Nothing depends on its outcome.
pub(crate) fn ahead_job<'a>(
    session: u64,
    (server, number): (ServerId, u64),
    payload: &'a [u8],
) -> DataJob<'a> {
    let sent = Sent { by: Sender::Program(session), number };
    let mut body = Vec::with_capacity(32);
    bivouac_proto::encode(&Request::Copy(CopyRequest::Ahead { sent, rest: Vec::new() }), &mut body);
    Job::new(To::Server(server, ShardId(0)), body, payload, &mut []).once()
}

/// How a request for data ended, and how many bytes came with its answer.
pub(crate) fn data_done(job: &mut DataJob<'_>) -> Result<(DataReply, usize), Errno> {
    let answered = job.take().map_err(data_errno)?;
    Ok((data_reply(answered.reply)?, answered.payload_len))
}

fn data_reply(reply: Reply) -> Result<DataReply, Errno> {
    match reply {
        Reply::Data(reply) => Ok(reply),
        Reply::Done => Ok(DataReply::Done),
        _ => Err(Errno::PROTO),
    }
}

fn data_errno(failure: Failure) -> Errno {
    match failure {
        Failure::Errno(errno) => errno,
        Failure::Refused(Refusal::StaleLayout) => OUTDATED,
        Failure::Refused(_) => Errno::IO,
    }
}
