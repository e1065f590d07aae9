//! A cluster of stores in one process, with data servers that are plain memory, and faults on demand.
#![allow(missing_docs)]

pub mod client;
mod stripes;

use bivouac_layout::{
    Founding, Group, Ino, Map, MapChange, Node, NodeId, Piece, Server, ServerId, ServerState,
};
use bivouac_meta::source::{SourceFile, copy_pieces};
use bivouac_meta::{MetaStore, Options, Outside, Standing};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::lazy::{FetchReply, FetchRequest, Unfetchable};
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::restripe::{RestripeReply, RestripeRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Reply, Time};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

pub const DEPLOYMENT: u64 = 0xb1;
pub const BLOCK: u32 = 8192;

/// What a panicking server leaves.
pub struct Crash(pub ServerId);

pub type Store = MetaStore;

pub struct Cluster {
    pub inner: Arc<Inner>,
}

pub struct Inner {
    map: RwLock<Arc<Map>>,
    /// What servers take for the map that have not heard of a newer one.
    pub stale: Mutex<HashMap<ServerId, Arc<Map>>>,
    /// Servers that cannot be reached.
    pub cut_off: Mutex<Vec<ServerId>>,
    /// Parts of images that were sent.
    pub images: AtomicUsize,
    /// Names with `spoilme` in them arrive otherwise at copies.
    pub spoils: AtomicBool,
    /// Somebody makes the others take over already.
    failing_over: Mutex<()>,
    dir: tempfile::TempDir,
    options: Options,
    stores: Vec<RwLock<Option<Arc<Store>>>>,
    pub data: Vec<Mutex<HashMap<Ino, SubFile>>>,
    clock: AtomicI64,
    /// Calls of servers to what is outside of them, so far.
    pub calls: AtomicUsize,
    /// At this call its server crashes (only that of `victim`, if any is named).
    pub crash_at: AtomicUsize,
    pub victim: Mutex<Option<ServerId>>,
    /// These servers do not see the backend.
    pub blind: Mutex<Vec<ServerId>>,
    /// This data server (`None`: each) answers so.
    pub data_fault: Mutex<Option<(Option<ServerId>, Errno)>>,
    /// The storage of this data server fails its part of steps.
    pub excused: Mutex<Option<ServerId>>,
    /// Copies of which the controller was to hear that they cannot be relied on.
    pub distrusted: Mutex<Vec<(Group, ServerId)>>,
    /// This data server dies when it is asked for a length. As long as the map has it, the others leave out what they have
    /// behind this many bytes, which it would count.
    pub dies_asked: Mutex<Option<(ServerId, u64)>>,
    /// The next data request tells that it is there, and waits for leave to go on.
    pub data_pause: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    /// So many bytes can still be written to each data server.
    pub room: AtomicUsize,
    /// The server that writes data next dies when it is written.
    pub crash_after_write: AtomicBool,
    pub data_requests: Mutex<Vec<(ServerId, DataRequest)>>,
}

#[derive(Clone, Default)]
pub struct SubFile {
    pub bytes: Vec<u8>,
    pub written: Time,
}

impl Cluster {
    pub fn new(servers: u16) -> Cluster {
        Cluster::with(servers, |_| {})
    }

    pub fn with(servers: u16, change: impl FnOnce(&mut Options)) -> Cluster {
        Cluster::with_map(servers, change, |_| {})
    }

    pub fn with_map(
        servers: u16,
        change: impl FnOnce(&mut Options),
        change_map: impl FnOnce(&mut Map),
    ) -> Cluster {
        let ids: Vec<ServerId> = (0..servers).map(ServerId).collect();
        // Each on a node of its own.
        let agent = ([127, 0, 0, 1], 1).into();
        let node = |id: &ServerId| Node { id: NodeId(id.0), host: format!("node{id}"), agent, domain: id.0 };
        let server = |id: &ServerId| Server {
            id: *id,
            node: NodeId(id.0),
            address: ([127, 0, 0, 1], 1).into(),
            state: ServerState::Up,
            joined: 0,
            former: Vec::new(),
        };
        let (nodes, servers) = (ids.iter().map(node).collect(), ids.iter().map(server).collect());
        let founding = Founding::new(DEPLOYMENT, "/bivouac", nodes, servers);
        let mut map = Founding { block_size: BLOCK, ..founding }.map().unwrap();
        change_map(&mut map);
        map.check().unwrap();
        let mut options = Options {
            patience: Duration::from_secs(2),
            grace: Duration::ZERO,
            resumption: Duration::from_secs(1000),
            intent_age: Duration::ZERO,
            background: false,
            ..Options::new(DEPLOYMENT)
        };
        change(&mut options);
        let base = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let inner = Arc::new(Inner {
            map: RwLock::new(Arc::new(map)),
            stale: Mutex::default(),
            cut_off: Mutex::default(),
            images: AtomicUsize::new(0),
            spoils: AtomicBool::new(false),
            failing_over: Mutex::new(()),
            dir: tempfile::tempdir_in(base).unwrap(),
            options,
            stores: ids.iter().map(|_| RwLock::new(None)).collect(),
            data: ids.iter().map(|_| Mutex::default()).collect(),
            clock: AtomicI64::new(1_000_000_000_000),
            calls: AtomicUsize::new(0),
            crash_at: AtomicUsize::new(usize::MAX),
            victim: Mutex::new(None),
            blind: Mutex::default(),
            data_fault: Mutex::new(None),
            excused: Mutex::default(),
            distrusted: Mutex::default(),
            dies_asked: Mutex::default(),
            data_pause: Mutex::new(None),
            room: AtomicUsize::new(usize::MAX),
            crash_after_write: AtomicBool::new(false),
            data_requests: Mutex::default(),
        });
        let cluster = Cluster { inner };
        for id in &ids {
            bivouac_meta::make_directory(&cluster.dir(*id)).unwrap();
            cluster.start(*id);
        }
        for id in ids {
            cluster.store(id).unwrap().adopt(cluster.inner.map().shards_of(id)).unwrap();
        }
        cluster.inner.follow();
        cluster
    }

    /// A cluster whose metadata has several copies.
    pub fn replicated(servers: u16, copies: u16) -> Cluster {
        Cluster::replicated_with(servers, copies, |_| {})
    }

    pub fn replicated_with(servers: u16, copies: u16, change: impl FnOnce(&mut Options)) -> Cluster {
        Cluster::with_map(
            servers,
            |options| {
                options.patience = Duration::from_millis(100);
                change(options);
            },
            |map| replicate(map, servers, copies),
        )
    }

    /// One whose blocks have several copies, too.
    pub fn replicated_with_blocks(servers: u16, copies: u16) -> Cluster {
        let patience = |options: &mut Options| options.patience = Duration::from_millis(100);
        Cluster::with_map(servers, patience, |map| {
            replicate(map, servers, copies);
            map.replicas = copies as u8;
        })
    }

    /// Starts a server that was declared down, gives it what it missed, and takes it in again.
    pub fn come_back(&self, id: ServerId) {
        self.start(id);
        self.inner.set_state(id, ServerState::Joining);
        self.inner.set_state(id, ServerState::Up);
        self.inner.follow();
        for store in self.stores() {
            store.peer(id, &PeerRequest::CatchUp).unwrap();
        }
        self.is_in_step(id);
    }

    /// A server has caught up.
    pub fn is_in_step(&self, id: ServerId) {
        let groups = self.inner.map().replicated().collect();
        self.inner.change(&MapChange::InStep { servers: vec![(id, groups)] });
        self.inner.follow();
    }

    /// All copies of all shards are equal.
    pub fn check_copies(&self) {
        let stores = self.stores();
        let map = self.inner.map();
        for store in &stores {
            // What nobody waits for goes, too.
            map.servers
                .iter()
                .filter(|s| s.state == ServerState::Up)
                .for_each(|s| drop(store.peer(s.id, &PeerRequest::CatchUp).unwrap()));
        }
        for shard in (0..bivouac_layout::SHARDS).map(bivouac_layout::ShardId) {
            let holders = self.inner.holders_of(shard);
            let images: Vec<_> =
                holders.iter().map(|id| self.store(*id).unwrap().image(shard).expect("held")).collect();
            for (image, holder) in images.iter().zip(&holders).skip(1) {
                let differs = image.iter().zip(&images[0]).find(|(here, there)| here != there);
                let lengths = (image.len(), images[0].len());
                assert!(
                    *image == images[0],
                    "{shard:?} on {holder} and on {}: {lengths:?} {differs:?}",
                    holders[0]
                );
            }
        }
    }

    pub fn dir(&self, id: ServerId) -> PathBuf {
        self.inner.dir.path().join(format!("server-{id}"))
    }

    pub fn store(&self, id: ServerId) -> Option<Arc<Store>> {
        self.inner.store(id)
    }

    pub fn stores(&self) -> Vec<Arc<Store>> {
        self.inner.map().servers.iter().filter_map(|s| self.store(s.id)).collect()
    }

    /// Takes a server away, as a crash does: memory is lost, the log is as it is.
    pub fn kill(&self, id: ServerId) {
        let store = self.inner.stores[id.0 as usize].write().unwrap().take();
        if let Some(store) = store {
            // Handlers on other threads may still hold it for a moment.
            bivouac_testing::eventually("nobody uses the store", || Arc::strong_count(&store) == 1);
        }
    }

    /// Starts a server on its logs.
    pub fn start(&self, id: ServerId) {
        let port = Port { inner: Arc::downgrade(&self.inner), me: id };
        let store = MetaStore::open(&self.dir(id), self.inner.options.clone(), port).unwrap();
        *self.inner.stores[id.0 as usize].write().unwrap() = Some(Arc::new(store));
    }

    pub fn restart(&self, id: ServerId) {
        self.kill(id);
        self.start(id);
        self.store(id).unwrap().recover();
    }

    /// Starts whoever is down, then lets all finish what they have under way.
    pub fn heal(&self) {
        self.inner.crash_at.store(usize::MAX, Ordering::SeqCst);
        for server in &self.inner.map().servers {
            if self.store(server.id).is_none() {
                self.start(server.id);
            }
        }
        for _ in 0..2 {
            self.stores().iter().for_each(|store| store.recover());
        }
    }

    /// Kills and starts all, and lets each finish what it has under way until clients may look again. Says
    /// whether they had to wait.
    pub fn resume(&self) -> bool {
        self.inner.crash_at.store(usize::MAX, Ordering::SeqCst);
        let map = self.inner.map();
        let servers = || map.servers.iter().map(|server| server.id);
        servers().for_each(|id| self.kill(id));
        servers().for_each(|id| self.start(id));
        let resumed = || self.stores().iter().all(|store| store.has_resumed());
        let had_to_wait = !resumed();
        let mut passes = 0;
        while !resumed() {
            assert!(passes < 2, "clients still have to wait");
            self.stores().iter().for_each(|store| store.recover());
            passes += 1;
        }
        had_to_wait
    }

    /// Crashes the server that makes the `n`-th call from now (the first is 0).
    pub fn crash_at(&self, n: usize) {
        self.inner.calls.store(0, Ordering::SeqCst);
        self.inner.crash_at.store(n, Ordering::SeqCst);
    }

    pub fn tick(&self, nanoseconds: i64) {
        self.inner.clock.fetch_add(nanoseconds, Ordering::SeqCst);
    }

    pub fn now(&self) -> Time {
        self.inner.clock.load(Ordering::SeqCst)
    }

    /// What the data servers hold of a file, put together.
    pub fn holders(&self, ino: Ino) -> Vec<ServerId> {
        self.inner
            .map()
            .servers
            .iter()
            .map(|s| s.id)
            .filter(|id| self.inner.data[id.0 as usize].lock().unwrap().contains_key(&ino))
            .collect()
    }

    pub fn requests(&self) -> Vec<(ServerId, DataRequest)> {
        std::mem::take(&mut *self.inner.data_requests.lock().unwrap())
    }
}

fn replicate(map: &mut Map, servers: u16, copies: u16) {
    let next = |first: ServerId| (0..copies).map(move |n| ServerId((first.0 + n) % servers));
    map.shards = map.shards.iter().copied().flat_map(next).collect();
    map.copies = copies as u8;
}

impl Inner {
    pub fn map(&self) -> Arc<Map> {
        self.map.read().unwrap().clone()
    }

    /// The servers that have all of a shard, the one that answers for it first.
    pub fn holders_of(&self, shard: bivouac_layout::ShardId) -> Vec<ServerId> {
        self.map().serving(Group::Shard(shard)).collect()
    }

    /// The server that answers for a shard while all are well.
    pub fn home(&self, shard: bivouac_layout::ShardId) -> ServerId {
        self.map().holders(Group::Shard(shard)).all()[0]
    }

    /// The server to ask about a shard.
    pub fn primary(&self, shard: bivouac_layout::ShardId) -> ServerId {
        self.map().primary(shard)
    }

    /// What the controller does.
    pub fn set_state(&self, id: ServerId, state: ServerState) {
        if self.map().server(id).unwrap().state != state {
            self.change(&MapChange::State { server: id, state });
        }
    }

    pub fn set_map(&self, map: Map) {
        map.check().unwrap();
        *self.map.write().unwrap() = Arc::new(map);
    }

    pub fn change(&self, change: &MapChange) {
        let mut held = self.map.write().unwrap();
        *held = Arc::new(change.apply(&held).unwrap());
    }

    /// Declares the dead down, where the metadata has copies.
    fn declare(&self) {
        let map = self.map();
        for server in map.servers.iter().filter(|_| map.copies > 1) {
            if self.store(server.id).is_none() {
                self.set_state(server.id, ServerState::Down);
            }
        }
    }

    /// Declares the dead down, and lets the others take over.
    pub fn failover(&self) {
        self.declare();
        if self.map().copies > 1 {
            let _alone = self.failing_over.lock().unwrap();
            self.follow();
        }
    }

    /// What the background threads do.
    pub fn keep(&self) {
        for server in &self.map().servers {
            if self.store(server.id).is_some() {
                let kept = self.serve(server.id, |store| {
                    store.keep();
                    Ok(())
                });
                assert!(kept.is_ok() || self.store(server.id).is_none());
            }
        }
    }

    /// Lets all do what the map says.
    pub fn follow(&self) {
        for _ in 0..10 {
            let epoch = self.map().epoch;
            let mut all = true;
            for server in &self.map().servers {
                if self.store(server.id).is_some() {
                    all &= self.serve(server.id, |store| Ok(store.follow())).unwrap_or(false);
                    self.declare();
                }
            }
            if all && self.map().epoch == epoch {
                return;
            }
        }
    }

    pub fn store(&self, id: ServerId) -> Option<Arc<Store>> {
        self.stores[id.0 as usize].read().unwrap().clone()
    }

    /// Runs a server's handler; when the server crashes in it, it is gone and its caller sees EIO.
    pub fn serve<T>(
        &self,
        id: ServerId,
        work: impl FnOnce(&Store) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(store) = self.store(id) else { return Err(Errno::IO.into()) };
        let result = catch_unwind(AssertUnwindSafe(|| work(&store)));
        drop(store);
        match result {
            Ok(result) => result,
            Err(panic) => match panic.downcast::<Crash>() {
                Ok(crash) => {
                    if crash.0 != id {
                        resume_unwind(crash);
                    }
                    self.stores[id.0 as usize].write().unwrap().take();
                    Err(Errno::IO.into())
                }
                Err(other) => resume_unwind(other),
            },
        }
    }
}

/// What one store sees of the cluster.
pub struct Port {
    inner: Weak<Inner>,
    me: ServerId,
}

impl Port {
    /// Of no cluster: for stores that do not get as far as to ask.
    pub fn nowhere() -> Port {
        Port { inner: Weak::new(), me: ServerId(0) }
    }

    fn inner(&self) -> Arc<Inner> {
        let inner = self.inner.upgrade().expect("the cluster outlives its calls");
        let victim = *inner.victim.lock().unwrap();
        if !std::thread::panicking() && victim.is_none_or(|v| v == self.me) {
            let call = inner.calls.fetch_add(1, Ordering::SeqCst);
            if call == inner.crash_at.load(Ordering::SeqCst) {
                resume_unwind(Box::new(Crash(self.me)));
            }
        }
        inner
    }
}

impl Outside for Port {
    fn map(&self) -> Arc<Map> {
        let inner = self.inner();
        let stale = inner.stale.lock().unwrap().get(&self.me).cloned();
        stale.unwrap_or_else(|| inner.map())
    }

    fn me(&self) -> ServerId {
        self.me
    }

    fn peer(&self, server: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        assert_ne!(server, self.me);
        let inner = self.inner();
        // Over the wire and back.
        let mut encoded = Vec::new();
        bivouac_proto::encode(request, &mut encoded);
        assert!(encoded.len() <= bivouac_proto::header::MAX_BODY as usize);
        if inner.spoils.load(Ordering::SeqCst) && matches!(request, PeerRequest::Ship { .. }) {
            for at in 0..encoded.len().saturating_sub(7) {
                if encoded[at..].starts_with(b"spoilme") {
                    encoded[at + 5] = b'M';
                }
            }
        }
        let request: PeerRequest<'_> = bivouac_proto::decode(&encoded).unwrap();
        if inner.cut_off.lock().unwrap().iter().any(|off| [server, self.me].contains(off)) {
            return Err(Errno::IO.into());
        }
        if matches!(request, PeerRequest::Image { .. }) {
            inner.images.fetch_add(1, Ordering::SeqCst);
        }
        let answer = inner.serve(server, |store| store.peer(self.me, &request));
        if inner.store(server).is_none() && inner.map().copies > 1 {
            inner.declare();
            std::thread::spawn(move || inner.failover());
        }
        answer
    }

    fn stands(&self, standing: Standing) -> bool {
        self.map().primary_of(standing.group) == Some(self.me)
    }

    /// One that dies of it is asked last.
    fn data_each(
        &self,
        _: Option<Standing>,
        layout: u32,
        requests: &[(ServerId, DataRequest)],
    ) -> Vec<Result<DataReply, Errno>> {
        let dying = self.inner().dies_asked.lock().unwrap().map(|(server, _)| server);
        let mut answers: Vec<Option<Result<DataReply, Errno>>> = vec![None; requests.len()];
        for dies in [false, true] {
            for ((server, request), answer) in requests.iter().zip(&mut answers) {
                if dies == (Some(*server) == dying) {
                    *answer = Some(self.data(None, (*server, layout), request, &[], &mut []));
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    fn copied(
        &self,
        _: Standing,
        (group, layout): (Group, u32),
        request: &DataRequest,
        payload: &[u8],
    ) -> Result<DataReply, Errno> {
        let holders = self.map().holders(group);
        let made =
            holders.all().iter().map(|holder| self.data(None, (*holder, layout), request, payload, &mut []));
        made.collect::<Result<Vec<_>, _>>()?.pop().ok_or(Errno::IO)
    }

    fn data(
        &self,
        _: Option<Standing>,
        (server, _): (ServerId, u32),
        request: &DataRequest,
        payload: &[u8],
        _: &mut [u8],
    ) -> Result<DataReply, Errno> {
        let inner = self.inner();
        inner.data_requests.lock().unwrap().push((server, *request));
        let pause = inner.data_pause.lock().unwrap().take();
        if let Some((here, leave)) = pause {
            here.send(()).unwrap();
            leave.recv().unwrap();
        }
        if let Some((at, errno)) = *inner.data_fault.lock().unwrap()
            && at.is_none_or(|at| at == server)
        {
            return Err(errno);
        }
        let mut counted = usize::MAX;
        if let (Some((dying, all)), DataRequest::Extent { .. }) = (*inner.dies_asked.lock().unwrap(), request)
        {
            if server == dying {
                inner.set_state(dying, ServerState::Down);
                return Err(Errno::IO);
            }
            if inner.map().is_up(dying) {
                counted = all as usize;
            }
        }
        let now = inner.clock.load(Ordering::SeqCst);
        let mut files = inner.data[server.0 as usize].lock().unwrap();
        match *request {
            DataRequest::Write { ino, offset, .. } => {
                let room = inner.room.load(Ordering::SeqCst);
                let payload = &payload[..payload.len().min(room)];
                inner.room.store(room - payload.len(), Ordering::SeqCst);
                let file = files.entry(ino).or_default();
                let before = file.bytes.len() as u64;
                let end = offset as usize + payload.len();
                file.bytes.resize(file.bytes.len().max(end), 0);
                file.bytes[offset as usize..end].copy_from_slice(payload);
                file.written = now;
                drop(files);
                if inner.crash_after_write.swap(false, Ordering::SeqCst) {
                    resume_unwind(Box::new(Crash(self.me)));
                }
                Ok(DataReply::Written { count: payload.len() as u32, before, undo: 0 })
            }
            DataRequest::Extent { ino } => Ok(match files.get(&ino) {
                None => DataReply::Extent { length: 0, allocated: 0, written: None },
                Some(file) => DataReply::Extent {
                    length: file.bytes.len().min(counted) as u64,
                    // Pages of zeros are holes.
                    allocated: file
                        .bytes
                        .chunks(4096)
                        .filter(|page| page.iter().any(|byte| *byte != 0))
                        .count() as u64
                        * 4096,
                    written: Some(bivouac_proto::data::LastWrite {
                        age: (now - file.written) as u64,
                        at: file.written,
                    }),
                },
            }),
            DataRequest::Truncate { ino, size, extend, .. } => {
                if extend {
                    let file = files.entry(ino).or_default();
                    file.bytes.resize(size as usize, 0);
                } else if let Some(file) = files.get_mut(&ino) {
                    file.bytes.truncate(size as usize);
                }
                Ok(DataReply::Truncated { exists: files.contains_key(&ino) })
            }
            DataRequest::Remove { ino } => {
                files.remove(&ino);
                Ok(DataReply::Written { count: 0, before: 0, undo: 0 })
            }
            DataRequest::Close { .. } | DataRequest::Open { .. } => Ok(DataReply::Done),
            other => panic!("a store has no use for {other:?}"),
        }
    }

    fn restripe(
        &self,
        _: Standing,
        servers: &[ServerId],
        request: &RestripeRequest,
    ) -> Vec<Result<RestripeReply, Failure>> {
        let ask = |server: &ServerId| {
            // It may be the last thing that happens.
            let inner = self.inner();
            let fault = *inner.data_fault.lock().unwrap();
            if let Some((at, errno)) = fault
                && at.is_none_or(|at| at == *server)
            {
                return Err(errno.into());
            }
            if *inner.excused.lock().unwrap() == Some(*server) {
                return Ok(RestripeReply::Excused);
            }
            inner.restripe(*server, request).map_err(Failure::Errno)
        };
        servers.iter().map(ask).collect()
    }

    fn fetch(
        &self,
        standing: Standing,
        servers: &[ServerId],
        request: &FetchRequest,
    ) -> Vec<Result<FetchReply, Failure>> {
        let fetch = |server: &ServerId| {
            let map = self.map();
            assert!(request.layout.is_valid(&map) && request.epoch == map.epoch);
            if self.inner().blind.lock().unwrap().contains(server) {
                return Ok(Err(Unfetchable { errno: Errno::IO, why: "not here".into(), unseen: true }));
            }
            let write = |piece: &Piece, bytes: &[u8]| {
                let write = DataRequest::Write { ino: request.ino, offset: piece.offset, sync: false };
                match self.write(standing, (piece, request.layout.version), &write, bytes)? {
                    DataReply::Written { count, .. } if count as usize == bytes.len() => Ok(()),
                    _ => Err(Errno::NOSPC.into()),
                }
            };
            let is_its = |piece: &Piece| piece.server == *server;
            let range = request.start..request.end;
            Ok(SourceFile::open(&request.source)
                .and_then(|file| copy_pieces(&file, (&request.layout, &map), range, is_its, write)))
        };
        servers.iter().map(fetch).collect()
    }

    fn distrust(&self, group: Group, holder: ServerId) {
        self.inner().distrusted.lock().unwrap().push((group, holder));
    }

    fn now(&self) -> Time {
        self.inner().clock.fetch_add(1, Ordering::SeqCst)
    }
}
