//! Requests for data: one, or many that go out together.

use super::Requests;
use super::asking::Asking;
use super::to::To;
use bivouac_layout::{Group, Ino, Piece, ServerId, ShardId};
use bivouac_node::Fd;
use bivouac_proto::copies::{Copied, CopyRequest, Sender, Sent};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::node::NodeRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Request};
use bivouac_transport::engine::{self, Answered, Job};
use std::io::{IoSlice, IoSliceMut};

/// What a request for blocks ends with whose sender goes by a layout that is outdated. It never leaves the client core: no
/// system has an error of this number.
pub(crate) const OUTDATED: Errno = Errno(4095);

impl Requests {
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

    /// Sends requests for data to all their servers at once and waits for all answers.
    pub(crate) fn data_jobs(&self, jobs: &mut [DataJob<'_>]) {
        engine::call_each(&Asking(self), jobs);
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
    job_to(To::blocks(server, layout, request.file()), request, payload, into)
}

fn job_to<'a>(to: To, request: DataRequest, payload: &'a [u8], into: &'a mut [u8]) -> DataJob<'a> {
    let mut body = Vec::with_capacity(32);
    bivouac_proto::encode(&Request::Data(request), &mut body);
    Job::new(to, body, payload, into)
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
        _ => job_to(To::only(piece.server, layout, request.file()), request, payload, into),
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
