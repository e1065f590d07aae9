//! The changes of the map that the controller makes: each is proposed to the voters, and shown to everybody when it is
//! committed.

use super::log::MapLog;
use super::{ControllerError, LOOK, LinkError, Shared, UNDECIDED, lock};
use bivouac_layout::map::ServerState;
use bivouac_layout::{Epoch, Group, Map, MapChange, NodeId, ServerId};
use std::sync::Arc;
use std::time::Instant;

impl Shared {
    /// Commits a server's state; `None` when that failed (it is tried again at the next ping).
    pub(super) fn set_state(&self, server: ServerId, state: ServerState) -> Option<Arc<Map>> {
        self.put_state(&mut lock(&self.log), server, state)
    }

    /// Commits that a server is down, because it and others do not reach each other, if that is so by the newest map. (Two
    /// of them may be about to be left out at the same time, though only one can be done without.)
    pub(super) fn leave_out(&self, server: ServerId) -> Result<Option<Arc<Map>>, LinkError> {
        let mut log = lock(&self.log);
        if !self.leaves_out(log.map(), server) {
            return Ok(None);
        }
        tracing::warn!(%server, "the server is left out: it and others do not reach each other");
        self.put_state(&mut log, server, ServerState::Down).map(Some).ok_or(LinkError::Uncommitted)
    }

    fn put_state(&self, log: &mut MapLog, server: ServerId, state: ServerState) -> Option<Arc<Map>> {
        tracing::info!(%server, ?state, "the server has another state");
        if state == ServerState::Down {
            // It may be committed although nobody hears of that: no lease before that is known.
            lock(&self.view).replaced.insert(server, UNDECIDED);
        }
        let map = self.propose(log, MapChange::State { server, state })?;
        if state == ServerState::Down {
            lock(&self.view).replaced.insert(server, map.epoch);
        }
        Some(map)
    }

    /// Commits that nobody reaches a node. (If that fails, its watcher tries again.)
    pub(super) fn set_away(&self, node: NodeId) {
        let mut log = lock(&self.log);
        if !log.map().is_away(node) {
            tracing::warn!(%node, "nobody reaches the node");
            self.propose(&mut log, MapChange::Node { node, away: true });
        }
    }

    /// Commits that a node is back, if the map is still that of `accounted`, by which its agent knows what it has lost.
    pub(super) fn set_back(&self, node: NodeId, accounted: Epoch) -> Option<Arc<Map>> {
        let mut log = lock(&self.log);
        if !log.map().is_away(node) || log.map().epoch != accounted {
            return None;
        }
        tracing::info!(%node, "the node is back");
        self.propose(&mut log, MapChange::Node { node, away: false })
    }

    /// Commits that servers have caught up with groups: this one, if the map is still that of `epoch`, and others that have
    /// told so. `None` also when others are waited for.
    pub(super) fn set_in_step(&self, server: ServerId, epoch: Epoch, groups: Vec<Group>) -> Option<Arc<Map>> {
        if groups.is_empty() {
            lock(&self.reports).withdraw(server);
            return None;
        }
        let mut log = lock(&self.log);
        if log.map().epoch != epoch {
            return None;
        }
        let servers = {
            let (mut reports, now) = (lock(&self.reports), Instant::now());
            reports.note(now, log.map(), server, groups);
            reports.take(now, log.map())
        };
        if servers.is_empty() {
            return None;
        }
        for (server, groups) in &servers {
            tracing::info!(%server, groups = groups.len(), "the server has caught up");
        }
        self.propose(&mut log, MapChange::InStep { servers })
    }

    /// Commits that copies cannot be relied on, if the map is still that by which they were.
    pub(super) fn set_behind(&self, epoch: Epoch, copies: &[(Group, ServerId)]) -> Option<Arc<Map>> {
        if copies.is_empty() {
            return None;
        }
        let mut log = lock(&self.log);
        let change = MapChange::Behind { copies: copies.to_vec() };
        let next = change.apply(log.map())?;
        if log.map().epoch != epoch || next.behind == log.map().behind {
            return None;
        }
        tracing::warn!(copies = copies.len(), "copies are not relied on: their storage fails");
        self.propose(&mut log, change)
    }

    /// Commits that servers do not come back, if they can be done without.
    pub(super) fn give_up(
        &self,
        servers: Vec<ServerId>,
        accept_loss: bool,
    ) -> Result<Arc<Map>, ControllerError> {
        let mut log = lock(&self.log);
        let change = MapChange::GiveUp { servers, accept_loss };
        if change.apply(log.map()).is_none() {
            return Err(ControllerError::CannotGiveUp);
        }
        tracing::warn!(?change, "others take the place of servers that are down");
        self.propose(&mut log, change).ok_or(ControllerError::Unconfirmed)
    }

    /// Commits that servers belong to the deployment, or not, or that another process has a server's number; or says that
    /// it cannot be so.
    pub(super) fn change_members(
        &self,
        change: MapChange,
        impossible: ControllerError,
    ) -> Result<Arc<Map>, ControllerError> {
        let mut log = lock(&self.log);
        if change.apply(log.map()).is_none() {
            return Err(impossible);
        }
        tracing::warn!(?change, "the deployment's servers change");
        self.propose(&mut log, change).ok_or(ControllerError::Unconfirmed)
    }

    /// Commits that departing servers are gone on which nothing is any more. (Others are to have heard that shards have left
    /// them.)
    pub(super) fn remove_departed(&self, map: &Map) -> Option<Arc<Map>> {
        let is_free = |server: &&ServerId| {
            map.held_by(**server) == 0 && map.moving.iter().all(|m| m.from != **server && m.to != **server)
        };
        let servers: Vec<ServerId> = map.emptied.iter().filter(is_free).copied().collect();
        if servers.is_empty() || map.rebuild.is_some() {
            return None;
        }
        let mut log = lock(&self.log);
        let change = MapChange::Remove { servers, nodes: Vec::new() };
        if log.map().epoch != map.epoch || change.apply(log.map()).is_none() {
            return None;
        }
        tracing::warn!(?change, "servers have left");
        self.propose(&mut log, change)
    }

    /// Commits that a node has left that is vacated. `ended`: has its agent end now, or says that it is gone. (In between, no
    /// server is added there: the log is locked.)
    pub(super) fn let_go(
        &self,
        node: NodeId,
        idle: bool,
        ended: impl FnOnce() -> Result<bool, LinkError>,
    ) -> Result<(), LinkError> {
        let mut log = lock(&self.log);
        let can_leave = |map: &Map| map.is_vacated(node) && !map.has_left(node);
        if !can_leave(log.map()) || self.asks.confirm(LOOK).is_err() || !ended()? {
            return Ok(());
        }
        tracing::info!(%node, idle, "the node leaves: its agent has ended");
        self.propose(&mut log, MapChange::Leave { node, idle });
        Ok(())
    }

    /// Whether a node is to leave as soon as its programs have ended: its servers have left, and its agent does not keep the map.
    pub(super) fn is_to_leave(&self, map: &Map, node: NodeId) -> bool {
        map.is_vacated(node)
            && !map.has_left(node)
            && node != self.node
            && !self.asks.relied_on().contains(&node)
    }

    /// Commits that the rebuild that is under way by this map is complete.
    pub(super) fn end_rebuild(&self, map: &Map) -> Option<Arc<Map>> {
        let mut log = lock(&self.log);
        let rebuild = log.map().rebuild.filter(|_| log.map().epoch == map.epoch)?;
        tracing::info!(number = rebuild.number, "all files are where they are to be");
        self.propose(&mut log, MapChange::Rebuilt { number: rebuild.number, complete: true })
    }

    pub(super) fn propose(&self, log: &mut MapLog, change: MapChange) -> Option<Arc<Map>> {
        if lock(&self.view).stopping {
            return None;
        }
        let proposed = log.propose(change);
        self.show(log.map().clone());
        match proposed {
            Ok(map) => {
                tracing::info!(epoch = %map.epoch, "the map has changed");
                Some(map)
            }
            Err(error) => {
                tracing::error!(%error, "the map cannot be changed");
                None
            }
        }
    }

    /// Has everybody see a newer map.
    pub(super) fn show(&self, map: Arc<Map>) {
        let mut view = lock(&self.view);
        if map.epoch > view.map.epoch {
            // What is new has had nothing before this map.
            for server in &map.servers {
                view.replaced.entry(server.id).or_insert(map.epoch);
            }
            view.map = map;
            drop(view);
            self.changed.notify_all();
        }
    }
}
