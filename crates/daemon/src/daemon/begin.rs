//! The beginning: with the first map a server opens its stores. And what each later map changes.

use super::Daemon;
use crate::error::InstallError;
use crate::follower::Follower;
use crate::links::Around;
use crate::rebuilding::Rebuilder;
use crate::vigil::Vigil;
use bivouac_layout::{Ino, Map, News, ServerState, ShardId};
use bivouac_meta::{Observer, Options};
use bivouac_node::VersionPage;
use std::sync::atomic::Ordering;
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

impl Daemon {
    /// Takes over a map. With the first one the deployment begins here.
    pub(super) fn install(&self, news: &News) -> Result<(), InstallError> {
        let map = &match news {
            News::Whole(map) => (**map).clone(),
            News::Shards(shards) if shards.epoch <= self.links.epoch() => return Ok(()),
            News::Shards(_) => {
                let added = news.clone().added_to(&self.links.map());
                added.ok_or(InstallError::Map("it does not follow on the map that is here"))?
            }
        };
        map.check().map_err(InstallError::Map)?;
        if map.deployment != self.config.deployment {
            return Err(InstallError::Map("it is another deployment's"));
        }
        if self.links.is_replaced_by(map) {
            return Err(InstallError::Replaced);
        }
        let _installing = self.installing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.begun() {
            self.begin(map)?;
            self.begun.store(true, Ordering::Release);
        }
        if self.comes_back(map)
            && let Some(store) = self.meta.get()
        {
            // Before clients use this server: directories have moved while it was away. Since it was joining,
            // it has heard of all moves.
            store.forget_moves();
        }
        // Install the map first: then the agent also tells servers that are back.
        self.links.learn(map.clone());
        if let Some(agent) = &self.agent {
            agent.note_servers(map);
        }
        if let Some(group) = &self.group {
            group.learn_nodes(map);
        }
        Ok(())
    }

    /// Whether this server is up by a new map, and was not by the one before.
    fn comes_back(&self, map: &Map) -> bool {
        let known = self.links.map();
        let is_up = |map: &Map| {
            let me = self.config.server.as_ref().and_then(|me| map.server(me.id));
            me.is_some_and(|server| server.state == ServerState::Up)
        };
        known.epoch < map.epoch && is_up(map) && !is_up(&known)
    }

    fn begin(&self, map: &Map) -> Result<(), InstallError> {
        if let (Some(server), None) = (&self.config.server, self.meta.get()) {
            let replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner).take();
            let replayed = replayed.ok_or(InstallError::Map("this server has no storage"))?;
            // The store asks for the map from its first moment on.
            self.links.learn(map.clone());
            if map.copies == 1 {
                self.links.lease.is_not_needed();
            }
            if let Some(data) = self.links.data.as_ref().filter(|_| map.copies > 1) {
                data.keep_sums()?;
            }
            let options = Options { observer: self.version_page(), ..Options::new(self.config.deployment) };
            let copies = self.copies.as_ref().ok_or(InstallError::Map("this server has no storage"))?;
            let restriping =
                self.restriping.as_ref().ok_or(InstallError::Map("this server has no storage"))?;
            let fetching = self.fetching.as_ref().ok_or(InstallError::Map("this server has no storage"))?;
            let (links, fetching) = (self.links.clone(), fetching.clone());
            let around = Around::new(links, server.id, copies.clone(), restriping.clone(), fetching);
            let store = Arc::new(replayed.serve(options, around)?);
            store.adopt(map.shards_of(server.id)).map_err(InstallError::Adopt)?;
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
            let follower = Follower::start(&self.links, store.clone(), copies, server.id);
            let _ = self.follower.set(follower.map_err(InstallError::Thread)?);
            let rebuilder = Rebuilder::start(&self.links, store.clone(), restriping.clone());
            let _ = self.rebuilder.set(rebuilder.map_err(InstallError::Thread)?);
            let _ = self.meta.set(store);
        }
        tracing::info!(epoch = %map.epoch, servers = map.servers.len(), "serving");
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
