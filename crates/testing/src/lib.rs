//! What the tests of all crates share. No program links it.
//!
//! A test that cannot run on a machine must not look like one that passed. Rust's test harness knows only
//! passed, failed and ignored, so a test that returns early says so here: [`skip`] prints one line past the
//! harness's capture, adds it to the file that `BIVOUAC_TESTS_SKIPPED` names, from which `.ci/run` counts,
//! and fails the test where `BIVOUAC_TESTS_STRICT` says that this machine has all that tests need.
//!
//! [`fuzz`] runs fuzz targets as tests; [`eventually`] waits for what other threads and processes do;
//! [`faults`] is a proxy that delays and withholds data, loses answers, and breaks connections.

pub mod faults;
pub mod fuzz;
mod machine;
mod skips;
mod waits;

pub use machine::{can_mount, is_root, skipped_without_mount, skipped_without_root};
pub use skips::{skip, skip_part, skip_part_unsupported, skip_unsupported};
pub use waits::{HANG, eventually, is_quick};
