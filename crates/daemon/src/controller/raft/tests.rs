//! Storage that was torn or damaged, and groups whose messages get lost.

mod lossy;
mod standing;
mod storage;

use super::voter::Times;
use super::{Entry, Identity, LogId, Vote};
use bivouac_layout::NodeId;
use openraft::{CommittedLeaderId, EntryPayload};
use std::time::Duration;

/// Quick, so that a test takes seconds.
const QUICK: Times = Times {
    heartbeat: Duration::from_millis(60),
    election: (Duration::from_millis(150), Duration::from_millis(300)),
    snapshot_after: 20,
};

fn identity(node: u16) -> Identity {
    Identity { deployment: 42, node: NodeId(node) }
}

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, 0), index)
}

fn entry(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
}

fn vote(term: u64) -> Vote {
    Vote::new(term, 1)
}
