//! The server half: accepts connections, authenticates them, and serves their requests.
//!
//! A connection that is busy has a thread (a *worker*) that blocks in `recv`: the lowest latency there is.
//! One that has been idle for [`ServerOptions::linger`], or sends single requests further apart than that, is
//! parked in the one epoll, where it costs neither a thread nor a buffer. Idle workers wait in that same
//! epoll, so that a request on a parked connection wakes the thread that serves it, with no hop between. The
//! last worker that leaves the epoll first starts another one: a handler may block (for a lock, for another
//! server) and there is still somebody to serve the request that ends the wait.
//!
//! An unauthenticated connection never holds a thread: its messages are collected piece by piece, and it is
//! closed when they are not complete in time. Idle, a server uses no CPU: nothing wakes up without a cause.
//!
//! The process must ignore SIGPIPE, as Rust programs do unless told otherwise: `sendfile` has no flag against
//! it.
//!
//! - [`accept`]: the acceptor thread; [`guests`]: how many connections may be there that do not authenticate,
//!   and for how long.
//! - [`greeting`]: the server's side of the authentication.
//! - [`pool`]: parked connections and the workers; [`staff`]: how many workers there are, and who waits.
//! - [`crowd`]: whether busy-waiting takes a core from others.
//! - [`inbox`]: receiving requests; [`responder`]: sending answers; [`call`]: both, with their buffers, also for a service
//!   that answers later; [`shelf`]: buffers for that.

mod accept;
mod call;
mod greeting;
mod guests;
mod inbox;
mod pool;
mod responder;
mod shelf;
mod staff;

pub use call::Call;
pub use responder::Responder;

use crate::endpoint::Endpoint;
use crate::error::TransportError;
use crate::limits;
use crate::socket;
use accept::Acceptor;
use bivouac_layout::Epoch;
use bivouac_node::Fd;
use bivouac_proto::Header;
use bivouac_proto::auth::{Hello, Key, Welcome};
use pool::Pool;
use rustix::event::EventfdFlags;
use rustix::fd::RawFd;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a server does with connections and requests.
pub trait Service: Send + Sync + 'static {
    /// What it keeps for each connection.
    type Session: Send;

    /// The deployment's key.
    fn key(&self) -> &Key;

    /// The deployment's number.
    fn deployment(&self) -> u64;

    /// The map epoch and namespace version that answers carry; read when an answer is sent.
    fn versions(&self) -> (Epoch, u64);

    /// Called when a peer has proven that it knows the key. `None` declines the peer: the server tells it so
    /// and closes the connection.
    fn accept(&self, hello: &Hello, peer: PeerInfo) -> Option<(Self::Session, Welcome)>;

    /// More has come of a request with a long payload that is not complete: `so_far` is what there is from its
    /// beginning. If it becomes complete, it is served as any other. Returns whether to call this again when there is
    /// more. What this does keeps the sender waiting.
    fn arriving(&self, _: &mut Self::Session, _: &Header, _body: &[u8], _so_far: &[u8]) -> bool {
        false
    }

    /// Serves one request. May block. Requests of one connection come one after the other, but for those that were taken
    /// away ([`Call::later`]). If it returns without an answer, and without having taken it away, EIO is sent.
    fn serve(&self, session: &mut Self::Session, call: &mut Call);

    /// The connection is gone; called once for each session. Requests that were taken away may still be carried out.
    fn closed(&self, session: Self::Session, how: Parting);
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parting {
    /// The peer has closed it, or its process has ended.
    Left,
    /// The peer may still be alive: it cannot be reached, it has broken the protocol, or this server stops.
    Lost,
}

/// The process at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerInfo {
    /// A process of the same node.
    Unix {
        /// Its number, as this process sees it.
        pid: u32,
        /// Its effective user when it connected.
        uid: u32,
        /// Its effective group then.
        gid: u32,
    },
    /// Somebody on the network.
    Tcp(SocketAddr),
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name of its threads (the kernel shows 15 bytes).
    pub name: String,
    /// Most workers at once. There are more than a few only while requests block; the limit must be far above
    /// the number of requests that wait for each other.
    pub max_workers: usize,
    /// How long a connection keeps its worker after a request, unless it sends single requests further apart
    /// than this; also how long stopping may wait for such a worker. The kernel rounds it up to its tick (1
    /// to 10 ms).
    pub linger: Duration,
    /// How long an idle worker lives.
    pub worker_idle: Duration,
    /// Longest time to authenticate.
    pub greeting: Duration,
    /// Most connections of each listener that have not authenticated.
    pub guests: usize,
    /// How long each of them may at least stay; if there are that many, the oldest is closed after this time
    /// to make room.
    pub fair: Duration,
    /// Most connections of other users' processes to a Unix socket that have not authenticated. (The
    /// superuser's count as one's own.) 0 is right unless this process runs as the superuser: a process that
    /// root has started may have changed its user, and still have the key.
    pub strangers: usize,
    /// Connections get descriptors below this number only; what is above is for the service's own files.
    pub ceiling: RawFd,
    /// Longest pause of a peer in the middle of a request, or in taking an answer.
    pub stall: Duration,
    /// How long [`Server::stop`] waits for requests under way.
    pub grace: Duration,
}

impl Default for ServerOptions {
    /// 1,024 workers, which linger 20 ms at a connection and end after 10 s without work; 1,024
    /// unauthenticated connections, each for 5 s at most and 200 ms at least; 30 s stall, 5 s grace; a third
    /// of the descriptors is kept from connections.
    fn default() -> ServerOptions {
        ServerOptions {
            name: "bivouac".to_owned(),
            max_workers: 1024,
            linger: Duration::from_millis(20),
            worker_idle: Duration::from_secs(10),
            greeting: Duration::from_secs(5),
            guests: 1024,
            fair: Duration::from_millis(200),
            strangers: if rustix::process::geteuid().is_root() { 16 } else { 0 },
            ceiling: limits::connection_ceiling(),
            stall: Duration::from_secs(30),
            grace: Duration::from_secs(5),
        }
    }
}

/// What tells all threads of a server to end. Ordered: `stopping`, then `abandon`.
pub(crate) struct Halt {
    /// No new request is begun.
    stopping: AtomicBool,
    /// Transfers under way are given up, too.
    abandon: AtomicBool,
    /// Becomes readable, and stays so, when stopping.
    event: Fd,
}

impl Halt {
    fn new() -> Result<Halt, TransportError> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Halt { stopping: AtomicBool::new(false), abandon: AtomicBool::new(false), event: Fd::from(event) })
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn is_abandoned(&self) -> bool {
        self.abandon.load(Ordering::Acquire)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // This fails only if the counter is full, and then the descriptor is readable, too.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// A running server. Dropping it stops it, too.
pub struct Server {
    addresses: Vec<Endpoint>,
    halt: Arc<Halt>,
    pool: Arc<dyn Running>,
    acceptor: Option<JoinHandle<()>>,
    grace: Duration,
}

/// A pool, whatever its service.
pub(crate) trait Running: Send + Sync {
    /// Joins workers that have ended; how many have not.
    fn join_ended(&self) -> usize;
    /// Closes all parked connections.
    fn close_parked(&self);
    /// Connections that are open, parked or served.
    fn connections(&self) -> usize;
    /// Threads that serve or wait.
    fn workers(&self) -> usize;
}

impl Server {
    /// Listens on all endpoints and serves. On return, connections are accepted.
    pub fn start<S: Service>(
        service: Arc<S>,
        endpoints: Vec<Endpoint>,
        options: ServerOptions,
    ) -> Result<Server, TransportError> {
        let mut listeners = Vec::with_capacity(endpoints.len());
        let mut addresses = Vec::with_capacity(endpoints.len());
        for endpoint in &endpoints {
            let (fd, bound) = socket::listen(endpoint)?;
            listeners.push((fd, endpoint.is_unix()));
            addresses.push(bound);
        }
        let halt = Arc::new(Halt::new()?);
        let grace = options.grace;
        let name = options.name.clone();
        let pool = Pool::start(service, options, Arc::clone(&halt))?;
        let acceptor = Acceptor::new(listeners, Arc::clone(&pool));
        let thread = std::thread::Builder::new().name(name).spawn(move || acceptor.run());
        // From here on dropping the server ends the pool, also when the acceptor did not start.
        let mut server = Server { addresses, halt, pool, acceptor: None, grace };
        match thread {
            Ok(handle) => server.acceptor = Some(handle),
            Err(error) => return Err(pool::spawn_error(&error)),
        }
        Ok(server)
    }

    /// Where it listens, in the order given, with the ports chosen.
    pub fn local_addrs(&self) -> &[Endpoint] {
        &self.addresses
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.pool.connections()
    }

    /// Threads that serve, or wait to do so.
    pub fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Stops: no new connections or requests; requests under way may finish within the grace; then all
    /// connections are closed and all threads joined. Returns how many threads could not be joined because
    /// their handler does not return (0: all well).
    pub fn stop(mut self) -> usize {
        self.shut_down()
    }

    fn shut_down(&mut self) -> usize {
        self.halt.stop();
        if let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            tracing::error!("the acceptor thread had panicked");
        }
        let deadline = Instant::now() + self.grace;
        let mut left = self.pool.join_ended();
        while left > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            left = self.pool.join_ended();
        }
        self.halt.abandon.store(true, Ordering::Release);
        let deadline = Instant::now() + Duration::from_secs(1);
        while left > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            left = self.pool.join_ended();
        }
        if left > 0 {
            tracing::error!("{left} requests did not end when the server stopped");
        }
        self.pool.close_parked();
        left
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.halt.is_stopping() {
            self.shut_down();
        }
    }
}
