//! Sockets: making, connecting and listening, with the options that every connection gets.

use crate::endpoint::Endpoint;
use crate::error::{TransportError, errno_of};
use bivouac_node::Fd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::time::Duration;

/// After so long without an answer from the peer's kernel a TCP connection is dead, milliseconds.
const USER_TIMEOUT_MS: u32 = 20_000;
/// A TCP connection without traffic is probed after this, and then this often.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Unix sockets: what the kernel may hold for a reader, bytes. (TCP grows its buffers by itself, and further
/// than a fixed size would allow it to.)
const UNIX_BUFFER: usize = 4 << 20;
/// Connections that wait for being accepted. The kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;
/// How long to wait for a connection at one of several names before the next name is tried.
const SOON: Duration = Duration::from_millis(20);

/// Time since an arbitrary start, which never goes back.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// A socket timeout; the kernel takes zero for "never", so a time that is over becomes the shortest possible.
pub(crate) fn set_timeout(
    fd: BorrowedFd<'_>,
    which: sockopt::Timeout,
    timeout: Duration,
) -> Result<(), TransportError> {
    let timeout = timeout.clamp(Duration::from_millis(1), Duration::from_secs(1 << 30));
    Ok(sockopt::set_socket_timeout(fd, which, Some(timeout))?)
}

/// The options of every connection, on both ends.
pub(crate) fn tune(fd: BorrowedFd<'_>, unix: bool) -> Result<(), TransportError> {
    if unix {
        sockopt::set_socket_send_buffer_size(fd, UNIX_BUFFER)?;
    } else {
        sockopt::set_tcp_nodelay(fd, true)?;
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(fd, KEEPALIVE / 4)?;
        sockopt::set_tcp_user_timeout(fd, USER_TIMEOUT_MS)?;
    }
    Ok(())
}

fn make(family: AddressFamily, flags: SocketFlags) -> Result<Fd, Errno> {
    rustix::net::socket_with(family, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None).map(Fd::from)
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A connected, tuned, blocking socket, or an error when it is not connected by `deadline`.
pub(crate) fn connect(endpoint: &Endpoint, deadline: Duration) -> Result<Fd, TransportError> {
    match endpoint {
        Endpoint::Tcp(address) => connect_tcp(address, deadline),
        Endpoint::Unix(name) => connect_unix(name, deadline),
        Endpoint::Node(names) => connect_node(names, deadline),
    }
}

/// Connects to the first of several names at which this user's daemon listens. Another user may have taken a
/// name, and accept no connections there: names at which this one would have to wait are tried again after
/// all others.
fn connect_node(names: &[String], deadline: Duration) -> Result<Fd, TransportError> {
    let mut slow = Vec::new();
    for name in names {
        match connect_unix(name, deadline.min(now().saturating_add(SOON))) {
            Err(TransportError::Refused) => {}
            Err(TransportError::TimedOut) => slow.push(name),
            other => return other,
        }
    }
    for name in slow {
        match connect_unix(name, deadline) {
            Err(TransportError::Refused) => {}
            other => return other,
        }
    }
    Err(TransportError::Refused)
}

/// If another user's process listens there, the answer is that nobody listens (refused).
fn connect_unix(name: &str, deadline: Duration) -> Result<Fd, TransportError> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let fd = make(AddressFamily::UNIX, SocketFlags::empty())?;
    tune(fd.as_fd(), true)?;
    loop {
        let left = time_left(deadline)?;
        // The send timeout bounds connect, too.
        set_timeout(fd.as_fd(), sockopt::Timeout::Send, left)?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(TransportError::TimedOut),
            Err(error) => return Err(error.into()),
        }
    }
    if is_ours(&fd)? { Ok(fd) } else { Err(TransportError::Refused) }
}

/// Whether a process of this user or of the superuser is at the other end of a connected Unix socket.
fn is_ours(fd: &Fd) -> Result<bool, Errno> {
    let peer = sockopt::socket_peercred(fd)?.uid;
    Ok(peer.is_root() || peer == rustix::process::geteuid() || peer == rustix::process::getuid())
}

fn connect_tcp(address: &SocketAddr, deadline: Duration) -> Result<Fd, TransportError> {
    let fd = make(family(address), SocketFlags::empty())?;
    tune(fd.as_fd(), false)?;
    set_timeout(fd.as_fd(), sockopt::Timeout::Send, time_left(deadline)?)?;
    match rustix::net::connect(&fd, address) {
        Ok(()) => {}
        // A signal came in between (or the time is over): the kernel goes on connecting.
        Err(Errno::INTR | Errno::INPROGRESS | Errno::ALREADY) => await_connected(&fd, deadline)?,
        Err(error) => return Err(error.into()),
    }
    if address.ip().is_loopback()
        && rustix::net::getsockname(&fd)?.eq(&rustix::net::SocketAddrAny::from(*address))
    {
        // If nobody listens at a port of the ephemeral range, the kernel may choose that port for the
        // connecting socket itself, which then connects to itself.
        return Err(TransportError::Refused);
    }
    Ok(fd)
}

fn time_left(deadline: Duration) -> Result<Duration, TransportError> {
    let left = deadline.saturating_sub(now());
    if left.is_zero() { Err(TransportError::TimedOut) } else { Ok(left) }
}

fn await_connected(fd: &Fd, deadline: Duration) -> Result<(), TransportError> {
    loop {
        let left = deadline.saturating_sub(now());
        let mut polled = [PollFd::new(fd, PollFlags::OUT)];
        match rustix::event::poll(&mut polled, Some(&timespec(left))) {
            Ok(0) => return Err(TransportError::TimedOut),
            Ok(_) => return Ok(sockopt::socket_error(fd)??),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A socket that listens, non-blocking, and where it does (the port or the name chosen).
pub(crate) fn listen(endpoint: &Endpoint) -> Result<(Fd, Endpoint), TransportError> {
    let listening = || match endpoint {
        Endpoint::Tcp(address) => listen_tcp(address),
        Endpoint::Unix(name) => listen_unix(name),
        Endpoint::Node(names) => listen_node(names),
    };
    listening().map_err(|error| TransportError::Listen { endpoint: endpoint.clone(), errno: errno_of(error) })
}

fn listen_tcp(address: &SocketAddr) -> Result<(Fd, Endpoint), Errno> {
    let fd = make(family(address), SocketFlags::NONBLOCK)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, address)?;
    rustix::net::listen(&fd, BACKLOG)?;
    let bound = Endpoint::Tcp(SocketAddr::try_from(rustix::net::getsockname(&fd)?)?);
    Ok((fd, bound))
}

fn listen_unix(name: &str) -> Result<(Fd, Endpoint), Errno> {
    let fd = make(AddressFamily::UNIX, SocketFlags::NONBLOCK)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok((fd, Endpoint::Unix(name.to_owned())))
}

/// Listens at the first free name. If a daemon of this user has a name already, that is an error: there must
/// not be two daemons of one kind.
fn listen_node(names: &[String]) -> Result<(Fd, Endpoint), Errno> {
    for name in names {
        match listen_unix(name) {
            Err(Errno::ADDRINUSE) => {
                let soon = now().saturating_add(SOON);
                if connect_unix(name, soon).is_ok() {
                    return Err(Errno::ADDRINUSE);
                }
                tracing::warn!("somebody else has taken the socket @{name}: another name serves");
            }
            other => return other,
        }
    }
    Err(Errno::ADDRINUSE)
}
