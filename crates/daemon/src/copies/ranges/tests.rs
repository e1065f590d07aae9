use super::*;
use std::sync::mpsc::channel;

const FILE: Ino = Ino(7);
const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(60);

fn is_free(ranges: &Ranges) -> bool {
    ranges.parts.iter().all(|(part, _)| part.lock().expect("sound").files.is_empty())
}

#[test]
fn changes_of_the_same_bytes_follow_each_other_and_others_do_not_wait() {
    let ranges = Ranges::new(SOON, None);
    let first = ranges.hold(FILE, 10..20).expect("nobody is there");
    for free in [0..10, 20..30] {
        drop(ranges.hold(FILE, free).expect("other bytes"));
    }
    drop(ranges.hold(Ino(8), 10..20).expect("another file"));
    for taken in [19..21, 0..11, 12..13] {
        assert_eq!(ranges.hold(FILE, taken).map(|_| ()), Err(Refusal::Busy));
    }
    drop(first);
    drop(ranges.hold(FILE, 0..100).expect("free again"));
    assert!(is_free(&ranges), "nothing stays");
}

#[test]
fn who_comes_first_is_served_first() {
    let ranges = Ranges::new(LONG, None);
    let (tell, told) = channel();
    let first = ranges.hold(FILE, 0..10).expect("free");
    std::thread::scope(|scope| {
        let (ranges, tell) = (&ranges, &tell);
        let waits = |count: usize| {
            bivouac_testing::eventually("it waits", || {
                ranges.lock(FILE).0.files.get(&FILE).is_some_and(|file| file.waiting.len() == count)
            });
        };
        scope.spawn(move || {
            let _all = ranges.hold(FILE, 0..100).expect("the first one ends");
            tell.send("all").expect("heard");
        });
        waits(1);
        // Its bytes are free, but somebody who came before wants them, too.
        scope.spawn(move || {
            let _end = ranges.hold(FILE, 90..100).expect("the others end");
            tell.send("end").expect("heard");
        });
        waits(2);
        assert!(told.recv_timeout(SOON).is_err());
        drop(first);
        assert_eq!((told.recv(), told.recv()), (Ok("all"), Ok("end")));
    });
    assert!(is_free(&ranges), "nothing stays");
}

#[test]
fn a_file_is_closed_when_no_change_is_under_way_and_none_begins_until_it_is_open() {
    let ranges = Ranges::new(LONG, None);
    let (tell, told) = channel();
    let under_way = ranges.hold(FILE, 0..5).expect("free");
    std::thread::scope(|scope| {
        let (ranges, tell) = (&ranges, &tell);
        scope.spawn(move || {
            ranges.close(FILE, 1).expect("the change ends");
            tell.send("closed").expect("heard");
        });
        assert!(told.recv_timeout(SOON).is_err(), "a change is under way");
        drop(under_way);
        assert_eq!(told.recv(), Ok("closed"));
        scope.spawn(move || {
            drop(ranges.hold(FILE, 3..4).expect("it is opened"));
            tell.send("changed").expect("heard");
        });
        assert!(told.recv_timeout(SOON).is_err(), "it is closed");
        // Another truncation, which is over, does not open it.
        ranges.open(FILE, 2);
        assert!(told.recv_timeout(SOON).is_err(), "it is closed");
        assert!(ranges.stays_closed(FILE, 1) && !ranges.stays_closed(FILE, 2));
        ranges.open(FILE, 1);
        assert_eq!(told.recv(), Ok("changed"));
    });
    assert!(is_free(&ranges), "nothing stays");
}

#[test]
fn a_file_is_not_closed_by_a_truncation_that_is_over() {
    let ranges = Ranges::new(SOON, None);
    ranges.open(FILE, 5);
    ranges.close(FILE, 5).expect("it is over");
    assert!(!ranges.stays_closed(FILE, 5));
    drop(ranges.hold(FILE, 0..1).expect("open"));
    ranges.close(FILE, 6).expect("a later one");
    assert_eq!(ranges.hold(FILE, 0..1).map(|_| ()), Err(Refusal::Busy));
}

#[test]
fn what_is_under_way_is_outlasted_and_what_comes_later_is_not_waited_for() {
    let ranges = Ranges::new(SOON, None);
    let first = ranges.hold(FILE, 0..5).expect("free");
    let numbers = ranges.under_way(FILE);
    let later = ranges.hold(FILE, 10..15).expect("free");
    assert_eq!(ranges.outlast_these(FILE, &numbers), Err(Refusal::Busy));
    drop(first);
    assert_eq!(ranges.outlast_these(FILE, &numbers), Ok(()));
    assert_eq!(ranges.outlast(FILE), Err(Refusal::Busy));
    drop(later);
    assert_eq!(ranges.outlast(FILE), Ok(()));
    assert!(is_free(&ranges), "nothing stays");
}

#[test]
fn a_truncation_is_outlasted_too() {
    let ranges = Ranges::new(SOON, None);
    ranges.close(FILE, 1).expect("free");
    assert_eq!(ranges.outlast(FILE), Err(Refusal::Busy));
    assert_eq!(ranges.outlast(Ino(FILE.0 + 1)), Ok(()), "another file");
    let patient = Ranges::new(Duration::from_secs(10), None);
    patient.close(FILE, 1).expect("free");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.outlast(FILE));
        std::thread::sleep(SOON);
        patient.open(FILE, 1);
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
    assert!(is_free(&patient), "nothing stays");
}

#[test]
fn the_next_truncation_takes_the_place_of_one_that_nobody_ends() {
    let ranges = Ranges::new(SOON, None);
    ranges.close(FILE, 1).expect("free");
    ranges.close(FILE, 2).expect("free");
    assert!(ranges.stays_closed(FILE, 2) && !ranges.stays_closed(FILE, 1));
    ranges.open(FILE, 2);
    drop(ranges.hold(FILE, 0..1).expect("nobody waits for the first one"));
}
