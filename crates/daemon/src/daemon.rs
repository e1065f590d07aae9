//! The service behind all of a daemon's sockets.
//!
//! Each request passes the same gates before its module sees it: the connection's role may ask it; the
//! deployment has begun; the sender's map is this daemon's; and, for requests about paths, its namespace
//! version is not older.

mod begin;
mod blocks;
mod control;
mod ending;

pub use ending::End;
pub(crate) use ending::Ending;

use crate::agent::Agent;
use crate::config::DaemonConfig;
use crate::controller::group::{Group, GroupConfig};
use crate::controller::raft::voter::Times;
use crate::copies::{Coming, Copies, may_send_ahead};
use crate::error::DaemonError;
use crate::fetching::Fetching;
use crate::follower::Follower;
use crate::links::{Around, Links};
use crate::order::{Order, Turn};
use crate::rebuilding::Rebuilder;
use crate::restriping::Restriping;
use crate::serve;
use crate::tether::Tether;
use crate::verify::Verifier;
use crate::vigil::Vigil;
use crate::wards::Wards;
use bivouac_layout::{Epoch, NodeId};
use bivouac_meta::{Caller, MetaStore, Replayed};
use bivouac_node::{Fences, VersionPage};
use bivouac_proto::agent::{AgentReply, AgentRequest};
use bivouac_proto::auth::{Credentials, Hello, Key, Role, Welcome};
use bivouac_proto::copies::CopyRequest;
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::node::NodeRequest;
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Refusal, Reply, Request};
use bivouac_transport::engine::budget::OVERLAP;
use bivouac_transport::{Parting, PeerInfo, Responder, Service};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

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
    /// On servers.
    restriping: Option<Arc<Restriping>>,
    /// On servers.
    fetching: Option<Arc<Fetching>>,
    pub(crate) verifier: Verifier,
    /// On servers.
    pub(crate) follower: OnceLock<Follower>,
    /// On servers.
    pub(crate) rebuilder: OnceLock<Rebuilder>,
    /// On agents.
    pub(crate) group: Option<Group>,
    begun: AtomicBool,
    /// Held while a map is being installed.
    installing: Mutex<()>,
    boot: u64,
    counters: Arc<Counters>,
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

/// What the daemon did. Statistics only: no order among them is promised.
#[derive(Default)]
pub(crate) struct Counters {
    meta: AtomicU64,
    data: AtomicU64,
    /// Bytes that programs have read from blocks.
    pub(crate) read: AtomicU64,
    /// Bytes that they have written.
    pub(crate) written: AtomicU64,
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
    /// What is being done with the payload of the request that is coming.
    coming: Option<Coming>,
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
        let copies =
            store.clone().map(|(store, server)| Arc::new(Copies::new(links.clone(), store, server.id)));
        let counters = Arc::<Counters>::default();
        let restriping = store.clone().zip(copies.clone()).map(|((store, server), copies)| {
            Arc::new(Restriping::new(links.clone(), store, copies, server.id, &counters))
        });
        let stores = store.zip(copies.clone()).zip(restriping.clone());
        let fetching = stores.map(|(((store, server), copies), restriping)| {
            Arc::new(Fetching::new(links.clone(), store, copies, restriping, server.id))
        });
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
            restriping,
            fetching,
            verifier: Verifier::default(),
            follower: OnceLock::new(),
            rebuilder: OnceLock::new(),
            page: OnceLock::new(),
            passing: OnceLock::new(),
            begun: AtomicBool::new(false),
            installing: Mutex::default(),
            boot,
            counters,
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
        let session =
            Session { role: hello.role.clone(), pid, lifeline: false, released: false, coming: None };
        Some((session, Welcome { epoch: self.links.epoch(), namespace: self.namespace() }))
    }

    fn arriving(&self, session: &mut Session, header: &Header, body: &[u8], so_far: &[u8]) -> bool {
        if session.coming.is_none() {
            session.coming = self.begin_coming(session, header, body);
        }
        if let Some(coming) = &mut session.coming {
            coming.more(so_far);
        }
        session.coming.is_some()
    }

    fn serve(
        &self,
        session: &mut Session,
        header: &Header,
        body: &[u8],
        payload: &mut [u8],
        reply: &mut Responder<'_>,
    ) {
        // Whatever becomes of this request, it is nothing of the next one's.
        let coming = session.coming.take();
        let Ok(request) = bivouac_proto::decode::<Request<'_>>(body) else {
            return reply.fail(&Errno::PROTO.into());
        };
        let serves = self.begun() && !self.links.is_replaced();
        if !serves && !matches!(request, Request::Control(_) | Request::Raft(_)) {
            // The controller gives the first map to all daemons one after the other.
            return reply.fail(&Refusal::OldServer.into());
        }
        if let (Request::Meta(_) | Request::Data(_) | Request::Copied(_), Role::Client { node, .. }) =
            (&request, &session.role)
            && self.links.is_away(*node)
            && !matches!(request, Request::Meta(MetaRequest::Release { .. } | MetaRequest::Abandon { .. }))
        {
            // Its programs may have lost locks without knowing it. When the node is back, they do. (Nobody waits for the answer
            // of a close, and so would notice a refusal.)
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
                return self.copied((session, coming), header, copied, payload, reply);
            }
            (Request::Copy(request @ CopyRequest::Ahead { .. }), role)
                if may_send_ahead(role, header.id.session, request) =>
            {
                if let Some(copies) = &self.copies {
                    copies.keep(coming, request, payload);
                }
                Ok(Reply::Done)
            }
            (Request::Copy(request), Role::Server(from)) => self.copy(*from, header, request, payload, reply),
            (Request::Restripe(request), Role::Server(from)) => self.restripe(*from, header, request, reply),
            (Request::Fetch(request), Role::Server(from)) => self.fetch(*from, header, request),
            (Request::Peer(request), Role::Server(from)) => match self.meta.get() {
                Some(store) => {
                    let may_answer = if request.reads() { self.check_lease() } else { Ok(()) };
                    let checked = match request {
                        // Terms tell apart who answers for these shards.
                        PeerRequest::Ship { shipments } => {
                            let shards = shipments.iter().map(|shipment| shipment.shard);
                            self.check_since(header, shards.map(bivouac_layout::Group::Shard))
                        }
                        _ => self.check_epoch(header),
                    };
                    let checked = checked.and(may_answer);
                    checked.and_then(|()| match self.order.take(header.id, header.attempt) {
                        Turn::Begun(_running) => store.peer(*from, request),
                        Turn::Answered(_) | Turn::Overtaken => Err(Refusal::Busy.into()),
                    })
                }
                None => Err(Errno::IO.into()),
            },
            (Request::Agent(AgentRequest::Map), Role::Client { .. }) => {
                Ok(Reply::Agent(AgentReply::Map(Box::new((*self.links.map()).clone()))))
            }
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
