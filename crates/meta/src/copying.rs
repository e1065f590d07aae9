//! Replication, the copy's side: records from the primary go into this server's log and memory.
//!
//! A copy serves nobody, and does no work for the shard. It takes records that follow what it has, passes over
//! those that it has already, and says where it is. Volatile changes go into memory only.
//!
//! An image replaces the whole shard. Its parts are gathered in memory. When it is complete it is written to the log
//! as records that do not count until one more makes them count ([`Mutation::Staged`], [`Mutation::Replace`]), so
//! that a crash leaves either the old state or the new one.

use crate::error::LogError;
use crate::journal::{Bodies, Journal};
use crate::mutation::{Batch, Mutation};
use crate::outside::Observer;
use crate::partition::{ANSWER_AGE, PARTITIONS, Partition, Partitions};
use crate::shard::Shard;
use crate::stream::Role;
use bivouac_layout::ShardId;
use bivouac_proto::peer::{Held, Shipment};
use bivouac_proto::{Errno, Time};
use serde_bytes::ByteBuf;
use std::collections::BTreeMap;

/// An image that is not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    parts: u32,
    bodies: Bodies,
}

/// What became of something that a primary sent.
struct Taken {
    held: Held,
    /// The log has become long.
    compact: bool,
    /// Somebody waits for changes of the shard.
    woke: bool,
}

impl From<Held> for Taken {
    fn from(held: Held) -> Taken {
        Taken { held, compact: false, woke: false }
    }
}

/// Takes records in; those that are there already are passed over.
fn take_shipment(
    partition: &mut Partition,
    shipment: &Shipment<'_>,
    now: Time,
    observer: Option<&dyn Observer>,
) -> Result<Taken, Errno> {
    let Partition { shards, journal, waiting, .. } = partition;
    let shard = match shard_for(shards, (shipment.shard, shipment.term), observer) {
        Ok(shard) => shard,
        Err(held) => return Ok(held.into()),
    };
    let woke = *waiting > 0;
    if !shard.stream.contains(shipment.after) {
        return Ok(Taken { woke, ..Held::Lacks(shard.stream.last).into() });
    }
    for record in &shipment.records {
        if !take_record(shard, journal, shipment, record, now)? {
            return Ok(Taken { woke, ..Held::Lacks(shard.stream.last).into() });
        }
    }
    shard.stream.settled(shipment.everywhere);
    Ok(Taken { held: shard.stream.held(), compact: journal.is_due(), woke })
}

/// Takes a part of an image in; with the last one it becomes the shard. If the storage does not take it, it can be tried
/// again with the same part.
fn take_image(
    partition: &mut Partition,
    (id, term): (ShardId, u64),
    (part, last): (u32, bool),
    batches: &[ByteBuf],
    observer: Option<&dyn Observer>,
) -> Result<Taken, Errno> {
    let Partition { shards, staging, journal, .. } = partition;
    let shard = match shard_for(shards, (id, term), observer) {
        Ok(shard) => shard,
        Err(held) => return Ok(held.into()),
    };
    if part == 0 {
        staging.remove(&id.0);
    }
    let staged = staging.entry(id.0).or_default();
    let is_repeated = last && staged.parts == part + 1;
    if staged.parts != part && !is_repeated {
        return Ok(Held::Lacks(shard.stream.last).into());
    }
    if !is_repeated {
        staged.parts += 1;
        batches.iter().for_each(|batch| staged.bodies.push(batch));
    }
    if !last {
        return Ok(Held::Lacks(shard.stream.last).into());
    }
    let mut new = replace(id, &staged.bodies, journal)?;
    staging.remove(&id.0);
    (new.stream.role, new.stream.term) = (Role::Copy, term);
    *shard = new;
    Ok(Taken { held: shard.stream.held(), compact: journal.is_due(), woke: false })
}

/// The shard, if this sender may change it: it must not be that of an older primary.
fn shard_for<'a>(
    shards: &'a mut BTreeMap<u16, Shard>,
    (id, term): (ShardId, u64),
    observer: Option<&dyn Observer>,
) -> Result<&'a mut Shard, Held> {
    if id.0 >= bivouac_layout::SHARDS {
        return Err(Held::Deposed(u64::MAX));
    }
    let new = || {
        let mut shard = Shard::default();
        shard.stream.role = Role::Copy;
        shard
    };
    let shard = shards.entry(id.0).or_insert_with(new);
    if term < shard.stream.term || !shard.stream.is_shared() {
        return Err(Held::Deposed(shard.stream.term));
    }
    shard.stream.term = term;
    if shard.stream.role == Role::Primary {
        shard.step_down(id, observer);
    }
    Ok(shard)
}

impl Partitions {
    /// Takes records in.
    pub(crate) fn receive(&self, shipment: &Shipment<'_>, now: Time) -> Result<Held, Errno> {
        let number = usize::from(shipment.shard.0) % PARTITIONS;
        let taken = self.with_room(shipment.shard, |partition, observer| {
            take_shipment(partition, shipment, now, observer)
        })?;
        if let Taken { woke: true, .. } = taken {
            self.condvar(number).notify_all();
        }
        self.compact_if(number, taken.compact);
        Ok(taken.held)
    }

    /// Takes in a part of an image.
    pub(crate) fn receive_image(
        &self,
        id: ShardId,
        term: u64,
        (part, last): (u32, bool),
        batches: &[ByteBuf],
    ) -> Result<Held, Errno> {
        let number = usize::from(id.0) % PARTITIONS;
        let taken = self.with_room(id, |partition, observer| {
            take_image(partition, (id, term), (part, last), batches, observer)
        })?;
        self.compact_if(number, taken.compact);
        Ok(taken.held)
    }

    /// Takes something in. On a full storage the log is compacted for it. If the storage cannot take it all the same, this
    /// copy is not relied on any more: nobody waits for it.
    fn with_room(
        &self,
        id: ShardId,
        take: impl Fn(&mut Partition, Option<&dyn Observer>) -> Result<Taken, Errno>,
    ) -> Result<Taken, Errno> {
        let mut guard = self.lock(usize::from(id.0));
        let observer = self.observer.as_deref();
        let mut taken = take(&mut guard, observer);
        if let Err(Errno::NOSPC | Errno::DQUOT) = taken
            && guard.compact_for_room(self.compact_at)
        {
            taken = take(&mut guard, observer);
        }
        drop(guard);
        if let Err(Errno::IO | Errno::NOSPC | Errno::DQUOT) = taken {
            self.gives_up(id);
        }
        taken
    }

    /// Where this server's copy of a shard is, for a server that takes the shard over in this term.
    pub(crate) fn position(&self, id: ShardId, term: u64) -> Held {
        let number = usize::from(id.0) % PARTITIONS;
        let mut guard = self.lock(number);
        let Partition { shards, waiting, .. } = &mut *guard;
        if *waiting > 0 {
            self.condvar(number).notify_all();
        }
        if let (Some(shard), Some(outside)) = (shards.get_mut(&id.0), self.outside.as_deref()) {
            // A server without copies may have been started again since the shard has begun to move.
            shard.follow_map(id, &outside.map(), outside.me(), self.observer.as_deref());
        }
        match shard_for(shards, (id, term), self.observer.as_deref()) {
            Ok(shard) => shard.stream.held(),
            Err(held) => held,
        }
    }
}

/// Takes a record in, unless it is there. Says whether the shard has it then.
pub(crate) fn take_record(
    shard: &mut Shard,
    journal: &mut Journal,
    shipment: &Shipment<'_>,
    record: &[u8],
    now: Time,
) -> Result<bool, Errno> {
    let batch = bivouac_proto::decode::<Batch>(record).map_err(|_| Errno::PROTO)?;
    let (at, last) = (batch.at, shard.stream.last);
    if batch.shard != shipment.shard.0 || at.term > shipment.term || !is_plain(&batch) {
        return Err(Errno::PROTO);
    }
    if at.sequence <= last.sequence {
        return Ok(shard.stream.contains(at));
    }
    if at.sequence != last.sequence + 1 || at.term < last.term {
        return Ok(false);
    }
    if !is_volatile(&batch) {
        // What the primary has done must be done here, too, also with the last space there is.
        journal.write_body(batch.shard, record, true).map_err(|error| error.errno())?;
    }
    shard.stream.advance(at);
    shard.stream.keep(at, record);
    batch.mutations.into_iter().for_each(|change| shard.apply(change));
    if shard.answers_put > 64 + 2 * shard.answers.len() {
        shard.forget_answers(now - ANSWER_AGE);
    }
    Ok(true)
}

/// Whether a batch is one that a primary may send: of changes of a shard only, either all volatile or none.
fn is_plain(batch: &Batch) -> bool {
    let other = |change: &Mutation| {
        matches!(change, Mutation::Staged(_) | Mutation::Replace | Mutation::Starts(_) | Mutation::Leave)
    };
    let volatile = batch.mutations.iter().filter(|change| change.is_volatile()).count();
    (volatile == 0 || volatile == batch.mutations.len())
        && !batch.mutations.iter().any(other)
        && batch.is_sound()
}

fn is_volatile(batch: &Batch) -> bool {
    batch.mutations.first().is_some_and(Mutation::is_volatile)
}

/// Makes a shard of an image, and logs it.
pub(crate) fn replace(id: ShardId, bodies: &Bodies, journal: &mut Journal) -> Result<Shard, Errno> {
    let (mut shard, mut staged, mut first) = (Shard::default(), Bodies::default(), true);
    shard.stream.role = Role::Copy;
    for body in bodies.iter() {
        let mut batch = bivouac_proto::decode::<Batch>(body).map_err(|_| Errno::PROTO)?;
        if batch.shard != id.0 || !is_plain(&batch) {
            return Err(Errno::PROTO);
        }
        if !is_volatile(&batch) {
            batch.mutations.insert(0, Mutation::Staged(first));
            first = false;
            staged.add(&batch);
        }
        if !shard.replay(batch) {
            return Err(Errno::PROTO);
        }
    }
    if first {
        return Err(Errno::PROTO);
    }
    let errno = |error: LogError| error.errno();
    staged.iter().try_for_each(|body| journal.write_body(id.0, body, true)).map_err(errno)?;
    let at = shard.stream.last;
    journal.write(&Batch { shard: id.0, at, mutations: vec![Mutation::Replace] }, true).map_err(errno)?;
    Ok(shard)
}

/// Replays a record of the log that may be a part of an image. `staged`: images that are not complete.
pub(crate) fn replay(
    shards: &mut BTreeMap<u16, Shard>,
    staged: &mut BTreeMap<u16, Shard>,
    batch: Batch,
) -> bool {
    match batch.mutations.first() {
        Some(Mutation::Staged(first)) => {
            if *first {
                staged.remove(&batch.shard);
            }
            staged.entry(batch.shard).or_default().replay(batch)
        }
        Some(Mutation::Replace) => match staged.remove(&batch.shard) {
            Some(shard) => {
                shards.insert(batch.shard, shard);
                true
            }
            None => false,
        },
        Some(Mutation::Leave) => {
            shards.remove(&batch.shard);
            staged.remove(&batch.shard);
            true
        }
        _ => shards.entry(batch.shard).or_default().replay(batch),
    }
}
