//! Replication, the primary's side: a shard's records go to its copies, and replies wait until they are there.
//!
//! An operation commits under its partition's lock, as without copies; the record is kept in the shard's stream
//! ([`crate::stream`]). When the lock is free, the operation waits until the copies have all that its reply may tell
//! ([`Partitions::settle`]): its own record, or if it only looked, the newest that it could see.
//!
//! There is no thread for sending. Whoever waits notes that its shard has news for a copy. If nobody is sending to
//! that copy, the waiter sends what is noted, of all shards, in one message; others wait for the answer. So there
//! is at most one message on its way to each copy, and the more operations there are, the more go with each.
//!
//! A copy that does not answer is sent the same again until the map says that it is not waited for any more. It is
//! known by its position, so that nothing is applied twice.

use crate::journal::Bodies;
use crate::mutation::Mutation;
use crate::outside::{Observer, Outside};
use crate::partition::{Partition, Partitions};
use crate::shard::Shard;
use crate::store::lock;
use crate::stream::{Follower, Role};
use bivouac_layout::{Group, Map, ServerId, ServerState, ShardId};
use bivouac_proto::peer::{Held, PeerReply, PeerRequest, Position, Shipment};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Time};
use serde_bytes::{ByteBuf, Bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Most bytes of records in one message, if there are several.
const MESSAGE: usize = 256 << 10;

/// Longest wait before the map is looked at again.
const PAUSE: Duration = Duration::from_millis(20);

/// What is to be sent to the copies. Its mutex is held only for moments, and no other lock is taken meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Shipping {
    queues: Mutex<BTreeMap<ServerId, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Shards with records that the server may lack.
    due: BTreeSet<ShardId>,
    /// Somebody is sending.
    busy: bool,
    /// So many wait for that to end.
    waiting: usize,
    /// It has ended.
    wake: Arc<Condvar>,
}

/// Keeps queues for one sender until it is dropped.
struct Sending<'a> {
    shipping: &'a Shipping,
    to: Vec<(ServerId, BTreeSet<ShardId>)>,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let mut queues = lock(&self.shipping.queues);
        for (server, _) in &self.to {
            if let Some(queue) = queues.get_mut(server) {
                queue.busy = false;
                // To wake somebody is a system call, also if nobody waits.
                if queue.waiting > 0 {
                    queue.wake.notify_all();
                }
            }
        }
    }
}

/// What a copy lacks.
enum Missing {
    Records(Run),
    Image(Bodies, u64),
}

/// Consecutive records of a shard.
struct Run {
    shard: ShardId,
    term: u64,
    after: Position,
    everywhere: u64,
    bodies: Bodies,
}

impl Run {
    fn shipment(&self) -> Shipment<'_> {
        let Run { shard, term, after, everywhere, ref bodies } = *self;
        Shipment { shard, term, after, everywhere, records: bodies.iter().map(Bytes::new).collect() }
    }
}

impl Shipping {
    /// Notes that a shard has news for servers.
    pub(crate) fn note(&self, shard: ShardId, servers: &[ServerId]) {
        let mut queues = lock(&self.queues);
        for server in servers {
            queues.entry(*server).or_default().due.insert(shard);
        }
    }

    /// Notes that a shard has news for servers, and takes what is to be sent to those of them to which nobody is
    /// sending. `None`: there was none, and an answer of one has been waited for.
    fn take(&self, shard: ShardId, servers: &[ServerId]) -> Option<Sending<'_>> {
        let mut queues = lock(&self.queues);
        let mut to = Vec::new();
        for server in servers {
            let queue = queues.entry(*server).or_default();
            queue.due.insert(shard);
            if !queue.busy {
                queue.busy = true;
                to.push((*server, std::mem::take(&mut queue.due)));
            }
        }
        if !to.is_empty() {
            return Some(Sending { shipping: self, to });
        }
        // All of them are to have it, so it does not matter which one is waited for.
        let server = servers.first()?;
        let queue = queues.get_mut(server)?;
        queue.waiting += 1;
        let wake = Arc::clone(&queue.wake);
        let mut queues = wake.wait_timeout(queues, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        if let Some(queue) = queues.get_mut(server) {
            queue.waiting -= 1;
        }
        None
    }
}

impl Partitions {
    /// Waits until all records of a shard up to `sequence` are everywhere. Refused if the shard has another
    /// primary meanwhile.
    pub(crate) fn settle(&self, id: ShardId, to: Position) -> Result<(), Failure> {
        let Some(outside) = self.outside.as_deref() else { return Ok(()) };
        loop {
            let map = outside.map();
            let missing: Vec<ServerId> = {
                let mut guard = self.lock(id.0 as usize);
                let shard = guard.shards.get_mut(&id.0).ok_or(Failure::Errno(Errno::IO))?;
                shard.follow_map(id, &map, outside.me(), self.observer.as_deref());
                let stream = &shard.stream;
                // It may have been another's meanwhile, in whose stream the number means something else.
                if !stream.serves() || stream.reign != to.term {
                    return Err(Refusal::OldServer.into());
                }
                if stream.everywhere >= to.sequence {
                    return Ok(());
                }
                stream.followers.iter().filter(|f| f.has < to.sequence).map(|f| f.server).collect()
            };
            if self.compactor.is_stopped() {
                // This server ends. Who takes its place has the change, or makes it when it is asked for it again.
                return Err(Refusal::OldServer.into());
            }
            self.ship(outside, id, &missing);
        }
    }

    /// Sends a shard's news to these servers, with all else that is due to them, or waits until somebody else has sent
    /// something.
    pub(crate) fn ship(&self, outside: &dyn Outside, id: ShardId, servers: &[ServerId]) {
        let Some(sending) = self.shipping.take(id, servers) else { return };
        let mut runs = Vec::with_capacity(sending.to.len());
        for (server, due) in &sending.to {
            let (records, images) = self.load(*server, due);
            for (shard, bodies, term) in images {
                if let Ok(held) = send_image(outside, *server, shard, term, &bodies) {
                    self.heard(*server, shard, held);
                }
            }
            if !records.is_empty() {
                runs.push((*server, records));
            }
        }
        let mut messages = Vec::with_capacity(runs.len());
        for (server, records) in &runs {
            let shipments = records.iter().map(Run::shipment).collect();
            messages.push((*server, PeerRequest::Ship { shipments }));
        }
        let answers = outside.peer_each(&messages);
        let mut failed = false;
        for ((server, records), answer) in runs.iter().zip(answers) {
            match answer {
                Ok(Reply::Peer(PeerReply::Held(each))) if each.len() == records.len() => {
                    for (run, held) in records.iter().zip(each) {
                        self.heard(*server, run.shard, held);
                    }
                }
                _ => failed = true,
            }
        }
        drop(sending);
        if failed {
            // The map may say by then that it is not waited for any more.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a server lacks of these shards. What does not fit into a message stays due.
    #[allow(clippy::type_complexity)]
    fn load(&self, server: ServerId, due: &BTreeSet<ShardId>) -> (Vec<Run>, Vec<(ShardId, Bodies, u64)>) {
        let (mut runs, mut images, mut bytes) = (Vec::new(), Vec::new(), 0);
        for id in due {
            if bytes >= MESSAGE {
                self.shipping.note(*id, &[server]);
                continue;
            }
            let mut guard = self.lock(id.0 as usize);
            let Some(shard) = guard.shards.get_mut(&id.0) else { continue };
            let Some(follower) = shard.stream.follower(server).copied() else { continue };
            let from = match follower {
                Follower { needs_image: true, .. } => None,
                // Where it is, its answer will tell.
                Follower { is_known: false, .. } => Some(shard.stream.last),
                Follower { has, .. } => shard.stream.place_of(has),
            };
            match shard.missing(*id, from) {
                Missing::Records(run) => {
                    bytes += run.bodies.len();
                    runs.push(run);
                }
                Missing::Image(bodies, term) => images.push((*id, bodies, term)),
            }
        }
        (runs, images)
    }

    /// Takes note of a copy's answer.
    fn heard(&self, server: ServerId, id: ShardId, held: Held) {
        let mut guard = self.lock(id.0 as usize);
        let Partition { shards, waiting, .. } = &mut *guard;
        let Some(shard) = shards.get_mut(&id.0) else { return };
        match held {
            // An answer to what this server said when it was the primary.
            _ if shard.stream.role != Role::Primary => {}
            Held::Has(position) | Held::Lacks(position) => shard.stream.is_at(server, position),
            Held::Restarted(position) => shard.is_restarted(id, server, position),
            Held::Deposed(term) if term > shard.stream.term => {
                shard.stream.term = term;
                shard.step_down(id, self.observer.as_deref());
                if *waiting > 0 {
                    self.condvar(id.0 as usize).notify_all();
                }
            }
            // An answer to what this server said in an earlier term.
            Held::Deposed(_) => {}
        }
    }

    /// Sends a server what it lacks of a shard, of which this server need not be the primary. Where it is then. ESTALE if
    /// there is a later term by now.
    pub(crate) fn supply(
        &self,
        outside: &dyn Outside,
        id: ShardId,
        term: u64,
        to: ServerId,
        mut from: Position,
    ) -> Result<Position, Failure> {
        loop {
            let missing = {
                let mut guard = self.lock(id.0 as usize);
                let shard = guard.shards.get_mut(&id.0).ok_or(Failure::Errno(Errno::IO))?;
                if shard.stream.term > term {
                    // That does not pass. A refusal would have the asker ask for the same again and again.
                    return Err(Errno::STALE.into());
                }
                if shard.stream.last == from {
                    return Ok(from);
                }
                shard.missing(id, shard.stream.contains(from).then_some(from))
            };
            let held = match missing {
                Missing::Records(run) => {
                    let shipments = vec![Shipment { term, ..run.shipment() }];
                    one_held(outside.peer(to, &PeerRequest::Ship { shipments })?)?
                }
                Missing::Image(bodies, _) => send_image(outside, to, id, term, &bodies)?,
            };
            match held {
                Held::Has(position) | Held::Restarted(position) if position != from => from = position,
                _ => return Err(Errno::IO.into()),
            }
        }
    }
}

impl Shard {
    /// Puts volatile changes that are made here already into the stream.
    pub(crate) fn tell(&mut self, id: ShardId, changes: &[Mutation]) {
        if self.stream.is_shared() {
            self.stream.add_volatile(id.0, changes);
        }
    }

    /// A copy that was restarted is at this position.
    pub(crate) fn is_restarted(&mut self, id: ShardId, server: ServerId, position: Position) {
        let Some(follower) = self.stream.follower(server) else { return };
        // If it says so behind what it was told, it was restarted once more.
        if follower.told == 0 || position.sequence >= follower.told {
            let known = self.volatile(id.0).map(|batch| batch.mutations);
            for mutations in known.chain([vec![Mutation::AllTold]]).collect::<Vec<_>>() {
                self.tell(id, &mutations);
            }
            let told = self.stream.last.sequence;
            self.stream.followers.iter_mut().filter(|f| f.server == server).for_each(|f| f.told = told);
        }
        self.stream.is_at(server, position);
    }

    /// What a copy that ends at `from` lacks; `None`: its stream is no prefix.
    fn missing(&mut self, id: ShardId, from: Option<Position>) -> Missing {
        let stream = &self.stream;
        let after = from.and_then(|from| Some((from, stream.after(from.sequence)?)));
        let Some((after, behind)) = after else {
            let mut bodies = Bodies::default();
            self.snapshot(id.0, Time::MIN).chain(self.volatile(id.0)).for_each(|batch| bodies.add(&batch));
            return Missing::Image(bodies, self.stream.term);
        };
        let mut bodies = Bodies::default();
        for record in behind {
            if bodies.len() > 0 && bodies.len() + record.len() > MESSAGE {
                break;
            }
            bodies.push(record);
        }
        let (term, everywhere) = (stream.term, stream.everywhere);
        Missing::Records(Run { shard: id, term, after, everywhere, bodies })
    }

    /// Takes in what a map says of the shard, unless this server takes it over: that takes more than this.
    pub(crate) fn follow_map(
        &mut self,
        id: ShardId,
        map: &Map,
        me: ServerId,
        observer: Option<&dyn Observer>,
    ) {
        if self.stream.role == Role::Copy || map.epoch.0 <= self.stream.term {
            return;
        }
        let group = Group::Shard(id);
        if map.answers_for(id) != Some(me) {
            return self.step_down(id, observer);
        }
        if self.stream.role == Role::Sole {
            return;
        }
        let stream = &mut self.stream;
        stream.term = map.epoch.0;
        stream.has_too_few = map.has_too_few(group);
        let is_there = |server| map.server(server).is_some_and(|s| s.state != ServerState::Down);
        // One that has fallen behind again, because its log has failed, is not waited for.
        let joins = |f: &Follower| {
            f.joins.is_some() && is_there(f.server) && map.behind_since(group, f.server) == f.joins
        };
        let holds = |server| map.serving(group).any(|holder| holder == server);
        stream.followers.retain(|f| holds(f.server) || joins(f));
        for server in map.serving(group).filter(|server| *server != me) {
            match stream.follower(server) {
                Some(follower) => follower.joins = None,
                None => stream.followers.push(Follower::unknown(server)),
            }
        }
        stream.count();
        if map.copies == 1 && map.move_of(id).is_none() && stream.followers.is_empty() {
            stream.is_alone();
        }
    }

    /// This server is the shard's primary no longer. What it had under way is void; who waits is refused; who has
    /// read something of the shard asks the next primary.
    pub(crate) fn step_down(&mut self, id: ShardId, observer: Option<&dyn Observer>) {
        if let Some(observer) = observer {
            observer.changed(id);
        }
        self.stream.role = Role::Copy;
        self.stream.followers.clear();
        self.intents.retain(|_, prepared| !prepared.own);
        self.keys.clear();
        self.active.clear();
        self.running.clear();
        self.concluded.clear();
        self.untold.clear();
        self.grace = None;
        self.unlocked.clear();
        self.unconfirmed.clear();
        for (ino, id) in std::mem::take(&mut self.revived) {
            if let Some(live) = self.live.get_mut(&ino) {
                live.opens.retain(|open| open.id != id);
            }
        }
        for live in self.live.values_mut() {
            (live.busy, live.restoring, live.stuck) = (false, false, false);
        }
        self.live.retain(|_, live| !live.is_idle());
    }
}

/// Sends a shard's image, in parts.
fn send_image(
    outside: &dyn Outside,
    to: ServerId,
    shard: ShardId,
    term: u64,
    bodies: &Bodies,
) -> Result<Held, Failure> {
    let mut rest = bodies.iter().peekable();
    for part in 0.. {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while let Some(body) = rest.next_if(|body| bytes == 0 || bytes + body.len() <= MESSAGE) {
            bytes += body.len();
            batches.push(ByteBuf::from(body.to_vec()));
        }
        let last = rest.peek().is_none();
        let held = one_held(outside.peer(to, &PeerRequest::Image { shard, term, part, last, batches })?)?;
        if last || matches!(held, Held::Deposed(_)) {
            return Ok(held);
        }
    }
    Err(Errno::PROTO.into())
}

fn one_held(reply: Reply) -> Result<Held, Failure> {
    match reply {
        Reply::Peer(PeerReply::Held(held)) => held.first().copied().ok_or(Errno::PROTO.into()),
        _ => Err(Errno::PROTO.into()),
    }
}
