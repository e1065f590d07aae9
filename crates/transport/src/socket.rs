//! Sockets: making, connecting and listening, with the options that every connection gets.

use crate::endpoint::Endpoint;
use crate::error::{TransportError, errno_of};
use bivouac_node::Fd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::time::Duration;

/// After so long without an answer from the peer's kernel a TCP connection is dead, milliseconds.
const USER_TIMEOUT_MS: u32 = 20_000;
/// A TCP connection without traffic is probed after this, and then this often.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Unix sockets: what the kernel may hold for a reader, bytes. (TCP grows its buffers by itself, and further than a fixed size
/// would allow it to.)
const UNIX_BUFFER: usize = 4 << 20;
/// Connections that wait for being accepted. The kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

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

fn make(endpoint: &Endpoint, flags: SocketFlags) -> Result<Fd, Errno> {
    let family = match endpoint {
        Endpoint::Unix(_) => AddressFamily::UNIX,
        Endpoint::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
        Endpoint::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
    };
    rustix::net::socket_with(family, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None).map(Fd::from)
}

/// A connected, tuned, blocking socket, or an error when it is not connected by `deadline`.
pub(crate) fn connect(endpoint: &Endpoint, deadline: Duration) -> Result<Fd, TransportError> {
    let fd = make(endpoint, SocketFlags::empty())?;
    tune(rustix::fd::AsFd::as_fd(&fd), matches!(endpoint, Endpoint::Unix(_)))?;
    loop {
        let left = deadline.saturating_sub(now());
        if left.is_zero() {
            return Err(TransportError::TimedOut);
        }
        // The send timeout bounds connect, too.
        set_timeout(rustix::fd::AsFd::as_fd(&fd), sockopt::Timeout::Send, left)?;
        let result = match endpoint {
            Endpoint::Tcp(address) => rustix::net::connect(&fd, address),
            Endpoint::Unix(name) => {
                rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)
            }
        };
        match (result, endpoint) {
            (Ok(()), _) => break,
            (Err(Errno::INTR), Endpoint::Unix(_)) => {}
            // A signal came in between (or the time is over): the kernel goes on connecting.
            (Err(Errno::INTR | Errno::INPROGRESS | Errno::ALREADY), _) => {
                await_connected(&fd, deadline)?;
                break;
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    if let Endpoint::Tcp(address) = endpoint
        && address.ip().is_loopback()
        && rustix::net::getsockname(&fd)?.eq(&rustix::net::SocketAddrAny::from(*address))
    {
        // A port of the ephemeral range where nobody listens can be given to the very socket that connects to it.
        return Err(TransportError::Refused);
    }
    Ok(fd)
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

/// A socket that listens, non-blocking, and where it does (the port chosen).
pub(crate) fn listen(endpoint: &Endpoint) -> Result<(Fd, Endpoint), TransportError> {
    let refuse = |error| TransportError::Listen { endpoint: endpoint.clone(), errno: errno_of(error) };
    let listening = || -> Result<(Fd, Endpoint), Errno> {
        let fd = make(endpoint, SocketFlags::NONBLOCK)?;
        let bound = match endpoint {
            Endpoint::Tcp(address) => {
                sockopt::set_socket_reuseaddr(&fd, true)?;
                rustix::net::bind(&fd, address)?;
                Endpoint::Tcp(SocketAddr::try_from(rustix::net::getsockname(&fd)?)?)
            }
            Endpoint::Unix(name) => {
                rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
                endpoint.clone()
            }
        };
        rustix::net::listen(&fd, BACKLOG)?;
        Ok((fd, bound))
    };
    listening().map_err(refuse)
}
