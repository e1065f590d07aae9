//! The warden: the part of an agent that starts servers of its node again when they have died.
//!
//! A server need not be the agent's child: a launcher has started it. So the warden goes by the [traces] that daemons
//! leave on their host: a server that died has left its trace, with the number and the start time of its process; one
//! that was told to end has removed it, or noted in it that it ends, and is not started again. A thread for each
//! server sleeps until its process ends (a pidfd). What it starts listens where the server did before, on the storage
//! that it had, under the same number. `bivouac restart` may start a server at the same moment: whoever holds the lock
//! on the storage directory starts it, and the other one finds it there ([`super`]).
//!
//! Without a controller nothing is started, because nobody would take the server in: operations would wait for it in
//! vain.
//!
//! A server that dies again and again is started again after growing pauses, and not more often than `up --restarts`
//! says ([`policy`]); then it stays down, and `status` says why, until somebody starts it by hand.
//!
//! A server that another process has replaced (`bivouac replace`), on this node or elsewhere, is not started again; if it
//! lives, it is shown the map that says so, and ends.
//!
//! While the deployment ends, nothing is started. A server that has not finished starting when the agent stops, or
//! dies, is killed: `down` finds no process that began after it had looked. One that has is told to end.

pub mod policy;

use super::traces::{self, Trace};
use crate::launch::{self, Order, Ready, Report, StorageOrder, Talk};
use crate::process::ProcessId;
use bivouac_daemon::controller::ControlLink;
use bivouac_daemon::{DaemonConfig, ServerConfig, View};
use bivouac_layout::{Epoch, Map, ServerId};
use bivouac_proto::control::{ControlRequest, Ward};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use policy::{Policy, WINDOW};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether a server is back that ended as it was told, or that was given up.
const LOOK: Duration = Duration::from_millis(500);

/// How often it is looked for servers that were replaced, while the map does not change.
const REST: Duration = Duration::from_secs(60);

/// How often it is looked whether there is a controller, while a server is dead.
const AGAIN: Duration = Duration::from_millis(50);

/// The threads.
pub struct Warden {
    shared: Arc<Shared>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

struct Shared {
    /// The agent's own.
    config: DaemonConfig,
    view: View,
    run_dir: PathBuf,
    stopping: AtomicBool,
    /// The storage stays when the deployment ends.
    keep: AtomicBool,
    /// Readable when the threads are to end.
    stop: OwnedFd,
}

impl Warden {
    /// Begins to look after the servers of the agent with this configuration.
    pub fn start(config: DaemonConfig, view: View, run_dir: PathBuf) -> std::io::Result<Warden> {
        let shared = Arc::new(Shared {
            config,
            view,
            run_dir,
            stopping: AtomicBool::new(false),
            keep: AtomicBool::new(true),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let threads = Arc::<Mutex<Vec<_>>>::default();
        let (first, others) = (shared.clone(), threads.clone());
        // It ends with the daemon's connections, and is not waited for.
        spawn("warden", move || first.follow(&others))?;
        Ok(Warden { shared, threads })
    }

    /// Starts nothing any more, and has what it started end.
    pub fn stop(self, keep: bool) {
        self.shared.keep.store(keep, Ordering::Release);
        self.shared.stopping.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        loop {
            let Some(thread) = lock(&self.threads).pop() else { return };
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(work)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Looks after the servers that maps have on this node, and has those end that others have replaced.
    fn follow(self: &Arc<Self>, threads: &Mutex<Vec<JoinHandle<()>>>) {
        let mut kept: BTreeSet<Who> = BTreeSet::new();
        let (mut known, mut rest) = (Epoch(0), LOOK);
        while let Some(map) = self.view.wait_for_map(known, rest) {
            if self.is_stopping() {
                return;
            }
            known = map.epoch;
            let own = map.servers.iter().filter(|server| server.node == self.config.node);
            for who in own.map(|server| (server.id, server.succession())) {
                let shared = self.clone();
                if !kept.insert(who) {
                    continue;
                }
                match spawn("ward", move || Keeping::new(who, &shared).run()) {
                    Ok(thread) => lock(threads).push(thread),
                    Err(error) => {
                        tracing::error!(%error, server = %who.0, "the server will not be started again")
                    }
                }
            }
            let replaced = kept.iter().filter(|who| self.is_replaced(&map, **who));
            let lives = replaced.filter(|who| self.tell_replaced(&map, **who)).count() > 0;
            rest = if lives || known == Epoch(0) { LOOK } else { REST };
        }
    }

    /// Whether another process, here or elsewhere, has a server's number.
    fn is_replaced(&self, map: &Map, (server, succession): Who) -> bool {
        let is_same = |known: &bivouac_layout::Server| {
            known.node == self.config.node && known.succession() == succession
        };
        !map.server(server).is_some_and(is_same)
    }

    /// Shows a server that was replaced the map that says so: then it ends. Whether it lives.
    fn tell_replaced(&self, map: &Map, (server, succession): Who) -> bool {
        let label = traces::server_label(server, succession);
        let trace = traces::of(&self.run_dir, &label, self.config.deployment);
        let Some(Trace { address: Some(address), process, .. }) = trace.filter(|t| t.process.is_alive())
        else {
            return false;
        };
        let endpoint = Endpoint::Tcp(address);
        let told = ControlLink::connect(&endpoint, &self.config.key, self.config.deployment, control::LOOK)
            .and_then(|mut link| {
                link.tell(ControlRequest::Install {
                    news: bivouac_layout::News::Whole(Box::new(map.clone())),
                })
            });
        tracing::info!(%server, succession, pid = process.pid, ?told, "the server was replaced, and has to end");
        true
    }

    /// Waits until the process ends, or this one stops.
    fn wait_for_end(&self, process: ProcessId) {
        let Some(pinned) = process.open() else { return };
        let mut both = [PollFd::new(&pinned, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        if let Err(error) = poll(&mut both, None)
            && error != rustix::io::Errno::INTR
        {
            tracing::error!(%error, "cannot wait for a process");
            self.pause(LOOK);
        }
    }

    /// Waits for so long, and less if this process stops.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopping() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(&left));
        }
    }
}

/// A server, and its succession.
type Who = (ServerId, u32);

/// What is kept of one server.
struct Keeping<'s> {
    shared: &'s Shared,
    succession: u32,
    policy: Policy,
    /// What this thread has started last.
    child: Option<Child>,
    /// What `status` shows.
    ward: Ward,
    /// How the process ended, if it was a child.
    end: Option<ExitStatus>,
    /// Why the last start failed.
    failure: Option<String>,
    /// After the death of this process it is not started again.
    given_up: Option<ProcessId>,
}

impl Keeping<'_> {
    fn new((server, succession): Who, shared: &Shared) -> Keeping<'_> {
        Keeping {
            shared,
            succession,
            policy: Policy::new(shared.config.restarts),
            child: None,
            ward: Ward { server, pid: None, restarts: 0, trouble: None, given_up: false },
            end: None,
            failure: None,
            given_up: None,
        }
    }

    fn run(mut self) {
        while !self.shared.is_stopping() {
            self.reap();
            let trace = self.trace();
            let is_alive = trace.as_ref().is_some_and(|trace| trace.process.is_alive());
            if !is_alive && self.is_replaced() {
                self.shared.view.forget(self.ward.server, self.shared.config.node);
                return;
            }
            match trace {
                Some(trace) if trace.process.is_alive() => self.is_there(&trace),
                Some(trace) if !trace.ending => self.has_died(&trace),
                // It has ended as it was told, or is not there yet.
                _ => {
                    self.note(None);
                    self.shared.pause(LOOK);
                }
            }
        }
        self.finish();
    }

    fn trace(&self) -> Option<Trace> {
        let label = traces::server_label(self.ward.server, self.succession);
        traces::of(&self.shared.run_dir, &label, self.shared.config.deployment)
    }

    fn is_replaced(&self) -> bool {
        self.shared.is_replaced(&self.shared.view.map(), (self.ward.server, self.succession))
    }

    /// Takes note of a child's end.
    fn reap(&mut self) {
        if let Some(child) = &mut self.child
            && let Ok(Some(status)) = child.try_wait()
        {
            (self.end, self.child) = (Some(status), None);
        }
    }

    fn note(&mut self, pid: Option<u32>) {
        self.ward.pid = pid;
        self.shared.view.note(self.ward.clone());
    }

    /// The server runs.
    fn is_there(&mut self, trace: &Trace) {
        if self.child.as_ref().is_none_or(|child| child.id() != trace.process.pid) {
            // It has begun with the deployment, or somebody has started it by hand.
            self.policy.forget();
        }
        (self.given_up, self.ward.given_up, self.ward.trouble) = (None, false, None);
        (self.end, self.failure) = (None, None);
        self.note(Some(trace.process.pid));
        self.shared.wait_for_end(trace.process);
    }

    /// The server's process has ended, and nobody has told it to.
    fn has_died(&mut self, trace: &Trace) {
        if self.given_up == Some(trace.process) || self.shared.view.is_ending() {
            return self.shared.pause(LOOK);
        }
        if self.given_up.take().is_some() {
            // Somebody has started it by hand, and it died before this thread looked.
            self.policy.forget();
            self.ward.given_up = false;
        }
        let server = self.ward.server;
        let why = self.failure.clone().unwrap_or_else(|| ended(self.end));
        if !self.shared.view.has_controller() {
            self.ward.trouble = Some(format!("{why}; it is started again when there is a controller"));
            self.note(None);
            return self.shared.pause(AGAIN);
        }
        self.ward.trouble = Some(why.clone());
        self.note(None);
        let Some(pause) = self.policy.pause(Instant::now()) else {
            let (times, minutes) = (self.shared.config.restarts, WINDOW.as_secs() / 60);
            let why = format!(
                "it was started again {times} times within {minutes} minutes, and is not any more: {why}"
            );
            tracing::error!(%server, "the server stays down: {why}");
            (self.given_up, self.ward.given_up, self.ward.trouble) = (Some(trace.process), true, Some(why));
            return self.note(None);
        };
        tracing::warn!(%server, pid = trace.process.pid, ?pause, "the server is started again: {why}");
        self.shared.pause(pause);
        // Somebody may have started it meanwhile, or the deployment ends.
        let is_same = self.trace().is_some_and(|now| now.process == trace.process && !now.ending);
        if self.shared.is_stopping() || self.shared.view.is_ending() || !is_same || self.is_replaced() {
            return;
        }
        self.policy.started(Instant::now());
        self.end = None;
        match self.start(trace) {
            Ok(ready) => {
                tracing::info!(%server, pid = ready.process.pid, "the server was started again");
                self.ward.restarts += 1;
                self.failure = None;
            }
            Err(why) => {
                tracing::error!(%server, "the server does not start: {why}");
                self.failure = Some(why);
            }
        }
    }

    /// Starts it where it was. An error is why that failed; then nothing of it is left.
    fn start(&mut self, trace: &Trace) -> Result<Ready, String> {
        let server = self.ward.server;
        let map = self.shared.view.map();
        let address = map.server(server).ok_or("the map does not have it")?.address;
        let own = &self.shared.config;
        let order = Order {
            config: DaemonConfig {
                server: Some(ServerConfig {
                    id: server,
                    succession: self.succession,
                    storage: Vec::new(),
                    created_storage: true,
                }),
                agent: false,
                listen: (own.listen.ip(), address.port()).into(),
                ephemeral: self.shared.view.is_tethered(),
                log_file: trace.log.clone(),
                ..own.clone()
            },
            storage: StorageOrder::Existing(trace.storage.clone()),
        };
        let stopping = || self.shared.is_stopping().then_some(Talk::Interrupted(libc::SIGTERM));
        match launch::converse_until(serving(), &order, launch::START_LIMIT, &stopping) {
            Ok((Report::Ready(ready), mut child)) => {
                // Another one was there already; this process ends.
                if ready.process.pid != child.id() {
                    let _ = child.wait();
                } else {
                    self.child = Some(child);
                }
                Ok(ready)
            }
            Ok((report, mut child)) => {
                let _ = child.wait();
                match report {
                    Report::Error { cause, .. } => Err(cause),
                    _ => Err("its process said something that was not asked".into()),
                }
            }
            Err(Talk::Spawn(error)) => Err(format!("no process can be started: {error}")),
            Err(Talk::Silent { status, stderr, .. }) => Err(format!("it ended at once ({status}) {stderr}")),
            Err(Talk::Nonsense(line)) => Err(format!("it said {line:?}")),
            Err(Talk::Late) => Err(format!("it is not ready after {} s", launch::START_LIMIT.as_secs())),
            Err(Talk::Interrupted(_)) => Err("the agent stops".into()),
        }
    }

    /// The agent stops, and with it the deployment: whoever told all its daemons may have come before this one's server
    /// could hear it.
    fn finish(&mut self) {
        self.reap();
        let map = self.shared.view.map();
        let (Some(_), Some(server), false) = (&self.child, map.server(self.ward.server), self.is_replaced())
        else {
            return;
        };
        let (config, endpoint) = (&self.shared.config, Endpoint::Tcp(server.address));
        let keep = self.shared.keep.load(Ordering::Acquire);
        let told = ControlLink::connect(&endpoint, &config.key, config.deployment, control::STOP)
            .and_then(|mut link| link.tell(ControlRequest::Shutdown { keep }));
        if let Err(error) = told {
            // It has heard it before, most likely.
            tracing::debug!(%error, server = %server.id, "not told to stop");
        }
    }
}

/// The command of a process that serves. It is killed if this thread ends before it is ready.
fn serving() -> Command {
    let mut command = launch::own_command();
    command.args(["daemon", "--serve"]).current_dir("/");
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have died before that.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(rustix::io::Errno::SRCH.into())
            }
        });
    }
    command
}

/// How a process ended, in words.
fn ended(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("its process was ended by signal {signal}"),
        Some((_, Some(code))) => format!("its process ended with exit code {code}"),
        _ => "its process has ended".into(),
    }
}
