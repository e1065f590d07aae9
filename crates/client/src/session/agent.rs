//! Talking to the node's agent.

use super::Session;
use super::links::Link;
use super::servers::connect_options;
use crate::host::Host;
use bivouac_layout::{News, NodeId, ServerState};
use bivouac_node::{Environment, Fd};
use bivouac_proto::agent::{AgentReply, AgentRequest};
use bivouac_proto::auth::{Credentials, Key, Role};
use bivouac_proto::{Errno, Header, Kind, Reply, Request};
use bivouac_transport::engine::Answered;
use bivouac_transport::{Connection, Endpoint, Outgoing, Peer, TransportError, engine};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long an agent that has died is waited for, until it was started again and has a map: the controller tells it twice
/// a second, unless another one is just being elected.
const AGENT_BEGINS: Duration = Duration::from_secs(10);

/// Between two questions whether it has.
const AGENT_PAUSE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

impl Session {
    /// Asks for the current map: the agent, or servers while there is no agent. (It may have died together with the server
    /// that is wanted.)
    pub(crate) fn refresh_map(&self) -> Result<(), TransportError> {
        let answer = match self.ask_agent(&AgentRequest::Map) {
            Err(TransportError::Refused | TransportError::Closed) => self.ask_some_server(&AgentRequest::Map),
            answer => answer,
        };
        if let Some(Reply::Agent(AgentReply::Map(map))) = answer? {
            self.learn_map(News::Whole(map));
        }
        Ok(())
    }

    /// Asks servers, one after the other, until one answers, or is silent: who is cut off would wait for each. The next
    /// call begins with another one.
    fn ask_some_server(&self, request: &AgentRequest) -> Result<Option<Reply>, TransportError> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let map = self.map();
        let first = CALLS.fetch_add(1, Ordering::Relaxed) as usize % map.servers.len().max(1);
        let all = map.servers.iter().cycle().skip(first).take(map.servers.len());
        let mut last = Err(TransportError::Refused);
        for server in all.filter(|server| server.state == ServerState::Up) {
            last = self.take_link(server.id, &map).and_then(|mut link| {
                let answer = ask(&mut link, &Request::Agent(request.clone()));
                self.give_link(server.id, link);
                answer.map(|(reply, _)| reply)
            });
            if !matches!(last, Ok(None) | Err(TransportError::Refused | TransportError::Closed)) {
                break;
            }
        }
        last
    }

    /// Tells the agent something, and waits only until the agent has heard it.
    pub(crate) fn tell_agent(&self, request: &AgentRequest) -> Result<(), Errno> {
        match self.ask_agent_that_begins(request).map_err(|e| e.errno())? {
            Some(Reply::Done) => Ok(()),
            _ => Err(Errno::NOLCK),
        }
    }

    /// Asks the node's agent, which may have been restarted since the connections to it were made. `None`: it
    /// refuses.
    pub(super) fn ask_agent(&self, request: &AgentRequest) -> Result<Option<Reply>, TransportError> {
        let fork_count = self.fork.count();
        loop {
            let idle = self.agents.take(fork_count, 0);
            let kept = idle.is_some();
            let mut link = match idle {
                Some(link) => link,
                None => self.connect_agent(fork_count)?,
            };
            let answer = ask(&mut link, &Request::Agent(request.clone()));
            self.agents.give(link, fork_count);
            match answer {
                // It is not given back, so this ends.
                Err(_) if kept => {}
                answer => return answer.map(|(reply, _)| reply),
            }
        }
    }

    /// The same, and waits for an agent that is just being restarted: until it has a map, it refuses everything.
    pub(super) fn ask_agent_that_begins(
        &self,
        request: &AgentRequest,
    ) -> Result<Option<Reply>, TransportError> {
        let begun = Instant::now();
        loop {
            match self.ask_agent(request) {
                Ok(None) | Err(TransportError::Refused | TransportError::Closed)
                    if begun.elapsed() < AGENT_BEGINS =>
                {
                    let _ = rustix::thread::nanosleep(&AGENT_PAUSE);
                }
                answer => return answer,
            }
        }
    }

    pub(super) fn connect_agent(&self, fork_count: u64) -> Result<Box<Link>, TransportError> {
        let (key, deployment) = (&self.key, self.map().deployment);
        let by = (self.uid, &self.credentials);
        let link = connect_agent(&self.environment, self.host, (key, deployment), by, fork_count);
        self.refusals.note(Peer::Agent, &link);
        link
    }
}

pub(super) fn connect_agent(
    environment: &Environment,
    host: &dyn Host,
    (key, deployment): (&Key, u64),
    (uid, credentials): (u32, &Credentials),
    fork_count: u64,
) -> Result<Box<Link>, TransportError> {
    let endpoint = Endpoint::Node(bivouac_node::agent_sockets(uid, &environment.name, key));
    let role =
        Role::Client { credentials: credentials.clone(), node: NodeId::NONE, job: environment.job_number() };
    let (connection, _) = Connection::connect(&endpoint, key, deployment, role, &connect_options(host))?;
    Ok(Box::new(Link::new(host, connection, fork_count, 0, 0)))
}

pub(super) fn attach_request() -> AgentRequest {
    AgentRequest::Attach { pid: rustix::process::getpid().as_raw_nonzero().get() as u32 }
}

/// One question on a connection to the agent: the answer, and the descriptor that came with it. `None` for a
/// refusal.
pub(super) fn ask(
    link: &mut Link,
    request: &Request<'_>,
) -> Result<(Option<Reply>, Option<Fd>), TransportError> {
    let mut body = Vec::with_capacity(64);
    bivouac_proto::encode(request, &mut body);
    let outgoing = Outgoing { before: &[], header: Header::new(Kind::Request), body: &body, payload: &[] };
    let answered = engine::attempt(&mut link.lane.connection, &outgoing, &mut [], None, || false)?;
    Ok(answered.map_or((None, None), |Answered { reply, fd, .. }| (Some(reply), fd)))
}
