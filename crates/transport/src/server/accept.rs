//! The acceptor: one thread for all endpoints.
//!
//! It accepts, tunes and parks; everything else is the workers'. It also closes connections that do not authenticate in
//! time, and so sleeps without end exactly when there is none that could. Running out of descriptors stops neither the
//! server nor the connections that it has: it is logged, and after a pause accepting goes on.

use super::pool::{Connected, Pool};
use super::{PeerInfo, Service};
use crate::error::TransportError;
use crate::socket;
use bivouac_node::Fd;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failure to accept.
const BACK_OFF: Duration = Duration::from_millis(100);

pub(super) struct Acceptor<S: Service> {
    /// With whether they are Unix sockets.
    listeners: Vec<(Fd, bool)>,
    pool: Arc<Pool<S>>,
    /// When which connection must have authenticated; in order of time.
    due: VecDeque<(Duration, u64)>,
    /// Whether the last accept failed, so that a lasting shortage is logged once.
    short: bool,
}

impl<S: Service> Acceptor<S> {
    pub(super) fn new(listeners: Vec<(Fd, bool)>, pool: Arc<Pool<S>>) -> Acceptor<S> {
        Acceptor { listeners, pool, due: VecDeque::new(), short: false }
    }

    pub(super) fn run(mut self) {
        let mut back_off = false;
        while !self.pool.halt.is_stopping() {
            let ready = self.wait(back_off);
            back_off = false;
            for i in ready {
                if let Err(error) = self.accept(i) {
                    self.log(error);
                    back_off = true;
                }
            }
            self.close_overdue();
        }
    }

    /// The listeners that have connections; none when something else is due.
    fn wait(&self, back_off: bool) -> Vec<usize> {
        let mut polled = vec![PollFd::new(&self.pool.halt.event, PollFlags::IN)];
        if !back_off {
            polled.extend(self.listeners.iter().map(|(fd, _)| PollFd::new(fd, PollFlags::IN)));
        }
        let due = self.due.front().map(|(at, _)| at.saturating_sub(socket::now()) + Duration::from_millis(1));
        let timeout = if back_off { Some(due.map_or(BACK_OFF, |d| d.min(BACK_OFF))) } else { due };
        let timeout = timeout.map(socket::timespec);
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {
                let listeners = polled.iter().skip(1).enumerate();
                listeners.filter(|(_, p)| !p.revents().is_empty()).map(|(i, _)| i).collect()
            }
            Err(Errno::INTR) => Vec::new(),
            Err(error) => {
                tracing::error!("waiting for connections: {error}");
                std::thread::sleep(BACK_OFF);
                Vec::new()
            }
        }
    }

    /// Accepts all that wait at one listener.
    fn accept(&mut self, listener: usize) -> Result<(), Errno> {
        let Some((listener, unix)) = self.listeners.get(listener) else {
            return Ok(());
        };
        let unix = *unix;
        while !self.pool.halt.is_stopping() {
            let (fd, from) = match rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC) {
                Ok((fd, from)) => (Fd::from(fd), from),
                Err(Errno::AGAIN) => break,
                // That connection ended before it was accepted, or a signal came; others may wait.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM) => continue,
                Err(error) => return Err(error),
            };
            self.short = false;
            let address = from.and_then(|a| SocketAddr::try_from(a).ok());
            match prepare(&fd, unix, address) {
                Ok(peer) => {
                    let deadline = socket::now() + self.pool.options.greeting;
                    let token = self.pool.admit(Connected { fd, unix, peer }, deadline);
                    self.due.push_back((deadline, token));
                }
                Err(error) => tracing::debug!("a new connection was closed: {error}"),
            }
        }
        Ok(())
    }

    fn log(&mut self, error: Errno) {
        if std::mem::replace(&mut self.short, true) {
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

    fn close_overdue(&mut self) {
        let now = socket::now();
        while let Some(&(at, token)) = self.due.front()
            && at <= now
        {
            self.due.pop_front();
            self.pool.close_unless_authenticated(token);
        }
    }
}

fn prepare(fd: &Fd, unix: bool, address: Option<SocketAddr>) -> Result<PeerInfo, TransportError> {
    socket::tune(fd.as_fd(), unix)?;
    if unix {
        let peer = sockopt::socket_peercred(fd)?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(PeerInfo::Unix { pid, uid: peer.uid.as_raw(), gid: peer.gid.as_raw() })
    } else {
        address.map(PeerInfo::Tcp).ok_or(TransportError::Protocol("a peer without an address"))
    }
}
