//! Parked connections and the workers that serve them.
//!
//! A connection is owned by exactly one party: the table of parked connections, or the worker that took it
//! out. Whoever removes it from the table has it; an event for a connection that is not there any more is
//! ignored. One-shot events make sure that a parked connection wakes one worker once.
//!
//! Of the locks here, none is held while another is taken, and none while a service runs.

use super::call::{Call, Desk};
use super::greeting::{Greeted, Greeting};
use super::guests::Ticket;
use super::inbox::{Awake, Incoming};
use super::responder::Line;
use super::shelf::Shelf;
use super::staff::{Behind, Staff};
use super::{Halt, Parting, PeerInfo, Running, ServerOptions, Service};
use crate::crowd::Crowd;
use crate::error::TransportError;
use crate::socket;
use crate::spin::{BULK, Spin};
use bivouac_layout::Epoch;
use bivouac_node::Fd;
use bivouac_proto::{Errno, Header, Kind};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::AsFd;
use rustix::io::Errno as Sys;
use rustix::net::sockopt::Timeout;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The token of the event that ends waiting; connections have others.
const HALT: u64 = 0;
/// A blocked send looks this often whether the server stops.
const SEND_SLICE: Duration = Duration::from_millis(250);
/// An answer's buffer that grew beyond this is given back when its worker becomes idle, bytes.
const KEEP: usize = 1 << 20;

/// A socket that was accepted.
pub(super) struct Connected {
    pub(super) fd: Fd,
    pub(super) unix: bool,
    pub(super) peer: PeerInfo,
}

enum State<T> {
    Greeting(Greeting),
    Open(T),
}

struct Client<T> {
    token: u64,
    _counted: Counted,
    line: Arc<Line>,
    /// Whether the epoll knows the socket.
    registered: bool,
    visits: Visits,
    state: State<T>,
}

/// How often a connection has requests. A worker that lingers at a connection which sends a heartbeat now and
/// then only wakes up once more for nothing.
#[derive(Default)]
struct Visits {
    /// When the last visit ended, if it was for one request alone.
    alone: Option<Duration>,
}

impl Visits {
    /// A worker's visit begins. Whether lingering after the first request would be in vain.
    fn begin(&self, now: Duration, linger: Duration) -> bool {
        self.alone.is_some_and(|ended| now.saturating_sub(ended) > linger)
    }

    /// It has ended, after so many requests.
    fn end(&mut self, now: Duration, requests: u64) {
        self.alone = (requests == 1).then_some(now);
    }
}

/// Counts a connection as long as it lives, wherever it ends.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Pool<S: Service> {
    service: Arc<S>,
    pub(super) options: ServerOptions,
    pub(super) halt: Arc<Halt>,
    epoll: Fd,
    next_token: AtomicU64,
    parked: Mutex<HashMap<u64, Client<S::Session>>>,
    connections: Arc<AtomicUsize>,
    /// What answers carry, and buffers of those that are given later.
    versions: Arc<dyn Fn() -> (Epoch, u64) + Send + Sync>,
    shelf: Arc<Shelf>,
    /// Who waits in the epoll. While nobody does, workers give connections back after each request.
    staff: Staff<AtomicU64>,
    workers: Mutex<Workers>,
    crowd: &'static Crowd,
}

#[derive(Default)]
struct Workers {
    next: u64,
    threads: HashMap<u64, JoinHandle<()>>,
    /// The limit was reached, and that was logged.
    complained: bool,
}

/// Turns the standard library's error about a thread into one of ours.
pub(super) fn spawn_error(error: &std::io::Error) -> TransportError {
    let errno = error.raw_os_error().and_then(|e| u16::try_from(e).ok());
    TransportError::System(errno.map_or(Errno::AGAIN, Errno))
}

/// Ignores poisoning: the locks here protect plain data, which is usable even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Service> Pool<S> {
    pub(super) fn start(
        service: Arc<S>,
        options: ServerOptions,
        halt: Arc<Halt>,
    ) -> Result<Arc<Pool<S>>, TransportError> {
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &halt.event, EventData::new_u64(HALT), EventFlags::IN)?;
        let staff = Staff::new(options.max_workers);
        let asked = Arc::clone(&service);
        let pool = Arc::new(Pool {
            service,
            options,
            halt,
            epoll,
            next_token: AtomicU64::new(HALT + 1),
            parked: Mutex::default(),
            connections: Arc::default(),
            versions: Arc::new(move || asked.versions()),
            shelf: Arc::default(),
            staff,
            workers: Mutex::default(),
            crowd: Crowd::here(),
        });
        pool.hire()?;
        Ok(pool)
    }

    /// Takes a new connection, which has the time of a greeting from `now` on to authenticate. Its token, and
    /// the ticket that is gone once it has authenticated or ended.
    pub(super) fn admit(&self, line: Connected, now: Duration) -> (u64, Ticket) {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket::default();
        let state = State::Greeting(Greeting::new(now.saturating_add(self.options.greeting), ticket.clone()));
        let counted = Counted::new(&self.connections);
        let Connected { fd, unix, peer } = line;
        let line = Arc::new(Line {
            fd,
            unix,
            peer,
            stall: self.options.stall,
            halt: Arc::clone(&self.halt),
            versions: Arc::clone(&self.versions),
            shelf: Arc::clone(&self.shelf),
            sending: Mutex::default(),
        });
        self.park(Client {
            token,
            _counted: counted,
            line,
            registered: false,
            visits: Visits::default(),
            state,
        });
        (token, ticket)
    }

    /// Closes a parked connection that has not authenticated. Whether there was one: it may have
    /// authenticated or ended, or a worker may be attending it.
    pub(super) fn close_unless_authenticated(&self, token: u64) -> bool {
        let mut parked = lock(&self.parked);
        if !parked.get(&token).is_some_and(|c| matches!(c.state, State::Greeting(_))) {
            return false;
        }
        let late = parked.remove(&token);
        drop(parked);
        late.into_iter().for_each(|c| self.close(c, Parting::Lost));
        true
    }

    fn park(&self, mut client: Client<S::Session>) {
        let token = client.token;
        let deadline = match &client.state {
            State::Greeting(greeting) => Some(greeting.deadline),
            State::Open(_) => None,
        };
        let (data, flags) = (EventData::new_u64(token), EventFlags::IN | EventFlags::ONESHOT);
        // Armed under the lock, so that the worker that it wakes finds it in the table; and the table is
        // emptied under the lock after stopping was said, so that nothing is left in it.
        let mut parked = lock(&self.parked);
        let armed = if self.halt.is_stopping() {
            Err(Sys::CANCELED)
        } else if client.registered {
            epoll::modify(&self.epoll, &client.line.fd, data, flags)
        } else {
            epoll::add(&self.epoll, &client.line.fd, data, flags)
        };
        if let Err(error) = armed {
            drop(parked);
            if error != Sys::CANCELED {
                tracing::error!("cannot watch a connection, which is closed: {error}");
            }
            return self.close(client, Parting::Lost);
        }
        client.registered = true;
        parked.insert(token, client);
        drop(parked);
        // The acceptor looks only once, at the deadline. If a worker had the connection then, the worker
        // closes it here.
        if deadline.is_some_and(|d| d <= socket::now()) {
            self.close_unless_authenticated(token);
        }
    }

    fn close(&self, client: Client<S::Session>, how: Parting) {
        let Client { line, state, .. } = client;
        // Whoever has taken one of its requests keeps the socket, and has nobody to answer any more.
        if Arc::strong_count(&line) > 1 {
            line.break_off();
        }
        drop(line);
        if let State::Open(session) = state {
            self.service.closed(session, how);
        }
    }

    /// Starts a worker, who is counted already.
    fn hire(self: &Arc<Self>) -> Result<(), TransportError> {
        let mut workers = lock(&self.workers);
        let number = workers.next;
        workers.next += 1;
        let pool = Arc::clone(self);
        let thread =
            std::thread::Builder::new().name(self.options.name.clone()).spawn(move || pool.work(number));
        match thread {
            Ok(handle) => {
                workers.threads.insert(number, handle);
                Ok(())
            }
            Err(error) => {
                self.staff.not_started();
                Err(spawn_error(&error))
            }
        }
    }

    /// A worker has taken a connection: sees to it that another one waits.
    fn provide(self: &Arc<Self>) {
        match self.staff.take() {
            Behind::Others => {}
            Behind::Start => {
                if let Err(error) = self.hire() {
                    tracing::error!("cannot start a thread: {error}");
                }
            }
            Behind::Nobody => {
                if !std::mem::replace(&mut lock(&self.workers).complained, true) {
                    tracing::warn!("all {} workers are busy: requests wait", self.options.max_workers);
                }
            }
        }
    }

    fn work(self: Arc<Self>, number: u64) {
        let mut desk = Desk::default();
        while let Some(client) = self.next_client() {
            // Only a panic in the service's accept or closed gets here: it costs that connection, not the
            // worker.
            if catch_unwind(AssertUnwindSafe(|| self.attend(client, &mut desk))).is_err() {
                tracing::error!("the service panicked over a connection, which is closed");
            }
            desk.rest();
            self.staff.wait();
        }
        if !self.halt.is_stopping() {
            // Nobody joins a worker that leaves for lack of work.
            lock(&self.workers).threads.remove(&number);
        }
    }

    /// Waits for a parked connection to have something; `None`: leave. The caller counts as one that waits.
    fn next_client(self: &Arc<Self>) -> Option<Client<S::Session>> {
        let idle = socket::timespec(self.options.worker_idle);
        let mut timeout = Some(&idle);
        loop {
            let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(HALT) }];
            let result = epoll::wait(&self.epoll, &mut events, timeout);
            if self.halt.is_stopping() {
                return None;
            }
            match result {
                Ok(0) => {
                    // Other workers wait: leave. The last one stays, and from then on waits without a time
                    // limit.
                    if self.staff.leave() {
                        return None;
                    }
                    timeout = None;
                }
                Ok(_) => {
                    let [event] = events;
                    let Some(client) = lock(&self.parked).remove(&event.data.u64()) else {
                        continue;
                    };
                    self.provide();
                    return Some(client);
                }
                Err(Sys::INTR) => {}
                Err(error) => {
                    tracing::error!("waiting for requests: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Authenticates a connection, and serves it until it is idle.
    fn attend(&self, mut client: Client<S::Session>, desk: &mut Desk) {
        if let State::Greeting(greeting) = &mut client.state {
            let line = &client.line;
            match greeting.step(line.fd.as_fd(), line.peer, &*self.service) {
                Ok(Greeted::Waiting) => return self.park(client),
                Ok(Greeted::Done(session)) => client.state = State::Open(session),
                Err(error) => {
                    match error {
                        TransportError::Closed => {}
                        TransportError::Protocol(_) => tracing::debug!("{:?} was closed: {error}", line.peer),
                        _ => tracing::warn!("{:?} was refused: {error}", line.peer),
                    }
                    return self.close(client, Parting::Lost);
                }
            }
            let fd = client.line.fd.as_fd();
            let set = socket::set_timeout(fd, Timeout::Recv, self.options.linger)
                .and_then(|()| socket::set_timeout(fd, Timeout::Send, SEND_SLICE));
            if let Err(error) = set {
                tracing::error!("{:?} was closed: {error}", client.line.peer);
                return self.close(client, Parting::Lost);
            }
        }
        match self.serve(&mut client, desk) {
            Ok(Stay::Parked) => self.park(client),
            Ok(Stay::Closed(how)) => self.close(client, how),
            Err(error) => {
                tracing::debug!("{:?} was closed: {error}", client.line.peer);
                let left = matches!(error, TransportError::Closed);
                self.close(client, if left { Parting::Left } else { Parting::Lost });
            }
        }
    }

    /// Serves requests until there are none for a while.
    fn serve(&self, client: &mut Client<S::Session>, desk: &mut Desk) -> Result<Stay, TransportError> {
        let State::Open(session) = &mut client.state else {
            return Ok(Stay::Closed(Parting::Lost));
        };
        desk.inbox.clear();
        let mut call = Call::new(Arc::clone(&client.line), std::mem::take(desk));
        let rare = client.visits.begin(socket::now(), self.options.linger);
        let mut requests = 0;
        let stay = self.serve_all(&client.line, session, &mut call, (rare, &mut requests));
        if matches!(stay, Ok(Stay::Parked)) {
            client.visits.end(socket::now(), requests);
        }
        *desk = call.into_desk();
        stay
    }

    /// `rare`: the connection sends single requests far apart.
    fn serve_all(
        &self,
        line: &Line,
        session: &mut S::Session,
        call: &mut Call,
        (rare, requests): (bool, &mut u64),
    ) -> Result<Stay, TransportError> {
        let (mut spin, mut asleep) = (Spin::default(), rare);
        loop {
            let awake = (!asleep).then_some(Awake { spin: &mut spin, crowd: self.crowd });
            let show = |header: &Header, body: &[u8], so_far: &[u8]| {
                header.kind == Kind::Request && self.service.arriving(session, header, body, so_far)
            };
            let found = match call.inbox.next(line.fd.as_fd(), line.stall, &line.halt, awake, show)? {
                Incoming::Request(found) => found,
                Incoming::Idle => return Ok(Stay::Parked),
                Incoming::End if self.halt.is_stopping() => return Ok(Stay::Closed(Parting::Lost)),
                Incoming::End => return Ok(Stay::Closed(Parting::Left)),
            };
            let header = found.header;
            if header.kind != Kind::Request {
                return Err(TransportError::Protocol("not a request"));
            }
            call.begin(found);
            if catch_unwind(AssertUnwindSafe(|| self.service.serve(session, call))).is_err() {
                // After a panic the session's state is unknown: end this connection. Others have sessions of
                // their own.
                tracing::error!("serving a request panicked; its connection is closed: {header:?}");
                return Ok(Stay::Closed(Parting::Lost));
            }
            asleep = call.reply.finish()?.max(header.payload_len as usize) > BULK;
            if self.halt.is_stopping() {
                return Ok(Stay::Closed(Parting::Lost));
            }
            *requests += 1;
            // Whoever waits for an answer sends nothing.
            let is_done = rare && *requests == 1 || self.staff.is_short() || call.was_taken();
            if is_done && call.inbox.is_empty() {
                return Ok(Stay::Parked);
            }
        }
    }
}

/// What becomes of a connection.
enum Stay {
    Parked,
    Closed(Parting),
}

impl Desk {
    /// Frees memory that is not worth keeping while there is nothing to do.
    fn rest(&mut self) {
        self.inbox.rest();
        for buffer in [&mut self.body, &mut self.payload] {
            buffer.clear();
            if buffer.capacity() > KEEP {
                *buffer = Vec::new();
            }
        }
    }
}

impl<S: Service> Running for Pool<S> {
    fn join_ended(&self) -> usize {
        let mut workers = lock(&self.workers);
        let ended: Vec<_> = workers.threads.extract_if(|_, handle| handle.is_finished()).collect();
        let left = workers.threads.len();
        drop(workers);
        for (_, handle) in ended {
            if handle.join().is_err() {
                tracing::error!("a worker had panicked");
            }
        }
        left
    }

    fn close_parked(&self) {
        let parked = std::mem::take(&mut *lock(&self.parked));
        parked.into_values().for_each(|client| self.close(client, Parting::Lost));
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn workers(&self) -> usize {
        lock(&self.workers).threads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_sends_now_and_then_is_not_lingered_for() {
        let linger = Duration::from_millis(20);
        let mut visits = Visits::default();
        let mut lingered = Vec::new();
        // Heartbeats, then a burst, then heartbeats again.
        for (at, requests) in [(0, 1), (500, 1), (1000, 1), (1010, 5), (1500, 1), (2000, 1)] {
            let now = Duration::from_millis(at);
            let rare = visits.begin(now, linger);
            lingered.push(!rare);
            visits.end(if rare { now } else { now + linger }, requests);
        }
        assert_eq!(lingered, [true, false, false, true, true, false]);
    }
}
