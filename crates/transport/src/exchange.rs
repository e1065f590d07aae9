//! Several calls at once, each on a connection of its own.
//!
//! All requests go out before any answer is awaited: sends never block, and a socket that is full is left for
//! later while the others go on, so a slow link holds up nobody. Then all answers come in with one wait, in
//! whatever order and interleaving they arrive. Each call ends for itself; one dead server costs the others
//! nothing. The last call that is still open is finished with blocking system calls, which are cheaper than
//! waiting and looking.

use crate::connection::{Connection, Outgoing};
use crate::error::TransportError;
use crate::progress::{Received, Step};
use crate::socket::{now, timespec};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::IoSliceMut;
use std::time::Duration;

/// How many connections are watched without allocating.
const ON_STACK: usize = 16;

/// One of the calls.
pub struct Exchange<'a, 'b> {
    /// The connection, which no other call of the exchange uses. Afterwards it holds the answer's body
    /// ([`Connection::body`]).
    pub connection: &'a mut Connection,
    /// What to send.
    pub request: Outgoing<'a>,
    /// Where the answer's payload goes.
    pub into: &'a mut [IoSliceMut<'b>],
    /// How it ended; `Some` after [`exchange`].
    pub result: Option<Result<Received, TransportError>>,
    begun: bool,
    moved: usize,
    silent_since: Duration,
}

impl<'a, 'b> Exchange<'a, 'b> {
    /// A call to be made.
    pub fn new(
        connection: &'a mut Connection,
        request: Outgoing<'a>,
        into: &'a mut [IoSliceMut<'b>],
    ) -> Exchange<'a, 'b> {
        Exchange {
            connection,
            request,
            into,
            result: None,
            begun: false,
            moved: 0,
            silent_since: Duration::ZERO,
        }
    }

    /// After a timeout: lets the next [`exchange`] go on with this call.
    pub fn go_on(&mut self) {
        self.result = None;
    }

    /// Moves what can be moved without waiting.
    fn step(&mut self) {
        let result = self.try_step();
        self.result = result.transpose();
    }

    fn try_step(&mut self) -> Result<Option<Received>, TransportError> {
        if !self.connection.is_sent() {
            return self.connection.send(&self.request, SendFlags::DONTWAIT).map(|_: Step| None);
        }
        self.connection.receive(self.into, RecvFlags::DONTWAIT)
    }

    /// When the peer will have been silent for too long.
    fn deadline(&mut self, now: Duration) -> Duration {
        if self.connection.moved() != self.moved || self.silent_since.is_zero() {
            self.moved = self.connection.moved();
            self.silent_since = now;
        }
        self.silent_since.saturating_add(self.connection.silence())
    }
}

/// Makes all calls, and returns when each has its result. Calls that have one already are left alone.
pub fn exchange(calls: &mut [Exchange<'_, '_>]) {
    for call in calls.iter_mut().filter(|c| c.result.is_none()) {
        call.moved = 0;
        call.silent_since = Duration::ZERO;
        if call.begun {
            continue;
        }
        match call.connection.begin(&call.request, false) {
            Ok(()) => {
                call.begun = true;
                call.step();
            }
            Err(error) => call.result = Some(Err(error)),
        }
    }
    loop {
        let mut open = calls.iter_mut().filter(|c| c.result.is_none());
        let Some(first) = open.next() else { return };
        if open.next().is_none() {
            first.result = Some(first.connection.complete(&first.request, first.into));
            return;
        }
        wait(calls);
    }
}

/// Waits until something can be moved, and moves it.
fn wait(calls: &mut [Exchange<'_, '_>]) {
    let now = now();
    let mut earliest = Duration::MAX;
    for call in calls.iter_mut().filter(|c| c.result.is_none()) {
        let deadline = call.deadline(now);
        if deadline <= now {
            call.result = Some(Err(TransportError::TimedOut));
        }
        earliest = earliest.min(deadline);
    }
    let mut few = [PollFlags::empty(); ON_STACK];
    let mut many = Vec::new();
    let ready = match few.get_mut(..calls.len()) {
        Some(few) => few,
        None => {
            many.resize(calls.len(), PollFlags::empty());
            &mut many[..]
        }
    };
    if let Err(error) = poll(calls, ready, earliest.saturating_sub(now)) {
        for call in calls.iter_mut().filter(|c| c.result.is_none()) {
            call.result = Some(Err(error.into()));
        }
    }
    for (call, ready) in calls.iter_mut().zip(ready) {
        if call.result.is_none() && !ready.is_empty() {
            call.step();
        }
    }
}

/// Waits, and fills in for each unfinished call what it is ready for: nothing if the time is over.
fn poll(calls: &[Exchange<'_, '_>], ready: &mut [PollFlags], timeout: Duration) -> Result<(), Errno> {
    // Only open calls are watched: a dead connection would end every wait at once.
    let mut open = calls.iter().filter(|c| c.result.is_none());
    let count = open.clone().count();
    let watch = |call: &Exchange<'_, '_>| {
        if call.connection.is_sent() { PollFlags::IN } else { PollFlags::OUT }
    };
    let Some(any) = calls.first() else { return Ok(()) };
    let mut few: [PollFd<'_>; ON_STACK];
    let mut many: Vec<PollFd<'_>>;
    let polled = if count <= ON_STACK {
        few = std::array::from_fn(|_| {
            let call = open.next().unwrap_or(any);
            PollFd::from_borrowed_fd(call.connection.as_fd(), watch(call))
        });
        few.get_mut(..count).unwrap_or_default()
    } else {
        many = open.map(|c| PollFd::from_borrowed_fd(c.connection.as_fd(), watch(c))).collect();
        &mut many[..]
    };
    match rustix::event::poll(polled, Some(&timespec(timeout))) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(error) => return Err(error),
    }
    let open = calls.iter().zip(ready).filter(|(c, _)| c.result.is_none());
    for ((_, ready), polled) in open.zip(polled) {
        *ready = polled.revents();
    }
    Ok(())
}
