//! Copying in and out.

use super::values::{parse_max_rate, parse_name};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `preload`.
#[derive(Args, Debug)]
pub struct PreloadArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// What to copy.
    pub src: PathBuf,
    /// The copy's path in the mount (with or without the mount point before it).
    pub dst: PathBuf,
    /// Make all names, sizes and attributes first, which programs can use at once: contents come from SRC when a file is opened, and
    /// meanwhile in the background, until this command ends. All servers have to see SRC, and it must not change before that.
    #[arg(long, conflicts_with = "checksum")]
    pub lazy: bool,
    /// With --lazy: end when the names are there. Contents come when a file is opened, and not before.
    #[arg(long, requires = "lazy")]
    pub on_demand: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub how: StageArgs,
}

/// How `preload` and `flush` copy.
#[derive(Args, Debug, Default)]
pub struct StageArgs {
    /// Most files that all nodes together read from or write to the site's file system at once. Default: 4 for each node, at
    /// most 64.
    #[arg(long, alias = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub streams: Option<u16>,
    /// Most bytes per second between the site's file system and all nodes together: 64K or more.
    #[arg(long, value_name = "BYTES", value_parser = parse_max_rate)]
    pub max_rate: Option<u64>,
    /// Leave out what this pattern matches, and what is below it: '*.tmp' by name, '/a/*' by path from SRC, 'tmp/' directories only.
    /// What is left out is not deleted either.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<OsString>,
    /// Make an exception to --exclude for what this pattern matches.
    #[arg(long, value_name = "PATTERN", requires = "exclude")]
    pub include: Vec<OsString>,
    /// Copy only what this file lists: paths relative to SRC, one on each line; `-`: standard input.
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Only print what would be copied and deleted.
    #[arg(long)]
    pub dry_run: bool,
    /// Compare contents, where otherwise a file of the same size and time counts as the same; and read back what was written.
    #[arg(long)]
    pub checksum: bool,
    /// Delete in DST what SRC does not have, for an exact mirror.
    #[arg(long, conflicts_with = "files_from")]
    pub delete: bool,
}

/// Arguments of `flush`.
#[derive(Args, Debug)]
pub struct FlushArgs {
    /// Name of the deployment.
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// What to copy, in the mount (with or without the mount point before it).
    pub src: PathBuf,
    /// The copy's path outside.
    pub dst: PathBuf,
    /// Copy only what was created or changed since its preload or last flush. What was changed in DST meanwhile is reported, and not
    /// overwritten.
    #[arg(long)]
    pub changed: bool,
    /// With --changed: overwrite also what was changed in DST meanwhile.
    #[arg(long, requires = "changed")]
    pub force: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub how: StageArgs,
}
