//! The transcript programs of `tests/c` on a local directory, without the library and with it awake: streams,
//! directory streams, starting programs, tree walks and the rest go through our faces, and must behave as ever.
//! (The same programs on a mount are whole-system tests.)

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("libbivouac_preload.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

fn compiled(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/c/{name}.c"));
    let program = into.join(name);
    let output = Command::new("gcc").args(["-O1", "-w", "-o"]).arg(&program).arg(source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program in a directory of its own; what it printed, and how it ended.
fn transcript(program: &Path, awake: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.arg(dir.path()).current_dir(dir.path()).env("LC_ALL", "C");
    if awake {
        command
            .env("LD_PRELOAD", library())
            .env("BIVOUAC_DEPLOYMENT", "no-such-deployment")
            .env("BIVOUAC_MOUNT", "/bivouac-test/mount")
            .env("BIVOUAC_KEY", "/nonexistent/key");
    }
    let output = command.output().unwrap();
    format!("{}{:?}\n", String::from_utf8_lossy(&output.stdout), output.status)
}

fn same(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled(name, dir.path());
    let (without, with) = (transcript(&program, false), transcript(&program, true));
    let differing = without.lines().zip(with.lines()).find(|(without, with)| without != with);
    assert!(without == with, "{name}: {differing:?}");
    assert!(without.lines().count() > 20, "{name} told too little");
}

#[test]
fn streams_on_local_files_are_the_c_librarys() {
    same("stdio");
}

#[test]
fn directory_streams_on_local_directories_are_the_c_librarys() {
    same("dirs");
}

#[test]
fn local_programs_start_as_without_the_library() {
    same("spawn");
}

#[test]
fn local_trees_are_walked_as_without_the_library() {
    same("tree");
}

#[test]
fn descriptors_of_local_files_behave_as_without_the_library() {
    same("descriptors");
}

#[test]
fn local_files_behave_as_without_the_library() {
    same("files");
}

#[test]
fn rare_forms_of_calls_on_local_files_behave_as_without_the_library() {
    same("corners");
}
