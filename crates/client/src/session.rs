//! The [`Client`]: how it begins, and what it keeps for the life of its process.
//!
//! Everything that threads share is either immutable, atomic, or replaced as a whole; no lock is waited for
//! that another thread might have held at a fork. After a fork the child begins a session of its own (request
//! identities and process locks belong to a session), with connections of its own, at its first call.

use crate::closes::{Kept, Spare};
use crate::error::ClientError;
use crate::facts::{Facts, Pages};
use crate::fork::ForkMark;
use crate::host::{Host, OwnFd, SizeLimit};
use crate::links::{Link, Pool};
use crate::list::Listing;
use crate::locks::Held;
use crate::maps::{MapRef, Maps};
use crate::moves::Heard;
use crate::paths::Paths;
use bivouac_layout::{Forwarding, Ino, Map, News, NodeId, ServerId, ServerState};
use bivouac_node::file::FileError;
use bivouac_node::{ByServer, Environment, Fd, OpenTable, SlotId};
use bivouac_proto::agent::{AgentReply, AgentRequest};
use bivouac_proto::auth::{ANY_DEPLOYMENT, Credentials, KEY_LEN, Key, Role};
use bivouac_proto::meta::LockOwner;
use bivouac_proto::node::NodeRequest;
use bivouac_proto::{Errno, Header, Kind, Reply, Request};
use bivouac_transport::engine::{self, Answered, Budget};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Outgoing, Peer, Refusals, TransportError};
use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many descriptors are kept for asking the kernel whether a description is held. Programs that open and
/// close one file after the other use only a few slots.
const ASKERS: usize = 8;
/// Longest key file: its digits, and what an editor may have put behind them.
const KEY_FILE_MAX: usize = 2 * KEY_LEN + 64;

/// How long an agent that has died is waited for, until it was started again and has a map: the controller tells it twice
/// a second, unless another one is just being elected.
const AGENT_BEGINS: Duration = Duration::from_secs(10);
/// Between two questions whether it has.
const AGENT_PAUSE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// One process's access to a deployment. All methods may be called from any thread.
pub struct Client {
    environment: Environment,
    host: &'static dyn Host,
    size_limit: SizeLimit,
    key: Key,
    uid: u32,
    credentials: Credentials,
    agent: u64,
    node: NodeId,
    node_dir: Vec<u8>,
    table: OpenTable,
    /// What the table is mapped by, kept for an agent that follows when this one is killed: it looks for it
    /// in `/proc`.
    _table_for_agent: OwnFd,
    fork: ForkMark,
    /// The newest map, and those that some call still goes by.
    maps: Maps,
    heard: Heard,
    paths: AtomicPtr<Paths>,
    facts: AtomicPtr<Facts>,
    pages: Pages,
    /// The directory that was listed last, as a hint.
    pub(crate) listing: Listing,
    /// The session and the fork count that it belongs to.
    session: AtomicU64,
    session_forks: AtomicU64,
    /// Who owns this process's locks: its first session, which an exec does not change.
    owner: AtomicU64,
    /// Only the caller uses this client, so that what is replaced can be freed.
    sole: AtomicBool,
    /// While a thread begins a session: the fork count (upper half) that the session is for, and the thread.
    renewing: AtomicU64,
    slots: AtomicU32,
    /// Counts what was sent ahead to copies.
    ahead: AtomicU64,
    pools: ByServer<Pool>,
    agents: Pool,
    kept: ByServer<Kept>,
    /// Descriptors to ask through whether a description is held.
    askers: [Spare<OwnFd>; ASKERS],
    held: AtomicPtr<Held>,
    pub(crate) refusals: Refusals,
    /// Whether blocks on this node are read and written directly.
    pub(crate) local_access: bool,
}

impl Client {
    /// Begins: connects to the node's agent and takes part in the deployment that `environment` names. `host`: the process
    /// that this is.
    pub fn attach(environment: &Environment, host: &'static dyn Host) -> Result<Arc<Client>, ClientError> {
        let key = find_key(environment, rustix::process::getuid().as_raw())?;
        Client::begin(environment.clone(), key, host)
    }

    /// The same for a deployment by its name, and with its key if this node is not to be asked for it.
    pub fn attach_named(
        name: &str,
        key: Option<Key>,
        host: &'static dyn Host,
    ) -> Result<Arc<Client>, ClientError> {
        if !bivouac_node::names::is_valid_name(name) {
            return Err(ClientError::Name { name: name.into() });
        }
        let found = bivouac_node::place::find(rustix::process::getuid().as_raw(), name);
        let key_path = found.as_deref().map(bivouac_node::key_path).unwrap_or_default();
        let key = match key {
            Some(key) => key,
            None if key_path.is_empty() => return Err(ClientError::Unknown { name: name.into() }),
            None => read_key(&key_path)?,
        };
        let job = Environment::from_env().and_then(|environment| environment.job);
        let mount = String::new();
        let environment =
            Environment { name: name.into(), mount, key_path, mounted: None, forwarded: None, job };
        Client::begin(environment, key, host)
    }

    /// Begins. Where programs see the file system, the map says, if the environment does not.
    fn begin(
        mut environment: Environment,
        key: Key,
        host: &'static dyn Host,
    ) -> Result<Arc<Client>, ClientError> {
        let uid = rustix::process::getuid().as_raw();
        let credentials = present_credentials();
        let name = environment.name.clone();
        let answer = || ClientError::Answer { name: name.clone() };
        let agent_error = |source| ClientError::Agent { name: name.clone(), source };
        let fork = ForkMark::new()
            .map_err(|e| agent_error(TransportError::System(Errno(e.raw_os_error() as u16))))?;
        let mut link =
            connect_agent(&environment, host, (&key, ANY_DEPLOYMENT), (uid, &credentials), fork.count())
                .map_err(agent_error)?;
        let (reply, _) = ask(&mut link, &Request::Agent(attach_request())).map_err(agent_error)?;
        if reply.is_none() {
            return Err(ClientError::Closed { name: name.clone() });
        }
        let Some(Reply::Agent(AgentReply::Attached { session, owner, locked, agent, node, run_dir, map })) =
            reply
        else {
            return Err(answer());
        };
        let table = |link: &mut Link| {
            if map.check().is_err() {
                return Err(answer());
            }
            match ask(link, &Request::Node(NodeRequest::Table)).map_err(agent_error)? {
                (Some(Reply::Done), Some(descriptor)) => {
                    Ok((OpenTable::attach(run_dir.as_bytes(), descriptor.as_fd())?, descriptor))
                }
                _ => Err(answer()),
            }
        };
        let (table, descriptor) = table(&mut link).inspect_err(|_| {
            // Otherwise the session would last as long as the process.
            let _ = ask(&mut link, &Request::Agent(AgentRequest::Detach { session }));
        })?;
        let restarts = table.adoptions();
        if environment.mount.is_empty() {
            environment.mount.clone_from(&map.mount);
            let serves = |forwarding: &&Forwarding| !forwarding.io_nodes.is_empty();
            environment.forwarded =
                map.forwarding.as_ref().filter(serves).map(|forwarding| forwarding.directory.clone());
        }
        let client = Client {
            environment,
            host,
            size_limit: SizeLimit(host.file_size_limit()),
            key,
            uid,
            credentials,
            agent,
            node,
            node_dir: run_dir.into_bytes(),
            table,
            _table_for_agent: OwnFd::new(host, descriptor),
            session: AtomicU64::new(session),
            session_forks: AtomicU64::new(fork.count()),
            owner: AtomicU64::new(owner),
            fork,
            maps: Maps::new(map),
            heard: Heard::default(),
            paths: AtomicPtr::new(Box::into_raw(Box::default())),
            facts: AtomicPtr::new(Box::into_raw(Box::default())),
            pages: Pages::default(),
            listing: Listing::default(),
            slots: AtomicU32::new(1),
            ahead: AtomicU64::new(0),
            pools: ByServer::default(),
            askers: std::array::from_fn(|_| Spare::default()),
            agents: Pool::default(),
            kept: ByServer::default(),
            held: AtomicPtr::new(Box::into_raw(Box::new(Held::new(locked, restarts)))),
            sole: AtomicBool::new(false),
            renewing: AtomicU64::new(0),
            refusals: Refusals::default(),
            local_access: local_access(),
        };
        client.agents.give(link, client.fork.count());
        Ok(Arc::new(client))
    }

    /// Ends before the process does: what it has locked through this client is released (if it has no other client of this
    /// deployment), and the agent forgets the session. To be called when everything that was opened is closed; nothing may be
    /// asked of this client afterwards. What is left of it goes with the last handle.
    pub fn detach(&self) {
        if self.has_session() {
            self.tell_closes();
            let session = self.session.load(Ordering::Relaxed);
            // If no agent answers, the session ends with the process.
            let _ = self.ask_agent(&AgentRequest::Detach { session });
        }
    }

    /// The node's table of open descriptions.
    pub fn table(&self) -> &OpenTable {
        &self.table
    }

    /// Directory of what this node's processes share.
    pub fn node_dir(&self) -> &[u8] {
        &self.node_dir
    }

    /// Where programs see the file system.
    pub fn mount(&self) -> &[u8] {
        self.environment.mount.as_bytes()
    }

    /// The directory of the site's storage that is forwarded, if one is.
    pub fn forwarded(&self) -> Option<&[u8]> {
        self.environment.forwarded.as_deref().map(str::as_bytes)
    }

    /// How often the process had been forked, counted from where this client began: another number in each child.
    pub fn forks(&self) -> u64 {
        self.fork.count()
    }

    /// A child process begins (also noticed without this call, where the kernel is 4.14 or newer).
    pub fn after_fork(&self) {
        self.fork.advance();
    }

    /// Another process takes over, with memory, but no descriptors, of the one before it: as after a fork.
    ///
    /// # Safety
    /// Nobody else uses this client now, and nobody will but the caller, until it is passed on in the same
    /// way.
    pub unsafe fn begin_again(&self) {
        self.sole.store(true, Ordering::Relaxed);
        self.fork.advance();
    }

    /// Whether it acts for who this process is now.
    pub fn acts_for_this_user(&self) -> bool {
        self.credentials == present_credentials()
    }

    pub(crate) fn agent_number(&self) -> u64 {
        self.agent
    }

    pub(crate) fn host(&self) -> &'static dyn Host {
        self.host
    }

    /// The process's limit on the size of files.
    #[inline]
    pub(crate) fn size_limit(&self) -> SizeLimit {
        self.size_limit
    }

    /// The node that this process runs on.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The next number of bytes that are sent ahead to a copy.
    pub(crate) fn next_ahead(&self) -> u64 {
        self.ahead.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The newest map known.
    #[inline]
    pub(crate) fn map(&self) -> MapRef<'_> {
        self.maps.newest()
    }

    /// Takes over a map, if it is sound and newer.
    pub(crate) fn learn_map(&self, news: News) {
        let current = self.map();
        let Some(map) = news.added_to(&current) else { return };
        let primaries_change = map.copies > 1 || map.shards != current.shards;
        // A lost race only means that somebody else installed one: the next refusal brings this one again.
        self.maps.install(&current, Box::new(map));
        if primaries_change {
            self.hear_of_other_servers();
        }
    }

    /// Asks for the current map: the agent, or servers while there is no agent. (It may have died together with the server
    /// that is wanted.)
    pub(crate) fn refresh_map(&self) -> Result<(), TransportError> {
        let answer = match self.ask_agent(&AgentRequest::Map) {
            Err(TransportError::Refused | TransportError::Closed) => self.ask_some_server(&AgentRequest::Map),
            answer => answer,
        };
        if let Some(Reply::Agent(AgentReply::Map(map))) = answer? {
            self.learn_map(News::Whole(map));
        }
        Ok(())
    }

    /// Asks servers, one after the other, until one answers, or is silent: who is cut off would wait for each. The next
    /// call begins with another one.
    fn ask_some_server(&self, request: &AgentRequest) -> Result<Option<Reply>, TransportError> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let map = self.map();
        let first = CALLS.fetch_add(1, Ordering::Relaxed) as usize % map.servers.len().max(1);
        let all = map.servers.iter().cycle().skip(first).take(map.servers.len());
        let mut last = Err(TransportError::Refused);
        for server in all.filter(|server| server.state == ServerState::Up) {
            last = self.take_link(server.id, &map).and_then(|mut link| {
                let answer = ask(&mut link, &Request::Agent(request.clone()));
                self.give_link(server.id, link);
                answer.map(|(reply, _)| reply)
            });
            if !matches!(last, Ok(None) | Err(TransportError::Refused | TransportError::Closed)) {
                break;
            }
        }
        last
    }

    /// Tells the agent something, and waits only until the agent has heard it.
    pub(crate) fn tell_agent(&self, request: &AgentRequest) -> Result<(), Errno> {
        match self.ask_agent_that_begins(request).map_err(|e| e.errno())? {
            Some(Reply::Done) => Ok(()),
            _ => Err(Errno::NOLCK),
        }
    }

    /// Asks the node's agent, which may have been restarted since the connections to it were made. `None`: it
    /// refuses.
    fn ask_agent(&self, request: &AgentRequest) -> Result<Option<Reply>, TransportError> {
        let fork_count = self.fork.count();
        loop {
            let idle = self.agents.take(fork_count, 0);
            let kept = idle.is_some();
            let mut link = match idle {
                Some(link) => link,
                None => self.connect_agent(fork_count)?,
            };
            let answer = ask(&mut link, &Request::Agent(request.clone()));
            self.agents.give(link, fork_count);
            match answer {
                // It is not given back, so this ends.
                Err(_) if kept => {}
                answer => return answer.map(|(reply, _)| reply),
            }
        }
    }

    /// The same, and waits for an agent that is just being restarted: until it has a map, it refuses everything.
    fn ask_agent_that_begins(&self, request: &AgentRequest) -> Result<Option<Reply>, TransportError> {
        let begun = Instant::now();
        loop {
            match self.ask_agent(request) {
                Ok(None) | Err(TransportError::Refused | TransportError::Closed)
                    if begun.elapsed() < AGENT_BEGINS =>
                {
                    let _ = rustix::thread::nanosleep(&AGENT_PAUSE);
                }
                answer => return answer,
            }
        }
    }

    fn connect_agent(&self, fork_count: u64) -> Result<Box<Link>, TransportError> {
        let (key, deployment) = (&self.key, self.map().deployment);
        let by = (self.uid, &self.credentials);
        let link = connect_agent(&self.environment, self.host, (key, deployment), by, fork_count);
        self.refusals.note(Peer::Agent, &link);
        link
    }

    /// How often the node's agent has been restarted beside processes that lived on.
    pub(crate) fn agent_restarts(&self) -> u64 {
        self.table.adoptions()
    }

    pub(crate) fn held(&self) -> &Held {
        // SAFETY: as for the paths.
        unsafe { &*self.held.load(Ordering::Acquire) }
    }

    pub(crate) fn heard(&self) -> &Heard {
        &self.heard
    }

    pub(crate) fn paths(&self) -> &Paths {
        // SAFETY: from Box::into_raw; replaced only after a fork, and freed only where no other thread uses this client.
        unsafe { &*self.paths.load(Ordering::Acquire) }
    }

    pub(crate) fn facts(&self) -> &Facts {
        // SAFETY: as for the cache.
        unsafe { &*self.facts.load(Ordering::Acquire) }
    }

    pub(crate) fn kept_for(&self, server: ServerId) -> Option<&Kept> {
        self.kept.get(server)
    }

    pub(crate) fn asker(&self, id: SlotId) -> &Spare<OwnFd> {
        &self.askers[id.index as usize % ASKERS]
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The session of this process; a fork's child gets its own at its first call.
    pub(crate) fn session(&self) -> Result<u64, TransportError> {
        let fork_count = self.fork.count();
        while self.session_forks.load(Ordering::Acquire) != fork_count {
            let me = fork_count << 32 | u64::from(bivouac_node::process::tid());
            let renewing = self.renewing.load(Ordering::Relaxed);
            if renewing == me {
                // This is a signal handler that has interrupted it in the same thread: waiting would never
                // end.
                return Err(TransportError::System(Errno::IO));
            }
            if renewing >> 32 != fork_count
                && self.renewing.compare_exchange(renewing, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                let renewed = self.renew(fork_count);
                if renewed.is_err() {
                    self.renewing.store(0, Ordering::Release);
                }
                renewed?;
            } else {
                // Another thread of this process is beginning the session.
                let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000 });
            }
        }
        Ok(self.session.load(Ordering::Relaxed))
    }

    /// The owner of this process's locks.
    pub(crate) fn lock_owner(&self) -> Result<LockOwner, Errno> {
        self.session().map_err(|error| error.errno())?;
        Ok(LockOwner::Process {
            session: self.owner.load(Ordering::Relaxed),
            pid: rustix::process::getpid().as_raw_nonzero().get() as u32,
        })
    }

    /// Begins the session of a fork's child.
    fn renew(&self, fork_count: u64) -> Result<(), TransportError> {
        // Locks may have been held by threads of the parent that do not exist in this process.
        let paths = Box::into_raw(Box::new(Paths::new(self.era())));
        self.let_go(self.paths.swap(paths, Ordering::AcqRel));
        let facts = Box::into_raw(Box::new(Facts::new(self.era())));
        self.let_go(self.facts.swap(facts, Ordering::AcqRel));
        // Read before: if the agent is restarted meanwhile, the next one is told of locks.
        let restarts = self.agent_restarts();
        let reply = self.ask_agent_that_begins(&attach_request())?;
        let Some(Reply::Agent(AgentReply::Attached { session, owner, locked, map, .. })) = reply else {
            return Err(TransportError::System(Errno::IO));
        };
        self.learn_map(News::Whole(map));
        let held = Box::into_raw(Box::new(Held::new(locked, restarts)));
        self.let_go(self.held.swap(held, Ordering::AcqRel));
        self.owner.store(owner, Ordering::Relaxed);
        self.session.store(session, Ordering::Relaxed);
        self.session_forks.store(fork_count, Ordering::Release);
        Ok(())
    }

    /// Frees what was replaced, if nobody can have it.
    fn let_go<T>(&self, old: *mut T) {
        if self.sole.load(Ordering::Relaxed) {
            // SAFETY: from Box::into_raw; replaced, and no other thread uses this client.
            drop(unsafe { Box::from_raw(old) });
        }
    }

    /// Whether this process has begun its session (a fork's child has not, before its first call).
    pub(crate) fn has_session(&self) -> bool {
        self.session_forks.load(Ordering::Acquire) == self.fork.count()
    }

    /// A connection to a server, of this thread alone until it is given back.
    pub(crate) fn take_link(&self, server: ServerId, map: &Map) -> Result<Box<Link>, TransportError> {
        let pool = self.pools.get(server).ok_or(TransportError::System(Errno::IO))?;
        self.session()?;
        let fork_count = self.fork.count();
        let entry = map.server(server).ok_or(TransportError::System(Errno::IO))?;
        if let Some(link) = pool.take(fork_count, entry.succession()) {
            return Ok(link);
        }
        let endpoint = if entry.node == self.node && self.local_access {
            Endpoint::Node(bivouac_node::server_sockets(self.uid, &self.environment.name, &self.key, server))
        } else {
            Endpoint::Tcp(entry.address)
        };
        let role = Role::Client {
            credentials: self.credentials.clone(),
            node: self.node,
            job: self.environment.job_number(),
        };
        let connected =
            Connection::connect(&endpoint, &self.key, map.deployment, role, &connect_options(self.host));
        self.refusals.note(Peer::Server(server), &connected);
        let (connection, _) = connected?;
        let slot = self.slots.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Link::new(self.host, connection, fork_count, slot, entry.succession())))
    }

    /// Gives a connection back.
    pub(crate) fn give_link(&self, server: ServerId, link: Box<Link>) {
        match self.pools.get(server) {
            Some(pool) => pool.give(link, self.fork.count()),
            None => link.discard(),
        }
    }

    /// The inode that paths below the mount start from.
    pub fn root(&self) -> Ino {
        Ino::ROOT
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: all came from Box::into_raw, and nobody else has the client any more.
        unsafe {
            drop(Box::from_raw(*self.paths.get_mut()));
            drop(Box::from_raw(*self.facts.get_mut()));
            drop(Box::from_raw(*self.held.get_mut()));
        }
    }
}

/// Who this process acts for.
fn present_credentials() -> Credentials {
    Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: rustix::process::getgroups()
            .map(|groups| groups.iter().map(|g| g.as_raw()).collect())
            .unwrap_or_default(),
    }
}

fn connect_options(host: &dyn Host) -> ConnectOptions {
    Budget::CLIENT.options(host.floor())
}

fn connect_agent(
    environment: &Environment,
    host: &dyn Host,
    (key, deployment): (&Key, u64),
    (uid, credentials): (u32, &Credentials),
    fork_count: u64,
) -> Result<Box<Link>, TransportError> {
    let endpoint = Endpoint::Node(bivouac_node::agent_sockets(uid, &environment.name, key));
    let role =
        Role::Client { credentials: credentials.clone(), node: NodeId::NONE, job: environment.job_number() };
    let (connection, _) = Connection::connect(&endpoint, key, deployment, role, &connect_options(host))?;
    Ok(Box::new(Link::new(host, connection, fork_count, 0, 0)))
}

fn attach_request() -> AgentRequest {
    AgentRequest::Attach { pid: rustix::process::getpid().as_raw_nonzero().get() as u32 }
}

/// One question on a connection to the agent: the answer, and the descriptor that came with it. `None` for a
/// refusal.
fn ask(link: &mut Link, request: &Request<'_>) -> Result<(Option<Reply>, Option<Fd>), TransportError> {
    let mut body = Vec::with_capacity(64);
    bivouac_proto::encode(request, &mut body);
    let outgoing = Outgoing { before: &[], header: Header::new(Kind::Request), body: &body, payload: &[] };
    let answered = engine::attempt(&mut link.lane.connection, &outgoing, &mut [], None, || false)?;
    Ok(answered.map_or((None, None), |Answered { reply, fd, .. }| (Some(reply), fd)))
}

/// The key, from the file that the environment names. The environment may come from another node, where the
/// deployment's directory has another name: where there is nothing of ours at the path, it is looked for.
fn find_key(environment: &Environment, uid: u32) -> Result<Key, ClientError> {
    let named = read_key(&environment.key_path);
    if named.is_ok() {
        return named;
    }
    match bivouac_node::place::find(uid, &environment.name).map(|dir| bivouac_node::key_path(&dir)) {
        Some(path) if path != environment.key_path => read_key(&path).or(named),
        _ => named,
    }
}

/// Reads a key file: 64 hexadecimal digits.
fn read_key(path: &str) -> Result<Key, ClientError> {
    let unusable = |why: String| ClientError::Key { path: path.to_owned(), why };
    let content = match bivouac_node::file::read(path, KEY_FILE_MAX) {
        Ok(content) => content,
        Err(FileError::System(rustix::io::Errno::ACCESS) | FileError::Owner(_)) => {
            return Err(ClientError::Foreign { path: path.to_owned() });
        }
        Err(error) => return Err(unusable(error.to_string())),
    };
    let Some(text) = content.get(..2 * KEY_LEN) else {
        return Err(unusable("it is too short".into()));
    };
    Key::from_hex(text).ok_or_else(|| unusable("it is not hexadecimal".into()))
}

/// Direct access to blocks on this node can be switched off (`BIVOUAC_LOCAL=0`), to measure the way over the
/// wire.
fn local_access() -> bool {
    // SAFETY: getenv with a constant name; the value is looked at before anything else can change the
    // environment.
    let value = unsafe { libc::getenv(c"BIVOUAC_LOCAL".as_ptr()) };
    // SAFETY: getenv returns null or a NUL-terminated string: its first byte can be read.
    value.is_null() || unsafe { *value } != b'0' as libc::c_char
}
