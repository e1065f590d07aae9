//! Whether anybody is left who could end this daemon.
//!
//! A deployment that `bivouac run` made ends with it. `run` holds a connection to every daemon, a *lifeline*.
//! When `run` is killed, the controller sees its own lifeline end and stops all other daemons, and so does an agent
//! that becomes the controller later; but there may be none any more, where most of those who elect it have died. So a daemon that has no lifeline any more, and has not heard from the
//! controller for some time, is *deserted*: it ends by itself, and cleans up.
//!
//! How long is "some time"? If a lifeline was closed, `run` has ended for certain. Then the daemon only waits
//! whether the controller, which pings twice a second, tells it to stop: [`AFTER_LEFT`]. If a lifeline broke
//! because `run` could not be reached, nothing is certain: there may be a fault in the network, and what is
//! stored here is lost when this daemon ends: [`AFTER_LOST`]. A daemon that never had a lifeline waits as
//! long as a start can take: [`BEFORE_FIRST`].
//!
//! A controller that is only slow changes nothing for the worse: the deployment ends in any case. A
//! deployment that was made by `up`, or that `run` has released, has no tether.

use crate::daemon::{End, Ending};
use bivouac_transport::Parting;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After a lifeline was closed by `run`'s end.
const AFTER_LEFT: Duration = Duration::from_secs(10);
/// After the last lifeline broke.
pub(crate) const AFTER_LOST: Duration = Duration::from_secs(600);
/// After the start: longer than starting all daemons and their first map may take.
const BEFORE_FIRST: Duration = Duration::from_secs(300);

/// The tether of a daemon whose deployment ends with a `run`.
pub(crate) struct Tether {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What is known of those who could end the daemon.
struct State {
    /// Lifelines that are held now.
    held: u32,
    /// The deployment is to go on after `run` ends, or the daemon is ending already.
    released: bool,
    /// Since when there has been no lifeline, and how long that may last.
    without: (Instant, Duration),
    /// How the last one ended.
    ended: Option<Parting>,
    /// When the controller was last heard of.
    heard: Instant,
}

impl State {
    fn new(now: Instant) -> State {
        State { held: 0, released: false, without: (now, BEFORE_FIRST), ended: None, heard: now }
    }

    fn let_go(&mut self, now: Instant, how: Parting) {
        self.held = self.held.saturating_sub(1);
        let limit = match how {
            Parting::Left => AFTER_LEFT,
            Parting::Lost => AFTER_LOST,
        };
        self.without = (now, limit);
        self.ended = Some(how);
    }

    /// When the daemon is deserted unless something changes.
    fn deserted_at(&self) -> Option<Instant> {
        let (since, limit) = self.without;
        (self.held == 0 && !self.released).then(|| since.max(self.heard) + limit)
    }
}

impl Tether {
    /// Begins to watch; tells `ending` when the daemon is deserted.
    pub(crate) fn start(ending: Arc<Ending>) -> std::io::Result<Tether> {
        let state = Mutex::new(State::new(Instant::now()));
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let watched = shared.clone();
        let watch = move || watched.watch(&ending);
        let thread = std::thread::Builder::new().name("tether".into()).stack_size(256 << 10).spawn(watch)?;
        Ok(Tether { shared, thread: Mutex::new(Some(thread)) })
    }

    /// A lifeline begins.
    pub(crate) fn hold(&self) {
        self.shared.change(|state| state.held += 1);
    }

    /// A lifeline has ended.
    pub(crate) fn let_go(&self, how: Parting) {
        tracing::info!(?how, "a lifeline has ended");
        self.shared.change(|state| state.let_go(Instant::now(), how));
    }

    /// How the last lifeline ended, and how long ago, if none is held and the deployment is to end with it.
    pub(crate) fn ended(&self) -> Option<(Parting, Duration)> {
        let state = self.shared.lock();
        let how = state.ended.filter(|_| state.held == 0 && !state.released)?;
        Some((how, state.without.0.elapsed()))
    }

    /// The deployment is to go on after its `run` ends.
    pub(crate) fn release(&self) {
        self.shared.change(|state| state.released = true);
    }

    /// Whether the deployment goes on after its `run`.
    pub(crate) fn is_released(&self) -> bool {
        self.shared.lock().released
    }

    /// The controller has been heard of.
    pub(crate) fn heard(&self) {
        // The watching thread looks by itself when the time is over.
        self.shared.lock().heard = Instant::now();
    }

    /// Stops watching.
    pub(crate) fn stop(&self) {
        self.release();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn watch(&self, ending: &Ending) {
        let mut state = self.lock();
        while !state.released {
            let Some(at) = state.deserted_at() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                tracing::warn!("`run` has gone, and the controller too: nobody is left to end this daemon");
                return ending.tell(End::Deserted);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_lifeline_or_is_released_is_never_deserted() {
        let begin = Instant::now();
        let mut state = State::new(begin);
        assert_eq!(state.deserted_at(), Some(begin + BEFORE_FIRST));
        state.held = 1;
        assert_eq!(state.deserted_at(), None);
        state.let_go(begin, Parting::Left);
        state.released = true;
        assert_eq!(state.deserted_at(), None);
    }

    #[test]
    fn a_controller_that_is_heard_of_is_waited_for() {
        let begin = Instant::now();
        let mut state = State::new(begin);
        state.held = 1;
        let ended = begin + Duration::from_secs(3);
        state.let_go(ended, Parting::Left);
        assert_eq!(state.deserted_at(), Some(ended + AFTER_LEFT));
        state.heard = ended + Duration::from_secs(5);
        assert_eq!(state.deserted_at(), Some(state.heard + AFTER_LEFT));
    }

    #[test]
    fn a_cut_connection_is_not_taken_for_the_end_of_run() {
        let begin = Instant::now();
        let mut state = State::new(begin);
        state.held = 1;
        state.let_go(begin, Parting::Lost);
        assert_eq!(state.deserted_at(), Some(begin + AFTER_LOST));
    }

    #[test]
    fn a_deserted_daemon_is_told_to_end_and_one_that_stops_is_not_waited_for() {
        let ending = Arc::new(Ending::default());
        let tether = Tether::start(ending.clone()).expect("starts");
        tether.hold();
        tether.let_go(Parting::Left);
        tether.shared.change(|state| {
            let long_ago = Instant::now().checked_sub(2 * AFTER_LEFT).expect("the machine runs for longer");
            (state.without.0, state.heard) = (long_ago, long_ago);
        });
        assert_eq!(ending.wait(), End::Deserted);
        tether.stop();
        let tether = Tether::start(Arc::default()).expect("starts");
        tether.stop();
    }
}
