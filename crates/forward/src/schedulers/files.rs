//! The ready requests of each file, sorted by offset; reads and writes apart.

use crate::queue::Batch;
use crate::request::{Asked, Kind, Number};
use std::collections::{BTreeMap, BTreeSet};

/// A file's reads or its writes.
pub(super) type Key = (u64, Kind);

/// The ready requests of one file and kind. Never empty.
#[derive(Debug, Default)]
pub(super) struct Lane {
    by_offset: BTreeSet<(u64, Number)>,
    bytes: u64,
    /// Where the last batch of this file and kind ended.
    served_to: u64,
}

impl Lane {
    /// How many bytes are ready.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next request in the direction of growing offsets, and then the one with the lowest offset.
    pub(super) fn next(&self) -> Option<Number> {
        let ahead = self.by_offset.range((self.served_to, 0)..).next();
        ahead.or(self.by_offset.first()).map(|(_, number)| *number)
    }
}

/// The ready requests by file and kind.
#[derive(Debug, Default)]
pub(super) struct Files {
    lanes: BTreeMap<Key, Lane>,
}

impl Files {
    /// A request is ready. Whether it is the only one of its file and kind.
    pub(super) fn add(&mut self, number: Number, asked: &Asked) -> bool {
        let lane = self.lanes.entry((asked.file, asked.kind)).or_default();
        lane.by_offset.insert((asked.offset, number));
        lane.bytes += asked.len;
        lane.by_offset.len() == 1
    }

    /// A batch is being issued. Whether other requests of its file and kind are ready.
    pub(super) fn remove(&mut self, batch: &Batch) -> bool {
        let key = (batch.file, batch.kind);
        let Some(lane) = self.lanes.get_mut(&key) else { return false };
        for (number, asked) in &batch.parts {
            if lane.by_offset.remove(&(asked.offset, *number)) {
                lane.bytes -= asked.len;
            }
        }
        lane.served_to = batch.offset.saturating_add(batch.len);
        let has_more = !lane.by_offset.is_empty();
        if !has_more {
            self.lanes.remove(&key);
        }
        has_more
    }

    /// The ready requests of a file and kind.
    pub(super) fn get(&self, key: &Key) -> Option<&Lane> {
        self.lanes.get(key)
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Lane)> {
        self.lanes.iter()
    }
}
