//! Connections to other daemons, and what the metadata store needs from outside itself.
//!
//! Requests between servers may be repeated without harm, so a broken connection is remade and the request sent
//! again, until the map says that the server is down or [`PATIENCE`] is over. When this daemon stops, the others most likely do
//! as well: then nothing is sent again ([`Links::close`]).

use bivouac_data::DataStore;
use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Map, ServerId, ShardId};
use bivouac_meta::Outside;
use bivouac_proto::auth::{Key, Role};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Refusal, Reply, Request, Status, Time};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Exchange, Outgoing, TransportError, exchange};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a request to a server that does not answer is repeated.
const PATIENCE: Duration = Duration::from_secs(10);
/// Idle connections kept for each server.
const KEPT: usize = 32;

/// The daemon's view of the deployment: the map, and connections to the other daemons.
pub(crate) struct Links {
    key: Key,
    role: Role,
    map: RwLock<Arc<Map>>,
    epoch: AtomicU64,
    pools: Mutex<HashMap<ServerId, Vec<Connection>>>,
    closing: AtomicBool,
    /// The daemon's own blocks.
    pub(crate) data: Option<Arc<DataStore>>,
}

impl Links {
    pub(crate) fn new(key: Key, role: Role, first: Map, data: Option<Arc<DataStore>>) -> Links {
        let epoch = AtomicU64::new(first.epoch.0);
        let (map, pools) = (RwLock::new(Arc::new(first)), Mutex::default());
        Links { key, role, map, epoch, pools, closing: AtomicBool::new(false), data }
    }

    /// The daemon stops: from now on a request that cannot be sent fails, also one that is under way.
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
        let mut body = Vec::with_capacity(128);
        bivouac_proto::encode(request, &mut body);
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let map = self.map();
            let Some(entry) = map.server(server).filter(|s| s.state == ServerState::Up) else {
                return Err(Errno::IO.into());
            };
            let outcome = self.take(entry.id, &map).and_then(|mut connection| {
                let header = self.header(&map, shard);
                let outgoing =
                    Outgoing { before: &[], header, body: &body, payload: &[IoSlice::new(payload)] };
                let outcome = connection
                    .call(&outgoing, &mut [IoSliceMut::new(into)])
                    .map(|answer| (open(answer.header.status, answer.body), answer.payload_len));
                self.give(server, connection);
                outcome
            });
            match outcome {
                Ok((Ok(reply), len)) => return Ok((reply, len)),
                Ok((Err(Failure::Refused(Refusal::StaleMap(map))), _)) if map.check().is_ok() => {
                    self.learn(*map)
                }
                Ok((Err(Failure::Refused(Refusal::OldServer)), _)) if self.is_patient(begun) => {
                    std::thread::sleep(pause);
                }
                Ok((Err(failure), _)) => return Err(failure),
                Err(error) if !self.is_patient(begun) => return Err(error.errno().into()),
                Err(_) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
            }
        }
    }

    fn header(&self, map: &Map, shard: ShardId) -> Header {
        let mut header = Header::new(Kind::Request);
        header.epoch = map.epoch;
        header.shard = shard;
        // Between servers paths are never cached: no version is too old.
        header.namespace = u64::MAX;
        header
    }

    fn take(&self, server: ServerId, map: &Map) -> Result<Connection, TransportError> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = pools.get_mut(&server).and_then(Vec::pop) {
            if !connection.is_broken() {
                return Ok(connection);
            }
        }
        drop(pools);
        let address = map.server(server).ok_or(TransportError::Refused)?.address;
        let options = ConnectOptions { timeout: Duration::from_secs(2), ..ConnectOptions::default() };
        Connection::connect(&Endpoint::Tcp(address), &self.key, map.deployment, self.role.clone(), &options)
            .map(|(connection, _)| connection)
    }

    fn give(&self, server: ServerId, connection: Connection) {
        if connection.is_broken() {
            return;
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(server).or_default();
        if pool.len() < KEPT {
            pool.push(connection);
        }
    }

    fn own_data(&self, request: &DataRequest, payload: &[u8], into: &mut [u8]) -> Result<DataReply, Errno> {
        let store = self.data.as_ref().ok_or(Errno::IO)?;
        crate::serve::data_locally(store, request, payload, into)
    }
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

    fn data_all(&self, servers: &[ServerId], request: &DataRequest) -> Vec<Result<DataReply, Errno>> {
        let links = &self.links;
        let map = links.map();
        let mut body = Vec::with_capacity(32);
        bivouac_proto::encode(&Request::Data(*request), &mut body);
        let others: Vec<ServerId> = servers.iter().copied().filter(|s| *s != self.me).collect();
        let mut taken: Vec<(ServerId, Connection)> = Vec::with_capacity(others.len());
        for server in others {
            if let Ok(connection) = links.take(server, &map) {
                taken.push((server, connection));
            }
        }
        let mut calls: Vec<Exchange<'_, '_>> = taken
            .iter_mut()
            .map(|(_, connection)| {
                let request = Outgoing {
                    before: &[],
                    header: links.header(&map, ShardId(0)),
                    body: &body,
                    payload: &[],
                };
                Exchange::new(connection, request, &mut [])
            })
            .collect();
        exchange(&mut calls);
        let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
        let mut answers = HashMap::new();
        for ((server, connection), result) in taken.into_iter().zip(results) {
            if let Some(Ok(received)) = result {
                match open(received.header.status, connection.body()) {
                    Ok(reply) => drop(answers.insert(server, data_reply(reply))),
                    Err(Failure::Errno(errno)) => drop(answers.insert(server, Err(errno))),
                    // Asked again alone, where refusals are understood.
                    Err(Failure::Refused(_)) => {}
                }
            }
            links.give(server, connection);
        }
        servers
            .iter()
            .map(|server| match answers.remove(server) {
                Some(answer) => answer,
                None => self.data(*server, request, &[], &mut []),
            })
            .collect()
    }

    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::map::Server;
    use bivouac_layout::{First, NodeId};

    #[test]
    fn a_daemon_that_stops_does_not_wait_for_servers_that_have_stopped() {
        // Nobody listens there any more.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let gone = Server { id: ServerId(1), node: NodeId(0), address, state: ServerState::Up };
        let map = Map {
            epoch: Epoch(1),
            deployment: 7,
            mount: "/m".into(),
            block_size: 4096,
            width: 0,
            first: First::Hashed,
            nodes: Vec::new(),
            servers: vec![gone],
            shards: Vec::new(),
            copies: 1,
            generations: Vec::new(),
        };
        let key = Key([1; 32]);
        let links = Links::new(key, Role::Agent(1), map, None);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| links.meta_at(ServerId(1), &MetaRequest::EndSession { session: 1 }));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!call.is_finished(), "it is asked again for as long as the daemon runs");
            links.close();
            assert!(call.join().expect("ends").is_err());
        });
        assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    }
}
