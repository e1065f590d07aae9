//! The figures, for people and for programs.

use crate::histogram::Histogram;
use crate::plan::{Op, Plan};
use crate::worker::Outcome;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Version of the JSON; raised when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// All of the JSON: fields are added, never changed or removed without raising `version`.
#[derive(Serialize, Debug)]
pub struct Report {
    version: u32,
    #[serde(flatten)]
    plan: Plan,
    /// How busy the machine was before: the mean number of processes that wanted to run in the last minute.
    load_average: Option<f64>,
    /// What was measured, in order.
    pub phases: Vec<Phase>,
    /// Failed operations of all phases.
    pub errors: u64,
}

/// One kind of operation, over all workers.
#[derive(Serialize, Debug)]
pub struct Phase {
    /// Which.
    pub op: Op,
    /// How many were done, those that failed included.
    pub operations: u64,
    /// From the first worker's beginning to the last one's end.
    pub seconds: f64,
    /// Operations a second that succeeded.
    pub rate: f64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Directory entries seen.
    pub entries: u64,
    /// How long an operation took, microseconds.
    pub latency_us: Latency,
    /// Processor time of one operation, microseconds.
    pub cpu_us: Cost,
    /// Failed operations.
    pub errors: Errors,
    /// A signal ended it early.
    #[serde(skip)]
    pub interrupted: bool,
}

/// Times of operations, microseconds.
#[derive(Serialize, Debug)]
pub struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// Processor time of an operation, microseconds.
#[derive(Serialize, Debug)]
pub struct Cost {
    /// Of the processes that did it.
    own: f64,
    /// Of the servers on this machine; `null` if none are known.
    servers: Option<f64>,
}

/// Operations that failed.
#[derive(Serialize, Debug)]
pub struct Errors {
    /// How many.
    pub count: u64,
    /// By error. `wrong`: it succeeded, and the result was not what must be there.
    kinds: BTreeMap<String, u64>,
    /// The first of them, in words.
    first: Option<String>,
}

impl Latency {
    /// Of the times that were counted.
    pub fn of(times: &Histogram) -> Latency {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
        Latency {
            mean: times.mean() / 1000.0,
            p50: us(times.percentile(0.5)),
            p90: us(times.percentile(0.9)),
            p99: us(times.percentile(0.99)),
            max: us(times.longest()),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.1} p90 {:.1} p99 {:.1} max {:.0} µs", self.p50, self.p90, self.p99, self.max)
    }
}

impl Cost {
    /// Of a number of operations: processor time of those who did them, and of the servers, nanoseconds.
    pub fn of(operations: u64, own: u64, servers: Option<u64>) -> Cost {
        let each = |nanoseconds: u64| nanoseconds as f64 / 1000.0 / operations.max(1) as f64;
        Cost { own: each(own), servers: servers.map(each) }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu {:.2} + {:.2} µs", self.own, self.servers.unwrap_or(0.0))
    }
}

impl Report {
    /// Of a plan of which nothing is done yet.
    pub fn new(plan: &Plan) -> Report {
        let load = std::fs::read_to_string("/proc/loadavg").ok();
        let load_average = load.and_then(|text| text.split(' ').next()?.parse().ok());
        Report { version: VERSION, plan: plan.clone(), load_average, phases: Vec::new(), errors: 0 }
    }

    /// Sums up.
    pub fn finish(&mut self) {
        self.errors = self.phases.iter().map(|p| p.errors.count).sum();
    }

    /// The figures as rows under headings, and whether a column holds numbers.
    pub fn table(&self) -> Vec<Vec<String>> {
        let words = [
            "op",
            "ops",
            "ops/s",
            "MiB/s",
            "entries/s",
            "p50 µs",
            "p90",
            "p99",
            "max",
            "cpu µs/op",
            "servers",
            "errors",
        ];
        let mut rows = vec![words.map(str::to_owned).to_vec()];
        for phase in &self.phases {
            let some = |value: f64, text: String| if value > 0.0 { text } else { "-".to_owned() };
            let rate =
                |value: f64| if value < 1000.0 { format!("{value:.1}") } else { format!("{value:.0}") };
            let entries = phase.entries as f64 / phase.seconds.max(1e-9);
            let latency = &phase.latency_us;
            rows.push(vec![
                phase.op.to_string(),
                phase.operations.to_string(),
                rate(phase.rate),
                some(phase.bytes_per_second, format!("{:.1}", phase.bytes_per_second / 1_048_576.0)),
                some(entries, rate(entries)),
                format!("{:.1}", latency.p50),
                format!("{:.1}", latency.p90),
                format!("{:.1}", latency.p99),
                format!("{:.0}", latency.max),
                format!("{:.2}", phase.cpu_us.own),
                phase.cpu_us.servers.map_or("-".to_owned(), |cost| format!("{cost:.2}")),
                phase.errors.count.to_string(),
            ]);
        }
        rows
    }

    /// The failures, one line for each phase that had any.
    pub fn complaints(&self) -> Vec<String> {
        let failed = self.phases.iter().filter(|p| p.errors.count > 0);
        failed
            .map(|p| {
                let kinds: Vec<String> =
                    p.errors.kinds.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
                let first = p.errors.first.as_deref().unwrap_or_default();
                format!(
                    "{}: {} of {} failed ({}): {first}",
                    p.op,
                    p.errors.count,
                    p.operations,
                    kinds.join(", ")
                )
            })
            .collect()
    }
}

impl Phase {
    /// From each worker's results, the time that passed, and the servers' processor time, nanoseconds.
    pub fn new(op: Op, outcomes: &[Outcome], passed: u64, servers: Option<u64>) -> Phase {
        let mut latency = Histogram::default();
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for outcome in outcomes {
            latency.add(&outcome.latency);
            for (kind, count) in &outcome.errors {
                *kinds.entry(kind.clone()).or_default() += count;
            }
        }
        let operations = latency.total();
        let failed: u64 = kinds.values().sum();
        let seconds = passed as f64 / 1e9;
        let a_second = |count: u64| count as f64 / seconds.max(1e-9);
        let bytes = outcomes.iter().map(|o| o.bytes).sum();
        Phase {
            op,
            operations,
            seconds,
            rate: a_second(operations - failed),
            bytes,
            bytes_per_second: a_second(bytes),
            entries: outcomes.iter().map(|o| o.entries).sum(),
            latency_us: Latency::of(&latency),
            cpu_us: Cost::of(operations, outcomes.iter().map(|o| o.cpu).sum(), servers),
            errors: Errors {
                count: failed,
                kinds,
                first: outcomes.iter().find_map(|o| o.first_error.clone()),
            },
            interrupted: outcomes.iter().any(|o| o.interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(times: &[u64], bytes: u64, error: Option<&str>) -> Outcome {
        let mut outcome = Outcome { bytes, cpu: 4000, latency: Histogram::new(), ..Outcome::default() };
        times.iter().for_each(|time| outcome.latency.record(*time));
        if let Some(name) = error {
            outcome.errors.insert(name.to_owned(), 1);
            outcome.first_error = Some("in words".to_owned());
        }
        outcome
    }

    #[test]
    fn a_phase_adds_up_its_workers() {
        let phase = Phase::new(
            Op::Create,
            &[outcome(&[1000, 2000], 10, None), outcome(&[3000, 4000], 30, Some("ENOSPC"))],
            2_000_000_000,
            Some(8_000),
        );
        assert_eq!((phase.operations, phase.bytes, phase.errors.count), (4, 40, 1));
        assert_eq!((phase.rate, phase.bytes_per_second), (1.5, 20.0));
        assert_eq!((phase.cpu_us.own, phase.cpu_us.servers), (2.0, Some(2.0)));
        assert_eq!(phase.latency_us.max, 4.0);
        assert_eq!(phase.errors.kinds["ENOSPC"], 1);
    }
}
