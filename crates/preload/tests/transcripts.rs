//! The transcript programs of `tests/c` on a local directory, without the library and with it awake: streams,
//! directory streams, starting programs, tree walks and the rest go through our faces, and must behave as
//! ever. (The same programs on a mount are whole-system tests.)

mod common;

use common::{awake, compiled};
use std::path::Path;
use std::process::Command;

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    WithLibrary,
    /// With the library, which catches libc's own system calls, too.
    Caught,
}

/// Runs a program in a directory of its own; what it printed, and how it ended.
fn transcript(program: &Path, way: Way) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.arg(dir.path()).current_dir(dir.path()).env("LC_ALL", "C");
    if way != Way::Alone {
        awake(&mut command);
    }
    if way == Way::Caught {
        command.env("BIVOUAC_CATCH_SYSCALLS", "1");
    }
    let output = command.output().unwrap();
    format!("{}{:?}\n", String::from_utf8_lossy(&output.stdout), output.status)
}

fn same(name: &str) {
    same_of(name, 20);
}

/// With and without the library a program prints the same, more than so many lines.
fn same_of(name: &str, least: usize) {
    let dir = tempfile::tempdir().unwrap();
    let program = compiled(name, dir.path());
    let without = transcript(&program, Way::Alone);
    for way in [Way::WithLibrary, Way::Caught] {
        let with = transcript(&program, way);
        let differing = without.lines().zip(with.lines()).find(|(without, with)| without != with);
        assert!(without == with, "{name}: {differing:?}");
    }
    assert!(without.lines().count() > least, "{name} told too little");
}

#[test]
fn streams_on_local_files_are_the_c_librarys() {
    same("stdio");
}

#[test]
fn streams_on_local_files_change_files_as_without_the_library() {
    same("streams");
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

#[test]
fn signals_threads_and_the_loader_do_not_notice_the_library() {
    same_of("foreign_process", 1);
}

#[test]
fn locks_on_local_files_behave_as_without_the_library() {
    same("locks");
}

#[test]
fn vfork_children_behave_as_without_the_library() {
    same("vforks");
}
