//! What the processes of a node have locked, as far as servers have granted it.
//!
//! Servers keep locks in memory only. So that a server which was started again can be told which locks it had
//! granted, each client notes its own here, in the node's shared table, where they outlive an exec and the agent;
//! the agent reports them. A note is one [`Record`] for each range. It belongs to its owner: a process, by its
//! session, or an open file description, by its slot. Records whose owner is gone mean nothing, and are swept out.
//!
//! The records are a hash table with open addressing. A record lies at its *home*, which follows from its owner and
//! file, or behind it; each home notes how far behind it records were ever put, so that a search looks at few places.
//!
//! A record that is live never changes: who changes a lock adds the new records first and then removes the old ones.
//! So whoever looks in between sees no byte unlocked that was locked before and still is.
//!
//! # What a report can miss
//! A lock may be granted by a server that dies before the client has noted the lock. The agent therefore counts its
//! reports ([`OpenTable::begin_report`]) *before* it looks at the records, and the client looks at the count before it
//! asks for a lock, and again after it has noted the lock ([`OpenTable::reports`]). Where the count has changed, the
//! client asks again. Either the agent has seen the record, or the client has seen that there was a report.

use crate::error::NodeError;
use crate::owner::{Fate, number_of};
use crate::process;
use crate::slot::{State, Word, steps};
use crate::table::{OpenTable, SlotId};
use bivouac_layout::Ino;
use bivouac_proto::OpenId;
use bivouac_proto::meta::{LockOwner, LockRange};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// How many records a node has.
pub const RECORDS: u32 = 32_768;

/// How often a change is begun again because somebody else has changed the same records at the same moment.
const TRIES: u32 = 8;

/// Kinds of owners, in the lower bits of [`Record::kind`].
const PROCESS: u32 = 1;
const DESCRIPTION: u32 = 2;
const FLOCK: u32 = 3;
/// In [`Record::kind`]: the lock is exclusive.
const EXCLUSIVE: u32 = 4;

/// A lock that was granted. The word's states mean: free; being written by the owner that the word names; live; and
/// `Retiring`: the lock is lost, because a server that was restarted has refused it.
#[repr(C, align(64))]
pub(crate) struct Record {
    word: AtomicU64,
    ino: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// A session, or a slot: its index, and above that its incarnation.
    owner: AtomicU64,
    /// The number within the session by which the server knows the process.
    number: AtomicU32,
    kind: AtomicU32,
    /// Of the place and not of its present record: how many places behind this one records whose home it is may lie.
    reach: AtomicU32,
}

const _: () = assert!(size_of::<Record>() == 64);

/// Names a record during one use of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockId {
    index: u32,
    incarnation: u32,
}

/// A lock as it was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted {
    /// Its record.
    pub id: LockId,
    /// The file.
    pub ino: Ino,
    /// Who has it.
    pub owner: LockOwner,
    /// What it covers.
    pub range: LockRange,
    /// Its server has refused to take it back.
    pub lost: bool,
    by: u32,
}

/// What is known of the process that noted a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotedBy {
    /// It lives, and has this number.
    Alive(u32),
    /// It is dead.
    Dead,
    /// It is in another PID namespace.
    Unknown,
}

/// An owner as a record has it: kind, session or slot, number.
type Key = (u32, u64, u32);

fn key(owner: LockOwner) -> Key {
    let slot = |open: OpenId| u64::from(open.incarnation) << 32 | u64::from(open.slot);
    match owner {
        LockOwner::Process { session, pid } => (PROCESS, session, pid),
        LockOwner::Description(open) => (DESCRIPTION, slot(open), 0),
        LockOwner::Flock(open) => (FLOCK, slot(open), 0),
    }
}

/// Where the records of an owner of locks on a file begin.
fn home(owner: u64, ino: Ino) -> u32 {
    // Multiplication by an odd number carries every bit upwards; the top ones have met all of them.
    let mixed = (owner ^ ino.0.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as u32 % RECORDS
}

fn overlap(one: LockRange, start: u64, end: u64) -> bool {
    one.start < end && start < one.end
}

/// What is left of a range outside of another.
fn rests(old: LockRange, start: u64, end: u64) -> impl Iterator<Item = LockRange> {
    let pieces = [(old.start, old.end.min(start)), (old.start.max(end), old.end)];
    pieces.into_iter().filter(|(from, to)| from < to).map(move |(start, end)| LockRange { start, end, ..old })
}

impl OpenTable {
    /// How often the agent has begun to report what this node's processes have.
    pub fn reports(&self) -> u64 {
        // What was noted before is seen by the agent, or its count is seen here.
        fence(Ordering::SeqCst);
        self.report_count().load(Ordering::SeqCst)
    }

    /// The agent is about to look at the records for a report to a server.
    pub fn begin_report(&self) {
        self.report_count().fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Notes that an owner has a lock, in place of what it had on the same bytes. Fails with [`NodeError::NoLocks`] when
    /// there is no room; then nothing has changed.
    pub fn note_lock(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Result<(), NodeError> {
        let mut new = range;
        let (mut gone, mut added, mut left): (Vec<LockId>, Vec<LockId>, Vec<LockRange>) = Default::default();
        for old in self.locks_of(ino, owner).filter(|old| !old.lost) {
            let same = old.range.exclusive == range.exclusive;
            if same && old.range.start <= range.start && range.end <= old.range.end {
                return Ok(());
            } else if same && old.range.start <= range.end && range.start <= old.range.end {
                (new.start, new.end) = (new.start.min(old.range.start), new.end.max(old.range.end));
                gone.push(old.id);
            } else if overlap(old.range, range.start, range.end) {
                left.extend(rests(old.range, range.start, range.end));
                gone.push(old.id);
            }
        }
        for piece in left.into_iter().chain([new]) {
            match self.insert_lock(ino, owner, piece) {
                Some(id) => added.push(id),
                None => {
                    added.into_iter().for_each(|id| _ = self.drop_lock(id));
                    return Err(NodeError::NoLocks);
                }
            }
        }
        gone.into_iter().for_each(|id| _ = self.drop_lock(id));
        Ok(())
    }

    /// Notes that an owner has no locks on these bytes any more. Whether it had any that is lost. Fails with
    /// [`NodeError::NoLocks`] when there is no room for what is left of a lock.
    pub fn note_unlock(&self, ino: Ino, owner: LockOwner, start: u64, end: u64) -> Result<bool, NodeError> {
        let mut lost = false;
        for _ in 0..TRIES {
            let concerned = self.locks_of(ino, owner).filter(|old| overlap(old.range, start, end));
            let mut again = false;
            for old in concerned.collect::<Vec<_>>() {
                let mut added = Vec::new();
                for piece in rests(old.range, start, end).filter(|_| !old.lost) {
                    match self.insert_lock(ino, owner, piece) {
                        Some(id) => added.push(id),
                        None => {
                            added.into_iter().for_each(|id| _ = self.drop_lock(id));
                            return Err(NodeError::NoLocks);
                        }
                    }
                }
                lost |= old.lost;
                if !self.drop_lock(old.id) {
                    // Somebody else has changed it, and knows better what is left.
                    added.into_iter().for_each(|id| _ = self.drop_lock(id));
                    again = true;
                }
            }
            if !again {
                break;
            }
        }
        Ok(lost)
    }

    /// What an owner has noted on these bytes, cut to them.
    pub fn noted_locks(&self, ino: Ino, owner: LockOwner, start: u64, end: u64) -> Vec<LockRange> {
        let concerned = self.locks_of(ino, owner).filter(|old| !old.lost && overlap(old.range, start, end));
        let cut = |r: LockRange| LockRange { start: r.start.max(start), end: r.end.min(end), ..r };
        concerned.map(|old| cut(old.range)).collect()
    }

    /// Whether an owner has lost locks on these bytes. Says so only once.
    pub fn takes_note_of_loss(&self, ino: Ino, owner: LockOwner, start: u64, end: u64) -> bool {
        let lost = self.locks_of(ino, owner).filter(|old| old.lost && overlap(old.range, start, end));
        lost.fold(false, |_, old| {
            self.drop_lock(old.id);
            true
        })
    }

    /// A description is closed: what was noted of its locks goes.
    pub fn forget_locks_of(&self, id: SlotId, ino: Ino) {
        let open = OpenId { agent: 0, slot: id.index, incarnation: id.incarnation };
        for owner in [LockOwner::Description(open), LockOwner::Flock(open)] {
            self.locks_of(ino, owner).for_each(|old| _ = self.drop_lock(old.id));
        }
    }

    /// Everything that is noted, for the agent. Descriptions get this agent's number.
    pub fn all_noted(&self, agent: u64) -> impl Iterator<Item = Noted> + '_ {
        // Most nodes never lock anything.
        let places = if self.has_records().load(Ordering::Acquire) == 0 { 0 } else { RECORDS };
        (0..places).filter_map(move |index| self.read_lock(index, agent))
    }

    /// Removes a record. Whether it was still there.
    pub fn drop_lock(&self, id: LockId) -> bool {
        self.end_lock(id, |word| Word {
            state: State::Free,
            owner: 0,
            incarnation: word.incarnation.wrapping_add(1),
        })
    }

    /// The server has refused to take the lock back.
    pub fn lose_lock(&self, id: LockId) {
        self.end_lock(id, |word| Word { state: State::Retiring, ..word });
    }

    /// What is known of the process that noted a lock.
    pub fn noted_by(&self, noted: &Noted) -> NotedBy {
        match self.fate(noted.by) {
            Fate::Alive => NotedBy::Alive(number_of(noted.by)),
            Fate::Dead => NotedBy::Dead,
            Fate::Unknown => NotedBy::Unknown,
        }
    }

    /// Frees records that processes were writing when they died. For the agent's sweep.
    pub fn free_unfinished_locks(&self) {
        if self.has_records().load(Ordering::Acquire) == 0 {
            return;
        }
        for record in (0..RECORDS).filter_map(|index| self.record(index)) {
            let word = Word::from_bits(record.word.load(Ordering::Acquire));
            if word.state == State::Allocated && self.fate(word.owner) == Fate::Dead {
                let next =
                    Word { state: State::Free, owner: 0, incarnation: word.incarnation.wrapping_add(1) };
                steps::change(&record.word, word, next);
            }
        }
    }

    fn end_lock(&self, id: LockId, next: impl FnOnce(Word) -> Word) -> bool {
        let Some(record) = self.record(id.index) else { return false };
        let word = Word::from_bits(record.word.load(Ordering::Acquire));
        let is_it = word.incarnation == id.incarnation && matches!(word.state, State::Live | State::Retiring);
        is_it && steps::change(&record.word, word, next(word))
    }

    /// The records of an owner's locks on a file.
    fn locks_of(&self, ino: Ino, owner: LockOwner) -> impl Iterator<Item = Noted> + '_ {
        let (kind, of, number) = key(owner);
        let home = home(of, ino);
        let reach = self.record(home).map_or(0, |record| record.reach.load(Ordering::Acquire));
        let places = (0..=reach.min(RECORDS - 1)).map(move |behind| (home + behind) % RECORDS);
        places.filter_map(move |index| {
            // Of nearly all others this is enough to see that they are.
            let record = self.record(index)?;
            if record.owner.load(Ordering::Relaxed) != of || record.ino.load(Ordering::Relaxed) != ino.0 {
                return None;
            }
            let noted = self.read_lock(index, 0)?;
            (noted.ino == ino && key(noted.owner) == (kind, of, number)).then_some(noted)
        })
    }

    /// A record, if it is live or lost and makes sense.
    fn read_lock(&self, index: u32, agent: u64) -> Option<Noted> {
        let record = self.record(index)?;
        let bits = record.word.load(Ordering::Acquire);
        let word = Word::from_bits(bits);
        if !matches!(word.state, State::Live | State::Retiring) {
            return None;
        }
        let ino = Ino(record.ino.load(Ordering::Relaxed));
        let (start, end) = (record.start.load(Ordering::Relaxed), record.end.load(Ordering::Relaxed));
        let (of, number) = (record.owner.load(Ordering::Relaxed), record.number.load(Ordering::Relaxed));
        let kind = record.kind.load(Ordering::Relaxed);
        // The fields are those of this use of the record if it is not over.
        fence(Ordering::Acquire);
        if record.word.load(Ordering::Relaxed) != bits || start >= end {
            return None;
        }
        let open = OpenId { agent, slot: of as u32, incarnation: (of >> 32) as u32 };
        let owner = match kind & !EXCLUSIVE {
            PROCESS => LockOwner::Process { session: of, pid: number },
            DESCRIPTION => LockOwner::Description(open),
            FLOCK => LockOwner::Flock(open),
            _ => return None,
        };
        let range = LockRange { start, end, exclusive: kind & EXCLUSIVE != 0 };
        let id = LockId { index, incarnation: word.incarnation };
        Some(Noted { id, ino, owner, range, lost: word.state == State::Retiring, by: word.owner })
    }

    /// `None`: there is no room.
    fn insert_lock(&self, ino: Ino, owner: LockOwner, range: LockRange) -> Option<LockId> {
        let (kind, of, number) = key(owner);
        let (home, me) = (home(of, ino), self.owner(process::pid()));
        if self.has_records().load(Ordering::Relaxed) == 0 {
            self.has_records().store(1, Ordering::Release);
        }
        for behind in 0..RECORDS {
            let index = (home + behind) % RECORDS;
            let record = self.record(index)?;
            let Some(incarnation) = steps::take(&record.word, me, || {}) else { continue };
            record.ino.store(ino.0, Ordering::Relaxed);
            record.start.store(range.start, Ordering::Relaxed);
            record.end.store(range.end, Ordering::Relaxed);
            record.owner.store(of, Ordering::Relaxed);
            record.number.store(number, Ordering::Relaxed);
            record.kind.store(kind | if range.exclusive { EXCLUSIVE } else { 0 }, Ordering::Relaxed);
            let at_home = self.record(home)?;
            if at_home.reach.load(Ordering::Relaxed) < behind {
                at_home.reach.fetch_max(behind, Ordering::AcqRel);
            }
            steps::make_live(&record.word, incarnation);
            return Some(LockId { index, incarnation });
        }
        None
    }
}

#[cfg(test)]
mod tests;
