use super::*;
use crate::table::tests::{in_child, node};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn process(session: u64) -> LockOwner {
    LockOwner::Process { session, pid: 5 }
}

fn flock(id: SlotId) -> LockOwner {
    LockOwner::Flock(OpenId { agent: 77, slot: id.index, incarnation: id.incarnation })
}

fn range(start: u64, end: u64, exclusive: bool) -> LockRange {
    LockRange { start, end, exclusive }
}

fn all(table: &OpenTable) -> BTreeSet<(u64, u64, bool)> {
    table.all_noted(77).map(|noted| (noted.range.start, noted.range.end, noted.range.exclusive)).collect()
}

#[test]
fn what_is_noted_is_seen_with_its_owner_and_goes_when_it_is_unlocked() {
    let node = node();
    let (table, open) = (&node.table, SlotId { index: 9, incarnation: 3 });
    assert_eq!(table.all_noted(77).count(), 0);
    table.note_lock(Ino(4), process(1), range(100, 200, true)).unwrap();
    table.note_lock(Ino(4), flock(open), range(0, u64::MAX, false)).unwrap();
    let mut noted: Vec<Noted> = table.all_noted(77).collect();
    noted.sort_by_key(|noted| noted.range.start);
    let seen: Vec<_> = noted.iter().map(|n| (n.ino, n.owner, n.range, n.lost)).collect();
    let expected = [
        (Ino(4), flock(open), range(0, u64::MAX, false), false),
        (Ino(4), process(1), range(100, 200, true), false),
    ];
    assert_eq!(seen, expected);
    assert_eq!(table.noted_by(&noted[1]), NotedBy::Alive(std::process::id()));
    // Another owner's, and another file's.
    assert_eq!(table.note_unlock(Ino(4), process(2), 0, u64::MAX), Ok(false));
    assert_eq!(table.note_unlock(Ino(5), process(1), 0, u64::MAX), Ok(false));
    assert_eq!(table.all_noted(77).count(), 2);
    assert_eq!(table.note_unlock(Ino(4), process(1), 120, 130), Ok(false));
    table.forget_locks_of(open, Ino(4));
    assert_eq!(all(table), [(100, 120, true), (130, 200, true)].into());
}

#[test]
fn a_lost_lock_is_told_of_once_and_is_not_reported() {
    let node = node();
    let table = &node.table;
    table.note_lock(Ino(4), process(1), range(0, 10, true)).unwrap();
    table.note_lock(Ino(4), process(1), range(20, 30, true)).unwrap();
    table.all_noted(77).for_each(|noted| table.lose_lock(noted.id));
    assert!(table.all_noted(77).all(|noted| noted.lost));
    assert!(!table.takes_note_of_loss(Ino(4), process(1), 10, 20));
    assert!(table.takes_note_of_loss(Ino(4), process(1), 5, 15));
    assert!(!table.takes_note_of_loss(Ino(4), process(1), 5, 15));
    assert_eq!(table.note_unlock(Ino(4), process(1), 0, u64::MAX), Ok(true));
    assert_eq!(table.all_noted(77).count(), 0);
}

#[test]
fn a_full_table_refuses_and_is_as_it_was() {
    let node = node();
    let table = &node.table;
    for session in 0..u64::from(RECORDS) {
        table.note_lock(Ino(4), process(session), range(0, 10, true)).unwrap();
    }
    let full = Err(NodeError::NoLocks);
    assert_eq!(table.note_lock(Ino(4), process(u64::MAX), range(0, 10, true)), full);
    assert_eq!(table.note_lock(Ino(4), process(5), range(3, 5, false)), full);
    assert_eq!(table.note_unlock(Ino(4), process(5), 3, 5), Err(NodeError::NoLocks));
    assert_eq!(table.all_noted(77).count(), RECORDS as usize);
    assert_eq!(all(table), [(0, 10, true)].into());
    // What needs no room, or makes it.
    assert_eq!(table.note_lock(Ino(4), process(5), range(3, 5, true)), Ok(()));
    assert_eq!(table.note_unlock(Ino(4), process(5), 0, u64::MAX), Ok(false));
    assert_eq!(table.note_lock(Ino(4), process(u64::MAX), range(0, 10, true)), Ok(()));
}

#[test]
fn what_a_process_noted_stays_when_it_dies_and_is_known_to_be_a_dead_ones() {
    let node = node();
    let table = &node.table;
    let noted = in_child(|| {
        let noted = table.note_lock(Ino(4), process(1), range(0, 10, true));
        // As if it had died while it wrote another.
        let index = home(99, Ino(4));
        steps::take(&table.record(index).unwrap().word, table.owner(process::pid()), || {});
        noted.is_err().into()
    });
    assert_eq!(noted, 0);
    let lock = table.all_noted(77).next().unwrap();
    assert_eq!(table.noted_by(&lock), NotedBy::Dead);
    let is_free = || table.record(home(99, Ino(4))).unwrap().word.load(Ordering::Relaxed) & 3 == 0;
    assert!(!is_free());
    table.free_unfinished_locks();
    assert!(is_free() && table.all_noted(77).count() == 1);
}

#[test]
fn processes_that_note_locks_at_the_same_time_lose_none_of_each_others() {
    let node = node();
    let table = &node.table;
    let open = SlotId { index: 9, incarnation: 3 };
    // All of one description, as after a fork.
    let work = |who: u64| {
        for round in 0..3000 {
            let own = range(who * 100, who * 100 + 10 + round % 20, round % 3 == 0);
            if table.note_lock(Ino(4), flock(open), own).is_err()
                || table.note_unlock(Ino(4), flock(open), own.start + 3, own.start + 5).is_err()
            {
                return 1;
            }
        }
        table.note_unlock(Ino(4), flock(open), who * 100 + 50, who * 100 + 60).is_err().into()
    };
    let work = &work;
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|who| scope.spawn(move || work(who))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<i32>>()
    });
    assert_eq!(results, [0; 4]);
    for who in 0..4 {
        let mut bytes = [0; 50];
        for noted in table.noted_locks(Ino(4), flock(open), who * 100, who * 100 + 50) {
            (noted.start..noted.end).for_each(|at| bytes[(at - who * 100) as usize] += 1);
        }
        // The last round with the longest range, 10 + 19 bytes, was followed by none that unlocked its end.
        let expected: Vec<i32> = (0..50).map(|at| (at < 29 && at != 3 && at != 4).into()).collect();
        assert_eq!(bytes.to_vec(), expected, "{who}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    /// Byte by byte, the records say what an array says; none overlaps another of its owner.
    #[test]
    fn agrees_with_one_lock_for_each_byte(
        ops in prop::collection::vec((0u64..3, 0u64..2, 0u64..20, 1u64..20, 0u8..3), 1..80),
    ) {
        let node = node();
        let table = &node.table;
        let mut bytes = [[[None::<bool>; 40]; 2]; 3];
        for (who, file, start, length, what) in ops {
            let end = start + length;
            if what == 2 {
                prop_assert_eq!(table.note_unlock(Ino(file), process(who), start, end), Ok(false));
            } else {
                prop_assert_eq!(table.note_lock(Ino(file), process(who), range(start, end, what == 1)), Ok(()));
            }
            let now = (what < 2).then_some(what == 1);
            bytes[who as usize][file as usize][start as usize..end as usize].fill(now);
        }
        let mut found = [[[None::<bool>; 40]; 2]; 3];
        for noted in table.all_noted(77) {
            let LockOwner::Process { session, .. } = noted.owner else { panic!("{noted:?}") };
            for at in noted.range.start..noted.range.end {
                let byte = &mut found[session as usize][noted.ino.0 as usize][at as usize];
                prop_assert!(byte.replace(noted.range.exclusive).is_none(), "two records have it");
            }
        }
        prop_assert_eq!(found, bytes);
    }
}
