//! A log's next revision, written while the log itself is in use.
//!
//! The new file is filled and synced without the log's lock ([`Rewrite`]). [`Log::announce`] and [`Log::switch`]
//! then need the lock for moments only. A process that is killed at any step leaves the old log or the new one
//! under the log's name, and a mark that describes both. A loss of power does so, too, if the steps are taken in
//! this order: sync the file, announce, sync the mark, switch. What was put on stable storage in the old log must
//! be so in the new one before the switch: that is the caller's to see to ([`crate::compaction`]).

use super::{HEADER, Log, Revision, header, temporary};
use crate::error::LogError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The next revision of a log, in the making.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(super) revision: Revision,
    record: Vec<u8>,
}

impl Rewrite {
    /// Adds a record.
    pub(crate) fn add(&mut self, body: &[u8]) -> Result<(), LogError> {
        Log::start(&mut self.record);
        self.record.extend_from_slice(body);
        // On a full storage, it does without space allocated ahead.
        self.revision.append(&mut self.record, true)
    }

    /// Puts what was added on stable storage.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        self.revision.reserve(0, true)?;
        Ok(self.revision.file.sync_data()?)
    }
}

impl Log {
    /// Begins the next revision in a file beside the log.
    pub(crate) fn rewrite(&self) -> Result<Rewrite, LogError> {
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(temporary(&self.path))?;
        let number = self.file.number + 1;
        file.write_all_at(&header(self.identity, number), 0)?;
        let file = Arc::new(file);
        let revision = Revision { number, file, end: HEADER as u64, allocated: 0, name_synced: false };
        Ok(Rewrite { revision, record: Vec::new() })
    }

    /// Notes in the mark that a revision, which is synced, is about to get the log's name. What is returned has
    /// to be synced before it does.
    pub(crate) fn announce(&mut self, rewrite: &Rewrite) -> io::Result<Arc<File>> {
        self.mark.announce(rewrite.revision.number, rewrite.revision.end)
    }

    /// Takes an announced revision into use, with the records that were added to it since.
    pub(crate) fn switch(&mut self, rewrite: Rewrite) -> Result<(), LogError> {
        let Rewrite { revision, .. } = rewrite;
        self.mark.committed(revision.number, revision.end);
        std::fs::rename(temporary(&self.path), &self.path)?;
        self.file = revision;
        Ok(())
    }

    /// Gives a revision up that has not been switched to.
    pub(crate) fn abandon_rewrite(&mut self) {
        let _ = std::fs::remove_file(temporary(&self.path));
        self.mark.withdraw();
    }
}
