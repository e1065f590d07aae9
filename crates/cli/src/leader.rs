//! Finding the controller among the agents of a deployment.
//!
//! Any of a deployment's first few agents may be the controller, and another one becomes it when that dies. An agent
//! that is not says who is, if it knows. So a command asks one agent after the other, follows what it is told, and asks
//! again for a while, because electing a new one takes a second or two.

use crate::home::{DaemonRecord, Record};
use bivouac_daemon::controller::{ControlLink, LinkError};
use bivouac_layout::{Map, NodeId};
use bivouac_proto::auth::Key;
use bivouac_proto::control::{ControlReply, ControlRequest};
use bivouac_transport::TransportError;
use bivouac_transport::engine::budget::control;
use std::time::{Duration, Instant};

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks the controller. `answer`: how long it may take to answer; `limit`: how long to look for it, as long as any agent
/// answers. Without any, or after that time, the error of the last one, or [`LinkError::NotLeader`].
pub fn ask(
    record: &Record,
    key: &Key,
    request: &ControlRequest,
    answer: Duration,
    limit: Duration,
) -> Result<Option<ControlReply>, LinkError> {
    let until = Instant::now() + limit;
    let mut first = None;
    loop {
        let error = match round(record, key, request, answer, &mut first) {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let waits = matches!(error, LinkError::NotLeader(_)) && Instant::now() < until;
        if !waits {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks each agent once, those first that others call the controller.
fn round(
    record: &Record,
    key: &Key,
    request: &ControlRequest,
    answer: Duration,
    first: &mut Option<NodeId>,
) -> Result<Option<ControlReply>, LinkError> {
    let mut left: Vec<&DaemonRecord> = record.daemons.iter().filter(|d| d.agent).collect();
    let mut failed = LinkError::Transport(TransportError::Refused);
    let mut lives = false;
    while !left.is_empty() {
        let named = first.take().and_then(|node| left.iter().position(|d| d.node == node));
        let daemon = left.remove(named.unwrap_or(0));
        let connected =
            ControlLink::connect(&daemon.endpoint(&record.name, key), key, record.deployment, control::AGENT);
        let asked = connected.and_then(|mut link| {
            link.set_timeout(answer)?;
            link.request(request.clone())
        });
        match asked {
            Ok(reply) => {
                *first = Some(daemon.node);
                return Ok(reply);
            }
            Err(LinkError::NotLeader(leader)) => {
                (lives, *first) = (true, leader);
            }
            // The next one may know more.
            Err(LinkError::Transport(error)) => failed = LinkError::Transport(error),
            Err(other) => return Err(other),
        }
    }
    Err(if lives { LinkError::NotLeader(None) } else { failed })
}

/// Whether any agent answers.
pub fn anybody(record: &Record, key: &Key) -> bool {
    !of_all(record, |daemon| {
        let endpoint = daemon.endpoint(&record.name, key);
        ControlLink::connect(&endpoint, key, record.deployment, control::PRESENCE).ok()
    })
    .is_empty()
}

/// What the agents that live know where nobody is the controller.
pub struct Known {
    /// Who votes.
    pub voters: Vec<NodeId>,
    /// The voters that answer.
    pub alive: Vec<NodeId>,
    /// The newest map that one of them has.
    pub map: Map,
}

/// Asks all agents at once. `None`: nobody answers.
pub fn known(record: &Record, key: &Key) -> Option<Known> {
    let answers = of_all(record, |daemon| {
        let endpoint = daemon.endpoint(&record.name, key);
        let mut link = ControlLink::connect(&endpoint, key, record.deployment, control::LOOK).ok()?;
        match link.request(ControlRequest::Group) {
            Ok(Some(ControlReply::Group { voters, map, .. })) => Some((daemon.node, voters, *map)),
            _ => None,
        }
    });
    let is_voter = |(node, voters, _): &&(NodeId, Vec<NodeId>, Map)| voters.contains(node);
    let alive = answers.iter().filter(is_voter).map(|(node, ..)| *node).collect();
    let voters = answers.iter().filter(is_voter).map(|(_, voters, _)| voters.clone()).next();
    let map = answers.into_iter().map(|(.., map)| map).max_by_key(|map| map.epoch)?;
    Some(Known { voters: voters.unwrap_or_default(), alive, map })
}

/// Does something with each agent, all at once.
pub fn of_all<T: Send>(record: &Record, work: impl Fn(&DaemonRecord) -> Option<T> + Sync) -> Vec<T> {
    let agents: Vec<&DaemonRecord> =
        record.daemons.iter().filter(|d| d.agent && d.process.is_some()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = agents.into_iter().map(|daemon| scope.spawn(|| work(daemon))).collect();
        threads.into_iter().filter_map(|t| t.join().ok().flatten()).collect()
    })
}
