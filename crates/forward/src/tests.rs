//! What all schedulers promise, on a simulated I/O node: arrivals, dispatchers and a backend with a simulated clock.

use crate::schedulers::{NAMES, by_name};
use crate::{Asked, Batch, Dispatch, Kind, Limits, Next, Number, Settings};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// An arrival: how long after the one before, and what.
type Arrival = (Duration, Asked);

/// A simulated I/O node: some dispatchers, each of which takes a time (100 µs), and 1 µs per KiB, for a batch.
struct Node {
    dispatch: Dispatch,
    now: Duration,
    /// Batches that are being carried out, with the time at which they are done.
    busy: Vec<(Duration, Batch)>,
    dispatchers: usize,
    takes: Duration,
    /// Of a backend that does one batch after the other: when it has done those that it was given.
    serial: Option<Duration>,
    limits: Limits,
    /// When each request was issued.
    issued: BTreeMap<Number, Duration>,
    /// What has arrived, by number.
    arrived: Vec<Asked>,
    batches: Vec<Batch>,
    /// Whether the scheduler may let ready requests wait.
    has_windows: bool,
}

impl Node {
    fn new(name: &str, settings: &Settings, dispatchers: usize) -> Node {
        let scheduler = by_name(name, settings).expect("it is known");
        Node {
            dispatch: Dispatch::new(scheduler),
            now: Duration::ZERO,
            busy: Vec::new(),
            dispatchers,
            takes: Duration::from_micros(100),
            serial: None,
            limits: settings.limits,
            issued: BTreeMap::new(),
            arrived: Vec::new(),
            batches: Vec::new(),
            has_windows: ["twins", "sw"].contains(&name),
        }
    }

    fn arrive(&mut self, asked: Asked) -> Number {
        let number = self.dispatch.arrive(asked, self.now);
        assert_eq!(number, self.arrived.len() as u64, "numbers are given in the order of arrival");
        self.arrived.push(asked);
        number
    }

    /// Lets idle dispatchers work. When they are to ask again, if nothing else happens.
    fn work(&mut self) -> Option<Duration> {
        while self.busy.len() < self.dispatchers {
            match self.dispatch.next(self.now) {
                Next::Issue(batch) => {
                    self.check(&batch);
                    let takes = self.takes + Duration::from_micros(batch.len / 1024);
                    self.batches.push(batch.clone());
                    let end = self.serial.unwrap_or_default().max(self.now) + takes;
                    self.serial = self.serial.map(|_| end);
                    self.busy.push((end, batch));
                }
                Next::Until(time) => {
                    let held = self.dispatch.queue().expires().is_some();
                    assert!((self.has_windows || held) && time > self.now);
                    assert!(time <= self.now + Duration::from_secs(1));
                    let has_ready = self.dispatch.queue().ready().next().is_some();
                    assert!(!has_ready || self.has_windows, "something is ready, and nothing is done");
                    return Some(time);
                }
                Next::Nothing => {
                    let has_ready = self.dispatch.queue().ready().next().is_some();
                    assert!(!has_ready || self.has_windows, "something is ready, and nothing is done");
                    return None;
                }
            }
        }
        None
    }

    /// Goes on to a time, at the latest.
    fn run_until(&mut self, end: Duration) {
        loop {
            let again = self.work();
            let done = self.busy.iter().map(|(at, _)| *at).min();
            let Some(next) = done.into_iter().chain(again).min().filter(|next| *next <= end) else { break };
            self.now = next;
            let (ended, busy) = std::mem::take(&mut self.busy).into_iter().partition(|(at, _)| *at <= next);
            self.busy = busy;
            let ended: Vec<(Duration, Batch)> = ended;
            for (_, batch) in ended {
                self.dispatch.done(&batch, self.now);
            }
        }
        self.now = end;
    }

    /// Checks a batch that is about to be issued, and notes it.
    fn check(&mut self, batch: &Batch) {
        assert!(!batch.parts.is_empty());
        let mut at = batch.offset;
        for (number, asked) in &batch.parts {
            assert_eq!(self.arrived[*number as usize], *asked);
            assert_eq!((asked.file, asked.kind), (batch.file, batch.kind));
            assert!(asked.offset >= at, "no overlaps");
            let gap = if batch.kind == Kind::Read { self.limits.gap } else { 0 };
            assert!(asked.offset - at <= gap, "no holes in writes, and short ones in reads");
            at = asked.end();
            assert_eq!(self.issued.insert(*number, self.now), None, "it is issued once");
        }
        assert_eq!(at, batch.offset + batch.len);
        assert!(batch.parts.len() == 1 || batch.len <= self.limits.bytes, "{batch:?}");
        assert!(batch.parts.len() == 1 || batch.parts.iter().all(|(_, asked)| asked.merges), "{batch:?}");
        assert!(batch.parts.len() <= crate::queue::MOST);
        // All earlier requests of each part's stream have been issued, and those that are still being carried out are in the
        // same batch.
        for (number, asked) in &batch.parts {
            let earlier = (0..*number).filter(|other| {
                let other = &self.arrived[*other as usize];
                (other.process, other.file) == (asked.process, asked.file)
            });
            for other in earlier {
                assert!(self.issued.contains_key(&other), "{number} overtakes {other}");
                let is_busy = |batch: &Batch| batch.parts.iter().any(|(number, _)| *number == other);
                assert!(
                    !self.busy.iter().any(|(_, batch)| is_busy(batch)),
                    "{number} is issued beside {other}"
                );
            }
        }
    }

    /// Everything that has arrived has been carried out.
    fn assert_complete(&self) {
        assert_eq!(self.issued.len(), self.arrived.len());
        assert!(
            self.dispatch.queue().is_empty() && self.dispatch.queue().bytes() == 0 && self.busy.is_empty()
        );
        let counts = self.dispatch.counts();
        assert_eq!(counts.requests_in, self.arrived.len() as u64);
        assert_eq!(counts.bytes_in, self.arrived.iter().map(|asked| asked.len).sum::<u64>());
        assert_eq!(counts.requests_out, self.batches.len() as u64);
        assert_eq!(counts.bytes_out, self.batches.iter().map(|batch| batch.len).sum::<u64>());
    }
}

fn asked(job: u64, process: u64, file: u64, offset: u64, len: u64) -> Asked {
    Asked { job, process, file, kind: Kind::Write, offset, len, merges: true }
}

fn any_arrival() -> impl Strategy<Value = Arrival> {
    let gap = prop_oneof![3 => Just(0u64), 1 => 0u64..3000];
    (gap, 0u64..3, 0u64..5, 0u64..4, any::<bool>(), 0u64..24, 1u64..5, 0u32..5).prop_map(
        |(gap, job, process, file, reads, block, blocks, form)| {
            let kind = if reads { Kind::Read } else { Kind::Write };
            // Unaligned at times.
            let (offset, len) = (block * 4096 + u64::from(form == 3), blocks * 4096);
            (
                Duration::from_micros(gap),
                Asked { job, process: job * 10 + process, file, kind, offset, len, merges: form < 4 },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn everything_is_issued_once_in_order_and_work_is_conserved(
        arrivals in proptest::collection::vec(any_arrival(), 1..120),
        dispatchers in 1usize..5,
        bytes in prop_oneof![Just(4096u64), Just(40_000), Just(16 << 20)],
        gap in prop_oneof![Just(0u64), Just(1), Just(8192)],
        quantum in prop_oneof![Just(0u64), Just(4096), Just(64 << 10)],
        servers in 1u32..5,
    ) {
        let settings = Settings { limits: Limits { bytes, gap }, quantum, servers, stripe: 4096, ..Settings::default() };
        for name in NAMES {
            let mut node = Node::new(name, &settings, dispatchers);
            let mut at = Duration::ZERO;
            for (gap, asked) in &arrivals {
                at += *gap;
                node.run_until(at);
                node.arrive(*asked);
            }
            node.run_until(at + Duration::from_secs(10));
            node.assert_complete();
        }
    }

    #[test]
    fn a_batch_that_was_done_in_part_is_cut_right(
        blocks in proptest::collection::vec((0u64..3, 1u64..9), 1..20),
        done in 0u64..200,
        gap in 0u64..3,
    ) {
        let mut node = Node::new("to", &Settings { limits: Limits { bytes: 1 << 20, gap }, ..Settings::default() }, 1);
        let mut offset = 7;
        for (hole, len) in blocks {
            offset += hole;
            node.arrive(Asked { kind: Kind::Read, ..asked(0, node.arrived.len() as u64, 1, offset, len) });
            offset += len;
        }
        let Next::Issue(batch) = node.dispatch.next(Duration::ZERO) else { panic!("something is ready") };
        for ((number, count), (part, asked)) in batch.shares(done).zip(&batch.parts) {
            prop_assert_eq!(number, *part);
            let bytes = (asked.offset..asked.end()).filter(|byte| *byte < batch.offset + done).count();
            prop_assert_eq!(count, bytes as u64);
        }
    }
}

/// However attractive others are that keep arriving, every request is issued some time.
#[test]
fn nothing_starves() {
    let settings =
        Settings { servers: 4, stripe: 4096, window: Duration::from_millis(1), ..Settings::default() };
    for name in NAMES {
        let mut node = Node::new(name, &settings, 1);
        // Two processes write a long file; a scattered request, and a large one, of others wait among many small ones.
        let victims = [asked(9, 90, 100, 1 << 30, 4 << 20), asked(8, 80, 101, 5, 7)];
        let victims = victims.map(|victim| node.arrive(victim));
        let (mut step, mut end) = (0, None);
        while end.is_none() && step < 200_000 {
            step += 1;
            let process = step % 7;
            let offset = (step / 7) * 4096;
            node.arrive(asked(process % 3, process, process % 5, offset, 4096));
            node.run_until(Duration::from_micros(step * 110));
            end = victims.iter().all(|victim| node.issued.contains_key(victim)).then_some(node.now);
        }
        let end = end.unwrap_or_else(|| panic!("{name}: a request starves"));
        assert!(end < Duration::from_secs(2), "{name}: {end:?}");
    }
}

/// Sixteen processes write pieces of a shared file, 64 each, at the places that a function gives; each asks again when it was
/// answered.
fn together(node: Node, place: impl Fn(u64, u64) -> u64) -> Node {
    each(64, node, place)
}

/// The same with so many pieces each.
fn each(pieces: u64, mut node: Node, place: impl Fn(u64, u64) -> u64) -> Node {
    let mut written = HashMap::new();
    let mut asks = |node: &mut Node, process: u64| {
        let count = written.entry(process).or_insert(0u64);
        if *count < pieces {
            node.arrive(asked(1, process, 1, place(process, *count) * 32768, 32768));
            *count += 1;
        }
    };
    (0..16).for_each(|process| asks(&mut node, process));
    while !node.dispatch.queue().is_empty() || !node.busy.is_empty() {
        node.work();
        node.busy.sort_by_key(|(at, _)| *at);
        let (at, batch) = node.busy.remove(0);
        node.now = at;
        node.dispatch.done(&batch, at);
        batch.parts.iter().for_each(|(_, part)| asks(&mut node, part.process));
    }
    node
}

/// Each writes every sixteenth piece.
fn strided(name: &str) -> Node {
    together(Node::new(name, &Settings::default(), 1), |process, count| count * 16 + process)
}

/// With a dispatcher for each, at a backend that takes a while.
fn slow(name: &str) -> Node {
    Node { takes: Duration::from_millis(1), ..Node::new(name, &Settings::default(), 16) }
}

#[test]
fn requests_wait_for_neighbours_where_the_backend_is_slow_and_neighbours_come() {
    for name in NAMES.into_iter().filter(|name| *name != "fifo") {
        let counts = together(slow(name), |process, count| count * 16 + process).dispatch.counts();
        // Those with quanta begin with short ones.
        let least = if ["aioli", "mlf"].contains(&name) { 3 } else { 6 };
        assert!(counts.requests_out <= 16 * 64 / least, "{name}: {counts:?}");
    }
    let fifo = together(slow("fifo"), |process, count| count * 16 + process);
    assert_eq!(fifo.dispatch.counts().requests_out, 16 * 64);
    let mut quick = Node::new("to", &Settings::default(), 16);
    for number in 0..100 {
        quick.arrive(asked(1, number, 1, number * 4096, 4096));
        quick.run_until(quick.now + Duration::from_micros(10));
    }
    assert_eq!(quick.batches.len(), 100, "a quick backend is asked at once");
}

/// Some are ahead of others from the beginning, so that hardly any have neighbours.
fn apart(process: u64, count: u64) -> u64 {
    (count + process * 7 % 20) * 16 + process
}

#[test]
fn processes_that_take_turns_are_led_together_where_the_backend_does_one_request_after_the_other() {
    for name in NAMES.into_iter().filter(|name| *name != "fifo") {
        let node = each(256, Node { serial: Some(Duration::ZERO), ..slow(name) }, apart);
        let counts = node.dispatch.counts();
        // Those with quanta begin with short ones.
        let least = if ["aioli", "mlf"].contains(&name) { 2 } else { 4 };
        assert!(counts.requests_out <= 16 * 256 / least, "{name}: {counts:?}");
        // A backend that does many at once is given many.
        let node = together(slow(name), apart);
        let apart = 64 * Duration::from_micros(1032);
        assert!(node.now < apart * 3 / 2, "{name}: {:?}, and {apart:?} if nothing waits", node.now);
    }
}

#[test]
fn what_takes_turns_is_not_held_by_large_requests_and_is_given_free_where_nothing_is_merged() {
    // It has been learnt that they take turns, and that the backend does one after the other.
    let learnt = || each(256, Node { serial: Some(Duration::ZERO), ..slow("to") }, apart);
    let next = |process: u64| asked(1, process, 1, apart(process, 256) * 32768, 32768);
    let mut node = learnt();
    let large = |number: u64| asked(1, 100 + number, 1, (1 << 30) + number * (10 << 20), 8 << 20);
    for number in 0..40 {
        node.arrive(large(number));
        node.run_until(node.now + Duration::from_millis(9));
    }
    let begun = node.now;
    let small: Vec<u64> = (0..16).map(|process| node.arrive(next(process))).collect();
    for number in 40..80 {
        node.arrive(large(number));
        node.run_until(node.now + Duration::from_millis(9));
    }
    for number in small {
        let waited = node.issued[&number] - begun;
        assert!(waited < Duration::from_millis(100), "{number}: {waited:?}");
    }
    // What is held when the scheduler becomes one that merges nothing is issued all the same.
    let mut node = learnt();
    for process in 0..16 {
        node.arrive(next(process));
        node.work();
    }
    node.run_until(node.now + Duration::from_micros(100));
    node.dispatch.set_scheduler(by_name("fifo", &Settings::default()).expect("it is known"), node.now);
    node.run_until(node.now + Duration::from_secs(10));
    node.assert_complete();
}

#[test]
fn what_hangs_holds_others_of_its_file_for_a_second_at_most() {
    // In turns, or just beside each other.
    let neighbours = |process: u64, count: u64| count * 16 + process;
    for (serial, place) in [(Some(Duration::ZERO), apart as fn(u64, u64) -> u64), (None, neighbours)] {
        let mut node = each(256, Node { serial, ..slow("to") }, place);
        let next = |process: u64| asked(1, process, 1, place(process, 256) * 32768, 32768);
        node.takes = Duration::from_secs(100);
        node.arrive(next(0));
        node.work();
        (node.takes, node.serial) = (Duration::from_millis(1), None);
        let held: Vec<u64> = (1..16).map(|process| node.arrive(next(process))).collect();
        let begun = node.now;
        node.work();
        assert!(held.iter().any(|number| !node.issued.contains_key(number)), "something waits");
        node.run_until(begun + Duration::from_secs(3));
        for number in held {
            let waited = node.issued[&number] - begun;
            assert!(waited <= Duration::from_millis(1100), "{number}: {waited:?}");
        }
    }
}

#[test]
fn requests_that_find_no_neighbours_soon_wait_no_longer() {
    // Pieces far from each other, in no order.
    let node = together(slow("to"), |process, count| 2 * ((count * 16 + process) * 619 % 1024));
    assert_eq!(node.dispatch.counts().requests_out, 16 * 64);
    let unheld = 64 * Duration::from_micros(1032);
    assert!(node.now < unheld * 5 / 4, "{:?}, and {unheld:?} if nothing waits", node.now);
}

#[test]
fn who_waits_for_neighbours_waits_for_nothing_that_came_later() {
    let mut node = slow("to");
    // Large ones, which wait for nobody, two at any time.
    let large = |number: u64| asked(1, 100 + number, 1, (1 << 30) + number * (10 << 20), 8 << 20);
    for number in 0..50 {
        node.arrive(large(number));
        node.run_until(node.now + Duration::from_millis(5));
    }
    let small = node.arrive(asked(1, 7, 1, 0, 4096));
    for number in 50..60 {
        node.arrive(large(number));
        node.run_until(node.now + Duration::from_millis(5));
    }
    let waited = node.issued[&small] - Duration::from_millis(5 * 50);
    assert!(waited > Duration::ZERO && waited < Duration::from_millis(10), "{waited:?}");
}

#[test]
fn strided_writes_of_many_processes_are_merged_into_long_ones_by_all_that_merge() {
    assert_eq!(strided("fifo").dispatch.counts().requests_out, 16 * 64);
    for name in NAMES.into_iter().filter(|name| *name != "fifo") {
        let counts = strided(name).dispatch.counts();
        assert_eq!((counts.requests_in, counts.bytes_in), (16 * 64, counts.bytes_out));
        assert!(counts.requests_out <= 16 * 64 / 8, "{name}: {counts:?}");
    }
}

#[test]
fn two_kinds_and_two_files_are_never_merged_and_holes_only_of_reads() {
    let settings = Settings { limits: Limits { bytes: 1 << 20, gap: 10 }, ..Settings::default() };
    let mut node = Node::new("to", &settings, 9);
    let read = |process, offset| Asked { kind: Kind::Read, ..asked(0, process, 1, offset, 10) };
    for one in [
        asked(0, 1, 1, 0, 10),
        read(2, 10),
        asked(0, 3, 2, 10, 10),
        asked(0, 4, 1, 11, 10),
        read(5, 25),
        read(6, 46),
    ] {
        node.arrive(one);
    }
    node.work();
    let ranges: Vec<(u64, u64, usize)> =
        node.batches.iter().map(|b| (b.offset, b.len, b.parts.len())).collect();
    assert_eq!(ranges, [(0, 10, 1), (10, 25, 2), (10, 10, 1), (11, 10, 1), (46, 10, 1)]);
}

#[test]
fn jobs_get_bytes_by_their_weights() {
    let settings = Settings { weights: BTreeMap::from([(1, 3)]), ..Settings::default() };
    let mut node = Node::new("wfq", &settings, 1);
    for number in 0..400 {
        // Far from each other, so that nothing is merged.
        node.arrive(asked(number % 2, number, number, 0, 64 << 10));
    }
    node.run_until(Duration::from_micros(164 * 100));
    let of = |job: u64| node.issued.keys().filter(|number| **number % 2 == job).count();
    assert!((72..=78).contains(&of(1)) && (22..=28).contains(&of(0)), "{} {}", of(1), of(0));
}

#[test]
fn a_file_that_is_read_from_begin_to_end_gets_longer_and_longer_turns() {
    let settings = Settings { quantum: 64 << 10, ..Settings::default() };
    let mut node = Node::new("aioli", &settings, 1);
    for number in 0..256 {
        node.arrive(asked(0, 1000 + number, 1, number * 16384, 16384));
        node.arrive(asked(0, 2000 + number, 2, number * 10_000_000, 16384));
    }
    node.run_until(Duration::from_secs(10));
    let of = |file| node.batches.iter().filter(move |batch| batch.file == file).map(|batch| batch.len);
    let long: Vec<u64> = of(1).collect();
    assert_eq!(long[..5], [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20]);
    assert!(of(2).all(|len| len == 16384));
    assert!(node.batches[1].file == 2 && node.batches[3].file == 2, "they take turns");
}

#[test]
fn each_window_is_one_servers_and_the_time_alone_says_whose() {
    let (servers, stripe, window) = (3, 1 << 20, Duration::from_millis(10));
    let mut node = Node::new("twins", &Settings { servers, stripe, window, ..Settings::default() }, 1);
    for number in 0..300 {
        // The first half of each file's first stripes.
        node.arrive(asked(0, number, 3 * number, (number % 3) << 20, 512 << 10));
    }
    node.run_until(Duration::from_secs(1));
    for (number, at) in &node.issued {
        assert_eq!((at.as_millis() / 10) as u64 % 3, number % 3, "{number} at {at:?}");
    }
}

#[test]
fn a_job_that_asks_again_at_once_keeps_its_window_and_the_next_one_follows() {
    let settings = Settings { window: Duration::from_millis(10), ..Settings::default() };
    let mut node = Node::new("sw", &settings, 1);
    node.arrive(asked(1, 1, 1, 0, 4096));
    node.arrive(asked(2, 2, 2, 0, 4096));
    let mut first = 1;
    while node.now < Duration::from_millis(9) {
        node.run_until(node.now + Duration::from_micros(200));
        node.arrive(asked(1, 1, 1, first * 4096, 4096));
        first += 1;
    }
    assert!(!node.issued.contains_key(&1), "the other one's window has not begun");
    node.run_until(Duration::from_millis(11));
    assert!(node.issued.contains_key(&1));
    // It asks for nothing more: its window ends early.
    node.run_until(Duration::from_millis(15));
    node.arrive(asked(1, 1, 1, 1 << 30, 4096));
    node.run_until(Duration::from_millis(18));
    assert!(node.issued.len() == node.arrived.len());
}

#[test]
fn the_scheduler_can_be_replaced_while_requests_wait() {
    let mut node = Node::new("sjf", &Settings::default(), 1);
    for number in 0..40u64 {
        node.arrive(asked(number % 3, number % 5, number % 4, number * 5000, 4096));
    }
    for name in NAMES {
        let scheduler = by_name(name, &Settings::default()).expect("it is known");
        node.has_windows |= ["twins", "sw"].contains(&name);
        node.dispatch.set_scheduler(scheduler, node.now);
        node.run_until(node.now + Duration::from_micros(250));
    }
    node.run_until(node.now + Duration::from_secs(1));
    node.assert_complete();
    assert!(by_name("best", &Settings::default()).is_none());
}
