//! The driver finds what it is there to find.

use bivouac_testing::fuzz::{Counting, run};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_panic_that_needs_a_changed_sample_is_found_and_made_short() {
    let target = |data: &[u8]| assert!(!(data.starts_with(b"magic") && data[5..].contains(&0xff)), "found");
    let failed = std::panic::catch_unwind(|| run("a test", &[b"magic and more".to_vec()], 1 << 20, target));
    let said = failed.expect_err("it fails").downcast::<String>().expect("a text");
    assert!(said.contains("found") && said.contains("BIVOUAC_FUZZ_SEED="), "{said}");
}

#[test]
fn a_target_is_run_for_as_long_as_it_says() {
    let (begun, runs, inputs) = (Instant::now(), Cell::new(0), RefCell::new(HashSet::new()));
    let said = run("a count", &[b"a sample of some length".to_vec()], 1 << 30, |data| {
        runs.set(runs.get() + 1);
        if inputs.borrow().len() < 1000 {
            inputs.borrow_mut().insert(data.to_vec());
        }
        std::thread::sleep(Duration::from_micros(100));
    });
    assert_eq!(said, runs.get());
    // A tenth of it is not edited, and short inputs come twice.
    assert!(
        runs.get() > 1200 && inputs.borrow().len() == 1000,
        "{said} runs, {} inputs",
        inputs.borrow().len()
    );
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[test]
fn allocating_without_bound_ends_the_program() {
    if std::env::var_os("BIVOUAC_TESTING_DO").is_some() {
        run("a test", &[], 1 << 20, |data| drop(Vec::<u8>::with_capacity(data.len() << 16)));
        return;
    }
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", "allocating_without_bound_ends_the_program"]).env("BIVOUAC_TESTING_DO", "1");
    let done = again.output().expect("it starts");
    assert!(String::from_utf8_lossy(&done.stderr).contains("more than 1048576 bytes"), "{done:?}");
    assert!(!done.status.success());
}
