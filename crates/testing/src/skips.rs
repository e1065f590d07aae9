//! How a skipped test is recorded.
//!
//! One line for each skip, in the fixed form `SKIPPED<tab>test<tab>reason`, or `SKIPPED IN PART<tab>...` for
//! a test that did the rest of its work. `.ci/run` reads these lines, takes the tests that were skipped as a
//! whole off the number of those that passed, and shows each with its reason.

use std::io::Write;

/// The file that lines are added to. Nothing is written where it is not set.
const RECORD: &str = "BIVOUAC_TESTS_SKIPPED";
/// If set and not "0": this machine has what tests need, and skipping is failing.
const STRICT: &str = "BIVOUAC_TESTS_STRICT";

/// Records that the calling test is skipped; it should return at once. `reason` says what is missing.
///
/// # Panics
/// Where `BIVOUAC_TESTS_STRICT` is set.
#[track_caller]
pub fn skip(reason: &str) {
    fail_if_strict(reason);
    record("SKIPPED", reason);
}

/// Records that the calling test leaves out a part of what it tests, and does the rest.
///
/// # Panics
/// Where `BIVOUAC_TESTS_STRICT` is set.
#[track_caller]
pub fn skip_part(reason: &str) {
    fail_if_strict(reason);
    record("SKIPPED IN PART", reason);
}

/// Records that the kernel, or a file system that is given, cannot do what the calling test is about. No
/// setup could change that: the skip is counted, and never fails.
pub fn skip_unsupported(reason: &str) {
    record("SKIPPED", reason);
}

/// The same of a part of the calling test, which does the rest.
pub fn skip_part_unsupported(reason: &str) {
    record("SKIPPED IN PART", reason);
}

fn record(kind: &str, reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread without a name");
    let program = std::env::current_exe().unwrap_or_default();
    // Without the hash that cargo appends.
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let line = format!("{kind}\t{program}: {test}\t{}\n", reason.replace(['\n', '\t'], " "));
    // Not by `eprintln!`, whose text the harness shows only of tests that fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(RECORD) {
        // One write of a short line to a file opened for appending: lines of concurrent test programs do not
        // mix.
        let file = std::fs::File::options().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{RECORD}={}: {error}", path.display()));
    }
}

#[track_caller]
fn fail_if_strict(reason: &str) {
    let strict = std::env::var_os(STRICT).is_some_and(|value| !value.is_empty() && value != "0");
    assert!(!strict, "skipped although {STRICT} is set: {reason}");
}
