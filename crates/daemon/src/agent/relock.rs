//! Telling servers that were restarted what the node's processes have locked.
//!
//! The processes note their locks in the node's table ([`bivouac_node::locks`]). Only what somebody has who lives is
//! reported: a process, or an open file description that a process holds. A process is known by its session. Those
//! of an agent before this one are found by what they have noted, and looked after from then on.

use super::report::AT_ONCE;
use super::{Sessions, Shared, is_dead};
use bivouac_layout::{Map, ServerId};
use bivouac_node::{Noted, NotedBy, SlotId};
use bivouac_proto::meta::{LockOwner, MetaReply, MetaRequest, Relocked};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId, Reply};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

/// Most dead processes that are found in one sweep. (There are never so many, unless somebody has written over the
/// table.)
const FOUND: usize = 1000;

/// What has become of the process that has a lock.
enum Holder {
    Lives,
    /// Its end is, or was, told to servers.
    Ended,
    /// It ended while no agent was there.
    Missed,
}

fn slot(open: OpenId) -> SlotId {
    SlotId { index: open.slot, incarnation: open.incarnation }
}

impl Shared {
    /// Tells a server which of its locks this node's processes have. Returns which start of the server was told; EAGAIN
    /// if it was restarted meanwhile.
    pub(super) fn relock(&self, server: ServerId, map: &Map) -> Result<u64, Failure> {
        // From the time when this start began on, the server knows what is unlocked: what is gathered now is not older.
        let (start, _) = self.relock_some(server, 0, &[])?;
        self.table.begin_report();
        let mut locks = self.locks_at(server, map);
        // A process that is just changing a lock has noted it twice: the stronger one counts.
        locks.sort_by_key(|noted| noted.range.exclusive);
        for some in locks.chunks(AT_ONCE) {
            let (now, refused) = self.relock_some(server, start, some)?;
            if now != start {
                return Err(Errno::AGAIN.into());
            }
            for noted in refused.iter().filter_map(|at| some.get(*at as usize)) {
                tracing::warn!(%server, ino = %noted.ino, owner = ?noted.owner, "a lock is lost: its server was restarted, or this node was away");
                self.table.lose_lock(noted.id);
            }
        }
        Ok(start)
    }

    fn relock_some(&self, server: ServerId, start: u64, some: &[Noted]) -> Result<(u64, Vec<u32>), Failure> {
        let told = |noted: &Noted| Relocked { ino: noted.ino, owner: noted.owner, range: noted.range };
        let request = MetaRequest::Relock { start, locks: some.iter().map(told).collect() };
        match self.links.meta_at(server, &request)? {
            Reply::Meta(MetaReply::Relocked { start, refused }) => Ok((start, refused)),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// The locks at a server that somebody has.
    fn locks_at(&self, server: ServerId, map: &Map) -> Vec<Noted> {
        let mut held: HashMap<SlotId, bool> = HashMap::new();
        let mut is_held = |id: SlotId, noted: &Noted| {
            *held.entry(id).or_insert_with(|| self.table.is_open(id) && !self.table.abandoned(id))
                && self.table.slot(id).is_some_and(|slot| slot.ino.load(Ordering::Relaxed) == noted.ino.0)
        };
        let mut sessions = self.sessions();
        let theirs = |noted: &Noted| !noted.lost && map.primary(noted.ino.shard()) == server;
        let mut found: Vec<Noted> = Vec::new();
        for noted in self.table.all_noted(self.number).filter(theirs) {
            let lives = match noted.owner {
                LockOwner::Process { session, .. } => {
                    matches!(self.holder(&mut sessions, session, &noted, server), Holder::Lives)
                }
                LockOwner::Description(open) | LockOwner::Flock(open) => is_held(slot(open), &noted),
            };
            if lives {
                found.push(noted);
            }
        }
        found
    }

    /// What has become of the process that has a lock at a server. If it lives, the server will be told of its end.
    fn holder(&self, sessions: &mut Sessions, session: u64, noted: &Noted, server: ServerId) -> Holder {
        let is_known = sessions.processes.contains_key(&session);
        if !is_known && sessions.numbers.is_own(session) {
            return Holder::Ended;
        }
        if !is_known {
            match self.table.noted_by(noted) {
                NotedBy::Dead => return Holder::Missed,
                // Nobody can watch it.
                NotedBy::Unknown => return Holder::Lives,
                NotedBy::Alive(number) => {
                    if self.take_over(sessions, session, number).is_err() {
                        return Holder::Missed;
                    }
                }
            }
        }
        match sessions.processes.get_mut(&session) {
            Some(process) if !is_dead(&process.pidfd) => {
                process.locks.insert(server);
                Holder::Lives
            }
            Some(process) => {
                // It is about to be found dead.
                process.locks.insert(server);
                Holder::Ended
            }
            None => Holder::Ended,
        }
    }

    /// Frees what was noted by those who are gone. Adds to `owed` the ends of processes that no agent has seen.
    pub(super) fn sweep_locks(&self, owed: &mut Vec<(ServerId, u64)>) {
        self.table.free_unfinished_locks();
        let map = self.links.map();
        let mut missed: HashSet<(ServerId, u64)> = HashSet::new();
        let mut sessions = self.sessions();
        for noted in self.table.all_noted(self.number) {
            let server = map.primary(noted.ino.shard());
            let is_gone = match noted.owner {
                LockOwner::Process { session, .. } => {
                    match self.holder(&mut sessions, session, &noted, server) {
                        Holder::Lives => false,
                        Holder::Ended => true,
                        Holder::Missed => {
                            missed.insert((server, session));
                            true
                        }
                    }
                }
                LockOwner::Description(open) | LockOwner::Flock(open) => {
                    self.table.slot(slot(open)).is_none()
                }
            };
            if is_gone {
                self.table.drop_lock(noted.id);
            }
            if missed.len() >= FOUND {
                break;
            }
        }
        drop(sessions);
        missed.retain(|end| !owed.contains(end));
        owed.extend(missed);
    }
}
