//! Whether the command is still there, and so whether this worker may go on.
//!
//! The command gives a worker's tasks to others when it has not heard it for some time. So that two never
//! write one file, a worker that does not hear the command pauses before that. It does not end: the command
//! may only have been suspended. It asks a numbered question, and goes on when the command answers it. The
//! command does not answer a worker that it has given up, and what it sent before that does not count.
//!
//! Time is counted in ticks in which this process has run, so that a job that is suspended as a whole goes on
//! where it was.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a tick is.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// After so many ticks without a word of the command a worker pauses: 10 s.
const PAUSE: u32 = 20;
/// After so many it ends, because nobody would end it if it was cut off from the command for good: ten
/// minutes.
const END: u32 = 1200;

#[derive(Default)]
pub(super) struct Pulse {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Ticks since the command was heard.
    silent: u32,
    /// The question that was asked last.
    question: u64,
    paused: bool,
    ended: bool,
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command has said something; maybe it has answered a question.
    pub(super) fn heard(&self, answer: Option<u64>) {
        let mut state = self.lock();
        state.silent = 0;
        if state.paused && answer == Some(state.question) {
            state.paused = false;
            self.changed.notify_all();
        }
    }

    /// A tick has gone by. Whether it is time to end.
    pub(super) fn tick(&self) -> bool {
        let mut state = self.lock();
        state.silent += 1;
        if state.silent > PAUSE && !state.paused {
            state.paused = true;
            state.question += 1;
        }
        state.silent > END
    }

    /// The question that the command is to answer; 0: none was asked yet.
    pub(super) fn question(&self) -> u64 {
        self.lock().question
    }

    /// The command has gone.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits while the command is not heard. An error: it has gone.
    pub(super) fn go_on(&self) -> io::Result<()> {
        let state = self.lock();
        let waits = |state: &mut State| state.paused && !state.ended;
        let state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        if state.ended { Err(io::Error::other("the command has ended")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_hears_nothing_pauses_until_its_question_is_answered() {
        let pulse = Pulse::default();
        for _ in 0..PAUSE {
            assert!(!pulse.tick());
        }
        pulse.go_on().expect("not paused yet");
        pulse.heard(None);
        for _ in 0..=PAUSE {
            assert!(!pulse.tick());
        }
        assert_eq!(pulse.question(), 1);
        // What the command said before it gave the worker up arrives late: it is no answer.
        for late in [None, Some(0)] {
            pulse.heard(late);
            assert!(pulse.lock().paused, "{late:?}");
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pulse.go_on());
            pulse.heard(Some(1));
            waiting.join().expect("no panic").expect("it goes on");
        });
        for _ in 0..END {
            assert!(!pulse.tick());
        }
        assert!(pulse.tick(), "it is cut off for good");
        pulse.end();
        assert!(pulse.go_on().is_err());
    }
}
