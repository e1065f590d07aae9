//! Which moves of directories this process has heard of.
//!
//! Paths are cached ([`super::paths`]), and every server numbers the moves that it notes (its *namespace
//! version*). A request along a cached path carries the version up to which this process has heard of its
//! server's moves. A server that has noted later ones refuses, and says which directories moved; what is
//! known of the way to those is forgotten, and the path is walked again. Servers of this node show their
//! latest moves in their version pages, so that a process hears of them without being refused.
//!
//! Each time something was forgotten a new *era* begins. A walk notes its era when it begins: what it took
//! from the cache counts only as long as the era lasts.

use super::Memory;
use bivouac_layout::{Ino, ServerId};
use bivouac_node::ByServer;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far the moves of each server are known.
#[derive(Default)]
pub(crate) struct Heard {
    era: AtomicU64,
    versions: ByServer<AtomicU64>,
}

/// How the directory of a request was reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    /// The era in which its walk began.
    pub(crate) era: u64,
    /// Through at least one cached directory: the server has to refuse the request if the process has not
    /// heard of all moves.
    pub(crate) cached: bool,
}

impl Reached {
    /// For a request with two paths.
    pub(crate) fn and(self, other: Reached) -> Reached {
        Reached { era: self.era.min(other.era), cached: self.cached || other.cached }
    }
}

impl Memory {
    /// The present era.
    pub(crate) fn era(&self) -> u64 {
        self.heard.era.load(Ordering::Acquire)
    }

    pub(crate) fn heard_of(&self, server: ServerId) -> u64 {
        self.heard.versions.get(server).map_or(0, |version| version.load(Ordering::Acquire))
    }

    /// Other servers answer for shards than before: forgets all paths and facts.
    pub(crate) fn hear_of_other_servers(&self) {
        if let Some(era) = self.paths().forget(None) {
            self.facts().forget_all(era);
            self.heard.era.fetch_max(era, Ordering::AcqRel);
        }
    }

    /// A server has noted moves up to `version`. `moved`: those since this process last heard of its moves,
    /// or `None` if they are not known.
    pub(crate) fn hear(&self, server: ServerId, version: u64, moved: Option<&[Ino]>) {
        let heard = &self.heard;
        let Some(known) = heard.versions.get(server) else { return };
        if known.load(Ordering::Acquire) >= version {
            return;
        }
        // In this order: drop paths, begin the new era, and only then claim to have heard of the moves.
        if let Some(era) = self.paths().forget(moved) {
            self.facts().forget_names(era, moved);
            heard.era.fetch_max(era, Ordering::AcqRel);
            known.fetch_max(version, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_two_paths_counts_as_the_older_and_as_cached_if_either_is() {
        let (old, new) = (Reached { era: 3, cached: false }, Reached { era: 5, cached: true });
        for both in [old.and(new), new.and(old)] {
            assert_eq!((both.era, both.cached), (3, true));
        }
        assert!(!old.and(old).cached);
    }
}
