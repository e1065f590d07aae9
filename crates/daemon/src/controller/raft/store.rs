//! The log as openraft sees it: all of it in memory, and written by the [`Disk`].

use super::disk::{Disk, Stopped};
use super::journal::{Contents, Record};
use super::{Entry, LogId, StorageError, Types, Vote};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{ErrorSubject, ErrorVerb, LogState, OptionalSend, RaftLogReader};
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The log of a voter.
#[derive(Clone)]
pub(crate) struct LogStore {
    memory: Arc<Mutex<Contents>>,
    disk: Disk,
}

impl LogStore {
    pub(crate) fn new(contents: Contents, disk: Disk) -> LogStore {
        LogStore { memory: Arc::new(Mutex::new(contents)), disk }
    }

    fn memory(&self) -> MutexGuard<'_, Contents> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, record: Record) -> Result<(), StorageError> {
        self.memory().take(record).map_err(|what| failed(ErrorVerb::Write, std::io::Error::other(what)))
    }
}

/// An error of the log, in openraft's words. It ends the voter.
pub(super) fn failed(verb: ErrorVerb, cause: impl std::error::Error + 'static) -> StorageError {
    StorageError::from_io_error(ErrorSubject::Store, verb, std::io::Error::other(cause.to_string()))
}

pub(super) fn stopped(stopped: Stopped) -> StorageError {
    failed(ErrorVerb::Write, stopped)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        Ok(self.memory().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let memory = self.memory();
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: memory.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        self.take(Record::Vote(*vote))?;
        self.disk.vote(*vote).await.map_err(stopped)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.memory().vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        for entry in &entries {
            self.take(Record::Entry(entry.clone()))?;
        }
        self.disk.entries(entries, callback);
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.take(Record::Truncated(log_id.index))?;
        self.disk.truncate(log_id.index).await.map_err(stopped)
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.take(Record::Purged(log_id))?;
        self.disk.purge(log_id).await.map_err(stopped)
    }
}
