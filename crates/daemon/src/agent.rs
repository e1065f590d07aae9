//! The agent role: sessions of the node's processes.
//!
//! A process that attaches gets a session, and the agent watches it through a pidfd. The session ends when the process dies,
//! or gives it up; a broken connection does not end it. When a process dies, and also now and then while any is
//! alive (because an exec closes descriptors without telling anybody), one thread sweeps the node's table of
//! open descriptions. It releases those that no process holds any more at their servers, and releases the
//! locks of dead processes. What processes have noted of their locks it reports to servers that were started again
//! ([`relock`]). While no process is attached, the thread sleeps.

mod holders;
mod numbers;
mod relock;
mod report;

use crate::error::DaemonError;
use crate::links::Links;
use crate::run_dir::RunDir;
use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Map, NodeId, ServerId, ShardId};
use bivouac_node::OpenTable;
use bivouac_node::release::{Release, abandon, monotonic};
use bivouac_proto::agent::{AgentReply, AgentRequest};
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Request};
use bivouac_transport::engine::To;
use numbers::Numbers;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the table is swept while processes are attached.
const SWEEP_EVERY: Duration = Duration::from_secs(3);
/// How long deaths are gathered before a sweep: a shell script's processes die by the hundred.
const GATHER: Duration = Duration::from_millis(5);
/// The event that ends the thread (no session has this number).
const STOP: u64 = 0;

/// A session: a process, or one of the programs that a process has executed one after the other.
struct Process {
    pidfd: OwnedFd,
    pid: u32,
    /// Servers that hold locks of the process. Only in its first session, which owns its locks.
    locks: HashSet<ServerId>,
    /// It was given up, and lasts as long as others of the process, whose locks it owns.
    given_up: bool,
}

/// The agent of a node.
pub(crate) struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Names this agent, and those that it follows on its node, among all.
    number: u64,
    node: NodeId,
    table: OpenTable,
    run_dir: RunDir,
    links: Arc<Links>,
    epoll: OwnedFd,
    wake: OwnedFd,
    stopping: AtomicBool,
    /// By the map of this epoch the node is away, and every server has been asked which locks its programs still have.
    accounted: AtomicU64,
    /// Programs may not attach, apart from those that copy the deployment.
    closed: AtomicBool,
    /// Nobody may attach: the agent ends, because its node leaves the deployment.
    leaves: AtomicBool,
    /// Processes have died, and servers may not have heard of all that yet. Set with `sessions` locked.
    owes: AtomicBool,
    sessions: Mutex<Sessions>,
}

struct Sessions {
    numbers: Numbers,
    processes: HashMap<u64, Process>,
    /// The first session of each process.
    owners: HashMap<u32, u64>,
    /// Those that were given up, until they are treated as those of dead processes.
    ended: Vec<(u64, Process)>,
}

impl Sessions {
    /// The first session of a process that lives. (A number may have come to another process before its death
    /// is known.)
    fn owner(&self, pid: u32) -> Option<u64> {
        let owner = *self.owners.get(&pid)?;
        (!is_dead(&self.processes.get(&owner)?.pidfd)).then_some(owner)
    }

    /// A process gives one of its sessions up.
    fn give_up(&mut self, session: u64, pid: u32) {
        match self.processes.get_mut(&session) {
            Some(process) if process.pid == pid => process.given_up = true,
            _ => return,
        }
        let own = self.processes.iter().filter(|(_, process)| process.pid == pid);
        let (lasts, numbers) = own.fold((false, Vec::new()), |(lasts, mut numbers), (number, process)| {
            numbers.push(*number);
            (lasts || !process.given_up, numbers)
        });
        let owner = self.owners.get(&pid).copied();
        for number in numbers {
            let goes = !lasts || number == session && Some(number) != owner;
            let gone = if goes { self.remove(number) } else { None };
            self.ended.extend(gone);
        }
    }

    /// Takes a session out; the process has died, or has given it up.
    fn remove(&mut self, session: u64) -> Option<(u64, Process)> {
        let (session, process) = self.processes.remove_entry(&session)?;
        if self.owners.get(&process.pid) == Some(&session) {
            self.owners.remove(&process.pid);
        }
        Some((session, process))
    }
}

/// Whether a process has ended.
fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut poll = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut poll, Some(&none)), Ok(1..))
}

/// What a process is told about itself when it attaches.
struct Attached {
    session: u64,
    owner: u64,
    locked: Vec<ServerId>,
}

impl Agent {
    /// Begins: the thread runs from here on.
    pub(crate) fn start(
        node: NodeId,
        closed: bool,
        table: OpenTable,
        run_dir: RunDir,
        links: Arc<Links>,
    ) -> Result<Agent, DaemonError> {
        let system = |e: rustix::io::Errno| DaemonError::Thread(e.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_err(system)?;
        epoll::add(&epoll, &wake, EventData::new_u64(STOP), EventFlags::IN).map_err(system)?;
        let shared = Arc::new(Shared {
            number: table.agent(),
            node,
            table,
            run_dir,
            links,
            epoll,
            wake,
            stopping: AtomicBool::new(false),
            accounted: AtomicU64::new(0),
            closed: AtomicBool::new(closed),
            leaves: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            sessions: Mutex::new(Sessions {
                numbers: Numbers::new(node, random().map_err(system)?),
                processes: HashMap::new(),
                owners: HashMap::new(),
                ended: Vec::new(),
            }),
        });
        let shows = Arc::downgrade(&shared);
        shared.links.when_learnt(move |map| {
            if let Some(shared) = shows.upgrade() {
                shared.show(map);
            }
        });
        let watch = shared.clone();
        let thread = std::thread::Builder::new()
            .name("agent".into())
            .spawn(move || watch.run())
            .map_err(DaemonError::Thread)?;
        Ok(Agent { shared, thread: Some(thread) })
    }

    /// Serves a request of the process `pid`.
    pub(crate) fn serve(&self, pid: u32, request: &AgentRequest) -> Result<Option<AgentReply>, Errno> {
        let shared = &self.shared;
        match request {
            AgentRequest::Attach { .. } => {
                let Attached { session, owner, locked } = shared.attach(pid)?;
                Ok(Some(AgentReply::Attached {
                    session,
                    owner,
                    locked,
                    agent: shared.number,
                    node: shared.node,
                    run_dir: shared.run_dir.node(),
                    map: Box::new((*shared.links.map()).clone()),
                }))
            }
            // Any daemon answers that.
            AgentRequest::Map => Err(Errno::OPNOTSUPP),
            AgentRequest::HoldsLocks { session, server } => {
                let mut sessions = shared.sessions();
                if !sessions.processes.contains_key(session) {
                    shared.take_over(&mut sessions, *session, pid)?;
                }
                let process = sessions.processes.get_mut(session).ok_or(Errno::NOLCK)?;
                process.locks.insert(*server);
                Ok(None)
            }
            AgentRequest::Detach { session } => {
                let mut sessions = shared.sessions();
                sessions.give_up(*session, pid);
                if !sessions.ended.is_empty() {
                    shared.owes.store(true, Ordering::Release);
                }
                drop(sessions);
                let _ = rustix::io::write(&shared.wake, &1u64.to_ne_bytes());
                Ok(None)
            }
        }
    }

    /// The table of open descriptions, for processes that attach.
    pub(crate) fn table(&self) -> Option<BorrowedFd<'_>> {
        self.shared.table.descriptor()
    }

    /// By the map of which epoch the node is away and knows what it has lost. (0: by none.)
    pub(crate) fn accounted(&self) -> Epoch {
        Epoch(self.shared.accounted.load(Ordering::Acquire))
    }

    /// Shows the processes of the node when the controller was last heard of.
    pub(crate) fn heard(&self, at: u64) {
        self.shared.table.set_heard(at);
    }

    /// Ends: the thread is joined, and the node's directories are removed. Where storage is kept and
    /// processes have files open on it, they stay: the next agent goes on with them.
    pub(crate) fn stop(mut self, keep: bool) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if !(keep && self.shared.table.in_use().any(|id| self.shared.table.held(id))) {
            self.shared.run_dir.remove();
        }
    }
}

impl Shared {
    /// Shows the processes of the node what the agent's map says of servers: which of the node's are down, which cannot say so
    /// themselves, and since when any are.
    fn show(&self, map: &Map) {
        let now = monotonic();
        for server in &map.servers {
            // One that another process has replaced elsewhere is not there any more for the processes of this node.
            let is_here = server.node == self.node && server.state == ServerState::Up;
            self.table.set_down(server.id, !is_here);
            if let Some(absence) = self.table.absence(server.id) {
                absence.note(server.state, now);
            }
        }
        self.table.set_epoch(map.epoch);
        // A server that is back, or begins, is told what it missed.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a process for a session of it.
    fn watch(&self, sessions: &mut Sessions, session: u64, number: u32) -> Result<(), Errno> {
        let pid = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(errno)?;
        epoll::add(&self.epoll, &pidfd, EventData::new_u64(session), EventFlags::IN).map_err(errno)?;
        sessions
            .processes
            .insert(session, Process { pidfd, pid: number, locks: HashSet::new(), given_up: false });
        Ok(())
    }

    /// A process that has lived on owns locks by the session that the agent before this one gave it.
    fn take_over(&self, sessions: &mut Sessions, session: u64, number: u32) -> Result<(), Errno> {
        // A session of this agent's, or none: that process is dead.
        if sessions.numbers.is_own(session) || session == STOP {
            return Err(Errno::NOLCK);
        }
        self.watch(sessions, session, number)?;
        sessions.owners.entry(number).or_insert(session);
        Ok(())
    }

    fn attach(&self, number: u32) -> Result<Attached, Errno> {
        let mut sessions = self.sessions();
        if self.closed.load(Ordering::Acquire) && !holders::copies(number) {
            return Err(Errno::BUSY);
        }
        if self.leaves.load(Ordering::Acquire) {
            return Err(Errno::NODEV);
        }
        let session = sessions.numbers.next();
        self.watch(&mut sessions, session, number)?;
        let owner = match sessions.owner(number) {
            Some(owner) => owner,
            None => {
                sessions.owners.insert(number, session);
                session
            }
        };
        let locked =
            sessions.processes.get(&owner).map_or_else(Vec::new, |p| p.locks.iter().copied().collect());
        let first = sessions.processes.len() == 1;
        drop(sessions);
        if first {
            // From now on it wakes up for sweeps.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(Attached { session, owner, locked })
    }

    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        // Ends of sessions that servers have not heard of yet.
        let mut owed: Vec<(ServerId, u64)> = Vec::new();
        // Servers that have been told what is open, since they were last away.
        let mut told = report::Told::default();
        let mut locks_swept: Option<Instant> = None;
        while !self.stopping.load(Ordering::Acquire) {
            let idle = self.sessions().processes.is_empty()
                && self.table.in_use().next().is_none()
                && owed.is_empty()
                && self.all_told(&mut told);
            let timeout = (!idle).then(|| rustix::time::Timespec {
                tv_sec: SWEEP_EVERY.as_secs() as i64,
                tv_nsec: SWEEP_EVERY.subsec_nanos().into(),
            });
            let mut dead = self.gather(&mut events, timeout.as_ref());
            if !dead.is_empty() {
                std::thread::sleep(GATHER);
                let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
                dead.extend(self.gather(&mut events, Some(&none)));
            }
            let map = self.links.map();
            for (session, process) in dead {
                // Where the metadata has copies, locks are known to others when their server has failed; and shards move where
                // servers come or go, which always begins a generation.
                let may_be_elsewhere = map.copies > 1 || map.generations.len() > 1;
                let every = map.servers.iter().map(|s| s.id);
                let every = every.filter(|_| may_be_elsewhere && !process.locks.is_empty());
                let servers: HashSet<ServerId> = process.locks.iter().copied().chain(every).collect();
                owed.extend(servers.into_iter().map(|server| (server, session)));
            }
            self.report(&mut told);
            let is_down = |server| map.server(server).is_none_or(|s| s.state == ServerState::Down);
            owed.retain(|(server, session)| is_down(*server) || !self.end(*server, *session));
            self.sweep();
            self.settle(&owed);
            if locks_swept.is_none_or(|last| last.elapsed() >= SWEEP_EVERY) {
                locks_swept = Some(Instant::now());
                self.sweep_locks(&mut owed);
                self.settle(&owed);
            }
        }
    }

    /// Notes whether servers have heard of the ends of all sessions that were taken out.
    fn settle(&self, owed: &[(ServerId, u64)]) {
        let sessions = self.sessions();
        self.owes.store(!owed.is_empty() || !sessions.ended.is_empty(), Ordering::Release);
    }

    /// Waits, and takes out the sessions whose processes died, or gave them up.
    fn gather(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<&rustix::time::Timespec>,
    ) -> Vec<(u64, Process)> {
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the agent cannot wait for processes");
                std::thread::sleep(SWEEP_EVERY);
            }
        }
        let mut sessions = self.sessions();
        let mut dead = std::mem::take(&mut sessions.ended);
        for event in events.iter() {
            match event.data.u64() {
                STOP => {
                    let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                }
                session => dead.extend(sessions.remove(session)),
            }
        }
        if !dead.is_empty() {
            self.owes.store(true, Ordering::Release);
        }
        dead
    }

    /// A process died: its locks at a server go. Says whether the server knows.
    fn end(&self, server: ServerId, session: u64) -> bool {
        let request = MetaRequest::EndSession { session };
        let forwards = self.links.map().forwarding.as_ref().is_some_and(|f| f.io_nodes.contains(&server));
        let told = self.links.meta_at(server, &request).and_then(|_| match forwards {
            true => {
                self.links.ask(To::Server(server, ShardId::FORWARDED), &Request::Meta(request)).map(|_| ())
            }
            false => Ok(()),
        });
        match told {
            Ok(()) => true,
            Err(failure) => {
                tracing::warn!(?failure, %server, session, "locks of a dead process are not given up yet");
                false
            }
        }
    }

    /// Tells who answers for a file that a description of it is gone.
    fn give_up(&self, release: &Release) -> Result<(), Failure> {
        if release.shard != ShardId::FORWARDED {
            return self.links.meta(release.shard, &release.request).map(|_| ());
        }
        let map = self.links.map();
        let forwarding = map.forwarding.as_ref();
        let asked = match release.request {
            MetaRequest::Abandon { ino: Some(ino), .. } => vec![map.io_node(self.node, ino)],
            // It may have been opened anywhere.
            _ => forwarding.map_or(Vec::new(), |forwarding| forwarding.io_nodes.clone()),
        };
        asked.into_iter().filter(|server| map.server(*server).is_some()).try_for_each(|server| {
            let to = To::Server(server, ShardId::FORWARDED);
            self.links.ask(to, &Request::Meta(release.request.clone())).map(|_| ())
        })
    }

    /// Releases the descriptions that nobody holds.
    fn sweep(&self) {
        for id in self.table.sweep() {
            if !self.table.retire(id) {
                continue;
            }
            if let Some(release) = abandon(&self.table, self.number, id)
                && let Err(failure) = self.give_up(&release)
            {
                // The slot stays, and is found again: the server has to hear of it once it is back.
                tracing::warn!(
                    ?failure,
                    shard = release.shard.0,
                    "an abandoned open file is not released yet"
                );
                continue;
            }
            self.table.free(id);
        }
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error() as u16)
}

/// A random number.
pub(crate) fn random() -> Result<u64, rustix::io::Errno> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
