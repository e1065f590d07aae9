//! The controller: keeps the map, watches the servers, ends the deployment.
//!
//! One daemon of a deployment has this role. It alone makes and changes the map ([`log`]): it founds a new
//! deployment, resumes one that was stopped, and declares servers down, joining and up. Every change is
//! committed to stable storage before anybody hears of it. It pings every daemon twice a second ([`health`]);
//! a server that dies is declared down within two seconds, at a new epoch, which goes to every daemon that
//! lives, and so to every client that asks one of them. It is on no operation's path: while nothing changes,
//! nobody needs it.
//!
//! Three things end a deployment: a `Shutdown` request; the end of a *lifeline*, the connection that `bivouac
//! run` holds, so that nothing stays behind when it is killed; and a daemon's own death, which ends that
//! daemon only. The controller tells all others first and its own daemon last.
//!
//! What it leaves to others: serving `Ping`, `Install` and `Stats` (every daemon does), and removing what is
//! stored (every daemon removes what it made).

pub mod health;
pub mod link;
pub mod log;

pub use link::{ControlLink, LinkError};
pub use log::MapLog;

use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Founding, Group, Map, MapChange, NodeId, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, Member, ServerHealth};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// What the controller cannot do.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// Its directory cannot be read or written.
    #[error("the map cannot be read or written: {}: {cause}", path.display())]
    Store {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// What it stored is not what it wrote.
    #[error("the map cannot be read: {} is damaged ({what}); restore that file from a copy", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// There is no map: the deployment was never founded.
    #[error("there is no map: the deployment was left behind half started")]
    NotFounded,
    /// No first map can be made of what the deployment is to begin with.
    #[error("there can be no such deployment: {0}")]
    BadMap(&'static str),
    /// The daemons that were started are not those of the map.
    #[error("the servers and agents that were started are not those of the deployment")]
    OtherDaemons,
    /// A change names a server that the map does not have.
    #[error("unknown server")]
    UnknownServer,
    /// Servers take part, or are needed.
    #[error("the servers are not down, too few would be left, or nobody else has what they hold")]
    CannotGiveUp,
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A request that no controller serves.
    #[error("not a request to the controller")]
    NotForController,
}

impl ControllerError {
    /// What the asking peer gets.
    pub fn errno(&self) -> Errno {
        match self {
            ControllerError::Store { .. } | ControllerError::Damaged { .. } => Errno::IO,
            ControllerError::Thread(_) => Errno::AGAIN,
            ControllerError::NotFounded => Errno::NOENT,
            ControllerError::BadMap(_)
            | ControllerError::OtherDaemons
            | ControllerError::UnknownServer
            | ControllerError::CannotGiveUp => Errno::INVAL,
            ControllerError::NotForController => Errno::OPNOTSUPP,
        }
    }
}

/// What a controller starts with.
pub struct ControllerConfig {
    /// The deployment's directory, where the map is kept.
    pub deployment_dir: PathBuf,
    /// The deployment's key.
    pub key: Key,
    /// The node whose agent the controller's own daemon is.
    pub node: NodeId,
    /// Where that daemon listens on its node.
    pub own: Endpoint,
    /// Ends the controller's own daemon; `true` keeps the storage. Called once, when all others were told.
    pub stop: Box<dyn FnOnce(bool) + Send>,
}

/// A daemon that the controller watches.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) endpoint: Endpoint,
    pub(crate) who: Member,
}

/// All daemons of a deployment, with their addresses. A server that is its node's agent, too, is one daemon.
fn members(map: &Map) -> Vec<(Member, SocketAddr)> {
    let is_server = |address: SocketAddr| map.servers.iter().any(|server| server.address == address);
    let agents = map.nodes.iter().filter(|node| !is_server(node.agent));
    let agents = agents.map(|node| (Member::Agent(node.id), node.agent));
    agents.chain(map.servers.iter().map(|server| (Member::Server(server.id), server.address))).collect()
}

/// What one control connection has asked for. The daemon keeps one for each, and gives it back to
/// [`Controller::closed`] when the connection ends.
#[derive(Debug, Default)]
pub struct ControlSession {
    lifeline: bool,
}

/// The controller. Dropping it stops its threads.
pub struct Controller {
    shared: Arc<Shared>,
    watchers: Mutex<Vec<JoinHandle<()>>>,
}

impl Controller {
    /// Commits the first map and starts to watch.
    pub fn found(config: ControllerConfig, founding: Founding) -> Result<Controller, ControllerError> {
        let map = founding.map().map_err(ControllerError::BadMap)?;
        let log = MapLog::found(&config.deployment_dir, map)?;
        Controller::start(config, log)
    }

    /// Goes on with the map that was committed last, and starts to watch: all its daemons run again, at these
    /// addresses.
    pub fn resume(
        config: ControllerConfig,
        agents: Vec<(NodeId, SocketAddr)>,
        servers: Vec<(ServerId, SocketAddr)>,
    ) -> Result<Controller, ControllerError> {
        let mut log = MapLog::resume(&config.deployment_dir)?;
        let known_agents: BTreeSet<NodeId> = log.map().nodes.iter().map(|n| n.id).collect();
        let known_servers: BTreeSet<ServerId> = log.map().servers.iter().map(|s| s.id).collect();
        if agents.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>() != known_agents
            || servers.iter().map(|(server, _)| *server).collect::<BTreeSet<_>>() != known_servers
        {
            return Err(ControllerError::OtherDaemons);
        }
        log.propose(MapChange::Resumed { agents, servers })?;
        Controller::start(config, log)
    }

    fn start(config: ControllerConfig, log: MapLog) -> Result<Controller, ControllerError> {
        let map = log.map().clone();
        let own_address = map.node(config.node).map(|node| node.agent);
        let (own, others): (Vec<_>, Vec<_>) =
            members(&map).into_iter().partition(|(_, address)| Some(*address) == own_address);
        let own = own.into_iter().map(|(who, _)| Watched { endpoint: config.own.clone(), who });
        let others: Vec<Watched> = others
            .into_iter()
            .map(|(who, address)| Watched { endpoint: Endpoint::Tcp(address), who })
            .collect();
        let members: Vec<Watched> = own.chain(others.iter().cloned()).collect();
        let now = Instant::now();
        let health = map.servers.iter().map(|s| (s.id, (true, now))).collect();
        let pending = members.iter().map(|member| (member.who, None)).collect();
        let shared = Arc::new(Shared {
            key: config.key,
            deployment: map.deployment,
            others,
            log: Mutex::new(log),
            view: Mutex::new(View {
                map,
                health,
                pending,
                epochs: BTreeMap::new(),
                stopping: false,
                stop: Some(config.stop),
            }),
            changed: Condvar::new(),
        });
        let controller = Controller { shared: shared.clone(), watchers: Mutex::default() };
        for member in members {
            let shared = shared.clone();
            let watcher = spawn("watcher", move || health::Watcher::new(member).run(&shared))?;
            lock(&controller.watchers).push(watcher);
        }
        Ok(controller)
    }

    /// Serves the requests that are the controller's: `Beginning`, `Overview`, `GiveUp`, `Lifeline`,
    /// `Release`, `Shutdown`. `None` is answered as done. A shutdown is answered at once and carried out in the background.
    pub fn handle(
        &self,
        session: &mut ControlSession,
        request: &ControlRequest,
    ) -> Result<Option<ControlReply>, ControllerError> {
        match request {
            ControlRequest::Beginning => Ok(Some(self.shared.beginning())),
            ControlRequest::Overview => Ok(Some(self.shared.overview())),
            ControlRequest::GiveUp { servers, accept_loss } => {
                self.shared.give_up(servers.clone(), *accept_loss).ok_or(ControllerError::CannotGiveUp)?;
                Ok(None)
            }
            ControlRequest::Lifeline => {
                session.lifeline = true;
                Ok(None)
            }
            ControlRequest::Release => {
                session.lifeline = false;
                Ok(None)
            }
            ControlRequest::Shutdown { keep } => {
                // If the holder of the lifeline itself takes the deployment down, its `keep` counts.
                session.lifeline = false;
                self.shut_down(*keep)?;
                Ok(None)
            }
            _ => Err(ControllerError::NotForController),
        }
    }

    /// A control connection has ended.
    pub fn closed(&self, session: ControlSession) {
        if session.lifeline {
            tracing::info!("the lifeline has ended");
            if let Err(error) = self.shut_down(false) {
                tracing::error!(%error, "cannot shut down");
            }
        }
    }

    /// The current map.
    pub fn map(&self) -> Arc<Map> {
        lock(&self.shared.view).map.clone()
    }

    /// Stops watching and joins the threads; the deployment goes on without a controller.
    pub fn stop(&self) {
        lock(&self.shared.view).stopping = true;
        self.shared.changed.notify_all();
        let watchers = std::mem::take(&mut *lock(&self.watchers));
        for watcher in watchers {
            let _ = watcher.join();
        }
    }

    /// Tells all other daemons to stop, then our own; the first call does it.
    fn shut_down(&self, keep: bool) -> Result<(), ControllerError> {
        let mut view = lock(&self.shared.view);
        let Some(stop) = view.stop.take() else {
            return Ok(());
        };
        view.stopping = true;
        drop(view);
        self.shared.changed.notify_all();
        tracing::info!(keep, "shutting the deployment down");
        let shared = self.shared.clone();
        spawn("shutdown", move || {
            std::thread::scope(|scope| {
                for member in &shared.others {
                    let shared = &shared;
                    scope.spawn(move || {
                        if let Err(error) = shared.stop_member(member, keep) {
                            tracing::warn!(member = %member.endpoint, %error, "not told to stop");
                        }
                    });
                }
            });
            stop(keep);
        })?;
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What handlers and watchers share. `log` is locked before `view`, and `view` never across I/O.
pub(crate) struct Shared {
    pub(crate) key: Key,
    pub(crate) deployment: u64,
    others: Vec<Watched>,
    log: Mutex<MapLog>,
    view: Mutex<View>,
    changed: Condvar,
}

/// What can be seen without waiting for a disk.
struct View {
    map: Arc<Map>,
    /// Whether the server answered last time, and when it last did.
    health: BTreeMap<ServerId, (bool, Instant)>,
    /// Daemons that have not begun to serve; and why not, if they cannot, as it seems.
    pending: BTreeMap<Member, Option<String>>,
    /// The newest epoch that each server is known to have.
    epochs: BTreeMap<ServerId, Epoch>,
    stopping: bool,
    stop: Option<Box<dyn FnOnce(bool) + Send>>,
}

impl Shared {
    /// Waits until `next`, or until there is a map newer than `known`. `None`: the controller stops.
    pub(crate) fn wait(&self, next: Instant, known: Epoch) -> Option<Arc<Map>> {
        let mut view = lock(&self.view);
        // A daemon that has no map yet is unreachable, or gets one with this ping: there is no reason to
        // hurry.
        let started_at = view.map.epoch;
        loop {
            if view.stopping {
                return None;
            }
            let left = next.saturating_duration_since(Instant::now());
            let news = view.map.epoch > started_at || (known != Epoch(0) && known < started_at);
            if left.is_zero() || news {
                return Some(view.map.clone());
            }
            view = self.changed.wait_timeout(view, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Commits a server's state; `None` when that failed (it is tried again at the next ping).
    pub(crate) fn set_state(&self, server: ServerId, state: ServerState) -> Option<Arc<Map>> {
        tracing::info!(%server, ?state, "the server has another state");
        self.propose(&mut lock(&self.log), MapChange::State { server, state })
    }

    /// Commits that a server has caught up with groups, if the map is still that by which it has.
    pub(crate) fn set_in_step(&self, server: ServerId, epoch: Epoch, groups: Vec<Group>) -> Option<Arc<Map>> {
        let mut log = lock(&self.log);
        if log.map().epoch != epoch {
            return None;
        }
        tracing::info!(%server, groups = groups.len(), "the server has caught up");
        self.propose(&mut log, MapChange::InStep { server, groups })
    }

    /// Commits that copies cannot be relied on, if the map is still that by which they were.
    pub(crate) fn set_behind(&self, epoch: Epoch, copies: &[(Group, ServerId)]) -> Option<Arc<Map>> {
        if copies.is_empty() {
            return None;
        }
        let mut log = lock(&self.log);
        let change = MapChange::Behind { copies: copies.to_vec() };
        let next = change.apply(log.map())?;
        if log.map().epoch != epoch || next.behind == log.map().behind {
            return None;
        }
        tracing::warn!(copies = copies.len(), "copies are not relied on: their storage fails");
        self.propose(&mut log, change)
    }

    /// Commits that servers do not come back; `None` if they cannot be done without.
    pub(crate) fn give_up(&self, servers: Vec<ServerId>, accept_loss: bool) -> Option<Arc<Map>> {
        let mut log = lock(&self.log);
        let change = MapChange::GiveUp { servers, accept_loss };
        change.apply(log.map())?;
        tracing::warn!(?change, "others take the place of servers that are down");
        self.propose(&mut log, change)
    }

    fn propose(&self, log: &mut MapLog, change: MapChange) -> Option<Arc<Map>> {
        match log.propose(change) {
            Ok(map) => {
                tracing::info!(epoch = %map.epoch, "the map has changed");
                lock(&self.view).map = map.clone();
                self.changed.notify_all();
                Some(map)
            }
            Err(error) => {
                tracing::error!(%error, "the map cannot be changed");
                None
            }
        }
    }

    /// A daemon has its first map, and serves.
    pub(crate) fn has_begun(&self, member: Member) {
        lock(&self.view).pending.remove(&member);
    }

    /// A daemon does not begin to serve, for this reason.
    pub(crate) fn has_failed(&self, member: Member, cause: String) {
        if let Some(failed) = lock(&self.view).pending.get_mut(&member) {
            *failed = Some(cause);
        }
    }

    fn beginning(&self) -> ControlReply {
        let view = lock(&self.view);
        let failed =
            view.pending.iter().filter_map(|(member, cause)| Some((*member, cause.clone()?))).collect();
        ControlReply::Beginning { pending: view.pending.len() as u32, failed }
    }

    /// A server has the map of this epoch.
    pub(crate) fn has(&self, server: ServerId, epoch: Epoch) {
        lock(&self.view).epochs.insert(server, epoch);
    }

    /// Whether all servers that are up or joining have this map or a newer one.
    pub(crate) fn all_have(&self, map: &Map) -> bool {
        let view = lock(&self.view);
        let serving = map.servers.iter().filter(|server| server.state != ServerState::Down);
        serving.map(|server| view.epochs.get(&server.id)).all(|epoch| epoch.is_some_and(|e| *e >= map.epoch))
    }

    pub(crate) fn report(&self, server: ServerId, alive: bool, last_answer: Instant) {
        lock(&self.view).health.insert(server, (alive, last_answer));
    }

    fn overview(&self) -> ControlReply {
        let view = lock(&self.view);
        let health = view
            .health
            .iter()
            .map(|(server, (alive, last))| ServerHealth {
                server: *server,
                alive: *alive,
                silent_ms: last.elapsed().as_millis() as u64,
            })
            .collect();
        ControlReply::Overview { map: Box::new((*view.map).clone()), health }
    }

    fn stop_member(&self, member: &Watched, keep: bool) -> Result<(), LinkError> {
        let mut link = ControlLink::connect(&member.endpoint, &self.key, self.deployment, control::STOP)?;
        link.tell(ControlRequest::Shutdown { keep })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignores poisoning: no change is left half done where a panic could happen.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ControllerError> {
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(256 << 10)
        .spawn(work)
        .map_err(ControllerError::Thread)
}

#[cfg(test)]
mod tests;
