//! Starts the workers, makes them begin each phase at the same time, and collects their results.
//!
//! A phase begins when every worker has said that it is ready, and its time is that of the first to begin and
//! the last to end. Between machines, whose clocks cannot be compared, it is the time that passed here.

use crate::cpu;
use crate::error::BenchError;
use crate::plan::{Op, Plan};
use crate::report::{Phase, Report};
use crate::worker::{Answer, Order, Outcome};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How workers are started.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program that becomes a worker.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Commands to put before the worker's own, in the shell's syntax, used in turns: `ssh node1 bivouac exec
    /// job --`.
    pub via: Vec<String>,
    /// Processes whose processor time is shown, too: those of the servers.
    pub servers: Vec<u32>,
}

/// A worker as the coordinator sees it.
struct Worker {
    rank: u32,
    child: Child,
    /// `None` once it is to end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(start: &Start, rank: u32) -> Result<Worker, BenchError> {
        let mut command = match start.via.get(rank as usize % start.via.len().max(1)) {
            Some(via) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("exec {via} \"$0\" \"$@\"")]).arg(&start.program);
                shell
            }
            None => Command::new(&start.program),
        };
        command.args(&start.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let told = format!("{command:?}");
        let failed = |cause| BenchError::Start { command: told.clone(), cause };
        let mut child = command.spawn().map_err(failed)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(orders), Some(answers)) => {
                Ok(Worker { rank, child, orders: Some(orders), answers: BufReader::new(answers) })
            }
            _ => Err(failed(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn order(&mut self, order: &Order) -> Result<(), BenchError> {
        let mut text = serde_json::to_vec(order).map_err(|e| BenchError::Plan(e.to_string()))?;
        text.push(b'\n');
        let written = self.orders.as_mut().map(|orders| orders.write_all(&text));
        if matches!(written, Some(Ok(()))) { Ok(()) } else { Err(self.wrong("has ended")) }
    }

    fn answer(&mut self) -> Result<Answer, BenchError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) | Err(_) => Err(self.wrong("has ended")),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|_| self.wrong(&format!("says something that is no answer: {}", line.trim()))),
        }
    }

    /// Waits until the worker has done what it was told. Returns in which boot of a machine it runs.
    fn ready(&mut self, what: &str) -> Result<String, BenchError> {
        match self.answer()? {
            Answer::Ready { boot } => Ok(boot),
            Answer::Failed(why) => Err(self.wrong(&format!("cannot {what}: {why}"))),
            Answer::Done(_) => Err(self.wrong("answers what it was not asked")),
        }
    }

    fn outcome(&mut self) -> Result<Outcome, BenchError> {
        match self.answer()? {
            Answer::Done(outcome) => Ok(*outcome),
            _ => Err(self.wrong("answers what it was not asked")),
        }
    }

    fn wrong(&self, what: &str) -> BenchError {
        BenchError::Worker { rank: self.rank, what: what.to_owned() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends when its input ends.
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Does the whole plan. `started` is told the workers' process numbers, for passing signals on.
pub fn run(plan: &Plan, start: &Start, started: impl FnOnce(&[u32])) -> Result<Report, BenchError> {
    plan.check().map_err(BenchError::Plan)?;
    let mut workers =
        (0..plan.procs).map(|rank| Worker::start(start, rank)).collect::<Result<Vec<_>, _>>()?;
    let pids: Vec<u32> = workers.iter().map(|w| w.child.id()).collect();
    started(&pids);
    let mut boots = Vec::new();
    for (rank, worker) in (0u32..).zip(&mut workers) {
        worker.order(&Order::Begin(plan.clone(), rank))?;
        boots.push(worker.ready("make its directory")?);
    }
    let one_clock = boots.iter().all(|boot| !boot.is_empty() && *boot == boots[0]);
    let mut report = Report::new(plan);
    let mut result = Ok(());
    for op in &plan.ops {
        match phase(*op, &mut workers, start, one_clock) {
            Ok(phase) => {
                let interrupted = phase.interrupted;
                report.phases.push(phase);
                if interrupted {
                    result = Err(BenchError::Interrupted);
                    break;
                }
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    // Worker 0 removes what all share, when the others are done.
    for worker in workers.iter_mut().rev() {
        let cleaned = worker.order(&Order::End).and_then(|()| worker.ready("remove what it made"));
        result = result.and(cleaned.map(|_| ()));
    }
    report.finish();
    result.map(|()| report)
}

fn phase(op: Op, workers: &mut [Worker], start: &Start, one_clock: bool) -> Result<Phase, BenchError> {
    for worker in workers.iter_mut() {
        worker.order(&Order::Prepare(op))?;
    }
    for worker in workers.iter_mut() {
        worker.ready(&format!("prepare for {op}"))?;
    }
    let cost = |pids: &[u32]| -> Vec<Option<u64>> { pids.iter().map(|pid| cpu::of(*pid)).collect() };
    let servers_before = cost(&start.servers);
    let began = cpu::now();
    for worker in workers.iter_mut() {
        worker.order(&Order::Go)?;
    }
    let outcomes = workers.iter_mut().map(Worker::outcome).collect::<Result<Vec<_>, _>>()?;
    let passed = cpu::now() - began;
    let servers_after = cost(&start.servers);
    let spent =
        servers_before.iter().zip(&servers_after).filter_map(|(before, after)| Some((*after)? - (*before)?));
    let servers = (!start.servers.is_empty()).then(|| spent.sum());
    let passed = match one_clock {
        true => {
            let first = outcomes.iter().map(|o| o.began).min().unwrap_or(0);
            outcomes.iter().map(|o| o.ended).max().unwrap_or(0) - first
        }
        false => passed,
    };
    Ok(Phase::new(op, &outcomes, passed, servers))
}
