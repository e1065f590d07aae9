//! A control connection: what the controller and the command line say to a daemon.

use bivouac_layout::{Epoch, Group, NodeId, ServerId};
use bivouac_proto::auth::{Key, Role};
use bivouac_proto::control::{ControlReply, ControlRequest, Grant};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, Kind, Reply, Request};
use bivouac_transport::engine;
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Outgoing, TransportError};
use std::time::Duration;

/// Why a control request was not answered as it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection could not be made, or broke.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The daemon answered with an error.
    #[error("the daemon refused: {0}")]
    Errno(Errno),
    /// The daemon could not do it, and says why and what can be done about it.
    #[error("{0}")]
    Failed(String),
    /// The daemon is not the controller. It says who is, if it knows.
    #[error("it is not the controller")]
    NotLeader(Option<NodeId>),
    /// The map could not be changed as this answer demands.
    #[error("the map cannot be changed")]
    Uncommitted,
    /// The daemon answered something else than was asked for.
    #[error("the daemon sent an answer that does not fit the request")]
    Unexpected,
}

impl LinkError {
    /// Whether it means that no daemon is there, rather than that the daemon is slow.
    pub fn is_death(&self) -> bool {
        matches!(self, LinkError::Transport(TransportError::Refused | TransportError::Closed))
    }

    /// Whether nobody listens there.
    pub fn is_refusal(&self) -> bool {
        matches!(self, LinkError::Transport(TransportError::Refused))
    }

    /// Whether the answer is only late: [`ControlLink::finish`] goes on to wait for it.
    pub fn is_silence(&self) -> bool {
        matches!(self, LinkError::Transport(TransportError::TimedOut))
    }
}

/// A sign of life: [`ControlReply::Pong`].
pub struct Pong {
    /// The epoch of the daemon's map.
    pub epoch: Epoch,
    /// Differs after each start.
    pub boot: u64,
    /// Groups with which it has caught up, by that map.
    pub caught_up: Vec<Group>,
    /// Copies in step by that map whose storage fails.
    pub suspects: Vec<(Group, ServerId)>,
    /// What its clock shows, nanoseconds.
    pub clock: u64,
    /// By the map of this epoch its node is away, and it knows which locks the node's programs have lost.
    pub accounted: Epoch,
    /// Servers that it does not reach.
    pub unreached: Vec<ServerId>,
    /// By that map, it is done with this rebuild.
    pub rebuilt: u32,
}

/// An authenticated connection with [`Role::Control`].
#[derive(Debug)]
pub struct ControlLink {
    connection: Connection,
    /// The last request.
    body: Vec<u8>,
    /// Whether its answer has not come yet.
    late: bool,
}

impl ControlLink {
    /// Connects and authenticates within `timeout`; later answers are awaited as long.
    pub fn connect(
        endpoint: &Endpoint,
        key: &Key,
        deployment: u64,
        timeout: Duration,
    ) -> Result<ControlLink, LinkError> {
        let options = ConnectOptions { timeout, silence: timeout, ..ConnectOptions::default() };
        let (connection, _) = Connection::connect(endpoint, key, deployment, Role::Control, &options)?;
        Ok(ControlLink { connection, body: Vec::new(), late: false })
    }

    /// Changes how long an answer is awaited.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), LinkError> {
        // A time-out of zero would mean none at all.
        Ok(self.connection.set_silence(timeout.max(Duration::from_millis(1)))?)
    }

    /// Whether the daemon has ended, or the connection has. Only while no answer is late.
    pub fn has_ended(&self) -> bool {
        self.connection.is_broken() || self.connection.has_ended()
    }

    /// Waits for the answer that the last request did not get in time, if there is one, and drops it.
    pub fn finish(&mut self) -> Result<(), LinkError> {
        if self.late {
            self.connection.go_on(&outgoing(&self.body), &mut [])?;
            self.late = false;
        }
        Ok(())
    }

    /// One request, one answer. After [`LinkError::is_silence`] the link can be used again:
    /// [`ControlLink::finish`].
    pub fn request(&mut self, request: ControlRequest) -> Result<Option<ControlReply>, LinkError> {
        self.finish()?;
        self.body.clear();
        bivouac_proto::encode(&Request::Control(request), &mut self.body);
        self.late = true;
        let answered = engine::attempt(&mut self.connection, &outgoing(&self.body), &mut [], None, || false)?;
        self.late = false;
        match answered.map(|answered| answered.reply) {
            Ok(Reply::Done) => Ok(None),
            Ok(Reply::Control(ControlReply::Failed { cause })) => Err(LinkError::Failed(cause)),
            Ok(Reply::Control(ControlReply::NotLeader { leader })) => Err(LinkError::NotLeader(leader)),
            Ok(Reply::Control(reply)) => Ok(Some(reply)),
            Err(Failure::Errno(errno)) => Err(LinkError::Errno(errno)),
            Ok(_) | Err(Failure::Refused(_)) => Err(LinkError::Unexpected),
        }
    }

    /// A request that is answered with nothing.
    pub fn tell(&mut self, request: ControlRequest) -> Result<(), LinkError> {
        self.request(request).map(|_| ())
    }

    /// Asks for a sign of life. `leader`: the controller's node; [`NodeId::NONE`] from everybody else.
    pub fn ping(&mut self, epoch: Epoch, leader: NodeId, lease: Option<Grant>) -> Result<Pong, LinkError> {
        match self.request(ControlRequest::Ping { epoch, leader, lease })? {
            Some(ControlReply::Pong {
                epoch,
                boot,
                caught_up,
                suspects,
                clock,
                accounted,
                unreached,
                rebuilt,
            }) => Ok(Pong { epoch, boot, caught_up, suspects, clock, accounted, unreached, rebuilt }),
            _ => Err(LinkError::Unexpected),
        }
    }
}

/// A control request has no identity and no epoch: nobody repeats it.
fn outgoing(body: &[u8]) -> Outgoing<'_> {
    Outgoing { before: &[], header: Header::new(Kind::Request), body, payload: &[] }
}
