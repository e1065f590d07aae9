//! Watching whether daemons are alive: one watcher thread for each.
//!
//! A watcher keeps one control connection, on which it pings twice a second and hands over newer maps.
//! Threads of their own keep a daemon that hangs from delaying the others' pings; they sleep all the time, so
//! that a hundred of them cost next to nothing.
//!
//! A server is *down* when its connection is refused or reset and cannot be remade at once (its process is
//! gone), when it has not answered for [`SILENCE`] and its machine takes no connection for it either (the
//! machine or its link is gone), or when it has not answered for [`HANG`] although it is there (it hangs).
//! The last is much longer: a job may load its nodes so that a daemon waits seconds for a processor, and
//! files must not fail for that.
//!
//! Where something has copies, others take the place of a server that is down, and nobody waits for one that hangs: it is
//! down when it has not answered for as long as a lease lasts, and has none any more ([`super::leases`]). The death of its
//! process ends its lease, too.
//!
//! I/O nodes have leases, too, and others take their place: without copies, when they are declared down.
//!
//! Where nothing has copies and agents start dead servers of their nodes again, one whose process is gone is waited for
//! as long as programs wait for it. If it answers before it is declared down, it is joining at once.
//!
//! Servers that the controller reaches may not reach each other: one of them is left out ([`super::severed`]).
//!
//! A server that was down and answers again still has its data, because a daemon refuses to start on a
//! storage that is not its own. But it has missed what happened meanwhile. So it is *joining* at first: from
//! then on servers tell it what they tell each other. Once every daemon has a map in which it is joining,
//! nobody leaves it out any more, and the controller declares it up ([`crate::daemon`] says what it does
//! then).

use super::leases::Leasing;
use super::link::{ControlLink, LinkError};
use super::{ControllerError, Shared, Watched};
use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Group, Map, NodeId, ServerId};
use bivouac_proto::control::{ControlReply, ControlRequest, Grant, Member};
use bivouac_transport::Endpoint;
use bivouac_transport::engine::budget::control;
use bivouac_transport::engine::budget::ping::{ANSWER, AWAY, HANG, REACH, SILENCE};
use bivouac_transport::engine::budget::refusing::GONE;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two pings.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Time between two pings of a server that is joining, or that shards move to.
const JOINING: Duration = Duration::from_millis(20);

/// Longest time between two pings where something has copies: a lease must not run out because one gets lost.
const BEAT: Duration = Duration::from_millis(250);

/// An agent whose servers have left, and that nobody has reached for so long, does not come back.
const MISSED: Duration = Duration::from_secs(30);

/// What a watcher knows of its daemon.
pub(super) struct Watcher {
    member: Watched,
    link: Option<ControlLink>,
    /// The newest epoch that the daemon is known to have.
    epoch: Epoch,
    boot: Option<u64>,
    last_answer: Instant,
    /// It has had a map.
    begun: bool,
    /// Since when the map calls it down.
    down_since: Option<Instant>,
    /// It was declared down because it and others did not reach each other.
    is_left_out: bool,
    /// By this map it could not be given up.
    needed: Epoch,
    leasing: Leasing,
    /// How long leases are.
    lease: Duration,
}

impl Watcher {
    pub(super) fn new(member: Watched, lease: Duration) -> Watcher {
        let last_answer = Instant::now();
        let leasing = Leasing::new(lease, last_answer);
        Watcher {
            member,
            link: None,
            epoch: Epoch(0),
            boot: None,
            last_answer,
            begun: false,
            down_since: None,
            is_left_out: false,
            needed: Epoch(0),
            leasing,
            lease,
        }
    }

    /// Watches until the controller stops.
    pub(super) fn run(mut self, shared: &Shared) {
        let mut next = Instant::now();
        while let Some(map) = shared.wait(next, self.epoch) {
            let interval = if map.copies > 1 { BEAT.min(self.lease / 8) } else { INTERVAL };
            next = shared.in_step(interval);
            if !self.is_listed(&map) {
                tracing::info!(member = %self.member.endpoint, "the daemon is one of the deployment no more");
                // What it stored is nobody's any more.
                if let (Some(_), Err(error)) = (self.server(), shared.stop_member(&self.member, false)) {
                    tracing::warn!(member = %self.member.endpoint, %error, "it is not told to stop");
                }
                return;
            }
            self.move_to(&map);
            self.give_up(shared, &map);
            match self.beat(shared, &map) {
                Ok(()) => {
                    self.last_answer = Instant::now();
                    self.report(shared, true);
                    if let Some(node) = self.member.agent_of {
                        shared.heard(node);
                    }
                    if !std::mem::replace(&mut self.begun, true) {
                        shared.has_begun(self.member.who);
                    }
                    let map = shared.newest();
                    let takes_shards =
                        self.server().is_some_and(|server| map.moving.iter().any(|entry| entry.to == server));
                    if takes_shards
                        || self.is(&map, ServerState::Down)
                        || self.is(&map, ServerState::Joining)
                        || (self.forwards(&map) && !self.leasing.holds(self.last_answer))
                    {
                        next = Instant::now() + JOINING;
                    }
                }
                Err(error) => {
                    // Unknown again; it also keeps a newer map from waking this watcher over and over.
                    self.epoch = Epoch(0);
                    if !self.begun && (self.last_answer.elapsed() >= control::REACH || !error.is_silence()) {
                        shared.has_failed(self.member.who, error.to_string());
                    }
                    // Refused, after `beat` has tried a fresh connection: nobody is there.
                    self.miss(shared, &map, &error);
                    // A connection that is cut is the death of a process whose place nobody takes.
                    let is_replaced = map.copies > 1 || self.forwards(&map);
                    let is_dead = error.is_death() && (!is_replaced || error.is_refusal());
                    if is_dead && self.is_expected_back(shared, &map) {
                        self.link = None;
                        next = Instant::now() + JOINING;
                        self.report(shared, false);
                        continue;
                    }
                    if let Some(node) = self.member.agent_of
                        && !error.is_refusal()
                        && self.is_unreachable(shared, &map, node)
                    {
                        shared.set_away(node);
                    }
                    if is_dead || self.is_lost(shared, &map) {
                        self.link = None;
                        self.declare_down(shared, &map, &error);
                    } else {
                        // Slow or cut off: look again soon, so that it is noticed in time either way.
                        next = Instant::now() + interval / 4;
                    }
                    self.report(shared, false);
                }
            }
        }
    }

    /// Whether the daemon belongs to the deployment. (Another node may get an agent's number.)
    fn is_listed(&self, map: &Map) -> bool {
        match self.member.who {
            Member::Server(server) => map.server(server).is_some(),
            Member::Agent(node) => {
                let agent = map.node(node).map(|node| Endpoint::Tcp(node.agent));
                agent.is_some_and(|agent| match self.member.endpoint {
                    Endpoint::Tcp(_) => self.member.endpoint == agent,
                    _ => true,
                })
            }
        }
    }

    /// Another process may have the server's number by now, which listens somewhere else.
    fn move_to(&mut self, map: &Map) {
        let Some(server) = self.server().and_then(|server| map.server(server)) else { return };
        let there = Endpoint::Tcp(server.address);
        if matches!(self.member.endpoint, Endpoint::Tcp(_)) && self.member.endpoint != there {
            tracing::info!(server = %server.id, address = %server.address, "the server is another process now");
            self.member.endpoint = there;
            // Nothing that the old one has said is true of this one.
            (self.link, self.boot, self.epoch, self.down_since) = (None, None, Epoch(0), None);
            self.leasing.forget();
        }
    }

    /// The server that it watches, if it is one.
    fn server(&self) -> Option<ServerId> {
        match self.member.who {
            Member::Server(server) => Some(server),
            Member::Agent(_) => None,
        }
    }

    /// Whether to declare a server down that does not answer.
    fn is_lost(&self, shared: &Shared, map: &Map) -> bool {
        let silent = self.last_answer.elapsed();
        if !self.begun && shared.fresh {
            return silent >= control::INSTALL;
        }
        if map.copies > 1 && self.server().is_some() {
            return silent >= self.lease && self.leasing.has_run_out(Instant::now());
        }
        let is_silent =
            silent >= HANG || (silent >= SILENCE && !self.member.endpoint.takes_connections(REACH));
        is_silent && (!self.forwards(map) || self.leasing.has_run_out(Instant::now()))
    }

    /// Whether nobody reaches the node of this agent: what its programs have ends. Locks are lost by that, so it takes longer
    /// than to declare a server down. (An agent whose process has ended refuses connections: its programs may live.)
    fn is_unreachable(&self, shared: &Shared, map: &Map, node: NodeId) -> bool {
        let mut servers = map.servers.iter().filter(|server| server.node == node);
        !map.is_away(node)
            && (self.begun || !shared.fresh)
            && self.last_answer.elapsed() >= AWAY
            && servers.all(|server| server.state == ServerState::Down)
            && self.member.endpoint.is_unreachable(REACH)
    }

    /// Whether the agent of its node most likely starts this server again, which has died. Others do not take its
    /// place: so programs wait for it, as long as they wait for one that refuses connections.
    fn is_expected_back(&self, shared: &Shared, map: &Map) -> bool {
        let was_there = self.is(map, ServerState::Up) || self.is(map, ServerState::Joining);
        let has_begun = self.begun || !shared.fresh;
        shared.restarts && map.copies == 1 && was_there && has_begun && self.last_answer.elapsed() < GONE
    }

    /// Sends one ping, or a newer map, over the connection or over a new one.
    fn beat(&mut self, shared: &Shared, map: &Arc<Map>) -> Result<(), LinkError> {
        if let Some(mut link) = self.link.take() {
            match self.speak(&mut link, shared, map) {
                Ok(()) => {
                    self.link = Some(link);
                    return Ok(());
                }
                // It may have been restarted, or have closed an idle connection.
                Err(error) if error.is_death() => {}
                Err(error) => {
                    // Its answer may still come.
                    if error.is_silence() && self.last_answer.elapsed() < HANG {
                        self.link = Some(link);
                    }
                    return Err(error);
                }
            }
        }
        self.leasing.forget();
        let mut link =
            ControlLink::connect(&self.member.endpoint, &shared.key, shared.deployment, self.patience())?;
        self.speak(&mut link, shared, map)?;
        self.link = Some(link);
        Ok(())
    }

    fn speak(&mut self, link: &mut ControlLink, shared: &Shared, map: &Arc<Map>) -> Result<(), LinkError> {
        link.set_timeout(self.patience())?;
        // Any answer is a sign of life; the next ping will bring its contents again.
        link.finish()?;
        let pong = link.ping(map.epoch, shared.node, self.next_lease(shared, map))?;
        self.last_answer = Instant::now();
        self.leasing.heard(pong.clock, self.last_answer);
        self.epoch = pong.epoch;
        let mut map = map.clone();
        let is_another = match self.boot {
            Some(before) => before != pong.boot,
            // It had a map before this controller was elected, unless the deployment has just begun.
            None => pong.epoch == Epoch(0) && !shared.fresh,
        };
        if is_another {
            tracing::info!(member = %self.member.endpoint, "the daemon was restarted");
            if let Some(server) = self.server()
                && !self.is(&map, ServerState::Down)
            {
                // It has lost what is in memory only, and others have that. It must not get a map that says that it
                // has everything. Without copies, agents have to tell it what is open.
                let state = if map.copies > 1 { ServerState::Down } else { ServerState::Joining };
                map = shared.set_state(server, state).ok_or(LinkError::Uncommitted)?;
            }
        }
        self.boot = Some(pong.boot);
        if let Some(server) = self.server().filter(|server| shared.is_undecided(*server)) {
            map = shared.set_state(server, ServerState::Down).ok_or(LinkError::Uncommitted)?;
        }
        if let Some(node) =
            self.member.agent_of.filter(|node| map.is_away(*node) && pong.accounted == map.epoch)
            && let Some(back) = shared.set_back(node, pong.accounted)
        {
            map = back;
        }
        if let Some(server) = self.server() {
            shared.note_unreached(server, &pong.unreached);
            if shared.leaves_out(&map, server)
                && self.leasing.has_run_out(Instant::now())
                && let Some(without) = shared.leave_out(server)?
            {
                map = without;
                self.is_left_out = true;
            }
        }
        // The state first, so that the map that it gets says so.
        if let Some(behind) = shared.set_behind(pong.epoch, &pong.suspects) {
            map = behind;
        }
        let changed = match self.server() {
            Some(server) if self.is(&map, ServerState::Down) && shared.keeps_out(&map, server) => None,
            Some(server) if self.is(&map, ServerState::Down) => {
                tracing::info!(%server, "the server answers again");
                if !std::mem::take(&mut self.is_left_out) && !is_another && self.begun {
                    shared.count_false_failover();
                }
                shared.set_state(server, ServerState::Joining)
            }
            Some(server) if self.is(&map, ServerState::Joining) && shared.all_have(&map) => {
                shared.set_state(server, ServerState::Up)
            }
            Some(server) => {
                let is_sure = |group: &Group| !pong.suspects.contains(&(*group, server));
                let caught_up = pong.caught_up.iter().copied().filter(is_sure).collect();
                shared.set_in_step(server, pong.epoch, caught_up)
            }
            _ => None,
        };
        let mut map = changed.unwrap_or(map);
        if let Some(server) = self.server()
            && shared.is_rebuilt(&map, server, (pong.rebuilt, pong.epoch))
            && let Some(complete) = shared.end_rebuild(&map)
        {
            map = complete;
        }
        if let Some(without) = shared.remove_departed(&map) {
            map = without;
        }
        if self.epoch < map.epoch {
            link.set_timeout(self.patience().max(ANSWER))?;
            link.tell(ControlRequest::Install { news: map.news_for(self.epoch) })?;
            self.epoch = map.epoch;
        }
        if let Some(server) = self.server() {
            shared.has(server, self.epoch);
        }
        self.dismiss(link, shared, &map)
    }

    /// Has the agent of a node end that is to leave, if no program there uses the deployment.
    fn dismiss(&self, link: &mut ControlLink, shared: &Shared, map: &Map) -> Result<(), LinkError> {
        let Member::Agent(node) = self.member.who else { return Ok(()) };
        if !shared.is_to_leave(map, node) || !asked_to_leave(link, true)? {
            return Ok(());
        }
        shared.let_go(node, true, || asked_to_leave(link, false))
    }

    /// A node is to leave whose agent is gone: its process has ended, or nobody has reached it for long.
    fn miss(&self, shared: &Shared, map: &Map, error: &LinkError) {
        if let Member::Agent(node) = self.member.who
            && shared.is_to_leave(map, node)
            && (error.is_refusal() || map.is_away(node) && self.last_answer.elapsed() >= MISSED)
        {
            // If it fails, the next round tries again.
            let _ = shared.let_go(node, false, || Ok(true));
        }
    }

    /// The lease that goes with the next ping: for a server that takes part, and knows what others have of it now.
    fn next_lease(&mut self, shared: &Shared, map: &Map) -> Option<Grant> {
        let server = self.server()?;
        let takes_part = map.has_leases() && !self.is(map, ServerState::Down);
        let is_wanted = takes_part && !shared.leaves_out(map, server);
        let may_have = is_wanted && !shared.is_replaced(server, self.epoch);
        if may_have { self.leasing.next(shared.confirmed()) } else { None }
    }

    /// Whether the daemon is an I/O node: another one takes its place when it is down, without copies, too.
    fn forwards(&self, map: &Map) -> bool {
        let forwarding = map.forwarding.as_ref();
        self.server().is_some_and(|me| forwarding.is_some_and(|of| of.all().any(|io_node| io_node == me)))
    }

    /// Whether the daemon is a server in this state.
    fn is(&self, map: &Map, state: ServerState) -> bool {
        self.server().and_then(|server| map.server(server)).is_some_and(|s| s.state == state)
    }

    /// How long an answer is awaited: until the silence makes the server count as dead.
    fn patience(&self) -> Duration {
        let longest = if self.server().is_some() { SILENCE.min(self.lease) } else { SILENCE };
        let left = longest.saturating_sub(self.last_answer.elapsed());
        if left.is_zero() { ANSWER } else { left }
    }

    fn declare_down(&self, shared: &Shared, map: &Map, error: &LinkError) {
        let Some(server) = self.server() else { return };
        if !self.is(map, ServerState::Down) {
            let silent_ms = self.last_answer.elapsed().as_millis() as u64;
            tracing::warn!(%server, silent_ms, %error, "the server is down");
            shared.set_state(server, ServerState::Down);
        }
    }

    /// Has others take the server's place when it has been down for long enough.
    fn give_up(&mut self, shared: &Shared, map: &Map) {
        let Some(server) = self.server().filter(|_| self.is(map, ServerState::Down)) else {
            self.down_since = None;
            return;
        };
        let since = *self.down_since.get_or_insert_with(Instant::now);
        let is_due = map.heal_after > 0 && since.elapsed() >= Duration::from_secs(map.heal_after.into());
        if !is_due || map.copies == 1 || map.is_given_up(server) || self.needed == map.epoch {
            return;
        }
        if let Err(ControllerError::CannotGiveUp) = shared.give_up(vec![server], false) {
            self.needed = map.epoch;
        }
    }

    fn report(&self, shared: &Shared, alive: bool) {
        if let Some(server) = self.server() {
            shared.report(server, alive, self.last_answer);
        }
    }
}

/// Whether an agent ends because its node leaves; or would, if it is only asked.
fn asked_to_leave(link: &mut ControlLink, ask: bool) -> Result<bool, LinkError> {
    match link.request(ControlRequest::Leave { ask }) {
        Ok(Some(ControlReply::Leaving { idle, .. })) => Ok(idle),
        // By its map, its servers have not left yet.
        Err(LinkError::Errno(_)) => Ok(false),
        Ok(_) => Err(LinkError::Unexpected),
        Err(error) => Err(error),
    }
}
