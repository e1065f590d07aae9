//! Copies between two local directories: the engine, and the local side of it.

use crate::copy::{self, Options};
use crate::local::Local;
use crate::report::{Report, StageError};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const OPTIONS: Options = Options { threads: 4, progress: false };

/// A scratch directory with a source in it; the destination is not there yet.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("from")).expect("a directory");
        Place { directory }
    }

    fn from(&self, name: &str) -> PathBuf {
        self.directory.path().join("from").join(name)
    }

    fn to(&self, name: &str) -> PathBuf {
        self.directory.path().join("to").join(name)
    }

    fn try_copy(&self) -> Result<Report, StageError> {
        let (from, to) = (self.directory.path().join("from"), self.directory.path().join("to"));
        copy::copy(&Local, from.as_os_str().as_bytes(), &Local, to.as_os_str().as_bytes(), &OPTIONS)
    }

    fn copy(&self) -> Report {
        let report = self.try_copy().expect("begun");
        assert_eq!(report.failed, []);
        report
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100_000];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn make_pipe(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR).expect("a pipe");
}

#[test]
fn a_tree_is_copied_with_modes_times_links_and_odd_names() {
    let place = Place::new();
    fs::create_dir_all(place.from("a/b")).expect("directories");
    fs::create_dir(place.from("empty")).expect("a directory");
    let odd = std::ffi::OsStr::from_bytes(b"a/b/new\nline \xff");
    for name in [Path::new("a/none"), Path::new("a/some"), Path::new(odd)] {
        let len = if name.ends_with("none") { 0 } else { 10_000 };
        fs::write(place.directory.path().join("from").join(name), pattern(len)).expect("a file");
    }
    symlink("../nowhere", place.from("a/b/link")).expect("a link");
    fs::hard_link(place.from("a/some"), place.from("a/b/same")).expect("a link");
    fs::set_permissions(place.from("a/some"), fs::Permissions::from_mode(0o4751)).expect("a mode");
    fs::set_permissions(place.from("a/b"), fs::Permissions::from_mode(0o555)).expect("a mode");
    let old = SystemTime::now() - Duration::from_secs(1_000_000);
    for name in ["a/some", "a/b", "a"] {
        File::open(place.from(name)).and_then(|f| f.set_modified(old)).expect("a time");
    }
    let report = place.copy();
    assert_eq!((report.files, report.directories, report.symlinks), (4, 4, 1));
    assert_eq!(report.bytes, 20_000);
    for name in ["a", "a/b", "a/none", "a/some", "a/b/link", "empty"] {
        let (before, after) = (fs::symlink_metadata(place.from(name)), fs::symlink_metadata(place.to(name)));
        let what = |m: io::Result<fs::Metadata>| m.map(|m| (m.mode(), m.mtime(), m.mtime_nsec())).ok();
        assert_eq!(what(before), what(after), "{name}");
    }
    assert_eq!(fs::read(place.directory.path().join("to").join(odd)).expect("there"), pattern(10_000));
    assert_eq!(fs::read_link(place.to("a/b/link")).expect("a link"), Path::new("../nowhere"));
    let inode = |name: &str| fs::metadata(place.to(name)).expect("there").ino();
    assert_eq!(inode("a/some"), inode("a/b/same"));
}

#[test]
fn holes_stay_holes_also_at_the_end_and_in_files_of_several_stretches() {
    const MIB: u64 = 1 << 20;
    let place = Place::new();
    let shapes: [(&str, u64, &[u64]); 4] = [
        ("nothing", 300 * MIB, &[]),
        ("middle", 20 * MIB, &[0, 9 * MIB]),
        ("end", 10 * MIB, &[10 * MIB - 4096]),
        ("large", 200 * MIB, &[63 * MIB, 64 * MIB, 199 * MIB]),
    ];
    for (name, size, written) in shapes {
        let file = File::create(place.from(name)).expect("a file");
        file.set_len(size).expect("a length");
        for at in written {
            file.write_all_at(&pattern(4096), *at).expect("written");
        }
    }
    let report = place.copy();
    assert!(report.bytes < MIB, "{} bytes were copied", report.bytes);
    for (name, size, written) in shapes {
        let meta = fs::metadata(place.to(name)).expect("there");
        assert_eq!(meta.len(), size, "{name}");
        assert!(
            meta.blocks() * 512 <= (written.len() as u64 + 1) * 64 * 1024,
            "{name} takes {}",
            meta.blocks() * 512
        );
        let mut page = vec![1; 4096];
        let file = File::open(place.to(name)).expect("opened");
        for at in written {
            file.read_exact_at(&mut page, *at).expect("read");
            assert_eq!(page, pattern(4096), "{name} at {at}");
        }
        file.read_exact_at(&mut page, 5 * MIB).expect("read");
        assert!(page.iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn users_attributes_of_files_and_directories_are_copied() {
    let place = Place::new();
    fs::write(place.from("file"), "data").expect("a file");
    fs::create_dir(place.from("directory")).expect("a directory");
    let long = pattern(3000);
    for name in ["file", "directory"] {
        if !set_attribute(&place.from(name), "user.long", &long) {
            let place = std::env::temp_dir();
            bivouac_testing::skip_unsupported(&format!("no extended attributes in {}", place.display()));
            return;
        }
        assert!(set_attribute(&place.from(name), "user.empty", b""));
    }
    place.copy();
    for name in ["file", "directory"] {
        assert_eq!(attribute(&place.to(name), "user.long").as_deref(), Some(&long[..]), "{name}");
        assert_eq!(attribute(&place.to(name), "user.empty").as_deref(), Some(&b""[..]), "{name}");
    }
}

#[test]
fn pipes_and_sockets_are_made_anew_also_where_something_else_was() {
    let place = Place::new();
    make_pipe(&place.from("pipe"));
    let _listener = std::os::unix::net::UnixListener::bind(place.from("socket")).expect("a socket");
    fs::set_permissions(place.from("pipe"), fs::Permissions::from_mode(0o640)).expect("a mode");
    fs::create_dir(place.to("")).expect("a directory");
    fs::write(place.to("pipe"), "a file").expect("a file");
    for _ in 0..2 {
        let report = place.copy();
        assert_eq!((report.special, report.files, report.left_out), (2, 0, Vec::new()));
        let meta = fs::symlink_metadata(place.to("pipe")).expect("there");
        assert!(meta.file_type().is_fifo());
        assert_eq!(meta.mode() & 0o7777, 0o640);
        assert!(fs::symlink_metadata(place.to("socket")).expect("there").file_type().is_socket());
    }
}

#[test]
fn every_failure_is_told_and_the_rest_is_copied() {
    let place = Place::new();
    for name in ["a", "b", "c", "d"] {
        fs::write(place.from(name), name).expect("a file");
    }
    // Directories are where files are to come.
    for name in ["b", "d"] {
        fs::create_dir_all(place.to(name).join("in the way")).expect("a directory");
    }
    let report = place.try_copy().expect("begun");
    let mut failed: Vec<_> = report.failed.iter().map(|(path, _)| path.clone()).collect();
    failed.sort();
    assert_eq!(failed, [place.from("b"), place.from("d")]);
    assert_eq!(report.files, 2);
    assert!(!report.is_complete());
    assert_eq!(fs::read(place.to("c")).expect("there"), b"c");
    // Nothing of what was begun is left.
    let left = fs::read_dir(place.to("")).expect("listed").count();
    assert_eq!(left, 4);
}

#[test]
fn a_source_that_is_missing_or_special_is_an_error_at_once() {
    let place = Place::new();
    let to = place.directory.path().join("to");
    make_pipe(&place.from("pipe"));
    for name in ["missing", "pipe"] {
        let from = place.from(name);
        let copied =
            copy::copy(&Local, from.as_os_str().as_bytes(), &Local, to.as_os_str().as_bytes(), &OPTIONS);
        assert!(matches!(copied, Err(StageError::Source { .. })), "{name}");
    }
}

#[test]
fn what_there_is_to_copy_is_counted_without_copying() {
    let place = Place::new();
    fs::create_dir_all(place.from("a/b/c")).expect("directories");
    for (name, len) in [("one", 10), ("a/two", 200), ("a/b/c/three", 3000)] {
        File::create(place.from(name)).and_then(|mut f| f.write_all(&pattern(len))).expect("a file");
    }
    fs::hard_link(place.from("a/two"), place.from("a/again")).expect("a link");
    symlink("one", place.from("link")).expect("a link");
    let from = place.from("");
    assert_eq!(copy::counted(&Local, from.as_os_str().as_bytes()).expect("there"), (4, 3210));
    assert_eq!(copy::counted(&Local, place.from("one").as_os_str().as_bytes()).expect("there"), (1, 10));
}
