//! An agent's part in the group of voters: it may be one, and it may be the one that leads.
//!
//! A deployment is *founded* by one agent: alone at first, it writes the first map, enlists the agents that are to be
//! voters with it, and makes them voters. When all daemons were started again, one agent *wakes* all others: it tells
//! them where everybody listens now, which voters have to know before they can elect, and each that has kept
//! something goes on as a voter.
//!
//! One thread, the [`helm`], looks at what the voter knows. While the voter leads and most others confirm it, the agent
//! has a [`Controller`].

mod helm;
mod roles;

use super::raft::journal::JOURNAL;
use super::raft::machine::SNAPSHOT;
use super::raft::voter::{Kept, Times, Voter, VoterConfig, voters_of};
use super::raft::wire::{Book, Wire};
use super::raft::{Identity, Proposal};
use super::{ControlLink, Controller, ControllerError, LinkError};
use crate::tether::Tether;
use bivouac_layout::{Founding, Map, NodeId, ServerId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_proto::raft::RaftRequest;
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use helm::Helm;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the helm looks at what does not wake it.
const LOOK: Duration = Duration::from_millis(100);
/// How long a change of the voters may take.
const CHANGE: Duration = Duration::from_secs(30);
/// How long founding, and a new leader's first questions, may take.
const BEGIN: Duration = Duration::from_secs(5);
/// How long a message of another voter may take here. It does not wait as long.
const SERVE: Duration = Duration::from_secs(2);
/// Whoever pinged so recently is the leader.
const HEARD: Duration = Duration::from_secs(3);

/// The names of a voter's files.
pub const VOTER_FILES: [&str; 4] = [JOURNAL, SNAPSHOT, "journal.new", "snapshot.new"];

/// With what an agent's part begins.
pub(crate) struct GroupConfig {
    /// The deployment's number.
    pub(crate) deployment: u64,
    /// Its key.
    pub(crate) key: Key,
    /// The agent's node.
    pub(crate) node: NodeId,
    /// The agent's start.
    pub(crate) boot: u64,
    /// Where it keeps its files as a voter.
    pub(crate) directory: PathBuf,
    /// Where it listens on its node.
    pub(crate) own: Endpoint,
    /// Agents start servers of their nodes again that died.
    pub(crate) restarts: bool,
    /// Ends its daemon; `true` keeps the storage.
    pub(crate) stop: Arc<dyn Fn(bool) + Send + Sync>,
    /// Where the deployment ends with a `run`.
    pub(crate) tether: Option<Arc<Tether>>,
    /// The group's times.
    pub(crate) times: Times,
}

/// A start of all daemons of a deployment that is there already.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Names it.
    pub(crate) number: u64,
    /// Where each node's agent listens.
    pub(crate) agents: Vec<(NodeId, SocketAddr)>,
    /// Where each server listens.
    pub(crate) servers: Vec<(ServerId, SocketAddr)>,
}

/// An agent's part.
pub(crate) struct Group {
    shared: Arc<Shared>,
    helm: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    config: GroupConfig,
    book: Book,
    /// Held while a deployment is founded or woken, or a voter enlisted. Locked before `state`.
    beginning: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    voter: Option<Arc<Voter>>,
    controller: Option<Arc<Controller>>,
    /// The start that the map has to know of before anybody is declared down.
    start: Option<Start>,
    /// Why there is no controller although this voter leads.
    problem: Option<String>,
    /// Who has pinged this daemon last.
    heard: Option<(NodeId, Instant)>,
    stopping: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    pub(crate) fn new(config: GroupConfig) -> Group {
        let (book, beginning, state) = (Book::default(), Mutex::default(), Mutex::default());
        Group { shared: Arc::new(Shared { config, book, beginning, state }), helm: Mutex::default() }
    }

    /// Founds a deployment, and returns when this agent is its controller.
    pub(crate) fn found(&self, founding: Founding) -> Result<(), ControllerError> {
        let _beginning = lock(&self.shared.beginning);
        if lock(&self.shared.state).voter.is_some() {
            return Err(ControllerError::Begun);
        }
        let map = founding.map().map_err(ControllerError::BadMap)?;
        self.shared.book.set(map.nodes.iter().map(|node| (node.id, node.agent)));
        let voter = Arc::new(Voter::create(self.shared.voter_config())?);
        let founded = self.shared.found(&voter, map);
        if let Err(error) = founded {
            voter.stop();
            self.remove();
            return Err(error);
        }
        self.begin(voter)?;
        let until = Instant::now() + BEGIN;
        while lock(&self.shared.state).controller.is_none() {
            if Instant::now() >= until {
                return Err(ControllerError::Unconfirmed);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Wakes all agents of a deployment that is there already.
    pub(crate) fn resume(
        &self,
        agents: Vec<(NodeId, SocketAddr)>,
        servers: Vec<(ServerId, SocketAddr)>,
    ) -> Result<(), ControllerError> {
        let number = crate::agent::random().map_err(|e| ControllerError::Thread(e.into()))?;
        let start = Start { number, agents, servers };
        let wake = |node: NodeId, address| match node == self.shared.config.node {
            true => self.wake(&start),
            false => self.wake_other(node, address, &start),
        };
        let asked = std::thread::scope(|scope| {
            let agents = start.agents.iter();
            let threads: Vec<_> =
                agents.map(|(node, at)| (*node, scope.spawn(|| wake(*node, *at)))).collect();
            let failed = |node| Err(ControllerError::NotEnlisted { node, cause: "it has failed".into() });
            let joined = threads.into_iter();
            joined.map(|(node, t)| (node, t.join().unwrap_or_else(|_| failed(node)))).collect()
        });
        enough(asked)
    }

    fn wake_other(
        &self,
        node: NodeId,
        address: SocketAddr,
        start: &Start,
    ) -> Result<Option<Kept>, ControllerError> {
        let Start { number, agents, servers } = start.clone();
        match self.shared.ask(node, address, ControlRequest::Wake { number, agents, servers })? {
            Some(ControlReply::Woken { last, voters }) => Ok(last.map(|last| Kept { last, voters })),
            _ => Err(ControllerError::NotEnlisted { node, cause: LinkError::Unexpected.to_string() }),
        }
    }

    /// All daemons were started again: goes on as a voter if this agent has kept anything.
    pub(crate) fn wake(&self, start: &Start) -> Result<Option<Kept>, ControllerError> {
        let _beginning = lock(&self.shared.beginning);
        self.shared.book.set(start.agents.iter().copied());
        lock(&self.shared.state).start = Some(start.clone());
        let known = lock(&self.shared.state).voter.clone();
        let voter = match known {
            Some(voter) => voter,
            None => match Voter::open(self.shared.voter_config())? {
                Some(voter) => {
                    let voter = Arc::new(voter);
                    self.begin(voter.clone())?;
                    voter
                }
                None => return Ok(None),
            },
        };
        Ok(voter.kept().cloned())
    }

    /// Becomes a voter. (Until the others have agreed, one that is only told what they decide.)
    pub(crate) fn enlist(&self, agents: &[(NodeId, SocketAddr)]) -> Result<(), ControllerError> {
        let _beginning = lock(&self.shared.beginning);
        self.shared.book.set(agents.iter().copied());
        if lock(&self.shared.state).voter.is_some() {
            return Ok(());
        }
        let voter = match Voter::open(self.shared.voter_config())? {
            Some(voter) => voter,
            None => Voter::create(self.shared.voter_config())?,
        };
        self.begin(Arc::new(voter))
    }

    /// Takes the voter, and starts the helm if it does not run yet.
    fn begin(&self, voter: Arc<Voter>) -> Result<(), ControllerError> {
        let mut state = lock(&self.shared.state);
        if state.stopping {
            return Err(ControllerError::VoterStopped);
        }
        state.voter = Some(voter);
        drop(state);
        let mut helm = lock(&self.helm);
        if helm.is_none() {
            let shared = self.shared.clone();
            *helm = Some(super::spawn("helm", move || Helm::new(shared).run())?);
        }
        Ok(())
    }

    /// Serves a message of another voter.
    pub(crate) fn serve(
        &self,
        kind: RaftRequest,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ControllerError> {
        let voter = lock(&self.shared.state).voter.clone().ok_or(ControllerError::NotForController)?;
        voter.serve(kind, message, SERVE, out)
    }

    /// The controller, if this agent is it.
    pub(crate) fn controller(&self) -> Option<Arc<Controller>> {
        lock(&self.shared.state).controller.clone()
    }

    /// The answer to who takes this agent for the controller, which it is not.
    pub(crate) fn not_leader(&self) -> ControlReply {
        let state = lock(&self.shared.state);
        match state.problem.clone() {
            Some(cause) => ControlReply::Failed { cause },
            None => ControlReply::NotLeader { leader: state.leader(self.shared.config.node) },
        }
    }

    /// The same, as long as it does not know yet that it is no more.
    pub(crate) fn deposed(&self) -> ControlReply {
        ControlReply::NotLeader { leader: None }
    }

    /// What this agent knows of who keeps the map; and its daemon's map.
    pub(crate) fn describe(&self, map: &Map) -> ControlReply {
        let state = lock(&self.shared.state);
        let voters = state.voter.as_ref().map_or(Vec::new(), |voter| voter.standing().voters);
        let leader = state.leader(self.shared.config.node);
        ControlReply::Group { leader, voters, map: Box::new(map.clone()) }
    }

    /// Nodes may have been added: whoever votes has to find the others.
    pub(crate) fn learn_nodes(&self, map: &Map) {
        self.shared.book.add(map.nodes.iter().map(|node| (node.id, node.agent)));
    }

    /// The leader has pinged this daemon.
    pub(crate) fn heard(&self, leader: NodeId) {
        lock(&self.shared.state).heard = Some((leader, Instant::now()));
    }

    /// The daemon is told to stop: it does not want to lead any more.
    pub(crate) fn retire(&self) {
        let voter = lock(&self.shared.state).voter.clone();
        if let Some(voter) = voter {
            voter.retire();
        }
    }

    /// Stops; files stay.
    pub(crate) fn stop(&self) {
        let voter = {
            let mut state = lock(&self.shared.state);
            state.stopping = true;
            state.voter.take()
        };
        // Then whatever the helm waits for fails.
        if let Some(voter) = voter {
            voter.stop();
        }
        if let Some(helm) = lock(&self.helm).take() {
            let _ = helm.join();
        }
    }

    /// Removes the files, and the directory if nothing else is in it.
    pub(crate) fn remove(&self) {
        let directory = &self.shared.config.directory;
        for name in VOTER_FILES {
            let _ = std::fs::remove_file(directory.join(name));
        }
        let _ = std::fs::remove_dir(directory);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    /// Who leads, as far as is known.
    fn leader(&self, own: NodeId) -> Option<NodeId> {
        if self.controller.is_some() {
            return Some(own);
        }
        let heard = self.heard.filter(|(_, at)| at.elapsed() < HEARD).map(|(node, _)| node);
        let elected = || self.voter.as_ref().and_then(|voter| voter.standing().leader);
        // This one is not, or not yet.
        heard.or_else(elected).filter(|node| *node != own)
    }
}

/// Whether so many agents have kept the map that they can elect.
fn enough(asked: Vec<(NodeId, Result<Option<Kept>, ControllerError>)>) -> Result<(), ControllerError> {
    let mut kept: Vec<(NodeId, Kept)> = Vec::new();
    let mut problem = None;
    for (node, answer) in asked {
        match answer {
            Ok(Some(one)) => kept.push((node, one)),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%node, %error, "this agent does not keep the map any more");
                problem = Some(error);
            }
        }
    }
    // Who has the newest entry knows best who votes.
    let Some((_, newest)) = kept.iter().max_by_key(|(_, kept)| kept.last) else {
        return Err(problem.unwrap_or(ControllerError::NotFounded));
    };
    let voters = newest.voters.len();
    let have = kept.iter().filter(|(node, _)| newest.voters.contains(node)).count();
    if 2 * have > voters {
        return Ok(());
    }
    Err(ControllerError::TooFew { kept: have, voters, why: problem.map(|error| error.to_string()) })
}

impl Shared {
    fn voter_config(&self) -> VoterConfig {
        let (key, deployment, boot) = (self.config.key.clone(), self.config.deployment, self.config.boot);
        let book = self.book.clone();
        VoterConfig {
            identity: Identity { deployment, node: self.config.node },
            directory: self.config.directory.clone(),
            carriers: Box::new(move |to| {
                let to = u16::try_from(to).map_or(NodeId::NONE, NodeId);
                Box::new(Wire::new(key.clone(), deployment, boot, to, book.clone()))
            }),
            times: self.config.times.clone(),
        }
    }

    /// One request to another agent.
    fn ask(
        &self,
        node: NodeId,
        address: SocketAddr,
        request: ControlRequest,
    ) -> Result<Option<ControlReply>, ControllerError> {
        ControlLink::connect(
            &Endpoint::Tcp(address),
            &self.config.key,
            self.config.deployment,
            control::REACH,
        )
        .and_then(|mut link| link.request(request))
        .map_err(|error| ControllerError::NotEnlisted { node, cause: error.to_string() })
    }

    /// Makes a group, alone at first, and then with the others.
    fn found(&self, voter: &Voter, map: Map) -> Result<(), ControllerError> {
        voter.found(BEGIN)?;
        let until = Instant::now() + BEGIN;
        while !voter.standing().leads {
            if Instant::now() >= until {
                return Err(ControllerError::Unconfirmed);
            }
            voter.wait(LOOK);
        }
        voter.propose(Proposal::Found(Box::new(map)), BEGIN)?;
        let voters = voters_of(self.config.node, &self.book.all());
        if voters.len() == 1 {
            return Ok(());
        }
        std::thread::scope(|scope| {
            let others = voters.iter().filter(|node| **node != self.config.node);
            let threads: Vec<_> = others.map(|node| scope.spawn(|| self.enlist(*node))).collect();
            threads.into_iter().try_for_each(|t| t.join().unwrap_or(Err(ControllerError::Unconfirmed)))
        })?;
        voter.set_voters(&voters, CHANGE)
    }

    /// Has another agent be ready to become a voter.
    fn enlist(&self, node: NodeId) -> Result<(), ControllerError> {
        let unknown = || ControllerError::NotEnlisted { node, cause: "nobody knows where it listens".into() };
        let address = self.book.find(node).ok_or_else(unknown)?;
        let agents = self.book.all().into_iter().collect();
        self.ask(node, address, ControlRequest::Enlist { agents }).map(|_| ())
    }
}

#[cfg(test)]
mod tests;
