//! `--apply`: running deployments get the numbers of I/O nodes that are best for them together.
//!
//! Each is set as by `bivouac forward NAME --io-nodes N`; numbers above its own servers are no choices. Those
//! that get fewer come first, and one that gets more has to wait if others have kept theirs: so the pool is
//! never exceeded by what this command sets. For the same reason, what is not known counts as taken: all
//! servers of a deployment that does not answer, and the I/O nodes of one that has no choice.

use super::comparison::Comparison;
use super::explained;
use crate::args::{Applied, ArbitrateArgs, ForwardingArgs};
use crate::error::Error;
use crate::home::{Directory, Home, Record};
use crate::text::plural;
use crate::{forward, rebuild, signals};
use bivouac_explore::arbitrate::Job;
use bivouac_layout::Map;
use bivouac_proto::auth::Key;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::process::ExitCode;

/// A deployment, and the measurements of what it runs, under the deployment's name.
pub struct Wanted {
    pub deployment: String,
    job: Job,
}

/// The deployments that were named.
pub fn wanted(applied: &[Applied], jobs: &[Job]) -> Result<Vec<Wanted>, Error> {
    let mut seen = HashSet::new();
    let one = |applied: &Applied| {
        if !seen.insert(applied.deployment.clone()) {
            return Err(Error::refused(
                format!("the deployment {:?} is named twice", applied.deployment),
                "give each one once: --apply DEPLOYMENT=JOB",
            ));
        }
        let job = jobs.iter().find(|job| job.name() == applied.job).ok_or_else(|| {
            let names: Vec<&str> = jobs.iter().map(Job::name).collect();
            Error::refused(
                format!("no job {:?} was measured", applied.job),
                format!("the files have {}", names.join(", ")),
            )
        })?;
        Ok(Wanted { deployment: applied.deployment.clone(), job: job.named(&applied.deployment) })
    };
    applied.iter().map(one).collect()
}

/// What is known of a deployment.
pub enum Looked {
    /// It runs, and forwards a directory.
    Running(Running),
    /// It has no I/O nodes: it is not there, does not run, or forwards nothing.
    Away(Error),
    /// Nobody knows how many of its servers are I/O nodes.
    Silent {
        /// Why not.
        error: Error,
        /// Its servers.
        servers: u32,
    },
}

/// A deployment that runs, and forwards a directory.
pub struct Running {
    directory: Directory,
    record: Record,
    key: Key,
    /// I/O nodes that it has.
    io_nodes: u32,
    /// Servers that could forward.
    servers: u32,
}

impl Running {
    /// Its number, which no other one has, also not one of the same name.
    pub fn deployment(&self) -> u64 {
        self.record.deployment
    }

    /// Servers that could forward.
    pub fn servers(&self) -> usize {
        self.servers as usize
    }

    /// Has so many servers forward. An exploration of the deployment is not disturbed.
    fn set(&self, io_nodes: u32) -> Result<(), Error> {
        let _exploring = self.directory.lock_explore()?;
        let map = rebuild::look(&self.record, &self.key)?;
        let how = ForwardingArgs { io_nodes: Some(io_nodes.to_string()), ..Default::default() };
        forward::change(&self.record, &self.key, &map, None, &how)
    }
}

/// Looks at a deployment.
pub fn look(home: &Home, name: &str) -> Looked {
    let directory = home.deployment(name);
    let known = directory.load().and_then(|record| {
        record.check_runs()?;
        Ok((directory.key()?, record))
    });
    let (key, record) = match known {
        Ok(known) => known,
        Err(error) => return Looked::Away(error),
    };
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let map: Map = match rebuild::look(&record, &key) {
        Ok(map) => map,
        Err(error) => {
            let servers = record.daemons.iter().filter(|daemon| daemon.server.is_some()).count();
            let remedy = error.remedy().unwrap_or_default();
            let cause = format!("{error}; meanwhile {} of it count as I/O nodes", plural(servers, "server"));
            return Looked::Silent { error: Error::Unanswered { cause, remedy }, servers: count(servers) };
        }
    };
    let Some(forwarding) = &map.forwarding else {
        return Looked::Away(Error::refused(
            format!("{name:?} forwards no directory"),
            format!("`bivouac forward {name} DIR` has it forward one"),
        ));
    };
    let io_nodes = count(forwarding.io_nodes.len());
    let servers = count(map.servers.iter().filter(|server| forward::can_forward(&map, server)).count());
    Looked::Running(Running { directory, record, key, io_nodes, servers })
}

/// What became of a deployment.
pub struct Outcome {
    pub deployment: String,
    /// I/O nodes before; `None`: not known, or it does not run.
    before: Option<u32>,
    /// I/O nodes now, or why that could not be set.
    pub now: Result<u32, Error>,
}

impl Outcome {
    /// It runs, and could not be set.
    pub fn has_failed(&self) -> bool {
        self.before.is_some() && self.now.is_err()
    }

    fn text(&self) -> Option<String> {
        let name = &self.deployment;
        let io_nodes = |number: u32| plural(number as usize, "I/O node");
        match (self.before?, self.now.as_ref().ok()?) {
            (before, now) if before == *now => Some(format!("{name} stays at {}", io_nodes(before))),
            (before, now) => Some(format!("{name} has {} instead of {before}", io_nodes(*now))),
        }
    }

    fn json(&self) -> Value {
        match &self.now {
            Ok(now) => json!({ "deployment": self.deployment, "before": self.before, "now": now }),
            Err(error) => {
                json!({ "deployment": self.deployment, "before": self.before, "error": error.to_string() })
            }
        }
    }
}

/// What an arbitration has found and done.
pub struct Round {
    comparison: Option<Comparison>,
    /// I/O nodes of the pool that were not shared, because they count as taken.
    taken: u32,
    pub outcomes: Vec<Outcome>,
}

impl Round {
    /// Prints what there is to see; of errors those that `is_news`.
    pub fn show(&self, as_json: bool, is_news: impl Fn(&Outcome, &Error) -> bool) {
        if as_json {
            let mut shown = self.comparison.as_ref().map_or(json!({ "version": 1 }), Comparison::json);
            shown["taken"] = self.taken.into();
            shown["deployments"] = self.outcomes.iter().map(Outcome::json).collect();
            println!("{shown}");
        } else {
            if let Some(comparison) = &self.comparison {
                println!("{}", comparison.text());
            }
            if self.taken > 0 {
                let taken = plural(self.taken as usize, "more I/O node");
                println!("{taken} of the pool cannot be shared: others have or may have them");
            }
            for text in self.outcomes.iter().filter_map(Outcome::text) {
                println!("{text}");
            }
        }
        for outcome in &self.outcomes {
            if let Err(error) = &outcome.now
                && is_news(outcome, error)
            {
                eprintln!("bivouac: {} is left as it is", outcome.deployment);
                error.show();
            }
        }
    }

    /// What the command exits with: by the last failure.
    fn code(&self) -> ExitCode {
        let last = self.outcomes.iter().filter_map(|outcome| outcome.now.as_ref().err()).next_back();
        last.map_or(ExitCode::SUCCESS, |error| ExitCode::from(error.exit_code()))
    }
}

/// Arbitrates once.
pub fn once(home: &Home, args: &ArbitrateArgs, wanted: &[Wanted]) -> Result<ExitCode, Error> {
    let looked = wanted.iter().map(|one| look(home, &one.deployment)).collect();
    let round = arbitrate(args.pool, wanted, looked);
    round.show(args.json, |_, _| true);
    Ok(round.code())
}

/// Shares the pool among those that run. `looked`: what is known of each of `wanted`.
pub fn arbitrate(pool: u32, wanted: &[Wanted], looked: Vec<Looked>) -> Round {
    let mut round = Round { comparison: None, taken: 0, outcomes: Vec::new() };
    let (mut running, mut jobs, mut taken) = (Vec::new(), Vec::new(), 0u32);
    let mut left = |wanted: &Wanted, before, error| {
        round.outcomes.push(Outcome { deployment: wanted.deployment.clone(), before, now: Err(error) });
    };
    for (wanted, looked) in wanted.iter().zip(looked) {
        match looked {
            Looked::Away(error) => left(wanted, None, error),
            Looked::Silent { error, servers } => {
                taken = taken.saturating_add(servers);
                left(wanted, None, error);
            }
            Looked::Running(one) => match wanted.job.up_to(one.servers) {
                Ok(job) => {
                    jobs.push(job);
                    running.push((wanted, one));
                }
                Err(error) => {
                    taken = taken.saturating_add(one.io_nodes);
                    left(wanted, Some(one.io_nodes), explained(error));
                }
            },
        }
    }
    if running.is_empty() {
        return round;
    }
    round.taken = taken.min(pool);
    let pool = pool - round.taken;
    match Comparison::of(jobs, pool) {
        Ok(comparison) => {
            let now = comparison.exact.choices.iter().map(|choice| choice.io_nodes);
            round.outcomes.extend(carry_out(pool, running.into_iter().zip(now).collect()));
            round.comparison = Some(comparison);
        }
        Err(error) => {
            let why = error.to_string();
            for (wanted, one) in running {
                let error = Error::refused(
                    why.clone(),
                    "raise --pool, or measure with fewer I/O nodes: `bivouac explore run --io-nodes 0,...`",
                );
                left(wanted, Some(one.io_nodes), error);
            }
        }
    }
    round
}

/// Sets the numbers: first those that become smaller, then those that become larger, as far as there is room.
fn carry_out(pool: u32, mut changes: Vec<((&Wanted, Running), u32)>) -> Vec<Outcome> {
    changes.sort_by_key(|((_, one), now)| *now > one.io_nodes);
    let mut used: u64 = changes.iter().map(|((_, one), _)| u64::from(one.io_nodes)).sum();
    let one = |((wanted, one), now): ((&Wanted, Running), u32)| {
        let others = used - u64::from(one.io_nodes);
        let done = if now == one.io_nodes {
            Ok(now)
        } else if let Some(signal) = signals::interrupted() {
            Err(Error::Interrupted(signal))
        } else if now > one.io_nodes && others + u64::from(now) > u64::from(pool) {
            Err(Error::refused(
                format!(
                    "{:?} cannot have {}: others still have {others} of {pool}",
                    wanted.deployment,
                    plural(now as usize, "I/O node")
                ),
                "repeat the command when those can be changed",
            ))
        } else {
            one.set(now).map(|()| now)
        };
        used = others
            + u64::from(match &done {
                Ok(now) => *now,
                Err(Error::Refused { .. } | Error::Interrupted(_)) => one.io_nodes,
                // Nobody knows whether it was done.
                Err(_) => now.max(one.io_nodes),
            });
        Outcome { deployment: wanted.deployment.clone(), before: Some(one.io_nodes), now: done }
    };
    changes.into_iter().map(one).collect()
}
