//! The workers: who is there, what each is doing, and what they say.
//!
//! Each worker has two threads here, one that writes its orders and one that reads its answers, so that one
//! that hangs holds up nobody. A worker that has said nothing for [`SILENT`] counts as dead, as one does
//! whose output ends; it is ended for good, so that it cannot go on beside the one that gets its tasks.

use super::queue::Queue;
use crate::report::StageError;
use crate::tree::Meta;
use crate::wire::{self, Answer, Order, Outcome, Setup, Side, Task};
use crate::worker;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// A worker that does not even say that it is alive for so long is dead, or its node is out of reach.
const SILENT: Duration = Duration::from_secs(15);
/// The same in looks, one every second: what passes while this process is suspended does not count.
const SILENT_LOOKS: u32 = 15;
/// Longest time for a worker to be ready.
const START: Duration = Duration::from_secs(60);
/// How often it is looked whether one has fallen silent.
const LOOK: Duration = Duration::from_secs(1);
/// Streams for each worker, unless the user says how many there are in all.
const STREAMS: usize = 4;
/// Most streams of one worker.
const MOST_STREAMS: usize = 64;
/// So many tasks for each stream wait before further directories are listed.
const AHEAD: usize = 2;

/// A worker that was started: how to talk to it.
pub struct Link {
    /// What it is called in messages: its host.
    pub name: String,
    /// Whether its node has a server.
    pub serves: bool,
    /// Its standard input.
    pub input: Box<dyn Write + Send>,
    /// Its standard output.
    pub output: Box<dyn Read + Send>,
    /// Sees to it that it ends, at once if that is asked for; what it has said on standard error.
    pub end: Box<dyn FnOnce(bool) -> String + Send>,
}

struct Member {
    name: String,
    serves: bool,
    node: Option<u16>,
    orders: Sender<Order>,
    end: Box<dyn FnOnce(bool) -> String + Send>,
    busy: BTreeMap<u64, Task>,
    /// Looks since it was heard.
    silent: u32,
    moved: u64,
    /// What it has asked, and is answered.
    question: Arc<AtomicU64>,
}

enum Event {
    Answer(Answer),
    Gone(String),
}

/// A task that is done.
pub(super) struct Done {
    pub(super) task: Task,
    pub(super) outcome: Outcome,
    pub(super) left_out: Vec<(Vec<u8>, String)>,
}

/// What a worker has said.
pub(super) enum Heard {
    Done(Box<Done>),
    Moved(u64),
    Lost { member: String, why: String, tasks: Vec<Task> },
    Nothing,
}

pub(super) struct Crew {
    members: BTreeMap<usize, Member>,
    events: Receiver<(usize, Event)>,
    heard: VecDeque<Heard>,
    next_task: u64,
    /// When it was last looked who is silent.
    looked: Instant,
    /// As the user wants it; 0: as many as suit the workers.
    streams: usize,
    max_rate: Option<u64>,
    keeps_owners: bool,
}

impl Crew {
    /// Starts to talk to workers, and waits until each is ready or has failed; those that failed, and why.
    pub(super) fn gather(
        links: Vec<Link>,
        setup: &Setup,
        streams: usize,
        max_rate: Option<u64>,
    ) -> (Crew, Vec<(String, String)>) {
        let (send, events) = mpsc::channel();
        let streams =
            if streams == 0 { (STREAMS * links.len()).clamp(STREAMS, MOST_STREAMS) } else { streams };
        let threads = streams.min(MOST_STREAMS) as u16;
        let setup = Setup { threads, ..setup.clone() };
        let members = links
            .into_iter()
            .enumerate()
            .map(|(number, link)| (number, Member::begin(number, link, setup.clone(), send.clone())));
        let mut crew = Crew {
            members: members.collect(),
            events,
            heard: VecDeque::new(),
            next_task: 0,
            looked: Instant::now(),
            streams,
            max_rate,
            keeps_owners: rustix::process::geteuid().is_root(),
        };
        let mut unfit = Vec::new();
        let deadline = Instant::now() + START;
        while crew.members.values().any(|member| member.node.is_none()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match crew.events.recv_timeout(left) {
                // A deployment that was started on another machine calls that "this machine", too.
                Ok((number, Event::Answer(Answer::Ready { node }))) if crew.has(node) => {
                    crew.remove(number, "");
                }
                Ok((number, Event::Answer(Answer::Ready { node }))) => {
                    if let Some(member) = crew.members.get_mut(&number) {
                        (member.node, member.silent) = (Some(node), 0);
                    }
                }
                Ok((number, Event::Answer(Answer::Unfit(why)) | Event::Gone(why))) => {
                    unfit.extend(crew.remove(number, &why));
                }
                Ok(_) => {}
                Err(_) => {
                    let late: Vec<usize> =
                        crew.members.iter().filter(|(_, m)| m.node.is_none()).map(|(n, _)| *n).collect();
                    let why = format!("no answer within {} s", START.as_secs());
                    unfit.extend(late.into_iter().filter_map(|number| crew.remove(number, &why)));
                }
            }
        }
        crew.share_rate();
        (crew, unfit)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Streams of all workers together.
    pub(super) fn streams(&self) -> usize {
        if self.streams == 0 { default_streams(self.members.len()) } else { self.streams }
    }

    /// Whether owners are kept.
    pub(super) fn keeps_owners(&self) -> bool {
        self.keeps_owners
    }

    /// Whether a node has a worker.
    pub(super) fn has(&self, node: u16) -> bool {
        self.members.values().any(|member| member.node == Some(node))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.heard.is_empty() && self.members.values().all(|member| member.busy.is_empty())
    }

    /// Ends a worker; its name and why.
    fn remove(&mut self, number: usize, why: &str) -> Option<(String, String)> {
        let member = self.members.remove(&number)?;
        drop(member.orders);
        let said = (member.end)(true);
        let said = said.trim();
        let why = if said.is_empty() { why.to_owned() } else { format!("{why}: {said}") };
        Some((member.name, why))
    }

    /// If workers only fetch what is not needed any more, ends them: of how many files that were given to them.
    pub(super) fn abandon_fetches(&mut self) -> u64 {
        let busy =
            || self.members.iter().flat_map(|(number, m)| m.busy.values().map(move |task| (*number, task)));
        let mut files = 0;
        for (_, task) in busy() {
            let Task::Fetch(fetched) = task else { return 0 };
            files += fetched.len() as u64;
        }
        let fetching: BTreeSet<usize> = busy().map(|(number, _)| number).collect();
        fetching.into_iter().for_each(|number| drop(self.remove(number, "")));
        files
    }

    /// Leaves workers out that are not fit, for the reasons given.
    pub(super) fn leave_out(&mut self, unfit: Vec<(usize, String)>) -> Vec<(String, String)> {
        let left = unfit.into_iter().filter_map(|(number, why)| self.remove(number, &why)).collect();
        self.share_rate();
        left
    }

    /// If some workers are beside a server, only these are needed.
    pub(super) fn prefer_servers(&mut self) {
        if self.members.values().any(|member| member.serves) {
            let others: Vec<usize> =
                self.members.iter().filter(|(_, m)| !m.serves).map(|(n, _)| *n).collect();
            others.into_iter().for_each(|number| drop(self.remove(number, "")));
            self.share_rate();
        }
    }

    /// Each worker may use an equal part of the allowed rate.
    fn share_rate(&mut self) {
        if let Some(rate) = self.max_rate {
            let share = (rate / self.members.len().max(1) as u64).max(1);
            self.tell(|| Order::Rate(share));
        }
    }

    pub(super) fn tell(&self, order: impl Fn() -> Order) {
        for member in self.members.values() {
            // One that is gone will be noticed.
            let _ = member.orders.send(order());
        }
    }

    /// Gives workers what they have room for.
    pub(super) fn assign(&mut self, queue: &mut Queue) -> Result<(), StageError> {
        let streams = self.streams();
        let share = streams.div_ceil(self.members.len().max(1)).clamp(1, MOST_STREAMS);
        loop {
            let busy: usize = self.members.values().map(|member| member.busy.len()).sum();
            if busy >= streams {
                return Ok(());
            }
            let free = self.members.values_mut().filter(|member| member.busy.len() < share);
            let Some(member) = free.min_by_key(|member| member.busy.len()) else { return Ok(()) };
            let Some(task) = queue.next(member.node.unwrap_or(u16::MAX), AHEAD * streams) else {
                return Ok(());
            };
            let id = self.next_task;
            self.next_task += 1;
            member.busy.insert(id, task.clone());
            let _ = member.orders.send(Order::Task(id, task));
        }
    }

    /// Waits for something, for a short time.
    pub(super) fn hear(&mut self) -> Heard {
        if let Some(heard) = self.heard.pop_front() {
            return heard;
        }
        if let Some(lost) = self.look() {
            return lost;
        }
        match self.events.recv_timeout(LOOK) {
            Ok((number, Event::Answer(answer))) => {
                let Some(member) = self.members.get_mut(&number) else { return Heard::Nothing };
                member.silent = 0;
                match answer {
                    Answer::Done { id, outcome, left_out } => match member.busy.remove(&id) {
                        Some(task) => Heard::Done(Box::new(Done { task, outcome, left_out })),
                        None => Heard::Nothing,
                    },
                    Answer::Alive { moved, question } => {
                        member.question.store(question, Ordering::Relaxed);
                        let more = moved.saturating_sub(member.moved);
                        member.moved = moved;
                        Heard::Moved(more)
                    }
                    Answer::Ready { .. } | Answer::Unfit(_) => Heard::Nothing,
                }
            }
            Ok((number, Event::Gone(why))) => self.lost(number, &why),
            Err(_) => Heard::Nothing,
        }
    }

    /// Looks, now and then, whether a worker has fallen silent.
    fn look(&mut self) -> Option<Heard> {
        if self.looked.elapsed() < LOOK {
            return None;
        }
        self.looked = Instant::now();
        self.members.values_mut().for_each(|member| member.silent += 1);
        let silent = self.members.iter().find(|(_, member)| member.silent > SILENT_LOOKS);
        let number = silent.map(|(number, _)| *number)?;
        let why = format!("it has not said anything for {} s", SILENT.as_secs());
        Some(self.lost(number, &why))
    }

    fn lost(&mut self, number: usize, why: &str) -> Heard {
        let Some(member) = self.members.get_mut(&number) else { return Heard::Nothing };
        let tasks: Vec<Task> = std::mem::take(&mut member.busy).into_values().collect();
        let Some((member, why)) = self.remove(number, why) else { return Heard::Nothing };
        self.share_rate();
        Heard::Lost { member, why, tasks }
    }

    /// Gives one task to each worker, and waits for all; answers by the worker's number. Only before there is
    /// any other work.
    pub(super) fn ask_all(&mut self, task: &Task) -> BTreeMap<usize, Outcome> {
        let mut asked = BTreeMap::new();
        for (number, member) in &mut self.members {
            asked.insert(self.next_task, *number);
            member.busy.insert(self.next_task, task.clone());
            let _ = member.orders.send(Order::Task(self.next_task, task.clone()));
            self.next_task += 1;
        }
        let mut outcomes = BTreeMap::new();
        let begun = Instant::now();
        while self.members.values().any(|member| !member.busy.is_empty()) {
            match self.events.recv_timeout(SILENT.saturating_sub(begun.elapsed())) {
                Ok((number, Event::Answer(Answer::Done { id, outcome, .. }))) => {
                    if let Some(member) = self.members.get_mut(&number) {
                        member.silent = 0;
                        member.busy.remove(&id);
                        outcomes.insert(number, outcome);
                    }
                }
                Ok((number, Event::Gone(why))) => self.lost_early(number, &why),
                Ok(_) => {}
                Err(_) => {
                    // Those that have not answered are not fit.
                    let silent: Vec<usize> =
                        self.members.iter().filter(|(_, m)| !m.busy.is_empty()).map(|(n, _)| *n).collect();
                    silent.into_iter().for_each(|number| self.lost_early(number, "it does not answer"));
                }
            }
        }
        outcomes
    }

    /// Gives a task to one worker, and waits for it; if that one dies, another gets it. Only before there is
    /// any other work.
    pub(super) fn ask(&mut self, task: Task) -> Option<Outcome> {
        while let Some((number, member)) = self.members.iter_mut().next() {
            let (number, id) = (*number, self.next_task);
            self.next_task += 1;
            let _ = member.orders.send(Order::Task(id, task.clone()));
            let begun = Instant::now();
            while self.members.contains_key(&number) {
                match self.events.recv_timeout(SILENT.saturating_sub(begun.elapsed())) {
                    Ok((_, Event::Answer(Answer::Done { id: done, outcome, .. }))) if done == id => {
                        return Some(outcome);
                    }
                    Ok((from, Event::Gone(why))) => self.lost_early(from, &why),
                    Ok(_) => {}
                    Err(_) => self.lost_early(number, "it does not answer"),
                }
            }
        }
        None
    }

    /// A worker that is lost before there is any work has nothing that others would have to do.
    fn lost_early(&mut self, number: usize, why: &str) {
        if let Heard::Lost { member, why, .. } = self.lost(number, why) {
            self.heard.push_back(Heard::Lost { member, why, tasks: Vec::new() });
        }
    }

    /// Those that were lost before there was any work.
    pub(super) fn lost_so_far(&self) -> Vec<(String, String)> {
        let lost = self.heard.iter().filter_map(|heard| match heard {
            Heard::Lost { member, why, .. } => Some((member.clone(), why.clone())),
            _ => None,
        });
        lost.collect()
    }

    /// The attributes of something, by one worker.
    pub(super) fn stat(&mut self, side: Side, path: &[u8]) -> Option<Result<Meta, (i32, String)>> {
        match self.ask(Task::Stat { side, path: path.to_vec(), follow: true })? {
            Outcome::Stat(stat) => Some(stat),
            _ => None,
        }
    }

    /// Lets all workers end.
    pub(super) fn end(self) {
        let ends: Vec<_> = self.members.into_values().map(|member| member.end).collect();
        std::thread::scope(|scope| {
            for end in ends {
                scope.spawn(move || end(false));
            }
        });
    }
}

fn default_streams(workers: usize) -> usize {
    (STREAMS * workers).clamp(STREAMS, MOST_STREAMS)
}

impl Member {
    fn begin(number: usize, link: Link, setup: Setup, events: Sender<(usize, Event)>) -> Member {
        let Link { name, serves, mut input, mut output, end } = link;
        let (orders, written) = mpsc::channel::<Order>();
        let _ = orders.send(Order::Setup(setup));
        let question = Arc::new(AtomicU64::new(0));
        let answers = question.clone();
        std::thread::spawn(move || {
            let mut pinged = Instant::now();
            loop {
                let sent = match written.recv_timeout(worker::PING.saturating_sub(pinged.elapsed())) {
                    Ok(order) => wire::send(&mut input, &order),
                    Err(RecvTimeoutError::Timeout) => {
                        pinged = Instant::now();
                        wire::send(&mut input, &Order::Alive { answer: answers.load(Ordering::Relaxed) })
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            let mut magic = [0; wire::MAGIC.len()];
            let gone = match output.read_exact(&mut magic) {
                Err(_) => "it ended before it was ready".to_owned(),
                Ok(()) if magic != *wire::MAGIC => {
                    "it said something else than a worker of this Bivouac: login scripts must print nothing, and \
                     all hosts need the same Bivouac"
                        .to_owned()
                }
                Ok(()) => loop {
                    match wire::receive(&mut output) {
                        Ok(Some(answer)) => drop(events.send((number, Event::Answer(answer)))),
                        Ok(None) => break "its worker has died".to_owned(),
                        Err(error) => break format!("its worker is not understood: {error}"),
                    }
                },
            };
            let _ = events.send((number, Event::Gone(gone)));
        });
        Member { name, serves, node: None, orders, end, busy: BTreeMap::new(), silent: 0, moved: 0, question }
    }
}
