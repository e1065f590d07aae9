//! Preload and flush through real daemons: what comes out is what went in, and what fails is said.

mod common;

use bivouac_layout::Ino;
use bivouac_stage::{Options, copy_in, copy_out};
use common::{cluster, pattern};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

const OPTIONS: Options = Options { threads: 4, progress: false };

fn tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).expect("directories");
    for (name, len) in [("a/empty", 0), ("a/small", 100), ("a/b/block", 65_536), ("a/b/c/large", 70 << 20)] {
        fs::write(root.join(name), pattern(len)).expect("a file");
    }
    fs::hard_link(root.join("a/small"), root.join("a/b/same")).expect("a link");
    symlink("../small", root.join("a/b/link")).expect("a link");
    symlink("/nowhere", root.join("a/dangling")).expect("a link");
    fs::set_permissions(root.join("a/small"), fs::Permissions::from_mode(0o640)).expect("a mode");
    fs::set_permissions(root.join("a/b/c"), fs::Permissions::from_mode(0o555)).expect("a mode");
    let old = SystemTime::now() - Duration::from_secs(1_000_000);
    for name in ["a/small", "a/b/block", "a/b/c"] {
        fs::File::open(root.join(name)).and_then(|f| f.set_modified(old)).expect("a time");
    }
}

fn describe(root: &Path, at: &Path, into: &mut Vec<String>) {
    let mut names: Vec<_> = fs::read_dir(at).expect("listed").map(|e| e.expect("an entry").path()).collect();
    names.sort();
    for path in names {
        let meta = fs::symlink_metadata(&path).expect("attributes");
        let what = if meta.is_symlink() {
            format!("-> {}", fs::read_link(&path).expect("a target").display())
        } else if meta.is_dir() {
            format!("{:o} {}", meta.mode(), meta.mtime())
        } else {
            let data = fs::read(&path).expect("read");
            assert_eq!(data, pattern(data.len()), "{}", path.display());
            format!(
                "{:o} {} {} {}.{}",
                meta.mode(),
                meta.nlink(),
                meta.size(),
                meta.mtime(),
                meta.mtime_nsec()
            )
        };
        into.push(format!("{} {what}", path.strip_prefix(root).expect("below").display()));
        if meta.is_dir() {
            describe(root, &path, into);
        }
    }
}

#[test]
fn what_comes_out_is_what_went_in() {
    let c = cluster("stage", 4);
    let work = tempfile::tempdir().expect("a directory");
    let (source, target) = (work.path().join("source"), work.path().join("target"));
    tree(&source);
    let report = copy_in(c.client, &source, b"/bivouac/in/here", &OPTIONS).expect("begun");
    assert_eq!(report.failed, []);
    assert_eq!((report.files, report.directories, report.symlinks), (5, 4, 2));
    assert_eq!(report.bytes, 100 + 65_536 + (70 << 20));
    let report = copy_out(c.client, b"in/here", &target, &OPTIONS).expect("begun");
    assert_eq!(report.failed, []);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    describe(&source, &source, &mut before);
    describe(&target, &target, &mut after);
    assert_eq!(before, after);
    // Again, over what is there.
    let report = copy_in(c.client, &source, b"in/here", &OPTIONS).expect("begun");
    assert_eq!(report.failed, []);
}

#[test]
fn a_file_that_cannot_be_copied_is_said_and_the_rest_is_copied() {
    let c = cluster("stage-fails", 2);
    let work = tempfile::tempdir().expect("a directory");
    fs::write(work.path().join("good"), b"good").expect("a file");
    fs::write(work.path().join("bad"), b"bad").expect("a file");
    // A directory is where the file is to come.
    c.client.mkdir(Ino::ROOT, b"in", 0o755).expect("made");
    c.client.mkdir(Ino::ROOT, b"in/bad", 0o755).expect("made");
    let report = copy_in(c.client, work.path(), b"in", &OPTIONS).expect("begun");
    assert_eq!(report.files, 1);
    assert_eq!(report.failed.len(), 1);
    assert_eq!(report.failed[0].0, work.path().join("bad"));
    assert_eq!(c.read("in/good"), b"good");
    assert!(copy_in(c.client, &work.path().join("missing"), b"in", &OPTIONS).is_err());
}

#[test]
fn holes_attributes_and_special_files_are_kept_and_take_the_place_of_what_was_there() {
    let c = cluster("stage-kinds", 3);
    let work = tempfile::tempdir().expect("a directory");
    let (source, target) = (work.path().join("source"), work.path().join("target"));
    fs::create_dir(&source).expect("a directory");
    let sparse = fs::File::create(source.join("sparse")).expect("a file");
    sparse.set_len(200 << 20).expect("a length");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"here", 150 << 20).expect("written");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, source.join("pipe"), mode).expect("a pipe");
    symlink("elsewhere", source.join("link")).expect("a link");
    fs::write(source.join("file"), b"data").expect("a file");
    // What is there is of another kind.
    c.client.mkdir(Ino::ROOT, b"in", 0o755).expect("made");
    c.write("in/pipe", b"a file");
    c.write("in/link", b"a file");
    c.client.symlink(b"pipe", Ino::ROOT, b"in/file").expect("made");
    c.client.mknod(Ino::ROOT, b"in/sparse", 0o010_600).expect("made");
    let report = copy_in(c.client, &source, b"in", &OPTIONS).expect("begun");
    assert_eq!((report.failed, report.left_out), (vec![], vec![]));
    assert_eq!((report.files, report.special, report.symlinks), (2, 1, 1));
    assert!(report.bytes < 1 << 20, "{} bytes were copied", report.bytes);
    c.client.set_xattr(Ino::ROOT, b"in/file", true, b"user.note", b"kept", 0).expect("set");
    let report = copy_out(c.client, b"in", &target, &OPTIONS).expect("begun");
    assert_eq!(report.failed, vec![]);
    assert!(report.bytes < 1 << 20, "{} bytes were copied", report.bytes);
    let meta = fs::metadata(target.join("sparse")).expect("there");
    assert!(meta.len() == 200 << 20 && meta.blocks() <= 2048, "{} blocks", meta.blocks());
    let mut value = [0; 16];
    let read = rustix::fs::getxattr(target.join("file"), "user.note", &mut value[..]);
    let offered = !report.left_out.iter().any(|(path, _)| path.ends_with("file"));
    assert!(!offered || read.is_ok_and(|len| &value[..len] == b"kept"));
}

#[test]
fn one_file_goes_into_a_directory_or_to_a_name() {
    let c = cluster("stage-one", 2);
    let work = tempfile::tempdir().expect("a directory");
    let file = work.path().join("file");
    fs::write(&file, b"content").expect("a file");
    c.client.mkdir(Ino::ROOT, b"d", 0o755).expect("made");
    copy_in(c.client, &file, b"d", &OPTIONS).expect("begun");
    assert_eq!(c.read("d/file"), b"content");
    copy_in(c.client, &file, b"new/name", &OPTIONS).expect("begun");
    assert_eq!(c.read("new/name"), b"content");
    copy_out(c.client, b"new/name", &work.path().join("back"), &OPTIONS).expect("begun");
    assert_eq!(fs::read(work.path().join("back")).expect("there"), b"content");
}
