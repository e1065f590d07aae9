//! Programs that exercise whole families of libc's calls and print what comes of them: inside a deployment
//! they print what they print on a local directory.

use bivouac_tests::{Site, accesses, finish};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `tests/c/NAME.c`.
fn build(site: &Site, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    let program = site.path(name);
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-o"]).arg(&program).arg(source).args(["-ldl", "-lpthread"]);
    finish(compiler).ok();
    program
}

/// What the two transcripts say differently.
fn differences(local: &str, inside: &str) -> String {
    let missing = local.lines().filter(|line| !inside.contains(line)).map(|line| format!("local:  {line}\n"));
    let new = inside.lines().filter(|line| !local.contains(line)).map(|line| format!("inside: {line}\n"));
    missing.chain(new).take(40).collect()
}

fn same_transcript(name: &str) {
    let site = Site::new(&format!("transcript-{name}"));
    let program = build(&site, name);
    let local = PathBuf::from(format!("/dev/shm/transcript-{name}-{}", std::process::id()));
    std::fs::create_dir(&local).expect("a directory");
    let mut alone = Command::new(&program);
    alone.arg(&local);
    let expected = finish(alone);
    std::fs::remove_dir_all(&local).expect("removed");
    let expected = expected.ok();
    let deployment = site.up(4);
    let program = program.display();
    assert!(expected.lines().count() > 20, "the transcript is too short to tell anything");
    let accesses = accesses().iter().map(|access| vec!["--access", *access]);
    for access in accesses.chain([vec!["--catch-syscalls"]]) {
        let place = format!("/bivouac/{}", access.concat());
        let script = format!("mkdir {place} && {program} {place}");
        let inside = [&["exec", &deployment], &access[..], &["--", "bash", "-c", &script]].concat();
        let inside = site.bivouac(inside).ok();
        assert_eq!(inside, expected, "{access:?}: {}", differences(&expected, &inside));
    }
}

#[test]
fn corners() {
    same_transcript("corners");
}

#[test]
fn descriptors() {
    same_transcript("descriptors");
}

#[test]
fn directories() {
    same_transcript("dirs");
}

#[test]
fn files() {
    same_transcript("files");
}

#[test]
fn locks() {
    same_transcript("locks");
}

#[test]
fn programs_and_their_children() {
    same_transcript("spawn");
}

#[test]
fn standard_streams() {
    same_transcript("stdio");
}

#[test]
fn streams_whose_descriptors_change() {
    same_transcript("streams");
}

#[test]
fn trees() {
    same_transcript("tree");
}

#[test]
fn vfork_children() {
    same_transcript("vforks");
}

#[test]
fn a_program_without_the_library_creates_nothing_in_a_working_directory_of_the_mount() {
    let site = Site::new("mirror");
    let deployment = site.up(1);
    let script = r#"
        mkdir -p /bivouac/a/b && cd /bivouac/a/b || exit 1
        lost="echo lost > f; mkdir g; echo lost > ../h"
        env -u LD_PRELOAD sh -c "$lost" 2> /dev/null
        find /dev/shm/bivouac-$(id -u)/$BIVOUAC_DEPLOYMENT/node-*/cwd -mindepth 1
        (mv /bivouac/a /bivouac/c; /bin/pwd; echo kept > f; cat f; ls /proc/self/cwd/ | cat; cd ..; ls)
        readlink /proc/self/cwd
        bash -c 'echo $(cd /bivouac/c && /bin/pwd); /bin/pwd; sh -c /bin/pwd'
        python3 -c 'import os, subprocess; os.chdir("/bivouac/c"); subprocess.run("pwd; ls", shell=True, cwd="b")'
    "#;
    let out = site.sh(&deployment, script).ok();
    let expected =
        "/bivouac/c/b\nkept\nf\nb\n/bivouac/c/b\n/bivouac/c\n/bivouac/c/b\n/bivouac/c/b\n/bivouac/c/b\nf\n";
    assert_eq!(out, expected);
}

#[test]
fn maps() {
    let site = Site::new("transcript-maps");
    let program = build(&site, "mmap_sum");
    let local = site.path("data");
    std::fs::write(&local, (0..3_000_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>()).expect("written");
    let mut alone = Command::new(&program);
    alone.arg(&local);
    let expected = finish(alone).ok();
    let deployment = site.up(4);
    let (program, local) = (program.display(), local.display());
    for access in accesses() {
        let script = format!("cp {local} /bivouac/data && {program} /bivouac/data");
        let inside =
            site.bivouac(["exec", &deployment, "--access", access, "--", "bash", "-c", &script]).ok();
        assert_eq!(inside, expected, "{access}");
    }
}
