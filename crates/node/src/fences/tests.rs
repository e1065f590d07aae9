//! What the page promises, with real threads and processes that are stopped and killed.

use super::*;
use crate::process;
use crate::table::tests::{alone, in_child};
use rustix::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const OF: FencesOf = FencesOf { deployment: 7, server: ServerId(3) };
const FILE: Ino = Ino(0x00a0_0000_0000_0011);
const SOON: Duration = Duration::from_millis(20);

fn pair() -> (Fences, FencePage) {
    let server = Fences::create(OF).expect("made");
    let page = FencePage::attach(server.descriptor()).expect("attached");
    (server, page)
}

#[test]
fn a_fence_stops_what_it_is_against_and_nothing_else() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    let open = || (page.read(&under).is_some(), page.write(&under).is_some());
    for (against, expected) in
        [(Against::Readers, (false, true)), (Against::Writers, (true, false)), (Against::All, (false, false))]
    {
        assert_eq!(open(), (true, true));
        let fence = server.raise(FILE, against);
        assert_eq!(open(), expected);
        let another = server.raise(FILE, Against::All);
        drop(fence);
        assert_eq!(open(), (false, false), "the second one is up");
        drop(another);
    }
    let other = (1..).map(Ino).find(|ino| page.word(*ino).0 != page.word(FILE).0).expect("another word");
    let _fence = server.raise(other, Against::All);
    assert_eq!(open(), (true, true));
}

#[test]
fn a_read_does_not_count_if_a_fence_was_up_meanwhile_and_a_write_that_was_waited_for_does() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    let (reading, writing) = (page.read(&under).expect("begins"), page.write(&under).expect("begins"));
    drop(server.raise(FILE, Against::All));
    assert!(!reading.counts());
    assert!(writing.counts());
    assert!(page.read(&under).expect("begins").counts());
}

#[test]
fn a_fence_waits_for_writers_of_its_file_and_for_no_others() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    let same_word = (1..).map(Ino).find(|ino| page.word(*ino).0 == page.word(FILE).0 && *ino != FILE);
    let writing = page.write(&under).expect("begins");
    // A signal handler's.
    let nested = page.write(&under).expect("begins");
    let fence = server.raise(FILE, Against::Writers);
    let me = process::tid();
    assert_eq!(fence.wait(SOON), Err(Inside { threads: vec![me, me] }));
    assert_eq!(server.raise(same_word.expect("one"), Against::Writers).wait(Duration::ZERO), Ok(()));
    drop(nested);
    assert!(fence.wait(SOON).is_err());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fence.wait(bivouac_testing::HANG));
        std::thread::sleep(SOON);
        assert!(!waiting.is_finished());
        assert!(writing.counts());
        drop(writing);
        assert_eq!(waiting.join().expect("ends"), Ok(()));
    });
}

#[test]
fn a_thread_without_a_mark_left_writes_through_the_server() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    // Left by siglongjmp.
    (0..4).for_each(|_| std::mem::forget(page.write(&under).expect("begins")));
    assert!(page.write(&under).is_none());
    let fence = server.raise(FILE, Against::Writers);
    assert_eq!(fence.wait(SOON).expect_err("they are inside").threads.len(), 4);
    fence.retire();
    fence.forget_late();
    assert_eq!(fence.wait(Duration::ZERO), Ok(()));
    drop(fence);
    assert!(page.write(&page.before_pass(FILE)).is_some(), "they are free again");
}

#[test]
fn a_late_writer_and_a_descriptor_from_before_are_told_that_the_file_has_moved() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    let writing = page.write(&under).expect("begins");
    server.raise(FILE, Against::All).retire();
    assert!(!writing.counts());
    assert!(page.is_stale(&under) && page.read(&under).is_none() && page.write(&under).is_none());
    let again = page.before_pass(FILE);
    assert!(!page.is_stale(&again) && page.write(&again).is_some_and(|writing| writing.counts()));
}

#[test]
fn copies_are_read_only_while_the_server_lives_and_has_a_lease() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    let begins = || page.read_copy(&under).is_some();
    let life = server.page().life();
    assert!(!begins() && page.read(&under).is_some() && page.write(&under).is_some());
    life.store(4711, Ordering::Relaxed);
    assert!(!begins(), "there is no lease");
    server.show_copies_until(monotonic() + 60_000_000_000);
    assert!(begins());
    life.store(4711 | super::OWNER_DIED, Ordering::Relaxed);
    assert!(!begins(), "the server has died");
    life.store(4712, Ordering::Relaxed);
    assert!(begins());
    server.show_copies_until(monotonic());
    assert!(!begins(), "it has run out");
    server.show_copies_until(0);
    assert!(!begins());
    server.show_copies_until(u64::MAX);
    let reading = page.read_copy(&under).expect("begins");
    server.show_copies_until(0);
    assert!(reading.counts(), "it has begun in time");
}

#[test]
fn a_lasting_fence_stops_readers_until_the_last_one_of_its_file_falls() {
    let (server, page) = pair();
    let server = Arc::new(server);
    let under = page.before_pass(FILE);
    let reading = page.read(&under).expect("begins");
    let (first, second) = (server.keep_up(FILE, Against::Readers), server.keep_up(FILE, Against::Readers));
    assert!(!reading.counts() && page.read(&under).is_none());
    assert!(page.write(&under).is_some(), "writers are not concerned");
    drop(first);
    assert!(page.read(&under).is_none());
    drop(second);
    assert!(page.read(&under).is_some_and(Reading::counts));
    assert!(!page.is_stale(&under));
    server.renounce(FILE);
    assert!(page.is_stale(&under) && page.read(&under).is_none());
}

/// Runs `inside` in a child, which is between a write's two looks then, and ends it.
fn with_child_inside(page: &FencePage, inside: impl FnOnce(i32)) {
    let under = page.before_pass(FILE);
    let (begun, tell) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: the child marks, tells, and sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let writing = page.write(&under);
        let _ = rustix::io::write(&tell, &[u8::from(writing.is_some())]);
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let mut told = [0];
    assert_eq!((rustix::io::read(&begun, &mut told), told), (Ok(1), [1]));
    inside(child);
    let mut status = 0;
    // SAFETY: our own child, which is waited for once.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
}

#[test]
fn a_process_that_is_killed_inside_a_write_is_not_waited_for() {
    let _alone = alone();
    let (server, page) = pair();
    with_child_inside(&page, |child| {
        let fence = server.raise(FILE, Against::Writers);
        assert_eq!(fence.wait(SOON), Err(Inside { threads: vec![child.unsigned_abs()] }));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| fence.wait(bivouac_testing::HANG));
            // SAFETY: a signal to our own child.
            unsafe { libc::kill(child, libc::SIGKILL) };
            assert_eq!(waiting.join().expect("ends"), Ok(()));
        });
    });
    let mut marks = page.lanes().iter().flat_map(|lane| lane.marks_of(FILE));
    assert!(marks.next().is_none(), "the mark of the dead is taken off");
}

#[test]
fn a_process_that_is_stopped_inside_a_write_is_waited_for_no_longer_than_the_limit() {
    let _alone = alone();
    let (server, page) = pair();
    with_child_inside(&page, |child| {
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(child, libc::SIGSTOP) };
        let fence = server.raise(FILE, Against::Writers);
        let inside = Err(Inside { threads: vec![child.unsigned_abs()] });
        let quick = bivouac_testing::is_quick(Duration::from_secs(1), || {
            let begin = std::time::Instant::now();
            assert_eq!(fence.wait(SOON), inside);
            begin.elapsed()
        });
        assert!(quick);
    });
}

#[test]
fn a_forked_child_has_marks_of_its_own() {
    let _alone = alone();
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    let writing = page.write(&under).expect("begins");
    // The child inherits the guard, too, and leaves without dropping it.
    let child = in_child(|| i32::from(page.write(&under).is_some_and(|writing| writing.counts())));
    assert_eq!(child, 1);
    let fence = server.raise(FILE, Against::Writers);
    assert_eq!(fence.wait(Duration::ZERO), Err(Inside { threads: vec![process::tid()] }));
    drop(writing);
    assert_eq!(fence.wait(Duration::ZERO), Ok(()));
}

#[test]
fn lanes_of_dead_threads_are_used_again_and_where_all_are_alive_the_server_writes() {
    let (_server, page) = pair();
    let under = page.before_pass(FILE);
    for _ in 0..2 * LANES {
        let page = &page;
        let mine = std::thread::scope(|scope| scope.spawn(|| page.write(&under).is_some()).join());
        assert!(mine.expect("ends"));
    }
    // More threads at once than there are lanes: each either writes or is sent to the server.
    let threads = LANES + 100;
    let barrier = Barrier::new(threads);
    let wrote = std::thread::scope(|scope| {
        let one = || {
            let wrote = page.write(&under).is_some();
            page.count_read(3);
            barrier.wait();
            wrote
        };
        let all: Vec<_> = (0..threads)
            .map(|_| std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, one).expect("runs"))
            .collect();
        all.into_iter().map(|thread| thread.join().expect("ends")).filter(|wrote| *wrote).count()
    });
    assert!((1..=LANES).contains(&wrote), "{wrote}");
    assert_eq!(page.totals(), (3 * threads as u64, 0), "also those without a lane count");
}

#[test]
fn what_many_threads_counted_is_summed_and_stays_when_they_are_gone() {
    let (server, _page) = pair();
    let descriptor = server.descriptor();
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let page = FencePage::attach(descriptor).expect("attached");
                for _ in 0..1000 {
                    page.count_read(3);
                    page.write(&page.before_pass(FILE)).expect("begins").wrote(5);
                }
            });
        }
    });
    assert_eq!(server.totals(), (300_000, 500_000));
}

#[test]
fn the_next_server_goes_on_with_the_page_and_fences_what_was_passed_before() {
    let (server, page) = pair();
    let under = page.before_pass(FILE);
    page.count_read(10);
    std::mem::forget(server.raise(FILE, Against::All));
    let kept = rustix::io::dup(server.descriptor()).expect("a descriptor");
    // Killed.
    drop(server);
    let other = FencesOf { server: ServerId(4), ..OF };
    let copy = || Fd::from(rustix::io::dup(&kept).expect("a descriptor"));
    assert!(Fences::adopt(other, copy()).is_err());
    let next = Fences::adopt(OF, copy()).expect("adopted");
    assert!(page.write(&under).is_some(), "fences of the one before are down");
    assert_eq!((next.totals(), page.totals()), ((0, 0), (10, 0)));
    let _fence = next.raise(FILE, Against::All);
    assert!(page.write(&under).is_none() && page.read(&under).is_none());
}

#[test]
fn memory_of_another_kind_is_refused() {
    let (_memory, other) = Memory::make(c"test", LENGTH, Writers::All).expect("made");
    assert!(matches!(FencePage::attach(other.as_fd()), Err(NodeError::Format)));
    assert!(matches!(Fences::adopt(OF, other), Err(NodeError::Format)));
}
