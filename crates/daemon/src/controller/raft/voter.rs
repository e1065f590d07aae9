//! A voter of this process, as everything else sees it: blocking calls with a bounded wait.
//!
//! openraft is asynchronous. Its runtime runs on one thread, which the voter owns; calls hand it work and wait for the
//! outcome. Whoever calls may be any thread but that one.

use super::disk::Disk;
use super::journal::{Contents, Journal};
use super::machine::{Machine, Published, SNAPSHOT, Stored};
use super::peers::{Carriers, Peers};
use super::store::LogStore;
use super::{Identity, Membership, Outcome, Proposal, Types};
use crate::controller::ControllerError;
use bivouac_layout::{Map, NodeId};
use bivouac_proto::raft::RaftRequest;
use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::raft::AppendEntriesResponse;
use openraft::{Config, EmptyNode, EntryPayload, RaftMetrics, ServerState, SnapshotPolicy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type Raft = openraft::Raft<Types>;
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The times and bounds of a group. All of its voters have the same.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    /// Time between two signs of life of the leader, and how long an answer is awaited. (openraft looks every one and
    /// a half of these whether something is due.)
    pub(crate) heartbeat: Duration,
    /// A voter that hears of no leader waits for `election.1`, and then for a time between both, which is another
    /// one for each voter, before it wants to be the leader itself.
    pub(crate) election: (Duration, Duration),
    /// A snapshot is made after so many entries.
    pub(crate) snapshot_after: u64,
}

impl Times {
    /// A dead leader is replaced after 1.1 to 1.7 s. A voter that does not get a processor for a second loses
    /// nothing.
    pub(crate) const USUAL: Times = Times {
        heartbeat: Duration::from_millis(200),
        election: (Duration::from_millis(400), Duration::from_millis(700)),
        snapshot_after: 256,
    };
}

/// With what a voter begins.
pub(crate) struct VoterConfig {
    /// Who it is.
    pub(crate) identity: Identity,
    /// Where it keeps its files; made if it is not there.
    pub(crate) directory: PathBuf,
    /// The ways to the others.
    pub(crate) carriers: Box<Carriers>,
    /// The group's times.
    pub(crate) times: Times,
}

/// What a voter knows of the group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// The term, which grows with each election.
    pub(crate) term: u64,
    /// Whether this voter was elected in this term, and knows of no later one.
    pub(crate) leads: bool,
    /// Who leads, if that is known.
    pub(crate) leader: Option<NodeId>,
    /// Whether nobody else votes.
    pub(crate) alone: bool,
    /// Who votes.
    pub(crate) voters: Vec<NodeId>,
    /// The nodes on which a decision can still depend: the voters, and, until this list of voters is committed, those before.
    pub(crate) relied_on: Vec<NodeId>,
    /// No change of the voters is under way: one that was interrupted has to be made again.
    pub(crate) settled: bool,
    /// When most voters have confirmed last that this one leads, about: it may be taken for later than it was by as long
    /// as this process did not get a processor. What has to be certain asks [`Voter::confirm`].
    pub(crate) confirmed: Option<Instant>,
    /// Why the voter has ended by itself, if it has.
    pub(crate) failed: Option<String>,
}

/// What a voter has kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// Term and number of its last entry.
    pub(crate) last: (u64, u64),
    /// Who votes, according to that.
    pub(crate) voters: Vec<NodeId>,
}

impl Standing {
    /// Whether it leads, and there is nobody whom it would have to tell that it lives, or who could lead instead.
    pub(crate) fn leads_alone(&self) -> bool {
        self.leads && self.alone && self.settled && self.relied_on.len() == 1
    }
}

enum Job {
    Run(Box<dyn FnOnce(Raft) -> Task + Send>),
    Stop,
}

/// What decides whether a voter wants to lead.
#[derive(Default)]
struct Ear {
    /// When a leader was heard last.
    heard: Option<Instant>,
    /// It never does any more.
    retired: bool,
}

/// A running voter. Dropping it stops it; its files stay.
pub(crate) struct Voter {
    identity: Identity,
    jobs: UnboundedSender<Job>,
    published: Arc<Published>,
    standing: Arc<(Mutex<Standing>, Condvar)>,
    peers: Peers,
    /// Whoever has heard of no leader for so long misses one.
    silence: Duration,
    ear: Arc<Mutex<Ear>>,
    kept: Option<Kept>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Voter {
    /// Goes on with what this voter has kept. `None`: it has kept nothing of this deployment.
    pub(crate) fn open(config: VoterConfig) -> Result<Option<Voter>, ControllerError> {
        let identity = config.identity;
        let Some((journal, contents)) = Journal::open(&config.directory, identity)? else {
            return Ok(None);
        };
        let stored = Stored::read(&config.directory, identity)?;
        let snapshot_has = stored.as_ref().and_then(|stored| stored.meta().last_log_id);
        if contents.purged > snapshot_has {
            let path = config.directory.join(SNAPSHOT);
            let what = "it lacks entries that the journal beside it has no longer".into();
            return Err(ControllerError::Damaged { path, what });
        }
        Voter::start(config, journal, contents, stored).map(Some)
    }

    /// Begins without anything, in place of what is there. Only for a voter that has never voted in this deployment.
    pub(crate) fn create(config: VoterConfig) -> Result<Voter, ControllerError> {
        let failed = |cause| ControllerError::Store { path: config.directory.clone(), cause };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&config.directory).map_err(failed)?;
        match std::fs::remove_file(config.directory.join(SNAPSHOT)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let journal = Journal::create(&config.directory, config.identity)?;
        Voter::start(config, journal, Contents::default(), None)
    }

    fn start(
        config: VoterConfig,
        journal: Journal,
        contents: Contents,
        stored: Option<Stored>,
    ) -> Result<Voter, ControllerError> {
        let VoterConfig { identity, directory, carriers, times } = config;
        let (silence, ear) = (times.election.1, Arc::default());
        let kept = kept(&contents, stored.as_ref());
        let has = stored.as_ref().and_then(|stored| stored.meta().last_log_id);
        let (disk, writer) = Disk::start(journal, contents.clone(), directory.join(SNAPSHOT), has)
            .map_err(ControllerError::Thread)?;
        let (published, peers) = (Arc::<Published>::default(), Peers::new(carriers));
        let standing = Arc::<(Mutex<Standing>, Condvar)>::default();
        let (jobs, given) = unbounded_channel();
        let (started, has_started) = mpsc::channel();
        let thread = std::thread::Builder::new().name("raft".into()).stack_size(1 << 20);
        let (machines, ways, seen) = (published.clone(), peers.clone(), standing.clone());
        let stopping = writer.stopping();
        let work = move || {
            let begin = async move {
                let machine = Machine::new(identity, stored, machines, disk.clone())?;
                let log = LogStore::new(contents, disk);
                let (config, id) = (Arc::new(settings(&times)), u64::from(identity.node.0));
                Raft::new(id, config, ways, log, machine).await.map_err(|error| match error {
                    openraft::error::Fatal::StorageError(error) => error,
                    other => super::store::failed(openraft::ErrorVerb::Read, other),
                })
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            match runtime {
                Ok(runtime) => runtime.block_on(run(begin, given, started, seen, stopping)),
                Err(error) => drop(started.send(Err(ControllerError::Thread(error)))),
            }
            // All that it spawned has gone with the runtime.
            writer.join();
        };
        let thread = thread.spawn(work).map_err(ControllerError::Thread)?;
        let thread = Mutex::new(Some(thread));
        has_started.recv().unwrap_or(Err(ControllerError::VoterStopped))?;
        Ok(Voter { identity, jobs, published, standing, peers, silence, ear, kept, thread })
    }

    /// Its number: its node's.
    #[cfg(test)]
    pub(crate) fn number(&self) -> NodeId {
        self.identity.node
    }

    /// What it had kept when it was started.
    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// Founds a group of which it is the only voter.
    pub(crate) fn found(&self, limit: Duration) -> Result<(), ControllerError> {
        let voters = BTreeSet::from([u64::from(self.identity.node.0)]);
        self.call(limit, move |raft| async move { raft.initialize(voters).await })?.map_err(said)
    }

    /// Proposes a change, and waits until it is committed and applied. After [`ControllerError::Unconfirmed`] nobody
    /// knows whether it will be.
    pub(crate) fn propose(&self, proposal: Proposal, limit: Duration) -> Result<Arc<Map>, ControllerError> {
        let written = self.call(limit, move |raft| async move { raft.client_write(proposal).await })?;
        match written.map_err(write_error)?.data {
            Outcome::Changed(_) => self.map().ok_or(ControllerError::NotFounded),
            Outcome::Stale => Err(ControllerError::Stale),
            Outcome::Refused | Outcome::Nothing => Err(ControllerError::Refused),
        }
    }

    /// Asks the voters whether this one leads: if so, most of them have confirmed it after the call began, and
    /// everything that was committed before is applied here.
    pub(crate) fn confirm(&self, limit: Duration) -> Result<(), ControllerError> {
        let asked = self.call(limit, |raft| async move { raft.ensure_linearizable().await })?;
        match asked {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to))) => {
                Err(ControllerError::NotLeader(to.leader_id.map(node)))
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                Err(ControllerError::Unconfirmed)
            }
            Err(error @ RaftError::Fatal(_)) => Err(said(error)),
        }
    }

    /// Makes these the voters. Those that are not yet get everything first. Only the leader can.
    pub(crate) fn set_voters(&self, voters: &[NodeId], limit: Duration) -> Result<(), ControllerError> {
        let voters: BTreeSet<u64> = voters.iter().map(|node| node.0.into()).collect();
        let begin = Instant::now();
        for learner in &voters {
            if !self.standing().voters.contains(&node(*learner)) {
                let learner = *learner;
                let left = limit.saturating_sub(begin.elapsed());
                let work =
                    move |raft: Raft| async move { raft.add_learner(learner, EmptyNode {}, true).await };
                self.call(left, work)?.map_err(write_error)?;
            }
        }
        let left = limit.saturating_sub(begin.elapsed());
        let work = move |raft: Raft| async move { raft.change_membership(voters, false).await };
        self.call(left, work)?.map_err(write_error).map(|_| ())
    }

    /// Does not want to become the leader any more: the deployment ends.
    pub(crate) fn retire(&self) {
        lock(&self.ear).retired = true;
        self.elect(false);
    }

    /// Whether it may want to become the leader. (It may at first.)
    pub(crate) fn set_candidate(&self, may: bool) {
        self.elect(may && !lock(&self.ear).retired);
    }

    fn elect(&self, may: bool) {
        let task = move |raft: Raft| -> Task { Box::pin(async move { raft.runtime_config().elect(may) }) };
        let _ = self.jobs.send(Job::Run(Box::new(task)));
    }

    /// Whether it would vote for a new leader: it has heard of none for some time, and leads itself no more.
    pub(crate) fn misses_a_leader(&self) -> bool {
        let standing = self.standing();
        if standing.leads {
            let silent = standing.confirmed.is_none_or(|at| at.elapsed() > self.silence);
            return silent && !standing.leads_alone();
        }
        lock(&self.ear).heard.is_none_or(|at| at.elapsed() > self.silence)
    }

    /// Whether most voters, these others and this one, say so.
    pub(crate) fn canvass(&self, others: &[NodeId], limit: Duration) -> bool {
        let peers = self.peers.clone();
        let asked: Vec<u64> = others.iter().map(|node| node.0.into()).collect();
        let all = asked.len() + 1;
        let work = move |_| async move { peers.canvass(&asked, limit).await };
        self.call(2 * limit, work).is_ok_and(|yes| 2 * (yes + 1) > all)
    }

    /// Serves a message of another voter, and appends the answer to `out`.
    pub(crate) fn serve(
        &self,
        kind: RaftRequest,
        message: &[u8],
        limit: Duration,
        out: &mut Vec<u8>,
    ) -> Result<(), ControllerError> {
        match kind {
            RaftRequest::Append => {
                let ear = self.ear.clone();
                self.answer(message, limit, out, move |raft, rpc| async move {
                    let answer = raft.append_entries(rpc).await;
                    if !matches!(answer, Ok(AppendEntriesResponse::HigherVote(_)) | Err(_)) {
                        lock(&ear).heard = Some(Instant::now());
                    }
                    answer
                })
            }
            RaftRequest::Canvass => {
                out.push(self.misses_a_leader().into());
                Ok(())
            }
            RaftRequest::Vote => {
                self.answer(message, limit, out, |raft, rpc| async move { raft.vote(rpc).await })
            }
            RaftRequest::Snapshot => {
                self.answer(message, limit, out, |raft, rpc| async move { raft.install_snapshot(rpc).await })
            }
        }
    }

    fn answer<Q, A, E, F>(
        &self,
        message: &[u8],
        limit: Duration,
        out: &mut Vec<u8>,
        work: impl FnOnce(Raft, Q) -> F + Send + 'static,
    ) -> Result<(), ControllerError>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + Send + 'static,
        E: Serialize + std::fmt::Display + Send + 'static,
        F: Future<Output = Result<A, RaftError<u64, E>>> + Send,
    {
        let request: Q = bivouac_proto::decode(message).map_err(|_| ControllerError::NotForController)?;
        let answer = self.call(limit, move |raft| work(raft, request))?;
        if let Err(error @ RaftError::Fatal(_)) = answer {
            return Err(ControllerError::Voter(error.to_string()));
        }
        bivouac_proto::encode(&answer, out);
        Ok(())
    }

    /// What it knows of the group.
    pub(crate) fn standing(&self) -> Standing {
        lock(&self.standing.0).clone()
    }

    /// Waits until something of that changes, for `limit` at most.
    pub(crate) fn wait(&self, limit: Duration) {
        let standing = lock(&self.standing.0);
        drop(self.standing.1.wait_timeout(standing, limit));
    }

    /// When another voter has last answered this one, if it ever has.
    pub(crate) fn answered(&self, voter: NodeId) -> Option<Instant> {
        self.peers.answered(voter.0.into())
    }

    /// The newest map that it knows to be committed.
    pub(crate) fn map(&self) -> Option<Arc<Map>> {
        self.published.get().map
    }

    /// Whether all daemons have had a map since the deployment was started.
    pub(crate) fn has_begun(&self) -> bool {
        self.published.get().begun
    }

    /// Stops. Calls under way fail.
    pub(crate) fn stop(&self) {
        let _ = self.jobs.send(Job::Stop);
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        self.peers.stop();
    }

    /// Does something in the runtime, and waits for the outcome.
    fn call<T, F>(
        &self,
        limit: Duration,
        work: impl FnOnce(Raft) -> F + Send + 'static,
    ) -> Result<T, ControllerError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let (done, is_done) = mpsc::sync_channel(1);
        let task = move |raft| -> Task {
            Box::pin(async move {
                // Who does not wait any more does not need it.
                let _ = done.send(work(raft).await);
            })
        };
        self.jobs.send(Job::Run(Box::new(task))).map_err(|_| ControllerError::VoterStopped)?;
        is_done.recv_timeout(limit).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => ControllerError::Unconfirmed,
            mpsc::RecvTimeoutError::Disconnected => ControllerError::VoterStopped,
        })
    }
}

impl Drop for Voter {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Voter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Voter").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The voter's thread: starts openraft, does what it is given, and stops it.
async fn run(
    begin: impl Future<Output = Result<Raft, super::StorageError>>,
    mut given: UnboundedReceiver<Job>,
    started: mpsc::Sender<Result<(), ControllerError>>,
    standing: Arc<(Mutex<Standing>, Condvar)>,
    stopping: Arc<AtomicBool>,
) {
    let raft = match begin.await {
        Ok(raft) => raft,
        Err(error) => return drop(started.send(Err(ControllerError::Voter(error.to_string())))),
    };
    let _ = started.send(Ok(()));
    let mut metrics = raft.metrics();
    let see = move |seen: &RaftMetrics<u64, EmptyNode>| {
        let mut standing_now = lock(&standing.0);
        *standing_now = standing_of(seen, &standing_now.relied_on);
        let rests = standing_now.leads_alone();
        drop(standing_now);
        standing.1.notify_all();
        rests
    };
    let mut rests = see(&metrics.borrow_and_update());
    let clock = raft.clone();
    tokio::spawn(async move {
        clock.runtime_config().tick(!rests);
        while metrics.changed().await.is_ok() {
            let now = see(&metrics.borrow_and_update());
            if std::mem::replace(&mut rests, now) != now {
                clock.runtime_config().tick(!now);
            }
        }
    });
    while let Some(Job::Run(work)) = given.recv().await {
        tokio::spawn(work(raft.clone()));
    }
    // openraft waits for what is being written, and a full disk would never let it end.
    stopping.store(true, Ordering::Relaxed);
    if let Err(error) = raft.shutdown().await {
        tracing::warn!(%error, "the voter has not ended as it should");
    }
}

fn settings(times: &Times) -> Config {
    Config {
        cluster_name: "bivouac".into(),
        heartbeat_interval: times.heartbeat.as_millis() as u64,
        election_timeout_min: times.election.0.as_millis() as u64,
        election_timeout_max: times.election.1.as_millis() as u64,
        install_snapshot_timeout: 5000,
        max_payload_entries: 64,
        snapshot_max_chunk_size: 1 << 20,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(times.snapshot_after),
        max_in_snapshot_log_to_keep: times.snapshot_after / 4,
        replication_lag_threshold: 4 * times.snapshot_after,
        ..Config::default()
    }
}

fn node(voter: u64) -> NodeId {
    u16::try_from(voter).map_or(NodeId::NONE, NodeId)
}

/// What a voter knows of the group. `before`: its `relied_on` until now.
pub(super) fn standing_of(metrics: &RaftMetrics<u64, EmptyNode>, before: &[NodeId]) -> Standing {
    let ago = metrics.millis_since_quorum_ack.map(Duration::from_millis);
    let leads = metrics.state == ServerState::Leader && metrics.running_state.is_ok();
    let voters: Vec<NodeId> = metrics.membership_config.voter_ids().map(node).collect();
    // A leader that was removed from the list goes on until openraft looks whether it is in it.
    let alone = voters == [node(metrics.id)];
    // openraft goes by the newest list as soon as it is in its log.
    let committed = metrics.last_applied >= *metrics.membership_config.log_id();
    let former = before.iter().filter(|node| !committed && !voters.contains(node));
    let relied_on = voters.iter().chain(former).copied().collect();
    Standing {
        term: metrics.current_term,
        leads,
        leader: metrics.current_leader.map(node),
        confirmed: match alone {
            true => Some(Instant::now()),
            false => ago.and_then(|ago| Instant::now().checked_sub(ago)),
        },
        alone,
        voters,
        relied_on,
        settled: metrics.membership_config.membership().get_joint_config().len() <= 1,
        failed: metrics.running_state.as_ref().err().map(ToString::to_string),
    }
}

/// What a voter has kept, by its files.
fn kept(contents: &Contents, stored: Option<&Stored>) -> Option<Kept> {
    let newest = contents.entries.values().rev().find_map(|entry| match &entry.payload {
        EntryPayload::Membership(membership) => Some(Membership::new(None, membership.clone())),
        _ => None,
    });
    let snapshot = stored.map(|stored| stored.meta());
    let membership = newest.or_else(|| snapshot.map(|meta| meta.last_membership.clone()))?;
    let last = contents.last().max(snapshot.and_then(|meta| meta.last_log_id))?;
    let voters = membership.voter_ids().map(node).collect::<BTreeSet<_>>().into_iter().collect();
    Some(Kept { last: (last.leader_id.term, last.index), voters })
}

fn write_error(error: RaftError<u64, ClientWriteError<u64, EmptyNode>>) -> ControllerError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => {
            ControllerError::NotLeader(to.leader_id.map(node))
        }
        other => said(other),
    }
}

fn said(error: impl std::fmt::Display) -> ControllerError {
    ControllerError::Voter(error.to_string())
}

/// The greatest odd number of voters that there can be, `first` among them.
pub(crate) fn voters_of(first: NodeId, nodes: &BTreeMap<NodeId, SocketAddr>) -> Vec<NodeId> {
    let others = nodes.keys().filter(|node| **node != first && can_vote_with(first, **node, nodes));
    let can: Vec<NodeId> = std::iter::once(first).chain(others.copied()).take(MOST_VOTERS).collect();
    let count = odd(can.len());
    let mut voters: Vec<NodeId> = can.into_iter().take(count).collect();
    voters.sort_unstable();
    voters
}

/// How many of so many can be voters: an odd number.
pub(crate) fn odd(can: usize) -> usize {
    if can.is_multiple_of(2) { can.saturating_sub(1) } else { can }
}

/// Whether two agents reach each other: one that listens for its own machine only is reached by none of another.
pub(crate) fn can_vote_with(one: NodeId, other: NodeId, nodes: &BTreeMap<NodeId, SocketAddr>) -> bool {
    let is_own = |node: NodeId| nodes.get(&node).map(|address| address.ip().is_loopback());
    is_own(one) == is_own(other)
}

/// More voters would survive more deaths, and cost more messages.
pub(crate) const MOST_VOTERS: usize = 7;
