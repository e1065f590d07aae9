//! What requests have to do with moves of directories (see `memory::heard`).

use super::Requests;
use crate::memory::Reached;
use bivouac_layout::ServerId;
use bivouac_proto::Refusal;

/// What a request carries if its path did not come from the cache.
const ALL: u64 = u64::MAX;

impl Requests {
    /// The namespace version that a request carries to `server`; a refusal when the path has to be walked
    /// again without asking.
    pub(crate) fn namespace_for(&self, server: ServerId, reached: Reached) -> Result<u64, Refusal> {
        if !reached.cached {
            return Ok(ALL);
        }
        self.catch_up(server);
        let version = self.memory().heard_of(server);
        // In this order: who sees a version also sees the era that came with it.
        if self.memory().era() == reached.era {
            Ok(version)
        } else {
            Err(Refusal::StaleNamespace { version, moved: Some(Vec::new()) })
        }
    }

    /// Hears of the moves that a server of this node shows in its page. Says whether there were any.
    pub(crate) fn catch_up(&self, server: ServerId) -> bool {
        let Some(page) = self.page(server) else { return false };
        let (known, version) = (self.memory().heard_of(server), page.namespace());
        if version > known {
            self.memory().hear(server, version, page.moves(known, version).as_deref());
        }
        version > known
    }
}
