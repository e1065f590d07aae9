//! The thread that makes its agent the controller, and ends that.
//!
//! It looks at what the voter knows whenever that changes. The agent becomes the controller when its voter was elected,
//! most others have confirmed that, and everything is applied that was committed; it is the controller until they have
//! not confirmed it for [`LOST`], or another one was elected. A voter that does not answer for [`DEAD`] is replaced by an
//! agent that is no voter, or, if it has lost its files and lives, by itself ([`Helm::tend`]). Where nodes leave or come,
//! others keep the map, or more of them ([`super::roles`]). If the leader's own node leaves, its voter stops to lead when the
//! others have agreed to go on without it, and they elect one of them.
//!
//! A `bivouac run` that ends in the moment in which nobody leads must not be missed: whoever is elected looks whether
//! its own lifeline has ended.

use super::{BEGIN, CHANGE, LOOK, Shared, Start, lock, roles};
use crate::controller::log::MapLog;
use crate::controller::raft::Proposal;
use crate::controller::raft::voter::{Standing, Voter, can_vote_with};
use crate::controller::{Controller, ControllerConfig, ControllerError, spawn};
use crate::tether::AFTER_LOST;
use bivouac_layout::NodeId;
use bivouac_transport::Parting;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A leader that most voters have not confirmed for so long is no controller.
const LOST: Duration = Duration::from_secs(2);
/// How long other voters may take to say whether they miss a leader, too.
const CANVASS: Duration = Duration::from_millis(200);
/// A voter that has not answered the leader for so long is replaced.
const DEAD: Duration = Duration::from_secs(30);
/// An agent that has answered so recently can take its place.
const ALIVE: Duration = Duration::from_secs(3);
/// How often the leader looks whether others are to vote.
const TEND: Duration = Duration::from_secs(1);

/// The thread that looks whether its agent leads.
pub(super) struct Helm {
    shared: Arc<Shared>,
    /// Whether the voter may want to lead, as it was told last.
    may_lead: Option<bool>,
    /// The term in which it is the controller, and since when.
    term: Option<(u64, Instant)>,
    /// When it looked whether others are to vote.
    tended: Instant,
    /// Changes who votes.
    tending: Option<JoinHandle<()>>,
}

impl Helm {
    pub(super) fn new(shared: Arc<Shared>) -> Helm {
        Helm { shared, may_lead: None, term: None, tended: Instant::now(), tending: None }
    }

    pub(super) fn run(mut self) {
        loop {
            let (voter, stopping) = {
                let state = lock(&self.shared.state);
                (state.voter.clone(), state.stopping)
            };
            let Some(voter) = voter.filter(|_| !stopping) else { break };
            let standing = voter.standing();
            if let Some(cause) = &standing.failed {
                tracing::error!(cause, "this agent does not keep the map any more");
                break;
            }
            self.canvass(&voter, &standing);
            let confirmed = standing.confirmed.is_some_and(|at| at.elapsed() < LOST);
            let leads = standing.leads && (confirmed || standing.alone);
            match self.term {
                Some((term, _)) if !leads || term != standing.term => self.fall(),
                Some((_, since)) => self.steer(&voter, &standing, since),
                None if leads => self.rise(&voter, &standing),
                None => {}
            }
            // Alone, it is woken by whatever there is to know.
            voter.wait(if standing.alone { 5 * LOOK } else { LOOK });
        }
        self.fall();
        if let Some(tending) = self.tending.take() {
            let _ = tending.join();
        }
    }

    /// Allows the voter to want to lead only while most others would vote for a new leader. Otherwise one that was cut
    /// off, and tried in vain, would depose the leader with its higher term when it is back.
    fn canvass(&mut self, voter: &Voter, standing: &Standing) {
        let others: Vec<NodeId> =
            standing.voters.iter().copied().filter(|node| *node != self.shared.config.node).collect();
        let may = others.is_empty() || (voter.misses_a_leader() && voter.canvass(&others, CANVASS));
        if self.may_lead != Some(may) {
            self.may_lead = Some(may);
            voter.set_candidate(may);
        }
    }

    /// The voter was elected: becomes the controller.
    fn rise(&mut self, voter: &Arc<Voter>, standing: &Standing) {
        match self.begin(voter) {
            Ok(controller) => {
                tracing::info!(term = standing.term, "this agent is the controller now");
                let mut state = lock(&self.shared.state);
                state.problem = None;
                state.controller = Some(Arc::new(controller));
                self.term = Some((standing.term, Instant::now()));
            }
            Err(ControllerError::NotLeader(_) | ControllerError::Unconfirmed) => {}
            Err(error) => {
                tracing::error!(%error, "this agent cannot be the controller");
                lock(&self.shared.state).problem = Some(error.to_string());
                std::thread::sleep(LOOK);
            }
        }
    }

    fn begin(&self, voter: &Arc<Voter>) -> Result<Controller, ControllerError> {
        voter.confirm(BEGIN)?;
        let start = lock(&self.shared.state).start.clone();
        if let Some(Start { number, agents, servers }) = start {
            let proposed = voter.propose(Proposal::Resume { number, agents, servers }, BEGIN);
            proposed.map_err(|error| match error {
                ControllerError::Refused => ControllerError::OtherDaemons,
                other => other,
            })?;
        }
        let log = MapLog::of(voter.clone()).ok_or(ControllerError::NotFounded)?;
        self.shared.book.set(log.map().nodes.iter().map(|node| (node.id, node.agent)));
        let config = &self.shared.config;
        let config = ControllerConfig {
            key: config.key.clone(),
            node: config.node,
            own: config.own.clone(),
            fresh: !voter.has_begun(),
            restarts: config.restarts,
            stop: config.stop.clone(),
        };
        Controller::start(config, log)
    }

    /// Is the controller no more.
    fn fall(&mut self) {
        self.term = None;
        let controller = lock(&self.shared.state).controller.take();
        if let Some(controller) = controller {
            tracing::info!("this agent is not the controller any more");
            controller.stop();
        }
    }

    /// Is the controller still.
    fn steer(&mut self, voter: &Arc<Voter>, standing: &Standing, since: Instant) {
        let Some(controller) = lock(&self.shared.state).controller.clone() else { return };
        controller.look();
        if !voter.has_begun() && controller.has_begun() {
            // If it fails, the next round tries again.
            let _ = MapLog::of(voter.clone()).map(|log| log.begun());
        }
        let ended = self.shared.config.tether.as_ref().and_then(|tether| tether.ended());
        if let Some((how, ago)) = ended
            && (how == Parting::Left || ago >= AFTER_LOST)
            && let Err(error) = controller.shut_down(false)
        {
            tracing::error!(%error, "cannot shut down");
        }
        if self.tended.elapsed() >= TEND {
            self.tended = Instant::now();
            self.tend(voter, &controller, standing, since);
        }
    }

    /// Has others vote where nodes leave or come, and replaces a voter that has died, if there is an agent that is none.
    fn tend(&mut self, voter: &Arc<Voter>, controller: &Controller, standing: &Standing, since: Instant) {
        if self.tending.as_ref().is_some_and(|tending| !tending.is_finished()) {
            return;
        }
        if let Some(tending) = self.tending.take() {
            let _ = tending.join();
        }
        let own = self.shared.config.node;
        let (map, alive) = (controller.newest(), controller.agents(ALIVE));
        let wanted = roles::wanted(own, &standing.voters, &alive, &map);
        let mut voters = standing.voters.clone();
        voters.sort_unstable();
        if wanted != voters || !standing.settled {
            tracing::info!(?voters, ?wanted, "others are to keep the map: nodes leave, or have come");
            self.tending = self.begin_change(voter, None, voters, wanted);
            return;
        }
        let is_dead = |node: &NodeId| {
            *node != own && voter.answered(*node).map_or(since, |at| at.max(since)).elapsed() >= DEAD
        };
        let Some(dead) = standing.voters.iter().copied().find(is_dead) else { return };
        let can =
            |node: &NodeId| map.may_keep_the_map(*node) && can_vote_with(own, *node, &self.shared.book.all());
        let mut spares = alive.iter().copied().filter(|node| !standing.voters.contains(node) && can(node));
        // An agent that has lost its files lives, and is no voter until the others take it in anew.
        let Some(spare) = spares.next().or(Some(dead).filter(|dead| alive.contains(dead))) else { return };
        let mut without: Vec<NodeId> = standing.voters.clone();
        without.retain(|node| *node != dead);
        tracing::warn!(%dead, %spare, "a voter has died: another agent, or a new start of its own, takes its place");
        let wanted = [&without[..], &[spare]].concat();
        let first = (spare == dead).then(|| without.clone());
        self.tending = self.begin_change(voter, first, without, wanted);
    }

    /// Begins to have others vote: `wanted`, of whom `present` do already. `first`: who votes in between.
    fn begin_change(
        &self,
        voter: &Arc<Voter>,
        first: Option<Vec<NodeId>>,
        present: Vec<NodeId>,
        wanted: Vec<NodeId>,
    ) -> Option<JoinHandle<()>> {
        let (shared, voter) = (self.shared.clone(), voter.clone());
        let work = move || {
            let first = first.map_or(Ok(()), |voters| voter.set_voters(&voters, CHANGE));
            let mut new = wanted.iter().filter(|node| !present.contains(node));
            let changed = first
                .and_then(|()| new.try_for_each(|node| shared.enlist(*node)))
                .and_then(|()| voter.set_voters(&wanted, CHANGE));
            if let Err(error) = changed {
                tracing::warn!(%error, "the voters stay as they are");
            }
        };
        spawn("tend", work).ok()
    }
}
