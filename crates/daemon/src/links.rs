//! Connections to other daemons, and what the metadata store needs from outside itself.
//!
//! If a connection breaks, the daemon connects again and repeats the request under the same identity. It
//! gives up when the map says that the server is down, when the server has refused connections for
//! two seconds ([`Refusals`]: the map may never say so, because the controller may have been on the same
//! machine), or after [`PATIENCE`]. When this daemon stops, the others most likely stop as well: then
//! it repeats nothing ([`Links::close`]).

use bivouac_data::DataStore;
use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Map, SERVERS_MAX, ServerId, ShardId};
use bivouac_meta::Outside;
use bivouac_proto::auth::{Key, Role};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Refusal, Reply, Request, Status, Time};
use bivouac_transport::{
    Answer, ConnectOptions, Connection, Endpoint, Exchange, Outgoing, Peer, Refusals, TransportError,
    exchange,
};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a request to a server that does not answer is repeated.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for a silent server before looking into the map whether it is up.
const SILENCE: Duration = Duration::from_secs(1);
/// Idle connections kept for each server.
const KEPT: usize = 32;

/// A connection, with its request slot.
struct Link {
    connection: Connection,
    slot: u32,
    /// Requests sent with this slot.
    sequence: u64,
}

impl Link {
    /// The identity of the next request on this connection.
    fn next_id(&mut self, session: u64) -> RequestId {
        self.sequence += 1;
        RequestId { session, slot: self.slot, sequence: self.sequence }
    }
}

/// The identity of a request, through all its attempts.
#[derive(Default)]
struct Identity {
    id: Option<RequestId>,
    /// Attempts that were begun.
    attempts: u16,
    /// The connection whose slot the identity is of: nobody else may use it until the request is answered.
    link: Option<Link>,
}

/// Whether requests between servers may go to a server.
fn serves(map: &Map, server: ServerId) -> bool {
    map.server(server).is_some_and(|s| s.state != ServerState::Down)
}

/// The daemon's view of the deployment: the map, and connections to the other daemons.
pub(crate) struct Links {
    key: Key,
    role: Role,
    map: RwLock<Arc<Map>>,
    epoch: AtomicU64,
    pools: Mutex<HashMap<ServerId, Vec<Link>>>,
    /// The identity of requests: the daemon's start, with a slot for each connection.
    session: u64,
    slots: AtomicU32,
    /// Servers that take no connections.
    pub(crate) refusals: Refusals,
    closing: AtomicBool,
    /// The daemon's own blocks.
    pub(crate) data: Option<Arc<DataStore>>,
}

impl Links {
    pub(crate) fn new(key: Key, role: Role, first: Map, data: Option<Arc<DataStore>>, session: u64) -> Links {
        let epoch = AtomicU64::new(first.epoch.0);
        let (map, pools) = (RwLock::new(Arc::new(first)), Mutex::default());
        let (slots, closing) = (AtomicU32::new(1), AtomicBool::new(false));
        let refusals = Refusals::new(SERVERS_MAX.into());
        Links { key, role, map, epoch, pools, session, slots, refusals, closing, data }
    }

    /// The daemon stops: from now on a request that cannot be sent fails, also if it is under way.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Whether a request that was begun then is worth sending again.
    fn is_patient(&self, begun: Instant) -> bool {
        begun.elapsed() < PATIENCE && !self.closing.load(Ordering::Relaxed)
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
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch > current.epoch {
            self.epoch.store(map.epoch.0, Ordering::Release);
            *current = Arc::new(map);
        }
    }

    /// Sends a request about an inode's shard to its server.
    pub(crate) fn meta(&self, shard: ShardId, request: &MetaRequest<'_>) -> Result<Reply, Failure> {
        let server = self.map().primary(shard);
        self.call(server, shard, &Request::Meta(request.clone()), &[], &mut []).map(|(reply, _)| reply)
    }

    /// Sends a request that concerns all of a server.
    pub(crate) fn meta_at(&self, server: ServerId, request: &MetaRequest<'_>) -> Result<Reply, Failure> {
        let shard = self.map().shards_of(server).next().unwrap_or(ShardId(0));
        self.call(server, shard, &Request::Meta(request.clone()), &[], &mut []).map(|(reply, _)| reply)
    }

    fn call(
        &self,
        server: ServerId,
        shard: ShardId,
        request: &Request<'_>,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize), Failure> {
        self.call_as(Identity::default(), server, shard, &encoded(request), payload, into)
    }

    /// Sends a request until it is answered. It keeps its identity through all refusals and lost answers.
    fn call_as(
        &self,
        mut identity: Identity,
        server: ServerId,
        shard: ShardId,
        body: &[u8],
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize), Failure> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        let result = loop {
            let map = self.map();
            if !serves(&map, server) {
                break Err(Errno::IO.into());
            }
            let own = identity.link.take().filter(|link| !link.connection.is_broken());
            let outcome = own.map_or_else(|| self.take(server, &map), Ok).and_then(|mut link| {
                let id = *identity.id.get_or_insert_with(|| link.next_id(self.session));
                let header = Header { id, attempt: identity.attempts, ..self.header(&map, shard) };
                identity.attempts = identity.attempts.saturating_add(1);
                let payload = [IoSlice::new(payload)];
                let outgoing = Outgoing { before: &[], header, body, payload: &payload };
                let outcome = self.exchange(server, &mut link.connection, &outgoing, into);
                match link.slot == id.slot {
                    true => identity.link = Some(link),
                    false => self.give(server, link),
                }
                outcome
            });
            match outcome {
                Ok((Ok(reply), len)) => break Ok((reply, len)),
                Ok((Err(Failure::Refused(Refusal::StaleMap(map))), _)) if map.check().is_ok() => {
                    self.learn(*map)
                }
                Ok((Err(Failure::Refused(Refusal::OldServer)), _)) if self.is_patient(begun) => {
                    std::thread::sleep(pause);
                }
                Ok((Err(failure), _)) => break Err(failure),
                Err(error) if !self.is_patient(begun) => break Err(error.errno().into()),
                Err(TransportError::Refused) if self.refusals.is_gone(Peer::Server(server)) => {
                    break Err(Errno::IO.into());
                }
                Err(_) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
            }
        };
        if let Some(link) = identity.link {
            self.give(server, link);
        }
        result
    }

    /// One attempt. Waits for a silent server as long as the map says that it is not down.
    fn exchange(
        &self,
        server: ServerId,
        connection: &mut Connection,
        outgoing: &Outgoing<'_>,
        into: &mut [u8],
    ) -> Result<(Result<Reply, Failure>, usize), TransportError> {
        let taken = |answer: Answer<'_>| (open(answer.header.status, answer.body), answer.payload_len);
        let mut into = [IoSliceMut::new(into)];
        let mut outcome = connection.call(outgoing, &mut into).map(taken);
        while matches!(outcome, Err(TransportError::TimedOut)) && self.is_worth_waiting_for(server) {
            outcome = connection.go_on(outgoing, &mut into).map(taken);
        }
        outcome
    }

    /// All calls. Waits for each silent server as long as the map says that it is not down.
    fn exchange_patiently(&self, calls: &mut [Exchange<'_, '_>], servers: &[ServerId]) {
        loop {
            exchange(calls);
            let mut again = false;
            for (call, server) in calls.iter_mut().zip(servers) {
                if matches!(call.result, Some(Err(TransportError::TimedOut)))
                    && self.is_worth_waiting_for(*server)
                {
                    call.go_on();
                    again = true;
                }
            }
            if !again {
                return;
            }
        }
    }

    fn is_worth_waiting_for(&self, server: ServerId) -> bool {
        serves(&self.map(), server) && !self.closing.load(Ordering::Relaxed)
    }

    /// Sends encoded requests to several servers at once and waits for all answers, which come in the
    /// requests' order. What a broken connection leaves open is sent again, one by one, under the same
    /// identity.
    fn ask_each(&self, requests: &[(ServerId, Vec<u8>)]) -> Vec<Result<Reply, Failure>> {
        let map = self.map();
        let mut under_way: Vec<(usize, Link, Header)> = Vec::with_capacity(requests.len());
        for (index, (server, _)) in requests.iter().enumerate() {
            if serves(&map, *server)
                && let Ok(mut link) = self.take(*server, &map)
            {
                let header = Header { id: link.next_id(self.session), ..self.header(&map, ShardId(0)) };
                under_way.push((index, link, header));
            }
        }
        let asked: Vec<ServerId> = under_way.iter().map(|(index, ..)| requests[*index].0).collect();
        let mut calls: Vec<Exchange<'_, '_>> = under_way
            .iter_mut()
            .map(|(index, link, header)| {
                let body = &requests[*index].1;
                let outgoing = Outgoing { before: &[], header: *header, body, payload: &[] };
                Exchange::new(&mut link.connection, outgoing, &mut [])
            })
            .collect();
        self.exchange_patiently(&mut calls, &asked);
        let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
        let mut answers: Vec<Option<Result<Reply, Failure>>> = requests.iter().map(|_| None).collect();
        let mut identities: Vec<Identity> = requests.iter().map(|_| Identity::default()).collect();
        for ((index, link, header), result) in under_way.into_iter().zip(results) {
            let (server, identity) = (requests[index].0, &mut identities[index]);
            match result {
                Some(Ok(received)) => match open(received.header.status, link.connection.body()) {
                    // Sent again alone, where refusals are understood.
                    Err(Failure::Refused(_)) => {}
                    answer => answers[index] = Some(answer),
                },
                // No other request uses a broken connection's request slot any more.
                _ => (identity.id, identity.attempts) = (Some(header.id), 1),
            }
            self.give(server, link);
        }
        let all = answers.into_iter().zip(identities).zip(requests);
        all.map(|((answer, identity), (server, body))| {
            answer.unwrap_or_else(|| {
                let again = self.call_as(identity, *server, ShardId(0), body, &[], &mut []);
                again.map(|(reply, _)| reply)
            })
        })
        .collect()
    }

    fn header(&self, map: &Map, shard: ShardId) -> Header {
        let mut header = Header::new(Kind::Request);
        header.epoch = map.epoch;
        header.shard = shard;
        // Servers never cache paths, so no namespace version is too old.
        header.namespace = u64::MAX;
        header
    }

    fn take(&self, server: ServerId, map: &Map) -> Result<Link, TransportError> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(link) = pools.get_mut(&server).and_then(Vec::pop) {
            if !link.connection.is_broken() {
                return Ok(link);
            }
        }
        drop(pools);
        let address = map.server(server).ok_or(TransportError::Refused)?.address;
        let options =
            ConnectOptions { timeout: Duration::from_secs(2), silence: SILENCE, ..ConnectOptions::default() };
        let (endpoint, role) = (Endpoint::Tcp(address), self.role.clone());
        let connected = Connection::connect(&endpoint, &self.key, map.deployment, role, &options);
        self.refusals.note(Peer::Server(server), &connected);
        let (connection, _) = connected?;
        let slot = self.slots.fetch_add(1, Ordering::Relaxed);
        Ok(Link { connection, slot, sequence: 0 })
    }

    fn give(&self, server: ServerId, link: Link) {
        if link.connection.is_broken() {
            return;
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(server).or_default();
        if pool.len() < KEPT {
            pool.push(link);
        }
    }

    fn own_data(&self, request: &DataRequest, payload: &[u8], into: &mut [u8]) -> Result<DataReply, Errno> {
        let store = self.data.as_ref().ok_or(Errno::IO)?;
        crate::serve::data_locally(store, request, payload, into)
    }
}

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(128);
    bivouac_proto::encode(request, &mut body);
    body
}

/// What an answer says.
fn open(status: Status, body: &[u8]) -> Result<Reply, Failure> {
    if status == Status::OK {
        bivouac_proto::decode(body).map_err(|_| Errno::PROTO.into())
    } else if status == Status::REFUSED {
        let refusal: Refusal = bivouac_proto::decode(body).map_err(|_| Errno::PROTO)?;
        Err(refusal.into())
    } else {
        Err(status.errno().unwrap_or(Errno::PROTO).into())
    }
}

fn data_reply(reply: Reply) -> Result<DataReply, Errno> {
    match reply {
        Reply::Data(reply) => Ok(reply),
        Reply::Done => Ok(DataReply::Done),
        _ => Err(Errno::PROTO),
    }
}

fn errno(failure: Failure) -> Errno {
    match failure {
        Failure::Errno(errno) => errno,
        Failure::Refused(_) => Errno::IO,
    }
}

/// What the metadata store asks of the rest of the deployment.
pub(crate) struct Around {
    links: Arc<Links>,
    /// The server that the store belongs to: one without a number has no store.
    me: ServerId,
}

impl Around {
    pub(crate) fn new(links: Arc<Links>, me: ServerId) -> Around {
        Around { links, me }
    }
}

impl Outside for Around {
    fn map(&self) -> Arc<Map> {
        self.links.map()
    }

    fn me(&self) -> ServerId {
        self.me
    }

    fn peer(&self, server: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        self.links
            .call(server, ShardId(0), &Request::Peer(request.clone()), &[], &mut [])
            .map(|(reply, _)| reply)
    }

    fn peer_all(&self, servers: &[ServerId], request: &PeerRequest<'_>) -> Vec<Result<Reply, Failure>> {
        let body = encoded(&Request::Peer(request.clone()));
        self.links.ask_each(&servers.iter().map(|server| (*server, body.clone())).collect::<Vec<_>>())
    }

    fn data(
        &self,
        server: ServerId,
        request: &DataRequest,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<DataReply, Errno> {
        if server == self.me {
            return self.links.own_data(request, payload, into);
        }
        let (reply, _) =
            self.links.call(server, ShardId(0), &Request::Data(*request), payload, into).map_err(errno)?;
        data_reply(reply)
    }

    fn data_each(&self, requests: &[(ServerId, DataRequest)]) -> Vec<Result<DataReply, Errno>> {
        let others = requests.iter().filter(|(server, _)| *server != self.me);
        let encoded: Vec<_> = others.map(|(server, r)| (*server, encoded(&Request::Data(*r)))).collect();
        let mut answers = self.links.ask_each(&encoded).into_iter();
        let other = |answer: Result<Reply, Failure>| answer.map_err(errno).and_then(data_reply);
        let answer = |(server, request): &(ServerId, DataRequest)| match *server == self.me {
            true => self.links.own_data(request, &[], &mut []),
            false => answers.next().map_or(Err(Errno::IO), other),
        };
        requests.iter().map(answer).collect()
    }

    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::NodeId;
    use bivouac_layout::map::Server;

    #[test]
    fn a_daemon_that_stops_does_not_wait_for_servers_that_have_stopped() {
        // Nobody listens there any more.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let gone = Server { id: ServerId(1), node: NodeId(0), address, state: ServerState::Up };
        let map = Map { servers: vec![gone], ..Map::before_the_first(7) };
        let key = Key([1; 32]);
        let links = Links::new(key, Role::Agent(1), map, None, 1);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| links.meta_at(ServerId(1), &MetaRequest::EndSession { session: 1 }));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!call.is_finished(), "it is asked again for as long as the daemon runs");
            let closed = Instant::now();
            links.close();
            assert!(call.join().expect("ends").is_err());
            assert!(closed.elapsed() < PATIENCE, "{:?}", closed.elapsed());
        });
    }
}
