//! The engine with files of a real file system, and with files that are slow, short or broken on purpose.

use bivouac_forward::schedulers::{NAMES, by_name};
use bivouac_forward::{Asked, Bounds, Engine, File, Kind, NOT_ISSUED, Settings, Transfer};
use bivouac_proto::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Longest wait for what has to come.
const HANG: Duration = Duration::from_secs(20);

type Done = (Result<u64, Errno>, Vec<u8>);

/// A request whose end is sent with its buffer.
struct Sent {
    buffer: Vec<u8>,
    done: Sender<Done>,
}

impl Transfer for Sent {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn done(self: Box<Self>, outcome: Result<u64, Errno>) {
        let _ = self.done.send((outcome, self.buffer));
    }
}

fn asked(process: u64, kind: Kind, offset: u64, len: usize) -> Asked {
    Asked { job: 1, process, file: 1, kind, offset, len: len as u64, merges: true }
}

fn submit(engine: &Engine, file: &Arc<impl File + 'static>, asked: Asked, buffer: Vec<u8>) -> Receiver<Done> {
    let (done, ended) = channel();
    engine.submit(asked, file.clone(), Box::new(Sent { buffer, done }));
    ended
}

/// Hands a request in as a connection's thread does: carries it out at once if it is alone, and leaves it to dispatchers if not.
/// Returns whether it was alone.
fn hand_in(engine: &Engine, file: &Arc<Memory>, asked: Asked, buffer: Vec<u8>, done: Sender<Done>) -> bool {
    let mut sent = Some(Box::new(Sent { buffer, done }));
    let Some(alone) = engine.hand_in(asked, file, || sent.take().expect("it is asked for once")) else {
        return false;
    };
    let mut sent = sent.expect("nobody else has it");
    let outcome = alone.carry_out(&**file, sent.buffer());
    sent.done(outcome);
    true
}

fn end(ended: &Receiver<Done>) -> Done {
    ended.recv_timeout(HANG).expect("it is answered")
}

fn engine(scheduler: &str, dispatchers: usize) -> Engine {
    let scheduler = by_name(scheduler, &Settings::default()).expect("it is known");
    Engine::start(scheduler, dispatchers, Bounds::default(), || true).expect("threads")
}

/// A file in memory. Its calls wait while it is closed, do at most `most` bytes, and fail where they begin in a bad range.
#[derive(Default)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    closed: (Mutex<bool>, Condvar),
    most: Option<usize>,
    bad: Range<u64>,
    entered: AtomicBool,
}

impl Memory {
    fn set_closed(&self, closed: bool) {
        *self.closed.0.lock().unwrap() = closed;
        self.closed.1.notify_all();
    }

    /// How many of `len` bytes at `offset` a call does.
    fn allows(&self, offset: u64, len: usize) -> Result<usize, Errno> {
        self.entered.store(true, Ordering::SeqCst);
        let closed = self.closed.0.lock().unwrap();
        let (closed, late) = self.closed.1.wait_timeout_while(closed, HANG, |closed| *closed).unwrap();
        assert!(!late.timed_out());
        drop(closed);
        if self.bad.contains(&offset) {
            return Err(Errno::IO);
        }
        let to_bad = if self.bad.start > offset { self.bad.start - offset } else { u64::MAX };
        Ok(len.min(self.most.unwrap_or(usize::MAX)).min(to_bad.try_into().unwrap_or(usize::MAX)))
    }
}

impl File for Memory {
    fn read_at(&self, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let len = into.iter().map(|slice| slice.len()).sum();
        let most = self.allows(offset, len)?;
        let bytes = self.bytes.lock().unwrap();
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let mut from = &from[..from.len().min(most)];
        let count = from.len();
        for slice in into {
            let (now, later) = from.split_at(slice.len().min(from.len()));
            slice[..now.len()].copy_from_slice(now);
            from = later;
        }
        Ok(count)
    }

    fn write_at(&self, offset: u64, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let all: Vec<u8> = from.iter().flat_map(|slice| slice.iter().copied()).collect();
        let count = self.allows(offset, all.len())?;
        let mut bytes = self.bytes.lock().unwrap();
        let end = offset as usize + count;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(&all[..count]);
        Ok(count)
    }
}

fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn processes_write_a_shared_file_in_stripes_and_read_it_back_with_every_scheduler() {
    const PROCESSES: u64 = 8;
    const PIECE: usize = 5000;
    for name in NAMES {
        let engine = engine(name, 3);
        let file = Arc::new(tempfile::tempfile_in("/dev/shm").unwrap());
        for kind in [Kind::Write, Kind::Read] {
            std::thread::scope(|scope| {
                for process in 0..PROCESSES {
                    let (engine, file) = (&engine, &file);
                    scope.spawn(move || {
                        for round in 0..40 {
                            let offset = (round * PROCESSES + process) * PIECE as u64;
                            let expected = pattern(offset, PIECE);
                            let buffer = if kind == Kind::Write { expected.clone() } else { vec![0; PIECE] };
                            let ended = submit(engine, file, asked(process, kind, offset, PIECE), buffer);
                            assert_eq!(end(&ended), (Ok(PIECE as u64), expected));
                        }
                    });
                }
            });
        }
        let mut whole = vec![0; 40 * PROCESSES as usize * PIECE];
        file.read_exact_at(&mut whole, 0).unwrap();
        assert!(whole == pattern(0, whole.len()), "{name}");
        let counts = engine.counts();
        assert_eq!((counts.requests_in, counts.bytes_in), (640, counts.bytes_out), "{name}");
    }
}

/// Hands in requests while the only dispatcher is busy, so that they are merged; then lets it go on.
fn merged(file: &Arc<Memory>, kind: Kind, pieces: &[(u64, usize)]) -> (Vec<Done>, u64) {
    let engine = engine("to", 1);
    file.set_closed(true);
    let first = Asked { file: 2, ..asked(99, Kind::Read, 1 << 40, 1) };
    let blocks = submit(&engine, file, first, vec![0]);
    while !file.entered.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let all: Vec<Receiver<Done>> = pieces
        .iter()
        .enumerate()
        .map(|(process, (offset, len))| {
            let buffer = if kind == Kind::Write { pattern(*offset, *len) } else { vec![0; *len] };
            submit(&engine, file, asked(process as u64, kind, *offset, *len), buffer)
        })
        .collect();
    file.set_closed(false);
    assert!(end(&blocks).0.is_ok());
    let done = all.iter().map(end).collect();
    (done, engine.counts().requests_out - 1)
}

fn holding(bytes: usize, most: Option<usize>, bad: Range<u64>) -> Arc<Memory> {
    Arc::new(Memory { bytes: Mutex::new(pattern(0, bytes)), most, bad, ..Memory::default() })
}

#[test]
fn what_waits_is_merged_into_one_call_also_where_the_backend_does_little_at_a_time() {
    let pieces: Vec<(u64, usize)> = (0..32).rev().map(|number| (number * 100, 100)).collect();
    for most in [None, Some(70), Some(250)] {
        let file = holding(3200, most, 0..0);
        let (done, calls) = merged(&file, Kind::Read, &pieces);
        assert_eq!(calls, 1);
        for ((offset, len), done) in pieces.iter().zip(done) {
            assert_eq!(done, (Ok(*len as u64), pattern(*offset, *len)));
        }
        let file = holding(0, most, 0..0);
        let (done, calls) = merged(&file, Kind::Write, &pieces);
        assert!(calls == 1 && done.iter().all(|(outcome, _)| *outcome == Ok(100)));
        assert!(file.bytes.lock().unwrap()[..3200] == pattern(0, 3200)[..]);
    }
}

#[test]
fn each_request_of_a_merged_call_that_fails_gets_the_answer_that_it_would_have_got_alone() {
    // The third one crosses into a bad range; the fourth and the fifth begin in it; the sixth is behind it.
    let pieces: Vec<(u64, usize)> = (0..8).map(|number| (number * 100, 100)).collect();
    for kind in [Kind::Read, Kind::Write] {
        let file = holding(800, None, 250..480);
        let (done, calls) = merged(&file, kind, &pieces);
        let outcomes: Vec<Result<u64, Errno>> = done.iter().map(|(outcome, _)| *outcome).collect();
        let (good, bad) = (Ok(100), Err(Errno::IO));
        assert_eq!(outcomes, [good, good, Ok(50), bad, bad, good, good, good], "{kind:?}");
        assert_eq!(calls, 1);
        for ((offset, _), (outcome, bytes)) in pieces.iter().zip(&done) {
            let count = outcome.unwrap_or(0) as usize;
            assert!(bytes[..count] == pattern(*offset, 100)[..count]);
        }
    }
}

#[test]
fn reads_at_the_end_of_the_file_are_cut_there() {
    let pieces: Vec<(u64, usize)> = (0..5).map(|number| (number * 100, 100)).collect();
    let (done, calls) = merged(&holding(250, None, 0..0), Kind::Read, &pieces);
    let outcomes: Vec<Result<u64, Errno>> = done.iter().map(|(outcome, _)| *outcome).collect();
    assert_eq!(outcomes, [Ok(100), Ok(100), Ok(50), Ok(0), Ok(0)]);
    assert_eq!(calls, 1);
}

#[test]
fn a_file_that_does_not_answer_does_not_stop_others() {
    let engine = engine("to", 2);
    let (slow, quick) = (holding(10, None, 0..0), holding(1000, None, 0..0));
    slow.set_closed(true);
    let waits = submit(&engine, &slow, Asked { file: 7, ..asked(1, Kind::Read, 0, 10) }, vec![0; 10]);
    for number in 0..50 {
        let ended = submit(&engine, &quick, asked(2, Kind::Read, number, 10), vec![0; 10]);
        assert_eq!(end(&ended).0, Ok(10));
    }
    assert!(waits.try_recv().is_err());
    slow.set_closed(false);
    assert_eq!(end(&waits), (Ok(10), pattern(0, 10)));
}

#[test]
fn a_file_that_does_not_answer_does_not_stop_others_however_many_ask_for_it_with_any_scheduler() {
    for name in NAMES {
        let engine = engine(name, 4);
        let (slow, quick) = (holding(100_000, None, 0..0), holding(1000, None, 0..0));
        slow.set_closed(true);
        let waiting: Vec<Receiver<Done>> = (0..40)
            .map(|process| {
                let asked = Asked { file: 7, ..asked(process, Kind::Read, process * 1000, 10) };
                submit(&engine, &slow, asked, vec![0; 10])
            })
            .collect();
        for number in 0..50 {
            let ended = submit(&engine, &quick, asked(100, Kind::Read, number, 10), vec![0; 10]);
            assert_eq!(end(&ended), (Ok(10), pattern(number, 10)), "{name}");
        }
        assert!(waiting.iter().all(|one| one.try_recv().is_err()), "{name}");
        slow.set_closed(false);
        for (process, ended) in waiting.iter().enumerate() {
            assert_eq!(end(ended), (Ok(10), pattern(process as u64 * 1000, 10)), "{name}");
        }
    }
}

#[test]
fn who_hands_in_too_much_waits_until_there_is_room() {
    let scheduler = by_name("fifo", &Settings::default()).expect("it is known");
    let engine = Engine::start(scheduler, 1, Bounds { requests: 2, bytes: 1000 }, || true).expect("threads");
    let file = holding(5000, None, 0..0);
    file.set_closed(true);
    let mut all = vec![submit(&engine, &file, asked(0, Kind::Read, 0, 10), vec![0; 10])];
    while !file.entered.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    // One is being carried out; two may wait, or one that is too long by itself.
    all.extend((1..3).map(|process| submit(&engine, &file, asked(process, Kind::Read, 0, 10), vec![0; 10])));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| submit(&engine, &file, asked(3, Kind::Read, 0, 4000), vec![0; 4000]));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished(), "there is no room");
        file.set_closed(false);
        all.push(waits.join().unwrap());
    });
    let counts: Vec<Result<u64, Errno>> = all.iter().map(|ended| end(ended).0).collect();
    assert_eq!(counts, [Ok(10), Ok(10), Ok(10), Ok(4000)]);
}

#[test]
fn what_waits_when_the_engine_ends_is_carried_out() {
    let engine = engine("sjf", 2);
    let file = holding(1000, None, 0..0);
    file.set_closed(true);
    let all: Vec<_> = (0..20)
        .map(|number| submit(&engine, &file, asked(number % 3, Kind::Read, number * 7, 7), vec![0; 7]))
        .collect();
    file.set_closed(false);
    drop(engine);
    for (number, ended) in (0..20).zip(all) {
        assert_eq!(ended.try_recv().expect("it was answered"), (Ok(7), pattern(number * 7, 7)));
    }
}

#[test]
fn a_buffer_of_another_length_and_a_backend_that_panics_are_errors_and_others_go_on() {
    struct Panics;
    impl File for Panics {
        fn read_at(&self, _: u64, _: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
            panic!("on purpose")
        }
        fn write_at(&self, _: u64, _: &[IoSlice<'_>]) -> Result<usize, Errno> {
            Ok(0)
        }
    }
    let engine = engine("fifo", 1);
    let (bad, good) = (Arc::new(Panics), holding(10, None, 0..0));
    let outcomes = [
        end(&submit(&engine, &good, asked(1, Kind::Read, 0, 10), vec![0; 9])).0,
        end(&submit(&engine, &good, asked(1, Kind::Read, 0, 0), vec![])).0,
        end(&submit(&engine, &bad, asked(1, Kind::Read, 0, 10), vec![0; 10])).0,
        end(&submit(&engine, &bad, asked(1, Kind::Write, 0, 10), vec![0; 10])).0,
        end(&submit(&engine, &good, asked(1, Kind::Read, 0, 10), vec![0; 10])).0,
    ];
    let failed = Err(Errno::IO);
    assert_eq!(outcomes, [failed, failed, failed, failed, Ok(10)]);
}

#[test]
fn threads_that_hand_in_carry_out_as_many_at_once_as_there_may_be_and_leave_the_rest_to_dispatchers() {
    for scheduler in NAMES {
        let engine = engine(scheduler, 2);
        let files: Vec<Arc<Memory>> = (0..5).map(|_| Arc::new(Memory::default())).collect();
        files.iter().for_each(|file| file.set_closed(true));
        let entered = |file: &Arc<Memory>| file.entered.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            let ended: Vec<Receiver<Done>> = files
                .iter()
                .zip(1u64..)
                .map(|(file, number)| {
                    let (done, ended) = channel();
                    let (engine, file) = (&engine, file.clone());
                    let asked = Asked { file: number, ..asked(number, Kind::Write, 0, 10) };
                    scope.spawn(move || hand_in(engine, &file, asked, vec![number as u8; 10], done));
                    ended
                })
                .collect();
            let begun = std::time::Instant::now();
            while files.iter().filter(|file| entered(file)).count() < 2 {
                assert!(begun.elapsed() < HANG, "{scheduler}");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(files.iter().filter(|file| entered(file)).count(), 2, "{scheduler}: two at once");
            files.iter().for_each(|file| file.set_closed(false));
            for (number, ended) in (1u8..).zip(&ended) {
                assert_eq!(end(ended), (Ok(10), vec![number; 10]), "{scheduler}");
            }
        });
    }
}

#[test]
fn who_may_not_issue_any_more_fails_what_waits_and_does_nothing() {
    let may = Arc::new(AtomicBool::new(true));
    let asked_first = may.clone();
    let scheduler = by_name("to", &Settings::default()).expect("it is known");
    let engine = Engine::start(scheduler, 1, Bounds::default(), move || asked_first.load(Ordering::SeqCst));
    let engine = engine.expect("threads");
    let file = Arc::new(Memory::default());
    file.set_closed(true);
    let first = submit(&engine, &file, asked(1, Kind::Write, 0, 10), vec![1; 10]);
    let begun = std::time::Instant::now();
    while !file.entered.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < HANG);
        std::thread::sleep(Duration::from_millis(1));
    }
    let waiting = submit(&engine, &file, asked(2, Kind::Write, 10, 10), vec![2; 10]);
    may.store(false, Ordering::SeqCst);
    file.set_closed(false);
    assert_eq!(end(&first).0, Ok(10), "it was issued before");
    assert_eq!(end(&waiting).0, Err(NOT_ISSUED));
    // Whoever answered the one before may not be done with it yet: the next one is alone a little later.
    let begun = std::time::Instant::now();
    loop {
        let (done, ended) = channel();
        let was_alone = hand_in(&engine, &file, asked(3, Kind::Write, 20, 10), vec![3; 10], done);
        assert_eq!(end(&ended).0, Err(NOT_ISSUED));
        if was_alone {
            break;
        }
        assert!(begun.elapsed() < HANG);
    }
    assert_eq!(file.bytes.lock().unwrap().len(), 10);
}
