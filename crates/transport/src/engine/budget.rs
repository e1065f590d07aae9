//! The one table of the times that requests may take.
//!
//! | who asks whom | connect | silence before asking whether the peer is up | repeats a request for |
//! |---|---|---|---|
//! | client: server, agent | 3 s | 1 s | 30 s |
//! | server or agent: server | 2 s | 1 s | 15 s |
//! | controller: daemon (ping) | 1.5 s since the last answer | none: it is who says so | while it runs |
//! | command line: daemon | 2 to 15 s ([`control`]) | none | never |
//!
//! They hang together. A dead server is declared down within [`ping::SILENCE`] and a little, one that hangs
//! within [`ping::HANG`]; so patience longer than that does not keep a program waiting for a dead server, and
//! is only needed where the map cannot change. Servers are less patient than clients, so that the program
//! whose request needs several servers gets an answer rather than a time-out. If nobody listens at a server's
//! address, it is waited for no longer than [`refusing::GONE`], because without the controller the map never
//! says that it is down. And servers remember requests for longer ([`REMEMBERED`]) than anybody repeats one.
//!
//! What a server allows its peers is in [`crate::ServerOptions`]; how long its operations wait for each
//! other, in the metadata store's options.

use crate::connection::ConnectOptions;
use rustix::fd::RawFd;
use std::time::Duration;

/// The times of one kind of sender.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Longest time to connect and authenticate.
    pub connect: Duration,
    /// How long a peer is silent before the sender asks whether it is up.
    pub silence: Duration,
    /// How long a request is repeated, counted from the first attempt that was not answered as it should be.
    pub patience: Duration,
    /// The first pause between two attempts. Each pause is twice the one before it.
    pub first_pause: Duration,
    /// Longest pause after a refusal: the peer is there, and will be ready in a moment.
    pub longest_refused: Duration,
}

impl Budget {
    /// Longest pause between two attempts: what a program loses at most after a server is back.
    pub const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    /// Of clients. The patience is for what no map tells: a server that is up, and does not get ready. The
    /// first pause is short, because most refusals are over in a moment and a program waits.
    pub const CLIENT: Budget = Budget {
        connect: Duration::from_secs(3),
        silence: Duration::from_secs(1),
        patience: Duration::from_secs(30),
        first_pause: Duration::from_micros(50),
        longest_refused: Budget::LONGEST_PAUSE,
    };

    /// Of servers and agents among each other: they hold what others wait for. They are patient until the map says
    /// of a server that hangs that it is down. A server whose map is older is getting the newer one, and asked often.
    pub const SERVER: Budget = Budget {
        connect: Duration::from_secs(2),
        silence: Duration::from_secs(1),
        patience: Duration::from_secs(15),
        first_pause: Duration::from_millis(1),
        longest_refused: Duration::from_millis(1),
    };

    /// How to connect; descriptors get numbers from `fd_floor` on.
    pub fn options(&self, fd_floor: RawFd) -> ConnectOptions {
        ConnectOptions { timeout: self.connect, silence: self.silence, fd_floor, ..ConnectOptions::default() }
    }
}

/// Servers remember the newest request of each slot for so long after it came.
pub const REMEMBERED: Duration = Duration::from_secs(120);
/// How long a server lets an attempt at a request wait for an earlier one that it is carrying out.
pub const OVERLAP: Duration = Duration::from_secs(10);

const _: () = assert!(REMEMBERED.as_secs() > 2 * Budget::CLIENT.patience.as_secs());
const _: () = assert!(Budget::SERVER.patience.as_secs() < Budget::CLIENT.patience.as_secs());
const _: () = assert!(Budget::SERVER.patience.as_secs() > ping::HANG.as_secs() + 2);

/// Servers that refuse connections ([`crate::Refusals`]).
pub mod refusing {
    use std::time::Duration;

    /// How long such a server is waited for: a new controller, which may declare it down, is elected in two seconds.
    /// What lay on it has failed within three, with what the failure itself takes.
    pub const GONE: Duration = Duration::from_millis(2500);
    /// Two servers refuse together if no more than this lies between two refusals. (Who waits for one tries
    /// again much sooner.)
    pub const TOGETHER: Duration = Duration::from_secs(1);
    /// A refusal has nothing to do with one that was longer ago: the server may have been back meanwhile.
    pub const MEMORY: Duration = Duration::from_secs(12);
}

/// The controller's pings, by which servers are declared down.
pub mod ping {
    use std::time::Duration;

    /// A server that has not answered for so long is down if it cannot be reached.
    pub const SILENCE: Duration = Duration::from_millis(1500);
    /// A server that has not answered for so long is down even if its process is there.
    pub const HANG: Duration = Duration::from_secs(10);
    /// A node whose agent has not answered for so long is away, if its servers are down and it cannot be reached. What
    /// its programs have locked ends then, so it takes longer than for a server.
    pub const AWAY: Duration = Duration::from_secs(5);
    /// How long a silent server's machine may take to accept a connection.
    pub const REACH: Duration = Duration::from_millis(300);
    /// How long an answer of a server is awaited that is down already, and to take a newer map at least.
    pub const ANSWER: Duration = Duration::from_millis(1000);
}

/// Servers that do not reach each other.
pub mod reach {
    use std::time::Duration;

    /// How long a machine may take to accept a connection before it counts as not reached: the kernel repeats what was
    /// lost after a second.
    pub const TRY: Duration = Duration::from_millis(1200);
    /// Who is not reached so long after it was first silent is cut off.
    pub const SURE: Duration = Duration::from_secs(2);
}

/// Control requests: one attempt, over a connection of its own. Each is the longest time to connect, and then
/// to answer.
pub mod control {
    use std::time::Duration;

    /// To look at a daemon for `status`: a person waits, and is told that it does not answer.
    pub const LOOK: Duration = Duration::from_secs(2);
    /// To reach one of several agents, when the controller is looked for.
    pub const AGENT: Duration = Duration::from_secs(1);
    /// How long to look for the controller, where a person waits. To elect a new one takes up to two seconds.
    pub const ELECTION: Duration = Duration::from_secs(6);
    /// To see whether an agent is there.
    pub const PRESENCE: Duration = Duration::from_secs(3);
    /// To be told to stop. Who does not answer is ended by other means.
    pub const STOP: Duration = Duration::from_secs(5);
    /// To answer as an agent, or take a lifeline: all nodes of a job may begin at once on a busy machine.
    pub const BEGIN: Duration = Duration::from_secs(10);
    /// To be reached for the first time, just started: who was not cannot be reached at all.
    pub const REACH: Duration = Duration::from_secs(15);
    /// To begin to serve with the first map: daemons recover their metadata then, and do not count as hanging.
    pub const INSTALL: Duration = Duration::from_secs(120);
}
