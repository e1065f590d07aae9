//! The model-based test: random programs of calls, made in turns by several clients of one file system, each
//! through a way of its own (a process with the preload library, one in a kernel mount, the client core), and
//! compared call by call with a [reference](Reference) in memory.
//!
//! [`programs`] makes programs up, [`Play`] has them played by [faces](Face), [`Reference`] judges. A program
//! that comes out wrong is shrunk to the shortest that still does. The reference itself is compared with a
//! local file system in the same way.

mod call;
mod face;
mod library;
mod locks;
mod mover;
mod programs;
mod reference;
mod system;
mod tree;
mod waits;

pub use call::{Answer, Call, Domain, Hold, Order, Target, pattern};
pub use face::{Face, serve};
pub use library::Library;
pub use mover::Mover;
pub use programs::{Program, programs};
pub use reference::{Reference, Rules};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use reference::Expected;
use std::time::{Duration, Instant, SystemTime};

/// How long a lock may still conflict after its description was closed in a kernel mount: the kernel does not
/// wait for the release.
const LATE_RELEASE: Duration = bivouac_testing::HANG;

/// Writes are stamped with a clock that ticks so often; one within the tick in which mtime was set does not
/// show.
const CLOCK_TICK: Duration = Duration::from_millis(10);

/// One in so many programs has a directory to work in that has split.
const SPLIT: u32 = 4;

/// Programs between two looks at the time.
const BATCH: u32 = 20;

/// How many programs are tried, and which. The environment may say otherwise.
pub struct Plan {
    /// Programs (`BIVOUAC_MODEL_CASES`).
    pub cases: u32,
    /// Where the random numbers begin (`BIVOUAC_MODEL_SEED`).
    pub seed: u64,
    /// No new program after this time (`BIVOUAC_MODEL_SECONDS`).
    pub limit: Duration,
    /// Most calls in a program (`BIVOUAC_MODEL_CALLS`).
    pub calls: usize,
}

impl Plan {
    /// As the environment says; otherwise so many programs.
    pub fn from_environment(cases: u32) -> Plan {
        let given = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
        Plan {
            cases: given("BIVOUAC_MODEL_CASES").map_or(cases, |n| n as u32),
            seed: given("BIVOUAC_MODEL_SEED").unwrap_or(1),
            limit: Duration::from_secs(given("BIVOUAC_MODEL_SECONDS").unwrap_or(20)),
            calls: given("BIVOUAC_MODEL_CALLS").map_or(80, |n| n as usize),
        }
    }
}

/// Clients of one file system, and where they work.
pub struct Play {
    faces: Vec<Face>,
    base: String,
    rules: Rules,
    played: u32,
    /// How many waits for locks ended with the lock, and how many by a signal.
    waits: (u32, u32),
}

impl Play {
    /// Clients that work in new directories below `base`. The first one makes and removes those.
    pub fn new(faces: Vec<Face>, base: &str, rules: Rules) -> Play {
        Play { faces, base: base.to_owned(), rules, played: 0, waits: (0, 0) }
    }

    /// Plays random programs; panics with the shortest that comes out wrong. How many were played.
    pub fn all(self, plan: &Plan) -> u32 {
        let config = Config {
            cases: plan.cases.min(BATCH),
            failure_persistence: None,
            max_shrink_iters: 4000,
            max_shrink_time: 20_000,
            ..Config::default()
        };
        let (start, strategy) = (Instant::now(), programs(self.faces.len(), plan.calls));
        let play = std::cell::RefCell::new(self);
        for batch in 0u64.. {
            if start.elapsed() >= plan.limit || play.borrow().played >= plan.cases {
                break;
            }
            let mut seed = [0; 32];
            seed[..8].copy_from_slice(&plan.seed.to_le_bytes());
            seed[8..16].copy_from_slice(&batch.to_le_bytes());
            let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
            let mut runner = TestRunner::new_with_rng(config.clone(), random);
            let one = |program| play.borrow_mut().one(&program).map_err(TestCaseError::fail);
            if let Err(wrong) = runner.run(&strategy, one) {
                panic!("seed {}: {wrong}", plan.seed);
            }
        }
        let Play { played, waits: (came, ended), .. } = *play.borrow();
        assert!(played < 300 || came > 0 && ended > 0, "nobody waited for a lock: {came} {ended}");
        println!(
            "{played} programs in {:.1} s; {came} locks were waited for, {ended} waits interrupted",
            start.elapsed().as_secs_f64()
        );
        played
    }

    /// Plays one program in a fresh directory. The error tells which call came out wrong.
    pub fn one(&mut self, program: &Program) -> Result<(), String> {
        self.played += 1;
        // The clock that file systems use is a little behind.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos();
        let begin = now as i64 - 1_000_000_000;
        let split = self.played.is_multiple_of(SPLIT);
        let directory = if split {
            format!("{}/split", self.base)
        } else {
            format!("{}/case-{}", self.base, self.played)
        };
        let ready = match self.played {
            SPLIT => Order::Split(directory.clone()),
            _ if split => Order::Clear(directory.clone()),
            _ => Order::Make(directory.clone()),
        };
        assert_eq!(self.faces[0].obey(&ready), Answer::Done, "{directory}");
        for face in &mut self.faces {
            assert_eq!(
                face.obey(&Order::Enter(directory.clone())),
                Answer::Done,
                "{}: {directory}",
                face.name
            );
        }
        let outcome = self.play(program, begin);
        for face in &mut self.faces {
            assert_eq!(face.obey(&Order::Enter(self.base.clone())), Answer::Done, "{}", face.name);
        }
        let removed =
            self.faces[0].obey(&if split { Order::Clear(directory) } else { Order::Remove(directory) });
        outcome?;
        if removed == Answer::Done {
            Ok(())
        } else {
            Err(format!("the directory cannot be removed: {removed:?}"))
        }
    }

    /// `begin`: no time of today is before this, nanoseconds since 1970.
    fn play(&mut self, program: &Program, begin: i64) -> Result<(), String> {
        let mut reference = Reference::new(
            self.faces.iter().map(|face| face.mount).collect(),
            self.faces.iter().map(|face| face.user).collect(),
            self.rules,
            begin,
        );
        let outcome = self.calls(program, &mut reference);
        let ended = self.end_waits(&mut reference);
        outcome.and(ended)
    }

    fn calls(&mut self, program: &Program, reference: &mut Reference) -> Result<(), String> {
        for (index, (client, call)) in program.iter().enumerate() {
            let mut client = *client;
            let elsewhere = matches!(
                call,
                Call::Copy { .. }
                    | Call::MapRead { .. }
                    | Call::MapWrite { .. }
                    | Call::Reopen { .. }
                    | Call::ReadlinkSlot { .. }
                    | Call::Chown { uid: u32::MAX, gid: u32::MAX, .. }
                    | Call::Lock { wait: true, .. }
                    | Call::At { enter: true, .. }
            );
            if self.faces[client].is_library() && elsewhere {
                client = 0;
            }
            if reference.waits(client) {
                if *call == Call::Interrupt {
                    self.interrupt(client, reference).map_err(|wrong| format!("call {index}: {wrong}"))?;
                }
                continue;
            }
            let Some(call) = reference.settle(client, call.clone()) else { continue };
            let Some(expected) = reference.expect(client, &call) else { continue };
            let (begin, mut attempts) = (Instant::now(), 0);
            let (dir, inner) = match &call {
                Call::At { slot, enter, call } => (Some((*slot, *enter)), &**call),
                call => (None, call),
            };
            if let Expected::Later = expected {
                self.faces[client].begin(&Order::Do(call.clone()));
                continue;
            }
            loop {
                let answer =
                    self.have_done(client, &call).map_err(|wrong| format!("call {index}: {wrong}"))?;
                let Err(wrong) = reference.judge(&expected, &answer) else {
                    if let Call::Times { .. } | Call::TimesEmpty { .. } = inner {
                        std::thread::sleep(CLOCK_TICK);
                    }
                    break;
                };
                let locked = matches!(&call, Call::Lock { wait: false, .. })
                    && answer == Answer::Failed(libc::EAGAIN)
                    || matches!(answer, Answer::Held(Some(_)));
                if locked && begin.elapsed() < LATE_RELEASE {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // The kernel cannot rename a directory across directories if it knows it under an old name:
                // look it up first.
                if let (true, Call::Rename { from, to, .. }) = (self.faces[client].mount, inner)
                    && answer == Answer::Failed(libc::ESTALE)
                    && attempts < 3
                {
                    attempts += 1;
                    for path in [from, to] {
                        let target = call::Target::Link(path.clone());
                        let look = Call::Stat { target };
                        self.faces[client].obey(&Order::Do(match dir {
                            Some((slot, enter)) => Call::At { slot, enter, call: Box::new(look) },
                            None => look,
                        }));
                    }
                    continue;
                }
                let answer = reference::short(&format!("{answer:?}"));
                let call = reference::short(&format!("{call:?}"));
                let name = &self.faces[client].name;
                return Err(format!(
                    "call {index}, by client {client} ({name}): {call}: {wrong}, but it is {answer}"
                ));
            }
            self.let_through(reference).map_err(|wrong| format!("after call {index}, {call:?}: {wrong}"))?;
        }
        Ok(())
    }
}
