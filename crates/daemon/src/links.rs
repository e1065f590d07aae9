//! Connections to other daemons.
//!
//! Requests go by the engine that clients use, too ([`bivouac_transport::engine`]). A daemon asks servers
//! that are up or joining, learns newer maps from the controller alone and from refusals, and gives up when
//! the server has refused connections for three seconds ([`Refusals`]: the map may never say that it is down,
//! because there may be no controller any more). That another operation is in the way is for
//! whoever asked to decide. When this daemon stops, the others most likely stop as well: then it repeats
//! nothing ([`Links::close`]).

use crate::lease::Lease;
use crate::reach::Reach;
use crate::standing::Losses;
use bivouac_data::DataStore;
use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Map, News, NodeId, Server, ServerId, ShardId};
use bivouac_meta::Standing;
use bivouac_node::Absences;
use bivouac_node::release::monotonic;
use bivouac_proto::auth::{Key, Role};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Refusal, Reply, Request, Time};
use bivouac_transport::engine::budget::refusing::GONE;
use bivouac_transport::engine::{self, Budget, Job, Lane, Message, Refused, Requester, Target, To};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Peer, Refusals, TransportError};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Idle connections kept for each server.
const KEPT: usize = 32;

/// What is done with each newer map.
type OnMap = Box<dyn Fn(&Map) + Send + Sync>;

/// The daemon's view of the deployment: the map, and connections to the other daemons.
pub(crate) struct Links {
    key: Key,
    role: Role,
    map: RwLock<Arc<Map>>,
    epoch: AtomicU64,
    /// Whether any node is away by the map.
    some_away: AtomicBool,
    pools: Mutex<HashMap<ServerId, Vec<Lane>>>,
    /// Connections for bytes that are sent ahead, in which other requests would have to wait.
    chains: Mutex<HashMap<ServerId, Vec<Lane>>>,
    /// The identity of requests: the daemon's start, with a slot for each connection.
    session: u64,
    slots: AtomicU32,
    /// Servers that take no connections.
    pub(crate) refusals: Refusals,
    /// Since when servers are not up.
    absences: Absences,
    closing: AtomicBool,
    /// Woken by a newer map, and when the daemon stops.
    news: (Mutex<()>, Condvar),
    /// On servers: which one this is, and its succession. Once a map says a later one, this process must not answer
    /// for anything.
    own: Option<(ServerId, u32)>,
    replaced: AtomicBool,
    /// What happens then.
    on_replaced: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// What happens with each newer map.
    on_map: OnceLock<OnMap>,
    /// The daemon's own blocks.
    pub(crate) data: Option<Arc<DataStore>>,
    /// As a server.
    pub(crate) lease: Lease,
    /// As a server of a deployment with copies.
    pub(crate) reach: Reach,
    losses: Losses,
}

impl Requester for Links {
    type Link = Lane;
    type MapRef<'a> = Arc<Map>;
    type To = Whom;
    const BUDGET: Budget = Budget::SERVER;

    fn map(&self) -> Arc<Map> {
        Links::map(self)
    }

    fn learn(&self, news: News) {
        if let Some(map) = news.added_to(&Links::map(self)) {
            Links::learn(self, map);
        }
    }

    fn stands(&self, whom: Whom) -> bool {
        whom.standing.is_none_or(|standing| Links::stands(self, standing))
    }

    fn is_silent(&self, server: ServerId) {
        if self.own.is_some() && self.map().copies > 1 {
            self.reach.doubt(server);
        }
    }

    fn is_lost(&self, server: ServerId, since: Instant) -> bool {
        self.reach.was_cut_off(server, since)
    }

    fn asks(state: ServerState) -> bool {
        state != ServerState::Down
    }

    fn take(&self, server: ServerId, map: &Map) -> Result<Lane, TransportError> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(lane) = pools.get_mut(&server).and_then(Vec::pop) {
            if Links::works(&lane) {
                return Ok(lane);
            }
        }
        drop(pools);
        self.connect(server, map)
    }

    fn give(&self, server: ServerId, lane: Lane) {
        if !Links::works(&lane) {
            return;
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(server).or_default();
        if pool.len() < KEPT {
            pool.push(lane);
        }
    }

    fn works(lane: &Lane) -> bool {
        !lane.connection.is_broken()
    }

    fn lane(lane: &mut Lane) -> &mut Lane {
        lane
    }

    fn session(&self) -> Result<u64, TransportError> {
        Ok(self.session)
    }

    fn refused(&self, _: ServerId, refusal: &Refusal) -> Refused {
        match refusal {
            Refusal::OldServer => Refused::Repeat,
            _ => Refused::HandOver,
        }
    }

    fn is_gone(&self, server: ServerId) -> bool {
        self.refusals.is_gone(Peer::Server(server))
    }

    fn is_missed(&self, server: ServerId) -> bool {
        // Nobody says of a server that it is back while there is no controller.
        let lasts = self.absences.lasts(server, monotonic());
        lasts.into_iter().chain(self.refusals.unheard()).any(|lasts| lasts >= GONE)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

impl Links {
    pub(crate) fn new(
        key: Key,
        (role, succession): (Role, u32),
        first: Map,
        data: Option<Arc<DataStore>>,
        session: u64,
    ) -> Links {
        let epoch = AtomicU64::new(first.epoch.0);
        let some_away = AtomicBool::new(!first.away.is_empty());
        let map = RwLock::new(Arc::new(first));
        let (pools, chains) = (Mutex::default(), Mutex::default());
        let (slots, closing) = (AtomicU32::new(1), AtomicBool::new(false));
        let (refusals, absences, news) = (Refusals::default(), Absences::default(), Default::default());
        let own = match &role {
            Role::Server(server) => Some((*server, succession)),
            _ => None,
        };
        let (lease, replaced) = (Lease::default(), AtomicBool::new(false));
        let (on_replaced, on_map) = (OnceLock::new(), OnceLock::new());
        Links {
            key,
            role,
            map,
            epoch,
            some_away,
            pools,
            chains,
            session,
            slots,
            refusals,
            absences,
            closing,
            news,
            own,
            replaced,
            on_replaced,
            on_map,
            data,
            lease,
            reach: Reach::default(),
            losses: Losses::default(),
        }
    }

    fn connect(&self, server: ServerId, map: &Map) -> Result<Lane, TransportError> {
        let address = map.server(server).ok_or(TransportError::Refused)?.address;
        let (endpoint, role) = (Endpoint::Tcp(address), self.role.clone());
        let options = ConnectOptions { considerate: true, ..Links::BUDGET.options(0) };
        let connected = Connection::connect(&endpoint, &self.key, map.deployment, role, &options);
        self.refusals.note(Peer::Server(server), &connected);
        if connected.as_ref().is_err_and(TransportError::is_of_route) {
            Requester::is_silent(self, server);
        }
        let (connection, _) = connected?;
        Ok(Lane::new(connection, self.slots.fetch_add(1, Ordering::Relaxed)))
    }

    /// A connection for bytes that are sent ahead.
    pub(crate) fn take_for_chain(&self, server: ServerId, map: &Map) -> Result<Lane, TransportError> {
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(lane) = chains.get_mut(&server).and_then(Vec::pop) {
            // Nothing is answered over these: who is gone would not be noticed otherwise.
            if Links::works(&lane) && !lane.connection.has_ended() {
                return Ok(lane);
            }
        }
        drop(chains);
        self.connect(server, map)
    }

    /// Gives it back.
    pub(crate) fn give_to_chain(&self, server: ServerId, lane: Lane) {
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = chains.entry(server).or_default();
        if Links::works(&lane) && kept.len() < KEPT {
            kept.push(lane);
        }
    }

    /// What is done when this server finds out that another process has its number. Once, before the first map.
    pub(crate) fn when_replaced(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_replaced.set(Box::new(act));
    }

    /// What is done with each newer map, whoever has sent it: one after the other, and not for long, because nobody else gets a map
    /// meanwhile. Once, before the first map.
    pub(crate) fn when_learnt(&self, act: impl Fn(&Map) + Send + Sync + 'static) {
        let _ = self.on_map.set(Box::new(act));
    }

    /// Whether this server knows that another process has its number.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Whether another process has this server's number by a map. If that is a later one, this daemon ends. It takes no
    /// such map: without one, nobody who has it listens to this daemon.
    pub(crate) fn is_replaced_by(&self, map: &Map) -> bool {
        let Some((own, succession)) = self.own else { return false };
        let by = map.server(own).map_or(succession, Server::succession);
        if by > succession && !self.replaced.swap(true, Ordering::AcqRel) {
            tracing::error!(
                server = %own,
                epoch = %map.epoch,
                "another process has this server's number by now (`bivouac replace`): this one answers for nothing any more, and \
                 ends; its storage stays as it is"
            );
            if let Some(act) = self.on_replaced.get() {
                act();
            }
        }
        by != succession
    }

    /// The key, for connections of other kinds.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// The daemon stops: from now on a request that cannot be sent fails, also if it is under way.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.tell_news();
        self.reach.wake();
    }

    fn tell_news(&self) {
        drop(self.news.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.1.notify_all();
    }

    /// Waits for a map that is newer than `known`, and not longer than `longest`. `None`: the daemon stops.
    pub(crate) fn wait_for_map(&self, known: Epoch, longest: Duration) -> Option<Arc<Map>> {
        let guard = self.news.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |_: &mut ()| self.epoch() <= known && !self.is_closing();
        let waited = self.news.1.wait_timeout_while(guard, longest, is_old);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        (!self.is_closing()).then(|| self.map())
    }

    /// The current map.
    pub(crate) fn map(&self) -> Arc<Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The current map's epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Takes over a map that is newer.
    pub(crate) fn learn(&self, map: Map) {
        if self.is_replaced_by(&map) {
            return;
        }
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch > current.epoch {
            if let Role::Server(me) = self.role {
                self.lease.set_behind(map.lacks_blocks(me));
            }
            if matches!(self.role, Role::Server(_)) {
                self.losses.note(&current, &map);
            }
            self.some_away.store(!map.away.is_empty(), Ordering::Relaxed);
            self.epoch.store(map.epoch.0, Ordering::Release);
            let before = std::mem::replace(&mut *current, Arc::new(map));
            let moved = moved(&before, &current);
            self.absences.note(&current, monotonic());
            if let Some(act) = self.on_map.get() {
                act(&current);
            }
            drop(current);
            self.forget_connections(&moved);
            self.tell_news();
        }
    }

    /// Whether the primary of a group has answered for it all the time since then, as far as this server knows.
    pub(crate) fn stands(&self, standing: Standing) -> bool {
        self.losses.stands(standing)
    }

    /// Whether a node is away by the map.
    pub(crate) fn is_away(&self, node: NodeId) -> bool {
        self.some_away.load(Ordering::Relaxed) && self.map().is_away(node)
    }

    /// Closes idle connections to processes that others have replaced.
    fn forget_connections(&self, servers: &[ServerId]) {
        for pools in [&self.pools, &self.chains] {
            let mut pools = pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.retain(|server, _| !servers.contains(server));
        }
    }

    /// Sends a request about an inode's shard to its server.
    pub(crate) fn meta(&self, shard: ShardId, request: &MetaRequest<'_>) -> Result<Reply, Failure> {
        self.ask(To::Shard(shard), &Request::Meta(request.clone()))
    }

    /// Sends a request that concerns all of a server.
    pub(crate) fn meta_at(&self, server: ServerId, request: &MetaRequest<'_>) -> Result<Reply, Failure> {
        let shard = self.map().shards_of(server).next().unwrap_or(ShardId(0));
        self.ask(To::Server(server, shard), &Request::Meta(request.clone()))
    }

    /// Sends a request.
    pub(crate) fn ask(&self, to: impl Into<Whom>, request: &Request<'_>) -> Result<Reply, Failure> {
        self.ask_into(to, request, &[], &mut []).map(|(reply, _)| reply)
    }

    /// Sends several requests at once and waits for all answers, which come in the requests' order.
    pub(crate) fn call_each(
        &self,
        mut jobs: Vec<Job<'_, Whom>>,
    ) -> impl Iterator<Item = Result<Reply, Failure>> {
        engine::call_each(self, &mut jobs);
        jobs.into_iter().map(|mut job| job.take().map(|answered| answered.reply))
    }

    /// Sends the same request to several servers at once; the answers in their order.
    pub(crate) fn ask_each(
        &self,
        standing: Option<Standing>,
        servers: &[ServerId],
        request: &Request<'_>,
        payload: &[u8],
    ) -> Vec<Result<Reply, Failure>> {
        self.ask_each_as(|server| all_of(server).by(standing), servers, request, payload)
    }

    /// Sends a request to several holders of a file's blocks at once, by a standing and a version of the file's layout; the
    /// answers in their order.
    pub(crate) fn ask_holders(
        &self,
        (standing, layout): (Standing, u32),
        holders: &[ServerId],
        request: &Request<'_>,
        payload: &[u8],
    ) -> Vec<Result<Reply, Failure>> {
        let whom = |holder| all_of(holder).by(Some(standing)).of_layout(layout);
        self.ask_each_as(whom, holders, request, payload)
    }

    fn ask_each_as(
        &self,
        whom: impl Fn(ServerId) -> Whom,
        servers: &[ServerId],
        request: &Request<'_>,
        payload: &[u8],
    ) -> Vec<Result<Reply, Failure>> {
        let body = encoded(request);
        let job = |server: &ServerId| Job::new(whom(*server), &body[..], payload, &mut []);
        self.call_each(servers.iter().map(job).collect()).collect()
    }

    /// Sends requests to several holders of a file's blocks at once, as [`Links::ask_holders`].
    pub(crate) fn ask_all(
        &self,
        (standing, layout): (Standing, u32),
        requests: &[(ServerId, Request<'_>)],
    ) -> Vec<Result<Reply, Failure>> {
        let job = |(server, request): &(ServerId, Request<'_>)| {
            let whom = all_of(*server).by(Some(standing)).of_layout(layout);
            Job::new(whom, encoded(request), &[], &mut [])
        };
        self.call_each(requests.iter().map(job).collect()).collect()
    }

    /// Sends a request on which nothing depends, once; not if the server is not reached, as far as is known.
    pub(crate) fn ask_once(&self, to: impl Into<Whom>, request: &Request<'_>) -> Option<Reply> {
        let to = to.into();
        if self.reach.is_doubted(to.server(&self.map())) {
            return None;
        }
        engine::ask_once(self, to, &encoded(request))
    }

    /// Sends a request; how many bytes came with the answer.
    pub(crate) fn ask_into(
        &self,
        to: impl Into<Whom>,
        request: &Request<'_>,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize), Failure> {
        let message = Message { body: &encoded(request), payload: &[IoSlice::new(payload)], watch: None };
        let answered = engine::call(self, to.into(), &message, &mut [IoSliceMut::new(into)])?;
        Ok((answered.reply, answered.payload_len))
    }
}

/// The servers that are another process in a newer map.
fn moved(before: &Map, after: &Map) -> Vec<ServerId> {
    let is_another = |server: &&Server| {
        before.server(server.id).is_some_and(|known| known.succession() != server.succession())
    };
    after.servers.iter().filter(is_another).map(|server| server.id).collect()
}

pub(crate) fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(128);
    bivouac_proto::encode(request, &mut body);
    body
}

/// A server, for a request that concerns no shard.
pub(crate) fn all_of(server: ServerId) -> Whom {
    To::Server(server, ShardId(0)).into()
}

/// Where a request of a daemon goes, and by what right it is sent.
#[derive(Clone, Copy)]
pub(crate) struct Whom {
    to: To,
    /// With one, it is sent only as long as that counts.
    standing: Option<Standing>,
    /// The version of the file's layout by which it is sent.
    layout: u32,
    /// Nobody but the server that it names has what it is about.
    only: bool,
}

impl Whom {
    /// The same, of something that only this server has.
    pub(crate) fn only(self) -> Whom {
        Whom { only: true, ..self }
    }

    /// The same, by a standing.
    pub(crate) fn by(self, standing: Option<Standing>) -> Whom {
        Whom { standing, ..self }
    }

    /// The same, by a version of the file's layout.
    pub(crate) fn of_layout(self, layout: u32) -> Whom {
        Whom { layout, ..self }
    }
}

impl From<To> for Whom {
    fn from(to: To) -> Whom {
        Whom { to, standing: None, layout: 0, only: false }
    }
}

impl Target for Whom {
    fn server(&self, map: &Map) -> ServerId {
        self.to.server(map)
    }

    fn shard(&self) -> ShardId {
        self.to.shard()
    }

    fn layout(&self) -> u32 {
        self.layout
    }

    fn names_who_is_up(&self) -> bool {
        self.only || self.to.names_who_is_up()
    }
}

/// The clock.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::NodeId;

    #[test]
    fn a_daemon_that_stops_does_not_wait_for_servers_that_have_stopped() {
        // Nobody listens there any more.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let gone = Server {
            id: ServerId(1),
            node: NodeId(0),
            address,
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let map = Map { servers: vec![gone], ..Map::before_the_first(7) };
        let key = Key([1; 32]);
        let links = Links::new(key, (Role::Agent(1), 0), map, None, 1);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| links.meta_at(ServerId(1), &MetaRequest::EndSession { session: 1 }));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!call.is_finished(), "it is asked again for as long as the daemon runs");
            let closed = Instant::now();
            links.close();
            assert!(call.join().expect("ends").is_err());
            assert!(closed.elapsed() < Budget::SERVER.patience, "{:?}", closed.elapsed());
        });
    }
}
