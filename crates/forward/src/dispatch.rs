//! A queue with the scheduler that orders it.

use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use crate::schedulers::{Choice, Scheduler};
use std::collections::HashMap;
use std::time::Duration;

/// What a dispatcher is to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Issue this, and then call [`Dispatch::done`].
    Issue(Batch),
    /// Ask again when a request arrives or a batch is done, and at this time at the latest.
    Until(Duration),
    /// Ask again when a request arrives or a batch is done.
    Nothing,
}

/// Requests in and out, and their sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Requests that have arrived.
    pub requests_in: u64,
    /// Batches that were issued.
    pub requests_out: u64,
    /// Bytes that were asked for.
    pub bytes_in: u64,
    /// Bytes that were issued, with the holes that were read.
    pub bytes_out: u64,
}

/// A queue with its scheduler. Times are durations since an arbitrary start, and never go back.
pub struct Dispatch {
    queue: Queue,
    scheduler: Box<dyn Scheduler>,
    counts: Counts,
    /// Batches of each file that are being carried out.
    under_way: HashMap<u64, usize>,
    most_of_a_file: usize,
}

impl Dispatch {
    /// An empty queue.
    pub fn new(scheduler: Box<dyn Scheduler>) -> Dispatch {
        let mut queue = Queue::default();
        queue.set_merges(scheduler.merges());
        Dispatch {
            queue,
            scheduler,
            counts: Counts::default(),
            under_way: HashMap::new(),
            most_of_a_file: usize::MAX,
        }
    }

    /// From now on so many batches of a file are issued at once at most, whatever the scheduler chooses: a file that the backend does
    /// not answer leaves room for others.
    pub fn set_most_of_a_file(&mut self, most: usize) {
        self.most_of_a_file = most.max(1);
    }

    fn is_crowded(&self, asked: &Asked) -> bool {
        self.under_way.get(&asked.file).is_some_and(|count| *count >= self.most_of_a_file)
    }

    /// The requests that wait.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What has come and gone.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Replaces the scheduler. The requests that wait stay in the queue.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>, now: Duration) {
        self.scheduler = scheduler;
        self.queue.set_merges(self.scheduler.merges());
        let ready: Vec<(Number, Asked)> = self.queue.ready().map(|(number, w)| (number, w.asked)).collect();
        for (number, asked) in ready {
            self.scheduler.ready(number, &asked, now);
        }
    }

    /// A request arrives. Its number.
    pub fn arrive(&mut self, asked: Asked, now: Duration) -> Number {
        self.counts.requests_in += 1;
        self.counts.bytes_in += asked.len;
        let number = self.queue.arrive(asked, now);
        if self.queue.is_ready(number) {
            self.scheduler.ready(number, &asked, now);
        }
        number
    }

    /// What is to be issued now.
    pub fn next(&mut self, now: Duration) -> Next {
        if self.queue.expires().is_some_and(|time| time <= now) {
            for number in self.queue.expire(now) {
                self.announce(number, now);
            }
        }
        let next = self.choose(now);
        match (next, self.queue.expires()) {
            (Next::Nothing, Some(time)) => Next::Until(time),
            (Next::Until(next), Some(time)) => Next::Until(next.min(time)),
            (next, _) => next,
        }
    }

    /// Tells the scheduler that a request is ready.
    fn announce(&mut self, number: Number, now: Duration) {
        if let Some(asked) = self.queue.get(number).map(|waiting| waiting.asked) {
            self.scheduler.ready(number, &asked, now);
        }
    }

    /// What the scheduler would have issued now.
    fn choose(&mut self, now: Duration) -> Next {
        let (seed, limits) = match self.scheduler.choose(&self.queue, now) {
            Choice::Issue { seed, limits } if self.queue.is_ready(seed) => (seed, limits),
            // A scheduler that names another request has a defect. Whatever is ready is issued, so that nobody waits for ever.
            Choice::Issue { .. } => match self.queue.ready().next().map(|(first, _)| first) {
                Some(first) => (first, Limits::ALONE),
                None => return Next::Nothing,
            },
            Choice::Until(time) => return Next::Until(time),
            Choice::Nothing => return Next::Nothing,
        };
        let seed = match self.queue.get(seed) {
            Some(waiting) if self.is_crowded(&waiting.asked) => {
                let mut ready = self.queue.ready();
                match ready.find(|(_, waiting)| !self.is_crowded(&waiting.asked)) {
                    Some((other, _)) => other,
                    None => return Next::Nothing,
                }
            }
            _ => seed,
        };
        let Some(batch) = self.queue.issue(seed, limits, now) else { return Next::Nothing };
        *self.under_way.entry(batch.file).or_default() += 1;
        self.counts.requests_out += 1;
        self.counts.bytes_out += batch.len;
        self.scheduler.issued(&batch, now);
        Next::Issue(batch)
    }

    /// A batch has been carried out, or has failed.
    pub fn done(&mut self, batch: &Batch, now: Duration) {
        if let Some(count) = self.under_way.get_mut(&batch.file) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&batch.file);
            }
        }
        self.scheduler.done(batch, now);
        for number in self.queue.done(batch, now) {
            self.announce(number, now);
        }
    }
}
