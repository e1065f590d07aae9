//! The thread that writes a voter's files, one thing after the other.
//!
//! A disk may take seconds, or be full for a while. Then the voter acknowledges nothing, but lives, and goes on when
//! there is room again: this thread tries again and again until it has written what it was given, or the voter stops.

use super::journal::{Contents, Journal, Record, write_whole};
use super::{Entry, LogId, Types, Vote};
use openraft::storage::LogFlushed;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time between two attempts to write.
const AGAIN: Duration = Duration::from_millis(200);

/// What is to be written, and who waits for it.
enum Job {
    Entries(Vec<Entry>, LogFlushed<Types>),
    Record(Record, oneshot::Sender<()>),
    Snapshot(Vec<u8>, Option<LogId>, oneshot::Sender<()>),
}

/// Gives work to the thread. It ends when all of these are gone.
#[derive(Clone)]
pub(crate) struct Disk {
    jobs: mpsc::Sender<Job>,
}

/// The voter stops: nothing is written any more.
#[derive(Debug, thiserror::Error)]
#[error("this voter stops")]
pub(crate) struct Stopped;

/// The thread, for who waits for its end.
pub(crate) struct Writer {
    thread: JoinHandle<()>,
    stopping: Arc<AtomicBool>,
}

impl Writer {
    /// What has to be set before the voter stops: then no attempt that fails is repeated.
    pub(crate) fn stopping(&self) -> Arc<AtomicBool> {
        self.stopping.clone()
    }

    /// Waits for the thread's end. All [`Disk`]s must be gone.
    pub(crate) fn join(self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

impl Disk {
    /// Starts the thread. `has`: the last entry that the snapshot has.
    pub(crate) fn start(
        journal: Journal,
        contents: Contents,
        snapshot: PathBuf,
        has: Option<LogId>,
    ) -> std::io::Result<(Disk, Writer)> {
        let (jobs, given) = mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let mut state = State { journal, contents, snapshot, has, stopping: stopping.clone() };
        let work = move || given.iter().for_each(|job| state.carry_out(job));
        let thread =
            std::thread::Builder::new().name("raft-disk".into()).stack_size(512 << 10).spawn(work)?;
        Ok((Disk { jobs }, Writer { thread, stopping }))
    }

    /// Appends entries; `flushed` is told when they are on stable storage.
    pub(crate) fn entries(&self, entries: Vec<Entry>, flushed: LogFlushed<Types>) {
        if let Err(mpsc::SendError(Job::Entries(_, flushed))) = self.jobs.send(Job::Entries(entries, flushed))
        {
            flushed.log_io_completed(Err(std::io::Error::other(Stopped)));
        }
    }

    /// Returns when the vote is on stable storage.
    pub(crate) async fn vote(&self, vote: Vote) -> Result<(), Stopped> {
        self.record(Record::Vote(vote)).await
    }

    /// Takes entries back.
    pub(crate) async fn truncate(&self, from: u64) -> Result<(), Stopped> {
        self.record(Record::Truncated(from)).await
    }

    /// Forgets entries that the snapshot has.
    pub(crate) async fn purge(&self, last: LogId) -> Result<(), Stopped> {
        self.record(Record::Purged(last)).await
    }

    /// Replaces the snapshot, unless there is one already with later entries than `last`.
    pub(crate) async fn snapshot(&self, bytes: Vec<u8>, last: Option<LogId>) -> Result<(), Stopped> {
        let (done, is_done) = oneshot::channel();
        self.jobs.send(Job::Snapshot(bytes, last, done)).map_err(|_| Stopped)?;
        is_done.await.map_err(|_| Stopped)
    }

    async fn record(&self, record: Record) -> Result<(), Stopped> {
        let (done, is_done) = oneshot::channel();
        self.jobs.send(Job::Record(record, done)).map_err(|_| Stopped)?;
        is_done.await.map_err(|_| Stopped)
    }
}

struct State {
    journal: Journal,
    /// What the journal says, or is about to.
    contents: Contents,
    snapshot: PathBuf,
    /// The last entry that the snapshot has.
    has: Option<LogId>,
    stopping: Arc<AtomicBool>,
}

impl State {
    fn carry_out(&mut self, job: Job) {
        match job {
            Job::Entries(entries, flushed) => {
                let written = self.write(entries.into_iter().map(Record::Entry).collect());
                flushed.log_io_completed(written.map_err(std::io::Error::other));
            }
            // Who is not told sees that `done` is gone.
            Job::Record(record, done) => {
                if self.write(vec![record]).is_ok() {
                    let _ = done.send(());
                }
            }
            Job::Snapshot(bytes, last, done) => {
                let path = self.snapshot.clone();
                if last < self.has || self.persist(|_| write_whole(&path, &bytes)).is_ok() {
                    self.has = self.has.max(last);
                    let _ = done.send(());
                }
            }
        }
    }

    fn write(&mut self, records: Vec<Record>) -> Result<(), Stopped> {
        for record in &records {
            if let Err(what) = self.contents.take(record.clone()) {
                tracing::error!(what, "openraft wants to write what does not fit");
                return Err(Stopped);
            }
        }
        let purges = records.iter().any(|record| matches!(record, Record::Purged(_)));
        let mut first = !purges;
        self.persist(|state| match std::mem::take(&mut first) {
            true => state.journal.append(&records),
            false => state.journal.rewrite(&state.contents),
        })
    }

    /// Tries until it succeeds or the voter stops.
    fn persist(&mut self, mut write: impl FnMut(&mut State) -> std::io::Result<()>) -> Result<(), Stopped> {
        loop {
            match write(self) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let path = self.journal.path().display();
                    tracing::error!(%error, %path, "the map's log cannot be written: trying again");
                }
            }
            if self.stopping.load(Ordering::Relaxed) {
                return Err(Stopped);
            }
            std::thread::sleep(AGAIN);
        }
    }
}
