//! A server that becomes the primary of shards, and servers that come back.
//!
//! [`Core::follow`] compares what the map says with what this server does. Where it is to answer for a shard now,
//! it asks the other holders where they are (from then on they refuse the former primary), takes what it lacks from
//! the one that has most, brings the others to the same place, and revives the shard as after a restart: keys of
//! prepared intents, unfinished truncations, holders of files without links. The first replies wait until all
//! holders have the same.
//!
//! A server that was away gets what it missed from the primaries ([`Core::catch_up`]), which from then on wait for
//! it as for other copies. Only then may the map call it a holder again.

use crate::grace::Grace;
use crate::mutation::{Batch, Mutation};
use crate::partition::{Partition, revive};
use crate::shard::Written;
use crate::store::{Core, lock, root};
use crate::stream::{Follower, Role};
use bivouac_layout::{Group, Ino, Map, ServerId, ServerState, ShardId};
use bivouac_proto::meta::LockOwner;
use bivouac_proto::peer::{Held, PeerReply, PeerRequest, Position};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Core {
    /// Does what the map says: steps down where another server is the primary, and takes over where this one is.
    /// Says whether this server answers for all shards that it should.
    pub(crate) fn follow(&self) -> bool {
        let map = self.outside.map();
        let Ok(_one_at_a_time) = self.following.try_lock() else {
            // Somebody is at it, perhaps by an older map.
            return false;
        };
        let due = self.due(&map);
        self.share(&map);
        self.leave(&map);
        due.is_empty() || self.take_over(&map, &due).len() == due.len()
    }

    /// Whether it answers for all shards that it should.
    pub(crate) fn has_followed(&self) -> bool {
        self.answers_for_all(&self.outside.map())
    }

    /// The same by a certain map.
    pub(crate) fn answers_for_all(&self, map: &Map) -> bool {
        (map.copies == 1 && map.moving.is_empty()) || self.due(map).is_empty()
    }

    /// Steps down where another server is the primary, if the map is newer than when this was done last.
    pub(crate) fn let_go(&self) {
        let map = self.outside.map();
        if map.copies > 1 && self.let_go_by.load(Ordering::Acquire) < map.epoch.0 {
            self.follow_locally(&map);
            self.let_go_by.fetch_max(map.epoch.0, Ordering::AcqRel);
        }
    }

    fn follow_locally(&self, map: &Map) {
        let me = self.outside.me();
        let observer = self.partitions.observer.as_deref();
        self.partitions.each_mut(|id, shard| shard.follow_map(id, map, me, observer));
    }

    /// The shards that are to be taken over.
    fn due(&self, map: &Map) -> Vec<ShardId> {
        let me = self.outside.me();
        self.follow_locally(map);
        let mine = |id: &ShardId| map.answers_for(*id) == Some(me);
        let is_due = |id: &ShardId| !self.partitions.serves(*id);
        (0..bivouac_layout::SHARDS).map(ShardId).filter(mine).filter(is_due).collect()
    }

    /// Takes shards over. Returns those that this server answers for now: others wait for a server that does not
    /// answer, or for a newer map.
    fn take_over(&self, map: &Map, due: &[ShardId]) -> Vec<ShardId> {
        let (me, term) = (self.outside.me(), map.epoch.0);
        let mut asked: BTreeMap<ServerId, Vec<(ShardId, u64)>> = BTreeMap::new();
        for id in due {
            for server in map.serving(Group::Shard(*id)).filter(|server| *server != me) {
                asked.entry(server).or_default().push((*id, term));
            }
            // The server that it has moved away from may not know that yet. Where there are copies, one that is down has no
            // lease any more.
            let is_asked = |server: &ServerId| {
                map.copies == 1 || map.server(*server).is_some_and(|s| s.state != ServerState::Down)
            };
            if let Some(former) = map.former_holder(*id).filter(is_asked) {
                asked.entry(former).or_default().push((*id, term));
            }
        }
        let requests: Vec<(ServerId, PeerRequest<'_>)> =
            asked.into_iter().map(|(server, shards)| (server, PeerRequest::Positions { shards })).collect();
        let answers = self.outside.peer_each(&requests);
        let mut found: BTreeMap<ShardId, Vec<(ServerId, Held)>> = BTreeMap::new();
        let mut unknown: BTreeSet<ShardId> = BTreeSet::new();
        for ((server, request), answer) in requests.iter().zip(answers) {
            let PeerRequest::Positions { shards } = request else { continue };
            let held = match answer {
                Ok(Reply::Peer(PeerReply::Held(held))) if held.len() == shards.len() => held,
                _ => Vec::new(),
            };
            for (at, (id, _)) in shards.iter().enumerate() {
                match held.get(at) {
                    Some(held @ (Held::Has(_) | Held::Restarted(_))) => {
                        found.entry(*id).or_default().push((*server, *held));
                    }
                    _ => drop(unknown.insert(*id)),
                }
            }
        }
        let known = due.iter().copied().filter(|id| !unknown.contains(id));
        // By a newer map, others may have taken over the rest meanwhile.
        let is_newest = || self.outside.map().epoch == map.epoch;
        let taken: Vec<ShardId> = known
            .take_while(|_| is_newest())
            .filter(|id| {
                let others = found.remove(id).unwrap_or_default();
                self.complete(*id, term, &others).is_ok() && self.rise(*id, map, others)
            })
            .collect();
        self.find_work_of(&taken);
        // All at once, so that they go together.
        let all = taken.iter().map(|id| (*id, self.partitions.newest(*id)));
        let taken: Vec<(ShardId, Position)> = all.collect();
        for (id, _) in &taken {
            self.partitions.note_news(*id);
        }
        let settled = taken.into_iter().filter(|(id, newest)| self.partitions.settle(*id, *newest).is_ok());
        settled.map(|(id, _)| id).collect()
    }

    /// Gets what this server lacks of a shard from the holder that has most.
    fn complete(&self, id: ShardId, term: u64, others: &[(ServerId, Held)]) -> Result<(), Failure> {
        let own = ranked(self.partitions.position(id, term)).ok_or(Errno::IO)?;
        let ranks = others.iter().filter_map(|(server, held)| Some((ranked(*held)?, *server)));
        let Some((best, server)) = ranks.max().filter(|(best, _)| *best > own) else { return Ok(()) };
        // A server that was restarted lacks volatile changes from before its position: these are in an image.
        let nowhere = Position { term: u64::MAX, sequence: u64::MAX };
        let from = if own.1 { own.0 } else { nowhere };
        self.outside.peer(server, &PeerRequest::Supply { shard: id, term, to: self.outside.me(), from })?;
        let own = ranked(self.partitions.position(id, term));
        if own.is_some_and(|own| own.0 >= best.0) { Ok(()) } else { Err(Errno::IO.into()) }
    }

    /// Makes this server the primary. Says no if there is a later one already.
    fn rise(&self, id: ShardId, map: &Map, mut others: Vec<(ServerId, Held)>) -> bool {
        let term = map.epoch.0;
        // A server that the shard has left has given everything, and is no copy.
        let former = map.former_holder(id);
        others.retain(|(server, _)| Some(*server) != former);
        let grace = self.grace_of_term(term);
        let mut guard = self.partitions.lock(usize::from(id.0));
        let Partition { shards, journal, waiting, .. } = &mut *guard;
        let shard = shards.entry(id.0).or_default();
        if shard.stream.term > term {
            return false;
        }
        // The first record of the term.
        let at = Position { term, sequence: shard.stream.last.sequence + 1 };
        let mut batch = Batch { shard: id.0, at, mutations: vec![Mutation::Adopt] };
        if id == Ino::ROOT.shard() && shard.inodes.get(Ino::ROOT).is_none() {
            // At the deployment's first start.
            batch.mutations.push(Mutation::PutInode(Ino::ROOT, Box::new(root(self.outside.now()))));
        }
        if let Err(error) = journal.write(&batch, true) {
            tracing::warn!(%error, ?id, "a shard could not be taken over");
            drop(guard);
            self.partitions.gives_up(id);
            return false;
        }
        shard.stream.advance(at);
        shard.stream.keep(at, journal.last());
        batch.mutations.into_iter().for_each(|mutation| shard.apply(mutation));
        (shard.stream.role, shard.stream.term, shard.stream.reign) = (Role::Primary, term, term);
        shard.stream.has_too_few = self.outside.map().has_too_few(Group::Shard(id));
        shard.stream.followers = others.iter().map(|(server, _)| Follower::unknown(*server)).collect();
        // All who had a copy were restarted, or the primary before this one was just learning what was locked by then.
        shard.forgot_locks |= std::mem::replace(&mut shard.stream.restarted, false);
        if shard.forgot_locks {
            shard.tell(id, &[Mutation::LocksForgotten(true)]);
        }
        for (server, held) in others {
            match held {
                Held::Restarted(position) => shard.is_restarted(id, server, position),
                Held::Has(position) | Held::Lacks(position) => shard.stream.is_at(server, position),
                Held::Deposed(_) => {}
            }
        }
        shard.stream.awaited = shard.stream.last.sequence;
        shard.stream.count();
        let told = shard.live.iter().flat_map(|(ino, live)| live.opens.iter().map(|open| (*ino, open.id)));
        shard.unconfirmed = told.collect();
        for live in shard.live.values_mut() {
            // Reports of writes may have been lost with the former primary.
            live.written = Written { unsure: true, ..Written::default() };
        }
        revive(shard, &grace);
        let process = |owner: &LockOwner| match owner {
            LockOwner::Process { session, .. } => Some(*session),
            _ => None,
        };
        let locks: BTreeSet<(Ino, u64)> = shard
            .live
            .iter()
            .flat_map(|(ino, live)| live.locks.iter().filter_map(|(owner, _)| Some((*ino, process(owner)?))))
            .collect();
        match former {
            Some(_) if !shard.untold.is_empty() => {
                let until = Instant::now() + self.resumption.longest();
                if shard.resumes_until.replace(until).is_none() {
                    self.partitions.resuming.fetch_add(1, Ordering::AcqRel);
                }
            }
            Some(_) => {}
            None if shard.intents.is_empty() && shard.untold.is_empty() => {}
            None => self.resumption.begin(),
        }
        if *waiting > 0 {
            self.partitions.condvar(usize::from(id.0)).notify_all();
        }
        drop(guard);
        for (ino, session) in locks {
            if self.locking.has_ended(session, ino) {
                // The former primary did not hear of it any more.
                let _ = self.partitions.with(id, |locked| {
                    locked.keep(Mutation::DropLocks(ino, session));
                    locked.shard.rest(ino);
                    Ok(())
                });
            }
        }
        true
    }

    /// The time in which agents tell again what is open in shards that were taken over: one for each term.
    fn grace_of_term(&self, term: u64) -> Arc<Grace> {
        let mut graces = lock(&self.keeper.graces);
        if let Some((_, known)) = graces.iter().find(|(of, _)| *of == term) {
            return Arc::clone(known);
        }
        let nodes = self.outside.map().reachable().collect();
        let grace = Arc::new(Grace::new(self.grace, nodes));
        graces.retain(|(_, grace)| !grace.is_over());
        graces.push((term, Arc::clone(&grace)));
        grace
    }

    /// Gives a server that was away, or was only restarted, what it has missed of this server's shards. When this returns, it has
    /// everything, and no reply is given any more before it has what the reply tells. It is forgotten again when a
    /// newer map says that it is down.
    pub(crate) fn catch_up(&self, server: ServerId) -> Result<(), Failure> {
        let map = self.outside.map();
        if server == self.outside.me() {
            return Ok(());
        }
        if map.server(server).is_none_or(|s| s.state == ServerState::Down) {
            return Err(Errno::IO.into());
        }
        self.share(&map);
        if !self.due(&map).is_empty() {
            // Soon it answers for more.
            return Err(Refusal::OldServer.into());
        }
        let mut learns_locks = false;
        self.partitions.each_mut(|id, shard| {
            let concerns = map.holders(Group::Shard(id)).all().contains(&server);
            learns_locks |= concerns && shard.stream.role == Role::Primary && shard.learns_locks(id);
        });
        if learns_locks {
            // All copies died together, and agents are telling this server what is locked. One that had caught up could take
            // its place before it knows all of that.
            return Err(Refusal::Busy.into());
        }
        let mut mine = Vec::new();
        self.partitions.each_mut(|id, shard| {
            if shard.stream.role == Role::Primary && map.holders(Group::Shard(id)).all().contains(&server) {
                let known = shard.stream.follower(server).is_some();
                if let Some(follower) = shard.stream.follower(server) {
                    // It may have been restarted, and has to say where it is.
                    (follower.is_known, follower.has) = (false, 0);
                    shard.stream.count();
                }
                mine.push((id, shard.stream.term, known));
            }
        });
        // Even one that lacks nothing has to hear of the term.
        let unknown = mine.iter().filter(|(_, _, known)| !known);
        let shards: Vec<(ShardId, u64)> = unknown.map(|(id, term, _)| (*id, *term)).collect();
        let request = PeerRequest::Positions { shards };
        let PeerRequest::Positions { shards } = &request else { return Err(Errno::PROTO.into()) };
        let held = match shards.is_empty() {
            true => Vec::new(),
            false => match self.outside.peer(server, &request)? {
                Reply::Peer(PeerReply::Held(held)) if held.len() == shards.len() => held,
                _ => return Err(Errno::PROTO.into()),
            },
        };
        for ((id, term), held) in shards.iter().zip(held) {
            let (Held::Has(from) | Held::Restarted(from)) = held else { return Err(Errno::IO.into()) };
            // Most of it goes while nobody waits for it.
            let end = self.partitions.supply(&*self.outside, *id, *term, server, from)?;
            self.partitions.change(*id, |shard| {
                if shard.stream.role == Role::Primary && shard.stream.follower(server).is_none() {
                    let joins = map.behind_since(Group::Shard(*id), server);
                    shard.stream.followers.push(Follower { joins, ..Follower::unknown(server) });
                    match held {
                        Held::Restarted(_) => shard.is_restarted(*id, server, end),
                        _ => shard.stream.is_at(server, end),
                    }
                }
            });
        }
        // The answer of one that was restarted adds to the stream what it is to be told.
        for _ in 0..2 {
            mine.iter().for_each(|(id, ..)| self.partitions.note_news(*id));
            mine.iter().try_for_each(|(id, ..)| self.partitions.settle(*id, self.partitions.newest(*id)))?;
        }
        Ok(())
    }
}

/// By what the holder that has most is found: where its copy ends, and whether it has all that is volatile.
fn ranked(held: Held) -> Option<(Position, bool)> {
    match held {
        Held::Has(position) => Some((position, true)),
        Held::Restarted(position) => Some((position, false)),
        Held::Lacks(_) | Held::Deposed(_) => None,
    }
}
