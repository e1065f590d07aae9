//! `explore`: the crate `bivouac-explore` on the command line.
//!
//! That crate measures. This module has what it leaves to others: [`nodes`] starts its part on each node by the
//! deployment's launchers, and its processes there inside of the deployment; [`io_nodes`] changes how many I/O nodes
//! there are, and puts them back; [`run`] does one run after the other. The analysis is [`python`]'s.

mod io_nodes;
pub mod nodes;
mod run;

use crate::args::{ExploreCommand, PatternsArgs, ReportArgs};
use crate::error::Error;
use crate::home::Home;
use crate::python;
use crate::text::size;
use bivouac_explore::{ExploreError, Pattern, paper, patterns, worker};
pub use nodes::serve;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::ExitCode;

/// Longest patterns file, bytes.
const LONGEST: u64 = 64 << 20;
/// File systems in memory, whose pages cannot be dropped.
pub const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// `explore`.
pub fn explore(what: &ExploreCommand) -> Result<ExitCode, Error> {
    match what {
        ExploreCommand::Patterns(args) => print_patterns(args),
        ExploreCommand::Run(args) => run::run(&Home::from_env()?, args),
        ExploreCommand::Report(args) => report(args),
        ExploreCommand::Worker => {
            worker::serve(BufReader::new(std::io::stdin()), std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// `explore patterns`.
fn print_patterns(args: &PatternsArgs) -> Result<ExitCode, Error> {
    if let Some(log) = &args.from {
        let mut words: Vec<OsString> = vec!["patterns-from".into(), log.into()];
        if let Some(output) = &args.output {
            words.extend(["--output".into(), output.into()]);
        }
        return python::call(&words);
    }
    let scale = paper::Scale {
        nodes: args.nodes,
        processes: args.processes,
        total: args.total,
        stonewall: args.stonewall,
        buffered: args.buffered,
    };
    let list = if args.all { paper::all(&scale) } else { paper::table2(&scale) };
    let text = patterns::print(&list).map_err(explained)?;
    // It must be possible to read what is written: a total can be out of range.
    patterns::parse(&text).map_err(explained)?;
    if let Some(total) = args.total {
        let raised: Vec<&str> = list
            .iter()
            .filter(|pattern| pattern.phases.iter().any(|phase| phase.total > Some(total)))
            .map(|pattern| pattern.name.as_str())
            .collect();
        if !raised.is_empty() {
            eprintln!(
                "bivouac: more than {}, one request of each process: {}",
                size(total),
                raised.join(", ")
            );
        }
    }
    match &args.output {
        Some(path) => std::fs::write(path, text + "\n").map_err(|e| Error::file("write", path, e))?,
        None => println!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// `explore report`.
fn report(args: &ReportArgs) -> Result<ExitCode, Error> {
    let mut words: Vec<OsString> = vec!["explore-report".into()];
    words.extend(args.files.iter().map(Into::into));
    words.extend(["--html".into(), args.html.clone().into()]);
    if let Some(csv) = &args.csv {
        words.extend(["--csv".into(), csv.into()]);
    }
    python::call(&words)
}

/// The patterns of a file.
fn read_patterns(path: &Path) -> Result<Vec<Pattern>, Error> {
    let mut text = String::new();
    let refused = |why: String| {
        Error::refused(
            format!("{}: {why}", path.display()),
            "docs/explore.md describes patterns; `bivouac explore patterns --table2` prints some",
        )
    };
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    read.map_err(|cause| refused(format!("cannot read it: {cause}")))?;
    patterns::parse(&text).map_err(|error| refused(error.to_string()))
}

/// An error of the explorer, with what the user can do.
pub fn explained(error: ExploreError) -> Error {
    match error {
        ExploreError::Pattern { .. } => {
            Error::refused(error.to_string(), "`bivouac explore patterns --help` has examples")
        }
        ExploreError::Results(cause) => {
            Error::refused(cause, "give another --out, or what the file's first line says")
        }
        ExploreError::File { what, cause } => Error::System { what: format!("cannot {what}"), cause },
        ExploreError::Run(cause) => {
            Error::Unanswered { cause, remedy: "`bivouac status` shows the deployment".into() }
        }
        ExploreError::Pool { .. } => Error::refused(
            error.to_string(),
            "raise --pool, or measure with fewer I/O nodes: `bivouac explore run --io-nodes 0,...`",
        ),
        ExploreError::Rounded { .. } | ExploreError::Unmeasured(_) => Error::refused(
            error.to_string(),
            "measure with that number, too: `bivouac explore run --io-nodes N,N,...`",
        ),
        ExploreError::Interrupted => {
            Error::Interrupted(crate::signals::interrupted().unwrap_or(libc::SIGINT))
        }
    }
}
