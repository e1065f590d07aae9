//! Lazy files: their contents are fetched when all names are there, unless only who opens them is to have that done.
//!
//! The servers fetch; workers only ask them to, file by file, so that streams and rates are those of any copy. What a run that
//! was interrupted has left lazy, the next one finds in its listings.

use super::entries::{BATCH, BATCH_BYTES};
use super::{Coordinator, WhenNamed};
use crate::report::StageError;
use crate::tree::{Kind, Meta};
use crate::wire::{Direction, Task};

impl Coordinator<'_> {
    /// Whether a file has its name at the destination, and is to have its contents when this copy ends.
    pub(super) fn lacks_contents(&self, there: Option<&Meta>) -> bool {
        !self.options.lazy && self.is_lazy(there)
    }

    fn is_lazy(&self, there: Option<&Meta>) -> bool {
        let is_lazy = there.is_some_and(|there| there.kind == Kind::File && there.lazy);
        is_lazy && self.job.direction == Direction::In
    }

    /// Takes note of a file that is there already, but perhaps not its contents.
    pub(super) fn note_lazy(&mut self, path: &[u8], there: Option<&Meta>) {
        if self.is_lazy(there) {
            self.lazy.extend(there.map(|there| (path.to_vec(), there.size)));
        }
    }

    /// Has contents fetched.
    pub(super) fn fetch_lazy(&mut self) -> Result<(), StageError> {
        if self.options.dry_run {
            return Ok(());
        }
        if let Some(WhenNamed(tell)) = self.options.when_named.as_ref().filter(|_| self.options.lazy) {
            self.progress.pause(|| tell(self.report.files, self.begun.elapsed().as_secs_f64()));
        }
        let files = std::mem::take(&mut self.lazy);
        if self.options.on_demand {
            self.report.lazy = files.len() as u64;
            return Ok(());
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (path, size) in files {
            if !batch.is_empty() && (batch.len() == BATCH || bytes + size > BATCH_BYTES) {
                self.queue.put_any(Task::Fetch(std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += size;
            batch.push((path, size));
        }
        if !batch.is_empty() {
            self.queue.put_any(Task::Fetch(batch));
        }
        self.run()
    }

    /// What came of one.
    pub(super) fn fetched(&mut self, path: &[u8], size: u64, fetched: Result<bool, String>) {
        match fetched {
            Ok(true) => {
                self.report.fetched += 1;
                self.report.bytes += size;
            }
            // Somebody has opened it meanwhile, or replaced it.
            Ok(false) => {}
            Err(why) => self.failed(path, &why),
        }
    }
}
