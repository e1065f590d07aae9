//! The controller: keeps the map, watches the servers, ends the deployment.
//!
//! Every node's agent can have this role, and one of them has it: the leader of the voters ([`raft`]), which takes it
//! up and gives it back as [`group`] says. It alone makes and changes the map ([`log`]): it declares servers down,
//! joining and up. Every change is on the stable storage of most voters before anybody hears of it. The controller
//! pings every daemon twice a second ([`health`]); a server that dies and is not started again is declared down within
//! three seconds, at a new epoch, which goes to every daemon that lives, and so to every client that asks one of them.
//! It is on no operation's path: while nothing changes, nobody needs it.
//!
//! Two things end a deployment: a `Shutdown` request, and the end of a *lifeline*, the connection that `bivouac run`
//! holds, so that nothing stays behind when it is killed. A daemon's own death ends that daemon only. The controller
//! tells all others first and its own daemon last.
//!
//! What it leaves to others: serving `Ping`, `Install` and `Stats` (every daemon does), and removing what is
//! stored (every daemon removes what it made).

mod balancing;
mod changes;
mod error;
pub(crate) mod group;
pub mod health;
mod leases;
pub mod link;
pub(crate) mod log;
pub(crate) mod raft;
mod reports;
mod severed;

pub use error::ControllerError;
pub use link::{ControlLink, LinkError};

use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Map, MapChange, NodeId, Server, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest, Member, ServerHealth};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use bivouac_transport::engine::budget::ping::HANG;
use log::MapLog;
use reports::Reports;
use severed::Severed;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the voters may take to confirm who leads, when somebody looks at the deployment, or leases are granted.
const LOOK: Duration = Duration::from_secs(1);
/// In [`View::replaced`]: not known yet.
const UNDECIDED: Epoch = Epoch(u64::MAX);
/// So long after a change of the map nothing is new any more.
const CALM: Duration = Duration::from_secs(2);
/// Time between two looks whether leases are needed, if no map comes.
const REST: Duration = Duration::from_secs(60);
/// Time between two exchanges in which the voters confirm it, for leases.
const CONFIRM: Duration = Duration::from_millis(100);

/// What a controller starts with.
pub(crate) struct ControllerConfig {
    /// The deployment's key.
    pub(crate) key: Key,
    /// The node whose agent the controller's own daemon is.
    pub(crate) node: NodeId,
    /// Where that daemon listens on its node.
    pub(crate) own: Endpoint,
    /// The deployment has not begun on all nodes yet: daemons are waited for that have no map.
    pub(crate) fresh: bool,
    /// Agents start servers of their nodes again that died.
    pub(crate) restarts: bool,
    /// Ends the controller's own daemon; `true` keeps the storage. Called when all others were told.
    pub(crate) stop: Arc<dyn Fn(bool) + Send + Sync>,
}

/// A daemon that the controller watches.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) endpoint: Endpoint,
    pub(crate) who: Member,
    /// The node whose agent it is, if it is one.
    pub(crate) agent_of: Option<NodeId>,
}

/// All daemons of a deployment, with their addresses. A server that is its node's agent, too, is one daemon.
fn members(map: &Map) -> Vec<(Member, SocketAddr)> {
    let is_server = |address: SocketAddr| map.servers.iter().any(|server| server.address == address);
    let agents = map.nodes.iter().filter(|node| !is_server(node.agent));
    let agents = agents.map(|node| (Member::Agent(node.id), node.agent));
    agents.chain(map.servers.iter().map(|server| (Member::Server(server.id), server.address))).collect()
}

/// The same as they are watched. The controller's own daemon is reached on its node.
fn watched(map: &Map, node: NodeId, own: &Endpoint) -> Vec<Watched> {
    let own_address = map.node(node).map(|node| node.agent);
    let agent_of =
        |address: SocketAddr| map.nodes.iter().find(|node| node.agent == address).map(|node| node.id);
    let watched = |(who, address): (Member, SocketAddr)| Watched {
        endpoint: if Some(address) == own_address { own.clone() } else { Endpoint::Tcp(address) },
        who,
        agent_of: agent_of(address),
    };
    members(map).into_iter().map(watched).collect()
}

/// The controller. Dropping it stops its threads.
pub(crate) struct Controller {
    shared: Arc<Shared>,
    watchers: Mutex<Watchers>,
}

/// The watchers' threads, and whom they watch.
#[derive(Default)]
struct Watchers {
    threads: Vec<JoinHandle<()>>,
    members: BTreeSet<Member>,
}

impl Controller {
    /// Starts to watch: this daemon leads, and knows everything that was committed. Servers are taken as heard of
    /// now, so that none is declared down on old news.
    pub(crate) fn start(config: ControllerConfig, log: MapLog) -> Result<Controller, ControllerError> {
        let map = log.map().clone();
        let members = watched(&map, config.node, &config.own);
        let now = Instant::now();
        let agents = map.nodes.iter().map(|node| (node.id, now)).collect();
        let health = map.servers.iter().map(|s| (s.id, (true, now))).collect();
        // Those that did not start with the others are not waited for.
        let is_missing = |who: &Member| match who {
            Member::Server(server) => map.server(*server).is_some_and(|s| s.state == ServerState::Down),
            Member::Agent(node) => map.is_away(*node),
        };
        let begin = members.iter().map(|member| member.who).filter(|who| !is_missing(who));
        let pending = begin.map(|who| (who, None)).collect();
        let shared = Arc::new(Shared {
            key: config.key,
            node: config.node,
            deployment: map.deployment,
            fresh: config.fresh,
            restarts: config.restarts,
            own: config.own,
            stop: config.stop,
            asks: log.clone(),
            log: Mutex::new(log),
            reports: Mutex::default(),
            severed: Mutex::default(),
            view: Mutex::new(View {
                map: map.clone(),
                health,
                agents,
                pending,
                epochs: BTreeMap::new(),
                rebuilt: BTreeMap::new(),
                replaced: map.servers.iter().map(|server| (server.id, map.epoch)).collect(),
                false_failovers: 0,
                confirmed: None,
                stopping: false,
                shuts_down: false,
            }),
            changed: Condvar::new(),
            begun: Instant::now(),
        });
        let controller = Controller { shared: shared.clone(), watchers: Mutex::default() };
        controller.watch(&map)?;
        let balances = shared.clone();
        lock(&controller.watchers).threads.push(spawn("balancer", move || balances.keep_balanced())?);
        lock(&controller.watchers).threads.push(spawn("confirmer", move || shared.keep_confirmed())?);
        Ok(controller)
    }

    /// Watches all daemons of a map that it does not watch yet: nodes and servers may be added. (Watchers of others end by
    /// themselves.)
    fn watch(&self, map: &Map) -> Result<(), ControllerError> {
        let mut watchers = lock(&self.watchers);
        let all = watched(map, self.shared.node, &self.shared.own);
        watchers.members.retain(|known| all.iter().any(|member| member.who == *known));
        for member in all {
            if !watchers.members.insert(member.who) {
                continue;
            }
            let lease = Duration::from_millis(map.lease.into());
            // Where nobody takes the place of a server that hangs before long, its lease may be long, too.
            let lease = if map.copies > 1 { lease } else { lease.max(HANG / 2) };
            let shared = self.shared.clone();
            let thread = spawn("watcher", move || health::Watcher::new(member, lease).run(&shared))?;
            watchers.threads.push(thread);
        }
        Ok(())
    }

    /// Serves the requests that are the controller's: `Beginning`, `Overview`, `GiveUp`, `Replace`, `Add`, `Dismiss`,
    /// `Depart`, `Stay`, `Remove`, `Abandon`, `Shutdown`. `None` is answered as done. A shutdown is answered at once and carried out in the background.
    pub(crate) fn handle(&self, request: &ControlRequest) -> Result<Option<ControlReply>, ControllerError> {
        match request {
            ControlRequest::Beginning => {
                // Whoever asks goes on when all have begun; then whoever leads next has to know it, too.
                if self.has_begun() {
                    self.shared.asks.begun()?;
                }
                Ok(Some(self.shared.beginning()))
            }
            ControlRequest::Overview => {
                // Who was deposed and does not know it yet would tell old news.
                self.confirm(LOOK)?;
                Ok(Some(self.shared.overview()))
            }
            ControlRequest::GiveUp { servers, accept_loss } => {
                self.shared.give_up(servers.clone(), *accept_loss).map(|_| None)
            }
            ControlRequest::Replace(replacement) => {
                let change = MapChange::Replace((**replacement).clone());
                let map = self.shared.change_members(change, ControllerError::CannotReplace)?;
                self.watch(&map).map(|()| None)
            }
            ControlRequest::Add(growth) => {
                let change = MapChange::Add((**growth).clone());
                let map = self.shared.change_members(change, ControllerError::CannotAdd)?;
                self.watch(&map).map(|()| None)
            }
            ControlRequest::Dismiss { servers, nodes } => {
                let change = MapChange::Dismiss { servers: servers.clone(), nodes: nodes.clone() };
                let map = self.shared.change_members(change, ControllerError::CannotAdd)?;
                self.watch(&map).map(|()| None)
            }
            ControlRequest::Rebuild { rule, rate } => {
                let change = MapChange::Rebuild { rule: *rule, rate: *rate };
                self.shared.change_members(change, ControllerError::Refused).map(|_| None)
            }
            ControlRequest::Forward { forwarding } => {
                let change = MapChange::Forward { forwarding: forwarding.clone() };
                self.shared.change_members(change, ControllerError::CannotForward).map(|_| None)
            }
            ControlRequest::EndRebuild { number } => {
                let change = MapChange::Rebuilt { number: *number, complete: false };
                self.shared.change_members(change, ControllerError::Refused).map(|_| None)
            }
            ControlRequest::Depart { servers } => {
                self.shared.newest().may_depart(servers).map_err(ControllerError::CannotDepart)?;
                let change = MapChange::Depart { servers: servers.clone() };
                self.shared.change_members(change, ControllerError::Stale).map(|_| None)
            }
            ControlRequest::Stay { servers } => {
                let change = MapChange::Stay { servers: servers.clone() };
                self.shared.change_members(change, ControllerError::CannotStay).map(|_| None)
            }
            ControlRequest::Remove { servers, nodes } => {
                let change = MapChange::Remove { servers: servers.clone(), nodes: nodes.clone() };
                let map = self.shared.change_members(change, ControllerError::CannotRemove)?;
                self.watch(&map).map(|()| None)
            }
            ControlRequest::Abandon { servers } => {
                self.shared.newest().may_abandon(servers).map_err(ControllerError::CannotAbandon)?;
                let change = MapChange::Abandon { servers: servers.clone() };
                self.shared.change_members(change, ControllerError::Stale).map(|_| None)
            }
            ControlRequest::Shutdown { keep } => {
                self.shut_down(*keep)?;
                Ok(None)
            }
            _ => Err(ControllerError::NotForController),
        }
    }

    /// The newest map that was committed.
    pub(crate) fn newest(&self) -> Arc<Map> {
        self.shared.newest()
    }

    /// Takes in what was committed although nobody has waited for it.
    pub(crate) fn look(&self) {
        // Whoever holds the log is about to do that.
        if let Ok(mut log) = self.shared.log.try_lock() {
            let map = log.look().clone();
            drop(log);
            self.shared.show(map.clone());
            if let Err(error) = self.watch(&map) {
                tracing::error!(%error, "a daemon is not watched");
            }
        }
    }

    /// Whether most voters have confirmed, at a moment after this call began, that this daemon leads. It takes one
    /// exchange with the other voters, and costs nothing where there is one voter.
    pub(crate) fn confirm(&self, limit: Duration) -> Result<(), ControllerError> {
        self.shared.asks.confirm(limit)
    }

    /// Whether all daemons have begun to serve.
    pub(crate) fn has_begun(&self) -> bool {
        lock(&self.shared.view).pending.is_empty()
    }

    /// The nodes whose agents have answered within `limit`.
    pub(crate) fn agents(&self, limit: Duration) -> Vec<NodeId> {
        let view = lock(&self.shared.view);
        let alive = view.agents.iter().filter(|(_, answered)| answered.elapsed() < limit);
        alive.map(|(node, _)| *node).collect()
    }

    /// Stops watching and joins the threads; the deployment goes on without this controller.
    pub(crate) fn stop(&self) {
        lock(&self.shared.view).stopping = true;
        self.shared.changed.notify_all();
        let watchers = std::mem::take(&mut lock(&self.watchers).threads);
        for watcher in watchers {
            let _ = watcher.join();
        }
    }

    /// Tells all other daemons to stop, then our own; the first call does it.
    pub(crate) fn shut_down(&self, keep: bool) -> Result<(), ControllerError> {
        let mut view = lock(&self.shared.view);
        if std::mem::replace(&mut view.shuts_down, true) {
            return Ok(());
        }
        view.stopping = true;
        drop(view);
        self.shared.changed.notify_all();
        tracing::info!(keep, "shutting the deployment down");
        let shared = self.shared.clone();
        spawn("shutdown", move || {
            let map = shared.newest();
            let all = watched(&map, shared.node, &shared.own);
            let others = all.iter().filter(|member| member.endpoint != shared.own);
            std::thread::scope(|scope| {
                for member in others {
                    let shared = &shared;
                    scope.spawn(move || {
                        if let Err(error) = shared.stop_member(member, keep) {
                            tracing::warn!(member = %member.endpoint, %error, "not told to stop");
                        }
                    });
                }
            });
            (shared.stop)(keep);
        })?;
        Ok(())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What handlers and watchers share. `log` is locked before `view`, and `view` never across I/O. `log` is locked while
/// a change is being committed, for seconds if most voters are away.
pub(crate) struct Shared {
    pub(crate) key: Key,
    /// The controller's node.
    pub(crate) node: NodeId,
    pub(crate) deployment: u64,
    /// See [`ControllerConfig::fresh`].
    pub(crate) fresh: bool,
    /// See [`ControllerConfig::restarts`].
    pub(crate) restarts: bool,
    /// Where the controller's own daemon listens on its node.
    own: Endpoint,
    stop: Arc<dyn Fn(bool) + Send + Sync>,
    /// To ask the voters, also while a change is being committed.
    asks: MapLog,
    log: Mutex<MapLog>,
    reports: Mutex<Reports>,
    severed: Mutex<Severed>,
    view: Mutex<View>,
    changed: Condvar,
    /// When this controller began.
    begun: Instant,
}

/// What can be seen without waiting for a disk.
struct View {
    map: Arc<Map>,
    /// Whether the server answered last time, and when it last did.
    health: BTreeMap<ServerId, (bool, Instant)>,
    /// When each node's agent last answered.
    agents: BTreeMap<NodeId, Instant>,
    /// Daemons that have not begun to serve; and why not, if they cannot, as it seems.
    pending: BTreeMap<Member, Option<String>>,
    /// The newest epoch that each server is known to have.
    epochs: BTreeMap<ServerId, Epoch>,
    /// With which rebuild each server is done, and by which map.
    rebuilt: BTreeMap<ServerId, (u32, Epoch)>,
    /// By the map of this epoch, or an older one, others may have what a server had before.
    replaced: BTreeMap<ServerId, Epoch>,
    /// Servers that were declared down although they lived.
    false_failovers: u64,
    /// When the latest exchange began in which most voters have confirmed that this controller leads.
    confirmed: Option<Instant>,
    stopping: bool,
    shuts_down: bool,
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

    /// When the next of the times comes that lie so far from each other, the same ones for all who ask: those who do something then
    /// wake a processor together.
    pub(crate) fn in_step(&self, interval: Duration) -> Instant {
        let passed = self.begun.elapsed().as_nanos();
        let every = interval.as_nanos().max(1);
        let left = every - passed % every;
        Instant::now() + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// The newest map that was committed.
    pub(crate) fn newest(&self) -> Arc<Map> {
        lock(&self.view).map.clone()
    }

    /// Whether it was tried to declare a server down, and nobody knows whether that was committed.
    pub(crate) fn is_undecided(&self, server: ServerId) -> bool {
        lock(&self.view).replaced.get(&server) == Some(&UNDECIDED)
    }

    /// Whether others may have what a server had by its map, the one of this epoch.
    pub(crate) fn is_replaced(&self, server: ServerId, epoch: Epoch) -> bool {
        lock(&self.view).replaced.get(&server).is_none_or(|replaced| epoch < *replaced)
    }

    /// A server says whom it does not reach.
    pub(crate) fn note_unreached(&self, from: ServerId, unreached: &[ServerId]) {
        lock(&self.severed).note(Instant::now(), from, unreached);
    }

    /// Whether a server is to be left out, because it and others do not reach each other.
    pub(crate) fn leaves_out(&self, map: &Map, server: ServerId) -> bool {
        lock(&self.severed).leaves_out(Instant::now(), map, server)
    }

    /// Whether a server that is down has to stay that for the same reason.
    pub(crate) fn keeps_out(&self, map: &Map, server: ServerId) -> bool {
        lock(&self.severed).keeps_out(Instant::now(), map, server)
    }

    /// A server that was declared down has been there all the time.
    pub(crate) fn count_false_failover(&self) {
        lock(&self.view).false_failovers += 1;
    }

    /// When the latest exchange began in which most voters have confirmed that this controller leads.
    pub(crate) fn confirmed(&self) -> Option<Instant> {
        lock(&self.view).confirmed
    }

    /// Has the voters confirm again and again that this controller leads, until it stops. Where no server needs a lease, it waits
    /// for a map by which one does.
    fn keep_confirmed(&self) {
        let (mut next, mut known) = (Instant::now(), Epoch(u64::MAX));
        let mut latest = (Epoch(0), Instant::now());
        while let Some(map) = self.wait(next, known) {
            let begun = Instant::now();
            if !map.has_leases() {
                (next, known) = (begun + REST, map.epoch);
                continue;
            }
            if latest.0 != map.epoch {
                latest = (map.epoch, begun);
            }
            // Leases that last long can wait for that, but for those of servers that have just become I/O nodes.
            let is_calm = map.copies == 1 && begun.duration_since(latest.1) > CALM;
            (next, known) = if is_calm {
                (begun + 2 * health::INTERVAL, map.epoch)
            } else {
                (begun + CONFIRM, Epoch(u64::MAX))
            };
            if self.asks.is_certain() || self.asks.confirm(LOOK).is_ok() {
                lock(&self.view).confirmed = Some(begun);
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

    /// A server is done with a rebuild, by the map of this epoch. Whether all are that have a part in it: a server that is
    /// down has one if nobody else answers for its shards.
    pub(crate) fn is_rebuilt(&self, map: &Map, server: ServerId, told: (u32, Epoch)) -> bool {
        let mut view = lock(&self.view);
        view.rebuilt.insert(server, told);
        let Some(rebuild) = map.rebuild else { return false };
        let has_part = |server: &&Server| map.copies == 1 || server.state == ServerState::Up;
        let is_done = |server: &Server| view.rebuilt.get(&server.id) == Some(&(rebuild.number, map.epoch));
        map.servers.iter().filter(has_part).all(is_done)
    }

    pub(crate) fn report(&self, server: ServerId, alive: bool, last_answer: Instant) {
        lock(&self.view).health.insert(server, (alive, last_answer));
    }

    /// An agent has answered.
    pub(crate) fn heard(&self, node: NodeId) {
        lock(&self.view).agents.insert(node, Instant::now());
    }

    fn overview(&self) -> ControlReply {
        let voters = self.asks.relied_on();
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
        let (map, false_failovers) = (Box::new((*view.map).clone()), view.false_failovers);
        ControlReply::Overview { leader: self.node, voters, map, health, false_failovers }
    }

    pub(crate) fn stop_member(&self, member: &Watched, keep: bool) -> Result<(), LinkError> {
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
pub(crate) mod tests;
