//! The service behind all of a daemon's sockets.
//!
//! Each request passes the same gates before its module sees it: the connection's role may ask it; the
//! deployment has begun; the sender's map is this daemon's; and, for requests about paths, its namespace
//! version is not older.

use crate::agent::Agent;
use crate::config::DaemonConfig;
use crate::controller::ControllerError;
use crate::controller::group::{Group, GroupConfig, Start};
use crate::controller::raft::voter::Times;
use crate::copies::Copies;
use crate::error::{DaemonError, InstallError};
use crate::follower::Follower;
use crate::lease::Lease;
use crate::links::{Around, Links};
use crate::order::{Order, Turn};
use crate::serve;
use crate::tether::Tether;
use crate::verify::{Verifier, With};
use crate::vigil::Vigil;
use crate::wards::Wards;
use bivouac_data::DataStore;
use bivouac_layout::{Epoch, Ino, Map, NodeId, ServerId, ServerState, ShardId};
use bivouac_meta::{Caller, MetaStore, Observer, Options, Replayed};
use bivouac_node::release::monotonic;
use bivouac_node::{Fences, VersionPage};
use bivouac_proto::auth::{Credentials, Hello, Key, Role, Welcome};
use bivouac_proto::control::{ControlReply, ControlRequest, Stats};
use bivouac_proto::copies::{Copied, CopyRequest};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::node::NodeRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::verify::VerifyRequest;
use bivouac_proto::{Errno, Header, Refusal, Reply, Request};
use bivouac_transport::engine::budget::OVERLAP;
use bivouac_transport::{Parting, PeerInfo, Responder, Service};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// One daemon.
pub(crate) struct Daemon {
    pub(crate) config: DaemonConfig,
    pub(crate) links: Arc<Links>,
    pub(crate) agent: Option<Agent>,
    /// On servers, until the first map is installed.
    replayed: Mutex<Option<Replayed>>,
    /// There once the first map was installed, on servers.
    pub(crate) meta: OnceLock<Arc<MetaStore<Around>>>,
    /// On servers.
    copies: Option<Arc<Copies>>,
    pub(crate) verifier: Verifier,
    /// On servers where something has copies.
    pub(crate) follower: OnceLock<Follower>,
    /// On agents.
    pub(crate) group: Option<Group>,
    begun: AtomicBool,
    /// Held while a map is being installed.
    installing: Mutex<()>,
    boot: u64,
    counters: Counters,
    order: Order,
    pub(crate) ending: Arc<Ending>,
    /// The server's version page, and what keeps it valid.
    page: OnceLock<(Arc<VersionPage>, Vigil)>,
    /// What lets processes of this node read copies directly.
    passing: OnceLock<Vigil>,
    /// Only where the deployment ends with a `run`.
    pub(crate) tether: Option<Arc<Tether>>,
    /// On agents: the servers that it looks after.
    pub(crate) wards: Arc<Wards>,
}

/// The version page as the metadata store's observer.
struct Page(Arc<VersionPage>);

impl Observer for Page {
    fn changed(&self, shard: ShardId) -> u64 {
        self.0.changed(shard)
    }

    fn moved(&self, directory: Ino, version: u64) {
        self.0.moved(directory, version);
    }

    fn namespace(&self, version: u64) {
        self.0.raise_namespace(version);
    }
}

/// Why a daemon ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It was told to; its storage stays or goes.
    Told {
        /// The storage stays.
        keep: bool,
    },
    /// The `run` that made the deployment has ended, and nobody is the controller, so that nobody could tell
    /// this daemon. Its storage is removed.
    Deserted,
    /// Another process has this server's number. Its storage stays.
    Replaced,
}

/// How a daemon is told to stop.
#[derive(Default)]
pub(crate) struct Ending {
    told: Mutex<Option<End>>,
    changed: Condvar,
}

impl Ending {
    /// Tells the daemon to stop. The first reason counts.
    pub(crate) fn tell(&self, end: End) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.changed.notify_all();
    }

    /// Whether the daemon was told.
    pub(crate) fn is_told(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until told.
    pub(crate) fn wait(&self) -> End {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(end) = *told {
                return end;
            }
            told = self.changed.wait(told).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What the daemon did. Statistics only: no order among them is promised.
#[derive(Default)]
struct Counters {
    meta: AtomicU64,
    data: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    connections: AtomicU64,
}

/// What is known of a connection.
pub(crate) struct Session {
    role: Role,
    /// Process at the other end, on a Unix socket.
    pid: Option<u32>,
    /// The connection is a lifeline: the daemon ends with it.
    lifeline: bool,
    /// It is one no longer: the daemon goes on, or ends already.
    released: bool,
}

impl Daemon {
    pub(crate) fn new(
        config: DaemonConfig,
        links: Arc<Links>,
        agent: Option<Agent>,
        boot: u64,
        meta: Option<Replayed>,
    ) -> Result<Daemon, DaemonError> {
        let ending = Arc::<Ending>::default();
        let (told, data) = (ending.clone(), links.data.clone());
        links.when_replaced(move || {
            // Processes of this node have descriptors of its sub-files.
            if let Some(fences) = data.as_ref().and_then(|data| data.fences()) {
                fences.show_copies_until(0);
                fences.renounce_all();
            }
            told.tell(End::Replaced);
        });
        let store = links.data.clone().zip(config.server.as_ref());
        let copies = store.map(|(store, server)| Arc::new(Copies::new(links.clone(), store, server.id)));
        let tether = config.ephemeral.then(|| Tether::start(ending.clone()).map(Arc::new)).transpose();
        let tether = tether.map_err(DaemonError::Thread)?;
        let group = agent.is_some().then(|| Group::new(group_config(&config, boot, &ending, &tether)));
        Ok(Daemon {
            replayed: Mutex::new(meta),
            tether,
            group,
            config,
            links,
            agent,
            meta: OnceLock::new(),
            copies,
            verifier: Verifier::default(),
            follower: OnceLock::new(),
            page: OnceLock::new(),
            passing: OnceLock::new(),
            begun: AtomicBool::new(false),
            installing: Mutex::default(),
            boot,
            counters: Counters::default(),
            order: Order::new(OVERLAP),
            wards: Arc::new(Wards::new(ending.clone())),
            ending,
        })
    }

    fn namespace(&self) -> u64 {
        self.meta.get().map_or(0, |meta| meta.namespace())
    }

    /// Whether the deployment has begun here: the first map is there, and the stores are open.
    fn begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Refuses a sender whose map is not the daemon's.
    fn check_epoch(&self, header: &Header) -> Result<(), Failure> {
        let mine = self.links.epoch();
        if header.epoch == mine { Ok(()) } else { Err(self.other_epoch(header, mine)) }
    }

    /// Refuses to answer for what has copies without a lease.
    fn check_lease(&self) -> Result<(), Failure> {
        if self.links.lease.is_valid() { Ok(()) } else { Err(Refusal::OldServer.into()) }
    }

    /// The refusal for a sender whose map is another one than that of the epoch `mine`.
    fn other_epoch(&self, header: &Header, mine: Epoch) -> Failure {
        if header.epoch < mine {
            Refusal::StaleMap(Box::new((*self.links.map()).clone())).into()
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
        reply: &mut Responder<'_>,
    ) -> Result<Reply, Failure> {
        self.counters.meta.fetch_add(1, Ordering::Relaxed);
        let (Some(store), Some(server)) = (self.meta.get(), &self.config.server) else {
            return Err(Errno::IO.into());
        };
        let map = self.links.map();
        serve::check_place(&map, server.id, header.shard, request).map_err(|failure| {
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
            self.check_epoch(header)?;
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

    /// The stores for a request about blocks that was sent by the map of this daemon.
    fn stores(&self, header: &Header) -> Result<(&DataStore, &Copies), Failure> {
        self.counters.data.fetch_add(1, Ordering::Relaxed);
        let (Some(store), Some(copies)) = (&self.links.data, &self.copies) else {
            return Err(Errno::IO.into());
        };
        self.check_epoch(header)?;
        Ok((store, copies))
    }

    fn data(
        &self,
        role: &Role,
        header: &Header,
        request: &DataRequest,
        payload: &[u8],
        reply: &mut Responder<'_>,
    ) {
        let (store, copies) = match self.stores(header) {
            Ok(stores) => stores,
            Err(failure) => return reply.fail(&failure),
        };
        if let Role::Server(from) = role
            && let Err(errno) = copies.check_sender(*from, request)
        {
            return reply.fail(&errno.into());
        }
        // The size and the holes of a file may be those of one that has copies.
        if matches!(request, DataRequest::Extent { .. } | DataRequest::Seek { .. })
            && let Err(failure) = self.check_lease()
        {
            return reply.fail(&failure);
        }
        let turn = if request.changes() { self.order.take(header.id, header.attempt) } else { Turn::NONE };
        let mut running = match turn {
            Turn::Begun(running) => running,
            Turn::Answered(answer) => return reply.ok(&Reply::Data(answer)),
            Turn::Overtaken => return reply.fail(&Refusal::Busy.into()),
        };
        let inodes = || self.meta.get().map_or(0, |meta| meta.counts().inodes);
        let served = serve::data((store, copies), request, payload, inodes, reply, &mut running);
        self.counters.read.fetch_add(served.read, Ordering::Relaxed);
        self.counters.written.fetch_add(served.written, Ordering::Relaxed);
    }

    /// Blocks that have copies, at their primary.
    fn copied(&self, header: &Header, copied: &Copied, payload: &[u8], reply: &mut Responder<'_>) {
        let (store, copies) = match self.stores(header) {
            Ok(stores) => stores,
            Err(failure) => return reply.fail(&failure),
        };
        if let DataRequest::Read { ino, offset, len } = copied.request {
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
        match copies.change(copied.group, &copied.request, payload) {
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
        reply: &mut Responder<'_>,
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
                    return match self.check_epoch(header) {
                        Ok(()) => reply.ok(&Reply::Data(DataReply::Elsewhere)),
                        Err(failure) => reply.fail(&failure),
                    };
                }
            },
        };
        self.counters.read.fetch_add(count, Ordering::Relaxed);
    }

    /// Another server's request about copies of blocks.
    fn copy(
        &self,
        from: ServerId,
        header: &Header,
        request: &CopyRequest,
        payload: &[u8],
        reply: &mut Responder<'_>,
    ) -> Result<Reply, Failure> {
        let copies = self.copies.as_ref().ok_or(Errno::IO)?;
        self.check_epoch(header)?;
        let _running = match self.order.take(header.id, header.attempt) {
            Turn::Begun(running) => running,
            Turn::Answered(_) | Turn::Overtaken => return Err(Refusal::Busy.into()),
        };
        copies.serve(from, request, payload, reply.buffer()).map(Reply::Copy)
    }

    /// What follows from a control request for the end of this daemon, and for who waits for dead servers.
    fn note_control(&self, session: &mut Session, request: &ControlRequest) {
        // A sender that only checks whether the daemon is alive has no map.
        let heard = matches!(request, ControlRequest::Ping { epoch, .. } if *epoch != Epoch(0));
        if let (ControlRequest::Ping { leader, .. }, true) = (request, heard) {
            let now = monotonic();
            if let Some(group) = &self.group {
                group.heard(*leader);
            }
            self.links.refusals.heard(now);
            if let Some(agent) = &self.agent {
                agent.heard(now);
            }
        }
        let begins =
            matches!(request, ControlRequest::Lifeline) && !std::mem::replace(&mut session.lifeline, true);
        // If the holder of the lifeline itself takes the deployment down, its `keep` counts.
        let ends = matches!(request, ControlRequest::Shutdown { .. });
        if ends {
            self.wards.hold();
        }
        session.released |= ends || matches!(request, ControlRequest::Release);
        let Some(tether) = &self.tether else { return };
        match request {
            ControlRequest::Ping { .. } if heard => tether.heard(),
            ControlRequest::Lifeline if begins => tether.hold(),
            ControlRequest::Release => tether.release(),
            _ => {}
        }
    }

    fn control(&self, request: &ControlRequest) -> Result<Reply, Failure> {
        let answer = match request {
            ControlRequest::Ping { lease, .. } => {
                if let Some(grant) = lease {
                    // What others have by the newest map, this server must not answer for any more.
                    if let Some(store) = self.meta.get() {
                        store.step_down();
                    }
                    self.links.lease.grant(*grant);
                }
                let clock = Lease::clock();
                let map = self.links.map();
                let epoch = map.epoch;
                let caught_up = self.follower.get().map_or(Vec::new(), |follower| follower.caught_up(&map));
                let suspects = self.copies.as_ref().map_or(Vec::new(), |copies| copies.suspects());
                Some(ControlReply::Pong { epoch, boot: self.boot, caught_up, suspects, clock })
            }
            ControlRequest::Install { map } => self.install(map).err().map(|error| {
                tracing::error!(%error, "a map is not taken");
                ControlReply::Failed { cause: error.to_string() }
            }),
            ControlRequest::Verify(request) => self.verify(request)?,
            ControlRequest::Alone { server } => {
                let store = self.meta.get().ok_or(Refusal::OldServer)?;
                let (files, example) = store.alone_on(*server);
                Some(ControlReply::Alone { files, example })
            }
            ControlRequest::Wards => Some(ControlReply::Wards(self.wards.all())),
            ControlRequest::Stats => Some(ControlReply::Stats(Box::new(self.stats()))),
            ControlRequest::Lifeline | ControlRequest::Release => None,
            _ => self.govern(request)?,
        };
        Ok(answer.map_or(Reply::Done, Reply::Control))
    }

    /// Checks what this server stores.
    fn verify(&self, request: &VerifyRequest) -> Result<Option<ControlReply>, Failure> {
        let (Some(server), Some(data)) = (&self.config.server, &self.links.data) else {
            return Err(Errno::OPNOTSUPP.into());
        };
        let (Some(meta), Some(copies)) = (self.meta.get(), &self.copies) else {
            return Err(Refusal::OldServer.into());
        };
        let with = || With {
            me: server.id,
            links: self.links.clone(),
            data: data.clone(),
            meta: meta.clone(),
            copies: copies.clone(),
        };
        self.verifier.serve(request, with)
    }

    /// What concerns the voters, or the controller.
    fn govern(&self, request: &ControlRequest) -> Result<Option<ControlReply>, Failure> {
        let done = |outcome: Result<Option<ControlReply>, ControllerError>| {
            Ok(outcome.unwrap_or_else(|error| {
                tracing::error!(%error, "not done");
                Some(ControlReply::Failed { cause: error.to_string() })
            }))
        };
        let controller = self.group.as_ref().and_then(Group::controller);
        match (&self.group, request, controller) {
            (Some(group), ControlRequest::Found { founding }, _) => {
                done(group.found((**founding).clone()).map(|()| None))
            }
            (Some(group), ControlRequest::Resume { agents, servers }, _) => {
                done(group.resume(agents.clone(), servers.clone()).map(|()| None))
            }
            (Some(group), ControlRequest::Wake { number, agents, servers }, _) => {
                let start = Start { number: *number, agents: agents.clone(), servers: servers.clone() };
                done(group.wake(&start).map(|kept| {
                    let (last, voters) = kept.map(|kept| (kept.last, kept.voters)).unzip();
                    Some(ControlReply::Woken { last, voters: voters.unwrap_or_default() })
                }))
            }
            (Some(group), ControlRequest::Enlist { agents }, _) => done(group.enlist(agents).map(|()| None)),
            (Some(group), ControlRequest::Group, _) => Ok(Some(group.describe(&self.links.map()))),
            (Some(group), request, Some(controller)) => match controller.handle(request) {
                // It has just been deposed.
                Err(ControllerError::NotLeader(_) | ControllerError::Unconfirmed) => {
                    Ok(Some(group.deposed()))
                }
                handled => handled.map_err(|error| Failure::Errno(error.errno())),
            },
            (group, ControlRequest::Shutdown { keep }, None) => {
                if let Some(group) = group {
                    group.retire();
                }
                self.ending.tell(End::Told { keep: *keep });
                Ok(None)
            }
            (Some(group), _, None) => Ok(Some(group.not_leader())),
            (None, _, _) => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Takes over a map. With the first one the deployment begins here.
    fn install(&self, map: &Map) -> Result<(), InstallError> {
        map.check().map_err(InstallError::Map)?;
        if map.deployment != self.config.deployment {
            return Err(InstallError::Map("it is another deployment's"));
        }
        if self.links.is_replaced_by(map) {
            return Err(InstallError::Replaced);
        }
        let _installing = self.installing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.begun() {
            self.begin(map)?;
            self.begun.store(true, Ordering::Release);
        }
        if self.comes_back(map)
            && let Some(store) = self.meta.get()
        {
            // Before clients use this server: directories have moved while it was away. Since it was joining,
            // it has heard of all moves.
            store.forget_moves();
        }
        // Install the map first: then the agent also tells servers that are back.
        self.links.learn(map.clone());
        if let Some(agent) = &self.agent {
            agent.note_servers(map);
        }
        if let Some(group) = &self.group {
            group.learn_nodes(map);
        }
        Ok(())
    }

    /// Whether this server is up by a new map, and was not by the one before.
    fn comes_back(&self, map: &Map) -> bool {
        let known = self.links.map();
        let is_up = |map: &Map| {
            let me = self.config.server.as_ref().and_then(|me| map.server(me.id));
            me.is_some_and(|server| server.state == ServerState::Up)
        };
        known.epoch < map.epoch && is_up(map) && !is_up(&known)
    }

    fn begin(&self, map: &Map) -> Result<(), InstallError> {
        if let (Some(server), None) = (&self.config.server, self.meta.get()) {
            let replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner).take();
            let replayed = replayed.ok_or(InstallError::Map("this server has no storage"))?;
            // The store asks for the map from its first moment on.
            self.links.learn(map.clone());
            if map.copies == 1 {
                self.links.lease.is_not_needed();
            }
            if let Some(data) = self.links.data.as_ref().filter(|_| map.copies > 1) {
                data.keep_sums()?;
            }
            let options = Options { observer: self.version_page(), ..Options::new(self.config.deployment) };
            let copies = self.copies.as_ref().ok_or(InstallError::Map("this server has no storage"))?;
            let around = Around::new(self.links.clone(), server.id, copies.clone());
            let store = Arc::new(replayed.serve(options, around)?);
            store.adopt(map.shards_of(server.id)).map_err(InstallError::Adopt)?;
            if let Some(fences) = self.fences().filter(|_| map.copies > 1) {
                // What was passed by a server before this one may not be what it has now.
                fences.renounce_all();
                self.links.lease.set_fences(fences);
                match Vigil::begin(fences.clone()) {
                    Ok(vigil) => drop(self.passing.set(vigil)),
                    Err(error) => {
                        tracing::warn!(%error, "the processes of this node do not read copies directly")
                    }
                }
            }
            if map.copies > 1 {
                let follower = Follower::start(&self.links, store.clone(), copies, server.id);
                let _ = self.follower.set(follower.map_err(InstallError::Thread)?);
            }
            let _ = self.meta.set(store);
        }
        tracing::info!(epoch = %map.epoch, servers = map.servers.len(), "serving");
        Ok(())
    }

    /// Makes the version page. Without one, the processes of this node ask the server each time.
    fn version_page(&self) -> Option<Arc<dyn Observer>> {
        let made = VersionPage::create().map_err(std::io::Error::other).and_then(|page| {
            let page = Arc::new(page);
            self.links.lease.set_page(&page);
            Ok((page.clone(), Vigil::begin(page)?))
        });
        match made {
            Ok((page, vigil)) => {
                let _ = self.page.set((page.clone(), vigil));
                Some(Arc::new(Page(page)))
            }
            Err(error) => {
                tracing::warn!(%error, "the processes of this node cannot keep what they read of the metadata");
                None
            }
        }
    }

    /// The fences of this server's sub-files.
    fn fences(&self) -> Option<&Arc<Fences>> {
        self.links.data.as_ref()?.fences()
    }

    /// Hands out memory that the processes of this node share.
    fn share(&self, request: NodeRequest, reply: &mut Responder<'_>) {
        let descriptor = match request {
            NodeRequest::Table => self.agent.as_ref().and_then(|agent| agent.table()),
            NodeRequest::Versions => self.page.get().and_then(|(page, _)| page.descriptor()),
            NodeRequest::Fences => self.fences().map(|fences| fences.descriptor()),
        };
        match descriptor {
            Some(descriptor) => reply.ok_descriptor(&Reply::Done, descriptor),
            None => reply.fail(&Errno::NOENT.into()),
        }
    }

    fn stats(&self) -> Stats {
        let counts = self.meta.get().map(|meta| meta.counts()).unwrap_or_default();
        let space = self.links.data.as_ref().and_then(|d| d.space().ok()).unwrap_or_default();
        let (direct_read, direct_written) = self.fences().map_or((0, 0), |fences| fences.totals());
        Stats {
            inodes: counts.inodes,
            stored: self.links.data.as_ref().map_or(0, |d| d.stored()),
            capacity: space.total,
            available: space.available,
            device: space.device,
            meta_operations: self.counters.meta.load(Ordering::Relaxed),
            data_operations: self.counters.data.load(Ordering::Relaxed),
            bytes_read: self.counters.read.load(Ordering::Relaxed),
            bytes_written: self.counters.written.load(Ordering::Relaxed),
            connections: self.counters.connections.load(Ordering::Relaxed),
            opens: counts.opens,
            damaged: self.links.data.as_ref().map_or(0, |d| d.missing()),
            direct_read,
            direct_written,
            lease_ms: self.links.lease.left(),
            fetched: self.copies.as_ref().map_or(0, |copies| copies.fetched()),
            without_room: self.copies.as_ref().map_or(0, |copies| copies.without_room()),
        }
    }
}

impl Service for Daemon {
    type Session = Session;

    fn key(&self) -> &Key {
        &self.config.key
    }

    fn deployment(&self) -> u64 {
        self.config.deployment
    }

    fn versions(&self) -> (Epoch, u64) {
        (self.links.epoch(), self.namespace())
    }

    fn accept(&self, hello: &Hello, peer: PeerInfo) -> Option<(Session, Welcome)> {
        let pid = match peer {
            PeerInfo::Unix { pid, .. } => Some(pid),
            PeerInfo::Tcp(_) => None,
        };
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        let session = Session { role: hello.role.clone(), pid, lifeline: false, released: false };
        Some((session, Welcome { epoch: self.links.epoch(), namespace: self.namespace() }))
    }

    fn serve(
        &self,
        session: &mut Session,
        header: &Header,
        body: &[u8],
        payload: &mut [u8],
        reply: &mut Responder<'_>,
    ) {
        let Ok(request) = bivouac_proto::decode::<Request<'_>>(body) else {
            return reply.fail(&Errno::PROTO.into());
        };
        let serves = self.begun() && !self.links.is_replaced();
        if !serves && !matches!(request, Request::Control(_) | Request::Raft(_)) {
            // The controller gives the first map to all daemons one after the other.
            return reply.fail(&Refusal::OldServer.into());
        }
        let outcome = match (&request, &session.role) {
            (Request::Meta(request), Role::Client { credentials, node }) => {
                self.meta((credentials.clone(), *node), header, request, payload, reply)
            }
            // Daemons do not act for a user: releases and the like are carried out with the superuser's
            // rights.
            (Request::Meta(request), Role::Agent(_) | Role::Server(_)) => {
                self.meta((Credentials::default(), NodeId::NONE), header, request, payload, reply)
            }
            (Request::Data(request), role @ (Role::Client { .. } | Role::Server(_))) => {
                return self.data(role, header, request, payload, reply);
            }
            (Request::Copied(copied), Role::Client { .. } | Role::Server(_)) => {
                return self.copied(header, copied, payload, reply);
            }
            (Request::Copy(request), Role::Server(from)) => self.copy(*from, header, request, payload, reply),
            (Request::Peer(request), Role::Server(from)) => match self.meta.get() {
                Some(store) => {
                    let may_answer = if request.reads() { self.check_lease() } else { Ok(()) };
                    let checked = self.check_epoch(header).and(may_answer);
                    checked.and_then(|()| match self.order.take(header.id, header.attempt) {
                        Turn::Begun(_running) => store.peer(*from, request),
                        Turn::Answered(_) | Turn::Overtaken => Err(Refusal::Busy.into()),
                    })
                }
                None => Err(Errno::IO.into()),
            },
            (Request::Agent(request), Role::Client { .. }) => match (&self.agent, session.pid) {
                (Some(agent), Some(pid)) => agent
                    .serve(pid, request)
                    .map(|answer| answer.map_or(Reply::Done, Reply::Agent))
                    .map_err(Failure::Errno),
                _ => Err(Errno::OPNOTSUPP.into()),
            },
            (Request::Node(request), Role::Client { .. }) => return self.share(*request, reply),
            (Request::Control(request), Role::Control) => {
                self.note_control(session, request);
                self.control(request)
            }
            (Request::Raft(kind), Role::Agent(_)) => match &self.group {
                Some(group) => match group.serve(*kind, payload, reply.buffer()) {
                    Ok(()) => Ok(Reply::Done),
                    Err(error) => Err(error.errno().into()),
                },
                None => Err(Errno::OPNOTSUPP.into()),
            },
            _ => Err(Errno::ACCESS.into()),
        };
        match outcome {
            Ok(done) => reply.ok(&done),
            Err(failure) => reply.fail(&failure),
        }
    }

    fn closed(&self, session: Session, how: Parting) {
        self.counters.connections.fetch_sub(1, Ordering::Relaxed);
        if let (Some(tether), true) = (&self.tether, session.lifeline) {
            tether.let_go(how);
        }
        // An agent that becomes the controller later looks at the tether.
        if session.lifeline
            && !session.released
            && how == Parting::Left
            && let Some(controller) = self.group.as_ref().and_then(Group::controller)
        {
            tracing::info!("the lifeline has ended");
            if let Err(error) = controller.shut_down(false) {
                tracing::error!(%error, "cannot shut down");
            }
        }
    }
}

/// With what an agent's part in the group of voters begins.
fn group_config(
    config: &DaemonConfig,
    boot: u64,
    ending: &Arc<Ending>,
    tether: &Option<Arc<Tether>>,
) -> GroupConfig {
    let ending = ending.clone();
    GroupConfig {
        deployment: config.deployment,
        key: config.key.clone(),
        node: config.node,
        boot,
        directory: DaemonConfig::voter_dir(&config.deployment_dir, config.node),
        own: crate::running::agent_endpoint(config),
        restarts: config.restarts > 0,
        stop: Arc::new(move |keep| ending.tell(End::Told { keep })),
        tether: tether.clone(),
        times: Times::USUAL,
    }
}
