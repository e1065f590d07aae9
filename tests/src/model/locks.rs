//! Locks, as POSIX and `flock` have them: byte ranges with owners.

use super::call::Held;

/// The owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A process, by the client's number.
    Process(usize),
    /// An open file description, by its number.
    Description(u64),
    /// The same for `flock`, which never conflicts with the other two.
    Whole(u64),
}

impl Owner {
    fn is_whole(self) -> bool {
        matches!(self, Owner::Whole(_))
    }
}

struct Lock {
    node: u64,
    owner: Owner,
    held: Held,
}

/// All locks there are.
#[derive(Default)]
pub struct Locks(Vec<Lock>);

impl Locks {
    /// What keeps `owner` from taking a lock.
    pub fn in_the_way(&self, node: u64, owner: Owner, wanted: Held) -> Vec<Held> {
        self.conflicts(node, owner, wanted).map(|(_, held)| held).collect()
    }

    /// The same, with whose it is.
    pub fn conflicts(
        &self,
        node: u64,
        owner: Owner,
        (exclusive, start, end): Held,
    ) -> impl Iterator<Item = (Owner, Held)> {
        let conflicts = move |lock: &&Lock| {
            let (other, from, to) = lock.held;
            lock.node == node
                && lock.owner != owner
                && lock.owner.is_whole() == owner.is_whole()
                && (exclusive || other)
                && from < end
                && start < to
        };
        self.0.iter().filter(conflicts).map(|lock| (lock.owner, lock.held))
    }

    /// Whether the owner has locks on a file.
    pub fn has_any(&self, node: u64, owner: Owner) -> bool {
        self.0.iter().any(|lock| lock.node == node && lock.owner == owner)
    }

    /// Releases the owner's locks on a range.
    pub fn release(&mut self, node: u64, owner: Owner, start: u64, end: u64) {
        let mut kept = Vec::new();
        for lock in self.0.drain(..) {
            let (exclusive, from, to) = lock.held;
            if lock.node != node || lock.owner != owner || to <= start || end <= from {
                kept.push(lock);
                continue;
            }
            if from < start {
                kept.push(Lock { held: (exclusive, from, start), ..lock });
            }
            if end < to {
                kept.push(Lock { held: (exclusive, end, to), ..lock });
            }
        }
        self.0 = kept;
    }

    /// Sets a lock with which nothing conflicts. Neighbours of the same kind are merged.
    pub fn set(&mut self, node: u64, owner: Owner, (exclusive, start, end): Held) {
        self.release(node, owner, start, end);
        let (mut from, mut to) = (start, end);
        self.0.retain(|lock| {
            let joins = lock.node == node
                && lock.owner == owner
                && lock.held.0 == exclusive
                && (lock.held.2 == start || lock.held.1 == end);
            if joins {
                (from, to) = (from.min(lock.held.1), to.max(lock.held.2));
            }
            !joins
        });
        self.0.push(Lock { node, owner, held: (exclusive, from, to) });
    }

    /// Takes all of an owner's locks on a file.
    pub fn forget(&mut self, node: u64, owner: Owner) {
        self.release(node, owner, 0, u64::MAX);
    }
}
