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

#[test]
fn totals_do_not_count_skipped_tests_as_passed() {
    let dir = std::env::temp_dir().join(format!("bivouac-totals-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("made");
    let log = "test result: ok. 5 passed; 0 failed; 0 ignored; finished in 0.1s\nnoise 7 passed\n\
               test result: ok. 3 passed; 0 failed; 1 ignored; finished in 0.1s\n";
    let skipped = "SKIPPED\ta: one\tno root\nSKIPPED\ta: one\tno root\nSKIPPED\tb: one\tno disk\n\
                   SKIPPED IN PART\tb: two\tno mount\n";
    let totals = |log: &str, skipped: &str, status: &str| {
        let paths = ["log", "skipped"].map(|name| dir.join(name));
        std::fs::write(&paths[0], log).expect("written");
        std::fs::write(&paths[1], skipped).expect("written");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test-totals.sh");
        let done = Command::new(script).args(&paths).args([status, "9"]).output().expect("it starts");
        (String::from_utf8(done.stdout).expect("text"), done.status.success())
    };
    let expected = "2 tests skipped, 1 parts of others:\n  SKIPPED a: one no root\n  SKIPPED b: one no disk\n  \
                    SKIPPED IN PART b: two no mount\n9 seconds\n6 passed, 0 failed\n";
    assert_eq!(totals(log, skipped, "0"), (expected.to_owned(), true));
    assert_eq!(totals(log, "", "0"), ("no test skipped\n9 seconds\n8 passed, 0 failed\n".to_owned(), true));
    let (said, good) = totals("test result: FAILED. 2 passed; 1 failed; 0 ignored\n", "", "2");
    assert!(!good && said.ends_with("\n2 passed, 1 failed\n"), "{said}");
    let (said, good) = totals(log, "", "2");
    assert!(!good && said.contains("before or beside the tests (exit code 2)"), "{said}");
    assert!(!totals("", "", "0").1, "nothing ran");
    // What pytest prints at the end of its own run.
    let both = format!("{log}..F. [100%]\n30 passed, 2 skipped, 1 warning in 3.21s\n");
    assert_eq!(
        totals(&both, "", "0"),
        ("no test skipped\n9 seconds\n38 passed, 0 failed\n".to_owned(), true)
    );
    let (said, good) = totals("== 1 failed, 4 passed, 2 errors in 61.00s (0:01:01) ==\n", "", "1");
    assert!(!good && said.ends_with("\n4 passed, 3 failed\n"), "{said}");
    std::fs::remove_dir_all(&dir).expect("removed");
}
