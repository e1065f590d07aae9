//! An I/O node, asked as clients ask it, and as somebody might who means it harm.

use bivouac_forward::{Bounds, By, IoNode, Options, Transfer};
use bivouac_layout::Ino;
use bivouac_proto::attr::{Attr, FileKind};
use bivouac_proto::data::DataRequest;
use bivouac_proto::meta::{At, Create, MetaReply, MetaRequest, OpenHow, RenameMode};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, OpenId, Refusal, Reply};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

fn node(places: usize) -> (TempDir, IoNode) {
    node_in(tempfile::tempdir().expect("a directory"), places)
}

fn node_in(directory: TempDir, places: usize) -> (TempDir, IoNode) {
    fs::create_dir(directory.path().join("served")).expect("a directory");
    fs::write(directory.path().join("secret"), "not served").expect("a file");
    let node = open(&directory, places);
    (directory, node)
}

fn open(directory: &TempDir, places: usize) -> IoNode {
    let options = Options {
        scheduler: "to,dispatchers=2".parse().expect("a scheduler"),
        bounds: Bounds::default(),
        places,
        may_issue: Box::new(|| true),
        journal: Some(directory.path().join("journal")),
    };
    IoNode::open(&directory.path().join("served"), options).expect("served")
}

fn at(dir: Ino, name: &[u8]) -> At<'_> {
    At { dir, split: false, name }
}

fn ask(node: &IoNode, request: &MetaRequest<'_>) -> Result<MetaReply, Failure> {
    match node.meta(request, &[], &mut Vec::new())? {
        Reply::Meta(reply) => Ok(reply),
        Reply::Done => Ok(MetaReply::Done),
        other => panic!("{other:?}"),
    }
}

fn look_up(node: &IoNode, dir: Ino, name: &[u8]) -> Result<Attr, Failure> {
    match ask(node, &MetaRequest::Lookup { at: at(dir, name) })? {
        MetaReply::Entry { attr, .. } => Ok(*attr),
        other => panic!("{other:?}"),
    }
}

fn make_directory(node: &IoNode, dir: Ino, name: &[u8]) -> Ino {
    match ask(node, &MetaRequest::Mkdir { at: at(dir, name), mode: 0o755 }).expect("made") {
        MetaReply::Entry { attr, .. } => attr.ino,
        other => panic!("{other:?}"),
    }
}

const ROOT: Ino = Ino::FORWARDED;

#[test]
fn nothing_outside_of_the_directory_is_reached() {
    let (directory, node) = node(100);
    let below = directory.path().join("served");
    std::os::unix::fs::symlink("../secret", below.join("link")).expect("a link");
    std::os::unix::fs::symlink("..", below.join("up")).expect("a link");
    let made = make_directory(&node, ROOT, b"d");
    for dir in [ROOT, made] {
        for name in [&b".."[..], b".", b"", b"../secret", b"/etc/passwd", b"a/b", b"a\0b"] {
            let how = OpenHow { read: true, write: true, ..OpenHow::default() };
            let create = Some(Create { mode: 0o644, exclusive: false });
            for request in [
                MetaRequest::Lookup { at: at(dir, name) },
                MetaRequest::Open { at: at(dir, name), how, open: OpenId::default() },
                MetaRequest::Open {
                    at: at(dir, name),
                    how: OpenHow { create, ..how },
                    open: OpenId::default(),
                },
                MetaRequest::Mkdir { at: at(dir, name), mode: 0o755 },
                MetaRequest::Unlink { at: at(dir, name) },
                MetaRequest::Rmdir { at: at(dir, name) },
                MetaRequest::Link { ino: made, at: at(dir, name) },
                MetaRequest::Rename { from: at(dir, b"d"), to: at(dir, name), mode: RenameMode::Replace },
                MetaRequest::Rename { from: at(dir, name), to: at(dir, b"x"), mode: RenameMode::Replace },
            ] {
                assert_eq!(ask(&node, &request), Err(Errno::INVAL.into()), "{request:?}");
            }
        }
    }
    // Links are shown, and not followed.
    for name in [&b"link"[..], b"up"] {
        let attr = look_up(&node, ROOT, name).expect("there");
        assert_eq!(attr.kind, FileKind::Symlink);
        let how = OpenHow { read: true, ..OpenHow::default() };
        let opened = ask(&node, &MetaRequest::Open { at: at(ROOT, name), how, open: OpenId::default() });
        assert!(matches!(opened, Ok(MetaReply::Opened { target, .. }) if !target.is_empty()));
        assert!(ask(&node, &MetaRequest::Lookup { at: at(attr.ino, b"secret") }).is_err());
        assert!(
            ask(
                &node,
                &MetaRequest::ReadDir { dir: attr.ino, split: false, after: 2, limit: 9, attrs: false }
            )
            .is_err()
        );
        assert!(node.data(&DataRequest::Extent { ino: attr.ino }).is_err());
        assert!(node.data(&DataRequest::Sync { ino: attr.ino }).is_err());
    }
    assert_eq!(fs::read_to_string(directory.path().join("secret")).expect("still there"), "not served");
    // A directory that was moved away is not told from where it is now.
    fs::rename(below.join("d"), directory.path().join("d")).expect("moved");
    assert_eq!(ask(&node, &MetaRequest::Parent { ino: made }), Err(Errno::STALE.into()));
}

#[test]
fn numbers_that_mean_nothing_are_refused_and_do_no_harm() {
    let (_directory, node) = node(100);
    for ino in [Ino(0), Ino(1), Ino(u64::MAX), Ino::forwarded(12345), Ino::forwarded(u64::MAX >> 1)] {
        assert_eq!(look_up(&node, ino, b"x"), Err(Refusal::UnknownDirectory.into()), "{ino:?}");
        assert_eq!(ask(&node, &MetaRequest::GetAttr { ino }), Err(Errno::NOENT.into()), "{ino:?}");
        assert_eq!(node.data(&DataRequest::Extent { ino }), Err(Errno::STALE), "{ino:?}");
        assert_eq!(ask(&node, &MetaRequest::Parent { ino }), Err(Errno::STALE.into()), "{ino:?}");
        assert_eq!(
            ask(&node, &MetaRequest::Release { ino, open: OpenId::default(), wrote: None }),
            Err(Errno::NOENT.into())
        );
    }
}

#[test]
fn what_was_not_used_for_long_is_found_again_by_its_name_or_not_at_all() {
    let (directory, node) = node(4);
    let mut dirs = vec![ROOT];
    for depth in 0..20 {
        let name = format!("d{depth}");
        dirs.push(make_directory(&node, dirs[depth], name.as_bytes()));
    }
    for dir in &dirs {
        assert!(ask(&node, &MetaRequest::Mkdir { at: at(*dir, b"x"), mode: 0o700 }).is_ok());
        let parent = ask(&node, &MetaRequest::Parent { ino: *dir }).expect("there");
        let above = dirs.iter().position(|other| other == dir).and_then(|at| at.checked_sub(1)).unwrap_or(0);
        assert!(matches!(parent, MetaReply::Parent { parent, .. } if parent == dirs[above]));
    }
    // The whole branch was moved: what is under the old names now is something else.
    let below = directory.path().join("served");
    fs::rename(below.join("d0"), below.join("moved")).expect("moved");
    fs::create_dir_all(below.join("d0/d1/d2")).expect("others");
    assert_eq!(look_up(&node, dirs[3], b"x"), Err(Refusal::UnknownDirectory.into()));
    // Another I/O node has the same numbers.
    let other = open(&directory, 4);
    let there = look_up(&other, ROOT, b"moved").expect("there").ino;
    assert_eq!(there, dirs[1]);
    assert_eq!(look_up(&node, ROOT, b"moved").expect("there").ino, there);
}

#[test]
fn an_open_file_stays_what_it_is_whatever_becomes_of_its_name() {
    let (directory, node) = node(2);
    let how = OpenHow {
        read: true,
        write: true,
        create: Some(Create { mode: 0o600, exclusive: true }),
        ..OpenHow::default()
    };
    let open = OpenId { agent: 1, slot: 2, incarnation: 3 };
    let opened = ask(&node, &MetaRequest::Open { at: at(ROOT, b"f"), how, open }).expect("opened");
    let MetaReply::Opened { attr, created: true, .. } = opened else { panic!("{opened:?}") };
    assert_eq!(node.opens(), 1);
    let again = ask(&node, &MetaRequest::Open { at: at(ROOT, b"f"), how, open: OpenId { slot: 9, ..open } });
    assert_eq!(again, Err(Errno::EXIST.into()));
    ask(&node, &MetaRequest::Unlink { at: at(ROOT, b"f") }).expect("removed");
    fs::write(directory.path().join("served/f"), "another").expect("written");
    for name in 0..9 {
        make_directory(&node, ROOT, format!("d{name}").as_bytes());
    }
    ask(&node, &MetaRequest::Truncate { ino: attr.ino, size: 77 }).expect("truncated");
    assert_eq!(node.length(attr.ino), Ok(77));
    let MetaReply::Attr(now) = ask(&node, &MetaRequest::GetAttr { ino: attr.ino }).expect("there") else {
        panic!()
    };
    assert_eq!((now.size, now.nlink, now.mode), (77, 0, 0o600));
    assert_eq!(fs::read_to_string(directory.path().join("served/f")).expect("there"), "another");
    ask(&node, &MetaRequest::Release { ino: attr.ino, open, wrote: None }).expect("released");
    assert_eq!((node.opens(), node.length(attr.ino)), (0, Err(Errno::STALE)));
}

#[test]
fn appends_of_many_do_not_meet_and_say_where_they_are_also_in_a_file_that_nobody_may_write() {
    let (directory, node) = node(10);
    let create = Some(Create { mode: 0o444, exclusive: true });
    let how = OpenHow { write: true, append: true, create, ..OpenHow::default() };
    let open = OpenId { agent: 1, slot: 2, incarnation: 3 };
    let opened = ask(&node, &MetaRequest::Open { at: at(ROOT, b"log"), how, open }).expect("made");
    let MetaReply::Opened { attr, .. } = opened else { panic!("{opened:?}") };
    let ino = attr.ino;
    let path = directory.path().join("served/log");
    std::thread::scope(|scope| {
        for who in 1..=4u8 {
            let (node, path) = (&node, &path);
            scope.spawn(move || {
                for turn in 0..100usize {
                    let bytes = vec![who; 1 + turn % 7];
                    let done = node.meta(&MetaRequest::Append { ino }, &bytes, &mut Vec::new());
                    let Ok(Reply::Meta(MetaReply::Appended { offset, written, .. })) = done else {
                        panic!("{done:?}")
                    };
                    assert_eq!(written as usize, bytes.len());
                    // Nobody writes there again.
                    let all = fs::read(path).expect("read");
                    assert_eq!(all[offset as usize..][..bytes.len()], bytes);
                }
            });
        }
    });
    let length: usize = (0..100).map(|turn| 1 + turn % 7).sum();
    assert_eq!(fs::metadata(path).expect("there").len(), 4 * length as u64);
}

#[test]
fn an_io_node_that_is_started_again_knows_what_it_has_shown() {
    let (directory, node) = node(3);
    let mut dirs = vec![ROOT];
    for depth in 0..10 {
        dirs.push(make_directory(&node, dirs[depth], b"d"));
    }
    fs::write(directory.path().join("served/d/d/file"), "x").expect("a file");
    let file = look_up(&node, dirs[2], b"file").expect("there").ino;
    ask(
        &node,
        &MetaRequest::Rename {
            from: at(dirs[2], b"file"),
            to: at(dirs[1], b"moved"),
            mode: RenameMode::Replace,
        },
    )
    .expect("moved");
    drop(node);
    let again = open(&directory, 3);
    assert!(dirs.iter().chain([&file]).all(|ino| again.reaches(*ino)));
    assert_eq!((again.length(file), again.opens()), (Ok(1), 0));
    assert!(ask(&again, &MetaRequest::Mkdir { at: at(dirs[10], b"deep"), mode: 0o755 }).is_ok());
    fs::remove_file(directory.path().join("served/d/moved")).expect("removed");
    drop(again);
    assert_eq!(open(&directory, 3).length(file), Err(Errno::STALE));
}

#[test]
fn a_directory_on_the_way_that_is_a_file_now_is_looked_for_again() {
    let (directory, node) = node(4);
    let above = make_directory(&node, ROOT, b"above");
    let deep = make_directory(&node, above, b"deep");
    for number in 0..20 {
        make_directory(&node, ROOT, format!("d{number}").as_bytes());
    }
    fs::remove_dir_all(directory.path().join("served/above")).expect("removed");
    fs::write(directory.path().join("served/above"), "").expect("written");
    assert_eq!(look_up(&node, deep, b"x"), Err(Refusal::UnknownDirectory.into()));
}

/// Requests that wait are not what is tested here.
struct Never;

impl Transfer for Never {
    fn buffer(&mut self) -> &mut [u8] {
        &mut []
    }

    fn done(self: Box<Self>, outcome: Result<u64, Errno>) {
        panic!("it was queued: {outcome:?}")
    }
}

#[test]
fn what_is_in_memory_is_read_from_there_and_only_as_far_as_the_file_goes() {
    const LEN: u64 = 100_000;
    // Everything is in memory; the kernel tells what is; it does not tell.
    let in_memory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for (directory, always) in [(in_memory, true), (tempfile::tempdir().expect("a directory"), false)] {
        let (directory, node) = node_in(directory, 8);
        let path = directory.path().join("served/f");
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &bytes).expect("written");
        let ino = look_up(&node, ROOT, b"f").expect("there").ino;
        let read = |offset, len: u64| {
            let request = DataRequest::Read { ino, offset, len: len as u32 };
            let now = node
                .transfer(By { job: 0, process: 1 }, &request, len, || Box::new(Never))
                .expect("a file")
                .expect("alone");
            let mut buffer = vec![7; len as usize];
            let found = now.in_memory().map(|file| {
                let file = fs::File::from(file.as_fd().try_clone_to_owned().expect("a descriptor"));
                file.read_exact_at(&mut buffer, offset).map(|()| buffer.clone()).expect("there")
            });
            let carried = now.carry_out(&mut buffer).map(|count| buffer[..count as usize].to_vec());
            (found, carried)
        };
        for (offset, len) in [(0, LEN), (5000, 4096), (LEN - 1, 1)] {
            let expected = &bytes[offset as usize..(offset + len) as usize];
            let (found, carried) = read(offset, len);
            assert_eq!(carried.as_deref(), Ok(expected));
            match found {
                Some(found) => assert_eq!(found, expected),
                None => assert!(!always, "{directory:?}"),
            }
        }
        assert_eq!(read(LEN - 10, 11), (None, Ok(bytes[LEN as usize - 10..].to_vec())));
        assert_eq!(read(LEN, 1), (None, Ok(vec![])));
        fs::File::options().write(true).open(&path).and_then(|file| file.set_len(50)).expect("truncated");
        assert_eq!(read(0, 51), (None, Ok(bytes[..50].to_vec())));
        // What could not be read from memory is asked of the backend from then on.
        let request = DataRequest::Read { ino, offset: 0, len: 10 };
        let now = node
            .transfer(By { job: 0, process: 1 }, &request, 10, || Box::new(Never))
            .expect("a file")
            .expect("alone");
        now.in_memory().inspect(bivouac_forward::Resident::suspect);
        drop(now);
        assert_eq!(read(0, 10), (None, Ok(bytes[..10].to_vec())));
    }
}

#[test]
fn where_open_files_are_is_told_when_they_are_opened_or_renamed() {
    let (directory, node) = node(100);
    let dir = make_directory(&node, ROOT, b"d");
    let opening = |name: &[u8], slot: u32| {
        let create = Some(Create { mode: 0o644, exclusive: false });
        let how = OpenHow { read: true, write: true, create, ..OpenHow::default() };
        let open = OpenId { slot, ..OpenId::default() };
        match ask(&node, &MetaRequest::Open { at: at(dir, name), how, open }).expect("opened") {
            MetaReply::Opened { attr, .. } => attr.ino,
            other => panic!("{other:?}"),
        }
    };
    let rename = |from: At<'_>, to: At<'_>| {
        ask(&node, &MetaRequest::Rename { from, to, mode: RenameMode::Replace }).expect("renamed");
    };
    let told = || -> Vec<(Ino, String)> {
        let taken = node.outbox().take().into_iter();
        taken.map(|(ino, path)| (ino, path.to_str().expect("text").to_owned())).collect()
    };
    let file = opening(b"a", 1);
    assert_eq!(told(), [(file, "d/a".to_owned())]);
    assert_eq!(opening(b"a", 2), file);
    assert_eq!(told(), [], "they know it");
    rename(at(dir, b"a"), at(dir, b"b"));
    assert_eq!(told(), [(file, "d/b".to_owned())]);
    rename(at(ROOT, b"d"), at(ROOT, b"e"));
    assert_eq!(told(), [(file, "e/b".to_owned())]);
    node.tell_all();
    assert_eq!(told(), [(file, "e/b".to_owned())]);
    // Another I/O node finds it by that, and nothing else.
    let open_elsewhere = open(&directory, 100);
    open_elsewhere.learn(file, "e/b".as_ref()).expect("there");
    assert!(open_elsewhere.reaches(file));
    for wrong in ["e", "e/c", "../secret", "/etc/passwd", ""] {
        assert!(open_elsewhere.learn(file, wrong.as_ref()).is_err(), "{wrong}");
    }
    node.tell_all();
    ask(&node, &MetaRequest::Unlink { at: at(dir, b"b") }).expect("removed");
    assert_eq!(told(), [], "it has no name any more");
    for slot in [1, 2] {
        let open = OpenId { slot, ..OpenId::default() };
        ask(&node, &MetaRequest::Release { ino: file, open, wrote: None }).expect("closed");
    }
    node.tell_all();
    assert_eq!(told(), []);
    // Who waits for more is told when there is no I/O node any more.
    let outbox = node.outbox().clone();
    drop(node);
    assert_eq!(outbox.wait(std::time::Duration::from_secs(60)), None);
}

/// Carries out a read or write that is alone in the queue.
fn carry_out(node: &IoNode, request: &DataRequest, buffer: &mut [u8]) -> Result<u64, Errno> {
    let later = || Box::new(Never);
    let now = node.transfer(By { job: 0, process: 1 }, request, buffer.len() as u64, later)?;
    now.expect("alone").carry_out(buffer)
}

/// Pages of a file that are in the page cache. To read one without waiting would not tell: the kernel reads ahead then, and may be
/// done with it before it answers.
fn cached_pages(path: &std::path::Path) -> u32 {
    let mut command = std::process::Command::new("fincore");
    let output = command.args(["--bytes", "--noheadings", "--output", "PAGES"]).arg(path).output();
    let output = output.expect("fincore, of util-linux, runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number of pages")
}

#[test]
fn what_goes_past_the_page_cache_is_the_same_data_and_leaves_nothing_there() {
    const LEN: usize = 300 << 10;
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let in_memory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for (directory, on_disk) in [(tempfile::tempdir().expect("a directory"), true), (in_memory, false)] {
        let (directory, node) = node_in(directory, 8);
        let path = directory.path().join("served/f");
        let file = fs::File::create_new(&path).expect("made");
        let ino = look_up(&node, ROOT, b"f").expect("there").ino;
        let write = |offset: usize, len: usize, direct: bool, sync: bool| {
            let request = DataRequest::Write { ino, offset: offset as u64, sync };
            let request = if direct { request.direct() } else { request };
            let mut data = bytes[offset..offset + len].to_vec();
            assert_eq!(carry_out(&node, &request, &mut data), Ok(len as u64), "{request:?}");
        };
        let read = |offset: usize, len: usize, direct: bool| {
            let request = DataRequest::Read { ino, offset: offset as u64, len: len as u32 };
            let request = if direct { request.direct() } else { request };
            let mut data = vec![7; len];
            let count = carry_out(&node, &request, &mut data).expect("read") as usize;
            let expected = bytes.get(offset..LEN.min(offset + len)).unwrap_or_default();
            assert_eq!(&data[..count], expected, "{request:?}");
        };
        // Longer than a block of the memory that it goes through, and with a part of one at the end.
        for (offset, len, sync) in
            [(0, 200 << 10, false), (200 << 10, 64 << 10, true), (264 << 10, 36 << 10, false)]
        {
            write(offset, len, true, sync);
        }
        read(0, LEN, true);
        read(4096, 8192, true);
        // A file system that is memory has everything there.
        assert!(!on_disk || cached_pages(&path) == 0);
        // Behind the end, and over it.
        read(LEN & !4095, 8192, true);
        read((LEN + 4096) & !4095, 4096, true);
        // What is not aligned is done all the same; and what is in the cache is not older than what went past it.
        read(1, 100, true);
        write(100, 5000, true, false);
        read(0, LEN, false);
        write(0, 4096, true, false);
        read(0, 4096, false);
        drop(file);
    }
}

#[test]
fn what_some_remove_takes_nothing_from_what_others_make_beside_them_under_the_same_numbers() {
    let (_directory, node) = node(100);
    let work = |who: u32| {
        let name = format!("d{who}");
        let how = OpenHow { read: true, write: true, ..OpenHow::default() };
        let how = OpenHow { create: Some(Create { mode: 0o640, exclusive: true }), ..how };
        for turn in 0..1500 {
            let dir = make_directory(&node, ROOT, name.as_bytes());
            let open = OpenId { agent: 1, slot: who, incarnation: turn };
            let made = ask(&node, &MetaRequest::Open { at: at(dir, b"new"), how, open });
            let made = match made.expect("made, and found by its number") {
                MetaReply::Opened { attr, created: true, .. } => attr,
                other => panic!("{other:?}"),
            };
            assert_eq!(made.mode & 0o777, 0o640);
            let (from, to) = (at(dir, b"new"), at(dir, b"renamed"));
            ask(&node, &MetaRequest::Rename { from, to, mode: RenameMode::Replace }).expect("renamed");
            assert_eq!(look_up(&node, dir, b"renamed").expect("there").ino, made.ino);
            ask(&node, &MetaRequest::Release { ino: made.ino, open, wrote: None }).expect("closed");
            // Its number leads to it, also if it is not open any more.
            ask(&node, &MetaRequest::GetAttr { ino: made.ino }).expect("there");
            ask(&node, &MetaRequest::Unlink { at: to }).expect("removed");
            ask(&node, &MetaRequest::Rmdir { at: at(ROOT, name.as_bytes()) }).expect("removed");
        }
    };
    let work = &work;
    std::thread::scope(|scope| {
        for who in 0..4 {
            scope.spawn(move || work(who));
        }
    });
}

#[test]
fn who_makes_a_file_has_it_open_also_if_somebody_removes_its_name_at_once() {
    let (directory, node) = node(100);
    let path = directory.path().join("served").join("new");
    let (stop, node) = (&std::sync::atomic::AtomicBool::new(false), &node);
    std::thread::scope(|scope| {
        scope.spawn({
            let path = path.clone();
            move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::remove_file(&path);
                }
            }
        });
        for turn in 0..400 {
            while path.exists() {
                std::thread::yield_now();
            }
            let how = OpenHow { read: true, write: true, ..OpenHow::default() };
            let how = OpenHow { create: Some(Create { mode: 0o600, exclusive: true }), ..how };
            let open = OpenId { agent: 1, slot: 1, incarnation: turn };
            let made = ask(node, &MetaRequest::Open { at: at(ROOT, b"new"), how, open });
            let Ok(MetaReply::Opened { attr, created: true, .. }) = made else {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("{turn}: {made:?}");
            };
            ask(node, &MetaRequest::Release { ino: attr.ino, open, wrote: None }).expect("it is open");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Descriptors of this process that keep something that was removed from a directory.
fn kept_of_removed(directory: &TempDir) -> Vec<String> {
    let root = directory.path().canonicalize().expect("a path").display().to_string();
    let links = fs::read_dir("/proc/self/fd").expect("there").flatten();
    let paths = links.filter_map(|link| Some(fs::read_link(link.path()).ok()?.display().to_string()));
    paths.filter(|path| path.starts_with(&root) && path.ends_with(" (deleted)")).collect()
}

#[test]
fn what_was_removed_gives_its_room_back_when_nobody_has_it_open() {
    let (directory, node) = node(100);
    let below = directory.path().join("served");
    let none = Vec::<String>::new();
    let create = Some(Create { mode: 0o644, exclusive: false });
    let how = OpenHow { read: true, write: true, create, ..OpenHow::default() };
    let opening = |name: &[u8], slot| {
        let open = OpenId { agent: 1, slot, incarnation: 3 };
        match ask(&node, &MetaRequest::Open { at: at(ROOT, name), how, open }) {
            Ok(MetaReply::Opened { attr, .. }) => (attr.ino, open),
            other => panic!("{other:?}"),
        }
    };
    let release =
        |(ino, open)| ask(&node, &MetaRequest::Release { ino, open, wrote: None }).expect("released");
    let replace =
        MetaRequest::Rename { from: at(ROOT, b"new"), to: at(ROOT, b"file"), mode: RenameMode::Replace };
    // Removed while it was open, and closed afterwards; somebody else had looked at it.
    let open = opening(b"file", 1);
    ask(&node, &MetaRequest::Unlink { at: at(ROOT, b"file") }).expect("removed");
    assert_eq!(kept_of_removed(&directory).len(), 1);
    release(open);
    assert_eq!(kept_of_removed(&directory), none);
    // Another file took its name, while it was open and while it was not.
    for (turn, closed_before) in [(2, true), (3, false)] {
        let (old, new) = (opening(b"file", turn), opening(b"new", 10 + turn));
        look_up(&node, ROOT, b"file").expect("there");
        release(new);
        if closed_before {
            release(old);
            ask(&node, &replace).expect("renamed");
        } else {
            ask(&node, &replace).expect("renamed");
            release(old);
        }
        assert_eq!(kept_of_removed(&directory), none, "{turn}");
        assert_eq!(look_up(&node, ROOT, b"file").expect("there").ino, new.0);
        assert_eq!(ask(&node, &MetaRequest::GetAttr { ino: old.0 }), Err(Errno::NOENT.into()));
    }
    // Removed at the backend, and replaced there: noticed by nobody, but not kept for long.
    release(opening(b"other", 5));
    fs::remove_file(below.join("other")).expect("removed");
    let file = look_up(&node, ROOT, b"file").expect("there").ino;
    node.tidy();
    // Who is asked for all the while stays known, under whatever name.
    fs::rename(below.join("file"), below.join("moved")).expect("renamed");
    ask(&node, &MetaRequest::GetAttr { ino: file }).expect("there");
    node.tidy();
    assert_eq!(kept_of_removed(&directory), none);
    ask(&node, &MetaRequest::GetAttr { ino: file }).expect("there");
    // A refused removal takes nothing from anybody.
    let dir = make_directory(&node, ROOT, b"dir");
    make_directory(&node, dir, b"deep");
    assert_eq!(ask(&node, &MetaRequest::Rmdir { at: at(ROOT, b"dir") }), Err(Errno::NOTEMPTY.into()));
    look_up(&node, dir, b"deep").expect("there");
}

#[test]
fn a_file_without_a_name_stays_open_where_nobody_knows_who_has_it_open() {
    let (directory, node) = node(100);
    let below = directory.path().join("served");
    let none = Vec::<String>::new();
    for (name, elsewhere, stays) in [("a", false, true), ("b", true, false)] {
        fs::write(below.join(name), "content").expect("written");
        let ino = look_up(&node, ROOT, name.as_bytes()).expect("there").ino;
        // Programs have it open by descriptions that another I/O node has registered: this one opens it when they use it.
        assert_eq!(node.length(ino), Ok(7));
        ask(&node, &MetaRequest::Unlink { at: at(ROOT, name.as_bytes()) }).expect("removed");
        let open = OpenId { agent: 1, slot: 2, incarnation: 3 };
        let release = MetaRequest::Release { ino, open, wrote: None };
        assert_eq!(ask(&node, &release), Err(Errno::NOENT.into()));
        node.closed(ino, elsewhere);
        assert_eq!(node.length(ino), if stays { Ok(7) } else { Err(Errno::STALE) });
        node.closed(ino, true);
        assert_eq!(kept_of_removed(&directory), none);
    }
    // With its name it can be opened again.
    fs::write(below.join("c"), "content").expect("written");
    let ino = look_up(&node, ROOT, b"c").expect("there").ino;
    assert_eq!(node.length(ino), Ok(7));
    node.closed(ino, false);
    fs::remove_file(below.join("c")).expect("removed");
    assert_eq!(kept_of_removed(&directory), none);
}
