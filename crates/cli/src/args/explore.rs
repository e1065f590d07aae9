//! Exploring how many I/O nodes serve which access patterns best.

use super::values::{parse_name, parse_seconds};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Arguments of `explore`.
#[derive(Args, Debug)]
pub struct ExploreArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: ExploreCommand,
}

/// What `explore` does.
#[derive(Subcommand, Debug)]
pub enum ExploreCommand {
    /// Print a patterns file: that of the paper, or one made of a Darshan log.
    #[command(after_long_help = "Examples:
  bivouac explore patterns --table2                                      A to T, as in the paper
  bivouac explore patterns --table2 --nodes 4 --processes 16 --total 1G --stonewall 5    fitted to four nodes
  bivouac explore patterns --all --output all.json                       the 189 scenarios
  bivouac explore patterns --from job.darshan --output job.json          what a program did (python/)

The format is described in docs/explore.md. --nodes and --processes are what the paper's 32 nodes and 1,536 processes become; smaller \
patterns get their share, and at least one.")]
    Patterns(PatternsArgs),
    /// Measure patterns with different numbers of I/O nodes.
    #[command(
        long_about = "Measure each pattern with each number of I/O nodes, several times, in random order. The deployment forwards a directory \
(`bivouac forward`); in it, processes on the deployment's nodes, which are ordinary programs inside the deployment, read and write \
files as the patterns say. What they read is checked, and what they have written is read back by others.",
        after_long_help = "Example:
  bivouac forward job /scratch/me
  bivouac explore patterns --table2 --nodes 4 --processes 16 --total 1G > patterns.json
  bivouac explore run job patterns.json --io-nodes 0,1,2,4 --repetitions 5 --seed 7 --out results.jsonl
  bivouac explore report results.jsonl --html report.html

If FILE is there, goes on with the runs that are missing in it; patterns, seed and numbers of I/O nodes have to be the same. Interrupted, it \
removes its files, ends its processes, and puts the I/O nodes back as they were. A run that fails is noted, and others go on: exit code 71."
    )]
    Run(ExploreRunArgs),
    /// Make a report of results.
    #[command(
        long_about = "Make a report of results of `explore run`, with the Python package bivouac_analysis (in python/; BIVOUAC_PYTHON names \
another interpreter than python3)."
    )]
    Report(ReportArgs),
    /// Be a process of the load.
    #[command(hide = true)]
    Worker,
}

/// Arguments of `explore patterns`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["table2", "all", "from"]))]
pub struct PatternsArgs {
    /// Patterns A to T of the paper (Bez et al., "Towards On-Demand I/O Forwarding in HPC Platforms", Table 2).
    #[arg(long)]
    pub table2: bool,
    /// Its 189 scenarios.
    #[arg(long)]
    pub all: bool,
    /// What a program did, by its Darshan log.
    #[arg(long, value_name = "LOG")]
    pub from: Option<PathBuf>,
    /// Nodes of what has 32 in the paper.
    #[arg(long, value_name = "N", conflicts_with = "from", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub nodes: Option<u32>,
    /// Processes, on all nodes together, of what has 1,536 in the paper.
    #[arg(long, value_name = "N", conflicts_with = "from", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub processes: Option<u32>,
    /// Bytes of each pattern, for example 1G [default: 32G]
    #[arg(long, value_name = "SIZE", conflicts_with = "from", value_parser = crate::bench::parse_size)]
    pub total: Option<u64>,
    /// Seconds after which a pattern ends, also if not all bytes were transferred [default: 10]
    #[arg(long, value_name = "SECONDS", conflicts_with = "from", value_parser = parse_seconds)]
    pub stonewall: Option<f64>,
    /// Without O_DIRECT.
    #[arg(long, conflicts_with = "from")]
    pub buffered: bool,
    /// Write it there [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `explore run`.
#[derive(Args, Debug)]
pub struct ExploreRunArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// The patterns: a file as `explore patterns` prints it.
    pub patterns: PathBuf,
    /// With how many I/O nodes; 0: programs use the directory themselves
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u32).range(..=65_535))]
    pub io_nodes: Vec<u32>,
    /// How often each pattern is measured with each number of I/O nodes.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,
    /// What the random order follows from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The file of results, to which each run adds a line when it is over.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Hosts that processes are started on; a pattern for fewer nodes uses the first ones [default: all]
    #[arg(long, value_name = "h1,h2,...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// The directory to work in, which has to be there, below the one that is forwarded.
    #[arg(long, value_name = "SUBDIR")]
    pub directory: Option<PathBuf>,
    /// Do not read back what was written.
    #[arg(long)]
    pub no_verify: bool,
    /// Print a line for each run.
    #[arg(short, long)]
    pub verbose: bool,
}

/// Arguments of `advise`.
#[derive(Args, Debug)]
pub struct AdviseArgs {
    /// The log, of Darshan 3.
    pub log: PathBuf,
    /// Results of `explore run` or of `characterize`; may be given several times.
    #[arg(long, value_name = "RESULTS")]
    pub with: Vec<PathBuf>,
    /// For scripts.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `explore report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Files of results.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The report.
    #[arg(long, value_name = "OUT")]
    pub html: PathBuf,
    /// A directory for the tables behind it.
    #[arg(long, value_name = "DIR")]
    pub csv: Option<PathBuf>,
}
