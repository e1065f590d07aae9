//! A skip leaves a line, and fails where the machine has what tests need. The tests run themselves again with
//! an environment of their own.

use std::path::Path;
use std::process::{Command, Output};

/// Which kind of skip this process, started by [`again`], should do.
const DO: &str = "BIVOUAC_TESTING_DO";

/// Runs `a_test_that_skips` in a process of its own.
fn again(kind: &str, strict: &str, record: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_test_that_skips"]).env(DO, kind);
    command.env("BIVOUAC_TESTS_STRICT", strict).env("BIVOUAC_TESTS_SKIPPED", record);
    command.output().expect("it starts")
}

#[test]
fn a_test_that_skips() {
    let reason = "no moon\tor\nno sun";
    match std::env::var(DO).as_deref() {
        Ok("whole") => bivouac_testing::skip(reason),
        Ok("part") => bivouac_testing::skip_part(reason),
        Ok("unsupported") => bivouac_testing::skip_unsupported(reason),
        _ => {}
    }
}

#[test]
fn a_skip_is_one_line_in_the_record_and_on_the_screen() {
    let record = std::env::temp_dir().join(format!("bivouac-skips-{}", std::process::id()));
    for (kind, strict) in [("whole", "0"), ("part", ""), ("unsupported", "1")] {
        let done = again(kind, strict, &record);
        assert!(done.status.success(), "{done:?}");
        assert!(
            String::from_utf8_lossy(&done.stderr).contains("\tskips: a_test_that_skips\tno moon or no sun\n")
        );
    }
    let lines = std::fs::read_to_string(&record).expect("written");
    std::fs::remove_file(&record).expect("removed");
    let expected = ["SKIPPED", "SKIPPED IN PART", "SKIPPED"];
    assert_eq!(
        lines,
        expected.map(|kind| format!("{kind}\tskips: a_test_that_skips\tno moon or no sun\n")).concat()
    );
}

#[test]
fn where_the_machine_has_what_tests_need_a_skip_fails() {
    let record = std::env::temp_dir().join(format!("bivouac-strict-{}", std::process::id()));
    for kind in ["whole", "part"] {
        let done = again(kind, "1", &record);
        assert!(!done.status.success(), "{done:?}");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(said.contains("skipped although BIVOUAC_TESTS_STRICT is set: no moon"), "{said}");
    }
    assert!(!record.exists(), "it failed, and is counted as that");
}
