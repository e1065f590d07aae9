//! Jobs from a file of results: each pattern is one.

use super::Job;
use crate::error::ExploreError;
use crate::patterns::Pattern;
use crate::results::Recorded;
use std::collections::BTreeMap;

/// The patterns that were measured, as jobs; or one of them. Only runs count whose data was verified, as in
/// the report of an exploration. A pattern without such a run is refused. `shown`: the file's name, for
/// errors.
pub fn jobs(shown: &str, recorded: &Recorded, pattern: Option<&str>) -> Result<Vec<Job>, ExploreError> {
    let all = &recorded.header.patterns;
    let chosen: Vec<&Pattern> =
        all.iter().filter(|one| pattern.is_none_or(|wanted| wanted == one.name)).collect();
    if let (Some(wanted), true) = (pattern, chosen.is_empty()) {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        let names = names.join(", ");
        return Err(ExploreError::Results(format!(
            "{shown} has no pattern {wanted:?}; its patterns are {names}"
        )));
    }
    chosen.into_iter().map(|pattern| job(shown, recorded, pattern)).collect()
}

fn job(shown: &str, recorded: &Recorded, pattern: &Pattern) -> Result<Job, ExploreError> {
    let mut measured: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let mut unverified = 0;
    for run in recorded.runs.iter().filter(|run| run.pattern == pattern.name) {
        match run.verified {
            true => measured.entry(run.io_nodes).or_default().push(run.bandwidth),
            false => unverified += 1,
        }
    }
    if measured.is_empty() {
        let failed = recorded.failed.iter().filter(|run| run.pattern == pattern.name).count();
        return Err(ExploreError::Results(format!(
            "{shown} has no usable run of the pattern {:?}: {failed} failed, and {unverified} were not verified",
            pattern.name
        )));
    }
    Job::new(&pattern.name, pattern.nodes, pattern.processes, &measured)
}
