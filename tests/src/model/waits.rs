//! Clients that wait for locks: each gets its lock once nothing conflicts, and not before; a signal ends the
//! wait.

use super::{Answer, Call, Order, Play, Reference};
use std::time::{Duration, Instant};

/// How long a lock that is free may take to reach a client that waits for it. A kernel mount learns late that
/// a description is closed.
const COMING: Duration = bivouac_testing::HANG;

/// How long to watch one client that may have its lock before turning to the next.
const LOOK: Duration = Duration::from_millis(1);

impl Play {
    /// Has a client make a call that has nothing to wait for.
    pub(super) fn have_done(&mut self, client: usize, call: &Call) -> Result<Answer, String> {
        let (face, order) = (&mut self.faces[client], Order::Do(call.clone()));
        if !matches!(call, Call::Lock { wait: true, .. }) {
            return Ok(face.obey(&order));
        }
        face.begin(&order);
        if let Some(answer) = face.answer_within(COMING) {
            return Ok(answer);
        }
        let ended = face.interrupted(COMING);
        Err(self
            .wrong(client, &format!("does not get a lock that is free: {call:?} (interrupted: {ended:?})")))
    }

    /// Waits until all those have their locks whom nothing keeps from them. Whoever else has an answer is
    /// wrong.
    pub(super) fn let_through(&mut self, reference: &mut Reference) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let ready = reference.ready();
            for client in reference.waiting() {
                let time = if ready.contains(&client) { LOOK } else { Duration::ZERO };
                match self.faces[client].answer_within(time) {
                    None => {}
                    Some(Answer::Done) if ready.contains(&client) => {
                        reference.waited(client, true);
                        self.waits.0 += 1;
                        // Another one may not have his any more.
                        break;
                    }
                    Some(answer) => {
                        reference.waited(client, false);
                        return Err(
                            self.wrong(client, &format!("waited for a lock that is held: {answer:?}"))
                        );
                    }
                }
            }
            match reference.ready().first() {
                None => return Ok(()),
                Some(client) if begin.elapsed() > COMING => {
                    return Err(self.wrong(*client, "does not get a lock that is free"));
                }
                Some(_) => {}
            }
        }
    }

    /// Has a signal end a client's wait.
    pub(super) fn interrupt(&mut self, client: usize, reference: &mut Reference) -> Result<(), String> {
        let answer = self.faces[client].interrupted(COMING);
        reference.waited(client, false);
        match answer {
            Some(Answer::Failed(libc::EINTR)) => {
                self.waits.1 += 1;
                Ok(())
            }
            other => {
                Err(self.wrong(client, &format!("was to be interrupted in its wait for a lock: {other:?}")))
            }
        }
    }

    /// Nobody waits any more.
    pub(super) fn end_waits(&mut self, reference: &mut Reference) -> Result<(), String> {
        let ends: Vec<_> =
            reference.waiting().into_iter().map(|client| self.interrupt(client, reference)).collect();
        ends.into_iter().collect()
    }

    fn wrong(&self, client: usize, what: &str) -> String {
        format!("client {client} ({}) {what}", self.faces[client].name)
    }
}
