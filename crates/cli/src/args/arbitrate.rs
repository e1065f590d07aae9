//! Sharing I/O nodes among jobs.

use super::values::{parse_name, parse_seconds};
use clap::Args;

/// Arguments of `arbitrate`.
#[derive(Args, Debug)]
pub struct ArbitrateArgs {
    /// How many I/O nodes there are for all jobs together.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub pool: u32,
    /// Results of `explore run`: each pattern in them is a job, or only this one, under this name.
    #[arg(required = true, value_name = "[NAME=]FILE[:PATTERN]")]
    pub files: Vec<String>,
    /// For programs: stable, documented JSON.
    #[arg(long)]
    pub json: bool,
    /// Give these running deployments the numbers of I/O nodes that are best for them together; JOB is what each runs.
    #[arg(long, value_name = "DEPLOYMENT=JOB", num_args = 1.., value_parser = parse_applied)]
    pub apply: Vec<Applied>,
    /// Stay, look so often which of them run, and share the pool anew when that has changed.
    #[arg(long, value_name = "SECONDS", requires = "apply", value_parser = parse_seconds)]
    pub watch: Option<f64>,
}

/// A deployment, and what it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The deployment's name.
    pub deployment: String,
    /// The name of a job that was measured.
    pub job: String,
}

fn parse_applied(text: &str) -> Result<Applied, String> {
    let (deployment, job) =
        text.split_once('=').ok_or("give DEPLOYMENT=JOB, and files before --apply, or after `--`")?;
    Ok(Applied { deployment: parse_name(deployment)?, job: job.to_owned() })
}
