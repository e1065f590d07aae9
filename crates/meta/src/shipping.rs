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
use crate::mutation::{Batch, Mutation};
use crate::partition::{Partition, Partitions};
use crate::shard::Shard;
use crate::store::{Observer, Outside, lock};
use crate::stream::{Follower, Role};
use bivouac_layout::{Group, Map, ServerId, ServerState, ShardId};
use bivouac_proto::peer::{Held, PeerReply, PeerRequest, Position, Shipment};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Reply, Time};
use serde_bytes::ByteBuf;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Most bytes of records in one message, if there are several.
const MESSAGE: usize = 256 << 10;

/// Longest wait before the map is looked at again.
const PAUSE: Duration = Duration::from_millis(20);

/// What is to be sent to the copies. Its mutex is held only for moments, and no other lock is taken meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Shipping {
    queues: Mutex<BTreeMap<ServerId, Queue>>,
    /// An answer has come.
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Shards with records that the server may lack.
    due: BTreeSet<ShardId>,
    /// Somebody is sending.
    busy: bool,
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
            }
        }
        drop(queues);
        self.shipping.wake.notify_all();
    }
}

/// What a copy lacks.
enum Missing {
    Records(Shipment),
    Image(Bodies, u64),
}

impl Shipping {
    /// Notes that a shard has news for servers.
    pub(crate) fn note(&self, shard: ShardId, servers: &[ServerId]) {
        let mut queues = lock(&self.queues);
        for server in servers {
            queues.entry(*server).or_default().due.insert(shard);
        }
    }

    /// Takes what is to be sent to those servers to which nobody is sending.
    fn take(&self, servers: &[ServerId]) -> Sending<'_> {
        let mut queues = lock(&self.queues);
        let mut to = Vec::new();
        for server in servers {
            let queue = queues.entry(*server).or_default();
            if !queue.busy {
                queue.busy = true;
                to.push((*server, std::mem::take(&mut queue.due)));
            }
        }
        Sending { shipping: self, to }
    }

    /// Waits for an answer to somebody.
    fn wait(&self) {
        let queues = lock(&self.queues);
        if queues.values().any(|queue| queue.busy) {
            drop(self.wake.wait_timeout(queues, PAUSE).unwrap_or_else(PoisonError::into_inner));
        }
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
                return Err(Errno::IO.into());
            }
            self.shipping.note(id, &missing);
            self.ship(outside, &missing);
        }
    }

    /// Sends what is due to these servers, or waits until somebody else has.
    pub(crate) fn ship(&self, outside: &dyn Outside, servers: &[ServerId]) {
        let sending = self.shipping.take(servers);
        if sending.to.is_empty() {
            return self.shipping.wait();
        }
        let mut messages = Vec::new();
        for (server, due) in &sending.to {
            let (shipments, images) = self.load(*server, due);
            for (shard, bodies, term) in images {
                if let Ok(held) = send_image(outside, *server, shard, term, &bodies) {
                    self.heard(*server, shard, held);
                }
            }
            if !shipments.is_empty() {
                messages.push((*server, PeerRequest::Ship { shipments }));
            }
        }
        let answers = outside.peer_each(&messages);
        let mut failed = false;
        for ((server, message), answer) in messages.iter().zip(answers) {
            let PeerRequest::Ship { shipments } = message else { continue };
            match answer {
                Ok(Reply::Peer(PeerReply::Held(each))) if each.len() == shipments.len() => {
                    for (shipment, held) in shipments.iter().zip(each) {
                        self.heard(*server, shipment.shard, held);
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
    fn load(
        &self,
        server: ServerId,
        due: &BTreeSet<ShardId>,
    ) -> (Vec<Shipment>, Vec<(ShardId, Bodies, u64)>) {
        let (mut shipments, mut images, mut bytes) = (Vec::new(), Vec::new(), 0);
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
                Missing::Records(shipment) => {
                    bytes += shipment.records.iter().map(|record| record.len() + 8).sum::<usize>();
                    shipments.push(shipment);
                }
                Missing::Image(bodies, term) => images.push((*id, bodies, term)),
            }
        }
        (shipments, images)
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

    /// Sends a server what it lacks of a shard, of which this server need not be the primary. Where it is then.
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
                    return Err(Refusal::OldServer.into());
                }
                if shard.stream.last == from {
                    return Ok(from);
                }
                shard.missing(id, shard.stream.contains(from).then_some(from))
            };
            let held = match missing {
                Missing::Records(shipment) => {
                    let message = PeerRequest::Ship { shipments: vec![Shipment { term, ..shipment }] };
                    one_held(outside.peer(to, &message)?)?
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
    /// A copy that was restarted is at this position.
    pub(crate) fn is_restarted(&mut self, id: ShardId, server: ServerId, position: Position) {
        let Some(follower) = self.stream.follower(server) else { return };
        // If it says so behind what it was told, it was restarted once more.
        if follower.told == 0 || position.sequence >= follower.told {
            let known = self.volatile(id.0).map(|batch| batch.mutations);
            for mutations in known.chain([vec![Mutation::AllTold]]).collect::<Vec<_>>() {
                let batch = Batch { shard: id.0, at: self.stream.next(), mutations };
                self.stream.advance(batch.at);
                self.stream.keep(batch.at, &encoded(&batch));
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
        let mut bytes = 0;
        let fitting = behind.take_while(|record| {
            let fits = bytes == 0 || bytes + record.body.len() <= MESSAGE;
            bytes += record.body.len();
            fits
        });
        let records = fitting.map(|record| ByteBuf::from(record.body.to_vec())).collect();
        let (term, everywhere) = (stream.term, stream.everywhere);
        Missing::Records(Shipment { shard: id, term, after, everywhere, records })
    }

    /// Takes in what a map says of the shard, unless this server takes it over: that takes more than this.
    pub(crate) fn follow_map(
        &mut self,
        id: ShardId,
        map: &Map,
        me: ServerId,
        observer: Option<&dyn Observer>,
    ) {
        if self.stream.role != Role::Primary || map.epoch.0 <= self.stream.term {
            return;
        }
        let group = Group::Shard(id);
        if map.serving(group).next() != Some(me) {
            return self.step_down(id, observer);
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
        self.forgot_locks = false;
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

/// A batch of volatile changes, encoded.
pub(crate) fn encoded(batch: &Batch) -> Vec<u8> {
    let mut body = Vec::new();
    bivouac_proto::encode(batch, &mut body);
    body
}
