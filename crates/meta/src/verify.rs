//! Checking the metadata that is stored, while it is used (`bivouac verify`).
//!
//! - *Logs*: a server reads its logs again, record by record, with their checksums. What it serves is in its memory, so
//!   a log that is damaged is written anew from there, as by a compaction. The mark beside it likewise.
//! - *Copies*: the primary of a shard compares its records with those of each copy in step. Records are hashed one by
//!   one, and the hashes summed up, so the order does not matter. Only states at the same position of the shard's
//!   stream can be compared; a shard that changes is tried again. A copy that differs gets an image.
//!
//! Answers to requests are left out: servers forget them at different times. So is what lives only in memory.

use crate::mutation::Mutation;
use crate::outside::Outside;
use crate::partition::{PARTITIONS, Partitions};
use crate::shard::Shard;
use crate::store::{Core, MetaStore};
use crate::stream::Role;
use bivouac_layout::{FileLayout, Ino, ServerId, ShardId};
use bivouac_proto::peer::{Compared, PeerReply, PeerRequest};
use bivouac_proto::status::Failure;
use bivouac_proto::verify::{Name, Outcome};
use bivouac_proto::{Errno, Reply, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::time::{Duration, Instant};

/// Most files in one answer.
const FILES: usize = 1000;
/// How often the copies of a shard that changes are compared again.
const TRIES: u32 = 20;
/// Time between two tries, at first.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a log that is written anew is waited for.
const REWRITING: Duration = Duration::from_secs(20);

/// A file in blocks, as its inode describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredFile {
    /// Its number.
    pub ino: Ino,
    /// Where its blocks are.
    pub layout: FileLayout,
    /// Its size, bytes, if nobody writes or truncates it.
    pub size: Option<u64>,
}

/// What became of comparing shards with their copies.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardsCompared {
    /// So many copies were compared.
    pub compared: u64,
    /// So many could not be, because they changed all the time or did not answer.
    pub skipped: u64,
    /// Copies that differ.
    pub differ: Vec<(ShardId, ServerId, Outcome)>,
}

impl MetaStore {
    /// How many logs there are.
    pub fn logs(&self) -> u32 {
        PARTITIONS as u32
    }

    /// Reads a log again, and its mark. How many bytes that were, and what was found, if anything was. With `repairs`
    /// a damaged one is written anew.
    pub fn check_log(&self, number: u32, repairs: bool) -> (u64, Option<Outcome>) {
        let partitions = &self.core.partitions;
        let number = number as usize % PARTITIONS;
        let (length, damaged) = partitions.find_damage(number);
        match damaged {
            None => (length, None),
            Some(_) if !repairs => (length, Some(Outcome::Seen)),
            Some(revision) => {
                let is_whole =
                    partitions.rewrite(number, revision) && partitions.find_damage(number).1.is_none();
                (length, Some(if is_whole { Outcome::Repaired } else { Outcome::Damaged }))
            }
        }
    }

    /// Compares shards of which this server is the primary with their copies.
    pub fn compare_copies(&self, shards: &[ShardId], repairs: bool) -> ShardsCompared {
        self.core.compare_copies(shards, repairs)
    }

    /// The files in blocks of a shard that this server answers for, in the order of their numbers, behind this one.
    pub fn stored_files(&self, shard: ShardId, after: Ino) -> Result<Vec<StoredFile>, Failure> {
        self.core.partitions.with(shard, |locked| {
            let shard = &*locked.shard;
            let mut found = Vec::new();
            for (ino, inode) in shard.inodes.iter().filter(|(ino, _)| *ino > after) {
                let Some(blocks) = inode.as_blocks() else { continue };
                let is_in_use = shard.live.get(&ino).is_some_and(|live| live.busy || live.has_writer());
                let is_exact = blocks.settled && blocks.truncating.is_none() && !is_in_use;
                let size = is_exact.then_some(inode.size);
                found.push(StoredFile { ino, layout: blocks.layout.clone(), size });
            }
            found.sort_unstable_by_key(|file| file.ino);
            found.truncate(FILES);
            Ok(found)
        })
    }

    /// The names of inodes in the shards that this server answers for, so many at most.
    pub fn names_of(&self, inos: &BTreeSet<Ino>, limit: usize) -> Vec<Name> {
        let mut names = Vec::new();
        self.core.partitions.each(|_, shard| {
            if names.len() >= limit {
                return;
            }
            let wanted = shard.entries.iter().filter(|entry| inos.contains(&entry.named.ino));
            let name = |entry: crate::entries::Entry<'_>| Name {
                ino: entry.named.ino,
                dir: entry.dir,
                name: entry.name.to_vec(),
            };
            names.extend(wanted.map(name));
        });
        names.truncate(limit);
        names
    }
}

impl Partitions {
    /// How long a log is, and, if it or its mark is not as it was written, its revision.
    fn find_damage(&self, number: usize) -> (u64, Option<u64>) {
        let look = || {
            let guard = self.lock(number);
            (guard.journal.log.written(), guard.journal.log.has_its_mark())
        };
        let (mut written, mut has_mark) = look();
        loop {
            let is_whole = written.is_whole().unwrap_or_else(|error| {
                tracing::error!(%error, path = %written.path().display(), "a log cannot be read");
                false
            });
            if is_whole && has_mark {
                return (written.end(), None);
            }
            // It may have been replaced meanwhile.
            let again = look();
            if again.0.revision() == written.revision() {
                tracing::error!(path = %written.path().display(), is_whole, has_mark, "a log is damaged");
                return (written.end(), Some(written.revision()));
            }
            (written, has_mark) = again;
        }
    }

    /// Writes a log anew, and its mark. Says whether it has.
    fn rewrite(&self, number: usize, revision: u64) -> bool {
        if let Err(error) = self.lock(number).journal.log.renew_mark() {
            tracing::error!(%error, number, "a log's mark cannot be written");
            return false;
        }
        self.compact_if(number, true);
        let until = Instant::now() + REWRITING;
        while self.lock(number).journal.log.written().revision() == revision {
            if Instant::now() >= until || self.compactor.is_stopped() {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// What this server has of a shard; nothing if it does not have it.
    pub(crate) fn compared(&self, id: ShardId) -> Compared {
        self.lock(id.0 as usize).shards.get(&id.0).map_or(Compared::default(), |shard| shard.compared(id))
    }

    /// The same of a shard of which this server is the primary, and who has copies in step.
    fn own_compared(&self, id: ShardId) -> Option<(Compared, Vec<ServerId>)> {
        let guard = self.lock(id.0 as usize);
        let shard = guard.shards.get(&id.0).filter(|shard| shard.stream.role == Role::Primary)?;
        let in_step = shard.stream.followers.iter().filter(|follower| follower.joins.is_none());
        Some((shard.compared(id), in_step.map(|follower| follower.server).collect()))
    }

    /// Sends a copy the whole shard.
    fn replace_copy(&self, outside: &dyn Outside, id: ShardId, server: ServerId) {
        if let Some(shard) = self.lock(id.0 as usize).shards.get_mut(&id.0)
            && let Some(follower) = shard.stream.follower(server)
        {
            follower.needs_image = true;
        }
        self.note_news(id);
        self.ship(outside, id, &[server]);
    }
}

impl Shard {
    fn compared(&self, id: ShardId) -> Compared {
        let (mut records, mut digest, mut encoded) = (0, 0u64, Vec::new());
        let is_compared = |change: &Mutation| !matches!(change, Mutation::Terms(_));
        let changes = self.snapshot(id.0, Time::MAX).flat_map(|batch| batch.mutations);
        for change in changes.filter(is_compared) {
            encoded.clear();
            bivouac_proto::encode(&change, &mut encoded);
            // Its keys are constant: all servers run the same program.
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(&encoded);
            digest = digest.wrapping_add(hasher.finish());
            records += 1;
        }
        Compared { at: self.stream.last, records, digest }
    }
}

impl Core {
    fn compare_copies(&self, shards: &[ShardId], repairs: bool) -> ShardsCompared {
        let mut result = ShardsCompared::default();
        let mut left: BTreeSet<ShardId> = shards.iter().copied().collect();
        let mut replaced = BTreeSet::new();
        for attempt in 0..TRIES {
            let mut own = BTreeMap::new();
            let mut asked: BTreeMap<ServerId, Vec<ShardId>> = BTreeMap::new();
            for id in std::mem::take(&mut left) {
                // Copies hear of some changes only when somebody waits for that.
                let newest = self.partitions.newest(id);
                if self.partitions.settle(id, newest).is_err() {
                    continue;
                }
                if let Some((compared, in_step)) = self.partitions.own_compared(id) {
                    in_step.iter().for_each(|server| asked.entry(*server).or_default().push(id));
                    own.insert(id, compared);
                }
            }
            for (server, shards) in asked {
                let answer = self.ask(server, &PeerRequest::Compare { shards: shards.clone() });
                let Ok(Reply::Peer(PeerReply::Compared(theirs))) = answer else {
                    left.extend(shards);
                    continue;
                };
                for (id, theirs) in shards.iter().zip(theirs) {
                    let pair = (*id, server);
                    match own.get(id) {
                        Some(own) if own.at != theirs.at => drop(left.insert(*id)),
                        Some(own) if *own == theirs => {
                            result.compared += 1;
                            if replaced.remove(&pair) {
                                result.differ.push((*id, server, Outcome::Repaired));
                            }
                        }
                        _ if !repairs => result.differ.push((*id, server, Outcome::Seen)),
                        _ if replaced.contains(&pair) => {}
                        _ => {
                            tracing::error!(shard = %id.0, %server, "a copy of a shard differs: it is replaced");
                            self.partitions.replace_copy(&*self.outside, *id, server);
                            replaced.insert(pair);
                            left.insert(*id);
                        }
                    }
                }
            }
            if left.is_empty() || self.partitions.compactor.is_stopped() {
                break;
            }
            std::thread::sleep(PAUSE * (attempt + 1));
        }
        result.skipped = left.len() as u64;
        result.differ.extend(replaced.into_iter().map(|(id, server)| (id, server, Outcome::Damaged)));
        result
    }

    /// What this server has of shards.
    pub(crate) fn compared(&self, shards: &[ShardId]) -> Result<Reply, Errno> {
        if !self.partitions.shared {
            return Err(Errno::PROTO);
        }
        Ok(Reply::Peer(PeerReply::Compared(shards.iter().map(|id| self.partitions.compared(*id)).collect())))
    }
}
