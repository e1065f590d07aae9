//! Requests about blocks: gates, order and counts. What they mean is [`crate::serve`]'s and [`crate::copies`]'s business.

use super::Storage;
use crate::copies::{self, Coming, Copies, Program, may_send_ahead};
use crate::order::Turn;
use crate::restriping::{Access, Flight};
use crate::serve;
use crate::services::Session;
use bivouac_data::DataStore;
use bivouac_layout::{Group, Ino, ServerId};
use bivouac_meta::Standing;
use bivouac_proto::auth::Role;
use bivouac_proto::copies::{Copied, CopyRequest, Sender, Sent};
use bivouac_proto::data::{DataReply, DataRequest, GATHER_MAX, Gather};
use bivouac_proto::header::MAX_PAYLOAD;
use bivouac_proto::lazy::FetchRequest;
use bivouac_proto::restripe::RestripeRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Refusal, Reply, Request};
use bivouac_transport::Responder;
use std::sync::atomic::Ordering;

impl Session {
    /// From where the bytes of a write come.
    fn program(&self, header: &Header, copied: &Copied) -> Program {
        let Role::Client { node, .. } = &self.role else { return Program::default() };
        let sent = |number| Sent { by: Sender::Program(header.id.session), number };
        Program { node: Some(*node), here: copied.here.map(|(server, number)| (server, sent(number))) }
    }
}

/// Of which file a program's request is about blocks, and what it does with them.
fn asked(request: &DataRequest, len: usize) -> Option<(Ino, Access)> {
    let changes = |offset: u64, len: u64| Access::Changes(offset..offset.saturating_add(len));
    match *request {
        DataRequest::Write { ino, offset, .. } => Some((ino, changes(offset, len as u64))),
        DataRequest::Fallocate { ino, offset, len, .. } => Some((ino, changes(offset, len))),
        DataRequest::TakeBack { ino, end, size, .. } => Some((ino, Access::Changes(size..end.max(size)))),
        DataRequest::Read { ino, .. }
        | DataRequest::Extent { ino }
        | DataRequest::Seek { ino, .. }
        | DataRequest::Sync { ino }
        | DataRequest::Pass { ino, .. } => Some((ino, Access::Reads)),
        // Programs do not send these.
        DataRequest::Truncate { .. }
        | DataRequest::ReadDirect { .. }
        | DataRequest::WriteDirect { .. }
        | DataRequest::Remove { .. }
        | DataRequest::Close { .. }
        | DataRequest::Open { .. }
        | DataRequest::Space => None,
    }
}

/// The server that sends a request about blocks, by the right that it had by the map that the request states.
fn sender(role: &Role, header: &Header, request: &DataRequest) -> Option<copies::Sender> {
    let Role::Server(server) = *role else { return None };
    let standing = |ino: Ino| Standing { group: Group::Shard(ino.shard()), since: header.epoch };
    Some(copies::Sender { server, standing: request.changed().map(standing) })
}

impl Storage {
    /// Refuses a request about blocks by whose sender's map something is not as it is here.
    fn check_blocks(&self, role: &Role, header: &Header, request: &DataRequest) -> Result<(), Failure> {
        self.counters.data.fetch_add(1, Ordering::Relaxed);
        // A server acts by the right to the file's shard.
        let by = sender(role, header, request).and_then(|by| by.standing);
        self.check_since(header, by.map(|standing| standing.group))
    }

    pub(super) fn data(
        &self,
        role: &Role,
        header: &Header,
        request: &DataRequest,
        payload: &[u8],
        reply: &mut Responder,
    ) {
        if let Err(failure) = self.check_blocks(role, header, request) {
            return reply.fail(&failure);
        }
        let (store, copies) = (&*self.data, &*self.copies);
        if let (Role::Client { .. }, DataRequest::Read { .. } | DataRequest::Write { .. }) = (role, request) {
            copies.is_used();
        }
        // The size and the holes of a file may be those of one that has copies.
        if matches!(request, DataRequest::Extent { .. } | DataRequest::Seek { .. })
            && let Err(failure) = self.check_lease()
        {
            return reply.fail(&failure);
        }
        let turn =
            if request.changed().is_some() { self.order.take(header.id, header.attempt) } else { Turn::NONE };
        let mut running = match turn {
            Turn::Begun(running) => running,
            Turn::Answered(answer) => return reply.ok(&Reply::Data(answer)),
            Turn::Overtaken => return reply.fail(&Refusal::Busy.into()),
        };
        let _flight = match self.enter(role, header, request, payload.len()) {
            Ok(flight) => flight,
            Err(failure) => return reply.fail(&failure),
        };
        // When it is its turn: the sender may have been replaced since it came.
        if let Some(by) = sender(role, header, request)
            && let Err(refusal) = copies.check_sender(by, request)
        {
            return reply.fail(&refusal.into());
        }
        if let Err(errno) = self.fetching.interrupt(request) {
            return reply.fail(&errno.into());
        }
        let inodes = || self.meta_store().map_or(0, |meta| meta.counts().inodes);
        let served = serve::data((store, copies), request, payload, inodes, reply, &mut running);
        self.counters.read.fetch_add(served.read, Ordering::Relaxed);
        self.counters.written.fetch_add(served.written, Ordering::Relaxed);
    }

    /// Pieces of many files.
    pub(super) fn gather(
        &self,
        header: &Header,
        gather: &Gather,
        reply: &mut Responder,
    ) -> Result<Reply, Failure> {
        self.counters.data.fetch_add(1, Ordering::Relaxed);
        let bytes: u64 = gather.pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if gather.pieces.len() > GATHER_MAX || bytes > u64::from(MAX_PAYLOAD) {
            return Err(Errno::INVAL.into());
        }
        self.check_since(header, None)?;
        self.copies.is_used();
        // Of a file whose blocks have moved, the program asks with its layout's version.
        let may_read = |ino| self.restriping.enter(ino, 0, &Access::Reads).ok();
        let read = serve::gather(&self.data, &gather.pieces, may_read, reply.buffer());
        self.counters.read.fetch_add(reply.buffer().len() as u64, Ordering::Relaxed);
        Ok(Reply::Gathered(read))
    }

    /// Blocks that have copies, at their primary.
    pub(super) fn copied(
        &self,
        (session, coming): (&Session, Option<Coming>),
        header: &Header,
        copied: &Copied,
        payload: &[u8],
        reply: &mut Responder,
    ) {
        if let Err(failure) = self.check_blocks(&session.role, header, &copied.request) {
            return reply.fail(&failure);
        }
        let (store, copies) = (&*self.data, &*self.copies);
        if let (Role::Client { .. }, DataRequest::Read { .. } | DataRequest::Write { .. }) =
            (&session.role, &copied.request)
        {
            copies.is_used();
        }
        let enter = || self.enter(&session.role, header, &copied.request, payload.len());
        if let DataRequest::Read { ino, offset, len } = copied.request {
            let _flight = match enter() {
                Ok(flight) => flight,
                Err(failure) => return reply.fail(&failure),
            };
            self.read_copied(header, (store, copies), copied.group, (ino, offset, len), reply);
            // The answer is on its way.
            copies.tidy();
            return;
        }
        let mut running = match self.order.take(header.id, header.attempt) {
            Turn::Begun(running) => running,
            Turn::Answered(answer) => return reply.ok(&Reply::Data(answer)),
            Turn::Overtaken => return reply.fail(&Refusal::Busy.into()),
        };
        let _flight = match enter() {
            Ok(flight) => flight,
            Err(failure) => return reply.fail(&failure),
        };
        let sent = match coming {
            Some(Coming::Write(ahead)) => copies.finish_ahead(ahead, payload),
            _ => copies.send_ahead(copied.group, &session.program(header, copied), payload),
        };
        let by = sender(&session.role, header, &copied.request);
        let group = (copied.group, header.epoch);
        match copies.change(group, (&copied.request, by), payload, sent.as_ref()) {
            Ok(done) => {
                running.answered(done);
                self.counters.written.fetch_add(payload.len() as u64, Ordering::Relaxed);
                reply.ok(&Reply::Data(done));
            }
            Err(failure) => reply.fail(&failure),
        }
    }

    /// Reads blocks that have copies, here at their primary or at another holder.
    fn read_copied(
        &self,
        header: &Header,
        (store, copies): (&DataStore, &Copies),
        group: bivouac_layout::Group,
        (ino, offset, len): (Ino, u64, u32),
        reply: &mut Responder,
    ) {
        let count = match copies.serving(group) {
            Ok(_) => match serve::read(store, ino, offset, len, reply) {
                Ok(count) => count,
                Err(error) if copies.fails_here(group, ino, error.errno()) => {
                    return reply.fail(&Refusal::Busy.into());
                }
                Err(error) => return reply.fail(&error.errno().into()),
            },
            Err(refusal) if copies.is_primary_of(group) => return reply.fail(&refusal.into()),
            // By the same map, most likely, the program knows that another one is the primary.
            Err(_) => match copies.show(group, ino, (offset, len), reply.buffer()) {
                Some(length) => {
                    let count = reply.buffer().len() as u64;
                    reply.ok(&Reply::Data(DataReply::Read { length }));
                    count
                }
                None => {
                    reply.buffer().clear();
                    // The primary may be another one meanwhile: the program is to ask by the newest map.
                    return match self.check_since(header, [group]) {
                        Ok(()) => reply.ok(&Reply::Data(DataReply::Elsewhere)),
                        Err(failure) => reply.fail(&failure),
                    };
                }
            },
        };
        self.counters.read.fetch_add(count, Ordering::Relaxed);
    }

    /// Another server's request about ranges of a file that go to other servers.
    pub(super) fn restripe(
        &self,
        from: ServerId,
        header: &Header,
        request: &RestripeRequest,
        reply: &mut Responder,
    ) -> Result<Reply, Failure> {
        let shard = request.step().map(|step| Group::Shard(step.ino.shard()));
        self.check_since(header, shard)?;
        let _running = match self.order.take(header.id, header.attempt) {
            Turn::Begun(running) => running,
            Turn::Answered(_) | Turn::Overtaken => return Err(Refusal::Busy.into()),
        };
        self.restriping.serve(from, request, reply.buffer()).map(Reply::Restripe)
    }

    /// Another server's request to read from the backend what of a lazy file is to be this one's.
    pub(super) fn fetch(
        &self,
        from: ServerId,
        header: &Header,
        request: &FetchRequest,
    ) -> Result<Reply, Failure> {
        self.check_since(header, [Group::Shard(request.ino.shard())])?;
        let _running = match self.order.take(header.id, header.attempt) {
            Turn::Begun(running) => running,
            Turn::Answered(_) | Turn::Overtaken => return Err(Refusal::Busy.into()),
        };
        self.fetching.serve(from, request).map(Reply::Fetch)
    }

    /// A program's request for blocks begins. (Servers that ask for some are those of the inode, which knows the layout.)
    fn enter(
        &self,
        role: &Role,
        header: &Header,
        request: &DataRequest,
        len: usize,
    ) -> Result<Option<Flight<'_>>, Failure> {
        let flight = match (role, asked(request, len)) {
            (Role::Client { .. }, Some((ino, access))) => {
                Some(self.restriping.enter(ino, header.layout, &access)?)
            }
            _ => None,
        };
        self.restriping.goes_by(request, header.layout)?;
        Ok(flight)
    }

    /// A request with a long payload begins to come. `None`: nothing is done before it is there.
    pub(super) fn begin_coming(&self, session: &Session, header: &Header, body: &[u8]) -> Option<Coming> {
        // Where nothing has copies, there is none.
        self.open().filter(|open| open.follower.has_copies())?;
        let (copies, len) = (&self.copies, header.payload_len as usize);
        if self.links.is_replaced() {
            return None;
        }
        match (bivouac_proto::decode(body).ok()?, &session.role) {
            (Request::Copied(copied @ Copied { request: DataRequest::Write { .. }, .. }), role)
                if matches!(role, Role::Client { .. } | Role::Server(_))
                    && self.check_since(header, None).is_ok() =>
            {
                copies.begin_ahead(copied.group, &session.program(header, &copied), len).map(Coming::Write)
            }
            (Request::Copy(request), role) if may_send_ahead(role, header.id.session, &request) => {
                copies.begin_keeping(&request, len)
            }
            _ => None,
        }
    }

    /// Another server's request about copies of blocks.
    pub(super) fn copy(
        &self,
        from: ServerId,
        header: &Header,
        request: &CopyRequest,
        payload: &[u8],
        reply: &mut Responder,
    ) -> Result<Reply, Failure> {
        self.check_since(header, None)?;
        let _running = match self.order.take(header.id, header.attempt) {
            Turn::Begun(running) => running,
            Turn::Answered(_) | Turn::Overtaken => return Err(Refusal::Busy.into()),
        };
        // By an older layout, what has left would be taken for holes.
        let compared = match request {
            CopyRequest::Fetch { ino, .. }
            | CopyRequest::Digest { ino, .. }
            | CopyRequest::Extent { ino, .. }
            | CopyRequest::Sums { ino, .. }
            | CopyRequest::Bytes { ino, .. } => Some(*ino),
            _ => None,
        };
        let enter = |ino| self.restriping.enter(ino, header.layout, &Access::Reads);
        let _flight = compared.map(enter).transpose()?;
        self.copies
            .serve((from, header.epoch, header.layout), request, payload, reply.buffer())
            .map(Reply::Copy)
    }
}
