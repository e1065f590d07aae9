//! The store's interface: opening, serving, closing.

use crate::answers::repeated;
use crate::error::{LogError, OpenError};
use crate::fetches::{FETCHERS, Fetches};
use crate::grace::Grace;
use crate::handover;
use crate::inode::Inode;
use crate::keeper::{Keeper, Of};
use crate::locking::Locking;
use crate::moves::Moves;
use crate::outside::{Observer, Outside};
use crate::partition::{LockedShard, Logs, Partitions};
use crate::restripe::AtWork;
use crate::resumption::Resumption;
use crate::teller::Teller;
use bivouac_layout::{Ino, NodeId, ServerId, ServerState, ShardId, Template};
use bivouac_proto::auth::Credentials;
use bivouac_proto::control::FileLoss;
use bivouac_proto::header::RequestId;
use bivouac_proto::meta::{Change, MetaReply, MetaRequest};
use bivouac_proto::peer::PeerRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Time};
use rustix::fs::FlockOperation;
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The sender of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// For permission checks.
    pub credentials: Credentials,
    /// The machine that it asks from; [`NodeId::NONE`] where that is unknown.
    pub node: NodeId,
    /// Identity of the request: with a session other than 0, a repeated request is answered and not done
    /// again.
    pub id: RequestId,
    /// The shard that the request's header names.
    pub shard: ShardId,
    /// What the request has done that its sender is to hear besides the reply.
    pub change: Cell<Change>,
}

/// How a store works.
#[derive(Clone)]
pub struct Options {
    /// The deployment; logs of others are refused.
    pub deployment: u64,
    /// How long an operation waits for another that holds what it needs, before it is refused with `Busy`.
    pub patience: Duration,
    /// For how long after the opening of a store the agents of all nodes are waited for to say what is open,
    /// before unlinked files are removed and sizes are settled.
    pub grace: Duration,
    /// For how long after the opening clients may be kept waiting until interrupted operations over several
    /// servers are finished ([`MetaStore::has_resumed`]).
    pub resumption: Duration,
    /// How long an intent may be prepared before its coordinator is asked what became of it.
    pub intent_age: Duration,
    /// Run the background threads: the keeper (see [`MetaStore::keep`]), the teller and the compactor. Without
    /// them, participants of a removal are told before the client is answered, and a request that finds a log
    /// too long compacts it.
    pub background: bool,
    /// Compact a log at this length, bytes, rather than at the default (for tests).
    pub compact_at: Option<u64>,
    /// Is told of changes.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Options {
    /// The usual options for a deployment.
    pub fn new(deployment: u64) -> Options {
        Options {
            deployment,
            patience: Duration::from_secs(10),
            // Less than the patience of clients: who asks for a lock is not to get an error for it.
            grace: Duration::from_secs(20),
            resumption: Duration::from_secs(1),
            intent_age: Duration::from_secs(2),
            background: true,
            compact_at: None,
            observer: None,
        }
    }
}

/// How much a store holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Inodes, directories included.
    pub inodes: u64,
    /// Open file descriptions.
    pub opens: u64,
    /// Length of all logs, bytes.
    pub log_bytes: u64,
    /// Lazy files of the shards that the server answers for, and their bytes.
    pub lazy: (u64, u64),
    /// Those of them that could not be fetched when that was tried last, since the server's start.
    pub unfetchable: u64,
}

/// The metadata of one server: its shards, with everything that they own.
///
/// All methods may be called from many threads at once. A change that was acknowledged survives the death of
/// the process at any moment.
pub struct MetaStore {
    pub(crate) core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

/// What the operations work on. They are its methods, in a module for each family.
pub(crate) struct Core {
    pub partitions: Partitions,
    pub outside: Arc<dyn Outside>,
    pub patience: Duration,
    pub intent_age: Duration,
    /// Longest time in which agents tell what is open, after a start or a take-over.
    pub grace: Duration,
    /// Held while shards are taken over.
    pub following: Mutex<()>,
    /// By the map of this epoch shards were let go that others answer for.
    pub let_go_by: AtomicU64,
    /// By the map of this epoch the locks of nodes that are away have ended.
    pub ended_away_by: AtomicU64,
    pub keeper: Arc<Keeper>,
    pub resumption: Resumption,
    pub teller: Teller,
    /// Whether the teller's thread runs.
    pub tells_later: bool,
    pub locking: Locking,
    /// Which start of the server this is.
    pub start: u64,
    pub moves: Moves,
    pub at_work: AtWork,
    pub fetches: Fetches,
    /// Whether threads fetch lazy files, and not who asks for them.
    pub fetches_later: bool,
    /// Held as long as the store is open, so that no second server opens it.
    _exclusive: File,
}

/// Makes the directory for a new store; an existing one stays as it is. To be called once, when a server's
/// storage is made: if the directory is missing later, that is a loss, and [`Replayed::open`] does not make
/// it anew.
pub fn make_directory(dir: &Path) -> Result<(), OpenError> {
    std::fs::create_dir_all(dir).map_err(OpenError::io(dir))
}

/// A store whose logs were read, so that losses are known before the rest of the deployment has started.
#[derive(Debug)]
pub struct Replayed {
    dir: PathBuf,
    logs: Logs,
    exclusive: File,
}

impl Replayed {
    /// Reads the logs in `dir`, which [`make_directory`] made. Logs that never were are made; what was there
    /// and is gone or shorter is an error.
    pub fn open(dir: &Path, deployment: u64) -> Result<Replayed, OpenError> {
        let exclusive = File::open(dir).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => OpenError::NoDirectory(dir.into()),
            _ => OpenError::io(dir)(error),
        })?;
        match rustix::fs::flock(&exclusive, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::InUse(dir.into())),
            Err(error) => return Err(OpenError::io(dir)(error.into())),
        }
        Ok(Replayed { dir: dir.into(), logs: Logs::replay(dir, deployment)?, exclusive })
    }

    /// Takes the store into use. [`MetaStore::recover`] is to be called when other servers can be asked.
    pub fn serve(self, options: Options, outside: impl Outside) -> Result<MetaStore, OpenError> {
        let outside: Arc<dyn Outside> = Arc::new(outside);
        let (first, me) = (outside.map(), outside.me());
        let nodes = outside.map().reachable().collect();
        let grace = Arc::new(Grace::new(options.grace, nodes));
        let keeper = Arc::new(Keeper::new(Arc::clone(&grace)));
        let (patience, compact_at) = (options.patience, options.compact_at);
        let is_sole = |shard| handover::is_sole(&first, me, shard);
        let mut partitions =
            Partitions::new(self.logs, patience, grace, compact_at, &is_sole, Arc::clone(&keeper));
        partitions.shared = first.copies > 1;
        let starts = partitions.count_start().map_err(|e| OpenError::io(&self.dir)(e.into()))?;
        let moves = Moves::new(starts);
        if let Some(observer) = &options.observer {
            observer.namespace(moves.version());
        }
        partitions.observer = options.observer;
        partitions.compacts_later = options.background;
        partitions.outside = Some(Arc::clone(&outside));
        let core = Core {
            keeper,
            resumption: Resumption::new(options.resumption),
            teller: Teller::default(),
            tells_later: options.background,
            locking: Locking::default(),
            start: starts,
            patience: options.patience,
            intent_age: options.intent_age,
            grace: options.grace,
            following: Mutex::default(),
            let_go_by: AtomicU64::new(0),
            ended_away_by: AtomicU64::new(0),
            moves,
            at_work: AtWork::default(),
            fetches: Fetches::default(),
            fetches_later: options.background,
            partitions,
            outside,
            _exclusive: self.exclusive,
        };
        core.find_work();
        let core = Arc::new(core);
        let mut store = MetaStore { core, threads: Vec::new() };
        if options.background {
            let keep = |core: &Core| core.keep_always(Of::Names);
            store.start("meta-keeper", keep).map_err(OpenError::io(&self.dir))?;
            let keep = |core: &Core| core.keep_always(Of::Blocks);
            store.start("meta-blocks", keep).map_err(OpenError::io(&self.dir))?;
            store.start("meta-teller", Core::tell_always).map_err(OpenError::io(&self.dir))?;
            let compact = |core: &Core| core.partitions.compact_always();
            store.start("meta-compactor", compact).map_err(OpenError::io(&self.dir))?;
            for _ in 0..FETCHERS {
                store.start("meta-fetcher", Core::fetch_always).map_err(OpenError::io(&self.dir))?;
            }
        }
        Ok(store)
    }
}

impl MetaStore {
    /// [`Replayed::open`] and then [`Replayed::serve`].
    pub fn open(dir: &Path, options: Options, outside: impl Outside) -> Result<MetaStore, OpenError> {
        Replayed::open(dir, options.deployment)?.serve(options, outside)
    }

    fn start(&mut self, name: &str, work: fn(&Core)) -> std::io::Result<()> {
        let core = self.core.clone();
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(move || work(&core))?);
        Ok(())
    }

    /// Takes charge of shards that are empty, at a deployment's first start; what is held already stays as it
    /// is. In shard 0 the root directory is made, with the process's user and group and mode 0755. Shards with
    /// copies are served, and the root is made, after [`MetaStore::follow`].
    pub fn adopt(&self, shards: impl IntoIterator<Item = ShardId>) -> Result<(), Errno> {
        let map = self.core.outside.map();
        let term = (map.copies > 1).then(|| map.epoch.0);
        for shard in shards {
            self.core.partitions.adopt(shard, term).map_err(|e| e.errno())?;
            if shard == Ino::ROOT.shard() && term.is_none() && self.core.partitions.serves(shard) {
                self.core.make_root().map_err(errno)?;
            }
        }
        Ok(())
    }

    /// To be called when the map has changed: takes over the shards that this server is to answer for now, lets go of others,
    /// and ends what programs of nodes have that are away. Says whether all of that is done; if not, it is to be called again.
    pub fn follow(&self) -> bool {
        let followed = self.core.follow();
        // Also while some shard cannot be taken over.
        self.core.end_what_is_away() && followed
    }

    /// Whether this server answers for all shards that it should by the newest map.
    pub fn has_followed(&self) -> bool {
        self.core.has_followed()
    }

    /// Puts shards that this server was handed on stable storage. Says whether it could.
    pub fn sync_handed(&self, shards: &[ShardId]) -> bool {
        self.core.sync_handed(shards)
    }

    /// Writes those logs anew that the storage has failed to take records of. Says whether it could: before that, this
    /// server need not try to catch up.
    pub fn mend(&self) -> bool {
        self.core.partitions.mend()
    }

    /// The server stops: from now on operations are refused that wait for servers with copies, which may have stopped
    /// before it, or for other operations, which may be waiting for these. Who has asked for them asks again, and then another one.
    pub fn stop_waiting(&self) {
        self.core.partitions.stop_waiting();
    }

    /// Finishes what a crash has left: intents, splits, truncations, and (when the grace time is over) sizes
    /// and files that nobody has open. What cannot be done now, because a server does not answer, the keeper
    /// tries again.
    pub fn recover(&self) {
        self.core.keep();
    }

    /// Does what is due in the background, once: removes the blocks of removed files, splits directories that
    /// have grown large, and tries again what failed. The keeper's thread does it whenever there is
    /// something.
    pub fn keep(&self) {
        self.core.keep();
    }

    /// Serves a request to the metadata. `payload` came with it; what is to go with the reply is appended to
    /// `out`.
    pub fn meta(
        &self,
        caller: &Caller,
        request: &MetaRequest<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        caller.change.set(Change::default());
        if self.core.resumes(caller.shard)
            && !matches!(request, MetaRequest::Release { .. } | MetaRequest::Abandon { .. })
        {
            return Err(Refusal::OldServer.into());
        }
        let reply = self.core.meta(caller, request, payload, out)?;
        Ok(match (caller.change.get(), reply) {
            (change, reply) if change == Change::default() => reply,
            (change, Reply::Meta(reply)) => Reply::Changed(change, reply),
            (change, Reply::Done) => Reply::Changed(change, MetaReply::Done),
            (_, reply) => reply,
        })
    }

    /// Whether a request was carried out before, so that it would only be answered again. Refused while nobody can
    /// say that.
    pub fn has_answered(&self, shard: ShardId, id: &RequestId) -> Result<bool, Failure> {
        self.core.partitions.with(shard, |locked| Ok(repeated(locked.shard, id)?.is_some()))
    }

    /// Whether clients may be served: what was under way before the start is finished, or another server that
    /// is needed for that has not answered for the time of [`Options::resumption`].
    pub fn has_resumed(&self) -> bool {
        self.core.resumption.is_over()
    }

    /// Lets go of the shards for which others answer by the newest map. (What this server is to take over, it takes over
    /// later.)
    pub fn step_down(&self) {
        self.core.let_go();
    }

    /// Serves another server's request.
    pub fn peer(&self, from: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        self.core.serve_peer(from, request)
    }

    /// The namespace version: what a request along a cached path is compared with.
    pub fn namespace(&self) -> u64 {
        self.core.moves.version()
    }

    /// To be called when this server was away while others changed the namespace: from now on it refuses all
    /// cached paths.
    pub fn forget_moves(&self) {
        self.core.forget_moves();
    }

    /// Refuses a request along a cached path whose sender has not heard of all moves.
    pub fn check_namespace(&self, known: u64) -> Result<(), Refusal> {
        self.core.moves.check(known)
    }

    /// The shards that the store holds.
    pub fn shards(&self) -> Vec<ShardId> {
        self.core.partitions.shards()
    }

    /// A complete image of a shard, opens and locks included. Servers whose shards are equal give the same.
    pub fn image(&self, shard: ShardId) -> Option<Vec<Vec<u8>>> {
        let bodies = self.core.partitions.image(shard, Time::MIN)?;
        Some(bodies.iter().map(<[u8]>::to_vec).collect())
    }

    /// How much it holds. Looks at every shard: for a status display.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { log_bytes: self.core.partitions.log_bytes(), ..Counts::default() };
        self.core.partitions.each(|_, shard| {
            counts.inodes += shard.inodes.len() as u64;
            counts.opens += shard.live.values().map(|l| l.opens.len() as u64).sum::<u64>();
            if shard.stream.serves() {
                let (files, bytes) = shard.inodes.lazy();
                counts.lazy = (counts.lazy.0 + files, counts.lazy.1.saturating_add(bytes));
            }
        });
        for ino in self.core.fetches.failed() {
            let is_lazy = |locked: &mut LockedShard<'_>| {
                Ok(locked.shard.inodes.get(ino).is_some_and(|inode| inode.as_lazy().is_some()))
            };
            match self.core.partitions.with_patience(ino.shard(), Duration::ZERO, is_lazy) {
                Ok(true) => counts.unfetchable += 1,
                // Removed, truncated, or another server's.
                _ => self.core.fetches.forget(ino),
            }
        }
        counts
    }

    /// How many files of the shards that this server answers for have blocks whose only copy is on a certain server; and
    /// one of them. Looks at every file.
    pub fn alone_on(&self, server: ServerId) -> (u64, Option<Ino>) {
        self.core.alone_on(server)
    }

    /// What files of the shards that this server answers for lose if these servers leave as they are: at most
    /// [`LOSSES_MAX`](bivouac_proto::control::LOSSES_MAX), behind `after`, in the order of their numbers. Looks at every file.
    pub fn losses(&self, servers: &[ServerId], after: Ino) -> Result<Vec<FileLoss>, Failure> {
        self.core.losses(servers, after)
    }

    /// How many files have a range that is on its way from server to server.
    pub fn on_their_way(&self) -> u64 {
        self.core.on_their_way()
    }

    /// Syncs the logs and closes the store. Nothing depends on it.
    pub fn close(self) {
        if let Err(error) = self.core.partitions.sync_all() {
            tracing::warn!(%error, "the metadata logs were not synced");
        }
    }
}

impl Drop for MetaStore {
    fn drop(&mut self) {
        self.core.keeper.stop();
        self.core.teller.stop();
        self.core.fetches.stop();
        self.core.partitions.compactor.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Core {
    /// Asks a server, which may be this one. Where there are copies and it does not answer, another one is going to:
    /// Busy.
    pub(crate) fn ask(&self, server: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        if server == self.outside.me() {
            return self.serve_peer(server, request);
        }
        let answer = self.outside.peer(server, request);
        let has_copies = self.outside.map().copies > 1;
        answer.map_err(|failure| match failure {
            // Without copies, too, another one may be about to answer for a shard.
            failure if has_copies || failure == Refusal::OldServer.into() => later(failure),
            failure => failure,
        })
    }

    /// Asks the server that answers for a shard. EIO if nobody can, because the last server that has everything stays away.
    pub(crate) fn ask_shard(&self, shard: ShardId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        let answer = self.ask(self.outside.map().primary(shard), request);
        if answer != Err(Refusal::Busy.into()) {
            return answer;
        }
        let map = self.outside.map();
        let primary = map.primary(shard);
        let is_down = map.server(primary).is_some_and(|server| server.state == ServerState::Down);
        match is_down && map.copies > 1 && !self.outside.wait_until_up(&map, &[primary]) {
            true => Err(Errno::IO.into()),
            false => answer,
        }
    }

    /// Whether this server answers for a shard.
    pub(crate) fn is_mine(&self, shard: ShardId) -> bool {
        self.outside.map().primary(shard) == self.outside.me()
    }

    fn make_root(&self) -> Result<(), Failure> {
        let now = self.outside.now();
        self.partitions.with(Ino::ROOT.shard(), |locked| {
            if locked.shard.inodes.get(Ino::ROOT).is_some() {
                return Ok(());
            }
            let mut draft = crate::draft::Draft::new(now);
            draft.put_inode(Ino::ROOT, root(now));
            locked.commit(draft)
        })
    }

    pub(crate) fn sync(&self, ino: Ino) -> Result<Reply, Failure> {
        self.sync_shard(ino.shard())?;
        Ok(Reply::Done)
    }

    /// Puts the log of a shard on stable storage.
    pub(crate) fn sync_shard(&self, id: ShardId) -> Result<(), Failure> {
        self.partitions.sync(id).map_err(|error: LogError| {
            tracing::error!(%error, "a log could not be synced");
            // Whatever the reason: the kernel may have dropped records.
            let errno = error.errno();
            if self.partitions.gives_up(id) { Refusal::OldServer.into() } else { Failure::Errno(errno) }
        })
    }
}

/// The root directory of a new deployment: it is that of the process's user.
pub(crate) fn root(now: Time) -> Inode {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let owner = crate::access::Owner { mode: 0o755, uid, gid };
    Inode::directory(owner, now, Ino::ROOT, b"", Template::default())
}

/// The failure of a server in whose place another one is going to answer.
fn later(failure: Failure) -> Failure {
    match failure {
        Failure::Errno(Errno::IO) | Failure::Refused(Refusal::OldServer) => Refusal::Busy.into(),
        other => other,
    }
}

/// The errno of a failure, where there can be no refusals.
pub(crate) fn errno(failure: Failure) -> Errno {
    match failure {
        Failure::Errno(errno) => errno,
        Failure::Refused(_) => Errno::BUSY,
    }
}

/// Locks a mutex, ignoring poisoning: its data is valid whatever a panicking holder did.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
