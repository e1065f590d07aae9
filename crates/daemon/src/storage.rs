//! The server role: the metadata of its shards, and the blocks in its storage.
//!
//! Each request passes the same gates before the stores see it: the connection's role may ask it; the sender's node is not away;
//! what the request is about is by the sender's map as it is here; and, for requests about paths, its namespace version is
//! not older.
//!
//! - [`begin`]: with the first map the stores are opened.
//! - [`blocks`]: requests about blocks. What requests mean is the stores' business, to which [`crate::serve`] connects them.

mod begin;
mod blocks;
mod opened;

use crate::config::ServerConfig;
use crate::copies::{Copies, may_send_ahead};
use crate::fetching::Fetching;
use crate::follower::Follower;
use crate::links::Links;
use crate::order::{Order, Turn};
use crate::rebuilding::Rebuilder;
use crate::restriping::Restriping;
use crate::serve;
use crate::services::{Service, Session};
use crate::verify::Verifier;
use crate::vigil::Vigil;
use bivouac_data::DataStore;
use bivouac_layout::{Epoch, NodeId, ServerId};
use bivouac_meta::{Caller, MetaStore, Replayed};
use bivouac_node::{Fences, VersionPage};
use bivouac_proto::auth::{Credentials, Role};
use bivouac_proto::control::Stats;
use bivouac_proto::copies::CopyRequest;
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Family, Header, Refusal, Reply, Request};
use bivouac_transport::engine::budget::OVERLAP;
use bivouac_transport::{Call, Responder};
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// See the module.
pub(crate) struct Storage {
    pub(crate) me: ServerId,
    deployment: u64,
    pub(crate) links: Arc<Links>,
    pub(crate) data: Arc<DataStore>,
    pub(crate) copies: Arc<Copies>,
    restriping: Arc<Restriping>,
    fetching: Arc<Fetching>,
    pub(crate) counters: Arc<Counters>,
    order: Order,
    pub(crate) verifier: Verifier,
    /// Until the first map is installed.
    replayed: Mutex<Option<Replayed>>,
    /// From then on.
    open: OnceLock<Open>,
    /// The server's version page, and what keeps it valid.
    page: OnceLock<(Arc<VersionPage>, Vigil)>,
    /// What lets processes of this node read copies directly.
    passing: OnceLock<Vigil>,
}

/// What is there when the deployment has begun.
pub(crate) struct Open {
    pub(crate) meta: Arc<MetaStore>,
    pub(crate) follower: Follower,
    pub(crate) rebuilder: Rebuilder,
}

/// What the server did. Statistics only: no order among them is promised.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) meta: AtomicU64,
    pub(crate) data: AtomicU64,
    /// Bytes that programs have read from blocks.
    pub(crate) read: AtomicU64,
    /// Bytes that they have written.
    pub(crate) written: AtomicU64,
}

/// The requests that a storage serves.
pub(crate) const FAMILIES: [Family; 8] = [
    Family::Meta,
    Family::Data,
    Family::Gather,
    Family::Copied,
    Family::Copy,
    Family::Restripe,
    Family::Fetch,
    Family::Peer,
];

impl Storage {
    pub(crate) fn new(
        links: &Arc<Links>,
        (server, data): (&ServerConfig, Arc<DataStore>),
        replayed: Option<Replayed>,
        deployment: u64,
    ) -> Storage {
        let counters = Arc::<Counters>::default();
        let me = server.id;
        let copies = Arc::new(Copies::new(links.clone(), data.clone(), me));
        let restriping =
            Arc::new(Restriping::new(links.clone(), data.clone(), copies.clone(), me, &counters));
        let fetching = Fetching::new(links.clone(), data.clone(), copies.clone(), restriping.clone(), me);
        Storage {
            me,
            deployment,
            links: links.clone(),
            data,
            copies,
            restriping,
            fetching: Arc::new(fetching),
            counters,
            order: Order::new(OVERLAP),
            verifier: Verifier::default(),
            replayed: Mutex::new(replayed),
            open: OnceLock::new(),
            page: OnceLock::new(),
            passing: OnceLock::new(),
        }
    }

    /// What is there when the deployment has begun.
    pub(crate) fn open(&self) -> Option<&Open> {
        self.open.get()
    }

    /// The metadata, when the deployment has begun.
    pub(crate) fn meta_store(&self) -> Option<&Arc<MetaStore>> {
        self.open.get().map(|open| &open.meta)
    }

    /// The same, of a storage that serves nothing any more.
    pub(crate) fn into_open(self) -> Option<Open> {
        self.open.into_inner()
    }

    pub(crate) fn namespace(&self) -> u64 {
        self.meta_store().map_or(0, |meta| meta.namespace())
    }

    /// The fences of this server's sub-files.
    pub(crate) fn fences(&self) -> Option<&Arc<Fences>> {
        self.data.fences()
    }

    /// What there is, and what it did.
    pub(crate) fn stats(&self) -> Stats {
        let counts = self.meta_store().map(|meta| meta.counts()).unwrap_or_default();
        let space = self.data.space().unwrap_or_default();
        let (direct_read, direct_written) = self.fences().map_or((0, 0), |fences| fences.totals());
        Stats {
            inodes: counts.inodes,
            stored: self.data.stored(),
            capacity: space.total,
            available: space.available,
            device: space.device,
            meta_operations: self.counters.meta.load(Ordering::Relaxed),
            data_operations: self.counters.data.load(Ordering::Relaxed),
            bytes_read: self.counters.read.load(Ordering::Relaxed),
            bytes_written: self.counters.written.load(Ordering::Relaxed),
            opens: counts.opens,
            damaged: self.data.missing(),
            direct_read,
            direct_written,
            fetched: self.copies.fetched(),
            without_room: self.copies.without_room(),
            lazy_files: counts.lazy.0,
            lazy_bytes: counts.lazy.1,
            unfetchable: counts.unfetchable,
            rebuild: self.open().map_or(Default::default(), |open| open.rebuilder.progress()),
            ..Stats::default()
        }
    }

    /// The version page, which the processes of this node share.
    pub(crate) fn page(&self) -> Option<BorrowedFd<'_>> {
        self.page.get().and_then(|(page, _)| page.descriptor())
    }

    /// Refuses a sender whose map is not the daemon's.
    fn check_epoch(&self, header: &Header) -> Result<(), Failure> {
        let mine = self.links.epoch();
        if header.epoch == mine { Ok(()) } else { Err(self.other_epoch(header, mine)) }
    }

    /// Refuses a sender by whose map something about these groups is not as it is by the daemon's.
    fn check_since(
        &self,
        header: &Header,
        groups: impl IntoIterator<Item = bivouac_layout::Group>,
    ) -> Result<(), Failure> {
        if header.epoch == self.links.epoch() {
            return Ok(());
        }
        let map = self.links.map();
        let since = groups.into_iter().map(|group| map.since(group)).fold(map.members_since, Epoch::max);
        match (since..=map.epoch).contains(&header.epoch) {
            true => Ok(()),
            false => Err(self.other_epoch(header, map.epoch)),
        }
    }

    /// Refuses to answer for what has copies without a lease.
    fn check_lease(&self) -> Result<(), Failure> {
        if self.links.lease.is_valid() { Ok(()) } else { Err(Refusal::OldServer.into()) }
    }

    /// The refusal for a sender whose map is another one than that of the epoch `mine`.
    fn other_epoch(&self, header: &Header, mine: Epoch) -> Failure {
        if header.epoch < mine {
            Refusal::StaleMap(self.links.map().news_for(header.epoch)).into()
        } else {
            Refusal::OldServer.into()
        }
    }

    fn meta(
        &self,
        (credentials, node): (Credentials, NodeId),
        header: &Header,
        request: &MetaRequest<'_>,
        payload: &[u8],
        reply: &mut Responder,
    ) -> Result<Reply, Failure> {
        self.counters.meta.fetch_add(1, Ordering::Relaxed);
        let store = self.meta_store().ok_or(Errno::IO)?;
        let map = self.links.map();
        serve::check_place(&map, self.me, header.shard, request).map_err(|failure| {
            // By the sender's map it may be the right server. (The daemon may have a newer one by now.)
            if header.epoch == map.epoch { failure } else { self.other_epoch(header, map.epoch) }
        })?;
        let _turn = match serve::changes(request) {
            true => match self.order.take(header.id, header.attempt) {
                Turn::Begun(running) => Some(running),
                Turn::Answered(_) | Turn::Overtaken => return Err(Refusal::Busy.into()),
            },
            false => None,
        };
        // A request that was carried out already is answered again, whatever has changed since: a refusal
        // would say that it was not carried out.
        let repeats = header.attempt > 0 && serve::concerns_one_shard(request);
        let done = repeats && store.has_answered(header.shard, &header.id)?;
        // A close is accepted even with an old map: nobody waits for its answer, and so would notice a
        // refusal.
        if !done && !matches!(request, MetaRequest::Release { .. } | MetaRequest::Abandon { .. }) {
            match serve::concerns_one_shard(request) {
                true => self.check_since(header, [bivouac_layout::Group::Shard(header.shard)])?,
                // By one map, the answers of all servers make a whole.
                false => self.check_epoch(header)?,
            }
            let is_an_end = matches!(
                request,
                MetaRequest::EndSession { .. } | MetaRequest::Report { .. } | MetaRequest::Relock { .. }
            );
            if !store.has_resumed() {
                return Err(Refusal::OldServer.into());
            }
            if !is_an_end {
                self.check_lease()?;
            }
        }
        if !done && serve::walks(request) {
            store.check_namespace(header.namespace)?;
        }
        let (id, shard) = (header.id, header.shard);
        let caller = Caller { credentials, node, id, shard, change: Default::default() };
        store.meta(&caller, request, payload, reply.buffer())
    }

    /// A request of another server about shards.
    fn peer(&self, from: ServerId, header: &Header, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        let store = self.meta_store().ok_or(Errno::IO)?;
        match request {
            // Terms tell apart who answers for these shards.
            PeerRequest::Ship { shipments } => {
                let shards = shipments.iter().map(|shipment| shipment.shard);
                self.check_since(header, shards.map(bivouac_layout::Group::Shard))?;
            }
            _ => self.check_epoch(header)?,
        }
        if request.reads() {
            self.check_lease()?;
        }
        match self.order.take(header.id, header.attempt) {
            Turn::Begun(_running) => store.peer(from, request),
            Turn::Answered(_) | Turn::Overtaken => Err(Refusal::Busy.into()),
        }
    }
}

impl Service for Storage {
    fn arriving(&self, session: &mut Session, header: &Header, body: &[u8], so_far: &[u8]) -> bool {
        if session.coming.is_none() {
            session.coming = self.begin_coming(session, header, body);
        }
        if let Some(coming) = &mut session.coming {
            coming.more(so_far);
        }
        session.coming.is_some()
    }

    fn serve(&self, session: &mut Session, call: &mut Call) {
        let (header, body, payload, reply) = call.parts();
        // Whatever becomes of this request, it is nothing of the next one's.
        let coming = session.coming.take();
        let Ok(request) = bivouac_proto::decode::<Request<'_>>(body) else {
            return reply.fail(&Errno::PROTO.into());
        };
        let is_of_programs =
            matches!(request, Request::Meta(_) | Request::Data(_) | Request::Gather(_) | Request::Copied(_));
        if let (true, Role::Client { node, .. }) = (is_of_programs, &session.role)
            && self.links.is_away(*node)
            && !matches!(request, Request::Meta(MetaRequest::Release { .. } | MetaRequest::Abandon { .. }))
        {
            // Its programs may have lost locks without knowing it. When the node is back, they do. (Nobody waits for the answer
            // of a close, and so would notice a refusal.)
            return reply.fail(&Refusal::OldServer.into());
        }
        let outcome = match (&request, &session.role) {
            (Request::Meta(request), Role::Client { credentials, node, .. }) => {
                match self.meta((credentials.clone(), *node), header, request, payload, reply) {
                    Ok(done) if session.pid.is_some() => match (self.with_opened(request, &done), done) {
                        (Some((sub_file, descriptor)), Reply::Meta(opened)) => {
                            return reply.ok_descriptor(&Reply::Opened(sub_file, opened), descriptor.as_fd());
                        }
                        (_, done) => Ok(done),
                    },
                    outcome => outcome,
                }
            }
            // Daemons do not act for a user: releases and the like are carried out with the superuser's
            // rights.
            (Request::Meta(request), Role::Agent(_) | Role::Server(_)) => {
                self.meta((Credentials::default(), NodeId::NONE), header, request, payload, reply)
            }
            (Request::Data(request), role @ (Role::Client { .. } | Role::Server(_))) => {
                return self.data(role, header, request, payload, reply);
            }
            (Request::Gather(gather), Role::Client { .. }) => self.gather(header, gather, reply),
            (Request::Copied(copied), Role::Client { .. } | Role::Server(_)) => {
                return self.copied((session, coming), header, copied, payload, reply);
            }
            (Request::Copy(request @ CopyRequest::Ahead { .. }), role)
                if may_send_ahead(role, header.id.session, request) =>
            {
                self.copies.keep(coming, request, payload);
                Ok(Reply::Done)
            }
            (Request::Copy(request), Role::Server(from)) => self.copy(*from, header, request, payload, reply),
            (Request::Restripe(request), Role::Server(from)) => self.restripe(*from, header, request, reply),
            (Request::Fetch(request), Role::Server(from)) => self.fetch(*from, header, request),
            (Request::Peer(request), Role::Server(from)) => self.peer(*from, header, request),
            _ => Err(Errno::ACCESS.into()),
        };
        match outcome {
            Ok(done) => reply.ok(&done),
            Err(failure) => reply.fail(&failure),
        }
    }
}
