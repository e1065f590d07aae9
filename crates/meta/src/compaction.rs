//! Compaction: a log that has become long is replaced by a snapshot of what it says.
//!
//! It happens beside the operations. The lock of the partition is taken for moments only:
//!
//! 1. Shard after shard is encoded under the lock and written to a new file without it. From then on the
//!    shard's further records go into the old log and are copied for the new one.
//! 2. The copied records are written to the new file until few are left, and the file is synced.
//! 3. From here on, who wants to sync the log waits: what is synced in the old log must be so in the new one. What
//!    came meanwhile is written and synced, the mark announces the new file and is synced.
//! 4. Under the lock, the last few records are written and the new file gets the log's name.
//! 5. The name is synced.
//!
//! A failure at any step leaves the old log in use. On a full storage, the request that needs room compacts the log
//! by itself under the lock, which ends a compaction that is under way.

use crate::error::LogError;
use crate::journal::{Bodies, Rewriting};
use crate::log::{Rewrite, ToSync};
use crate::partition::{ANSWER_AGE, Partition, Partitions, whole_server};
use crate::store::lock;
use bivouac_proto::Time;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// On a full storage a log is compacted early when it is longer than this, bytes, and than twice what the
/// last snapshot took.
const WORTHWHILE: u64 = 16 << 10;

/// So many bytes of records may be left to be written when the new file is synced.
const FEW: usize = 64 << 10;

/// After so many attempts to get there, operations are faster than the storage, and it has to do with more.
const ROUNDS: u32 = 20;

/// Partitions whose logs are to be compacted. Its mutex is held only for moments, and never taken while another
/// lock is held.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    work: Mutex<Work>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    due: BTreeSet<usize>,
    stop: bool,
}

impl Compactor {
    pub(crate) fn add(&self, number: usize) {
        lock(&self.work).due.insert(number);
        self.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        lock(&self.work).stop = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.work).stop
    }

    /// Waits for something to do. `None`: stop.
    fn next(&self) -> Option<usize> {
        let mut work = lock(&self.work);
        loop {
            if work.stop {
                return None;
            }
            if let Some(number) = work.due.pop_first() {
                return Some(number);
            }
            work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Stage {
    /// The next shard is to be written.
    Snapshot,
    /// Records that came meanwhile; how often that was tried.
    Follow(u32),
    Sync,
    Hold,
    SyncRest,
    Announce,
    SyncMark(Arc<File>),
    Switch,
    SyncName(ToSync),
    Done,
}

/// A compaction under way. If it is dropped before it is done, the old log stays in use.
pub(super) struct Compaction<'p> {
    partitions: &'p Partitions,
    partition: usize,
    number: u64,
    /// `None` when it has become the log.
    rewrite: Option<Rewrite>,
    bodies: Bodies,
    pub(super) stage: Stage,
}

impl Partitions {
    /// Compacts logs as they become long, until the store is closed.
    pub(crate) fn compact_always(&self) {
        while let Some(number) = self.compactor.next() {
            self.compact(number);
        }
    }

    /// Compacts a log.
    pub(crate) fn compact(&self, number: usize) {
        let compacted = Compaction::begin(self, number).and_then(|mut compaction| {
            while !matches!(compaction.stage, Stage::Done) && !self.compactor.is_stopped() {
                compaction.step()?;
            }
            Ok(())
        });
        if let Err(error) = compacted {
            // The old log stays in use; there may be space later.
            tracing::warn!(%error, number, "a log could not be compacted");
        }
    }
}

impl<'p> Compaction<'p> {
    /// Begins to compact the log of a partition.
    pub(super) fn begin(partitions: &'p Partitions, partition: usize) -> Result<Compaction<'p>, LogError> {
        let mut guard = partitions.lock(partition);
        // Whoever is at it goes on writing to a file without a name.
        guard.abandon_rewrite();
        let Partition { journal, starts, .. } = &mut *guard;
        journal.rewrites += 1;
        let number = journal.rewrites;
        let (next, tail, switching) = (0, Bodies::default(), false);
        let rewrite = journal.log.rewrite();
        if rewrite.is_err() {
            journal.retry_later();
        }
        let mut bodies = Bodies::default();
        bodies.add(&whole_server(*starts));
        let rewrite = Some(rewrite?);
        journal.rewriting = Some(Rewriting { number, next, tail, switching });
        drop(guard);
        Ok(Compaction { partitions, partition, number, rewrite, bodies, stage: Stage::Snapshot })
    }

    /// Takes one step. Of those that take long none is under the partition's lock.
    pub(super) fn step(&mut self) -> Result<(), LogError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        self.stage = match stage {
            Stage::Snapshot => {
                let more = self.take_shard();
                self.write_bodies()?;
                if more { Stage::Snapshot } else { Stage::Follow(0) }
            }
            Stage::Follow(rounds) => {
                self.take_tail();
                let few = self.bodies.len() <= FEW;
                self.write_bodies()?;
                if few || rounds >= ROUNDS { Stage::Sync } else { Stage::Follow(rounds + 1) }
            }
            Stage::Sync => {
                self.sync()?;
                Stage::Hold
            }
            Stage::Hold => {
                self.under_lock(|rewriting| rewriting.switching = true);
                self.take_tail();
                self.write_bodies()?;
                Stage::SyncRest
            }
            Stage::SyncRest => {
                self.sync()?;
                Stage::Announce
            }
            Stage::Announce => match (self.guard(), &self.rewrite) {
                (Some(mut guard), Some(rewrite)) => Stage::SyncMark(guard.journal.log.announce(rewrite)?),
                _ => Stage::Done,
            },
            Stage::SyncMark(mark) => {
                mark.sync_data()?;
                Stage::Switch
            }
            Stage::Switch => match self.switch()? {
                Some(to_sync) => Stage::SyncName(to_sync),
                None => Stage::Done,
            },
            Stage::SyncName(to_sync) => {
                match to_sync.sync() {
                    Ok(()) => self.partitions.lock(self.partition).journal.log.synced(&to_sync),
                    // The next sync of the log tries again, and returns the error.
                    Err(error) => tracing::warn!(%error, self.partition, "a log's name is not synced"),
                }
                Stage::Done
            }
            Stage::Done => Stage::Done,
        };
        Ok(())
    }

    /// The partition, unless a request has compacted the log by itself meanwhile.
    fn guard(&self) -> Option<MutexGuard<'p, Partition>> {
        let guard = self.partitions.lock(self.partition);
        let mine = guard.journal.rewriting.as_ref().is_some_and(|r| r.number == self.number);
        mine.then_some(guard)
    }

    fn under_lock(&self, change: impl FnOnce(&mut Rewriting)) {
        if let Some(mut guard) = self.guard()
            && let Some(rewriting) = &mut guard.journal.rewriting
        {
            change(rewriting);
        }
    }

    /// Encodes the next shard. Says whether there was one.
    fn take_shard(&mut self) -> bool {
        let horizon = now() - ANSWER_AGE;
        let Some(mut guard) = self.guard() else { return false };
        let Partition { shards, journal, .. } = &mut *guard;
        let Some(rewriting) = &mut journal.rewriting else { return false };
        match shards.range(rewriting.next..).next() {
            Some((id, shard)) => {
                shard.snapshot(*id, horizon).for_each(|batch| self.bodies.add(&batch));
                rewriting.next = id + 1;
                true
            }
            None => {
                // Those that the server takes charge of later are new as a whole.
                rewriting.next = u16::MAX;
                false
            }
        }
    }

    /// Takes the records that came meanwhile.
    fn take_tail(&mut self) {
        if let Some(mut guard) = self.guard()
            && let Some(rewriting) = &mut guard.journal.rewriting
        {
            std::mem::swap(&mut rewriting.tail, &mut self.bodies);
        }
    }

    /// Writes what was taken.
    fn write_bodies(&mut self) -> Result<(), LogError> {
        if let Some(rewrite) = &mut self.rewrite {
            self.bodies.iter().try_for_each(|body| rewrite.add(body))?;
        }
        self.bodies.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), LogError> {
        self.rewrite.as_mut().map_or(Ok(()), Rewrite::sync)
    }

    /// Makes the new file the log.
    fn switch(&mut self) -> Result<Option<ToSync>, LogError> {
        let Some(mut guard) = self.guard() else { return Ok(None) };
        if let Some(rewriting) = &mut guard.journal.rewriting {
            std::mem::swap(&mut rewriting.tail, &mut self.bodies);
        }
        self.write_bodies()?;
        let Some(rewrite) = self.rewrite.take() else { return Ok(None) };
        let Partition { journal, waiting, .. } = &mut *guard;
        journal.log.switch(rewrite)?;
        journal.rewriting = None;
        journal.note_compacted(self.partitions.compact_at);
        let to_sync = journal.log.to_sync();
        if *waiting > 0 {
            self.partitions.condvar(self.partition).notify_all();
        }
        Ok(Some(to_sync))
    }
}

impl Drop for Compaction<'_> {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard() {
            guard.abandon_rewrite();
            guard.journal.retry_later();
            self.partitions.condvar(self.partition).notify_all();
        }
    }
}

impl Partition {
    /// Gives up the compaction that is under way, if any.
    fn abandon_rewrite(&mut self) {
        if self.journal.rewriting.take().is_some() {
            self.journal.log.abandon_rewrite();
        }
    }

    /// On a full storage: makes the log shorter, if that promises some room. Says whether it did.
    pub(crate) fn compact_for_room(&mut self, default: u64) -> bool {
        let Partition { journal, .. } = &*self;
        if journal.log.len() < 2 * journal.compacted + WORTHWHILE {
            return false;
        }
        self.abandon_rewrite();
        let Partition { journal, shards, starts, .. } = self;
        journal.log.release_reserve();
        let horizon = now() - ANSWER_AGE;
        let batches = shards.iter().flat_map(|(id, shard)| shard.snapshot(*id, horizon));
        let bodies = std::iter::once(whole_server(*starts)).chain(batches).map(|batch| {
            let mut body = Vec::new();
            bivouac_proto::encode(&batch, &mut body);
            body
        });
        let replaced = journal.log.replace(bodies);
        match &replaced {
            Ok(()) => journal.note_compacted(default),
            Err(error) => {
                tracing::warn!(%error, path = %journal.log.path().display(), "a log could not be compacted");
                journal.retry_later();
            }
        }
        replaced.is_ok()
    }
}

fn now() -> Time {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
