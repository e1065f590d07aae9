//! Checkpoints of `run`: what the command has created or changed is flushed while it runs.
//!
//! A thread flushes the trees of `--flush-on-exit` every so often, and at once when a batch system warns with
//! SIGTERM that the job's time is nearly over. Each file is flushed in a state that it had at one time; one
//! that is being written is read again, and reported if that does not help. What fails is only said: the
//! flush at the end tries it again, and counts.

use crate::args::Copy;
use crate::copy::{self, How};
use crate::error::Error;
use crate::home::Home;
use bivouac_stage::Direction;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread that flushes while the command runs.
pub struct Checkpoints {
    now: Sender<()>,
    thread: JoinHandle<()>,
}

impl Checkpoints {
    /// Starts it, if there is anything to flush. `every`: besides when it is asked to.
    pub fn start(
        home: &Home,
        name: &str,
        trees: &[Copy],
        every: Option<Duration>,
    ) -> Result<Option<Checkpoints>, Error> {
        if trees.is_empty() {
            return Ok(None);
        }
        let (now, asked) = mpsc::channel();
        let (home, name, trees) = (home.clone(), name.to_owned(), trees.to_vec());
        // A thread may wait for so long.
        let every = every.unwrap_or(Duration::from_secs(u32::MAX.into()));
        let work = move || {
            while let Ok(()) | Err(RecvTimeoutError::Timeout) = asked.recv_timeout(every) {
                if let Err(error) = flush(&home, &name, &trees) {
                    error.show();
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoints".into()).spawn(work);
        let thread = thread.map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })?;
        Ok(Some(Checkpoints { now, thread }))
    }

    /// Has it flush at once, whenever something is sent.
    pub fn trigger(&self) -> Sender<()> {
        self.now.clone()
    }

    /// Waits for the end of a flush that is under way. Whoever has a [`trigger`](Checkpoints::trigger) has
    /// dropped it.
    pub fn end(self) {
        drop(self.now);
        let _ = self.thread.join();
    }
}

/// Flushes what was created or changed.
pub fn flush(home: &Home, name: &str, trees: &[Copy]) -> Result<(), Error> {
    copy::copy_all(home, name, trees, Direction::Out, &How::checkpoint())
}
