//! `arbitrate`: a pool of I/O nodes, shared among jobs.
//!
//! The crate `bivouac-explore` computes the shares. This module has what it leaves to others: [`input`] reads
//! files of results, [`comparison`] shows what the policies give, [`apply`] sets the numbers of running
//! deployments as `bivouac forward` does, and [`watch`] does so again whenever one comes or goes.

mod apply;
mod comparison;
mod input;
mod watch;

use crate::args::ArbitrateArgs;
use crate::error::Error;
use crate::home::Home;
use bivouac_explore::ExploreError;
use comparison::Comparison;
use std::process::ExitCode;

/// `arbitrate`.
pub fn arbitrate(args: &ArbitrateArgs) -> Result<ExitCode, Error> {
    let jobs = input::jobs(&args.files)?;
    if args.apply.is_empty() {
        let comparison = Comparison::of(jobs, args.pool).map_err(explained)?;
        match args.json {
            true => println!("{}", comparison.json()),
            false => print!("{}", comparison.text()),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = apply::wanted(&args.apply, &jobs)?;
    let home = Home::from_env()?;
    match args.watch {
        Some(seconds) => watch::watch(&home, args, &wanted, seconds),
        None => apply::once(&home, args, &wanted),
    }
}

/// An error of the explorer, with what the user can do.
fn explained(error: ExploreError) -> Error {
    let files = "docs/arbitrate.md says which files it takes; `bivouac explore run` writes them";
    match error {
        ExploreError::Results(_) | ExploreError::File { .. } => Error::refused(error.to_string(), files),
        other => crate::explore::explained(other),
    }
}
