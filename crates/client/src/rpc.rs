//! Requests: where they go, what happens when they fail.
//!
//! A request keeps its identity (session, slot, sequence) for as long as it is repeated, so that a server
//! that has done it already answers again instead of doing it twice. If a connection breaks, the client
//! connects again and repeats the request until the server is declared down (the program gets EIO) or
//! [`PATIENCE`] has passed. Refusals that are this module's business (newer map, server behind, somebody
//! busy) are handled here; those that concern paths go to the caller.

use crate::links::Link;
use crate::moves::Reached;
use crate::session::Client;
use bivouac_layout::{Ino, Map, ServerId, ServerState, ShardId};
use bivouac_node::release::begin_opening;
use bivouac_node::{Fd, SlotId};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::NO_REPLY;
use bivouac_proto::meta::{Change, MetaReply, MetaRequest};
use bivouac_proto::node::NodeRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Refusal, Reply, Request, RequestId, Status};
use bivouac_transport::{Answer, Connection, Exchange, Outgoing, Peer, TransportError, exchange};
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

/// How long a request is repeated before the program gets EIO.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most requests under way together to one server: the next one is there when the server is done with one.
const MAX_TO_ONE: usize = 2;

/// Waits for an answer in place of this module: called with the connection once a request is out; returns
/// when something came, or when whatever it did to hurry the server is done.
pub(crate) type Watch<'w> = &'w dyn Fn(rustix::fd::BorrowedFd<'_>);

/// A reply with what came along.
pub(crate) struct Received {
    pub(crate) reply: Reply,
    pub(crate) payload_len: usize,
    pub(crate) fd: Option<Fd>,
}

/// Where a request goes.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// The server that holds a shard.
    Shard(ShardId),
    /// The same, for a name in a directory that was reached in some way.
    Entry(ShardId, Reached),
    /// A certain server; the shard is one of its own.
    Server(ServerId, ShardId),
}

impl To {
    fn server(self, map: &Map) -> ServerId {
        match self {
            To::Shard(shard) | To::Entry(shard, _) => map.primary(shard),
            To::Server(server, _) => server,
        }
    }

    fn shard(self) -> ShardId {
        match self {
            To::Shard(shard) | To::Entry(shard, _) | To::Server(_, shard) => shard,
        }
    }
}

/// Waits between attempts: short at first, then longer.
struct Backoff {
    begun: Option<Instant>,
    next: Duration,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { begun: None, next: Duration::from_micros(50) }
    }

    /// Waits; false when patience is over.
    fn wait(&mut self) -> bool {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if begun.elapsed() > PATIENCE {
            return false;
        }
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: self.next.subsec_nanos().into() };
        let _ = rustix::thread::nanosleep(&pause);
        self.next = (self.next * 2).min(Duration::from_millis(100));
        true
    }
}

/// Who a request is, through all its attempts.
#[derive(Default)]
struct Identity {
    id: Option<RequestId>,
    /// Attempts that were begun.
    attempts: u16,
    /// The connection whose slot the identity is of: nobody else may use it until the request is answered.
    owner: Option<(ServerId, Box<Link>)>,
}

impl Identity {
    /// After an attempt over `link`.
    fn done_with(&mut self, client: &Client, server: ServerId, link: Box<Link>) {
        if self.id.is_some_and(|id| id.slot == link.slot) {
            self.owner = Some((server, link));
        } else {
            client.give_link(server, link);
        }
    }

    /// The request is over.
    fn give_back(self, client: &Client) {
        if let Some((server, link)) = self.owner {
            client.give_link(server, link);
        }
    }
}

impl Client {
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
        let received = self.call(To::Shard(ino.shard()), &body, &[], &mut [], Some(watch));
        match received {
            Ok(Received { reply: Reply::Meta(reply), .. }) => Ok(reply),
            Ok(Received { reply: Reply::Done, .. }) => Ok(MetaReply::Done),
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
        match self.meta(To::Shard(ino.shard()), request, payload, into) {
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
        let received = self.call(to, &body, payload, into, None)?;
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

    /// A request for data.
    pub(crate) fn data(
        &self,
        server: ServerId,
        request: DataRequest,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(DataReply, usize, Option<Fd>), Errno> {
        self.data_as(Identity::default(), server, request, payload, into)
    }

    fn data_as(
        &self,
        identity: Identity,
        server: ServerId,
        request: DataRequest,
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(DataReply, usize, Option<Fd>), Errno> {
        let mut body = Vec::with_capacity(32);
        bivouac_proto::encode(&Request::Data(request), &mut body);
        let to = To::Server(server, ShardId(0));
        let received = self.call_as(identity, to, &body, payload, into, None).map_err(|f| match f {
            Failure::Errno(errno) => errno,
            Failure::Refused(_) => Errno::IO,
        })?;
        match received.reply {
            Reply::Data(reply) => Ok((reply, received.payload_len, received.fd)),
            Reply::Done => Ok((DataReply::Done, received.payload_len, received.fd)),
            _ => Err(Errno::PROTO),
        }
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
    pub(crate) fn post_meta(&self, shard: ShardId, request: &MetaRequest<'_>) -> bool {
        let server = self.map().primary(shard);
        let mut body = Vec::with_capacity(64);
        bivouac_proto::encode(&Request::Meta(request.clone()), &mut body);
        // One repetition: the connection at hand may have been broken for long.
        for _ in 0..2 {
            let Ok(mut link) = self.take_link(server) else {
                return false;
            };
            let mut header = self.header(shard, RequestId::default());
            header.flags = NO_REPLY;
            let sent = link.connection.post(&Outgoing { before: &[], header, body: &body, payload: &[] });
            self.give_link(server, link);
            if sent.is_ok() {
                return true;
            }
        }
        false
    }

    fn header(&self, shard: ShardId, id: RequestId) -> Header {
        let mut header = Header::new(Kind::Request);
        header.shard = shard;
        header.epoch = self.map().epoch;
        header.namespace = u64::MAX;
        header.id = id;
        header
    }

    /// The header of the next request on a connection, with a fresh identity.
    pub(crate) fn next_header(&self, link: &mut Link, shard: ShardId) -> Result<Header, TransportError> {
        link.sequence += 1;
        let id = RequestId { session: self.session()?, slot: link.slot, sequence: link.sequence };
        Ok(self.header(shard, id))
    }

    fn call(
        &self,
        to: To,
        body: &[u8],
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<Received, Failure> {
        self.call_as(Identity::default(), to, body, payload, into, watch)
    }

    /// Sends a request until it is answered. It keeps its identity through all refusals: a refusal of a
    /// repetition does not say that an earlier attempt was refused, too.
    fn call_as(
        &self,
        mut identity: Identity,
        to: To,
        body: &[u8],
        payload: &[IoSlice<'_>],
        into: &mut [IoSliceMut<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<Received, Failure> {
        let mut backoff = Backoff::new();
        let answered = loop {
            let server = to.server(self.map());
            if !self.is_up(server) {
                break Err(Errno::IO.into());
            }
            let namespace = match to {
                To::Entry(_, reached) => match self.namespace_for(server, reached) {
                    Ok(namespace) => namespace,
                    Err(refusal) => break Err(refusal.into()),
                },
                _ => u64::MAX,
            };
            let outcome = self.link_for(&mut identity, server).and_then(|(mut link, mut header)| {
                (header.shard, header.namespace) = (to.shard(), namespace);
                let closes = self.closes_for(server);
                let before = closes.as_ref().map_or(&[][..], |c| c.messages());
                let outgoing = Outgoing { before, header, body, payload };
                let asked = self.ask(server, &mut link.connection, &outgoing, into, watch);
                match closes {
                    Some(closes) if asked.is_ok() => self.told(server, closes),
                    Some(closes) => self.not_told(server, closes),
                    None => {}
                }
                identity.done_with(self, server, link);
                asked
            });
            match outcome {
                Ok(Err(Failure::Refused(refusal))) => {
                    if let Err(failure) = self.adapt(server, refusal, &mut backoff) {
                        break Err(failure);
                    }
                }
                Ok(done) => break done,
                Err(error) => {
                    if let Err(errno) = self.mend(server, error, &mut backoff) {
                        break Err(errno.into());
                    }
                }
            }
        };
        identity.give_back(self);
        answered
    }

    /// A connection to a server for the next attempt at a request, and the attempt's header.
    fn link_for(
        &self,
        identity: &mut Identity,
        server: ServerId,
    ) -> Result<(Box<Link>, Header), TransportError> {
        let mut link = match identity.owner.take_if(|(of, link)| *of == server && link.works()) {
            Some((_, link)) => link,
            None => self.take_link(server)?,
        };
        let id = match identity.id {
            Some(id) => id,
            None => {
                let header = self.next_header(&mut link, ShardId(0))?;
                *identity.id.insert(header.id)
            }
        };
        let mut header = self.header(ShardId(0), id);
        header.attempt = identity.attempts;
        identity.attempts = identity.attempts.saturating_add(1);
        Ok((link, header))
    }

    /// One call. Long silence of the server is waited out for as long as it is up.
    fn ask(
        &self,
        server: ServerId,
        connection: &mut Connection,
        outgoing: &Outgoing<'_>,
        into: &mut [IoSliceMut<'_>],
        watch: Option<Watch<'_>>,
    ) -> Result<Result<Received, Failure>, TransportError> {
        let mut outcome = match watch {
            None => connection.call(outgoing, into).map(open_answer),
            Some(watch) => {
                connection.start(outgoing)?;
                watch(connection.as_fd());
                connection.go_on(outgoing, into).map(open_answer)
            }
        };
        while matches!(outcome, Err(TransportError::TimedOut)) && self.is_still_up(server) {
            outcome = connection.go_on(outgoing, into).map(open_answer);
        }
        outcome
    }

    fn is_up(&self, server: ServerId) -> bool {
        self.map().server(server).is_some_and(|s| s.state == ServerState::Up)
    }

    /// Whether a server is up by the newest map that the agent has.
    fn is_still_up(&self, server: ServerId) -> bool {
        let _ = self.refresh_map();
        self.is_up(server)
    }

    /// After a broken connection: asks the agent what became of the server, and waits a little.
    fn mend(&self, server: ServerId, error: TransportError, backoff: &mut Backoff) -> Result<(), Errno> {
        match error {
            // These do not get better by trying again.
            TransportError::Version { .. }
            | TransportError::Authentication
            | TransportError::Protocol(_)
            | TransportError::TooLong { .. }
            | TransportError::System(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Err(error.errno()),
            _ => {}
        }
        // Without a session it was the agent that refused.
        let peer = if self.has_session() { Peer::Server(server) } else { Peer::Agent };
        if matches!(error, TransportError::Refused) {
            self.refusals.heard(self.table().heard());
            if self.refusals.is_gone(peer) {
                return Err(Errno::IO);
            }
        }
        if backoff.begun.is_some() {
            let _ = self.refresh_map();
            if !self.is_up(server) {
                return Err(Errno::IO);
            }
        }
        if backoff.wait() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Adapts to a refusal, or hands it to the caller.
    fn adapt(&self, server: ServerId, refusal: Refusal, backoff: &mut Backoff) -> Result<(), Failure> {
        match refusal {
            Refusal::StaleMap(map) => self.learn_map(map),
            Refusal::OldServer | Refusal::Busy => {
                if !backoff.wait() {
                    return Err(Errno::IO.into());
                }
            }
            refusal => {
                if let Refusal::StaleNamespace { version, moved } = &refusal {
                    self.hear(server, *version, moved.as_deref());
                }
                return Err(Failure::Refused(refusal));
            }
        }
        Ok(())
    }
}

/// Takes an answer out of its connection's buffer.
fn open_answer(answer: Answer<'_>) -> Result<Received, Failure> {
    let reply = open_parts(answer.header.status, answer.body)?;
    Ok(Received { reply, payload_len: answer.payload_len, fd: answer.fd })
}

fn open_parts(status: Status, body: &[u8]) -> Result<Reply, Failure> {
    if status == Status::OK {
        return bivouac_proto::decode(body).map_err(|_| Errno::PROTO.into());
    }
    if status == Status::REFUSED {
        let refusal: Refusal = bivouac_proto::decode(body).map_err(|_| Errno::PROTO)?;
        return Err(Failure::Refused(refusal));
    }
    Err(status.errno().unwrap_or(Errno::PROTO).into())
}

/// One of several requests for data that go out together.
pub(crate) struct DataJob<'a> {
    server: ServerId,
    request: DataRequest,
    payload: &'a [u8],
    into: &'a mut [u8],
    result: Option<Result<(DataReply, usize), Errno>>,
    /// The identity of an attempt whose answer was lost.
    sent_as: Option<RequestId>,
}

impl<'a> DataJob<'a> {
    pub(crate) fn new(
        server: ServerId,
        request: DataRequest,
        payload: &'a [u8],
        into: &'a mut [u8],
    ) -> DataJob<'a> {
        DataJob { server, request, payload, into, result: None, sent_as: None }
    }

    /// How it ended.
    pub(crate) fn take(&mut self) -> Result<(DataReply, usize), Errno> {
        self.result.take().unwrap_or(Err(Errno::IO))
    }
}

impl Client {
    /// Sends requests for data to all their servers at once and waits for all answers. Those that a broken
    /// connection leaves open are repeated one by one: each is safe to do twice.
    pub(crate) fn data_jobs(&self, jobs: &mut [DataJob<'_>]) {
        if jobs.len() > 1 {
            // One request under way on each connection; several for a server go over several connections.
            let mut rest = &mut *jobs;
            while !rest.is_empty() {
                let (batch, later) = rest.split_at_mut(batch_len(rest));
                self.exchange_jobs(batch);
                rest = later;
            }
        }
        for job in jobs.iter_mut().filter(|j| j.result.is_none()) {
            let mut into = [IoSliceMut::new(job.into)];
            // A slot whose connection is broken is nobody's any more: the identity stays this request's.
            let attempts = u16::from(job.sent_as.is_some());
            let identity = Identity { id: job.sent_as, attempts, owner: None };
            job.result = Some(
                self.data_as(identity, job.server, job.request, &[IoSlice::new(job.payload)], &mut into)
                    .map(|(reply, len, _)| (reply, len)),
            );
        }
    }

    /// All calls, each waited out for as long as its server is up.
    fn exchange_patiently(&self, calls: &mut [Exchange<'_, '_>], servers: &[ServerId]) {
        loop {
            exchange(calls);
            let mut again = false;
            for (call, server) in calls.iter_mut().zip(servers) {
                if matches!(call.result, Some(Err(TransportError::TimedOut))) && self.is_still_up(*server) {
                    call.go_on();
                    again = true;
                }
            }
            if !again {
                return;
            }
        }
    }

    fn exchange_jobs(&self, jobs: &mut [DataJob<'_>]) {
        let mut under_way = Vec::with_capacity(jobs.len());
        for job in jobs.iter_mut() {
            let Ok(mut link) = self.take_link(job.server) else {
                continue;
            };
            let Ok(header) = self.next_header(&mut link, ShardId(0)) else {
                self.give_link(job.server, link);
                continue;
            };
            let mut body = Vec::with_capacity(32);
            bivouac_proto::encode(&Request::Data(job.request), &mut body);
            let payload = [IoSlice::new(job.payload)];
            under_way.push((
                job.server,
                link,
                header,
                body,
                payload,
                [IoSliceMut::new(job.into)],
                (&mut job.result, &mut job.sent_as),
            ));
        }
        let servers: Vec<ServerId> = under_way.iter().map(|(server, ..)| *server).collect();
        let mut calls: Vec<Exchange<'_, '_>> = under_way
            .iter_mut()
            .map(|(_, link, header, body, payload, into, _)| {
                Exchange::new(
                    &mut link.connection,
                    Outgoing { before: &[], header: *header, body, payload },
                    into,
                )
            })
            .collect();
        self.exchange_patiently(&mut calls, &servers);
        let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
        for ((server, link, header, .., (slot, sent_as)), result) in under_way.into_iter().zip(results) {
            if let Some(Ok(received)) = result {
                let opened = open_parts(received.header.status, link.connection.body());
                *slot = match opened {
                    Ok(Reply::Data(reply)) => Some(Ok((reply, received.payload_len))),
                    Ok(Reply::Done) => Some(Ok((DataReply::Done, received.payload_len))),
                    Ok(_) => Some(Err(Errno::PROTO)),
                    Err(Failure::Errno(errno)) => Some(Err(errno)),
                    // Repeated alone, where refusals are understood.
                    Err(Failure::Refused(_)) => None,
                };
            } else {
                *sent_as = Some(header.id);
            }
            self.give_link(server, link);
        }
    }
}

/// How many of these jobs go out together.
fn batch_len(jobs: &[DataJob<'_>]) -> usize {
    let mut len = 0;
    while let Some(job) = jobs.get(len) {
        if jobs[..len].iter().filter(|j| j.server == job.server).count() >= MAX_TO_ONE {
            break;
        }
        len += 1;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_reply_a_refusal_or_an_error_and_garbage_is_eproto() {
        let (mut done, mut busy) = (Vec::new(), Vec::new());
        bivouac_proto::encode(&Reply::Done, &mut done);
        bivouac_proto::encode(&Refusal::Busy, &mut busy);
        assert!(matches!(open_parts(Status::OK, &done), Ok(Reply::Done)));
        assert!(matches!(open_parts(Status::REFUSED, &busy), Err(Failure::Refused(Refusal::Busy))));
        for status in [Status::OK, Status::REFUSED] {
            let garbage = open_parts(status, &[0xff; 40]);
            assert!(matches!(garbage, Err(Failure::Errno(Errno::PROTO))), "{garbage:?}");
        }
        let failed = open_parts(Status::from(Errno::NOENT), &[]);
        assert!(matches!(failed, Err(Failure::Errno(Errno::NOENT))), "{failed:?}");
    }

    #[test]
    fn a_batch_has_no_more_jobs_for_one_server_than_it_takes_at_once() {
        let batch = |servers: &[u16]| {
            let job = |server: &u16| {
                DataJob::new(ServerId(*server), DataRequest::Extent { ino: Ino(1) }, &[], &mut [])
            };
            batch_len(&servers.iter().map(job).collect::<Vec<_>>())
        };
        let many = vec![3; MAX_TO_ONE + 5];
        assert_eq!(batch(&many), MAX_TO_ONE);
        let dealt: Vec<u16> = (0..MAX_TO_ONE as u16 * 3).map(|n| n % 3).collect();
        assert_eq!(batch(&dealt), dealt.len());
        assert_eq!((batch(&[]), batch(&[1])), (0, 1));
    }

    #[test]
    fn a_job_that_nobody_answered_has_failed() {
        let mut job = DataJob::new(ServerId(0), DataRequest::Extent { ino: Ino(1) }, &[], &mut []);
        assert_eq!(job.take().err(), Some(Errno::IO));
        job.result = Some(Ok((DataReply::Done, 7)));
        assert_eq!(job.take().map(|(_, length)| length), Ok(7));
        assert_eq!(job.take().err(), Some(Errno::IO), "an answer is taken once");
    }

    #[test]
    fn patience_ends_and_pauses_stay_short() {
        let mut backoff = Backoff::new();
        assert!(backoff.begun.is_none() && backoff.wait() && backoff.begun.is_some());
        assert_eq!(backoff.next, Duration::from_micros(100));
        backoff.next = Duration::from_millis(90);
        assert!(backoff.wait());
        assert_eq!(backoff.next, Duration::from_millis(100));
        backoff.begun = Instant::now().checked_sub(PATIENCE + Duration::from_secs(1));
        assert!(backoff.begun.is_none() || !backoff.wait());
    }
}
