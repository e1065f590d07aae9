//! Processes that are threads of this one, told step by step what to do.

use super::flood::Flooding;
use super::metadata;
use super::protocol::{Act, Answer, Flood, Group, Metadata, Operation, Place, Transfer};
use super::results::{Header, Line, Results, VERSION};
use super::transfer::Transferring;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAIR: Group = Group { nodes: 1, each: 2 };

fn place(directory: &Path) -> Place {
    Place { directory: directory.to_string_lossy().into_owned(), run: 5, seed: 7, each: 2 }
}

/// Has each of two processes do a step.
fn step(of: &mut [Transferring; 2], place: &Place, number: u64, act: &Act) -> Vec<Result<Answer, String>> {
    (0..2).zip(of).map(|(member, of)| of.step(place, PAIR, member, number, act)).collect()
}

fn all_well(answers: Vec<Result<Answer, String>>) -> Vec<Answer> {
    answers.into_iter().map(|answer| answer.expect("done")).collect()
}

const READ: Transfer = Transfer {
    writes: false,
    random: true,
    fsync: false,
    request: 1536,
    bytes: 1536 * 100,
    seconds: 60.0,
    filled: 1,
};
const WRITE: Transfer = Transfer { writes: true, fsync: true, request: 4096, bytes: 4096 * 50, ..READ };

fn filled(of: &mut [Transferring; 2], place: &Place) {
    all_well(step(of, place, 1, &Act::Fill { bytes: 200_000 }));
    all_well(step(of, place, 1, &Act::Forget));
}

#[test]
fn what_was_filled_is_read_with_requests_of_any_length() {
    let directory = tempfile::tempdir().expect("a directory");
    let (place, mut of) = (place(directory.path()), <[Transferring; 2]>::default());
    filled(&mut of, &place);
    for (number, request, random) in [(2, 512, false), (3, 1536, true), (4, 65536, true)] {
        let transfer = Transfer { request, random, bytes: 200_000 / request * request, ..READ };
        all_well(step(&mut of, &place, number, &Act::Open(transfer)));
        for answer in all_well(step(&mut of, &place, number, &Act::Go(transfer))) {
            let Answer::Done(done) = answer else { panic!("{answer:?}") };
            assert_eq!((done.bytes, done.requests), (transfer.bytes, transfer.requests()));
            assert!(done.ended > done.began);
        }
        all_well(step(&mut of, &place, number, &Act::Close(transfer)));
    }
    all_well(step(&mut of, &place, 1, &Act::Clear));
    assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
}

#[test]
fn a_byte_that_is_wrong_is_found_by_reads_and_checks() {
    let directory = tempfile::tempdir().expect("a directory");
    let (place, mut of) = (place(directory.path()), <[Transferring; 2]>::default());
    filled(&mut of, &place);
    let flip = |name: &str, at: u64| {
        let file =
            fs::File::options().read(true).write(true).open(directory.path().join(name)).expect("opens");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 1], at).expect("written");
    };
    flip("filled.1", 100_000);
    all_well(step(&mut of, &place, 2, &Act::Open(READ)));
    let answers = step(&mut of, &place, 2, &Act::Go(READ));
    // The first process reads the second one's file.
    assert!(
        answers[0].as_ref().is_err_and(|why| why.contains("filled.1 is wrong at byte 100000")),
        "{answers:?}"
    );
    assert!(answers[1].is_ok());
    for (number, transfer, name) in
        [(3, Transfer { random: false, ..WRITE }, "written.0"), (4, WRITE, "filled.0")]
    {
        all_well(step(&mut of, &place, number, &Act::Open(transfer)));
        all_well(step(&mut of, &place, number, &Act::Go(transfer)));
        let check = Act::Check(transfer, vec![50, 50]);
        all_well(step(&mut of, &place, number, &check));
        // What an earlier measurement has written is wrong, too.
        assert!(step(&mut of, &place, number + 100, &check).iter().all(Result::is_err));
        flip(name, 4096 * 7);
        let answers = step(&mut of, &place, number, &check);
        assert!(answers[1].as_ref().is_err_and(|why| why.contains("wrong at byte 28672")), "{answers:?}");
        all_well(step(&mut of, &place, number, &Act::Close(transfer)));
    }
    assert!(!directory.path().join("written.0").exists());
}

#[test]
fn a_transfer_ends_when_its_time_is_over() {
    let directory = tempfile::tempdir().expect("a directory");
    let (place, mut of) = (place(directory.path()), <[Transferring; 2]>::default());
    filled(&mut of, &place);
    let short = Transfer { seconds: 1e-9, ..READ };
    all_well(step(&mut of, &place, 2, &Act::Open(short)));
    for answer in all_well(step(&mut of, &place, 2, &Act::Go(short))) {
        assert!(
            matches!(answer, Answer::Done(done) if done.requests == 1 && done.bytes == 1536),
            "{answer:?}"
        );
    }
}

#[test]
fn files_of_a_flood_that_are_missing_or_not_whole_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (place, mut of) = (place(directory.path()), <[Flooding; 2]>::default());
    let mut all = |step: Flood| -> Vec<Answer> {
        let of = (0..2).zip(&mut of);
        of.map(|(member, of)| of.step(&place, PAIR, member, 1, step).expect("done")).collect()
    };
    all(Flood::Begin);
    all(Flood::Create(21, 4096));
    let path = |name: &str| directory.path().join("flood").join(name);
    fs::remove_file(path("0.3")).expect("is there");
    fs::write(path("0.10"), "short").expect("written");
    let mut long = fs::read(path("1.9")).expect("is there");
    long.push(0);
    fs::write(path("1.9"), long).expect("written");
    fs::copy(path("1.0"), path("1.1")).expect("copied");
    all(Flood::Read(21, 4096));
    let found = all(Flood::List(21));
    // Of ten files of the second process, and of eleven of the first.
    assert!(matches!(found[0], Answer::Found(10, 8)), "{found:?}");
    assert!(matches!(found[1], Answer::Found(10, 9)), "{found:?}");
    all(Flood::Clean(21));
    all(Flood::End);
    assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
}

#[test]
fn metadata_operations_find_what_was_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = place(directory.path());
    let all = |step: &Metadata| -> Vec<Result<Answer, String>> {
        (0..2).map(|member| metadata::step(&place, PAIR, member, step)).collect()
    };
    let act =
        |operation, made: [(u64, u64); 2]| Metadata::Do { operation, most: (5, 60.0), made: made.to_vec() };
    all_well(all(&Metadata::Begin));
    for operation in Operation::ALL {
        let made = if operation == Operation::Mkdir { [(0, 0); 2] } else { [(5, 5); 2] };
        for answer in all_well(all(&act(operation, made))) {
            let expected = if operation == Operation::Readdir { 100 } else { 5 };
            assert!(
                matches!(answer, Answer::Done(done) if done.requests == expected),
                "{operation:?} {answer:?}"
            );
        }
        if operation == Operation::Readdir {
            assert!(all(&act(operation, [(5, 6); 2])).iter().all(Result::is_err));
            assert!(all(&act(Operation::Stat, [(5, 6); 2])).iter().all(Result::is_err));
        }
    }
    all_well(all(&Metadata::End));
    assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
}

#[test]
fn members_of_a_group_are_on_the_first_nodes_and_read_from_another_one() {
    let group = Group { nodes: 2, each: 2 };
    let members: Vec<Option<u32>> = (0..12).map(|rank| group.member(rank, 4)).collect();
    let expected = [Some(0), Some(1), None, None, Some(2), Some(3), None, None, None, None, None, None];
    assert_eq!(members, expected);
    assert_eq!((0..4).map(|member| group.other(member)).collect::<Vec<_>>(), [2, 3, 0, 1]);
    assert_eq!((0..3).map(|m| Group { nodes: 1, each: 3 }.other(m)).collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!((group.member(0, 0), Group { nodes: 1, each: 1 }.other(0)), (None, 0));
}

#[test]
fn results_go_into_a_file_of_their_own_line_by_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("results");
    let header =
        Header { version: VERSION, started: 1.5, memory: 1, cores: 2, seed: 3, storages: Vec::new() };
    let mut results = Results::create(&path).expect("made");
    results.add(&Line::Characterization(header)).expect("added");
    let text = fs::read_to_string(&path).expect("is there");
    assert!(
        text.starts_with("{\"kind\":\"characterization\",\"version\":1,") && text.ends_with("}\n"),
        "{text}"
    );
    assert!(Results::create(&path).is_err_and(|e| e.to_string().contains("is there already")));
    assert!(Results::create(&directory.path().join("no/results")).is_err());
}
