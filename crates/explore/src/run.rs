//! One run of a pattern: the part in the command. It has all nodes go through the phases together, and makes the
//! figures.
//!
//! Before a phase begins, all processes have opened their files and wait: that is the barrier. Its time is from the
//! first one's begin to the last one's end, where all nodes share a clock, and otherwise the time that passed here.
//! A run that fails leaves no process and, as far as processes could still remove them, no files: whoever has a failed
//! run drops the [`Link`]s.

use crate::error::ExploreError;
use crate::patterns::Pattern;
use crate::protocol::{Answer, NodeAnswer, NodeOrder, Order, Outcome, Seen, Task, Work};
use crate::results::PhaseResult;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, ExploreError>;

/// How often it is looked whether somebody wants the end.
const LOOK: Duration = Duration::from_millis(50);
/// Longest time for an answer. Far more than any phase takes: what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// A connection to the part on a node ([`crate::node::serve`]). It is ended when this is dropped.
pub struct Link {
    /// The node's name, for people.
    pub name: String,
    input: Option<Box<dyn Write + Send>>,
    lines: Receiver<String>,
    end: Option<Box<dyn FnOnce() -> String + Send>>,
}

/// What I/O nodes count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub requests_in: u64,
    pub requests_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// How a run is made.
pub struct Conditions<'a> {
    /// The deployment's name.
    pub deployment: &'a str,
    /// The directory that the run makes for its files, in one that it makes for it.
    pub directory: &'a str,
    /// A number that no other run has.
    pub run: u64,
    /// Whether programs have to go through I/O nodes, or must not.
    pub forwarded: bool,
    /// What was written is read back and checked.
    pub verify: bool,
    /// Page caches are dropped before something is read.
    pub drop_caches: bool,
    /// What all I/O nodes have counted so far.
    pub counts: &'a dyn Fn() -> Option<Counts>,
    /// Whether the end is wanted.
    pub stop: &'a dyn Fn() -> bool,
}

/// What a run has measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// The highest load of a node before it.
    pub load: f64,
    /// Each phase.
    pub phases: Vec<PhaseResult>,
    /// What I/O nodes have counted in all phases, where there are any.
    pub counts: Option<Counts>,
    /// Where page caches were to be dropped before reads: on how many nodes they were, of how many.
    pub dropped: Option<(usize, usize)>,
}

impl Link {
    /// Over the two ends of a connection. `end` waits for the node's end when it gets no more orders; what it says is
    /// what the node has written to its standard error.
    pub fn new(
        name: String,
        input: Box<dyn Write + Send>,
        output: Box<dyn Read + Send>,
        end: Box<dyn FnOnce() -> String + Send>,
    ) -> Link {
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Link { name, input: Some(input), lines, end: Some(end) }
    }

    fn tell(&mut self, order: &NodeOrder) -> Result<()> {
        let line = serde_json::to_string(order).map_err(|e| ExploreError::Run(e.to_string()))?;
        let told = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        if matches!(told, Some(Ok(()))) { Ok(()) } else { Err(self.lost()) }
    }

    fn answer(&mut self, stop: &dyn Fn() -> bool) -> Result<NodeAnswer> {
        let until = Instant::now() + LIMIT;
        let line = loop {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
                Err(RecvTimeoutError::Timeout) if stop() => return Err(ExploreError::Interrupted),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Err(self.wrong("does not answer"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        match serde_json::from_str(&line) {
            Ok(NodeAnswer::Failed(why)) => Err(self.wrong(&why)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.wrong(&format!("says something that is no answer: {line:.200}"))),
        }
    }

    /// The node's end, with what it has said.
    fn lost(&mut self) -> ExploreError {
        self.input = None;
        let said = self.end.take().map(|end| end()).unwrap_or_default();
        self.wrong(if said.is_empty() { "has ended" } else { &said })
    }

    pub(crate) fn wrong(&self, what: &str) -> ExploreError {
        ExploreError::Run(format!("{}: {what}", self.name))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.input = None;
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

/// Ends all connections: all nodes are told before one is waited for.
pub fn end(links: &mut Vec<Link>) {
    links.iter_mut().for_each(|link| link.input = None);
    links.clear();
}

/// What is to be known of the nodes.
pub fn look(links: &mut [Link], directory: &str, stop: &dyn Fn() -> bool) -> Result<Vec<Seen>> {
    let answers = ask(links, &mut |_| NodeOrder::Look { directory: directory.to_owned() }, stop)?;
    let seen = answers.into_iter().zip(links).map(|(answer, link)| match answer {
        NodeAnswer::Seen(seen) => Ok(seen),
        _ => Err(link.wrong("answers what it was not asked")),
    });
    seen.collect()
}

/// Measures a pattern. Its nodes are the first ones of the links. All links' page caches are dropped.
pub fn measure(links: &mut [Link], pattern: &Pattern, with: &Conditions<'_>) -> Result<Measured> {
    let seen = look(links, with.directory, with.stop)?;
    let used = links.len().min(pattern.nodes as usize);
    let one_clock = seen[..used].iter().all(|node| !node.boot.is_empty() && node.boot == seen[0].boot);
    let mut measured =
        Measured { load: seen.iter().map(|node| node.load).fold(0.0, f64::max), ..Measured::default() };
    if used < pattern.nodes as usize {
        return Err(ExploreError::Run(format!("it takes {} nodes, and there are {used}", pattern.nodes)));
    }
    start(&mut links[..used], pattern, with)?;
    for number in 0..pattern.phases.len() {
        let prepared = prepare(links, used, pattern, number, with, &mut measured.dropped)?;
        let (result, counts) = phase(&mut links[..used], pattern, number, prepared, one_clock, with)?;
        measured.phases.push(result);
        if let Some(counts) = counts {
            measured.counts.get_or_insert_default().add(counts);
        }
    }
    if with.forwarded && measured.counts.is_some_and(|counts| counts.requests_in == 0) {
        return Err(ExploreError::Run("no request has come to the I/O nodes".into()));
    }
    pass(&mut links[..used], Order::End, with.stop)?;
    ask(&mut links[..used], &mut |_| NodeOrder::Stop, with.stop)?;
    Ok(measured)
}

/// Starts the processes, the first node's first: one of them makes the directory.
fn start(links: &mut [Link], pattern: &Pattern, with: &Conditions<'_>) -> Result<()> {
    let count = pattern.on_each_node();
    let task = Task { directory: with.directory.to_owned(), run: with.run, pattern: pattern.clone() };
    let order = |node: usize| NodeOrder::Start {
        deployment: Some(with.deployment.to_owned()),
        first: node as u32 * count,
        count,
        work: Box::new(Work::Run(task.clone())),
    };
    let (first, others) = links.split_at_mut(1);
    let mut answers = ask(first, &mut |_| order(0), with.stop)?;
    answers.extend(ask(others, &mut |node| order(node + 1), with.stop)?);
    for (answer, link) in answers.into_iter().zip(links) {
        let forwarded = matches!(answer, NodeAnswer::Started { forwarded: Some(_) });
        if forwarded != with.forwarded {
            let how = if forwarded { "still go" } else { "do not go" };
            return Err(link.wrong(&format!("programs {how} through I/O nodes")));
        }
    }
    Ok(())
}

/// Has all processes make and open the files of a phase: then they wait, which is the barrier. How many requests each has
/// prepared, at least.
fn prepare(
    links: &mut [Link],
    used: usize,
    pattern: &Pattern,
    number: usize,
    with: &Conditions<'_>,
    dropped: &mut Option<(usize, usize)>,
) -> Result<u64> {
    let answers = pass(&mut links[..used], Order::Prepare(number), with.stop)?;
    let prepared = answers.iter().filter_map(|answer| match answer {
        Answer::Prepared(requests) => Some(*requests),
        _ => None,
    });
    let prepared = prepared.min().unwrap_or(0);
    if pattern.phases[number].operation.reads() && with.drop_caches {
        let answers = ask(links, &mut |_| NodeOrder::DropCaches, with.stop)?;
        let count = answers.iter().filter(|answer| matches!(answer, NodeAnswer::Dropped(true))).count();
        *dropped = Some((count, answers.len()));
    }
    pass(&mut links[..used], Order::Open(number), with.stop)?;
    Ok(prepared)
}

fn phase(
    links: &mut [Link],
    pattern: &Pattern,
    number: usize,
    prepared: u64,
    one_clock: bool,
    with: &Conditions<'_>,
) -> Result<(PhaseResult, Option<Counts>)> {
    let phase = &pattern.phases[number];
    let before = (with.counts)();
    let began = Instant::now();
    let answers = pass(links, Order::Go { phase: number, prepared }, with.stop)?;
    let passed = began.elapsed().as_secs_f64();
    let after = (with.counts)();
    let outcomes = of_each(answers, pattern.processes, |answer| match answer {
        Answer::Done(outcome) => Some(outcome),
        _ => None,
    })?;
    if with.verify && phase.operation != crate::patterns::Operation::Read {
        let done = outcomes.iter().map(|outcome| outcome.requests).collect();
        pass(links, Order::Verify { phase: number, done }, with.stop)?;
    }
    pass(links, Order::Clean(number), with.stop)?;
    let seconds = if one_clock { together(&outcomes) } else { passed };
    let bytes = outcomes.iter().map(|outcome| outcome.bytes).sum();
    let requests = outcomes.iter().map(|outcome| outcome.requests).sum();
    let counts = match (before, after) {
        (Some(before), Some(after)) => after.since(before),
        _ => None,
    };
    Ok((PhaseResult::new(phase.operation, seconds, bytes, requests), counts))
}

/// What was asked for, of each of so many processes; other answers are left out.
pub(crate) fn of_each<A, T>(
    answers: Vec<A>,
    processes: u32,
    asked_for: impl Fn(A) -> Option<T>,
) -> Result<Vec<T>> {
    let all: Vec<T> = answers.into_iter().filter_map(asked_for).collect();
    if all.len() == processes as usize {
        Ok(all)
    } else {
        Err(ExploreError::Run("a process answers what it was not asked".into()))
    }
}

/// From the first process's begin to the last one's end.
pub(crate) fn together(outcomes: &[Outcome]) -> f64 {
    let first = outcomes.iter().map(|outcome| outcome.began).min().unwrap_or(0);
    let last = outcomes.iter().map(|outcome| outcome.ended).max().unwrap_or(0);
    last.saturating_sub(first) as f64 / 1e9
}

/// Tells all processes something; all their answers, in their order. The first one that failed is the error.
pub(crate) fn pass(links: &mut [Link], order: Order, stop: &dyn Fn() -> bool) -> Result<Vec<Answer>> {
    let answers = ask(links, &mut |_| NodeOrder::Pass(order.clone()), stop)?;
    let mut all = Vec::new();
    for (answer, link) in answers.into_iter().zip(links) {
        let NodeAnswer::Answers(answers) = answer else {
            return Err(link.wrong("answers what it was not asked"));
        };
        for answer in answers {
            match answer {
                Answer::Failed(why) => return Err(link.wrong(&format!("process {}: {why}", all.len()))),
                answer => all.push(answer),
            }
        }
    }
    Ok(all)
}

/// Tells all nodes something before one is heard; all answers. The first one that failed is the error.
pub(crate) fn ask(
    links: &mut [Link],
    order: &mut dyn FnMut(usize) -> NodeOrder,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<NodeAnswer>> {
    if stop() {
        return Err(ExploreError::Interrupted);
    }
    for (node, link) in links.iter_mut().enumerate() {
        link.tell(&order(node))?;
    }
    let answers: Vec<_> = links.iter_mut().map(|link| link.answer(stop)).collect();
    answers.into_iter().collect()
}

impl Counts {
    /// What was counted since. `None`: an I/O node was started again meanwhile, and counts from zero.
    fn since(self, before: Counts) -> Option<Counts> {
        Some(Counts {
            requests_in: self.requests_in.checked_sub(before.requests_in)?,
            requests_out: self.requests_out.checked_sub(before.requests_out)?,
            bytes_in: self.bytes_in.checked_sub(before.bytes_in)?,
            bytes_out: self.bytes_out.checked_sub(before.bytes_out)?,
        })
    }

    /// Together with what another one has counted.
    pub fn add(&mut self, other: Counts) {
        self.requests_in += other.requests_in;
        self.requests_out += other.requests_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

#[cfg(test)]
mod tests;
