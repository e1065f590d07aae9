//! The acceptor: one thread for all endpoints.
//!
//! It accepts, tunes and parks; everything else is the workers'. It also keeps strangers from using up what
//! genuine clients need. On a Unix socket the kernel tells which user's process has connected; a connection
//! of another user is closed at once, before anything is allocated for it. Connections that have not
//! authenticated are bounded in number and time ([`guests`](super::guests)). The last descriptors of the
//! process are never given to connections: the daemon needs them for its own files. Running out of
//! descriptors stops neither the server nor the connections that it has: it is logged, and after a pause
//! accepting goes on.
//!
//! The thread sleeps without a time limit exactly when no connection can become overdue.

use super::guests::{Guests, Room};
use super::pool::{Connected, Pool};
use super::{PeerInfo, ServerOptions, Service};
use crate::error::TransportError;
use crate::socket;
use bivouac_node::Fd;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failure to accept, and longest pause between two looks for room.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Shortest pause between two looks for room.
const SHORT: Duration = Duration::from_millis(1);

pub(super) struct Acceptor<S: Service> {
    doors: Vec<Door>,
    pool: Arc<Pool<S>>,
    /// Whether there were not enough descriptors last time, so that a lasting shortage is logged once.
    short: bool,
}

/// One listener, and the connections that it has accepted and that have not authenticated.
struct Door {
    fd: Fd,
    unix: bool,
    guests: Guests,
    /// On a Unix socket: processes of other users than this one.
    strangers: Guests,
    /// When this listener may accept again.
    closed_until: Duration,
}

impl Door {
    fn new(fd: Fd, unix: bool, options: &ServerOptions) -> Door {
        let guests = Guests::new(options.guests, options.fair);
        let strangers = Guests::new(options.strangers, Duration::ZERO);
        Door { fd, unix, guests, strangers, closed_until: Duration::ZERO }
    }
}

impl<S: Service> Acceptor<S> {
    /// For these listeners, each with whether it is a Unix socket.
    pub(super) fn new(listeners: Vec<(Fd, bool)>, pool: Arc<Pool<S>>) -> Acceptor<S> {
        let doors = listeners.into_iter().map(|(fd, unix)| Door::new(fd, unix, &pool.options)).collect();
        Acceptor { doors, pool, short: false }
    }

    pub(super) fn run(mut self) {
        while !self.pool.halt.is_stopping() {
            for i in self.wait() {
                self.accept(i);
            }
            let (now, longest) = (socket::now(), self.pool.options.greeting);
            for door in &mut self.doors {
                door.guests.close_overdue(&self.pool, now, longest);
                door.strangers.close_overdue(&self.pool, now, longest);
            }
        }
    }

    /// Waits until there is something to do. Returns the listeners at which connections wait.
    fn wait(&self) -> Vec<usize> {
        let now = socket::now();
        let longest = self.pool.options.greeting;
        let open: Vec<usize> = self
            .doors
            .iter()
            .enumerate()
            .filter(|(_, door)| door.closed_until <= now)
            .map(|(i, _)| i)
            .collect();
        let mut polled = vec![PollFd::new(&self.pool.halt.event, PollFlags::IN)];
        polled.extend(
            open.iter().filter_map(|i| self.doors.get(*i)).map(|d| PollFd::new(&d.fd, PollFlags::IN)),
        );
        let until = self.doors.iter().flat_map(|door| {
            let reopened = (door.closed_until > now).then_some(door.closed_until);
            [reopened, door.guests.next_overdue(longest), door.strangers.next_overdue(longest)]
        });
        let timeout = until.flatten().min().map(|at| socket::timespec(at.saturating_sub(now) + SHORT));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {
                let ready = polled.iter().skip(1).zip(open);
                ready.filter(|(p, _)| !p.revents().is_empty()).map(|(_, i)| i).collect()
            }
            Err(Errno::INTR) => Vec::new(),
            Err(error) => {
                tracing::error!("waiting for connections: {error}");
                std::thread::sleep(BACK_OFF);
                Vec::new()
            }
        }
    }

    /// Accepts all connections that wait at a listener, as long as there is room.
    fn accept(&mut self, door: usize) {
        let Acceptor { doors, pool, short } = self;
        let Some(door) = doors.get_mut(door) else { return };
        while !pool.halt.is_stopping() {
            let now = socket::now();
            if let Room::NotBefore(later) = door.guests.make_room(pool, now) {
                // A connection may authenticate at any moment and so make room: look again soon.
                door.closed_until = later.clamp(now + SHORT, now + SHORT * 5);
                return;
            }
            let (fd, from) = match rustix::net::acceptfrom_with(&door.fd, SocketFlags::CLOEXEC) {
                Ok((fd, from)) => (Fd::from(fd), from),
                Err(Errno::AGAIN) => return,
                // That connection ended before it was accepted, or a signal came; others may wait.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM) => continue,
                Err(error) => {
                    log(short, error);
                    door.closed_until = now + BACK_OFF;
                    return;
                }
            };
            let address = from.and_then(|a| SocketAddr::try_from(a).ok());
            let peer = match identify(&fd, door.unix, address) {
                Ok(peer) => peer,
                Err(error) => {
                    tracing::debug!("a new connection was closed: {error}");
                    continue;
                }
            };
            let guests = if is_stranger(peer) { &mut door.strangers } else { &mut door.guests };
            // The kernel assigns the lowest free number: at the ceiling, all below are in use.
            if fd.as_raw_fd() >= pool.options.ceiling {
                log(short, Errno::MFILE);
                if !guests.close_oldest(pool) {
                    continue;
                }
            } else {
                *short = false;
            }
            if guests.make_room(pool, now) != Room::Free {
                tracing::debug!("{peer:?} was closed: another user's process has no business here");
                continue;
            }
            if let Err(error) = socket::tune(fd.as_fd(), door.unix) {
                tracing::debug!("a new connection was closed: {error}");
                continue;
            }
            let (token, ticket) = pool.admit(Connected { fd, unix: door.unix, peer }, now);
            guests.note(now, token, &ticket);
        }
    }
}

fn log(short: &mut bool, error: Errno) {
    if std::mem::replace(short, true) {
        return;
    }
    match error {
        Errno::MFILE | Errno::NFILE => tracing::error!(
            "no descriptors left for new connections ({error}): raise the limit (ulimit -n, or LimitNOFILE); \
             existing connections go on"
        ),
        error => tracing::error!("cannot accept connections: {error}"),
    }
}

/// Whether it is a process of another user than this one's and the superuser.
fn is_stranger(peer: PeerInfo) -> bool {
    match peer {
        PeerInfo::Unix { uid, .. } => uid != 0 && uid != rustix::process::geteuid().as_raw(),
        PeerInfo::Tcp(_) => false,
    }
}

fn identify(fd: &Fd, unix: bool, address: Option<SocketAddr>) -> Result<PeerInfo, TransportError> {
    if unix {
        let peer = sockopt::socket_peercred(fd)?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(PeerInfo::Unix { pid, uid: peer.uid.as_raw(), gid: peer.gid.as_raw() })
    } else {
        address.map(PeerInfo::Tcp).ok_or(TransportError::Protocol("a peer without an address"))
    }
}
