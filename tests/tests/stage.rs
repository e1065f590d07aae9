//! Preload and flush from the command line: what is kept, what is said, and what an interruption does.

use bivouac_tests::{Site, eventually, run_dir};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

fn mkfifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR).expect("a pipe");
}

#[test]
fn holes_attributes_pipes_and_sockets_survive_preload_and_flush() {
    let site = Site::new("stage-all");
    let (from, to) = (site.path("from"), site.path("to"));
    fs::create_dir_all(from.join("sub")).expect("directories");
    let sparse = File::create(from.join("sparse")).expect("a file");
    sparse.set_len(300 << 20).expect("a length");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"here", 100 << 20).expect("written");
    mkfifo(&from.join("pipe"));
    let _listener = std::os::unix::net::UnixListener::bind(from.join("sub/socket")).expect("a socket");
    fs::write(from.join("sub/file"), "data").expect("a file");
    let mut attributes = true;
    for path in [from.join("sub"), from.join("sub/file")] {
        let set = rustix::fs::setxattr(&path, "user.note", b"kept", rustix::fs::XattrFlags::empty());
        attributes &= set.is_ok();
    }
    let preload = format!("{}:/in", from.display());
    let flush = format!("/in:{}", to.display());
    let run = site.bivouac([
        "run", "--servers", "3", "--preload", &preload, "--flush", &flush, "--", "sh", "-c",
        "stat -c '%s %b' /bivouac/in/sparse; test -p /bivouac/in/pipe && test -S /bivouac/in/sub/socket && getfattr --only-values -n user.note /bivouac/in/sub /bivouac/in/sub/file 2>&1 || true",
    ]);
    assert_eq!(run.code, 0, "{}", run.err);
    let mut words = run.out.split_whitespace();
    assert_eq!(words.next(), Some("314572800"));
    let blocks: u64 = words.next().and_then(|blocks| blocks.parse().ok()).expect("a number");
    assert!(blocks <= 2048, "of a file with 4 bytes of data {blocks} blocks are taken inside");
    assert!(run.err.contains("2 special files"), "{}", run.err);
    let meta = fs::metadata(to.join("sparse")).expect("there");
    assert_eq!(meta.len(), 300 << 20);
    assert!(meta.blocks() <= 2048, "{} blocks are taken outside", meta.blocks());
    let mut here = [0; 6];
    let file = File::open(to.join("sparse")).expect("opened");
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut here, (100 << 20) - 1).expect("read");
    assert_eq!(&here, b"\0here\0");
    assert!(fs::symlink_metadata(to.join("pipe")).expect("there").file_type().is_fifo());
    assert!(fs::symlink_metadata(to.join("sub/socket")).expect("there").file_type().is_socket());
    for path in [to.join("sub"), to.join("sub/file")] {
        let mut value = [0; 16];
        let read = rustix::fs::getxattr(&path, "user.note", &mut value[..]);
        assert!(!attributes || read.is_ok_and(|len| &value[..len] == b"kept"), "{}", path.display());
    }
}

#[test]
fn every_failure_of_every_tree_is_said() {
    let site = Site::new("stage-fails");
    let name = site.name("run");
    for tree in ["one", "two"] {
        fs::create_dir_all(site.path(tree)).expect("a directory");
        for number in 0..15 {
            // A directory where a file is to come.
            fs::create_dir_all(site.path(&format!("{tree}/{number}/full"))).expect("a directory");
        }
    }
    fs::write(site.path("blocked"), "a file where a directory is needed").expect("writes");
    let script = "mkdir /bivouac/a /bivouac/b; for i in $(seq 0 14); do echo $i > /bivouac/a/$i; echo $i > /bivouac/b/$i; done";
    let flush = |from: &str, to: &str| format!("{from}:{}", site.path(to).display());
    let run = site.bivouac([
        "run",
        "--name",
        &name,
        "--flush",
        &flush("/a", "one"),
        "--flush",
        &flush("/missing", "three"),
        "--flush",
        &flush("/b", "two"),
        "--flush",
        &flush("/a/1", "blocked/x"),
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(run.code, 69, "{}", run.err);
    for place in ["  a/", "  b/"] {
        let said = run.err.lines().filter(|line| line.starts_with(place)).count();
        assert_eq!(said, 15, "of {place} in {}", run.err);
    }
    for word in
        ["15 of /a were not flushed", "15 of /b were not flushed", "/missing was not flushed", "blocked"]
    {
        assert!(run.err.contains(word), "{word} is missing in {}", run.err);
    }
    // A preload that fails says all of it, too, and the command is not started.
    let missing = |name: &str| site.path(name).display().to_string();
    let run = site.bivouac([
        "run",
        "--preload",
        &missing("no-1"),
        "--preload",
        &missing("no-2"),
        "--",
        "echo",
        "started",
    ]);
    run.fails(68, &["no-1", "no-2"]);
}

/// Starts a run whose flush takes a while, and waits until that has begun.
fn flushing(site: &Site, name: &str) -> std::process::Child {
    let out = site.path(name);
    let flush = format!("/many:{}", out.display());
    let script = "mkdir /bivouac/many; cd /bivouac/many; for i in $(seq 6000); do echo $i > $i; done";
    let child = site
        .command(["run", "--name", name, "--flush", &flush, "--", "bash", "-c", script])
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    eventually("results are copied out", || out.exists());
    child
}

#[test]
fn the_first_interrupt_of_a_flush_warns_and_the_second_gives_it_up() {
    let site = Site::new("stage-int");
    let (first, second) = (site.name("first"), site.name("second"));
    let child = flushing(&site, &first);
    Site::kill(child.id() as i32, Signal::INT);
    let ended = bivouac_tests::Finished::of(child.wait_with_output().expect("ends"));
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(ended.err.contains("interrupt once more"), "{}", ended.err);
    assert_eq!(fs::read_dir(site.path(&first)).expect("there").count(), 6000);
    let child = flushing(&site, &second);
    Site::kill(child.id() as i32, Signal::INT);
    std::thread::sleep(Duration::from_millis(20));
    Site::kill(child.id() as i32, Signal::INT);
    let ended = bivouac_tests::Finished::of(child.wait_with_output().expect("ends"));
    assert_eq!(ended.code, 130, "{}", ended.err);
    assert!(!site.home().join(&second).exists() && !run_dir(&second).exists());
}
