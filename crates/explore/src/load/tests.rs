//! Some processes' work, in one process.

use super::*;
use crate::patterns::{Pattern, Spatiality};
use std::path::Path;

fn task(directory: &Path, operation: Operation, layout: Layout, spatiality: Spatiality) -> Task {
    let phase = Phase {
        operation,
        layout,
        spatiality,
        request: 1000,
        total: Some(24_000),
        stonewall: None,
        read_share: (operation == Operation::Mixed).then_some(0.5),
        direct: false,
        fsync: true,
        think: 0.0,
    };
    let pattern = Pattern { name: "x".into(), nodes: 2, processes: 4, phases: vec![phase] };
    Task { directory: directory.join("all/run").to_string_lossy().into_owned(), run: 12345, pattern }
}

fn begun(task: &Task) -> Vec<Load> {
    let mut loads: Vec<Load> = (0..4).map(|rank| Load::begin(task.clone(), rank).expect("begins")).collect();
    let reads = task.pattern.phases[0].operation.reads();
    for load in &mut loads {
        assert_eq!(load.prepare(0), Ok(if reads { 6 } else { 0 }));
    }
    for load in &mut loads {
        load.open(0).expect("opens");
    }
    loads
}

#[test]
fn every_pattern_does_all_its_requests_and_leaves_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    for operation in [Operation::Write, Operation::Read, Operation::Mixed] {
        for layout in [Layout::Own, Layout::Shared] {
            for spatiality in [Spatiality::Contiguous, Spatiality::Strided, Spatiality::Random] {
                let task = task(place.path(), operation, layout, spatiality);
                let mut loads = begun(&task);
                for load in &mut loads {
                    let outcome = load.go(0, 6).expect("works");
                    assert_eq!((outcome.requests, outcome.bytes), (6, 6000));
                }
                for load in &mut loads {
                    load.verify(0, &[6; 4]).expect("is right");
                }
                loads.iter_mut().for_each(|load| load.clean(0).expect("is removed"));
                loads.iter_mut().rev().for_each(|load| load.end().expect("is removed"));
                assert!(!place.path().join("all").exists());
            }
        }
    }
}

#[test]
fn a_wrong_byte_is_found_by_who_reads_and_by_who_verifies() {
    let place = tempfile::tempdir().expect("a directory");
    for operation in [Operation::Read, Operation::Write] {
        let task = task(place.path(), operation, Layout::Own, Spatiality::Contiguous);
        let mut loads = begun(&task);
        if operation == Operation::Write {
            loads.iter_mut().for_each(|load| assert!(load.go(0, 0).is_ok()));
        }
        let path = place.path().join("all/run/0.1");
        let file = File::options().read(true).write(true).open(&path).expect("there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, 5999).expect("reads");
        file.write_all_at(&[byte[0] ^ 1], 5999).expect("writes");
        let mut errors = Vec::new();
        for load in &mut loads {
            let checked = match operation {
                Operation::Read => load.go(0, 6).map(drop),
                _ => load.verify(0, &[6; 4]),
            };
            errors.extend(checked.err());
        }
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("0.1 is wrong at byte 5999") && errors[0].contains("process 1"),
            "{errors:?}"
        );
        loads.iter_mut().for_each(Load::give_up);
        assert!(!place.path().join("all").exists());
    }
}

#[test]
fn a_stonewall_ends_what_has_no_total_and_what_is_read_is_read_again() {
    let place = tempfile::tempdir().expect("a directory");
    for operation in [Operation::Write, Operation::Read] {
        let mut task = task(place.path(), operation, Layout::Shared, Spatiality::Strided);
        task.pattern.phases[0] =
            Phase { total: None, stonewall: Some(0.05), think: 0.001, ..task.pattern.phases[0].clone() };
        let mut loads: Vec<Load> =
            (0..4).map(|rank| Load::begin(task.clone(), rank).expect("begins")).collect();
        let prepared = loads.iter_mut().map(|load| load.prepare(0).expect("writes")).min().expect("four");
        loads.iter_mut().for_each(|load| load.open(0).expect("opens"));
        for load in &mut loads {
            // Fewer than there are: it goes round.
            let outcome = load.go(0, prepared.min(2)).expect("works");
            assert!(outcome.requests > 2, "{outcome:?}");
            let seconds = (outcome.ended - outcome.began) as f64 / 1e9;
            assert!(seconds >= 0.05, "{seconds}");
        }
        loads.iter_mut().for_each(Load::give_up);
    }
}

#[test]
fn a_process_that_does_not_see_the_directory_says_so() {
    let place = tempfile::tempdir().expect("a directory");
    let task = task(place.path(), Operation::Write, Layout::Own, Spatiality::Contiguous);
    let mut alone = Load::begin(task, 1).expect("begins");
    assert!(alone.prepare(0).expect_err("fails").contains("No such file or directory"));
}
