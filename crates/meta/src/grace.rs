//! The time after a server's start in which it learns what is open.
//!
//! Opens are in memory only, and those who hold a file may outlive its server. So after a start a server
//! takes no file for closed until the agents of all nodes have reported what their processes hold, or a time
//! is over: a node may be gone for good. Until then no file that lost its last link is removed, and no size
//! is settled that a writer may still change.

use bivouac_layout::NodeId;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who has not reported yet.
#[derive(Debug)]
pub(crate) struct Grace {
    until: Instant,
    missing: Mutex<BTreeSet<NodeId>>,
    over: AtomicBool,
}

impl Grace {
    /// Waits for these nodes, and no longer than `longest`.
    pub(crate) fn new(longest: Duration, nodes: BTreeSet<NodeId>) -> Grace {
        let over = AtomicBool::new(nodes.is_empty());
        Grace { until: Instant::now() + longest, missing: Mutex::new(nodes), over }
    }

    /// A node's agent has reported everything. Whether it was the last one.
    pub(crate) fn reported(&self, node: NodeId) -> bool {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let last = missing.remove(&node) && missing.is_empty();
        if last {
            self.over.store(true, Ordering::Release);
        }
        last
    }

    /// Whether all nodes have reported: what nobody has claimed is nobody's.
    pub(crate) fn all_have_reported(&self) -> bool {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether nobody is waited for any more.
    pub(crate) fn is_over(&self) -> bool {
        if self.over.load(Ordering::Acquire) {
            return true;
        }
        let over = Instant::now() >= self.until;
        if over {
            let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.over.swap(true, Ordering::AcqRel) && !missing.is_empty() {
                tracing::warn!(nodes = ?*missing, "these nodes did not say which files they have open: what only they held is taken for closed");
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_until_all_have_reported_and_no_longer_than_its_time() {
        let nodes = || [NodeId(1), NodeId(5)].into();
        let grace = Grace::new(Duration::from_secs(1000), nodes());
        for node in [1, 1, 7] {
            assert!(!grace.reported(NodeId(node)));
            assert!(!grace.is_over() && !grace.all_have_reported());
        }
        assert!(grace.reported(NodeId(5)) && grace.is_over() && grace.all_have_reported());
        assert!(!grace.reported(NodeId(5)));
        let late = Grace::new(Duration::ZERO, nodes());
        assert!(late.is_over() && !late.all_have_reported());
        assert!(Grace::new(Duration::from_secs(1000), BTreeSet::new()).is_over());
    }
}
