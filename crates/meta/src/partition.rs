//! Log partitions: the units of locking and logging.
//!
//! Shard `s` belongs to partition `s % PARTITIONS`. A partition is one mutex over its shards, and one log.
//! Work runs under the lock ([`Partitions::with`]), never blocks on anything but the log while it holds it,
//! and starts over when it had to wait for somebody. No two partitions are ever locked at once. What the caller may
//! learn from it is everywhere before `with` returns ([`crate::shipping`]); without copies it is at once. If a change
//! leaves blocks of removed files behind, the partition tells the keeper as soon as the lock is free:
//! operations need not do that.

use crate::compaction::Compactor;
use crate::copying::{self, Staging};
use crate::draft::Draft;
use crate::error::{LogError, Op, OpenError, Stop};
use crate::grace::Grace;
use crate::inode::Inode;
use crate::journal::{Bodies, Journal};
use crate::keeper::Keeper;
use crate::log::{Identity, Log};
use crate::mutation::{Batch, Mutation, WHOLE_SERVER};
use crate::outside::{Observer, Outside};
use crate::shard::{Opened, Shard};
use crate::shipping::Shipping;
use crate::store::Caller;
use crate::stream::Role;
use bivouac_layout::{Ino, ServerId, ShardId};
use bivouac_node::Boot;
use bivouac_proto::meta::Change;
use bivouac_proto::peer::Position;
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Refusal, Time};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many partitions a server has.
pub(crate) const PARTITIONS: usize = 64;

/// A log is compacted when it is longer than this, bytes, and than twice what the last snapshot took.
pub(crate) const COMPACT_AT: u64 = 1 << 20;

/// After so many removed inodes, memory is given back to the system.
const MUCH: usize = 16 << 10;

/// After so many records that nobody waits for, somebody does, so that they are sent.
const UNSENT: u64 = 128;

/// Answers older than this need not be kept, nanoseconds.
pub(crate) const ANSWER_AGE: Time = 120_000_000_000;

/// What a partition's lock protects.
#[derive(Debug)]
pub(crate) struct Partition {
    pub shards: BTreeMap<u16, Shard>,
    /// How often the server was started: of the first partition only.
    pub starts: u64,
    pub journal: Journal,
    /// The storage has failed to take or to sync records of the log since it was last written anew.
    pub broken: bool,
    /// Images of shards that are arriving.
    pub staging: BTreeMap<u16, Staging>,
    pub waiting: usize,
}

/// A shard with its log, for work under the partition's lock.
pub(crate) struct LockedShard<'a> {
    pub id: ShardId,
    pub shard: &'a mut Shard,
    journal: &'a mut Journal,
    observer: Option<&'a dyn Observer>,
    changed: bool,
    full: bool,
    /// The storage has failed to take a record.
    broken: bool,
    /// Inodes that were removed.
    removed: usize,
    /// Those of them whose blocks have to be removed.
    owed: &'a mut Vec<Ino>,
}

impl LockedShard<'_> {
    /// Logs a draft and then applies it to memory. If this fails, nothing has changed.
    pub(crate) fn commit(&mut self, draft: Draft) -> Op<()> {
        self.commit_counted(draft, true).map(drop)
    }

    /// The same for what no request can see, so that nobody who has read of the shard need read again.
    pub(crate) fn commit_unseen(&mut self, draft: Draft) -> Op<()> {
        self.commit_counted(draft, false).map(drop)
    }

    /// The same for a change that is all that a request does in this shard: who asked hears of it
    /// ([`Change`]).
    pub(crate) fn commit_for(&mut self, caller: &Caller, draft: Draft) -> Op<()> {
        let time = draft.now;
        if let Some(count) = self.commit_counted(draft, true)? {
            caller.change.set(Change { count, time, ..caller.change.get() });
        }
        Ok(())
    }

    /// The number of the change, where there was anything to change and somebody counts.
    fn commit_counted(&mut self, mut draft: Draft, seen: bool) -> Op<Option<u64>> {
        if draft.is_empty() {
            return Ok(None);
        }
        for number in &self.shard.concluded {
            draft.push(Mutation::DropDecision(*number));
        }
        let frees = draft.frees;
        let now = draft.now;
        let batch = draft.finish(self.id, self.shard);
        if self.shard.stream.has_too_few && !batch.mutations.iter().all(Mutation::is_volatile) {
            return Err(Errno::IO.into());
        }
        if batch.mutations.iter().any(|mutation| self.shard.has_answered_as_late(mutation)) {
            // The shard was another server's for a while, which has carried the request out.
            return Err(Refusal::Busy.into());
        }
        self.journal.write(&batch, frees).inspect_err(|error| {
            (self.full, self.broken) = (true, error.is_of_broken_storage());
        })?;
        let count = self.observer.filter(|_| seen).map(|observer| observer.changed(self.id));
        self.shard.concluded.clear();
        let stream = &mut self.shard.stream;
        stream.advance(batch.at);
        stream.awaited = batch.at.sequence;
        if stream.is_shared() {
            stream.keep(batch.at, self.journal.last());
        }
        for mutation in batch.mutations {
            if let Mutation::DropInode(ino) = &mutation {
                self.removed += 1;
                if self.shard.purges.contains_key(ino) {
                    self.owed.push(*ino);
                }
            }
            self.shard.apply(mutation);
        }
        // Amortized: a sweep is paid for by as many answers as it looks at.
        if self.shard.answers_put > 64 + 2 * self.shard.answers.len() {
            self.shard.forget_answers(now - ANSWER_AGE);
        }
        self.changed = true;
        Ok(count)
    }

    /// Makes a volatile change.
    pub(crate) fn keep(&mut self, change: Mutation) {
        self.keep_quietly(change);
        self.changed = true;
        self.shard.stream.awaited = self.shard.stream.last.sequence;
    }

    /// The same for a change that nobody waits for, neither here nor at the copies.
    pub(crate) fn keep_quietly(&mut self, change: Mutation) {
        debug_assert!(change.is_volatile());
        if !self.shard.stream.is_shared() {
            return self.shard.apply(change);
        }
        let stream = &mut self.shard.stream;
        stream.add_volatile(self.id.0, std::slice::from_ref(&change));
        if stream.last.sequence - stream.everywhere > UNSENT {
            stream.awaited = stream.last.sequence;
        }
        self.shard.apply(change);
    }

    /// Wakes those who wait, because something that they may wait for has changed without being logged.
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }
}

/// The record that says how often the server was started. (Such records are not numbered.)
pub(crate) fn whole_server(starts: u64) -> Batch {
    Batch { shard: WHOLE_SERVER, at: Position::default(), mutations: vec![Mutation::Starts(starts)] }
}

/// All logs of a server, replayed and not in use yet.
#[derive(Debug)]
pub(crate) struct Logs(Vec<Partition>);

impl Logs {
    /// Replays all logs in `dir`.
    pub(crate) fn replay(dir: &Path, deployment: u64) -> Result<Logs, OpenError> {
        let boot = Boot::current();
        let replay = |number| Partition::replay(dir, Identity { deployment, partition: number }, boot);
        (0..PARTITIONS as u32).map(replay).collect::<Result<_, _>>().map(Logs)
    }
}

impl Partition {
    fn replay(dir: &Path, identity: Identity, boot: Option<Boot>) -> Result<Partition, OpenError> {
        let path = dir.join(format!("partition-{:02}.log", identity.partition));
        let mut shards: BTreeMap<u16, Shard> = BTreeMap::new();
        let (mut starts, mut staged) = (0, BTreeMap::new());
        let log = Log::open(&path, identity, boot, |body| {
            let Ok(batch) = bivouac_proto::decode::<Batch>(body) else {
                return false;
            };
            if batch.shard == WHOLE_SERVER {
                for mutation in batch.mutations {
                    if let Mutation::Starts(count) = mutation {
                        starts = count;
                    }
                }
            } else {
                return copying::replay(&mut shards, &mut staged, batch);
            }
            true
        })?;
        Ok(Partition {
            shards,
            starts,
            journal: Journal::new(log, COMPACT_AT),
            broken: false,
            staging: BTreeMap::new(),
            waiting: 0,
        })
    }
}

/// All partitions of a server.
pub(crate) struct Partitions {
    partitions: Vec<(Mutex<Partition>, Condvar)>,
    /// Longest wait for another operation before [`Refusal::Busy`].
    patience: Duration,
    /// Hears of changes.
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Inodes that were removed since their memory was last given back.
    removed: AtomicUsize,
    /// Hears of blocks that are to be removed.
    keeper: Arc<Keeper>,
    /// At which length logs are compacted that were short after their last snapshot, bytes.
    pub(crate) compact_at: u64,
    pub(crate) compactor: Compactor,
    /// Whether the compactor's thread runs. Without it, requests that make a log too long compact it when they are
    /// done.
    pub(crate) compacts_later: bool,
    /// The other servers, to which the shards' copies are.
    pub(crate) outside: Option<Arc<dyn Outside>>,
    pub(crate) shipping: Shipping,
    /// Whether shards have copies.
    pub(crate) shared: bool,
    /// How many shards that were handed over may have decisions that not everybody has heard of.
    pub(crate) resuming: AtomicUsize,
}

/// What is left to be done when a partition is unlocked again.
#[derive(Default)]
struct After {
    /// Removed files whose blocks have to be removed.
    owed: Vec<Ino>,
    /// The log has become long.
    compact: bool,
    /// The storage has failed to take a record.
    broken: bool,
    /// The reply may tell of records up to this one, and not all of them are everywhere yet.
    ticket: Option<Position>,
}

impl Partitions {
    /// Takes replayed logs into use. `compact_at`: see [`COMPACT_AT`], which is the default. `is_sole`: nobody
    /// else has anything of a shard. Others are answered for when they were taken over.
    pub(crate) fn new(
        logs: Logs,
        patience: Duration,
        grace: Arc<Grace>,
        compact_at: Option<u64>,
        is_sole: &dyn Fn(ShardId) -> bool,
        keeper: Arc<Keeper>,
    ) -> Partitions {
        let compact_at = compact_at.unwrap_or(COMPACT_AT);
        let in_use = |mut partition: Partition| {
            for (id, shard) in &mut partition.shards {
                match is_sole(ShardId(*id)) {
                    false => {
                        let stream = &mut shard.stream;
                        (stream.role, stream.everywhere, stream.restarted) = (Role::Copy, 0, true);
                    }
                    true => {
                        // Others may have had copies while it moved: its records go on in the last term.
                        shard.stream.reign = shard.stream.last.term;
                        shard.forgot_locks = true;
                        revive(shard, &grace);
                    }
                }
            }
            partition.journal.compact_at = compact_at.max(partition.journal.log.len());
            (Mutex::new(partition), Condvar::new())
        };
        let partitions = logs.0.into_iter().map(in_use).collect();
        let (observer, removed, compactor) = (None, AtomicUsize::new(0), Compactor::default());
        let (compacts_later, outside, shipping) = (false, None, Shipping::default());
        Partitions {
            partitions,
            patience,
            observer,
            removed,
            keeper,
            compact_at,
            compactor,
            compacts_later,
            outside,
            shipping,
            shared: false,
            resuming: AtomicUsize::new(0),
        }
    }

    /// Whether so much was removed that memory should be given back; says so only once.
    pub(crate) fn removed_much(&self) -> bool {
        self.removed.load(Ordering::Relaxed) >= MUCH && self.removed.swap(0, Ordering::Relaxed) >= MUCH
    }

    pub(crate) fn lock(&self, number: usize) -> MutexGuard<'_, Partition> {
        // A panic under the lock is a bug elsewhere; the state is as the log says all the same.
        self.partitions[number % PARTITIONS].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where those wait who need something that another operation holds.
    pub(crate) fn condvar(&self, number: usize) -> &Condvar {
        &self.partitions[number % PARTITIONS].1
    }

    /// Runs `work` on a shard that this server holds. When it has to wait it is run again after every change,
    /// and given up with [`Refusal::Busy`] after a while.
    pub(crate) fn with<T>(
        &self,
        id: ShardId,
        work: impl FnMut(&mut LockedShard<'_>) -> Op<T>,
    ) -> Result<T, Failure> {
        self.with_patience(id, self.patience, work)
    }

    /// Like [`Partitions::with`], with another bound on the wait.
    pub(crate) fn with_patience<T>(
        &self,
        id: ShardId,
        patience: Duration,
        work: impl FnMut(&mut LockedShard<'_>) -> Op<T>,
    ) -> Result<T, Failure> {
        let mut after = After::default();
        let result = self.locked(id, patience, &mut after, work);
        after.owed.into_iter().for_each(|ino| self.keeper.purge(ino));
        self.compact_if(id.0 as usize % PARTITIONS, after.compact);
        if after.broken && result.is_err() && self.gives_up(id) {
            return Err(Refusal::OldServer.into());
        }
        if let Some(ticket) = after.ticket {
            self.settle(id, ticket)?;
        }
        result
    }

    /// Compacts a log, if it is due.
    pub(crate) fn compact_if(&self, number: usize, due: bool) {
        match self.compacts_later {
            _ if !due => {}
            true => self.compactor.add(number),
            false => self.compact(number),
        }
    }

    /// Why this server does not answer for a shard.
    fn not_served(&self, id: ShardId) -> Failure {
        match self.outside.as_deref() {
            // It will in a moment.
            Some(outside) if outside.map().primary(id) == outside.me() => Refusal::OldServer.into(),
            // Another one does; whoever asks looks at the map again.
            Some(_) => Refusal::Busy.into(),
            _ => Errno::IO.into(),
        }
    }

    fn locked<T>(
        &self,
        id: ShardId,
        patience: Duration,
        after: &mut After,
        mut work: impl FnMut(&mut LockedShard<'_>) -> Op<T>,
    ) -> Result<T, Failure> {
        let number = id.0 as usize % PARTITIONS;
        let condvar = self.condvar(number);
        let mut guard = self.lock(number);
        let mut deadline: Option<Instant> = None;
        let mut made_room = false;
        loop {
            let partition = &mut *guard;
            let shard = match partition.shards.get_mut(&id.0) {
                Some(shard) if shard.stream.serves() => shard,
                _ => return Err(self.not_served(id)),
            };
            let mut locked = LockedShard {
                id,
                shard,
                journal: &mut partition.journal,
                observer: self.observer.as_deref(),
                changed: false,
                full: false,
                broken: false,
                removed: 0,
                owed: &mut after.owed,
            };
            let result = work(&mut locked);
            let full = locked.full;
            after.broken = locked.broken;
            let stream = &locked.shard.stream;
            after.ticket = (stream.awaited > stream.everywhere)
                .then_some(Position { term: stream.reign, sequence: stream.awaited });
            if locked.removed > 0 {
                self.removed.fetch_add(locked.removed, Ordering::Relaxed);
            }
            if locked.changed {
                if partition.waiting > 0 {
                    condvar.notify_all();
                }
                after.compact |= partition.journal.is_due();
            }
            match result {
                Ok(value) => return Ok(value),
                // Nothing durable was changed, and work can be run again from the start.
                Err(Stop::Fail(_)) if full && !made_room && partition.compact_for_room(self.compact_at) => {
                    made_room = true;
                    continue;
                }
                Err(Stop::Fail(failure)) => return Err(failure),
                Err(Stop::Wait) => {}
            }
            let now = Instant::now();
            let until = *deadline.get_or_insert(now + patience);
            if now >= until || self.compactor.is_stopped() {
                return Err(Refusal::Busy.into());
            }
            guard.waiting += 1;
            guard = condvar.wait_timeout(guard, until - now).unwrap_or_else(PoisonError::into_inner).0;
            guard.waiting -= 1;
        }
    }

    /// From now on nothing waits for other operations.
    pub(crate) fn stop_waiting(&self) {
        self.compactor.stop();
        for number in 0..PARTITIONS {
            // Who has found that it has to wait does by now, and hears of it.
            drop(self.lock(number));
            self.condvar(number).notify_all();
        }
    }

    /// The shards that this server holds.
    pub(crate) fn shards(&self) -> Vec<ShardId> {
        (0..PARTITIONS)
            .flat_map(|n| self.lock(n).shards.keys().map(|s| ShardId(*s)).collect::<Vec<_>>())
            .collect()
    }

    /// Whether this server answers for a shard.
    pub(crate) fn serves(&self, id: ShardId) -> bool {
        self.lock(id.0 as usize).shards.get(&id.0).is_some_and(|shard| shard.stream.serves())
    }

    /// A shard's newest record, and the term in which this server became its primary.
    pub(crate) fn newest(&self, id: ShardId) -> Position {
        let newest =
            |shard: &Shard| Position { term: shard.stream.reign, sequence: shard.stream.last.sequence };
        self.lock(id.0 as usize).shards.get(&id.0).map_or(Position::default(), newest)
    }

    /// Changes what is only in memory of a shard, whatever this server is for it.
    pub(crate) fn change(&self, id: ShardId, change: impl FnOnce(&mut Shard)) {
        if let Some(shard) = self.lock(id.0 as usize).shards.get_mut(&id.0) {
            change(shard);
        }
    }

    /// Notes that a shard has news for its copies.
    pub(crate) fn note_news(&self, id: ShardId) {
        let servers: Vec<ServerId> = match self.lock(id.0 as usize).shards.get(&id.0) {
            Some(shard) => shard.stream.followers.iter().map(|follower| follower.server).collect(),
            None => Vec::new(),
        };
        self.shipping.note(id, &servers);
    }

    /// Looks at every shard that this server answers for, one partition at a time.
    pub(crate) fn each(&self, mut look: impl FnMut(ShardId, &Shard)) {
        for number in 0..PARTITIONS {
            for (id, shard) in self.lock(number).shards.iter().filter(|(_, shard)| shard.stream.serves()) {
                look(ShardId(*id), shard);
            }
        }
    }

    /// Changes what is only in memory of all shards, copies included.
    pub(crate) fn each_mut(&self, mut change: impl FnMut(ShardId, &mut Shard)) {
        for number in 0..PARTITIONS {
            let mut guard = self.lock(number);
            guard.shards.iter_mut().for_each(|(id, shard)| change(ShardId(*id), shard));
            if guard.waiting > 0 {
                self.condvar(number).notify_all();
            }
        }
    }

    /// A shard's complete image, as another server gets it. Answers from before `horizon` are left out.
    pub(crate) fn image(&self, id: ShardId, horizon: Time) -> Option<Bodies> {
        let guard = self.lock(id.0 as usize);
        let shard = guard.shards.get(&id.0)?;
        let mut bodies = Bodies::default();
        shard.snapshot(id.0, horizon).chain(shard.volatile(id.0)).for_each(|batch| bodies.add(&batch));
        Some(bodies)
    }

    /// Takes charge of an empty shard. One that is held already stays as it is. `term`: of a shard that has
    /// copies, which is to be taken over then.
    pub(crate) fn adopt(&self, id: ShardId, term: Option<u64>) -> Result<(), LogError> {
        let mut guard = self.lock(id.0 as usize);
        let partition = &mut *guard;
        if partition.shards.contains_key(&id.0) {
            return Ok(());
        }
        let mut shard = Shard::default();
        let at = Position { term: term.unwrap_or(0), sequence: 1 };
        let batch = Batch { shard: id.0, at, mutations: vec![Mutation::Adopt] };
        partition.journal.write(&batch, false)?;
        if term.is_some() {
            shard.stream.role = Role::Copy;
            shard.stream.keep(at, partition.journal.last());
        }
        shard.stream.advance(at);
        partition.shards.insert(id.0, shard);
        Ok(())
    }

    /// Drops the answers to requests that are too old to be repeated.
    pub(crate) fn forget_answers(&self, now: Time) {
        for number in 0..PARTITIONS {
            self.lock(number).shards.values_mut().for_each(|shard| shard.forget_answers(now - ANSWER_AGE));
        }
    }

    /// Counts a start of the server, durably; returns how many there were with this one.
    pub(crate) fn count_start(&self) -> Result<u64, LogError> {
        let mut guard = self.lock(0);
        let partition = &mut *guard;
        let starts = partition.starts + 1;
        let batch = whole_server(starts);
        partition.journal.write(&batch, true)?;
        partition.starts = starts;
        Ok(starts)
    }

    /// Puts the log of a shard on stable storage, without keeping its users out meanwhile.
    pub(crate) fn sync(&self, id: ShardId) -> Result<(), LogError> {
        let number = id.0 as usize;
        let mut guard = self.lock(number);
        while guard.journal.rewriting.as_ref().is_some_and(|rewriting| rewriting.switching) {
            guard.waiting += 1;
            guard = self.condvar(number).wait(guard).unwrap_or_else(PoisonError::into_inner);
            guard.waiting -= 1;
        }
        let to_sync = guard.journal.log.to_sync();
        drop(guard);
        to_sync.sync()?;
        self.lock(number).journal.log.synced(&to_sync);
        Ok(())
    }

    /// Puts all logs on stable storage.
    pub(crate) fn sync_all(&self) -> Result<(), LogError> {
        (0..PARTITIONS).try_for_each(|n| self.sync(ShardId(n as u16)))
    }

    /// Bytes in all logs.
    pub(crate) fn log_bytes(&self) -> u64 {
        (0..PARTITIONS).map(|n| self.lock(n).journal.log.len()).sum()
    }
}

/// After a replay: what follows from the durable state.
pub(crate) fn revive(shard: &mut Shard, grace: &Arc<Grace>) {
    shard.grace = Some(Arc::clone(grace));
    shard.unlocked = HashMap::new();
    shard.next_intent = shard.intent_limit;
    let truncating = |inode: &Inode| inode.as_blocks().is_some_and(|blocks| blocks.truncating.is_some());
    let unfinished = shard.inodes.unpacked().filter(|(_, inode)| truncating(inode)).map(|(ino, _)| ino);
    for ino in unfinished.collect::<Vec<_>>() {
        shard.live.entry(ino).or_default().restoring = true;
    }
    for (ino, holders) in &shard.orphans {
        // What they may do is forgotten; that they hold the inode, if they still live, is what matters.
        shard.revived.extend(holders.iter().map(|id| (*ino, *id)));
        let opens = &mut shard.live.entry(*ino).or_default().opens;
        for id in holders {
            if opens.iter().any(|open| open.id == *id) {
                shard.revived.remove(&(*ino, *id));
            } else {
                opens.push(Opened { id: *id, write: true, append: false });
            }
        }
    }
    shard.untold = shard.decisions.clone();
    let ids: Vec<_> = shard.intents.keys().copied().collect();
    for id in ids {
        shard.hold_keys(id);
    }
}

#[cfg(test)]
pub(crate) mod tests;
