//! Sharing a pool of I/O nodes among jobs, so that the sum of their bandwidths is highest.
//!
//! An exploration measures the bandwidth of an access pattern with several numbers of I/O nodes. A [`Job`]
//! has such measurements, and gets one of the measured numbers. How much a job gains from one more I/O node
//! differs from job to job, and may be negative; so this is a multiple-choice knapsack problem, which
//! [`Policy::Exact`] solves (`exact.rs`). The other [policies](Policy) do without measurements, as resource
//! managers do today; they stand beside it for comparison (`policies.rs`).
//!
//! After Bez et al., "Arbitration Policies for On-Demand User-Level I/O Forwarding on HPC Platforms" (IPDPS
//! 2021), which calls the exact solution MCKP.
//!
//! This module only computes. [`jobs`] takes its input from a file of results; to measure, and to set the
//! numbers that come out, is the business of others.

mod exact;
mod measured;
mod policies;

use crate::error::ExploreError;
use std::collections::BTreeMap;

pub use measured::jobs;

/// What a job can have: a number of I/O nodes, and what was measured with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// How many I/O nodes; 0: the job's processes use the backend themselves.
    pub io_nodes: u32,
    /// Bytes per second. Whole ones, so that sums are exact, and equal ones are known to be equal.
    pub bandwidth: u64,
}

/// A job that is to have some of the pool's I/O nodes.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    name: String,
    nodes: u32,
    processes: u32,
    /// In the order of their numbers of I/O nodes, each of which is there once. At least one.
    choices: Vec<Choice>,
}

impl Job {
    /// A job, with the bandwidths (bytes per second) of all repetitions for each number of I/O nodes. The
    /// median counts: unlike the mean, it does not follow a single repetition that somebody else's traffic
    /// has disturbed.
    pub fn new(
        name: &str,
        nodes: u32,
        processes: u32,
        measured: &BTreeMap<u32, Vec<f64>>,
    ) -> Result<Job, ExploreError> {
        let choice = |(io_nodes, bandwidths): (&u32, &Vec<f64>)| {
            Some(Choice { io_nodes: *io_nodes, bandwidth: median(bandwidths)? })
        };
        let choices: Vec<Choice> = measured.iter().filter_map(choice).collect();
        if choices.is_empty() {
            return Err(ExploreError::Unmeasured(name.to_owned()));
        }
        Ok(Job { name: name.to_owned(), nodes, processes, choices })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Nodes that its processes run on.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Its processes, on all nodes together.
    pub fn processes(&self) -> u32 {
        self.processes
    }

    /// What it can have, in the order of the numbers of I/O nodes. At least one.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The same job under another name.
    pub fn named(&self, name: &str) -> Job {
        Job { name: name.to_owned(), ..self.clone() }
    }

    /// The same job where there are only so many servers to forward for it.
    pub fn up_to(&self, servers: u32) -> Result<Job, ExploreError> {
        let choices: Vec<Choice> =
            self.choices.iter().copied().filter(|choice| choice.io_nodes <= servers).collect();
        if choices.is_empty() {
            return Err(ExploreError::Rounded { job: self.name.clone(), io_nodes: servers });
        }
        Ok(Job { choices, ..self.clone() })
    }

    /// The largest measured number of I/O nodes that is not above this one.
    fn rounded_down(&self, io_nodes: u32) -> Result<Choice, ExploreError> {
        let fits = self.choices.iter().rev().find(|choice| choice.io_nodes <= io_nodes);
        fits.copied().ok_or_else(|| ExploreError::Rounded { job: self.name.clone(), io_nodes })
    }
}

/// The median, in whole bytes per second. Of an even number of values, the mean of the two in the middle.
fn median(values: &[f64]) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get(sorted.len().checked_sub(1)? / 2)?;
    // Negative numbers and those that are none become 0.
    Some((lower / 2.0 + upper / 2.0).round() as u64)
}

/// How the pool is shared: the policies that the paper compares. Of its text only the abstract was at hand;
/// the definitions of all but the first are this project's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The highest sum of measured bandwidths that the pool allows; of several, one with the fewest I/O
    /// nodes. The paper's own policy, MCKP.
    Exact,
    /// No I/O nodes: every job uses the backend itself, as on a machine without a forwarding layer.
    None,
    /// One I/O node for each job, whatever it is.
    One,
    /// An equal share of the pool for each job. It stands for the fixed assignment of machines that have a
    /// forwarding layer, where the I/O nodes of a job follow from the nodes that it runs on; here no such
    /// assignment is known.
    Static,
    /// In proportion to the nodes of each job: what the paper's abstract calls the typical approach.
    Size,
    /// In proportion to the processes of each job.
    Processes,
}

impl Policy {
    /// All, the exact one first.
    pub const ALL: [Policy; 6] =
        [Policy::Exact, Policy::None, Policy::One, Policy::Static, Policy::Size, Policy::Processes];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Exact => "exact",
            Policy::None => "none",
            Policy::One => "one",
            Policy::Static => "static",
            Policy::Size => "size",
            Policy::Processes => "processes",
        }
    }

    /// What each job gets of a pool of so many I/O nodes. Fails if the policy wants more than the pool has,
    /// or if a job was not measured with as few I/O nodes as the policy gives it.
    pub fn share(self, jobs: &[Job], pool: u32) -> Result<Allocation, ExploreError> {
        match self {
            Policy::Exact => exact::share(jobs, pool),
            Policy::None => policies::rounded(jobs, pool, |_| 0),
            Policy::One => policies::rounded(jobs, pool, |_| 1),
            Policy::Static => policies::proportional(jobs, pool, |_| 1),
            Policy::Size => policies::proportional(jobs, pool, Job::nodes),
            Policy::Processes => policies::proportional(jobs, pool, Job::processes),
        }
    }
}

/// What each job gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// One for each job, in the order of the jobs.
    pub choices: Vec<Choice>,
}

impl Allocation {
    /// I/O nodes of all jobs together.
    pub fn io_nodes(&self) -> u64 {
        self.choices.iter().map(|choice| u64::from(choice.io_nodes)).sum()
    }

    /// Bytes per second of all jobs together.
    pub fn bandwidth(&self) -> u128 {
        self.choices.iter().map(|choice| u128::from(choice.bandwidth)).sum()
    }

    /// Refuses what is more than the pool has.
    fn within(self, pool: u32) -> Result<Allocation, ExploreError> {
        match self.io_nodes() {
            needed if needed > u64::from(pool) => Err(ExploreError::Pool { needed, pool }),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests;
