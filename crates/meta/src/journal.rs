//! A partition's log as operations see it: records go into it, and, while it is being compacted, also to the new
//! log that is in the making ([`crate::compaction`]).

use crate::error::LogError;
use crate::log::Log;
use crate::mutation::{Batch, WHOLE_SERVER};
use crate::partition::COMPACT_AT;

/// A log with what belongs to writing it.
#[derive(Debug)]
pub(crate) struct Journal {
    pub log: Log,
    /// The next compaction is due at this length of the log, bytes; `u64::MAX` while one is under way or has been
    /// asked for.
    pub compact_at: u64,
    /// Length of the log right after its last snapshot, bytes.
    pub compacted: u64,
    /// The compaction that is under way.
    pub rewriting: Option<Rewriting>,
    /// How many compactions were begun.
    pub rewrites: u64,
    record: Vec<u8>,
    /// Where the body begins in the record.
    body: usize,
}

/// What operations have to do for a compaction that is under way.
#[derive(Debug)]
pub(crate) struct Rewriting {
    /// Which one: see [`Journal::rewrites`].
    pub number: u64,
    /// All shards below this are in the new log, which so needs every further record of theirs.
    pub next: u16,
    /// Records that the new log does not have yet.
    pub tail: Bodies,
    /// What the new log lacks has to be on stable storage soon. Who wants to sync the log waits until the new one
    /// is in use.
    pub switching: bool,
}

/// Bodies of records, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Bodies(Vec<u8>);

impl Bodies {
    pub(crate) fn push(&mut self, body: &[u8]) {
        self.0.extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.0.extend_from_slice(body);
    }

    pub(crate) fn add(&mut self, batch: &Batch) {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        bivouac_proto::encode(batch, &mut self.0);
        let length = (self.0.len() - start - 4) as u32;
        if let Some(prefix) = self.0.get_mut(start..start + 4) {
            prefix.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// Bytes that they take.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk()?;
            let (body, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = behind;
            Some(body)
        })
    }
}

impl Journal {
    pub(crate) fn new(log: Log, compact_at: u64) -> Journal {
        Journal { log, compact_at, compacted: 0, rewriting: None, rewrites: 0, record: Vec::new(), body: 0 }
    }

    /// Logs a batch. `frees`: the change frees space. If this fails, the log is as before.
    pub(crate) fn write(&mut self, batch: &Batch, frees: bool) -> Result<(), LogError> {
        self.start();
        bivouac_proto::encode(batch, &mut self.record);
        self.append(batch.shard, frees)
    }

    /// Logs a shard's batch that is encoded already.
    pub(crate) fn write_body(&mut self, shard: u16, body: &[u8], frees: bool) -> Result<(), LogError> {
        self.start();
        self.record.extend_from_slice(body);
        self.append(shard, frees)
    }

    /// The body of the record that was written last.
    pub(crate) fn last(&self) -> &[u8] {
        self.record.get(self.body..).unwrap_or_default()
    }

    fn start(&mut self) {
        // One huge record should not take memory for ever.
        if self.record.capacity() > 1 << 20 {
            self.record = Vec::new();
        }
        Log::start(&mut self.record);
        self.body = self.record.len();
    }

    fn append(&mut self, shard: u16, frees: bool) -> Result<(), LogError> {
        self.log.append(&mut self.record, frees)?;
        if let Some(rewriting) = &mut self.rewriting
            && (shard < rewriting.next || shard == WHOLE_SERVER)
        {
            rewriting.tail.push(self.record.get(self.body..).unwrap_or_default());
        }
        Ok(())
    }

    /// The log is as short as it can be. `default`: at which length logs are compacted that are short after their
    /// snapshot, bytes.
    pub(crate) fn note_compacted(&mut self, default: u64) {
        self.compacted = self.log.len();
        self.compact_at = (2 * self.log.len()).max(COMPACT_AT.min(default));
    }

    /// A compaction has failed: the old log stays in use, and there may be space later.
    pub(crate) fn retry_later(&mut self) {
        self.compact_at = self.log.len() + COMPACT_AT;
        self.compacted = self.log.len();
    }

    /// Whether the log should be compacted. Says so only once.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.log.len() >= self.compact_at;
        if due {
            self.compact_at = u64::MAX;
        }
        due
    }
}
