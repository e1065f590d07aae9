//! What each policy gives each job, and what comes of it: for a person, and for programs.

use crate::text::{size, table};
use bivouac_explore::ExploreError;
use bivouac_explore::arbitrate::{Allocation, Job, Policy};
use serde_json::{Value, json};

/// Version of the JSON form.
const VERSION: u32 = 1;

/// All policies for the same jobs and the same pool.
pub struct Comparison {
    pool: u32,
    jobs: Vec<Job>,
    /// The exact solution.
    pub exact: Allocation,
    /// All others; or why one cannot be applied.
    others: Vec<(Policy, Result<Allocation, ExploreError>)>,
}

impl Comparison {
    /// Computes all. Fails if nothing fits into the pool.
    pub fn of(jobs: Vec<Job>, pool: u32) -> Result<Comparison, ExploreError> {
        let exact = Policy::Exact.share(&jobs, pool)?;
        let others = Policy::ALL.into_iter().filter(|policy| *policy != Policy::Exact);
        let others = others.map(|policy| (policy, policy.share(&jobs, pool))).collect();
        Ok(Comparison { pool, jobs, exact, others })
    }

    /// A table, and what it says in words.
    pub fn text(&self) -> String {
        let mut columns: Vec<(Policy, Option<&Allocation>)> = vec![(Policy::Exact, Some(&self.exact))];
        columns.extend(self.others.iter().map(|(policy, shared)| (*policy, shared.as_ref().ok())));
        let cells = |first: [String; 3], of: &dyn Fn(&Allocation) -> String| -> Vec<String> {
            let each = columns.iter().map(|(_, shared)| shared.map_or("-".into(), of));
            first.into_iter().chain(each).collect()
        };
        let mut rows: Vec<Vec<String>> = vec![["JOB", "NODES", "PROCESSES"].map(str::to_owned).to_vec()];
        rows[0].extend(columns.iter().map(|(policy, _)| policy.name().to_uppercase()));
        for (number, job) in self.jobs.iter().enumerate() {
            let first = [job.name().to_owned(), job.nodes().to_string(), job.processes().to_string()];
            let io_nodes = |shared: &Allocation| {
                shared.choices.get(number).map_or(String::new(), |choice| choice.io_nodes.to_string())
            };
            rows.push(cells(first, &io_nodes));
        }
        let sum = |what: &str| [what.to_owned(), String::new(), String::new()];
        rows.push(cells(sum("I/O nodes"), &|shared| shared.io_nodes().to_string()));
        rows.push(cells(sum("bandwidth"), &|shared| rate(shared)));
        rows.push(cells(sum("of exact"), &|shared| format!("{:.0}%", 100.0 * self.ratio(shared))));
        let numbers: Vec<usize> = (1..3 + columns.len()).collect();
        let mut text = table(&rows, &numbers);
        for (policy, shared) in &self.others {
            if let Err(error) = shared {
                text.push_str(&format!("{} is not possible: {error}\n", policy.name()));
            }
        }
        text.push_str(&self.words());
        text
    }

    /// What the exact choice gains.
    fn words(&self) -> String {
        let against = |wanted: Policy, what: &str, unless: &str| {
            let (_, shared) = self.others.iter().find(|(policy, _)| *policy == wanted)?;
            let Ok(shared) = shared else { return Some(unless.to_owned()) };
            let ratio = self.ratio(shared);
            let gain = match ratio > 0.0 {
                true => format!("{:.2} times", 1.0 / ratio),
                false => "against".to_owned(),
            };
            Some(format!("{gain} {what} ({})", rate(shared)))
        };
        let gains = [
            against(Policy::None, "direct access", "direct access was not measured for all jobs"),
            against(Policy::Static, "the static share", "the static share is not possible"),
        ];
        let gains: Vec<String> = gains.into_iter().flatten().collect();
        format!(
            "\nThe exact choice takes {} of {} I/O nodes for {}: {}.\n",
            self.exact.io_nodes(),
            self.pool,
            rate(&self.exact),
            gains.join("; ")
        )
    }

    /// The bandwidth in relation to the exact one's.
    fn ratio(&self, shared: &Allocation) -> f64 {
        match self.exact.bandwidth() {
            0 => 1.0,
            highest => shared.bandwidth() as f64 / highest as f64,
        }
    }

    /// For programs (`docs/arbitrate.md`).
    pub fn json(&self) -> Value {
        let measured = |job: &Job| -> Vec<Value> {
            let each = job.choices().iter();
            each.map(|c| json!({ "io_nodes": c.io_nodes, "bandwidth": c.bandwidth })).collect()
        };
        let jobs = self.jobs.iter().map(|job| {
            json!({ "name": job.name(), "nodes": job.nodes(), "processes": job.processes(), "measured": measured(job) })
        });
        let exact = [self.shared(Policy::Exact, &self.exact)].into_iter();
        let others = self.others.iter().map(|(policy, shared)| match shared {
            Ok(shared) => self.shared(*policy, shared),
            Err(error) => json!({ "policy": policy.name(), "error": error.to_string() }),
        });
        json!({
            "version": VERSION,
            "pool": self.pool,
            "jobs": jobs.collect::<Vec<_>>(),
            "policies": exact.chain(others).collect::<Vec<_>>(),
        })
    }

    fn shared(&self, policy: Policy, shared: &Allocation) -> Value {
        let each = self.jobs.iter().zip(&shared.choices);
        let choices = each.map(|(job, choice)| {
            json!({ "job": job.name(), "io_nodes": choice.io_nodes, "bandwidth": choice.bandwidth })
        });
        json!({
            "policy": policy.name(),
            "io_nodes": shared.io_nodes(),
            "bandwidth": bytes(shared),
            "ratio": self.ratio(shared),
            "choices": choices.collect::<Vec<_>>(),
        })
    }
}

fn bytes(shared: &Allocation) -> u64 {
    u64::try_from(shared.bandwidth()).unwrap_or(u64::MAX)
}

fn rate(shared: &Allocation) -> String {
    format!("{}/s", size(bytes(shared)))
}
