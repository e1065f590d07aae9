//! What the voters decide: the map, and which start of the deployment it has heard of.
//!
//! Everybody applies the same entries in the same order with the same code, so that everybody comes to the same map.
//! The map is in memory; what is on disk is the newest snapshot of it, and the entries since.

use super::disk::Disk;
use super::journal::{damaged, header, header_of, put_record, read, take_record};
use super::store::{failed, stopped};
use super::{Entry, Identity, LogId, Membership, Outcome, Proposal, SnapshotMeta, StorageError, Types};
use crate::controller::ControllerError;
use bivouac_layout::{Map, MapChange, NodeId, ServerId};
use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{EntryPayload, ErrorVerb, OptionalSend, RaftSnapshotBuilder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Cursor;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name of the snapshot in the voter's directory.
pub(crate) const SNAPSHOT: &str = "snapshot";

/// What is decided, as far as this voter knows, for everybody in the process.
#[derive(Default)]
pub(crate) struct Published(Mutex<Public>);

/// What everybody may see.
#[derive(Clone, Default)]
pub(crate) struct Public {
    /// The newest map that is committed.
    pub(crate) map: Option<Arc<Map>>,
    /// Whether all daemons had it since the deployment was started.
    pub(crate) begun: bool,
}

impl Published {
    fn lock(&self) -> MutexGuard<'_, Public> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is decided.
    pub(crate) fn get(&self) -> Public {
        self.lock().clone()
    }
}

/// What entries change.
#[derive(Clone, Serialize, Deserialize, Default)]
struct Decided {
    map: Option<Map>,
    /// The last start of the deployment that counted.
    resumed: u64,
    /// Whether all daemons have begun to serve since.
    begun: bool,
}

impl Decided {
    fn apply(&mut self, proposal: Proposal) -> Outcome {
        let change = match (proposal, &self.map) {
            (Proposal::Found(map), None) => {
                let epoch = map.epoch;
                self.map = Some(*map);
                return Outcome::Changed(epoch);
            }
            (Proposal::Found(_), Some(_)) | (_, None) => return Outcome::Refused,
            (Proposal::Begun, Some(map)) => {
                self.begun = true;
                return Outcome::Changed(map.epoch);
            }
            (Proposal::Change { expected, .. }, Some(map)) if expected != map.epoch => return Outcome::Stale,
            (Proposal::Change { change, .. }, Some(_)) => change,
            (Proposal::Resume { number, .. }, Some(map)) if number == self.resumed => {
                return Outcome::Changed(map.epoch);
            }
            (Proposal::Resume { agents, servers, .. }, Some(map)) if !are_enough(map, &agents, &servers) => {
                return Outcome::Refused;
            }
            (Proposal::Resume { number, agents, servers }, Some(_)) => {
                (self.resumed, self.begun) = (number, false);
                MapChange::Resumed { agents, servers }
            }
        };
        match self.map.as_ref().and_then(|map| change.apply(map)) {
            Some(next) => {
                let epoch = next.epoch;
                self.map = Some(next);
                Outcome::Changed(epoch)
            }
            None => Outcome::Refused,
        }
    }
}

/// Whether a deployment can go on with these nodes and servers of its map: where there is one copy, only with all.
fn are_enough(map: &Map, agents: &[(NodeId, SocketAddr)], servers: &[(ServerId, SocketAddr)]) -> bool {
    let nodes: BTreeSet<NodeId> = agents.iter().map(|(node, _)| *node).collect();
    let ids: BTreeSet<ServerId> = servers.iter().map(|(server, _)| *server).collect();
    let are_known = nodes.iter().all(|node| map.node(*node).is_some())
        && ids.iter().all(|server| map.server(*server).is_some());
    let are_all = nodes.len() == map.nodes.len() && ids.len() == map.servers.len();
    are_known && (are_all || map.copies > 1)
}

/// A stored snapshot.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Stored {
    meta: SnapshotMeta,
    decided: Vec<u8>,
}

impl Stored {
    /// Which entries it has.
    pub(crate) fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// Reads the snapshot in a voter's directory. `None`: there is none, or it is another deployment's.
    pub(crate) fn read(directory: &Path, identity: Identity) -> Result<Option<Stored>, ControllerError> {
        let path = directory.join(SNAPSHOT);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let mut rest = &bytes[..];
        if !header(&path, &mut rest, identity)? {
            return Ok(None);
        }
        match take_record(&path, &mut rest, bytes.len())? {
            Some(stored) if rest.is_empty() => Ok(Some(stored)),
            // A snapshot gets its name when it is complete.
            _ => Err(damaged(&path, "it is too short or too long")),
        }
    }

    fn bytes(&self, identity: Identity) -> std::io::Result<Vec<u8>> {
        let mut bytes = header_of(identity);
        put_record(self, &mut bytes)?;
        Ok(bytes)
    }

    fn snapshot(&self) -> Snapshot<Types> {
        Snapshot { meta: self.meta.clone(), snapshot: Box::new(Cursor::new(self.decided.clone())) }
    }
}

/// The state that the log leads to.
pub(crate) struct Machine {
    identity: Identity,
    decided: Decided,
    last: Option<LogId>,
    membership: Membership,
    stored: Option<Stored>,
    published: Arc<Published>,
    disk: Disk,
}

impl Machine {
    /// Begins with what the snapshot says.
    pub(crate) fn new(
        identity: Identity,
        stored: Option<Stored>,
        published: Arc<Published>,
        disk: Disk,
    ) -> Result<Machine, StorageError> {
        let (decided, membership) = (Decided::default(), Membership::default());
        let mut machine =
            Machine { identity, decided, last: None, membership, stored: None, published, disk };
        if let Some(stored) = stored {
            machine.take(&stored)?;
            machine.stored = Some(stored);
        }
        Ok(machine)
    }

    fn take(&mut self, stored: &Stored) -> Result<(), StorageError> {
        let decided: Decided =
            bivouac_proto::decode(&stored.decided).map_err(|e| failed(ErrorVerb::Read, e))?;
        if let Some(map) = &decided.map {
            map.check().map_err(|what| failed(ErrorVerb::Read, std::io::Error::other(what)))?;
        }
        self.decided = decided;
        self.last = stored.meta.last_log_id;
        self.membership = stored.meta.last_membership.clone();
        self.publish();
        Ok(())
    }

    fn publish(&self) {
        let Decided { map, begun, .. } = &self.decided;
        let mut public = self.published.lock();
        public.begun = *begun;
        // Committed maps of the same epoch are the same.
        if public.map.as_ref().map(|map| map.epoch) != map.as_ref().map(|map| map.epoch) {
            public.map = map.clone().map(Arc::new);
        }
    }

    async fn keep(&mut self, stored: Stored) -> Result<(), StorageError> {
        let bytes = stored.bytes(self.identity).map_err(|e| failed(ErrorVerb::Write, e))?;
        self.disk.snapshot(bytes, stored.meta.last_log_id).await.map_err(stopped)?;
        self.stored = Some(stored);
        Ok(())
    }
}

/// A snapshot that is being made: the state of the moment in which it was asked for.
pub(crate) struct Builder {
    identity: Identity,
    stored: Stored,
    disk: Disk,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let bytes = self.stored.bytes(self.identity).map_err(|e| failed(ErrorVerb::Write, e))?;
        self.disk.snapshot(bytes, self.stored.meta.last_log_id).await.map_err(stopped)?;
        Ok(self.stored.snapshot())
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut outcomes = Vec::new();
        for entry in entries {
            self.last = Some(entry.log_id);
            outcomes.push(match entry.payload {
                EntryPayload::Blank => Outcome::Nothing,
                EntryPayload::Membership(membership) => {
                    self.membership = Membership::new(self.last, membership);
                    Outcome::Nothing
                }
                EntryPayload::Normal(proposal) => self.decided.apply(proposal),
            });
        }
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Changed(_))) {
            self.publish();
        }
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let mut decided = Vec::new();
        bivouac_proto::encode(&self.decided, &mut decided);
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.membership.clone(),
            snapshot_id: self.last.map_or_else(String::new, |last| last.to_string()),
        };
        let stored = Stored { meta, decided };
        // It is the current one as soon as it is on disk, which openraft waits for.
        self.stored = Some(stored.clone());
        Builder { identity: self.identity, stored, disk: self.disk.clone() }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let stored = Stored { meta: meta.clone(), decided: snapshot.into_inner() };
        self.take(&stored)?;
        self.keep(stored).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        Ok(self.stored.as_ref().map(Stored::snapshot))
    }
}
