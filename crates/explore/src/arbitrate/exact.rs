//! The exact solution: each job has exactly one of its choices, the numbers of I/O nodes add up to no more
//! than the pool, and the sum of bandwidths is highest (the multiple-choice knapsack problem).
//!
//! By dynamic programming over the jobs: for each number of I/O nodes that the jobs so far can have together,
//! the highest sum of bandwidths, and the choice of the last of them that led to it. With J jobs, C choices
//! of each, and a pool of K this takes O(J × C × K) time and O(J × K) memory. K is never more than all jobs
//! can use.

use super::{Allocation, Choice, Job};
use crate::error::ExploreError;

/// What each job gets.
pub fn share(jobs: &[Job], pool: u32) -> Result<Allocation, ExploreError> {
    let first = |job: &Job| job.choices().iter().map(|choice| choice.io_nodes).min().unwrap_or(0);
    let last = |job: &Job| job.choices().iter().map(|choice| choice.io_nodes).max().unwrap_or(0);
    let needed: u64 = jobs.iter().map(|job| u64::from(first(job))).sum();
    let useful: u64 = jobs.iter().map(|job| u64::from(last(job))).sum();
    // Each job's smallest number: if these do not fit, nothing does.
    let none = || ExploreError::Pool { needed, pool };
    let width = usize::try_from(useful.min(u64::from(pool))).map_err(|_| none())? + 1;
    // `best[n]`: the highest sum with exactly `n` I/O nodes.
    let mut best: Vec<Option<u128>> = vec![None; width];
    best[0] = Some(0);
    // For each job and `n`, which choice of the job the best sum has.
    let mut taken: Vec<Vec<u32>> = Vec::with_capacity(jobs.len());
    for job in jobs {
        let mut next: Vec<Option<u128>> = vec![None; width];
        let mut which = vec![0; width];
        for (number, choice) in (0..).zip(job.choices()) {
            let more = choice.io_nodes as usize;
            for (used, before) in best.iter().enumerate() {
                let Some(before) = before else { continue };
                let sum = before + u128::from(choice.bandwidth);
                // Beyond the pool there is no place.
                if let (Some(place), Some(which)) = (next.get_mut(used + more), which.get_mut(used + more))
                    && place.is_none_or(|other| sum > other)
                {
                    *place = Some(sum);
                    *which = number;
                }
            }
        }
        best = next;
        taken.push(which);
    }
    let highest = best.iter().flatten().max().copied().ok_or_else(none)?;
    // The first is the one with the fewest I/O nodes.
    let mut left = best.iter().position(|sum| *sum == Some(highest)).ok_or_else(none)?;
    let mut choices: Vec<Choice> = Vec::with_capacity(jobs.len());
    for (job, which) in jobs.iter().zip(&taken).rev() {
        let choice =
            which.get(left).and_then(|number| job.choices().get(*number as usize)).ok_or_else(none)?;
        left = left.checked_sub(choice.io_nodes as usize).ok_or_else(none)?;
        choices.push(*choice);
    }
    choices.reverse();
    Ok(Allocation { choices })
}
