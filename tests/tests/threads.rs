//! Threads that use the mount and local files at once.

use bivouac_tests::{Site, finish};
use std::path::Path;
use std::process::Command;

#[test]
fn threads_meet_no_error_while_descriptors_and_the_working_directory_change_hands() {
    let site = Site::new("threads");
    let program = site.path("threads");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/threads.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(source);
    finish(compiler).ok();
    let local = site.path("local");
    std::fs::create_dir(&local).expect("a directory");
    let deployment = site.up(2);
    let run = format!("mkdir /bivouac/work && {} {} /bivouac/work", program.display(), local.display());
    let said = site.sh(&deployment, &run).ok();
    let expected = "numbers: 0 wrong, 0 lost, both used: 1\ndirectories: 0 wrong\ncancelled: 0 wrong\n";
    assert_eq!(said, expected);
}
