//! Waiting for what other threads and processes do.
//!
//! A test waits for a state and not for a time: the machine may be busy, or stand still for seconds. What
//! must happen at some time is waited for with [`eventually`]. That something is quick is shown by what else
//! is not over yet when it ends (a handler that the test holds), or by a limit far below what it would take
//! otherwise.

use std::time::{Duration, Instant};

/// Longest wait for what must happen. It tells a hang from a busy machine, and promises nothing.
pub const HANG: Duration = Duration::from_secs(60);

/// Waits until something holds, and says how long that took. Panics with `what` after [`HANG`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < HANG, "not within {HANG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begin.elapsed()
}

/// Whether something takes less than `limit` in one of three tries, each of which says what it took. What
/// always waits that long is found out; a machine that was busy for a moment is not blamed.
pub fn is_quick(limit: Duration, attempt: impl FnMut() -> Duration) -> bool {
    std::iter::repeat_with(attempt).take(3).any(|took| took < limit)
}
