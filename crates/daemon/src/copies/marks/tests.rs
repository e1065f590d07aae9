//! Tests of marks.

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
    let undone = marks.undone();
    assert_eq!(undo(&marks, 1, 1, 100, 110), 5);
    assert_ne!(marks.undone(), undone, "what was read before that is not certain");
    assert_eq!(undo(&marks, 1, 1, 100, 5), 5, "the undoing was asked for again");
    assert_eq!(undo(&marks, 2, 2, 100, 110), 110, "the change never came");
    write(&marks, 1, 3, 100, 5);
    assert_eq!(undo(&marks, 1, 4, 100, 110), 110, "that was another change in the slot");
}

#[test]
fn what_others_may_lack_does_not_count_as_length() {
    let marks = Marks::default();
    assert_eq!(marks.certain_length(FILE, 70), 70, "nothing is known of it");
    write(&marks, 1, 1, 100, 70);
    assert_eq!((marks.certain_length(FILE, 110), marks.certain_length(Ino(8), 110)), (70, 110));
    marks.reaches(FILE, 90);
    assert_eq!(marks.certain_length(FILE, 110), 90, "this server's own change");
    write(&marks, 1, 2, 200, 110);
    assert_eq!(marks.certain_length(FILE, 210), 110, "the slot's change before that is everywhere");
    undo(&marks, 1, 2, 200, 210);
    assert_eq!(marks.certain_length(FILE, 110), 110);
    write(&marks, 2, 3, 300, 110);
    marks.forget(&[group(0)]);
    assert_eq!(marks.certain_length(FILE, 310), 310, "all holders are the same");
    // The length is still known when the next one comes.
    marks.note((ServerId(2), 1), Kind::Reaches(510), (mark(1, 500), 1), 310);
    assert_eq!(marks.certain_length(FILE, 510), 310);
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
fn who_asks_again_for_a_range_of_which_nothing_is_known_cuts_nothing() {
    let marks = Marks::default();
    for _ in 0..2 {
        assert_eq!(marks.note((ServerId(1), 1), Kind::Settles, (mark(0, 200), 9), 110), 110);
    }
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
