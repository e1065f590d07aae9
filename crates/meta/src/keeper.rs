//! The keeper: work in the background. It removes the blocks of removed files, splits directories, and
//! finishes what a crash or a server that did not answer has left unfinished.
//!
//! Everything in its queues also follows from the log: after a restart the queues are filled from it again.
//! There are two, each with a thread ([`Of`]): what is done with data servers may wait for one that hangs or fails, and
//! what programs wait for must not wait for that. A thread sleeps without a time limit when there is nothing to do.

use crate::draft::{Draft, wants_split};
use crate::grace::Grace;
use crate::inode::Spread;
use crate::mutation::Mutation;
use crate::partition::LockedShard;
use crate::steps::Begun;
use crate::store::{Core, lock};
use bivouac_layout::{Epoch, Ino, NodeId, ServerId, ShardId};
use bivouac_proto::data::{DataReply, DataRequest};
use bivouac_proto::peer::{IntentId, PeerReply, PeerRequest};
use bivouac_proto::{Errno, Reply};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two tries of what did not work.
const RETRY: Duration = Duration::from_millis(500);

/// What is to be done.
#[derive(Debug, Default, Clone)]
struct Work {
    splits: BTreeSet<Ino>,
    purges: BTreeSet<Ino>,
    settles: BTreeSet<Ino>,
    truncations: BTreeSet<Ino>,
    announcements: BTreeSet<Ino>,
    restripes: BTreeSet<Ino>,
    /// When the grace time is over, files without links that nobody has open have to be looked for. Files
    /// that are unlinked during the grace time stay until then, too.
    orphans_unknown: bool,
    /// There may be unfinished intents.
    intents: bool,
    /// Shards could not be taken over yet.
    unserved: bool,
    /// Memory of removed inodes can be given back.
    memory: bool,
    stop: bool,
}

impl Work {
    fn has_tasks(&self) -> bool {
        let idle = [&self.splits, &self.purges, &self.truncations, &self.announcements].map(|q| q.is_empty());
        self.memory || idle.contains(&false)
    }

    fn has_leftovers(&self) -> bool {
        let waits = [&self.settles, &self.restripes].iter().any(|queue| !queue.is_empty());
        self.intents || self.unserved || waits || self.orphans_unknown
    }
}

/// Which tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    /// Those about names and shards: intents, which hold what programs wait for; taking over; splits; announcements.
    Names,
    /// Those about blocks, which ask data servers: truncations, sizes, removed files.
    Blocks,
}

/// A queue. Its mutex is held only for moments, and never taken while another lock is held.
#[derive(Debug, Default)]
struct Queue {
    work: Mutex<Work>,
    wake: Condvar,
    /// One pass at a time.
    pass: Mutex<()>,
}

impl Queue {
    fn add(&self, change: impl FnOnce(&mut Work) -> bool) {
        if change(&mut lock(&self.work)) {
            self.wake.notify_one();
        }
    }
}

/// The queues.
#[derive(Debug)]
pub(crate) struct Keeper {
    names: Queue,
    blocks: Queue,
    /// The times in which agents may register opens again: of the start, and of shards that were taken over since,
    /// each with the term. Locked only for moments.
    pub graces: Mutex<Vec<(u64, Arc<Grace>)>>,
}

impl Keeper {
    pub(crate) fn new(grace: Arc<Grace>) -> Keeper {
        let (names, blocks) = Default::default();
        Keeper { names, blocks, graces: Mutex::new(vec![(0, grace)]) }
    }

    fn queue(&self, of: Of) -> &Queue {
        match of {
            Of::Names => &self.names,
            Of::Blocks => &self.blocks,
        }
    }

    /// A file was removed; its blocks have to be.
    pub(crate) fn purge(&self, ino: Ino) {
        self.blocks.add(|work| work.purges.insert(ino));
    }

    /// A directory has grown.
    pub(crate) fn split(&self, dir: Ino) {
        self.names.add(|work| work.splits.insert(dir));
    }

    /// Others could not be told of a directory's change.
    pub(crate) fn announce(&self, dir: Ino) {
        self.names.add(|work| work.announcements.insert(dir));
    }

    /// It is known now who holds files without links.
    pub(crate) fn orphans(&self) {
        self.blocks.add(|work| !std::mem::replace(&mut work.orphans_unknown, true));
    }

    /// A truncation is unfinished.
    pub(crate) fn truncation(&self, ino: Ino) {
        self.blocks.add(|work| work.truncations.insert(ino));
    }

    /// A step of a file's restriping was begun and has not ended.
    pub(crate) fn restripe(&self, ino: Ino) {
        self.blocks.add(|work| work.restripes.insert(ino));
    }

    /// A file's size could not be found out.
    pub(crate) fn settle(&self, ino: Ino) {
        self.blocks.add(|work| work.settles.insert(ino));
    }

    /// An intent was prepared here; if its coordinator dies, somebody has to ask for the outcome.
    pub(crate) fn watch(&self) {
        self.names.add(|work| !std::mem::replace(&mut work.intents, true));
    }

    /// Much was removed: give the memory back to the system.
    pub(crate) fn give_back(&self) {
        self.blocks.add(|work| !std::mem::replace(&mut work.memory, true));
    }

    pub(crate) fn stop(&self) {
        [&self.names, &self.blocks]
            .into_iter()
            .for_each(|queue| queue.add(|work| !std::mem::replace(&mut work.stop, true)));
    }

    /// Queues work again that was not done.
    fn take_back(&self, left: Work) {
        let mut queued = lock(&self.names.work);
        queued.intents |= left.intents;
        queued.unserved |= left.unserved;
        queued.announcements.extend(left.announcements);
        queued.splits.extend(left.splits);
        drop(queued);
        let mut queued = lock(&self.blocks.work);
        queued.truncations.extend(left.truncations);
        queued.settles.extend(left.settles);
        queued.restripes.extend(left.restripes);
        queued.orphans_unknown |= left.orphans_unknown;
        queued.purges.extend(left.purges);
    }

    /// The work with the intents that were found meanwhile.
    fn with_news(&self, work: Work) -> Work {
        let found = std::mem::take(&mut lock(&self.names.work).intents);
        Work { intents: work.intents | found, ..work }
    }

    /// A node's agent has reported everything by the map of this epoch: not of shards that this server has taken over by
    /// later ones. Whether it was the last one.
    pub(crate) fn reported(&self, node: NodeId, epoch: Epoch) -> bool {
        let graces = lock(&self.graces);
        let concerned = graces.iter().filter(|(term, _)| *term <= epoch.0);
        // Each is told, so no short cut.
        concerned.fold(false, |last, (_, grace)| grace.reported(node) | last)
    }

    fn in_grace(&self) -> bool {
        lock(&self.graces).iter().any(|(_, grace)| !grace.is_over())
    }
}

impl Core {
    /// Fills the queues with what is unfinished according to the logs.
    pub(crate) fn find_work(&self) {
        let mut work = self.work_of(|_| true);
        work.orphans_unknown = true;
        if !work.intents {
            self.resumption.finish();
        }
        self.keeper.take_back(work);
    }

    /// The same for shards that were taken over.
    pub(crate) fn find_work_of(&self, shards: &[ShardId]) {
        if shards.is_empty() {
            return;
        }
        let mut work = self.work_of(|id| shards.binary_search(&id).is_ok());
        work.orphans_unknown = true;
        self.keeper.take_back(work);
        self.keeper.names.wake.notify_one();
        self.keeper.blocks.wake.notify_one();
    }

    fn work_of(&self, concerns: impl Fn(ShardId) -> bool) -> Work {
        let mut work = Work::default();
        self.partitions.each(|id, shard| {
            if !concerns(id) {
                return;
            }
            work.purges.extend(shard.purges.keys());
            work.restripes.extend(shard.restripes.keys());
            work.announcements.extend(shard.announcements.keys());
            work.intents |= !shard.intents.is_empty() || !shard.untold.is_empty();
            for (ino, inode) in shard.inodes.unpacked() {
                match inode.as_blocks() {
                    Some(blocks) if blocks.truncating.is_some() => drop(work.truncations.insert(ino)),
                    Some(blocks) if !blocks.settled => drop(work.settles.insert(ino)),
                    _ => {}
                }
                let splitting = inode.as_directory().is_some_and(|d| d.state == Spread::Splitting);
                if splitting || wants_split(inode) {
                    work.splits.insert(ino);
                }
            }
        });
        work
    }

    /// Does what is due until the store is closed.
    pub(crate) fn keep_always(&self, of: Of) {
        let queue = self.keeper.queue(of);
        // The first pass begins at once: clients wait for it. (Requests to servers that are still starting are
        // repeated.)
        let mut rest = false;
        loop {
            let mut work = lock(&queue.work);
            // After a failure, new tasks wait, too, so that tasks for a server that is down are tried only
            // now and then.
            let until = Instant::now() + RETRY;
            while rest && !work.stop {
                let Some(left) = until.checked_duration_since(Instant::now()) else {
                    break;
                };
                work = queue.wake.wait_timeout(work, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            while !work.stop && !work.has_tasks() {
                if work.has_leftovers() {
                    let waited = queue.wake.wait_timeout(work, RETRY).unwrap_or_else(PoisonError::into_inner);
                    work = waited.0;
                    if waited.1.timed_out() {
                        break;
                    }
                } else {
                    work = queue.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
                }
            }
            if work.stop {
                return;
            }
            drop(work);
            rest = !match of {
                Of::Names => self.keep_names(),
                Of::Blocks => self.keep_blocks(),
            };
        }
    }

    /// Does what is due, once. Says whether nothing failed.
    pub(crate) fn keep(&self) -> bool {
        self.keep_names() & self.keep_blocks()
    }

    fn keep_names(&self) -> bool {
        let _one_at_a_time = lock(&self.keeper.names.pass);
        let work = {
            let mut queued = lock(&self.keeper.names.work);
            let later = Work { stop: queued.stop, ..Work::default() };
            std::mem::replace(&mut *queued, later)
        };
        let mut failed = Work { unserved: !self.follow(), ..Work::default() };
        // What was taken over just now may have left intents, which clients wait for.
        let work = self.keeper.with_news(work);
        if work.intents {
            failed.intents = !self.resolve_intents();
        }
        failed.announcements =
            work.announcements.into_iter().filter(|dir| self.try_announce(*dir).is_err()).collect();
        failed.splits = work.splits.into_iter().filter(|dir| self.split_directory(*dir).is_err()).collect();
        self.keep_what_failed(failed)
    }

    fn keep_blocks(&self) -> bool {
        let _one_at_a_time = lock(&self.keeper.blocks.pass);
        let in_grace = self.keeper.in_grace();
        let work = {
            let mut queued = lock(&self.keeper.blocks.work);
            let later = Work {
                settles: if in_grace { std::mem::take(&mut queued.settles) } else { BTreeSet::new() },
                orphans_unknown: in_grace && queued.orphans_unknown,
                stop: queued.stop,
                ..Work::default()
            };
            std::mem::replace(&mut *queued, later)
        };
        let truncations = work.truncations.into_iter().filter(|ino| self.finish_truncation(*ino).is_err());
        let truncations = truncations.collect();
        // Before sizes, which wait for these.
        let restripes = work.restripes.into_iter().filter(|ino| self.end_step(*ino).is_err()).collect();
        let settles = work.settles.into_iter().filter(|ino| self.settle(*ino).is_err()).collect();
        let mut failed = Work { truncations, restripes, settles, ..Work::default() };
        if work.orphans_unknown && !in_grace {
            failed.orphans_unknown = !self.reap_orphans();
        }
        if work.memory {
            // Answers that are kept for repeated requests lie scattered over the pages, and each would keep
            // its page from being given back.
            self.partitions.forget_answers(self.outside.now());
            give_memory_back();
        }
        failed.purges = work.purges.into_iter().filter(|ino| !self.purge(*ino)).collect();
        self.keep_what_failed(failed)
    }

    /// It is tried again. Says whether that is nothing.
    fn keep_what_failed(&self, failed: Work) -> bool {
        let well = !failed.has_tasks() && !failed.has_leftovers();
        self.keeper.take_back(failed);
        well
    }

    /// Removes inodes without links whose opens no agent has registered again. Says whether all of them are
    /// removed.
    fn reap_orphans(&self) -> bool {
        let mut found = Vec::new();
        let mut unclaimed = Vec::new();
        self.partitions.each_mut(|id, shard| {
            if shard.grace.as_ref().is_some_and(|grace| grace.all_have_reported()) {
                shard.forget_revived();
                let told = std::mem::take(&mut shard.unconfirmed);
                unclaimed.extend(told.into_iter().map(|(ino, open)| (id, ino, open)));
            }
        });
        for (id, ino, open) in unclaimed {
            let _ = self.partitions.with(id, |locked| {
                locked.keep(Mutation::DropOpen(ino, open));
                locked.shard.rest(ino);
                Ok(())
            });
        }
        self.partitions.each(|_, shard| {
            let unused = |ino: &&Ino| !shard.in_use(**ino);
            found.extend(shard.orphans.keys().filter(unused).copied());
        });
        let left: Vec<Ino> = found.into_iter().filter(|ino| !self.reap_orphan(*ino)).collect();
        left.is_empty()
    }

    fn reap_orphan(&self, ino: Ino) -> bool {
        let now = self.outside.now();
        let map = self.outside.map();
        self.partitions.with(ino.shard(), |locked| crate::opens::reap(locked, &map, ino, now)).is_ok()
    }

    /// Removes the blocks of a removed file, or what an interrupted spilling has left. Says whether none is left.
    fn purge(&self, ino: Ino) -> bool {
        let now = self.outside.now();
        // A file whose inline data is just being moved to blocks still exists.
        let is_busy = |locked: &mut LockedShard<'_>| Ok(locked.shard.live.get(&ino).is_some_and(|l| l.busy));
        match self.partitions.with(ino.shard(), is_busy) {
            Ok(false) => {}
            busy => return busy.is_ok(),
        }
        let purged = self.in_steps(
            ino,
            |locked| match locked.shard.purges.get(&ino) {
                Some(servers) => Ok(Begun::Work(servers.clone())),
                None => Ok(Begun::Done(true)),
            },
            |servers: &Vec<ServerId>, stance| {
                let removals: Vec<_> =
                    servers.iter().map(|server| (*server, DataRequest::Remove { ino })).collect();
                let answers = self.outside.data_each(Some(stance.standing), 0, &removals);
                let map = self.outside.map();
                // What a server holds that was given up, or has left, is nobody's any more.
                let is_left = |(server, answer): &(&ServerId, Result<DataReply, Errno>)| {
                    answer.is_err() && map.server(**server).is_some() && !map.is_given_up(**server)
                };
                servers.iter().zip(answers).filter(is_left).map(|(server, _)| *server).collect()
            },
            |locked, _, left: &Vec<ServerId>| {
                let mut draft = Draft::freeing(now);
                match left.is_empty() {
                    true => draft.push(Mutation::DropPurge(ino)),
                    false => draft.push(Mutation::PutPurge(ino, left.clone())),
                }
                locked.commit_unseen(draft)?;
                if locked.shard.inodes.get(ino).is_some() {
                    // Who wants to move the file's data out of its inode waits for this, and need not while the
                    // server is away.
                    locked.shard.live.entry(ino).or_default().stuck = !left.is_empty();
                }
                locked.shard.rest(ino);
                Ok(left.is_empty())
            },
        );
        purged.unwrap_or(false)
    }

    /// Tells participants of decisions again, and asks coordinators for the outcome of old promises. Says
    /// whether none is left.
    fn resolve_intents(&self) -> bool {
        let mut decided: Vec<(IntentId, Vec<ShardId>)> = Vec::new();
        let mut promised: Vec<(IntentId, ShardId)> = Vec::new();
        let mut young = false;
        self.partitions.each(|id, shard| {
            let decisions = shard.untold.iter().filter(|(number, _)| !shard.active.contains(number));
            decided.extend(
                decisions.map(|(number, untold)| (IntentId { shard: id, number: *number }, untold.clone())),
            );
            for (intent, prepared) in shard.intents.iter().filter(|(_, p)| !p.own) {
                match prepared.since {
                    Some(since) if since.elapsed() < self.intent_age => young = true,
                    _ => promised.push((*intent, id)),
                }
            }
        });
        let mut left = false;
        for (id, untold) in decided {
            // What is told of must not be lost with this server.
            left |= self.partitions.with(id.shard, |_| Ok(())).is_err() || !self.tell_commit(id, &untold);
        }
        promised.sort();
        for shards in promised.chunk_by(|a, b| a.0 == b.0) {
            let Some((intent, _)) = shards.first().copied() else { continue };
            let Ok(Reply::Peer(PeerReply::Outcome { committed })) =
                self.ask_shard(intent.shard, &PeerRequest::Outcome { intent })
            else {
                left = true;
                continue;
            };
            for (_, shard) in shards {
                let concluded =
                    if committed { self.commit(*shard, intent) } else { self.abort(*shard, intent) };
                left |= concluded.is_err();
            }
        }
        if !left {
            // Intents that are too young to be asked about were begun since the start.
            self.resumption.finish();
        }
        !left && !young
    }
}

/// Gives pages without any allocation back to the system. (The allocator by itself keeps them.)
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, by any thread; it only looks at free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}
