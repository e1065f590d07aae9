//! One process of the load: carries out the coordinator's orders, and reports the results.
//!
//! Orders come on standard input and answers go to standard output, each a line of JSON. When the input ends,
//! the coordinator is gone: the worker removes what it made and ends too. SIGINT, SIGTERM and SIGHUP only end
//! the phase under way, so that the coordinator can still have everything removed.

use crate::cpu;
use crate::error::BenchError;
use crate::histogram::Histogram;
use crate::interruption;
use crate::ops::{Load, Trouble};
use crate::plan::{Op, Plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

/// What the coordinator says.
#[derive(Serialize, Deserialize, Debug)]
pub enum Order {
    /// Comes first: the plan, and the worker's number in it. Make the directories.
    Begin(Plan, u32),
    /// Make ready for a phase.
    Prepare(Op),
    /// Do it.
    Go,
    /// Remove what was made, and end.
    End,
}

/// What a worker says.
#[derive(Serialize, Deserialize, Debug)]
pub enum Answer {
    /// To `Begin`, `Prepare`, `End`: done. Which boot of which machine this is: clocks can be compared within
    /// one.
    Ready {
        /// The kernel's name for it; empty if it has none.
        boot: String,
    },
    /// To `Begin`, `Prepare`, `End`: it could not be done.
    Failed(String),
    /// To `Go`.
    Done(Box<Outcome>),
}

/// The results of a phase in one worker.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct Outcome {
    /// When it began and ended, on the machine's clock, nanoseconds.
    pub began: u64,
    /// See `began`.
    pub ended: u64,
    /// How long each operation took, also those that failed.
    pub latency: Histogram,
    /// Bytes read or written.
    pub bytes: u64,
    /// Directory entries seen.
    pub entries: u64,
    /// Processor time of this process, nanoseconds.
    pub cpu: u64,
    /// Failed operations by the name of the error.
    pub errors: BTreeMap<String, u64>,
    /// The first failure, in words.
    pub first_error: Option<String>,
    /// A signal ended the phase early.
    pub interrupted: bool,
}

/// Serves a coordinator until it is done.
pub fn serve() -> Result<(), BenchError> {
    interruption::take();
    let mut input = std::io::stdin().lock().lines();
    let mut next = || -> Option<Order> { serde_json::from_str(&input.next()?.ok()?).ok() };
    let Some(Order::Begin(plan, rank)) = next() else {
        return Err(BenchError::Plan("a worker is started by the coordinator, not by hand".into()));
    };
    let mut load = Load::new(&plan, rank);
    answer(&ready(load.set_up()))?;
    let mut phase = None;
    loop {
        match next() {
            Some(Order::Prepare(op)) => {
                let prepared = load.prepare(op);
                phase = prepared.as_ref().ok().map(|count| (op, *count));
                answer(&ready(prepared.map(|_| ())))?;
            }
            Some(Order::Go) => {
                let Some((op, count)) = phase.take() else {
                    return answer(&Answer::Failed("was not prepared".into()));
                };
                let outcome = measure(&mut load, op, count);
                load.finished(op);
                answer(&Answer::Done(Box::new(outcome)))?;
            }
            Some(Order::End) => return answer(&ready(load.clean_up())),
            Some(Order::Begin(..)) | None => {
                let _ = load.clean_up();
                return Ok(());
            }
        }
    }
}

/// Does all operations of a phase, one after the other.
fn measure(load: &mut Load, op: Op, count: u64) -> Outcome {
    let mut outcome = Outcome { latency: Histogram::new(), ..Outcome::default() };
    let cpu_before = cpu::own();
    outcome.began = cpu::now();
    let mut last = outcome.began;
    for index in 0..count {
        if interruption::came() {
            outcome.interrupted = true;
            break;
        }
        match load.run(op, index) {
            Ok(moved) => {
                outcome.bytes += moved.bytes;
                outcome.entries += moved.entries;
            }
            Err(trouble) => note(&mut outcome, trouble),
        }
        let now = cpu::now();
        outcome.latency.record(now - last);
        last = now;
    }
    outcome.ended = last;
    outcome.cpu = cpu::own() - cpu_before;
    outcome
}

#[cold]
fn note(outcome: &mut Outcome, trouble: Trouble) {
    let (name, words) = match trouble {
        Trouble::System(error) => {
            let errno = error.raw_os_error().and_then(|number| u16::try_from(number).ok());
            let name = errno.map(|number| format!("{:?}", bivouac_proto::Errno(number)));
            (name.unwrap_or_else(|| "short".to_owned()), error.to_string())
        }
        Trouble::Wrong(what) => ("wrong".to_owned(), what.to_owned()),
    };
    *outcome.errors.entry(name).or_default() += 1;
    outcome.first_error.get_or_insert(words);
}

fn ready(result: std::io::Result<()>) -> Answer {
    match result {
        Ok(()) => Answer::Ready { boot: cpu::boot() },
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Sends a line. If the coordinator is gone, that is noticed when the next order is read.
fn answer(answer: &Answer) -> Result<(), BenchError> {
    let mut text = serde_json::to_vec(answer).map_err(|e| BenchError::Plan(e.to_string()))?;
    text.push(b'\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&text).and_then(|()| out.flush());
    Ok(())
}
