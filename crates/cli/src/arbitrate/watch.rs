//! `--watch`: the pool is shared anew whenever one of the deployments comes or goes, or has other servers,
//! and when something could not be set the last time. One that does not answer for a while has not gone. Ends
//! when a signal asks for it; deployments stay as they are then.

use super::apply::{self, Looked, Wanted};
use crate::args::ArbitrateArgs;
use crate::error::Error;
use crate::home::Home;
use crate::signals;
use crate::text::plural;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How soon a signal is heeded.
const HEED: Duration = Duration::from_millis(50);

/// Watches until a signal comes.
pub fn watch(home: &Home, args: &ArbitrateArgs, wanted: &[Wanted], seconds: f64) -> Result<ExitCode, Error> {
    signals::take(|taken| {
        if taken.is_final() {
            signals::interrupt(taken.number);
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let mut seen: Vec<State> = Vec::new();
    // What could not be set, and why: tried again each time, and told once.
    let mut failed: Vec<String> = Vec::new();
    while signals::interrupted().is_none() {
        let looked: Vec<Looked> = wanted.iter().map(|one| apply::look(home, &one.deployment)).collect();
        let now: Vec<State> = looked.iter().map(State::of).collect();
        let changed = has_changed(&seen, &now);
        if changed {
            if !args.json {
                tell(wanted, &seen, &now, &looked);
            }
            failed.clear();
        }
        if changed || !failed.is_empty() {
            let round = apply::arbitrate(args.pool, wanted, looked);
            let outcomes = round.outcomes.iter().filter(|outcome| outcome.has_failed());
            let failures: Vec<String> =
                outcomes.filter_map(|outcome| Some(outcome.now.as_ref().err()?.to_string())).collect();
            if changed || failures != failed {
                round.show(args.json, |outcome, error| {
                    outcome.has_failed()
                        && !failed.contains(&error.to_string())
                        && !matches!(error, Error::Interrupted(_))
                });
            }
            (seen, failed) = (now, failures);
        }
        let until = Instant::now() + Duration::from_secs_f64(seconds).max(HEED);
        while Instant::now() < until && signals::interrupted().is_none() {
            std::thread::sleep(HEED.min(until.saturating_duration_since(Instant::now())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the pool has to be shared anew. Not because one that ran does not answer now: as long as nothing
/// else changes, it has what it had.
fn has_changed(seen: &[State], now: &[State]) -> bool {
    let same = |(before, now): (&State, &State)| {
        before == now || matches!((before, now), (State::Running(..), State::Silent))
    };
    seen.len() != now.len() || !seen.iter().zip(now).all(same)
}

/// What of a deployment matters.
#[derive(PartialEq, Eq, Debug)]
enum State {
    /// With this number and so many servers.
    Running(u64, usize),
    Away,
    Silent,
}

impl State {
    fn of(looked: &Looked) -> State {
        match looked {
            Looked::Running(one) => State::Running(one.deployment(), one.servers()),
            Looked::Away(_) => State::Away,
            Looked::Silent { .. } => State::Silent,
        }
    }
}

/// Says what has changed.
fn tell(wanted: &[Wanted], before: &[State], now: &[State], looked: &[Looked]) {
    for (number, ((one, state), looked)) in wanted.iter().zip(now).zip(looked).enumerate() {
        let name = &one.deployment;
        match (before.get(number) == Some(state), looked) {
            (true, _) => {}
            (false, Looked::Running(one)) => {
                println!("{name} runs, with {}", plural(one.servers(), "server"))
            }
            (false, Looked::Away(error)) => println!("{name} has no part in it: {error}"),
            (false, Looked::Silent { error, .. }) => println!("{name} has no part in it: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State::{Away, Running, Silent};
    use super::has_changed;

    #[test]
    fn one_that_does_not_answer_for_a_while_changes_nothing() {
        let runs = || Running(7, 2);
        assert!(has_changed(&[], &[Away]));
        assert!(!has_changed(&[runs(), Away], &[runs(), Away]));
        assert!(!has_changed(&[runs(), Away], &[Silent, Away]));
        for (before, now) in [
            (runs(), Away),
            (Away, runs()),
            (runs(), Running(8, 2)),
            (runs(), Running(7, 3)),
            // It was shared without knowing what that one has.
            (Silent, runs()),
            (Silent, Away),
            (Away, Silent),
        ] {
            assert!(has_changed(&[before], &[now]));
        }
    }
}
