//! The map as a log of changes: what is proposed, in one order, and never lost.
//!
//! The leader of the voters ([`super::raft`]) proposes; a change counts when most voters have it. Every proposal names
//! the map that it was made for. So one that is late (its proposer was deposed meanwhile, or somebody else was faster)
//! changes nothing.

use super::ControllerError;
use super::raft::Proposal;
use super::raft::voter::Voter;
use bivouac_layout::{Map, MapChange, NodeId};
use std::sync::Arc;
use std::time::Duration;

/// How long a change may take until most voters have it.
const COMMIT: Duration = Duration::from_secs(3);

/// The log, and the map that it leads to. Clones are the same log.
#[derive(Clone, Debug)]
pub(crate) struct MapLog {
    voter: Arc<Voter>,
    /// The newest map that was proposed here, or seen.
    map: Arc<Map>,
}

impl MapLog {
    /// The log of a voter that leads. `None`: there is no map.
    pub(crate) fn of(voter: Arc<Voter>) -> Option<MapLog> {
        let map = voter.map()?;
        Some(MapLog { voter, map })
    }

    /// Commits a change of [`MapLog::map`] and applies it. On an error the map is as before; after
    /// [`ControllerError::Unconfirmed`] the change may still be committed later.
    pub(crate) fn propose(&mut self, change: MapChange) -> Result<Arc<Map>, ControllerError> {
        if change.apply(&self.map).is_none() {
            return Err(ControllerError::Refused);
        }
        let proposal = Proposal::Change { expected: self.map.epoch, change };
        let proposed = self.voter.propose(proposal, COMMIT);
        self.look();
        proposed
    }

    /// Takes in what was committed, and returns it.
    pub(crate) fn look(&mut self) -> &Arc<Map> {
        if let Some(map) = self.voter.map() {
            self.map = map;
        }
        &self.map
    }

    /// The map as it was seen last.
    pub(crate) fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Whether this voter led at some moment after the call: most voters were asked.
    pub(crate) fn confirm(&self, limit: Duration) -> Result<(), ControllerError> {
        self.voter.confirm(limit)
    }

    /// The same without asking anybody, where there is nobody to be asked.
    pub(crate) fn is_certain(&self) -> bool {
        self.voter.standing().leads_alone()
    }

    /// All daemons have begun to serve: has the voters know that.
    pub(crate) fn begun(&self) -> Result<(), ControllerError> {
        if self.voter.has_begun() {
            return Ok(());
        }
        self.voter.propose(Proposal::Begun, COMMIT).map(|_| ())
    }

    /// The nodes on which a decision can still depend ([`Standing::relied_on`](super::raft::voter::Standing)).
    pub(crate) fn relied_on(&self) -> Vec<NodeId> {
        self.voter.standing().relied_on
    }
}
