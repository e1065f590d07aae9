//! The policies that choose which request is issued next.
//!
//! Each is a small module with the paper that it comes from. All see only requests that may be issued, and let the queue
//! merge. What they promise, and what `tests.rs` checks for all of them: every request is issued some time, however many
//! others keep arriving; and while something is ready, something is issued, except by those that work with time windows
//! ([`twins`], [`sw`]), which may wait for a window to end.

mod aioli;
mod auto;
mod fifo;
mod files;
mod hbrr;
mod mlf;
mod sjf;
mod sw;
mod twins;
mod wfq;

use crate::queue::{Batch, Limits, Queue};
use crate::request::{Asked, Number};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a scheduler wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// This request is to be issued, merged with neighbours within the limits.
    Issue {
        /// A request that is ready.
        seed: Number,
        /// How far it is merged.
        limits: Limits,
    },
    /// Nothing is to be issued before this time.
    Until(Duration),
    /// Nothing is ready.
    Nothing,
}

/// Chooses what is issued next.
pub trait Scheduler: Send {
    /// A request may be issued from now on.
    fn ready(&mut self, number: Number, asked: &Asked, now: Duration);

    /// What is to be issued now.
    fn choose(&mut self, queue: &Queue, now: Duration) -> Choice;

    /// A batch is being issued. It may have requests that were not announced as ready: they were merged.
    fn issued(&mut self, batch: &Batch, now: Duration);

    /// Whether what it chooses is merged with neighbours.
    fn merges(&self) -> bool {
        true
    }

    /// A batch has been carried out.
    fn done(&mut self, _: &Batch, _: Duration) {}
}

/// The numbers that schedulers go by.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// How far schedulers that merge do so. 16 MiB, no holes.
    pub limits: Limits,
    /// The first quantum of those that double it, bytes. 64 KiB.
    pub quantum: u64,
    /// Requests in a row to one file, for [`HBRR`](self). 8.
    pub turns: u32,
    /// Length of a window. 1 ms.
    pub window: Duration,
    /// How many servers the backend has. 1.
    pub servers: u32,
    /// How many bytes of a file in a row each of them has. 1 MiB.
    pub stripe: u64,
    /// A request that has waited for so long is issued next, also by schedulers that would prefer others. 1 s.
    pub patience: Duration,
    /// The weight of each job, 1 for all others.
    pub weights: BTreeMap<u64, u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits { bytes: 16 << 20, gap: 0 },
            quantum: 64 << 10,
            turns: 8,
            window: Duration::from_millis(1),
            servers: 1,
            stripe: 1 << 20,
            patience: Duration::from_secs(1),
            weights: BTreeMap::new(),
        }
    }
}

/// The names of all schedulers.
pub const NAMES: [&str; 10] = ["auto", "fifo", "to", "sjf", "aioli", "mlf", "hbrr", "twins", "sw", "wfq"];

/// The name of the one that is used unless another one is chosen.
pub const USUAL: &str = "to";

/// That one: the oldest request is next, and neighbours are merged.
pub fn usual(settings: &Settings) -> Box<dyn Scheduler> {
    Box::new(fifo::Fifo::new(settings.limits))
}

/// A scheduler by its name.
pub fn by_name(name: &str, settings: &Settings) -> Option<Box<dyn Scheduler>> {
    Some(match name {
        "auto" => Box::new(auto::Auto::new(settings)),
        "fifo" => Box::new(fifo::Fifo::new(Limits::ALONE)),
        USUAL => usual(settings),
        "sjf" => Box::new(sjf::Sjf::new(settings)),
        "aioli" => Box::new(aioli::Aioli::new(settings)),
        "mlf" => Box::new(mlf::Mlf::new(settings)),
        "hbrr" => Box::new(hbrr::Hbrr::new(settings)),
        "twins" => Box::new(twins::Twins::new(settings)),
        "sw" => Box::new(sw::Sw::new(settings)),
        "wfq" => Box::new(wfq::Wfq::new(settings)),
        _ => return None,
    })
}

/// The first request that is ready and has waited for too long.
fn overdue(queue: &Queue, now: Duration, patience: Duration) -> Option<Number> {
    let (number, waiting) = queue.ready().next()?;
    (now.saturating_sub(waiting.since) >= patience).then_some(number)
}
