//! Changes that may not have been made by all holders of their blocks.
//!
//! A primary numbers the changes that it has under way by *slots*: one change has a slot until all have made it. A
//! holder remembers the latest change of each slot of each primary: that of which it has not heard yet that all have
//! made it. So it takes no message to say so, and there are no more marks than changes under way.
//!
//! A change may have made a sub-file longer, and is perhaps undone. So a holder notes how long the sub-file was before
//! the change, and how far other changes have reached since: to that it is cut.

use bivouac_layout::{Group, Ino, ServerId};
use bivouac_proto::copies::Mark;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The slots of this server's own changes.
pub(crate) struct Slots {
    free: Mutex<Free>,
    /// The turn of the next change.
    turn: AtomicU64,
}

#[derive(Default)]
struct Free {
    given_back: BTreeSet<u32>,
    next: u32,
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
        Slots { free: Mutex::default(), turn: AtomicU64::new(first) }
    }

    /// The lowest that is free.
    pub(crate) fn take(&self) -> Slot<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let number = free.given_back.pop_first().unwrap_or_else(|| {
            free.next += 1;
            free.next
        });
        Slot { slots: self, number, turn: self.turn.fetch_add(1, Ordering::Relaxed) }
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
        self.slots.free.lock().unwrap_or_else(PoisonError::into_inner).given_back.insert(self.number);
    }
}

/// A change, as a holder has made it.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) mark: Mark,
    pub(crate) turn: u64,
    /// How long the sub-file was before, or has to be for changes that came later, bytes.
    pub(crate) before: u64,
    /// How long the change needs it to be, bytes; 0 if it does not, or was undone.
    pub(crate) needs: u64,
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
pub(crate) struct Marks(Mutex<HashMap<(ServerId, u32), Made>>);

impl Marks {
    fn lock(&self) -> MutexGuard<'_, HashMap<(ServerId, u32), Made>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A primary has a change made. What counts as the length from before it is returned. (The caller lets no other
    /// change of the sub-file happen meanwhile.)
    pub(crate) fn note(&self, (primary, slot): (ServerId, u32), kind: Kind, made: Made) -> Made {
        let mut marks = self.lock();
        let earlier = match kind {
            Kind::Reaches(_) => None,
            Kind::Undoes => marks.get(&(primary, slot)).filter(|earlier| earlier.turn == made.turn).copied(),
            Kind::Settles => {
                let same = marks.values().filter(|earlier| contains(&earlier.mark, &made.mark));
                same.min_by_key(|earlier| earlier.before).copied()
            }
        };
        // A range is given to a holder in pieces: what is left of it stays marked.
        let earlier = earlier.filter(|earlier| contains(&earlier.mark, &made.mark));
        let mut made = earlier.map_or(made, |earlier| Made { turn: made.turn, ..earlier });
        match kind {
            Kind::Reaches(end) => {
                made.needs = end;
                raise(&mut marks, made.mark.ino, end);
            }
            Kind::Undoes => {
                let undone = (made.before, std::mem::take(&mut made.needs));
                lower(&mut marks, (primary, slot), made.mark.ino, undone);
            }
            Kind::Settles => {}
        }
        marks.insert((primary, slot), made);
        made
    }

    /// Something else has made a sub-file as long as this.
    pub(crate) fn reaches(&self, ino: Ino, end: u64) {
        raise(&mut self.lock(), ino, end);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Mark> {
        self.lock().values().map(|made| made.mark).collect()
    }

    /// All holders of these groups are the same again.
    pub(crate) fn forget(&self, groups: &[Group]) {
        self.lock().retain(|_, made| !groups.contains(&made.mark.group));
    }
}

/// Whether a change has the range of another one in its own.
fn contains(outer: &Mark, inner: &Mark) -> bool {
    let end = |mark: &Mark| mark.offset.saturating_add(mark.len);
    (outer.group, outer.ino) == (inner.group, inner.ino)
        && outer.offset <= inner.offset
        && end(inner) <= end(outer)
}

/// A change was undone that began at the length `before`, and needed another: those that came later, and found the sub-file
/// that long because of it, are not to leave it so if they are undone, too.
fn lower(
    marks: &mut HashMap<(ServerId, u32), Made>,
    undone: (ServerId, u32),
    ino: Ino,
    (before, needed): (u64, u64),
) {
    let needs: Vec<((ServerId, u32), u64)> = marks
        .iter()
        .filter(|(slot, other)| **slot != undone && other.mark.ino == ino)
        .map(|(slot, other)| (*slot, other.needs))
        .collect();
    for (slot, other) in marks.iter_mut().filter(|(slot, other)| **slot != undone && other.mark.ino == ino) {
        if before < other.before && other.before <= needed {
            let rest = needs.iter().filter(|(of, _)| of != slot).map(|(_, needs)| *needs);
            other.before = rest.filter(|needs| *needs <= other.before).fold(before, u64::max);
        }
    }
}

fn raise(marks: &mut HashMap<(ServerId, u32), Made>, ino: Ino, end: u64) {
    for other in marks.values_mut().filter(|other| other.mark.ino == ino) {
        other.before = other.before.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_layout::GenerationId;

    fn group(first: u16) -> Group {
        Group::Blocks { generation: GenerationId(0), position: first, copies: 2, spread: 0 }
    }

    fn made(first: u16, offset: u64, before: u64) -> Made {
        Made { mark: Mark { group: group(first), ino: Ino(7), offset, len: 10 }, turn: 0, before, needs: 0 }
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
        marks.note((ServerId(1), 1), Kind::Reaches(10), made(0, 0, 0));
        marks.note((ServerId(1), 2), Kind::Reaches(110), made(0, 100, 0));
        marks.note((ServerId(2), 1), Kind::Reaches(210), made(1, 200, 0));
        marks.note((ServerId(1), 1), Kind::Reaches(310), made(0, 300, 0));
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
    fn a_change_is_undone_to_the_length_from_before_it() {
        let marks = Marks::default();
        let of = |turn, before| Made { turn, ..made(0, 100, before) };
        let undone = |slot, turn| marks.note((ServerId(1), slot), Kind::Undoes, of(turn, 110)).before;
        marks.note((ServerId(1), 1), Kind::Reaches(110), of(1, 5));
        assert_eq!(undone(1, 1), 5);
        assert_eq!(undone(1, 1), 5, "the undoing was asked for again");
        assert_eq!(undone(2, 2), 110, "the change never came");
        assert_eq!(undone(1, 3), 110, "that was another change in the slot");
    }

    #[test]
    fn what_others_have_written_meanwhile_is_not_cut() {
        let marks = Marks::default();
        marks.note((ServerId(1), 1), Kind::Reaches(110), made(0, 100, 0));
        marks.note((ServerId(2), 1), Kind::Reaches(50), made(1, 40, 0));
        assert_eq!(marks.note((ServerId(1), 1), Kind::Undoes, made(0, 100, 110)).before, 50);
        marks.reaches(Ino(7), 70);
        marks.reaches(Ino(8), 90);
        assert_eq!(marks.note((ServerId(1), 1), Kind::Undoes, made(0, 100, 110)).before, 70);
    }

    #[test]
    fn changes_that_are_undone_in_any_order_leave_nothing() {
        for order in [[1, 2], [2, 1]] {
            let marks = Marks::default();
            let of = |slot: u32, before| made(0, u64::from(slot) * 10, before);
            let mut length = 0;
            for slot in [1, 2] {
                let end = u64::from(slot) * 10 + 10;
                marks.note((ServerId(1), slot), Kind::Reaches(end), of(slot, length));
                length = end;
            }
            for slot in order {
                let end = u64::from(slot) * 10 + 10;
                let before = marks.note((ServerId(1), slot), Kind::Undoes, of(slot, length)).before;
                // As a holder does: what lies behind the range stays, or else it is cut.
                length = if length > end { length } else { before.min(end - 10) };
            }
            assert_eq!(length, 0, "{order:?}");
        }
    }

    #[test]
    fn the_next_primary_undoes_what_the_one_before_had_made() {
        let marks = Marks::default();
        marks.note((ServerId(1), 1), Kind::Reaches(110), made(0, 100, 5));
        let piece = Mark { group: group(0), ino: Ino(7), offset: 104, len: 6 };
        let settled =
            marks.note((ServerId(2), 1), Kind::Settles, Made { mark: piece, turn: 9, before: 110, needs: 0 });
        assert_eq!((settled.before, settled.mark.offset), (5, 100), "the rest of the range stays marked");
        assert_eq!(marks.note((ServerId(2), 2), Kind::Settles, made(0, 200, 110)).before, 110);
    }
}
