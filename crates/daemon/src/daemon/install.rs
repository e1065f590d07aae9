//! Taking over maps. With the first one the deployment begins.

use super::Daemon;
use crate::error::InstallError;
use bivouac_layout::{Map, News, ServerState};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

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
            self.storage.as_ref().map_or(Ok(()), |storage| storage.begin(map))?;
            tracing::info!(epoch = %map.epoch, servers = map.servers.len(), "serving");
            self.begun.store(true, Ordering::Release);
        }
        if self.comes_back(map)
            && let Some(store) = self.meta_store()
        {
            // Before clients use this server: directories have moved while it was away. Since it was joining,
            // it has heard of all moves.
            store.forget_moves();
        }
        self.links.learn(map.clone());
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
}
