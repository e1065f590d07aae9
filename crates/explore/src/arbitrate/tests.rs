//! The exact solution against all combinations, and the policies against what they are to give.

use super::*;
use proptest::prelude::*;

/// A job that was measured once with each of these numbers.
fn job(name: &str, nodes: u32, processes: u32, measured: &[(u32, u64)]) -> Job {
    let measured =
        measured.iter().map(|(io_nodes, bandwidth)| (*io_nodes, vec![*bandwidth as f64])).collect();
    Job::new(name, nodes, processes, &measured).expect("is measured")
}

fn numbers(shared: Result<Allocation, ExploreError>) -> Vec<u32> {
    shared.expect("fits").choices.iter().map(|choice| choice.io_nodes).collect()
}

/// The highest sum, and the fewest I/O nodes for it, of all combinations that fit.
fn by_trying_all(jobs: &[Job], pool: u32) -> Option<(u128, u64)> {
    let mut all = vec![(0u128, 0u64)];
    for job in jobs {
        let with = |(sum, used): &(u128, u64)| {
            let (sum, used) = (*sum, *used);
            job.choices()
                .iter()
                .map(move |c| (sum + u128::from(c.bandwidth), used + u64::from(c.io_nodes)))
                .collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    let fit = all.into_iter().filter(|(_, used)| *used <= u64::from(pool));
    fit.max_by_key(|(sum, used)| (*sum, std::cmp::Reverse(*used)))
}

/// Bandwidths from a small range, so that there are ties.
fn any_job() -> impl Strategy<Value = Job> {
    let measured = prop::collection::btree_map(0u32..9, prop::collection::vec(0u32..12, 1..4), 1..5);
    (1u32..40, 1u32..400, measured).prop_map(|(nodes, processes, measured)| {
        let measured = measured
            .into_iter()
            .map(|(io_nodes, all)| (io_nodes, all.into_iter().map(f64::from).collect()))
            .collect();
        Job::new("job", nodes, processes, &measured).expect("is measured")
    })
}

proptest! {
    #[test]
    fn no_combination_is_better_than_the_exact_one(jobs in prop::collection::vec(any_job(), 0..6), pool in 0u32..30) {
        let exact = Policy::Exact.share(&jobs, pool);
        match by_trying_all(&jobs, pool) {
            None => prop_assert!(matches!(exact, Err(ExploreError::Pool { .. })), "{exact:?}"),
            Some((sum, used)) => {
                let exact = exact.expect("something fits");
                prop_assert_eq!((exact.bandwidth(), exact.io_nodes()), (sum, used));
            }
        }
    }

    #[test]
    fn every_policy_stays_within_the_pool_and_no_policy_beats_the_exact_one(
        jobs in prop::collection::vec(any_job(), 0..20), pool in 0u32..100
    ) {
        let exact = Policy::Exact.share(&jobs, pool);
        for policy in Policy::ALL {
            let Ok(shared) = policy.share(&jobs, pool) else { continue };
            prop_assert!(shared.io_nodes() <= u64::from(pool));
            prop_assert_eq!(shared.choices.len(), jobs.len());
            for (job, choice) in jobs.iter().zip(&shared.choices) {
                prop_assert!(job.choices().contains(choice));
            }
            let exact = exact.as_ref().expect("what a policy gives fits");
            prop_assert!(exact.bandwidth() >= shared.bandwidth());
        }
    }
}

#[test]
fn the_job_that_gains_most_gets_the_io_nodes() {
    let jobs = [
        job("flat", 8, 8, &[(0, 90), (1, 100), (2, 101), (4, 102)]),
        job("steep", 1, 1, &[(0, 10), (1, 50), (2, 100), (4, 200)]),
        job("direct", 1, 1, &[(0, 80), (1, 20), (2, 30), (4, 40)]),
    ];
    assert_eq!(numbers(Policy::Exact.share(&jobs, 5)), [1, 4, 0]);
    assert_eq!(numbers(Policy::Exact.share(&jobs, 4)), [0, 4, 0]);
    assert_eq!(numbers(Policy::Exact.share(&jobs, 1)), [0, 1, 0]);
    assert_eq!(numbers(Policy::Exact.share(&jobs, u32::MAX)), [4, 4, 0]);
    assert_eq!(numbers(Policy::None.share(&jobs, 6)), [0, 0, 0]);
    assert_eq!(numbers(Policy::One.share(&jobs, 6)), [1, 1, 1]);
    // 2 each; by nodes 4.8, 0.6 and 0.6.
    assert_eq!(numbers(Policy::Static.share(&jobs, 6)), [2, 2, 2]);
    assert_eq!(numbers(Policy::Size.share(&jobs, 6)), [4, 0, 0]);
}

#[test]
fn processes_count_where_nodes_are_alike() {
    let measured = [(0, 1), (1, 2), (2, 3), (4, 4), (8, 5)];
    let jobs = [job("few", 4, 4, &measured), job("many", 4, 28, &measured)];
    assert_eq!(numbers(Policy::Size.share(&jobs, 9)), [4, 4]);
    assert_eq!(numbers(Policy::Processes.share(&jobs, 9)), [1, 4]);
}

#[test]
fn fewer_io_nodes_are_taken_where_more_bring_nothing() {
    let jobs = [job("a", 1, 1, &[(1, 10), (2, 10), (8, 10)]), job("b", 1, 1, &[(0, 5), (4, 5)])];
    assert_eq!(numbers(Policy::Exact.share(&jobs, 16)), [1, 0]);
    assert_eq!(numbers(Policy::Exact.share(&[], 3)), Vec::<u32>::new());
}

#[test]
fn what_does_not_fit_is_told() {
    let jobs = [job("a", 1, 1, &[(1, 10), (2, 20)]), job("b", 1, 1, &[(2, 5)])];
    let why = |policy: Policy, pool| policy.share(&jobs, pool).expect_err("does not fit").to_string();
    assert_eq!(why(Policy::Exact, 2), "3 I/O nodes are needed, and the pool has 2");
    assert_eq!(numbers(Policy::Exact.share(&jobs, 3)), [1, 2]);
    assert_eq!(why(Policy::None, 9), "a was not measured without I/O nodes");
    assert_eq!(why(Policy::One, 9), "b was not measured with 1 I/O node or none");
    assert_eq!(why(Policy::Static, 3), "b was not measured with 1 I/O node or none");
    let ones = [jobs[0].clone(), jobs[0].named("c")];
    assert!(matches!(Policy::One.share(&ones, 1), Err(ExploreError::Pool { needed: 2, pool: 1 })));
}

#[test]
fn the_median_of_the_repetitions_counts() {
    let of = |values: &[f64]| {
        Job::new("x", 1, 1, &BTreeMap::from([(1, values.to_vec())])).expect("is measured").choices()[0]
            .bandwidth
    };
    assert_eq!((of(&[5.0]), of(&[9.0, 1.0, 4.4]), of(&[1.0, 9.0, 100.0, 2.0])), (5, 4, 6));
    assert_eq!((of(&[f64::MAX, f64::MAX]), of(&[-1.0])), (u64::MAX, 0));
    assert!(matches!(Job::new("x", 1, 1, &BTreeMap::new()), Err(ExploreError::Unmeasured(_))));
    assert!(matches!(Job::new("x", 1, 1, &BTreeMap::from([(1, vec![])])), Err(ExploreError::Unmeasured(_))));
}

#[test]
fn a_job_has_no_more_io_nodes_than_servers() {
    let measured = job("x", 1, 1, &[(1, 1), (2, 2), (4, 4)]);
    let most =
        |servers| measured.up_to(servers).map(|job| job.choices().last().map(|choice| choice.io_nodes));
    assert_eq!(most(3).expect("fits"), Some(2));
    assert_eq!(most(9).expect("fits"), Some(4));
    assert_eq!(most(0).expect_err("does not").to_string(), "x was not measured without I/O nodes");
}
