//! The beginning: with the first map a server opens its stores.

use super::{Open, Storage};
use crate::around::Around;
use crate::error::InstallError;
use crate::follower::Follower;
use crate::rebuilding::Rebuilder;
use crate::vigil::Vigil;
use bivouac_layout::{Ino, Map, ShardId};
use bivouac_meta::{Observer, Options};
use bivouac_node::VersionPage;
use std::sync::{Arc, PoisonError};

/// The version page as the metadata store's observer.
struct Page(Arc<VersionPage>);

impl Observer for Page {
    fn changed(&self, shard: ShardId) -> u64 {
        self.0.changed(shard)
    }

    fn moved(&self, directory: Ino, version: u64) {
        self.0.moved(directory, version);
    }

    fn namespace(&self, version: u64) {
        self.0.raise_namespace(version);
    }
}

impl Storage {
    /// Opens the stores, unless that was done.
    pub(crate) fn begin(&self, map: &Map) -> Result<(), InstallError> {
        if self.open.get().is_some() {
            return Ok(());
        }
        let replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let replayed = replayed.ok_or(InstallError::Map("this server has no storage"))?;
        // The store asks for the map from its first moment on.
        self.links.learn(map.clone());
        if map.copies == 1 {
            self.links.lease.is_not_needed();
        } else {
            self.data.keep_sums()?;
        }
        let options = Options { observer: self.version_page(), ..Options::new(self.deployment) };
        let (links, copies) = (self.links.clone(), self.copies.clone());
        let around = Around::new(links, self.me, copies, self.restriping.clone(), self.fetching.clone());
        let store = Arc::new(replayed.serve(options, around)?);
        store.adopt(map.shards_of(self.me)).map_err(InstallError::Adopt)?;
        if let Some(fences) = self.fences().filter(|_| map.copies > 1) {
            // What was passed by a server before this one may not be what it has now.
            fences.renounce_all();
            self.links.lease.set_fences(fences);
            match Vigil::begin(fences.clone()) {
                Ok(vigil) => drop(self.passing.set(vigil)),
                Err(error) => {
                    tracing::warn!(%error, "the processes of this node do not read copies directly")
                }
            }
        }
        let follower = Follower::start(&self.links, store.clone(), &self.copies, self.me);
        let follower = follower.map_err(InstallError::Thread)?;
        let rebuilder = Rebuilder::start(&self.links, store.clone(), self.restriping.clone());
        let rebuilder = rebuilder.map_err(InstallError::Thread)?;
        let _ = self.open.set(Open { meta: store, follower, rebuilder });
        Ok(())
    }

    /// Makes the version page. Without one, the processes of this node ask the server each time.
    fn version_page(&self) -> Option<Arc<dyn Observer>> {
        let made = VersionPage::create().map_err(std::io::Error::other).and_then(|page| {
            let page = Arc::new(page);
            self.links.lease.set_page(&page);
            Ok((page.clone(), Vigil::begin(page)?))
        });
        match made {
            Ok((page, vigil)) => {
                let _ = self.page.set((page.clone(), vigil));
                Some(Arc::new(Page(page)))
            }
            Err(error) => {
                tracing::warn!(%error, "the processes of this node cannot keep what they read of the metadata");
                None
            }
        }
    }
}
