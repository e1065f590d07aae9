//! Changes that may not have been made by all holders of their blocks.
//!
//! A primary numbers the changes that it has under way by *slots*: one change has a slot until all have made it. A
//! holder remembers the latest change of each slot of each primary: that of which it has not heard yet that all have
//! made it. So it takes no message to say so, and there are no more marks than changes under way. A holder that wants to
//! show such a range asks the primary which of its changes are over ([`super::slots`]). While there are marks of a
//! file, its copy is not read directly.
//!
//! A change may have made a sub-file longer, and is perhaps undone, and so may others that were made meanwhile, in any
//! order. So a holder notes for each sub-file how long it has to be without the changes in its marks (its *base*), and
//! how long each of these needs it to be. When a change is undone, the sub-file is cut to the longest that is left.

use bivouac_layout::{Group, Ino, ServerId};
use bivouac_node::Fences;
use bivouac_node::fences::{Against, Lasting};
use bivouac_proto::copies::Mark;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A change, as a holder makes it.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) mark: Mark,
    pub(crate) turn: u64,
    /// How long the sub-file needs to be for it, bytes; 0: it does not matter, or the change was undone.
    needs: u64,
}

/// What a change does to the length of a sub-file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is at least as long as this afterwards.
    Reaches(u64),
    /// The primary undoes what it has had made in the same turn.
    Undoes,
    /// Another primary decides what becomes of the range.
    Settles,
}

/// The latest changes of others' slots.
#[derive(Default)]
pub(crate) struct Marks {
    known: Mutex<Known>,
    /// Of this server.
    fences: Option<Arc<Fences>>,
}

/// Whose change it is, and its slot.
type Key = (ServerId, u32);

/// A change that may not have been made by all, as who asks for it names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsettled {
    key: Key,
    turn: u64,
    pub(crate) group: Group,
}

#[derive(Default)]
struct Known {
    made: HashMap<Key, Made>,
    /// Their files are not read directly.
    fenced: HashMap<Key, Lasting>,
    /// Of the sub-files in `made`, and perhaps of others.
    bases: HashMap<Ino, u64>,
    /// How many changes were undone, or taken over by another primary.
    undone: u64,
}

impl Known {
    /// How long a sub-file has to be without the changes that `leaves_out` names.
    fn needed(&self, ino: Ino, leaves_out: impl Fn(&Key, &Made) -> bool) -> u64 {
        let base = self.bases.get(&ino).copied().unwrap_or(0);
        let others = self.made.iter().filter(|(slot, made)| made.mark.ino == ino && !leaves_out(slot, made));
        others.map(|(_, made)| made.needs).fold(base, u64::max)
    }

    fn raise(&mut self, ino: Ino, end: u64) {
        if let Some(base) = self.bases.get_mut(&ino) {
            *base = (*base).max(end);
        }
    }

    fn forget_bases(&mut self) {
        if self.bases.len() > 2 * self.made.len() + 64 {
            let used: BTreeSet<Ino> = self.made.values().map(|made| made.mark.ino).collect();
            self.bases.retain(|ino, _| used.contains(ino));
        }
    }
}

impl Marks {
    /// Of a server with this fence page.
    pub(crate) fn new(fences: Option<Arc<Fences>>) -> Marks {
        Marks { known: Mutex::default(), fences }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which changes of a range of a file there are.
    pub(crate) fn of_range(&self, ino: Ino, range: &Range<u64>) -> Vec<Unsettled> {
        let overlaps =
            |mark: &Mark| mark.offset < range.end && range.start < mark.offset.saturating_add(mark.len);
        let known = self.lock();
        let found = known.made.iter().filter(|(_, made)| made.mark.ino == ino && overlaps(&made.mark));
        found.map(|(key, made)| Unsettled { key: *key, turn: made.turn, group: made.mark.group }).collect()
    }

    /// The primary of a group has said which changes of its own are under way, those since it was started. What
    /// `before` names was known here before it was asked: of that, everything else is over.
    pub(crate) fn settle(
        &self,
        before: &[Unsettled],
        (primary, group): (ServerId, Group),
        (first, under_way): (u64, &[(u32, u64)]),
    ) {
        let is_over = |change: &&Unsettled| {
            let (server, slot) = change.key;
            if server == primary && change.turn >= first {
                !under_way.contains(&(slot, change.turn))
            } else {
                // Who serves a group has settled what was begun before in the group.
                change.group == group
            }
        };
        let mut known = self.lock();
        for change in before.iter().filter(is_over) {
            let made = known.made.get(&change.key).filter(|made| made.turn == change.turn).copied();
            if let Some(made) = made {
                known.raise(made.mark.ino, made.needs);
                known.made.remove(&change.key);
                known.fenced.remove(&change.key);
            }
        }
    }

    /// Counts changes that were undone, or taken over by another primary: what was read before is not certain.
    pub(crate) fn undone(&self) -> u64 {
        self.lock().undone
    }

    /// All changes.
    pub(crate) fn unsettled(&self) -> Vec<Unsettled> {
        let known = self.lock();
        let changes = known.made.iter();
        changes.map(|(key, made)| Unsettled { key: *key, turn: made.turn, group: made.mark.group }).collect()
    }

    /// A primary has a change made of a sub-file that is `length` bytes long. How long the sub-file has to be without it
    /// is returned. (The caller lets no other change of the sub-file happen meanwhile.)
    pub(crate) fn note(
        &self,
        (primary, slot): (ServerId, u32),
        kind: Kind,
        (mark, turn): (Mark, u64),
        length: u64,
    ) -> u64 {
        let (mut known, key, ino) = (self.lock(), (primary, slot), mark.ino);
        let earlier = known.made.get(&key).copied();
        let same = earlier.filter(|earlier| earlier.turn == turn && contains(&earlier.mark, &mark));
        if let Some(done) = earlier.filter(|earlier| earlier.turn != turn) {
            // All have made it: it is not undone any more.
            known.raise(done.mark.ino, done.needs);
        }
        let (made, rest) = match kind {
            Kind::Reaches(needs) => {
                let rest = known.needed(ino, |slot, _| *slot == key);
                if same.is_none() && (length > rest || !known.bases.contains_key(&ino)) {
                    // Something else has made it that long.
                    known.bases.insert(ino, length);
                }
                (Made { mark, turn, needs }, length)
            }
            Kind::Undoes => {
                let rest = known.needed(ino, |slot, _| *slot == key);
                // A range is given to a holder in pieces: what is left of it stays marked.
                let made = same.map_or(Made { mark, turn, needs: 0 }, |same| Made { needs: 0, ..same });
                (made, if same.is_some() { rest } else { length })
            }
            Kind::Settles => {
                let is_this = |made: &Made| contains(&made.mark, &mark);
                let whole = known.made.values().find(|made| is_this(made)).map(|made| made.mark);
                // Where nothing has been noted of the length without these, it stays.
                let is_known = whole.is_some() && known.bases.contains_key(&ino);
                let rest = if is_known { known.needed(ino, |_, made| is_this(made)) } else { length };
                (Made { mark: whole.unwrap_or(mark), turn, needs: 0 }, rest)
            }
        };
        known.undone += u64::from(matches!(kind, Kind::Undoes | Kind::Settles));
        known.made.insert(key, made);
        if let Some(fences) = &self.fences {
            // Before the fence of the slot's change before it falls.
            let fence = fences.keep_up(ino, Against::Readers);
            known.fenced.insert(key, fence);
        }
        known.forget_bases();
        rest
    }

    /// How much of a sub-file of this length is certain: what is longer by changes that others may not have made is left
    /// out. (Their primary counts what all have.)
    pub(crate) fn certain_length(&self, ino: Ino, length: u64) -> u64 {
        let known = self.lock();
        let is_longer = known.made.values().any(|made| made.mark.ino == ino && made.needs > 0);
        let base = known.bases.get(&ino).copied().filter(|_| is_longer);
        length.min(base.unwrap_or(length))
    }

    /// Something that is not undone has made a sub-file as long as this.
    pub(crate) fn reaches(&self, ino: Ino, end: u64) {
        self.lock().raise(ino, end);
    }

    /// A sub-file was cut to this length, or given it.
    pub(crate) fn cut(&self, ino: Ino, length: u64) {
        let mut known = self.lock();
        if let Some(base) = known.bases.get_mut(&ino) {
            *base = length;
        }
        for made in known.made.values_mut().filter(|made| made.mark.ino == ino) {
            made.needs = made.needs.min(length);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Mark> {
        self.lock().made.values().map(|made| made.mark).collect()
    }

    /// All holders of these groups are the same again.
    pub(crate) fn forget(&self, groups: &[Group]) {
        let mut known = self.lock();
        let is_over = |made: &&Made| groups.contains(&made.mark.group);
        let over: Vec<Made> = known.made.values().filter(is_over).copied().collect();
        over.iter().for_each(|made| known.raise(made.mark.ino, made.needs));
        let Known { made, fenced, .. } = &mut *known;
        made.retain(|_, made| !is_over(&&*made));
        fenced.retain(|key, _| made.contains_key(key));
    }
}

/// Whether a change has the range of another one in its own.
fn contains(outer: &Mark, inner: &Mark) -> bool {
    let end = |mark: &Mark| mark.offset.saturating_add(mark.len);
    (outer.group, outer.ino) == (inner.group, inner.ino)
        && outer.offset <= inner.offset
        && end(inner) <= end(outer)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
