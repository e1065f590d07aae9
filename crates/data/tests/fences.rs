//! Direct writers of the node, which the server keeps out of a sub-file.

mod common;

use bivouac_data::DataStore;
use bivouac_layout::{Ino, ServerId};
use bivouac_node::fences::Against;
use bivouac_node::{FencePage, Fences, FencesOf};
use bivouac_proto::data::Access;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const FILE: Ino = Ino(0x0010_0000_0000_0001);
const SOON: Duration = Duration::from_millis(50);

/// A store with a fence page, and the page as a process of the node has it.
fn fenced(place: &Path) -> (DataStore, FencePage) {
    let of = FencesOf { deployment: common::DEPLOYMENT, server: ServerId(1) };
    let store = common::store(place).with_fences(Fences::create(of).expect("a page"));
    let page = FencePage::attach(store.fences().expect("its own").descriptor()).expect("attached");
    (store, page)
}

fn read(store: &DataStore, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let count = store.read(FILE, 0, &mut bytes).expect("read");
    bytes.truncate(count);
    bytes
}

#[test]
fn a_direct_write_that_ends_while_another_one_is_undone_is_kept() {
    for place in common::places() {
        let (store, page) = fenced(place.path());
        store.write(FILE, 0, b"kept", false).expect("written");
        let wrote = store.write(FILE, 4, b"undone", false).expect("written");
        let file = File::from(store.pass(FILE, Access::Write).expect("passed"));
        let under = page.before_pass(FILE);
        let writing = page.write(&under).expect("begins");
        std::thread::scope(|scope| {
            let undoing = scope.spawn(|| store.take_back(FILE, wrote.undo, 10, 4));
            std::thread::sleep(SOON);
            assert!(!undoing.is_finished(), "the write under way is waited for");
            assert!(page.write(&under).is_none(), "others go through the server");
            file.write_all_at(b"direct", 10).expect("written");
            assert!(writing.counts());
            drop(writing);
            undoing.join().expect("ends").expect("no error");
        });
        assert_eq!(read(&store, 100), b"keptundonedirect");
        assert!(page.write(&under).is_some_and(|writing| writing.counts()));
        // Without anybody beside it, it is undone.
        let wrote = store.write(FILE, 16, b"undone", false).expect("written");
        store.take_back(FILE, wrote.undo, 22, 16).expect("undone");
        assert_eq!(read(&store, 100), b"keptundonedirect");
    }
}

#[test]
fn a_write_that_is_under_way_for_ever_makes_the_sub_file_another_local_file() {
    for place in common::places() {
        let (store, page) = fenced(place.path());
        // A hole between two pieces, and one at the end.
        store.write(FILE, 0, &[1; 5000], false).expect("written");
        store.write(FILE, 3 << 20, &[2; 2 << 20], false).expect("written");
        store.truncate(FILE, 8 << 20, true).expect("longer");
        let before = (read(&store, 9 << 20), store.extent(FILE).expect("there"));
        let file = File::from(store.pass(FILE, Access::Write).expect("passed"));
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000)).expect("set");
        let under = page.before_pass(FILE);
        let late = page.write(&under).expect("begins");
        let fence = store.keep_out(FILE, SOON).expect("kept out").expect("a fence");
        // By a descriptor of the file as it was.
        file.write_all_at(b"late", 0).expect("written");
        assert!(!late.counts(), "the late writer is told so");
        assert!(page.is_stale(&under));
        drop(fence);
        assert!(read(&store, 9 << 20) == before.0, "the same content");
        let after = store.extent(FILE).expect("there");
        assert_eq!(after.length, before.1.length);
        assert!(
            after.allocated <= before.1.allocated + (1 << 20),
            "{} {}",
            after.allocated,
            before.1.allocated
        );
        let again = page.before_pass(FILE);
        let now = File::from(store.pass(FILE, Access::Write).expect("passed"));
        assert_ne!(now.metadata().expect("there").ino(), file.metadata().expect("there").ino());
        assert_eq!(now.metadata().expect("there").mtime(), 1000);
        let writing = page.write(&again).expect("nobody is inside any more");
        now.write_all_at(b"new", 0).expect("written");
        assert!(writing.counts());
        drop(writing);
        assert_eq!(read(&store, 4), b"new\x01");
        assert_eq!(common::listing(place.path()).iter().filter(|p| p.ends_with("bivouac-moving")).count(), 0);
        store.destroy().expect("removed");
    }
}

#[test]
fn a_stopped_process_neither_holds_the_server_up_nor_writes_to_the_file_later() {
    let place = tempfile::tempdir().expect("a directory");
    let (store, page) = fenced(place.path());
    store.write(FILE, 0, b"0123456789", false).expect("written");
    let file = File::from(store.pass(FILE, Access::Write).expect("passed"));
    let under = page.before_pass(FILE);
    let ends = |status: i32| -> ! {
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) }
    };
    // SAFETY: the child makes system calls only, stops in the middle of a write, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let Some(writing) = page.write(&under) else { ends(2) };
        // SAFETY: a signal to the child itself.
        unsafe { libc::raise(libc::SIGSTOP) };
        let wrote = file.write_at(b"late", 3).is_ok_and(|count| count == 4);
        ends(i32::from(wrote && !writing.counts()));
    }
    let wait = |flags| {
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, flags) }, child);
        status
    };
    assert!(libc::WIFSTOPPED(wait(libc::WUNTRACED)));
    let fence = store.keep_out(FILE, SOON).expect("kept out");
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(child, libc::SIGCONT) };
    let status = wait(0);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1,
        "it wrote, and repeats that: {status}"
    );
    drop(fence);
    assert_eq!(read(&store, 20), b"0123456789");
}

#[test]
fn what_the_server_writes_and_removes_during_relocations_is_neither_lost_nor_back() {
    for place in common::places() {
        let (store, page) = fenced(place.path());
        let (over, relocated) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3u64)
                .map(|thread| {
                    let (store, over) = (&store, &over);
                    scope.spawn(move || {
                        let mut round = 0u64;
                        while !over.load(Ordering::Relaxed) {
                            round += 1;
                            let at = thread * 8;
                            store.write(FILE, at, &round.to_le_bytes(), false).expect("written");
                            let mut there = [0; 8];
                            store.read(FILE, at, &mut there).expect("read");
                            assert_eq!(u64::from_le_bytes(there), round, "thread {thread}");
                        }
                    })
                })
                .collect();
            while relocated.load(Ordering::Relaxed) < 30 && writers.iter().all(|w| !w.is_finished()) {
                let under = page.before_pass(FILE);
                let stuck = page.write(&under).expect("begins");
                drop(store.keep_out(FILE, Duration::ZERO).expect("kept out"));
                assert!(!stuck.counts());
                relocated.fetch_add(1, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
        });
        // A removal beside it: the file stays removed.
        for _ in 0..30 {
            store.write(FILE, 0, &[1; 100_000], false).expect("written");
            let under = page.before_pass(FILE);
            let _stuck = page.write(&under).expect("begins");
            std::thread::scope(|scope| {
                scope.spawn(|| store.remove(FILE).expect("removed"));
                drop(store.keep_out(FILE, Duration::ZERO).expect("kept out"));
            });
            assert!(store.read_file(FILE).expect("no error").is_none());
        }
    }
}

#[test]
fn a_fence_against_readers_waits_for_nobody() {
    let place = tempfile::tempdir().expect("a directory");
    let (store, page) = fenced(place.path());
    let under = page.before_pass(FILE);
    let _writing = page.write(&under).expect("begins");
    let reading = page.read(&under).expect("begins");
    let fence = store.fences().expect("its own").raise(FILE, Against::Readers);
    assert!(!reading.counts() && page.read(&under).is_none());
    drop(fence);
    assert!(page.read(&under).is_some());
}
