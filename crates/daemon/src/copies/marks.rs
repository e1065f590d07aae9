//! Changes that may not have been made by all holders of their blocks.
//!
//! A primary numbers the changes that it has under way by *slots*: one change has a slot until all have made it. A
//! holder remembers the latest change of each slot of each primary: that of which it has not heard yet that all have
//! made it. So it takes no message to say so, and there are no more marks than changes under way. A holder that wants to
//! show such a range asks the primary which of its changes are over ([`Slots::under_way`]). While there are marks of a
//! file, its copy is not read directly.
//!
//! A change may have made a sub-file longer, and is perhaps undone, and so may others that were made meanwhile, in any
//! order. So a holder notes for each sub-file how long it has to be without the changes in its marks (its *base*), and
//! how long each of these needs it to be. When a change is undone, the sub-file is cut to the longest that is left.

use bivouac_layout::{Group, Ino, ServerId};
use bivouac_node::Fences;
use bivouac_node::fences::{Against, Lasting};
use bivouac_proto::copies::Mark;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of this server's own changes.
pub(crate) struct Slots {
    taken: Mutex<Taken>,
    /// The turn of the first change, and of the next one.
    first: u64,
    turn: AtomicU64,
}

#[derive(Default)]
struct Taken {
    given_back: BTreeSet<u32>,
    next: u32,
    /// Turns by slot.
    under_way: BTreeMap<u32, u64>,
}

/// A slot in use.
pub(crate) struct Slot<'s> {
    slots: &'s Slots,
    number: u32,
    turn: u64,
}

impl Slots {
    /// Turns from `first` on: later than those before a restart.
    pub(crate) fn new(first: u64) -> Slots {
        Slots { taken: Mutex::default(), first, turn: AtomicU64::new(first) }
    }

    /// The turn of the first change; and the changes that may not have been made by all, with slot and turn.
    pub(crate) fn under_way(&self) -> (u64, Vec<(u32, u64)>) {
        (self.first, self.lock().under_way.iter().map(|(slot, turn)| (*slot, *turn)).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest that is free.
    pub(crate) fn take(&self) -> Slot<'_> {
        let mut taken = self.lock();
        let number = taken.given_back.pop_first().unwrap_or_else(|| {
            taken.next += 1;
            taken.next
        });
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        taken.under_way.insert(number, turn);
        Slot { slots: self, number, turn }
    }
}

impl Slot<'_> {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Which change it is.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// The change may not have been made by all, and nobody mends that but another primary: the slot is not used again,
    /// so that the marks stay until then.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.under_way.remove(&self.number);
        taken.given_back.insert(self.number);
    }
}

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
        let (made, rest) = match kind {
            Kind::Reaches(needs) => {
                if let Some(done) = earlier.filter(|earlier| earlier.turn != turn) {
                    // All have made it: it is not undone any more.
                    known.raise(done.mark.ino, done.needs);
                }
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
                let rest = whole.map_or(length, |_| known.needed(ino, |_, made| is_this(made)));
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
        let Known { made, fenced, .. } = &mut *known;
        made.retain(|_, made| !groups.contains(&made.mark.group));
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
mod tests {
    use super::*;
    use bivouac_layout::GenerationId;

    const FILE: Ino = Ino(7);

    fn group(first: u16) -> Group {
        Group::Blocks { generation: GenerationId(0), position: first, copies: 2, spread: 0 }
    }

    fn mark(first: u16, offset: u64) -> Mark {
        Mark { group: group(first), ino: FILE, offset, len: 10 }
    }

    /// A change of ten bytes from `offset` on, by server 1.
    fn write(marks: &Marks, slot: u32, turn: u64, offset: u64, length: u64) {
        marks.note((ServerId(1), slot), Kind::Reaches(offset + 10), (mark(0, offset), turn), length);
    }

    fn undo(marks: &Marks, slot: u32, turn: u64, offset: u64, length: u64) -> u64 {
        marks.note((ServerId(1), slot), Kind::Undoes, (mark(0, offset), turn), length)
    }

    #[test]
    fn a_slot_is_taken_by_one_change_at_a_time_and_used_again() {
        let slots = Slots::new(100);
        let (first, second) = (slots.take(), slots.take());
        assert_ne!(first.number(), second.number());
        let number = first.number();
        drop(first);
        let again = slots.take();
        assert_eq!((again.number(), again.turn()), (number, 102));
        again.leave();
        assert_ne!(slots.take().number(), number, "its marks are to stay");
    }

    #[test]
    fn the_next_change_of_a_slot_says_that_the_one_before_is_everywhere() {
        let marks = Marks::default();
        for (server, slot, first, offset) in [(1, 1, 0, 0), (1, 2, 0, 100), (2, 1, 1, 200), (1, 1, 0, 300)] {
            let of = (mark(first, offset), offset);
            marks.note((ServerId(server), slot), Kind::Reaches(offset + 10), of, 0);
        }
        let offsets = |marks: &Marks| {
            let mut offsets: Vec<u64> = marks.all().iter().map(|mark| mark.offset).collect();
            offsets.sort_unstable();
            offsets
        };
        assert_eq!(offsets(&marks), [100, 200, 300]);
        marks.forget(&[group(0)]);
        assert_eq!(offsets(&marks), [200]);
    }

    #[test]
    fn slots_tell_which_changes_are_under_way() {
        let slots = Slots::new(100);
        let (first, second, third) = (slots.take(), slots.take(), slots.take());
        let numbers = (second.number(), third.number());
        assert_eq!(slots.under_way(), (100, vec![(first.number(), 100), (numbers.0, 101), (numbers.1, 102)]));
        drop(first);
        second.leave();
        assert_eq!(slots.under_way().1, [(numbers.0, 101), (numbers.1, 102)], "what was left is not over");
        drop(third);
        let again = slots.take();
        assert_eq!(slots.under_way().1, [(again.number(), 103), (numbers.0, 101)]);
    }

    #[test]
    fn what_the_primary_says_settles_what_was_known_before_it_was_asked() {
        let marks = Marks::default();
        let note = |server, slot, turn, position, offset| {
            let of = (mark(position, offset), turn);
            marks.note((ServerId(server), slot), Kind::Reaches(offset + 10), of, 0);
        };
        let offsets = || {
            let mut offsets: Vec<u64> = marks.all().iter().map(|mark| mark.offset).collect();
            offsets.sort_unstable();
            offsets
        };
        // Of the primary itself: one from before it was started, in another group, and three since.
        note(1, 1, 50, 1, 100);
        note(1, 2, 100, 0, 200);
        note(1, 3, 101, 0, 300);
        note(1, 4, 102, 1, 400);
        // Of others: in the group, and in another one.
        note(2, 1, 7, 0, 500);
        note(2, 2, 8, 1, 600);
        let before = marks.unsettled();
        // Not known before it was asked: the slot goes on, and a new one.
        note(1, 4, 103, 0, 700);
        note(1, 5, 104, 0, 800);
        marks.settle(&before, (ServerId(1), group(0)), (100, &[(3, 101)]));
        assert_eq!(offsets(), [100, 300, 600, 700, 800]);
        assert_eq!(marks.of_range(FILE, &(305..306)).len(), 1);
        assert!(marks.of_range(FILE, &(310..500)).is_empty());
        // One from before the primary's start is over when it serves the group concerned.
        marks.settle(&marks.unsettled(), (ServerId(1), group(1)), (100, &[]));
        assert!(offsets().is_empty());
    }

    #[test]
    fn a_file_with_marks_is_fenced() {
        let of = bivouac_node::FencesOf { deployment: 1, server: ServerId(0) };
        let fences = Arc::new(Fences::create(of).expect("made"));
        let marks = Marks::new(Some(fences.clone()));
        let under = fences.page().before_pass(FILE);
        let is_read = || fences.page().read(&under).is_some();
        assert!(is_read());
        write(&marks, 1, 1, 100, 0);
        write(&marks, 2, 2, 200, 110);
        assert!(!is_read());
        let other = (Mark { ino: Ino(8), ..mark(0, 0) }, 3);
        marks.note((ServerId(1), 1), Kind::Reaches(10), other, 0);
        assert!(!is_read(), "one is left");
        marks.settle(&marks.unsettled(), (ServerId(1), group(0)), (0, &[(1, 3)]));
        assert!(is_read());
        write(&marks, 1, 4, 100, 0);
        assert!(!is_read());
        marks.forget(&[group(0)]);
        assert!(is_read());
    }

    #[test]
    fn a_change_is_undone_to_the_length_from_before_it() {
        let marks = Marks::default();
        write(&marks, 1, 1, 100, 5);
        assert_eq!(undo(&marks, 1, 1, 100, 110), 5);
        assert_eq!(undo(&marks, 1, 1, 100, 5), 5, "the undoing was asked for again");
        assert_eq!(undo(&marks, 2, 2, 100, 110), 110, "the change never came");
        write(&marks, 1, 3, 100, 5);
        assert_eq!(undo(&marks, 1, 4, 100, 110), 110, "that was another change in the slot");
    }

    #[test]
    fn what_others_have_written_meanwhile_is_not_cut() {
        let marks = Marks::default();
        write(&marks, 1, 1, 100, 0);
        marks.note((ServerId(2), 1), Kind::Reaches(50), (mark(1, 40), 1), 110);
        marks.reaches(Ino(8), 90);
        assert_eq!(undo(&marks, 1, 1, 100, 110), 50);
        write(&marks, 1, 2, 100, 50);
        // The slot goes on: that change is everywhere.
        write(&marks, 1, 3, 200, 110);
        assert_eq!(undo(&marks, 1, 3, 200, 210), 110);
        write(&marks, 1, 4, 300, 110);
        marks.reaches(FILE, 170);
        assert_eq!(undo(&marks, 1, 4, 300, 310), 170);
        write(&marks, 1, 5, 300, 170);
        marks.cut(FILE, 20);
        write(&marks, 1, 6, 300, 20);
        assert_eq!(undo(&marks, 1, 6, 300, 310), 20, "the file was truncated");
    }

    #[test]
    fn changes_that_are_undone_in_any_order_leave_nothing() {
        for order in [[1, 2], [2, 1]] {
            let (marks, mut length) = (Marks::default(), 0);
            for slot in [1, 2] {
                write(&marks, slot, slot.into(), u64::from(slot) * 10, length);
                length = u64::from(slot) * 10 + 10;
            }
            for slot in order {
                let offset = u64::from(slot) * 10;
                let rest = undo(&marks, slot, slot.into(), offset, length);
                // As a holder does: what lies behind the range stays, or else it is cut.
                length = if length > offset + 10 { length } else { rest.min(offset) };
            }
            assert_eq!(length, 0, "{order:?}");
        }
    }

    #[test]
    fn the_next_primary_undoes_what_the_one_before_had_made() {
        let marks = Marks::default();
        write(&marks, 1, 1, 100, 5);
        let piece = Mark { offset: 104, len: 6, ..mark(0, 100) };
        assert_eq!(marks.note((ServerId(2), 1), Kind::Settles, (piece, 9), 110), 5);
        assert!(marks.all().iter().all(|mark| mark.offset == 100), "the rest of the range stays marked");
        assert_eq!(marks.note((ServerId(2), 2), Kind::Settles, (mark(0, 200), 9), 110), 110);
    }
}
