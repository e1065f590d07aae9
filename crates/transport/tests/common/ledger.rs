//! A service that carries requests out exactly once, as servers do, and keeps book of it; and a sender by the
//! engine.

use super::*;
use bivouac_layout::map::{Node, ServerState};
use bivouac_layout::{Founding, Map, News, NodeId, SHARDS, ServerId};
use bivouac_node::Absences;
use bivouac_node::release::monotonic;
use bivouac_proto::Refusal;
use bivouac_proto::header::NO_REPLY;
use bivouac_transport::engine::budget::refusing::GONE;
use bivouac_transport::engine::{
    Answered, Budget, Job, Lane, Message, Refused, Requester, Target, To, call, call_each,
};
use bivouac_transport::{Peer, Refusals};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// What servers remember of requests. Those among which shards move share one.
#[derive(Default)]
pub struct Books {
    /// The newest attempt of each request slot, and whether it was carried out.
    slots: HashMap<(u64, u32), (u64, u16, bool)>,
    /// How often each operation was carried out.
    carried_out: HashMap<u64, u32>,
    /// Attempts that were not the first, and attempts that came after a later one.
    pub repeated: u32,
    pub overtaken: u32,
    /// Under which identities operations came: one each.
    identities: HashMap<u64, HashSet<RequestId>>,
}

pub struct Ledger {
    key: Key,
    pub epoch: AtomicU64,
    pub books: Arc<Mutex<Books>>,
    /// With what the next requests are refused.
    pub refusals: Mutex<VecDeque<Refusal>>,
    /// The headers of requests, as they came.
    pub seen: Mutex<Vec<Header>>,
    /// Requests whose sender awaits no answer.
    pub posted: AtomicU32,
}

impl Ledger {
    pub fn new(books: Arc<Mutex<Books>>) -> Arc<Ledger> {
        let (epoch, posted) = (AtomicU64::new(1), AtomicU32::new(0));
        let (refusals, seen) = Default::default();
        Arc::new(Ledger { key: key(1), epoch, books, refusals, seen, posted })
    }

    pub fn refuse(&self, refusals: impl IntoIterator<Item = Refusal>) {
        self.refusals.lock().unwrap().extend(refusals);
    }
}

impl Service for Ledger {
    type Session = ();

    fn key(&self) -> &Key {
        &self.key
    }

    fn deployment(&self) -> u64 {
        DEPLOYMENT
    }

    fn versions(&self) -> (Epoch, u64) {
        (Epoch(self.epoch.load(Ordering::SeqCst)), 0)
    }

    fn accept(&self, _: &Hello, _: PeerInfo) -> Option<((), Welcome)> {
        Some(((), Welcome { epoch: self.versions().0, namespace: 0, process: 0 }))
    }

    /// `Write` is the operation of its inode's number; its answer carries that number. The payload is checked.
    fn serve(&self, _: &mut (), call: &mut Call) {
        let (header, body, payload, reply) = call.parts();
        let Ok(Request::Data(DataRequest::Write { ino, .. })) = decode(body) else {
            return reply.fail(&Failure::Errno(Errno::INVAL));
        };
        if header.flags & NO_REPLY != 0 {
            self.posted.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if payload != patterned(ino.0, payload.len()) {
            return reply.fail(&Failure::Errno(Errno::IO));
        }
        self.seen.lock().unwrap().push(*header);
        let mut books = lock(&self.books);
        books.identities.entry(ino.0).or_default().insert(header.id);
        books.repeated += u32::from(header.attempt > 0);
        let (sequence, attempt) = (header.id.sequence, header.attempt);
        // Who has no identity is in no order.
        let slot = (header.id.session, header.id.slot);
        let known = books.slots.get(&slot).copied().filter(|_| header.id.session != 0);
        if known.is_some_and(|(s, a, _)| (s, a) >= (sequence, attempt)) {
            books.overtaken += 1;
            return reply.fail(&Refusal::Busy.into());
        }
        let mut is_done = known.is_some_and(|(s, _, done)| s == sequence && done);
        let refusal = self.refusals.lock().unwrap().pop_front();
        if refusal.is_none() && !is_done {
            *books.carried_out.entry(ino.0).or_default() += 1;
            is_done = true;
        }
        books.slots.insert(slot, (sequence, attempt, is_done));
        drop(books);
        match refusal {
            Some(refusal) => reply.fail(&refusal.into()),
            None => {
                let count = payload.len() as u32;
                reply.ok(&Reply::Data(DataReply::Written { before: ino.0, undo: 0, count }));
            }
        }
    }

    fn closed(&self, _: (), _: Parting) {}
}

impl Books {
    /// Each of these operations was carried out once, all its attempts under one identity.
    #[track_caller]
    pub fn assert_once(&self, operations: impl IntoIterator<Item = u64>) {
        for operation in operations {
            assert_eq!(self.carried_out.get(&operation), Some(&1), "{operation}");
            assert_eq!(
                self.identities[&operation].len(),
                1,
                "{operation}: {:?}",
                self.identities[&operation]
            );
        }
    }

    /// Whether an operation was carried out.
    pub fn has(&self, operation: u64) -> bool {
        self.carried_out.contains_key(&operation)
    }

    /// None was carried out twice.
    #[track_caller]
    pub fn assert_at_most_once(&self) {
        assert!(self.carried_out.values().all(|times| *times == 1), "{:?}", self.carried_out);
    }
}

/// A server with a proxy before it.
pub struct Remote {
    pub ledger: Arc<Ledger>,
    pub server: Option<Server>,
    pub proxy: FaultProxy,
    pub endpoint: Endpoint,
}

impl Remote {
    pub fn new(seed: u64) -> Remote {
        Remote::with_books(seed, Arc::default())
    }

    pub fn with_books(seed: u64, books: Arc<Mutex<Books>>) -> Remote {
        let ledger = Ledger::new(books);
        let server = serve(&ledger);
        let (proxy, endpoint) = proxied(&loopback(), &server.local_addrs()[0], seed);
        Remote { ledger, server: Some(server), proxy, endpoint }
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.ledger.books)
    }

    pub fn stop(&mut self) {
        self.server = None;
    }

    pub fn restart(&mut self) {
        let server = serve(&self.ledger);
        self.proxy.redirect(address(&server.local_addrs()[0]));
        self.server = Some(server);
    }
}

fn serve(ledger: &Arc<Ledger>) -> Server {
    Server::start(ledger.clone(), vec![loopback()], ServerOptions::default()).unwrap()
}

/// A sender that repeats requests for so many milliseconds.
pub struct Asker<const PATIENCE: u64> {
    key: Key,
    map: RwLock<Arc<Map>>,
    endpoints: Vec<Endpoint>,
    idle: Mutex<HashMap<ServerId, Vec<Lane>>>,
    slots: AtomicU32,
    gone: Refusals,
    absences: Absences,
    pub closing: AtomicBool,
    /// It may not send its requests any more.
    pub replaced: AtomicBool,
    /// Links were cut, and are there again.
    pub relinked: AtomicBool,
    /// Learnt when it asks for the newest map.
    pub newest: Mutex<Option<Map>>,
    /// Called before each new connection, with its number.
    pub connecting: Option<Box<dyn Fn(u32) + Sync>>,
}

/// Gets an answer, if there is one to be had.
pub type Patient = Asker<60_000>;
/// Gives up soon.
pub type Hasty = Asker<300>;

impl<const PATIENCE: u64> Asker<PATIENCE> {
    /// Of servers that are reached at these endpoints.
    pub fn new(endpoints: &[&Endpoint]) -> Asker<PATIENCE> {
        Asker {
            key: key(1),
            map: RwLock::new(Arc::new(map(endpoints.len() as u16))),
            endpoints: endpoints.iter().map(|endpoint| (*endpoint).clone()).collect(),
            idle: Mutex::default(),
            slots: AtomicU32::new(1),
            gone: Refusals::default(),
            absences: Absences::default(),
            closing: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            relinked: AtomicBool::new(false),
            newest: Mutex::default(),
            connecting: None,
        }
    }

    pub fn with_key(endpoint: &Endpoint, key: Key) -> Asker<PATIENCE> {
        Asker { key, ..Asker::new(&[endpoint]) }
    }

    /// One operation.
    pub fn ask(&self, to: To, operation: u64) -> Result<Answered, Failure> {
        let (body, payload) = (operation_request(operation), patterned(operation, PAYLOAD));
        let message = Message { body: &body, payload: &[IoSlice::new(&payload)], watch: None };
        call(self, to, &message, &mut [])
    }

    /// One operation that has to be carried out.
    #[track_caller]
    pub fn done(&self, to: To, operation: u64) {
        assert_answers(self.ask(to, operation), operation);
    }

    /// Operations at once.
    pub fn ask_each(&self, operations: &[(To, u64)]) -> Vec<Result<Answered, Failure>> {
        let payloads: Vec<_> = operations.iter().map(|(_, op)| patterned(*op, PAYLOAD)).collect();
        let job =
            |((to, op), payload): (&(To, u64), _)| Job::new(*to, operation_request(*op), payload, &mut []);
        let mut jobs: Vec<_> = operations.iter().zip(payloads.iter().map(|p| &p[..])).map(job).collect();
        call_each(self, &mut jobs);
        jobs.iter_mut().map(Job::take).collect()
    }
}

pub const PAYLOAD: usize = 40;

pub fn operation_request(operation: u64) -> Vec<u8> {
    encoded(DataRequest::Write { ino: Ino(operation), offset: 0, sync: false })
}

#[track_caller]
pub fn assert_answers(answered: Result<Answered, Failure>, operation: u64) {
    let reply = answered.map(|answered| answered.reply);
    let expected = DataReply::Written { before: operation, undo: 0, count: PAYLOAD as u32 };
    assert_eq!(reply, Ok(Reply::Data(expected)));
}

impl<const PATIENCE: u64> Requester for Asker<PATIENCE> {
    type Link = Lane;
    type MapRef<'c> = Arc<Map>;
    type To = To;
    const BUDGET: Budget = Budget {
        connect: Duration::from_secs(2),
        silence: Duration::from_millis(50),
        patience: Duration::from_millis(PATIENCE),
        ..Budget::CLIENT
    };

    fn map(&self) -> Arc<Map> {
        self.map.read().unwrap().clone()
    }

    fn learn(&self, news: News) {
        let mut map = self.map.write().unwrap();
        if let Some(newer) = news.added_to(&map) {
            self.absences.note(&newer, monotonic());
            *map = Arc::new(newer);
        }
    }

    fn refresh(&self) {
        if let Some(newest) = self.newest.lock().unwrap().take() {
            self.learn(News::Whole(Box::new(newest)));
        }
    }

    fn stands(&self, _: To) -> bool {
        !self.replaced.load(Ordering::SeqCst)
    }

    fn is_lost(&self, _: ServerId, _: Instant) -> bool {
        self.relinked.load(Ordering::SeqCst)
    }

    fn asks(state: ServerState) -> bool {
        state == ServerState::Up
    }

    fn take(&self, server: ServerId, map: &Map) -> Result<Lane, TransportError> {
        if let Some(lane) = lock(&self.idle).get_mut(&server).and_then(Vec::pop) {
            return Ok(lane);
        }
        let slot = self.slots.fetch_add(1, Ordering::SeqCst);
        if let Some(connecting) = &self.connecting {
            connecting(slot);
        }
        let endpoint = &self.endpoints[usize::from(server.0)];
        let connected =
            Connection::connect(endpoint, &self.key, map.deployment, Role::Control, &Self::BUDGET.options(0));
        self.gone.note(Peer::Server(server), &connected);
        Ok(Lane::new(connected?.0, slot))
    }

    fn give(&self, server: ServerId, lane: Lane) {
        if Self::works(&lane) {
            lock(&self.idle).entry(server).or_default().push(lane);
        }
    }

    fn works(lane: &Lane) -> bool {
        !lane.connection.is_broken()
    }

    fn lane(lane: &mut Lane) -> &mut Lane {
        lane
    }

    fn session(&self) -> Result<u64, TransportError> {
        Ok(9)
    }

    fn refused(&self, _: ServerId, refusal: &Refusal) -> Refused {
        match refusal {
            Refusal::OldServer | Refusal::Busy => Refused::Repeat,
            _ => Refused::HandOver,
        }
    }

    fn is_gone(&self, server: ServerId) -> bool {
        self.gone.is_gone(Peer::Server(server))
    }

    fn is_missed(&self, server: ServerId) -> bool {
        self.absences.lasts(server, monotonic()).is_some_and(|lasts| lasts >= GONE)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}

/// A map of so many servers that are up. The first holds all shards.
pub fn map(servers: u16) -> Map {
    let server = |id| bivouac_layout::map::Server {
        id: ServerId(id),
        node: NodeId(0),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        state: ServerState::Up,
        joined: 0,
        former: Vec::new(),
    };
    let nodes =
        vec![Node { id: NodeId(0), host: "here".into(), agent: (Ipv4Addr::LOCALHOST, 1).into(), domain: 0 }];
    let founding = Founding::new(DEPLOYMENT, "/m", nodes, (0..servers).map(server).collect());
    let map = founding.map().expect("a map");
    Map { shards: vec![ServerId(0); SHARDS.into()], ..map }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
