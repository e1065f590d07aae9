//! Why the controller does not do what it is asked for.

use bivouac_layout::NodeId;
use bivouac_proto::Errno;
use std::path::PathBuf;

/// What the controller, or a voter, cannot do.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// Its directory cannot be read or written.
    #[error("the map cannot be read or written: {}: {cause}", path.display())]
    Store {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// What it stored is not what it wrote.
    #[error(
        "the map cannot be read: {} is damaged ({what}); restore that file from a copy, or, if most voters of the \
         deployment have theirs, remove the directory that it is in", path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// There is no map: the deployment was never founded.
    #[error("there is no map: the deployment was left behind half started")]
    NotFounded,
    /// Too few voters have kept the map.
    #[error(
        "{kept} of the {voters} agents that keep the map have it still, and most are needed{}; bring back their \
         directories `controller-N` below the deployment's directory", why.as_ref().map_or(String::new(), |w| format!(" ({w})"))
    )]
    TooFew {
        /// How many have.
        kept: usize,
        /// How many there were.
        voters: usize,
        /// What one of the others says.
        why: Option<String>,
    },
    /// No first map can be made of what the deployment is to begin with.
    #[error("there can be no such deployment: {0}")]
    BadMap(&'static str),
    /// The daemons that were started are not those of the map.
    #[error("the servers and agents that were started are not those of the deployment")]
    OtherDaemons,
    /// It is a voter already, and cannot begin once more.
    #[error("this daemon keeps a map already")]
    Begun,
    /// The agent of a node cannot be made a voter.
    #[error("the agent of node {node} cannot keep the map: {cause}")]
    NotEnlisted {
        /// Which.
        node: NodeId,
        /// Why not.
        cause: String,
    },
    /// The map is another one by now.
    #[error("the map has changed meanwhile")]
    Stale,
    /// A change names a server that the map does not have, or cannot be made.
    #[error("the map cannot be changed like this")]
    Refused,
    /// Servers take part, or are needed.
    #[error("the servers are not down, too few would be left, or nobody else has what they hold")]
    CannotGiveUp,
    /// Nobody else can have the server's number.
    #[error("the server is not down, was replaced meanwhile, or nobody else has what it holds")]
    CannotReplace,
    /// Servers cannot be added, or taken off the map.
    #[error(
        "others were added meanwhile, or the servers have arrived, or have a number or address that is taken"
    )]
    CannotAdd,
    /// Servers cannot leave.
    #[error("the servers cannot leave: {0}")]
    CannotDepart(&'static str),
    /// Servers cannot stay that were not to leave.
    #[error("the servers were not to leave, or have left")]
    CannotStay,
    /// A directory cannot be forwarded like this.
    #[error(
        "the directory cannot be forwarded: it and the mount point lie in one another, or a server has left"
    )]
    CannotForward,
    /// Servers cannot be taken off the map.
    #[error(
        "the servers were not to leave, or still hold something, or one of the nodes is used by another server"
    )]
    CannotRemove,
    /// Servers cannot leave with what they hold.
    #[error("the servers cannot leave as they are: {0}")]
    CannotAbandon(&'static str),
    /// This daemon is not the leader.
    #[error("this daemon is not the controller")]
    NotLeader(Option<NodeId>),
    /// Too few voters have answered in time. What was proposed may still happen.
    #[error("most of the agents that keep the map do not answer")]
    Unconfirmed,
    /// The voter has been stopped.
    #[error("this daemon stops")]
    VoterStopped,
    /// The engine has failed.
    #[error("this daemon cannot keep the map: {0}")]
    Voter(String),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A request that no controller serves.
    #[error("not a request to the controller")]
    NotForController,
}

impl ControllerError {
    /// What the asking peer gets.
    pub fn errno(&self) -> Errno {
        match self {
            ControllerError::Store { .. }
            | ControllerError::Damaged { .. }
            | ControllerError::TooFew { .. }
            | ControllerError::Voter(_) => Errno::IO,
            ControllerError::Thread(_)
            | ControllerError::NotLeader(_)
            | ControllerError::Stale
            | ControllerError::VoterStopped => Errno::AGAIN,
            ControllerError::Unconfirmed | ControllerError::NotEnlisted { .. } => Errno::TIMEDOUT,
            ControllerError::NotFounded => Errno::NOENT,
            ControllerError::BadMap(_)
            | ControllerError::Begun
            | ControllerError::OtherDaemons
            | ControllerError::Refused
            | ControllerError::CannotReplace
            | ControllerError::CannotAdd
            | ControllerError::CannotDepart(_)
            | ControllerError::CannotStay
            | ControllerError::CannotForward
            | ControllerError::CannotRemove
            | ControllerError::CannotAbandon(_)
            | ControllerError::CannotGiveUp => Errno::INVAL,
            ControllerError::NotForController => Errno::OPNOTSUPP,
        }
    }
}
