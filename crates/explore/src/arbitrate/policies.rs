//! The policies that share a pool without regard to what was measured. Each gives a job some number of I/O
//! nodes; the job has the largest measured number that is not above it, because only of that the bandwidth is
//! known.

use super::{Allocation, Job};
use crate::error::ExploreError;

/// Each job gets what `wanted` says, rounded down.
pub fn rounded(jobs: &[Job], pool: u32, wanted: impl Fn(&Job) -> u32) -> Result<Allocation, ExploreError> {
    let choices = jobs.iter().map(|job| job.rounded_down(wanted(job)));
    Allocation { choices: choices.collect::<Result<_, _>>()? }.within(pool)
}

/// In proportion to some size of each job.
pub fn proportional(jobs: &[Job], pool: u32, size: impl Fn(&Job) -> u32) -> Result<Allocation, ExploreError> {
    let all: u64 = jobs.iter().map(|job| u64::from(size(job))).sum();
    // Each part is rounded down; so all parts together are never more than the pool.
    let part = |job: &Job| (u64::from(pool) * u64::from(size(job))).checked_div(all).unwrap_or(0);
    rounded(jobs, pool, |job| u32::try_from(part(job)).unwrap_or(pool))
}
