//! The service behind all of a daemon's sockets.
//!
//! It knows whether the deployment has begun here, and hands each request to the service that is registered for it
//! ([`crate::services`]). What concerns the daemon itself, or its node, it does itself.

mod control;
mod ending;
mod install;

pub use ending::End;
pub(crate) use ending::Ending;

use crate::agent::Agent;
use crate::config::DaemonConfig;
use crate::controller::group::{Group, GroupConfig};
use crate::controller::raft::voter::Times;
use crate::error::DaemonError;
use crate::forwarding::Forwarding;
use crate::links::Links;
use crate::services::{Services, Session};
use crate::storage::{FAMILIES, Storage};
use crate::tether::Tether;
use crate::wards::Wards;
use bivouac_layout::Epoch;
use bivouac_meta::Replayed;
use bivouac_proto::agent::{AgentReply, AgentRequest};
use bivouac_proto::auth::{Hello, Key, Role, Welcome};
use bivouac_proto::node::NodeRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Family, Header, Refusal, Reply, Request};
use bivouac_transport::{Call, Parting, PeerInfo, Responder};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// One daemon.
pub(crate) struct Daemon {
    pub(crate) config: DaemonConfig,
    pub(crate) links: Arc<Links>,
    pub(crate) services: Services,
    pub(crate) agent: Option<Agent>,
    /// On servers.
    pub(crate) storage: Option<Arc<Storage>>,
    /// On servers, which may be I/O nodes.
    forwarding: Option<Arc<Forwarding>>,
    /// On agents.
    pub(crate) group: Option<Group>,
    begun: AtomicBool,
    /// Held while a map is being installed.
    installing: Mutex<()>,
    boot: u64,
    connections: AtomicU64,
    pub(crate) ending: Arc<Ending>,
    /// Only where the deployment ends with a `run`.
    pub(crate) tether: Option<Arc<Tether>>,
    /// On agents: the servers that it looks after.
    pub(crate) wards: Arc<Wards>,
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
        let store = config.server.as_ref().zip(links.data.clone());
        let storage = store.map(|store| Arc::new(Storage::new(&links, store, meta, config.deployment)));
        let mut services = Services::default();
        if let Some(storage) = &storage {
            services.register(&FAMILIES, storage);
        }
        let forwarding = config.server.as_ref().map(|server| Arc::new(Forwarding::new(server, &links)));
        if let Some(forwarding) = &forwarding {
            services.forward(forwarding.clone());
        }
        let tether = config.ephemeral.then(|| Tether::start(ending.clone()).map(Arc::new)).transpose();
        let tether = tether.map_err(DaemonError::Thread)?;
        let group = agent.is_some().then(|| Group::new(group_config(&config, boot, &ending, &tether)));
        Ok(Daemon {
            tether,
            group,
            config,
            links,
            services,
            agent,
            storage,
            forwarding,
            begun: AtomicBool::new(false),
            installing: Mutex::default(),
            boot,
            connections: AtomicU64::new(0),
            wards: Arc::new(Wards::new(ending.clone())),
            ending,
        })
    }

    fn namespace(&self) -> u64 {
        self.storage.as_ref().map_or(0, |storage| storage.namespace())
    }

    /// Whether the deployment has begun here: the first map is there, and the stores are open.
    fn begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Whether it serves requests of a family by now, and still does.
    fn serves(&self, family: Family) -> bool {
        // The controller gives the first map to all daemons one after the other.
        matches!(family, Family::Control | Family::Raft) || self.begun() && !self.links.is_replaced()
    }

    /// Serves what concerns the daemon itself, or its node.
    fn own(&self, session: &mut Session, call: &mut Call) {
        let (_, body, payload, reply) = call.parts();
        let Ok(request) = bivouac_proto::decode::<Request<'_>>(body) else {
            return reply.fail(&Errno::PROTO.into());
        };
        let outcome = match (&request, &session.role) {
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

    /// Hands out memory that the processes of this node share.
    fn share(&self, request: NodeRequest, reply: &mut Responder) {
        let (agent, storage) = (self.agent.as_ref(), self.storage.as_ref());
        let descriptor = match request {
            NodeRequest::Table => agent.and_then(|agent| agent.table()),
            NodeRequest::Versions => storage.and_then(|storage| storage.page()),
            NodeRequest::Fences => storage.and_then(|storage| Some(storage.fences()?.descriptor())),
        };
        match descriptor {
            Some(descriptor) => reply.ok_descriptor(&Reply::Done, descriptor),
            None => reply.fail(&Errno::NOENT.into()),
        }
    }
}

impl bivouac_transport::Service for Daemon {
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
        self.connections.fetch_add(1, Ordering::Relaxed);
        let session =
            Session { role: hello.role.clone(), pid, lifeline: false, released: false, coming: None };
        let (epoch, namespace, process) = (self.links.epoch(), self.namespace(), self.boot);
        Some((session, Welcome { epoch, namespace, process }))
    }

    fn arriving(&self, session: &mut Session, header: &Header, body: &[u8], so_far: &[u8]) -> bool {
        let family = Family::of(body).filter(|family| self.serves(*family));
        let service = family.and_then(|family| self.services.of(family, header.shard));
        service.is_some_and(|service| service.arriving(session, header, body, so_far))
    }

    fn serve(&self, session: &mut Session, call: &mut Call) {
        let (_, body, _, reply) = call.parts();
        let Some(family) = Family::of(body) else { return reply.fail(&Errno::PROTO.into()) };
        if !self.serves(family) {
            return reply.fail(&Refusal::OldServer.into());
        }
        match self.services.of(family, call.header().shard) {
            Some(service) => service.serve(session, call),
            None => self.own(session, call),
        }
    }

    fn closed(&self, session: Session, how: Parting) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
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
