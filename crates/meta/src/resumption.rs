//! The first moments after a server's start, in which what was decided before is finished.
//!
//! An operation over two servers that was under way when they were killed may be done on one of them and not
//! yet on the other, and stays so until the keeper's first pass. Whoever looks should not see it so: a new
//! name, for instance, with the old count of links. Therefore clients are refused until all intents from
//! before the start are resolved. A server that is needed for that may be dead, so they are refused only for a
//! time ([`crate::Options::resumption`]).

use crate::store::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether what was under way has been finished.
#[derive(Debug)]
pub(crate) struct Resumption {
    longest: Duration,
    until: Mutex<Instant>,
    done: AtomicBool,
}

impl Resumption {
    /// The server starts. Clients wait no longer than `longest`.
    pub(crate) fn new(longest: Duration) -> Resumption {
        let until = Mutex::new(Instant::now() + longest);
        Resumption { longest, until, done: AtomicBool::new(false) }
    }

    /// The server has taken over shards with intents: clients wait again.
    pub(crate) fn begin(&self) {
        *lock(&self.until) = Instant::now() + self.longest;
        self.done.store(false, Ordering::Release);
    }

    /// How long clients wait at most.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// All intents from before the start are resolved.
    pub(crate) fn finish(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// Whether clients may be served.
    pub(crate) fn is_over(&self) -> bool {
        self.done.load(Ordering::Acquire)
            || {
                let late = Instant::now() >= *lock(&self.until);
                if late && !self.done.swap(true, Ordering::AcqRel) {
                    tracing::warn!(
                        "operations over several servers that a crash has interrupted are not finished yet: others do not answer"
                    );
                }
                late
            }
    }
}
