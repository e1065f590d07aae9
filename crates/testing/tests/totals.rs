//! The totals of a run of all tests count what has failed, also what could not say so itself.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

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
    let hangs = format!("{log}PROGRAM FAILED: locks had not ended after 900 s, and was ended\n");
    let (said, good) = totals(&hangs, "", "2");
    assert!(!good && said.ends_with("\n8 passed, 1 failed\n"), "{said}");
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// A test binary that crashes or hangs has said nothing of its tests: whoever runs it does.
#[test]
fn programs_that_crash_or_hang_are_failures() {
    let dir = std::env::temp_dir().join(format!("bivouac-crashes-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("made");
    let programs = [
        ("good", "echo; echo 'test result: ok. 1 passed; 0 failed'"),
        ("fails", "echo; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101"),
        ("crashes", "echo half; kill -SEGV $$"),
        ("hangs", "exec sleep 60"),
    ];
    let mut messages = String::new();
    for (name, script) in programs {
        let path = dir.join(format!("{name}-0123"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        messages += &format!(
            "{{\"reason\": \"compiler-artifact\", \"profile\": {{\"test\": true}}, \"executable\": {path:?}, \
             \"manifest_path\": {:?}}}\n",
            dir.join("Cargo.toml")
        );
    }
    std::fs::write(dir.join("messages"), messages).expect("written");
    let done = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/run-tests.py"))
        .arg("2")
        .env("BIVOUAC_TEST_LIMIT", "2")
        .stdin(std::fs::File::open(dir.join("messages")).expect("opened"))
        .output()
        .expect("it starts");
    let said = String::from_utf8(done.stdout).expect("text");
    let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("PROGRAM FAILED: ")).collect();
    assert_eq!(failed.len(), 2, "{said}");
    assert!(
        said.contains("crashes ended in the middle, with ") && said.contains("hangs had not ended"),
        "{said}"
    );
    assert!(!done.status.success());
    std::fs::remove_dir_all(&dir).expect("removed");
}
