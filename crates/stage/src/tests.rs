//! Copies between two local directories: coordinator, workers, and the local side of both.

use crate::coordinator::{Job, Link, Options, Others, copy};
use crate::filter::Filter;
use crate::local::Local;
use crate::record::Record;
use crate::report::{Report, StageError};
use crate::wire::{self, Answer, Direction, Order};
use crate::worker::{self, Trees};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

/// A worker in a thread of this process, which seems to die after it has said so many bytes.
fn worker(node: u16, lives: u64) -> Link {
    let (orders, input) = io::pipe().expect("a pipe");
    let (output, answers) = io::pipe().expect("a pipe");
    std::thread::spawn(move || {
        let trees = Trees { from: Box::new(Local), to: Box::new(Local), node };
        worker::work(orders, answers, || {}, |_| Ok(trees))
    });
    Link {
        name: format!("node{node}"),
        serves: true,
        input: Box::new(input),
        output: Box::new(io::Read::take(output, lives)),
        end: Box::new(|_| String::new()),
    }
}

fn workers() -> Vec<Link> {
    (0..3).map(|node| worker(node, u64::MAX)).collect()
}

fn options() -> Options {
    Options { streams: 6, ..Options::default() }
}

fn job(from: &Path, to: &Path, direction: Direction) -> Job {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let (source, destination) = (bytes(from), bytes(to));
    Job { name: String::new(), direction, source, destination, deployment: 7 }
}

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
        self.copy_with(workers(), &options(), &mut Record::default())
    }

    fn copy_with(
        &self,
        workers: Vec<Link>,
        options: &Options,
        record: &mut Record,
    ) -> Result<Report, StageError> {
        let (from, to) = (self.directory.path().join("from"), self.directory.path().join("to"));
        copy(workers, job(&from, &to, Direction::Out), options, record)
    }

    /// What is at the destination: paths and contents.
    fn there(&self) -> Vec<(PathBuf, Vec<u8>)> {
        contents(&self.directory.path().join("to"))
    }

    fn copy(&self) -> Report {
        let report = self.try_copy().expect("begun");
        assert_eq!(report.failed, []);
        report
    }
}

/// All files below a directory, sorted.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).expect("listed").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                directories.push(entry);
            } else {
                let name = entry.strip_prefix(directory).expect("below").to_owned();
                found.push((name, fs::read(&entry).expect("read")));
            }
        }
    }
    found.sort();
    found
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
    for made in [2, 0] {
        let report = place.copy();
        assert_eq!((report.special, report.files, report.left_out), (made, 0, Vec::new()));
        assert_eq!(report.unchanged, 2 - made);
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
        for direction in [Direction::In, Direction::Out] {
            let copied = copy(workers(), job(&from, &to, direction), &options(), &mut Record::default());
            assert!(matches!(copied, Err(StageError::Source { .. })), "{name}");
        }
    }
}

#[test]
fn a_file_goes_into_a_directory_and_under_a_name_otherwise() {
    let place = Place::new();
    fs::write(place.from("file"), pattern(5000)).expect("a file");
    fs::create_dir(place.to("")).expect("a directory");
    for (to, expected) in [("", "file"), ("name", "name"), ("new/", "new/file")] {
        for direction in [Direction::In, Direction::Out] {
            let job = job(&place.from("file"), &place.directory.path().join("to").join(to), direction);
            let report = copy(workers(), job, &options(), &mut Record::default()).expect("begun");
            assert_eq!(report.failed, [], "{to}");
            assert_eq!(fs::read(place.to(expected)).expect("there"), pattern(5000), "{to}");
            fs::remove_file(place.to(expected)).expect("removed");
        }
    }
}

#[test]
fn what_is_complete_is_not_copied_again_and_the_rest_is() {
    let place = Place::new();
    for (name, len) in [("kept", 10), ("changed", 20), ("large", 40 << 20)] {
        fs::write(place.from(name), pattern(len)).expect("a file");
    }
    assert_eq!(place.copy().files, 3);
    let report = place.copy();
    assert_eq!((report.files, report.unchanged, report.bytes), (0, 3, 0));
    fs::write(place.from("changed"), pattern(21)).expect("a file");
    fs::remove_file(place.to("kept")).expect("removed");
    let report = place.copy();
    assert_eq!((report.files, report.unchanged, report.bytes), (2, 1, 31));
    assert_eq!(contents(&place.from("")), place.there());
    // The same size and time with other contents is found by the contents only.
    let time = fs::metadata(place.to("changed")).expect("there").modified().expect("a time");
    let file = File::options().write(true).open(place.to("changed")).expect("opened");
    file.write_all_at(b"x", 0).and_then(|()| file.set_modified(time)).expect("written");
    assert_eq!(place.copy().files, 0);
    let checked = Options { checksum: true, ..options() };
    let report = place.copy_with(workers(), &checked, &mut Record::default()).expect("begun");
    assert_eq!((report.files, report.failed), (1, Vec::new()));
    assert_eq!(contents(&place.from("")), place.there());
}

#[test]
fn the_work_of_a_worker_that_dies_is_done_by_others() {
    let place = Place::new();
    fs::create_dir(place.from("directory")).expect("a directory");
    for number in 0..500 {
        fs::write(place.from(&format!("directory/{number}")), pattern(number * 7)).expect("a file");
    }
    fs::write(place.from("large"), pattern(50 << 20)).expect("a file");
    for lives in [60, 1000, 20_000] {
        let workers = vec![worker(0, lives), worker(1, lives * 2), worker(2, u64::MAX)];
        let report = place.copy_with(workers, &options(), &mut Record::default()).expect("begun");
        assert_eq!(report.failed, [], "{lives}");
        assert!(!report.nodes_lost.is_empty(), "{lives}");
        assert_eq!(contents(&place.from("")), place.there());
        fs::remove_dir_all(place.to("")).expect("removed");
    }
    // Without any worker left, it is an error, and no partial file has a final name.
    let workers = vec![worker(0, 1000), worker(1, 1000)];
    let result = place.copy_with(workers, &options(), &mut Record::default());
    assert!(matches!(result, Err(StageError::Workers(_))), "{result:?}");
    let source = contents(&place.from(""));
    for file in place.there().iter().filter(|(name, _)| !name.to_string_lossy().ends_with(".part")) {
        assert!(source.contains(file), "{}", file.0.display());
    }
}

#[test]
fn what_an_interrupted_run_has_left_is_removed_by_the_next_one() {
    let place = Place::new();
    fs::create_dir_all(place.from("sub")).expect("a directory");
    fs::write(place.from("sub/file"), pattern(100)).expect("a file");
    fs::create_dir_all(place.to("sub")).expect("a directory");
    // Of this deployment, of another one a long time ago, and of another one now.
    let own = format!("sub/.bivouac-{:016x}-00000001-0123456789abcdef.part", 7);
    let old = "sub/.bivouac-0000000000000008-00000001-0123456789abcdef.part";
    let busy = "sub/.bivouac-0000000000000009-00000001-0123456789abcdef.part";
    for name in [&own, old, busy] {
        fs::write(place.to(name), "part").expect("a file");
    }
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(place.to(old)).and_then(|f| f.set_modified(long_ago)).expect("a time");
    place.copy();
    let left: Vec<_> = place.there().into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, [PathBuf::from(busy), PathBuf::from("sub/file")]);
}

#[test]
fn a_mirror_deletes_what_the_source_does_not_have_but_nothing_excluded() {
    let place = Place::new();
    fs::create_dir_all(place.from("kept")).expect("a directory");
    fs::create_dir(place.from("was a file")).expect("a directory");
    fs::write(place.from("kept/a.log"), "source's").expect("a file");
    fs::write(place.from("kept/b"), "b").expect("a file");
    for name in ["kept/old", "gone/x/y", "gone/x/z.log", "all gone/x/y", "c.log"] {
        let path = place.to(name);
        fs::create_dir_all(path.parent().expect("below")).expect("a directory");
        fs::write(path, "there").expect("a file");
    }
    fs::write(place.to("was a file"), "in the way").expect("a file");
    let filter = Filter::new(&[], &[b"*.log".to_vec()], None).expect("a pattern");
    let mut options = Options { delete: true, filter, dry_run: true, ..options() };
    let before = place.there();
    let report = place.copy_with(workers(), &options, &mut Record::default()).expect("begun");
    assert_eq!(place.there(), before, "a dry run changes nothing");
    let mut planned: Vec<_> =
        report.planned.iter().map(|(p, what)| format!("{what} {}", p.display())).collect();
    planned.sort();
    assert_eq!(
        planned,
        [
            "copy kept/b",
            "delete all gone",
            "delete all gone/x",
            "delete all gone/x/y",
            "delete gone",
            "delete gone/x",
            "delete gone/x/y",
            "delete kept/old"
        ]
    );
    options.dry_run = false;
    let report = place.copy_with(workers(), &options, &mut Record::default()).expect("begun");
    assert_eq!(report.failed, []);
    let names: Vec<_> = place.there().into_iter().map(|(name, _)| name.display().to_string()).collect();
    assert_eq!(names, ["c.log", "gone/x/z.log", "kept/b"]);
    assert!(!place.to("all gone").exists() && place.to("was a file").is_dir());
}

#[test]
fn nothing_is_deleted_when_not_all_of_the_source_could_be_seen() {
    let place = Place::new();
    fs::write(place.from("blocked"), "a file").expect("a file");
    fs::create_dir_all(place.to("blocked/full")).expect("a directory in its way");
    fs::write(place.to("extra"), "there").expect("a file");
    let options = Options { delete: true, ..options() };
    let report = place.copy_with(workers(), &options, &mut Record::default()).expect("begun");
    assert_eq!(report.failed.len(), 2, "{:?}", report.failed);
    assert!(place.to("extra").exists());
}

#[test]
fn only_what_was_changed_since_it_was_staged_is_copied_and_nothing_over_others_changes() {
    let place = Place::new();
    let path = place.directory.path().join("staged");
    let mut changed = Options { changed: true, ..options() };
    let copy = |options: &Options| {
        let mut record = Record::open(&path, options.changed).expect("a record");
        place.copy_with(workers(), options, &mut record).expect("begun")
    };
    for name in ["same", "written", "sneaky", "both", "moved"] {
        fs::write(place.from(name), pattern(100)).expect("a file");
    }
    assert_eq!(copy(&options()).files, 5);
    let report = copy(&changed);
    assert_eq!((report.files, report.unchanged), (0, 5));
    fs::write(place.from("written"), "new").expect("written");
    fs::write(place.from("new"), "new").expect("written");
    fs::rename(place.from("moved"), place.from("elsewhere")).expect("renamed");
    // The same size, and the time set back.
    let sneaky = File::options().write(true).open(place.from("sneaky")).expect("opened");
    let time = sneaky.metadata().and_then(|meta| meta.modified()).expect("a time");
    sneaky.write_all_at(b"y", 0).and_then(|()| sneaky.set_modified(time)).expect("written");
    fs::write(place.from("both"), "mine").expect("written");
    fs::write(place.to("both"), "theirs").expect("written");
    let report = copy(&changed);
    assert_eq!((report.files, report.unchanged), (4, 1));
    assert_eq!(report.failed.len(), 1);
    assert!(
        report.failed[0].0.ends_with("both") && report.failed[0].1.contains("--force"),
        "{:?}",
        report.failed
    );
    assert_eq!(fs::read(place.to("both")).expect("there"), b"theirs");
    assert_eq!(fs::read(place.to("sneaky")).expect("there"), fs::read(place.from("sneaky")).expect("there"));
    changed.others = Others::Overwritten;
    let report = copy(&changed);
    assert_eq!((report.files, report.failed), (1, Vec::new()));
    assert_eq!(fs::read(place.to("both")).expect("there"), b"mine");
}

#[test]
fn a_file_that_changes_all_the_time_is_told_and_never_stands_half_under_its_name() {
    let place = Place::new();
    fs::write(place.from("still"), pattern(1000)).expect("a file");
    let busy = place.from("busy");
    fs::write(&busy, pattern(10 << 20)).expect("a file");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&busy).expect("opened");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all_at(b"x", 5).expect("written");
            }
        });
        let report = place.try_copy();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        report.expect("begun")
    });
    assert_eq!(report.files, 1);
    assert!(report.failed[0].1.contains("changed while it was read"), "{:?}", report.failed);
    let names: Vec<_> = place.there().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [PathBuf::from("still")]);
}

#[test]
fn a_limited_rate_is_kept_by_all_workers_together() {
    let place = Place::new();
    for number in 0..6 {
        fs::write(place.from(&number.to_string()), pattern(1 << 20)).expect("a file");
    }
    let options = Options { max_rate: Some(6 << 20), ..options() };
    let report = place.copy_with(workers(), &options, &mut Record::default()).expect("begun");
    assert_eq!(report.bytes, 6 << 20);
    // The first piece of each worker need not wait.
    assert!(report.seconds > 0.3, "{}", report.seconds);
}

/// A worker that counts the tasks under way in `busy.0`, and in `busy.1` the most that there were.
fn counted(node: u16, busy: Arc<(AtomicUsize, AtomicUsize)>) -> Link {
    let Link { mut input, mut output, .. } = worker(node, u64::MAX);
    let (mut orders, forwarded) = io::pipe().expect("a pipe");
    let (answered, mut answers) = io::pipe().expect("a pipe");
    let begun = busy.clone();
    std::thread::spawn(move || {
        while let Ok(Some(order)) = wire::receive::<Order>(&mut orders) {
            if matches!(order, Order::Task(..)) {
                begun.1.fetch_max(begun.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            }
            wire::send(&mut input, &order).expect("the worker listens");
        }
    });
    std::thread::spawn(move || {
        let mut magic = [0; 8];
        output
            .read_exact(&mut magic)
            .and_then(|()| io::Write::write_all(&mut answers, &magic))
            .expect("a worker");
        while let Ok(Some(answer)) = wire::receive::<Answer>(&mut output) {
            if matches!(answer, Answer::Done { .. }) {
                busy.0.fetch_sub(1, Ordering::SeqCst);
            }
            if wire::send(&mut answers, &answer).is_err() {
                return;
            }
        }
    });
    let end = Box::new(|_| String::new());
    Link { name: String::new(), serves: true, input: Box::new(forwarded), output: Box::new(answered), end }
}

#[test]
fn all_workers_together_have_no_more_streams_than_allowed() {
    let place = Place::new();
    for number in 0..40 {
        fs::create_dir(place.from(&number.to_string())).expect("a directory");
        fs::write(place.from(&format!("{number}/file")), pattern(300_000)).expect("a file");
    }
    for streams in [1, 2, 5] {
        let busy: Arc<(AtomicUsize, AtomicUsize)> = Arc::default();
        // Before there is any work, each is asked at once what it sees.
        let workers = (0..streams as u16).map(|node| counted(node, busy.clone())).collect();
        let options = Options { streams, ..options() };
        let report = place.copy_with(workers, &options, &mut Record::default()).expect("begun");
        assert_eq!((report.files, report.failed), (40, Vec::new()));
        assert_eq!(busy.1.load(Ordering::SeqCst), streams, "all that are allowed, and no more");
        fs::remove_dir_all(place.to("")).expect("removed");
    }
}
