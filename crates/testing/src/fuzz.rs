//! Fuzzing with a stable compiler, as an ordinary test of bounded time.
//!
//! A target is a function of bytes that panics if something is wrong; the same function is a target of `cargo
//! fuzz` (in `fuzz/`), which goes on for as long as it is let, and by the coverage of branches. Here [`run`]
//! feeds it for some seconds with random bytes and with valid samples that are cut, overwritten, repeated and
//! mixed. proptest makes them, and finds the shortest that fails.
//!
//! A target fails if it panics, if one run takes more than [`LONGEST`], or if it has more than a limit of
//! memory allocated at once. The latter needs [`Counting`] as the test program's allocator.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long each target is run, seconds; 2 where it is not set.
const SECONDS: &str = "BIVOUAC_FUZZ_SECONDS";
/// Where the random numbers begin; printed with a failure.
const SEED: &str = "BIVOUAC_FUZZ_SEED";
/// One run that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(20);

/// One change of a sample.
#[derive(Clone, Debug)]
enum Edit {
    Put(usize, u8),
    Flip(usize, u8),
    /// The largest and smallest numbers are those that overflow.
    PutNumber(usize, u64, usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
    Cut(usize),
    /// Another sample from a place on.
    Splice(usize, usize, usize),
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>, samples: &[Vec<u8>]) {
        let place = |at: usize| at % (bytes.len() + 1);
        match self {
            Edit::Put(at, byte) => {
                let at = place(*at);
                bytes.get_mut(at).into_iter().for_each(|old| *old = *byte);
            }
            Edit::Flip(at, mask) => {
                let at = place(*at);
                bytes.get_mut(at).into_iter().for_each(|old| *old ^= mask);
            }
            Edit::PutNumber(at, number, length) => {
                let at = place(*at);
                let number = number.to_le_bytes();
                for (old, new) in bytes.iter_mut().skip(at).zip(number.iter().take(*length)) {
                    *old = *new;
                }
            }
            Edit::Remove(at, length) => {
                let at = place(*at);
                let end = bytes.len().min(at + length);
                bytes.drain(at..end);
            }
            Edit::Repeat(at, length) => {
                let at = place(*at);
                let part = bytes[at..bytes.len().min(at + length)].to_vec();
                bytes.splice(at..at, part);
            }
            Edit::Insert(at, new) => {
                let at = place(*at);
                bytes.splice(at..at, new.iter().copied());
            }
            Edit::Cut(at) => bytes.truncate(place(*at)),
            Edit::Splice(at, other, from) => {
                let at = place(*at);
                if let Some(other) = samples.get(other % samples.len().max(1)) {
                    bytes.truncate(at);
                    bytes.extend(other.iter().skip(from % (other.len() + 1)));
                }
            }
        }
    }
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = || prop_oneof![0usize..64, 0usize..4096, any::<usize>()];
    let numbers = prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), Just(u64::MAX >> 1), any::<u64>()];
    let edit = prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Put(at, byte)),
        (at(), (0..8u32).prop_map(|bit| 1 << bit)).prop_map(|(at, mask)| Edit::Flip(at, mask)),
        (at(), numbers, 1usize..9).prop_map(|(at, number, length)| Edit::PutNumber(at, number, length)),
        (at(), 0usize..64).prop_map(|(at, length)| Edit::Remove(at, length)),
        (at(), 0usize..64).prop_map(|(at, length)| Edit::Repeat(at, length)),
        (at(), vec(any::<u8>(), 0..32)).prop_map(|(at, new)| Edit::Insert(at, new)),
        at().prop_map(Edit::Cut),
        (at(), any::<usize>(), at()).prop_map(|(at, other, from)| Edit::Splice(at, other, from)),
    ];
    vec(edit, 0..6)
}

/// Runs a target for some seconds; how often.
///
/// # Panics
/// If the target panics, with the bytes. A run that hangs, or allocates without bound, ends the process.
pub fn run(name: &'static str, samples: &[Vec<u8>], limit: usize, target: impl Fn(&[u8])) -> u64 {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = number(SEED).unwrap_or_else(now);
    let until = Instant::now() + Duration::from_secs(number(SECONDS).unwrap_or(2));
    // To see them when it hangs or is killed, and of a test that fails.
    println!("{name}: {SEED}={seed}");
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &key);
    let config = Config { cases: 64, failure_persistence: None, max_shrink_iters: 4096, ..Config::default() };

    let watch = Watch::default();
    let runs = Cell::new(0);
    let check = |bytes: &[u8]| {
        runs.set(runs.get() + 1);
        watch.begin(bytes);
        ALLOCATED.set(0);
        LIMIT.set(limit);
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| target(bytes)));
        LIMIT.set(0);
        watch.end();
        done.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            text.unwrap_or_else(|| "a panic".to_owned())
        })
    };
    let fail = |why: &str, bytes: &[u8]| panic!("{name}, {SEED}={seed}: {why}\n{bytes:?}");
    samples.iter().for_each(|sample| check(sample).unwrap_or_else(|why| fail(&why, sample)));

    std::thread::scope(|scope| {
        scope.spawn(|| watch.look(name, seed));
        let _done = Done(&watch);
        loop {
            let base = prop_oneof![
                4 => any::<prop::sample::Index>().prop_map(Some),
                1 => Just(None),
            ];
            let input = (base, vec(any::<u8>(), 0..200), edits()).prop_map(|(base, noise, edits)| {
                let sample = base.and_then(|index| samples.get(index.index(samples.len().max(1))));
                let mut bytes = sample.cloned().unwrap_or(noise);
                edits.iter().for_each(|edit| edit.apply(&mut bytes, samples));
                bytes
            });
            // A runner of its own for each turn: one that has run as many cases as it was to does nothing more.
            let mut runner = TestRunner::new_with_rng(config.clone(), rng.clone());
            match runner.run(&input, |bytes| check(&bytes).map_err(TestCaseError::fail)) {
                Ok(()) => rng = runner.new_rng(),
                Err(TestError::Fail(why, bytes)) => fail(why.message(), &bytes),
                Err(TestError::Abort(why)) => panic!("{name}: {why}"),
            }
            if Instant::now() >= until {
                break;
            }
        }
    });
    println!("{name}: {} runs", runs.get());
    runs.get()
}

/// Looks from another thread whether a run hangs.
#[derive(Default)]
struct Watch {
    /// Counts beginnings and ends: odd while a run is under way, and `u64::MAX` when all is done.
    turn: AtomicU64,
    bytes: Mutex<Vec<u8>>,
}

/// Ends the watch, also when a run has failed.
struct Done<'a>(&'a Watch);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.turn.store(u64::MAX, Ordering::Release);
    }
}

impl Watch {
    fn begin(&self, bytes: &[u8]) {
        let mut kept = self.bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        kept.clear();
        kept.extend_from_slice(bytes);
        self.turn.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
    }

    fn look(&self, name: &str, seed: u64) {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(10));
            let turn = self.turn.load(Ordering::Acquire);
            if turn == u64::MAX {
                return;
            }
            if turn != seen || turn.is_multiple_of(2) {
                (seen, since) = (turn, Instant::now());
            } else if since.elapsed() > LONGEST {
                let bytes = self.bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let text = format!("{name}, {SEED}={seed}: hangs\n{bytes:?}\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
                std::process::abort();
            }
        }
    }
}

thread_local! {
    /// Bytes that this thread has allocated and not freed since the run began.
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
    /// How many it may have; 0: any.
    static LIMIT: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which ends the process when a target allocates too much:
/// `#[global_allocator] static ALLOCATOR: bivouac_testing::fuzz::Counting = bivouac_testing::fuzz::Counting;`
pub struct Counting;

impl Counting {
    fn count(&self, more: isize) {
        // A panic is a failure already; its backtrace takes many bytes.
        let limit = LIMIT.try_with(Cell::get).unwrap_or(0);
        if limit == 0 || std::thread::panicking() {
            return;
        }
        let now = ALLOCATED.try_with(|allocated| {
            allocated.set(allocated.get() + more);
            allocated.get()
        });
        if now.is_ok_and(|now| now > limit as isize) {
            // No panic may leave an allocator.
            LIMIT.set(0);
            let text = format!("a fuzz target has allocated more than {limit} bytes\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    }
}

// SAFETY: everything is the system allocator's doing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size() as isize);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.count(-(layout.size() as isize));
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size() as isize);
        // SAFETY: promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.count(size as isize - layout.size() as isize);
        // SAFETY: promised by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}
