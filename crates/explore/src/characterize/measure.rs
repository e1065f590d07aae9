//! One storage, once: the part in the command, which has all processes go through the steps together, and
//! makes the lines of results.

use super::plan::{Plan, SMALL};
use super::protocol::{Act, Answer, Flood, Group, Metadata, Operation, Place, Seen, Transfer, Trial};
use super::results::{self, Access, Direction, Line};
use crate::error::ExploreError;
use crate::protocol::{Answer as Said, NodeAnswer, NodeOrder, Order, Outcome, Work};
use crate::run::{Link, ask, look, of_each, pass, together};
use std::time::Instant;

type Result<T> = std::result::Result<T, ExploreError>;

/// Which storage is measured, and how.
pub struct Conditions<'a> {
    /// The deployment that processes are started in, if any.
    pub deployment: Option<&'a str>,
    /// The storage's name.
    pub storage: &'a str,
    /// What processes have to know.
    pub place: &'a Place,
    /// What is measured.
    pub plan: &'a Plan,
    /// Which repetition it is, from 0.
    pub repetition: u32,
    /// Page caches are dropped before something is read.
    pub drop_caches: bool,
    /// Memory of a node, bytes.
    pub memory: u64,
    /// Whether the end is wanted.
    pub stop: &'a dyn Fn() -> bool,
}

/// What is told while a storage is measured.
pub trait Listener {
    /// A measurement begins.
    fn begins(&mut self, what: &str);
    /// A measurement has this result.
    fn result(&mut self, line: Line) -> Result<()>;
    /// Page caches were dropped on so many nodes of so many.
    fn dropped(&mut self, nodes: usize, of: usize);
}

/// What one process on the first node sees of a storage; it makes the place's directory and removes it again.
pub fn inspect(
    links: &mut [Link],
    deployment: Option<&str>,
    place: &Place,
    stop: &dyn Fn() -> bool,
) -> Result<Seen> {
    let first = links.get_mut(..1).ok_or_else(|| ExploreError::Run("there is no node".into()))?;
    start(first, deployment, &Place { each: 1, ..place.clone() }, stop)?;
    let trial = Trial { group: Group { nodes: 1, each: 1 }, number: 0, act: Act::Look };
    let answers = pass(first, Order::Try(Box::new(trial)), stop)?;
    end(first, stop)?;
    let seen = answers.into_iter().find_map(|answer| match answer {
        Said::Tried(Answer::Seen(seen)) => Some(seen),
        _ => None,
    });
    seen.ok_or_else(|| first[0].wrong("answers what it was not asked"))
}

/// Measures a storage once.
pub fn measure(links: &mut [Link], with: &Conditions<'_>, listener: &mut dyn Listener) -> Result<()> {
    let seen = look(links, "/", with.stop)?;
    let one_clock = seen.iter().all(|node| !node.boot.is_empty() && node.boot == seen[0].boot);
    start(links, with.deployment, with.place, with.stop)?;
    let mut measuring = Measuring { links, with, listener, one_clock, number: 0 };
    for group in with.plan.groups() {
        measuring.transfers(group)?;
    }
    for files in &with.plan.files {
        measuring.flood(with.plan.whole(), *files)?;
    }
    for group in with.plan.groups() {
        measuring.metadata(group)?;
    }
    end(links, with.stop)
}

/// Starts the processes; the first node's first, because one of them makes the directory.
fn start(links: &mut [Link], deployment: Option<&str>, place: &Place, stop: &dyn Fn() -> bool) -> Result<()> {
    let order = |node: usize| NodeOrder::Start {
        deployment: deployment.map(str::to_owned),
        first: node as u32 * place.each,
        count: place.each,
        work: Box::new(Work::Storage(place.clone())),
    };
    let (first, others) = links.split_at_mut(1.min(links.len()));
    ask(first, &mut |_| order(0), stop)?;
    ask(others, &mut |node| order(node + 1), stop).map(drop)
}

/// Has the directory removed, and all processes end.
fn end(links: &mut [Link], stop: &dyn Fn() -> bool) -> Result<()> {
    pass(links, Order::End, stop)?;
    ask(links, &mut |_| NodeOrder::Stop, stop).map(drop)
}

struct Measuring<'a> {
    links: &'a mut [Link],
    with: &'a Conditions<'a>,
    listener: &'a mut dyn Listener,
    one_clock: bool,
    number: u64,
}

/// What a group has done together.
struct Together {
    outcomes: Vec<Outcome>,
    seconds: f64,
}

impl Together {
    fn requests(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.requests).sum()
    }

    fn bytes(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.bytes).sum()
    }

    /// How much of something it was in a second.
    fn rate(&self, of: u64) -> f64 {
        of as f64 / self.seconds
    }
}

impl Measuring<'_> {
    /// Has a group do a step. What its members answer, in their order.
    fn step(&mut self, group: Group, act: Act) -> Result<Vec<Answer>> {
        let trial = Trial { group, number: self.number, act };
        let answers = pass(self.links, Order::Try(Box::new(trial)), self.with.stop)?;
        of_each(answers, group.processes(), |answer| match answer {
            Said::Tried(Answer::Idle) => None,
            Said::Tried(answer) => Some(answer),
            _ => None,
        })
    }

    /// The same with a step that is measured.
    fn timed(&mut self, group: Group, act: Act) -> Result<Together> {
        let began = Instant::now();
        let answers = self.step(group, act)?;
        let passed = began.elapsed().as_secs_f64();
        let outcomes = of_each(answers, group.processes(), |answer| match answer {
            Answer::Done(outcome) => Some(outcome),
            _ => None,
        })?;
        let seconds = if self.one_clock { together(&outcomes) } else { passed };
        // A clock that has not moved would make rates that are no numbers.
        Ok(Together { outcomes, seconds: seconds.max(1e-9) })
    }

    fn drop_caches(&mut self) -> Result<()> {
        if !self.with.drop_caches {
            return Ok(());
        }
        let answers = ask(self.links, &mut |_| NodeOrder::DropCaches, self.with.stop)?;
        let count = answers.iter().filter(|answer| matches!(answer, NodeAnswer::Dropped(true))).count();
        self.listener.dropped(count, answers.len());
        Ok(())
    }

    fn transfers(&mut self, group: Group) -> Result<()> {
        self.number += 1;
        self.listener.begins(&format!("files for {}", shown(group)));
        let bytes = self.with.plan.bytes_each(group, 1);
        self.step(group, Act::Fill { bytes })?;
        let filled = self.number;
        for transfer in self.with.plan.transfers(group, self.with.repetition) {
            self.transfer(group, Transfer { filled, ..transfer })?;
        }
        self.step(group, Act::Clear).map(drop)
    }

    fn transfer(&mut self, group: Group, transfer: Transfer) -> Result<()> {
        self.number += 1;
        let operation = if transfer.writes { Direction::Write } else { Direction::Read };
        let access = if transfer.random { Access::Random } else { Access::Sequential };
        let (verb, order) = (format!("{operation:?}"), format!("{access:?}").to_lowercase());
        let synced = if transfer.fsync { " with fsync" } else { "" };
        self.listener.begins(&format!(
            "{}s of {}, {order}{synced}, {}",
            verb.to_lowercase(),
            length(transfer.request),
            shown(group)
        ));
        if !transfer.writes {
            self.step(group, Act::Forget)?;
            self.drop_caches()?;
        }
        self.step(group, Act::Open(transfer))?;
        let done = self.timed(group, Act::Go(transfer))?;
        if transfer.writes {
            let requests = done.outcomes.iter().map(|outcome| outcome.requests).collect();
            self.step(group, Act::Check(transfer, requests))?;
        }
        self.step(group, Act::Close(transfer))?;
        let memory = self.with.memory.saturating_mul(group.nodes.into());
        let cached = fits(&transfer, group, done.bytes(), memory);
        self.listener.result(Line::Transfer(results::Transfer {
            storage: self.with.storage.to_owned(),
            operation,
            access,
            fsync: transfer.fsync,
            request: transfer.request,
            nodes: group.nodes,
            processes: group.processes(),
            bytes: done.bytes(),
            requests: done.requests(),
            seconds: done.seconds,
            bandwidth: done.rate(done.bytes()),
            repetition: self.with.repetition,
            cached,
        }))
    }

    fn flood(&mut self, group: Group, files: u64) -> Result<()> {
        self.number += 1;
        self.listener.begins(&format!("{files} small files, {}", shown(group)));
        self.step(group, Act::Flood(Flood::Begin))?;
        let created = self.timed(group, Act::Flood(Flood::Create(files, SMALL)))?;
        self.drop_caches()?;
        let read = self.timed(group, Act::Flood(Flood::Read(files, SMALL)))?;
        let (mut present, mut whole) = (0, 0);
        for answer in self.step(group, Act::Flood(Flood::List(files)))? {
            if let Answer::Found(there, right) = answer {
                present += there;
                whole += right;
            }
        }
        self.step(group, Act::Flood(Flood::Clean(files)))?;
        self.step(group, Act::Flood(Flood::End))?;
        self.listener.result(Line::Flood(results::Flood {
            storage: self.with.storage.to_owned(),
            files,
            size: SMALL,
            processes: group.processes(),
            create_seconds: created.seconds,
            read_seconds: read.seconds,
            present,
            whole,
            repetition: self.with.repetition,
        }))
    }

    fn metadata(&mut self, group: Group) -> Result<()> {
        self.number += 1;
        self.step(group, Act::Metadata(Metadata::Begin))?;
        let most = (self.with.plan.entries / u64::from(group.processes().max(1))).max(1);
        let mut made = vec![(0, 0); group.processes() as usize];
        for operation in Operation::ALL {
            self.listener.begins(&format!("{}, {}", format!("{operation:?}").to_lowercase(), shown(group)));
            let limits = (most, self.with.plan.seconds);
            let act = Metadata::Do { operation, most: limits, made: made.clone() };
            let done = self.timed(group, Act::Metadata(act))?;
            for (made, outcome) in made.iter_mut().zip(&done.outcomes) {
                match operation {
                    Operation::Mkdir => made.0 = outcome.requests,
                    Operation::Create => made.1 = outcome.requests,
                    _ => {}
                }
            }
            self.listener.result(Line::Metadata(results::Metadata {
                storage: self.with.storage.to_owned(),
                operation,
                processes: group.processes(),
                count: done.requests(),
                seconds: done.seconds,
                rate: done.rate(done.requests()),
                repetition: self.with.repetition,
            }))?;
        }
        self.step(group, Act::Metadata(Metadata::End)).map(drop)
    }
}

/// Whether memory could have held all of it: of reads the files, from which it comes, and of writes what was
/// written, which may be less than the files if time was over.
fn fits(transfer: &Transfer, group: Group, done: u64, memory: u64) -> bool {
    let files = transfer.bytes.saturating_mul(group.processes().into());
    (if transfer.writes { done } else { files }) <= memory
}

/// A request's length in the unit that it was probably given in.
fn length(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.into_iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or(format!("{bytes} bytes"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

fn shown(group: Group) -> String {
    let plural = |n: u32, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let processes = plural(group.processes(), "process", "processes");
    if group.nodes == 1 {
        processes
    } else {
        format!("{processes} on {}", plural(group.nodes, "node", "nodes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_shown_in_whole_units() {
        let shown = [512, 4096, 1 << 20, 3 << 19, 1 << 30].map(length);
        assert_eq!(shown, ["512 bytes", "4 KiB", "1 MiB", "1536 KiB", "1 GiB"]);
    }

    #[test]
    fn a_short_write_into_a_large_file_can_have_stayed_in_memory() {
        let group = Group { nodes: 1, each: 2 };
        let read = Transfer {
            writes: false,
            random: false,
            fsync: false,
            request: 1,
            bytes: 100,
            seconds: 1.0,
            filled: 0,
        };
        let write = Transfer { writes: true, ..read };
        assert!(fits(&read, group, 200, 200) && !fits(&read, group, 10, 199));
        assert!(fits(&write, group, 10, 199) && !fits(&write, group, 200, 199));
    }
}
