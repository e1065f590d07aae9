//! A bad network, for tests: a proxy between a client and a server that delays data, stops passing it on, and
//! breaks connections.
//!
//! Chance is seeded: each direction of each connection draws from its own generator, made of the seed and the
//! connection's number, so that a failure can be looked for again with the same seed (the kernel still
//! chooses how a stream falls into pieces). Bytes are never changed or reordered within a connection, as TCP
//! never does; between connections delays reorder at will. Descriptors are not passed on.
//!
//! It has a thread for each direction of each connection, and knows nothing of what it passes on.

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where the proxy or a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// Port 0 lets the kernel choose when listening.
    Tcp(SocketAddr),
    /// The name of an abstract Unix socket.
    Abstract(String),
}

impl Address {
    /// A free port of this machine.
    pub fn loopback() -> Address {
        Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// A socket that listens, and where it does.
    fn listen(&self) -> io::Result<(OwnedFd, Address)> {
        match self {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let bound = listener.local_addr()?;
                Ok((listener.into(), Address::Tcp(bound)))
            }
            Address::Abstract(name) => {
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                Ok((UnixListener::bind_addr(&address)?.into(), self.clone()))
            }
        }
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, Duration::from_secs(1))?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
            Address::Abstract(name) => {
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                Ok(UnixStream::connect_addr(&address)?.into())
            }
        }
    }
}

/// What goes wrong. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Each piece is held back for a time drawn from this range.
    pub delay: Range<Duration>,
    /// One piece in so many is truncated: the proxy passes on a part of it, then breaks the connection. 0:
    /// never.
    pub cut_one_in: u32,
    /// A connection ends after so many bytes, both directions together, counted from its beginning.
    pub cut_after: Option<u64>,
    /// One piece of an answer in so many is lost: the connection breaks in place of it. 0: never.
    pub lose_one_in: u32,
    /// One piece of a request in so many is late: its sender sees the connection break at once, and the
    /// server gets the piece after a time drawn from `lateness`. 0: never.
    pub late_one_in: u32,
    /// How late it is.
    pub lateness: Range<Duration>,
    /// Nothing passes in either direction, and no end sees an error. When this is switched off, the
    /// connections go on. New connections are accepted meanwhile, and nothing passes on them either.
    pub silent: bool,
}

/// The proxy. Dropping it breaks all connections.
pub struct FaultProxy {
    address: Address,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    seed: u64,
    stop: OwnedFd,
    state: Mutex<State>,
    /// Notified when `state` changes.
    changed: Condvar,
    /// Pieces that were cut, lost or late.
    dealt: AtomicU64,
}

struct State {
    upstream: Address,
    faults: Faults,
    stopping: bool,
    links: Vec<Arc<Link>>,
    pumps: Vec<JoinHandle<()>>,
}

/// One proxied connection.
struct Link {
    client: OwnedFd,
    server: OwnedFd,
    passed: Mutex<u64>,
}

impl Link {
    fn cut(&self) {
        // It fails if the connection is already broken: nothing to do.
        let _ = rustix::net::shutdown(&self.client, Shutdown::Both);
        let _ = rustix::net::shutdown(&self.server, Shutdown::Both);
    }
}

impl FaultProxy {
    /// Listens at `at` and passes connections on to `upstream`, faultlessly at first.
    pub fn start(at: &Address, upstream: Address, seed: u64) -> io::Result<FaultProxy> {
        let (listener, address) = at.listen()?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let (faults, links, pumps) = Default::default();
        let state = Mutex::new(State { upstream, faults, stopping: false, links, pumps });
        let shared =
            Arc::new(Shared { seed, stop, state, changed: Condvar::new(), dealt: AtomicU64::new(0) });
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        Ok(FaultProxy { address, shared, acceptor: Some(acceptor) })
    }

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Passes new connections on to another server.
    pub fn redirect(&self, upstream: Address) {
        lock(&self.shared.state).upstream = upstream;
    }

    /// Changes what goes wrong, for the next piece and all after it.
    pub fn set(&self, faults: Faults) {
        lock(&self.shared.state).faults = faults;
        self.shared.changed.notify_all();
    }

    /// How many pieces were cut, lost or late so far.
    pub fn dealt(&self) -> u64 {
        self.shared.dealt.load(Ordering::Relaxed)
    }

    /// Breaks all connections.
    pub fn cut_all(&self) {
        let links = std::mem::take(&mut lock(&self.shared.state).links);
        links.iter().for_each(|link| link.cut());
        self.shared.changed.notify_all();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        lock(&self.shared.state).stopping = true;
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.cut_all();
        let pumps = std::mem::take(&mut lock(&self.shared.state).pumps);
        for pump in pumps {
            let _ = pump.join();
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &OwnedFd) {
        for number in 0.. {
            let mut polled = [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            let waited = rustix::event::poll(&mut polled, None);
            if lock(&self.state).stopping {
                return;
            }
            if waited.is_err() {
                continue;
            }
            let Ok(client) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
                continue;
            };
            // It fails for a Unix socket, which does not need it.
            let _ = sockopt::set_tcp_nodelay(&client, true);
            let upstream = lock(&self.state).upstream.clone();
            // A server that cannot be reached shows as a connection that ends at once.
            if let Ok(server) = upstream.connect() {
                self.link(Link { client, server, passed: Mutex::new(0) }, number);
            }
        }
    }

    fn link(self: &Arc<Self>, link: Link, number: u64) {
        let link = Arc::new(link);
        let mut state = lock(&self.state);
        // Those that have ended are held by nobody else.
        state.links.retain(|l| Arc::strong_count(l) > 1);
        state.pumps.retain(|p| !p.is_finished());
        for back in [false, true] {
            let (shared, link) = (Arc::clone(self), Arc::clone(&link));
            let chance =
                Chance(self.seed ^ (number << 1 | u64::from(back)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            state.pumps.push(std::thread::spawn(move || shared.pump(&link, back, chance)));
        }
        state.links.push(link);
    }

    /// Passes one direction on until an end or a fault. Afterwards that direction is shut, so that the other
    /// end learns of it.
    fn pump(&self, link: &Arc<Link>, back: bool, mut chance: Chance) {
        let (from, to) = if back { (&link.server, &link.client) } else { (&link.client, &link.server) };
        let mut piece = [0; 16 << 10];
        loop {
            let n = match rustix::net::recv(from, &mut piece, RecvFlags::empty()) {
                Ok((n, _)) if n > 0 => n,
                Err(Errno::INTR) => continue,
                _ => break,
            };
            let faults = self.await_sound(link);
            std::thread::sleep(chance.within(&faults.delay));
            if !back && chance.one_in(faults.late_one_in) {
                let _ = rustix::net::shutdown(&link.client, Shutdown::Both);
                self.dealt.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(chance.within(&faults.lateness));
            }
            let mut pass = n;
            if back && chance.one_in(faults.lose_one_in) {
                pass = 0;
            }
            if chance.one_in(faults.cut_one_in) {
                pass = (chance.next() % n as u64) as usize;
            }
            if let Some(limit) = faults.cut_after {
                let mut passed = lock(&link.passed);
                pass = pass.min(usize::try_from(limit.saturating_sub(*passed)).unwrap_or(usize::MAX));
                *passed += pass as u64;
            }
            let sent = send_all(to, piece.get(..pass).unwrap_or_default());
            if pass < n {
                self.dealt.fetch_add(1, Ordering::Relaxed);
            }
            if sent.is_err() || pass < n {
                link.cut();
            }
        }
        let _ = rustix::net::shutdown(to, Shutdown::Write);
    }

    /// Waits while the proxy is silent, unless the connection is broken or the proxy stopped. Returns what
    /// else goes wrong now.
    fn await_sound(&self, link: &Arc<Link>) -> Faults {
        let mut state = lock(&self.state);
        while state.faults.silent && !state.stopping && state.links.iter().any(|l| Arc::ptr_eq(l, link)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.faults.clone()
    }
}

fn send_all(to: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::net::send(to.as_fd(), bytes, SendFlags::NOSIGNAL) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A small generator of seeded chance (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether what happens once in so many times happens now; 0: never.
    fn one_in(&mut self, times: u32) -> bool {
        times > 0 && self.next().is_multiple_of(u64::from(times))
    }

    fn within(&mut self, range: &Range<Duration>) -> Duration {
        let width = range.end.saturating_sub(range.start).as_micros() as u64;
        if width == 0 { range.start } else { range.start + Duration::from_micros(self.next() % width) }
    }
}
